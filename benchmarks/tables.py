"""The tables of measured results as Markdown, one function a suite; docs/results.md holds them (`results_page.py`)."""
from __future__ import annotations

from collections import defaultdict
from typing import Any

from benchmarks import correlation
from benchmarks.record import Record
from benchmarks.report import OURS, geometric_mean, rows


def patterns_table(record: Record) -> str:
    """Geometric means by family: share of the limit, ratio to eager and to torch.compile."""
    by_family: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows(record, ["eager", "inductor", "jax"]):
        if row[OURS]:
            by_family[row["family"]].append(row)
    everything = [row for members in by_family.values() for row in members]
    lines = ["| pattern | cases | share of the copy bandwidth | × eager | × torch.compile | × best peer |",
             "| --- | --- | --- | --- | --- | --- |"]
    for family, members in [*sorted(by_family.items()), ("**all**", everything)]:
        means = [geometric_mean(r[c] for r in members if r.get(c)) for c in ("of limit", "vs eager", "vs inductor", "vs best")]
        lines.append(f"| {family} | {len(members)} | " + " | ".join("-" if m is None else f"{m:.2f}" for m in means) + " |")
    return "\n".join(lines)


def models_table(record: Record) -> str:
    """Every model case: times and ratios."""
    lines = ["| model | eager ms | torch.compile ms | tilefuse ms | × eager | × torch.compile |", "| --- | --- | --- | --- | --- | --- |"]
    for row in rows(record, ["eager", "inductor"]):
        if not row[OURS]:
            continue
        times = ["-" if not row.get(p) else f"{row[p] / 1e3:.3f}" for p in ("eager", "inductor", OURS)]
        ratios = ["-" if not row.get(c) else f"{row[c]:.2f}" for c in ("vs eager", "vs inductor")]
        lines.append(f"| {row['case']} | " + " | ".join(times + ratios) + " |")
    return "\n".join(lines)


def stitched_table(record: Record) -> str:
    """Every stitched pattern: limit, times, ratios, and compile time against torch.compile's."""
    lines = ["| pattern | limit us | eager us | torch.compile us | tilefuse us | share of the limit | × eager | × torch.compile | "
             "target × torch.compile "
             "| compile time of torch.compile's |", "| --- " * 10 + "|"]
    for row in rows(record, ["eager", "inductor"]):
        if not row[OURS]:
            continue
        times = ["-" if not row.get(p) else f"{row[p]:.1f}" for p in ("limit", "eager", "inductor", OURS)]
        ratios = ["-" if not row.get(c) else f"{row[c]:.2f}" for c in ("of limit", "vs eager", "vs inductor", "asked speed", "compile")]
        lines.append(f"| {row['case']} | " + " | ".join(times + ratios) + " |")
    return "\n".join(lines)


def arrays_table(record: Record) -> str:
    """Programs of symbolic arrays: times, ratios and peak memory beyond weights and state."""
    lines = ["| program | eager ms | torch.compile ms | unfused ms | tilefuse ms | share of the limit | × eager | × torch.compile "
             "| × unfused | eager peak MiB | torch.compile peak MiB | tilefuse peak MiB |", "| --- " * 12 + "|"]
    for row, entry in zip(rows(record, ["eager", "inductor", "unfused"]), record.cases.values(), strict=True):
        if not row[OURS]:
            continue
        times = ["-" if not row.get(p) else f"{row[p] / 1e3:.3f}" for p in ("eager", "inductor", "unfused", OURS)]
        ratios = ["-" if not row.get(c) else f"{row[c]:.2f}" for c in ("of limit", "vs eager", "vs inductor", "vs unfused")]
        peaks = [entry["peers"].get(p, {}).get("peak_bytes") for p in ("eager", "inductor", OURS)]
        lines.append(f"| {row['case']} | " + " | ".join([*times, *ratios, *("-" if not b else f"{b / 2**20:.1f}" for b in peaks)]) + " |")
    return "\n".join(lines)


def blas_table(record: Record) -> str:
    """The sequences at their large size, and the least ratio over all sizes: to the best peer, of iterations of solvers to cuBLAS."""
    by_script: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows(record, ["eager", "inductor", "jax"]):
        script, dtype, _ = str(row["case"]).split("/")
        if row[OURS]:
            by_script[(script, dtype)].append({**row, "size": str(row["case"]).rpartition("/")[2]})
    lines = ["| script | limit us | torch (cuBLAS) us | torch.compile us | jax.jit us | tilefuse us | share of the limit "
             "| judged ratio | sizes | least of the sizes |", "| --- " * 10 + "|"]
    for (script, dtype), found in by_script.items():
        large = max(found, key=lambda r: int(str(r["size"]).partition("x")[0]))
        times = ["-" if not large.get(p) else f"{large[p]:.1f}" for p in ("limit", "eager", "inductor", "jax", OURS)]
        ratios = ["-" if not large.get(c) else f"{large[c]:.2f}" for c in ("of limit", "judged")]
        least = min((r["judged"] for r in found if r["judged"]), default=None)
        lines.append(f"| {script}/{dtype}/{large['size']} | " + " | ".join([*times, *ratios, str(len(found)), "-" if least is None else
                                                                             f"{least:.2f}"]) + " |")
    return "\n".join(lines)


def search_table(record: Record) -> str:
    """The search over programs of scripts, as the paper's tables 4 and 5: each at its large size in f32, and all cases counted."""
    lines = ["| script | fusions | implementations | timed | best us | rank of the best | first of the best | worst of the best "
             "| first program s | search s |", "| --- " * 10 + "|"]
    found = {name: row for name, row in record.cases.items() if row["best_us"]}
    for name, row in found.items():
        if name.endswith(("f32/16384x16384", "f32/67108864")):
            lines.append(f"| {name} | {row['num_fusions']} | {row['num_implementations']} | {row['num_timed']} | {row['best_us']:.1f} "
                         f"| {row['rank_of_best']} | {row['first_of_best']:.3f} | {row['worst_of_best']:.3f} | {row['first_s']:.3f} "
                         f"| {row['search_s']:.1f} |")
    good = sum(row["first_of_best"] >= 0.95 for row in found.values())
    early = sum(row["rank_of_best"] < 10 for row in found.values())
    summary = (f"Of all {len(found)} cases (f32 and f64, three sizes) the first program runs at 0.95 of the best or more in {good}, "
               f"the best is among the first ten in {early}.")
    return "\n".join([*lines, "", summary])


# Measurements of tilefuse in the suite of sizes.
SIZES_OURS = (OURS, "warm", "tilefuse_later")


def sizes_table(record: Record) -> str:
    """Streams of calls with changing sizes: total seconds of every peer, compilation included, and the same calls the third time.

    A total of several runs is their median, with the shortest and the longest behind it; ratios are of medians.
    """
    peers = (("eager", "eager"), ("aot_eager", "aot_eager"), ("inductor", "torch.compile"), (OURS, "tilefuse"),
             ("warm", "tilefuse, cached"), ("tilefuse_later", "tilefuse, sizes_at_once=0"))
    heads = ["stream", *(f"{word} s" for _, word in peers), "× aot_eager", "× aot_eager, sizes_at_once=0",
             *(f"third time: {word} s" for _, word in peers[1:4]), "tilefuse, background done s", "results"]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for name, entry in record.cases.items():
        found = {peer: entry["peers"].get(peer, {}) for peer, _ in peers}
        totals = [_range(found[peer]) for peer, _ in peers]
        thirds = [_seconds(found[peer].get("third_seconds")) for peer, _ in peers[1:4]]
        theirs, *ours = (found[peer].get("seconds") for peer in ("aot_eager", OURS, "tilefuse_later"))
        ratios = [f"{seconds / theirs:.2f}" if seconds and theirs else "-" for seconds in ours]
        settled = _seconds(found[OURS].get("settled_seconds"))
        # Every measurement of ours that there is must be right, and there must be the plain one.
        right = "right" if found[OURS] and all(f.get("right") for p, f in found.items() if p in SIZES_OURS and f) else "wrong"
        lines.append(f"| {name} | {' | '.join((*totals, *ratios, *thirds, settled))} | {right} |")
    return "\n".join(lines)


def _range(found: dict[str, Any]) -> str:
    told = _seconds(found.get("seconds"))
    is_range = found.get("num_runs", 1) > 1 and "least_seconds" in found
    return f"{told} ({_seconds(found['least_seconds'])} to {_seconds(found['most_seconds'])})" if is_range else told


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def compiler_table(record: Record) -> str:
    """Times of the compiler itself: every figure by name."""
    lines = ["| figure | measured |", "| --- | --- |"]
    for name, entry in record.cases.items():
        ours = entry["peers"][OURS]
        told = [_figure(key, value) for key, value in ours.items() if type(value) in (int, float)]
        lines.append(f"| {name} | {', '.join(told) or ours['status']} |")
    return "\n".join(lines)


def _figure(key: str, value: float) -> str:
    """`eager_operator_us`: 5.0 as "eager operator 5 us"; a key without a unit behind its number."""
    if key == "seconds":
        return f"{value:.3g} s"
    *words, last = key.split("_")
    return f"{' '.join(words)} {value:.3g} {last}" if words else f"{value:.6g} {key}"


def planner_table(record: Record) -> str:
    """Every template: kernels, rank correlation of predicted and measured times, quartiles of measured over predicted.

    All figures are of the record's cases: its header is of one run, and a record may hold cases of several.
    """
    lines = ["| template | kernels | rank correlation | lower quartile | median | upper quartile |", "| --- " * 6 + "|"]
    for template, facts in correlation.by_template(record.cases.values()).items():
        cells = [f"{facts[key]:.2f}" for key in ("rank_correlation", "low", "median", "high")]
        lines.append(f"| {template} | {facts['kernels']} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"Over all {len(record.cases)} kernels and calls: {correlation.of_rows(record.cases.values()):.3f}."])
