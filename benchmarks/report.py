"""Tables and plots of a record: limit, each peer, tilefuse, ratios, geometric means, and the cases that miss their target."""
from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.record import Record

OURS = "tilefuse"
# Column of tilefuse's operations a second, for cases that are products. Units: 1e12 floating-point operations a second.
RATE = "TFLOP/s"


def time_us(entry: dict[str, Any], peer: str) -> float | None:
    """Median of a peer on a case, or None where it failed, was wrong or was left out."""
    found = entry["peers"].get(peer, {})
    return float(found["us"]) if found.get("status") == "ok" else None


def geometric_mean(values: Iterable[float]) -> float | None:
    """Geometric mean of positive values; None if there are none."""
    listed = [v for v in values if v > 0]
    return math.exp(sum(map(math.log, listed)) / len(listed)) if listed else None


def limit_us(record: Record, entry: dict[str, Any]) -> float | None:
    """The larger of the ideal bytes at the copy bandwidth of the case's device and the operations at its rate of a large product.

    Units: microseconds.
    """
    moved = next((p["bytes"] for p in entry["peers"].values() if p.get("bytes")), None)
    own = {**record.header, **record.header.get("devices", {}).get(entry.get("device"), {})}
    rate = own.get("copy_bytes_per_s")
    if not moved or not rate:
        return None
    flops_per_s = own.get("flops_per_s", {}).get(entry.get("dtype"))
    return float(max(moved / rate, entry.get("flops", 0) / flops_per_s if flops_per_s else 0.0) * 1e6)


def device_text(record: Record) -> str:
    """Device, how many measured side by side, and their copy bandwidth (median, and the range where there are several)."""
    header = record.header
    count = header.get("num_side_by_side", 1)
    parts = [f"{header.get('device')}" + (f" x {count} side by side" if count > 1 else "")]
    rates = [d["copy_bytes_per_s"] / 1e12 for d in header.get("devices", {}).values() if d.get("copy_bytes_per_s")]
    if header.get("copy_bytes_per_s"):
        spread = f" ({min(rates):.2f} to {max(rates):.2f})" if len(rates) > 1 else ""
        parts.append(f"copy {header['copy_bytes_per_s'] / 1e12:.2f} TB/s{spread}")
    return ", ".join(parts)


def compile_share(entry: dict[str, Any]) -> float | None:
    """tilefuse's compile time over torch.compile's, where both were measured."""
    ours, theirs = (entry["peers"].get(p, {}).get("compile_s") for p in (OURS, "inductor"))
    return ours / theirs if ours and theirs else None


def rows(record: Record, peers: list[str]) -> list[dict[str, Any]]:
    """One mapping a case: name, limit, times, shares and ratios (None where there is no figure).

    "of bare" is tilefuse's time over that of the case's products alone: below 1, tilefuse is faster than those.
    """
    found: list[dict[str, Any]] = []
    for name, entry in record.cases.items():
        ours = time_us(entry, OURS)
        row: dict[str, Any] = {"case": name, "family": entry.get("family", ""), "limit": limit_us(record, entry), OURS: ours}
        for peer in peers:
            row[peer] = time_us(entry, peer)
        rivals = [row[p] for p in peers if row[p] and p != "unfused"]
        row["of limit"] = row["limit"] / ours if ours and row["limit"] else None
        row["vs inductor"] = row["inductor"] / ours if ours and row.get("inductor") else None
        row["vs eager"] = row["eager"] / ours if ours and row.get("eager") else None
        row["vs unfused"] = row["unfused"] / ours if ours and row.get("unfused") else None
        row["vs best"] = min(rivals) / ours if ours and rivals else None
        bare = entry["peers"].get(OURS, {}).get("bare_us")
        row["bare"] = bare
        row["of bare"] = ours / bare if ours and bare else None
        row["asked of bare"] = entry.get("max_of_bare")
        row[RATE] = entry["flops"] / ours * 1e-6 if ours and entry.get("flops") else None
        row["asked"] = entry.get("min_of_limit")
        row["asked speed"] = entry.get("min_speedup")
        row["asked fusion"] = entry.get("min_fusion")
        row["judged"] = row["vs " + entry.get("against", "inductor")]
        row["compile"] = compile_share(entry) if "max_compile_share" in entry else None
        row["asked compile"] = entry.get("max_compile_share")
        row["note"] = "; ".join(f"{p} {m['status']}" for p, m in entry["peers"].items() if m.get("status") not in ("ok", "skipped"))
        found.append(row)
    return found


def table(record: Record, peers: list[str]) -> str:
    """The record as aligned text, with geometric means by family and over all."""
    listed = rows(record, peers)
    ratios = [k for k in ("of limit", "vs eager", "vs inductor", "vs unfused", "vs best", "of bare", "compile")
              if any(r.get(k) for r in listed)]
    if not any(r["limit"] for r in listed):
        ratios = [k for k in ratios if k != "of limit"]
    columns = [*(["limit"] if any(r["limit"] for r in listed) else []), *peers, OURS,
               *([RATE] if record.header.get("suite") == "products" else []), *ratios]
    width = max([len(r["case"]) for r in listed] + [20])
    lines = ["  ".join([f"{'case (microseconds)':<{width}}", *(f"{c:>11}" for c in columns), "note"])]
    for row in listed:
        marks = row["note"] + (" below target" if _short(row) else "")
        lines.append("  ".join([f"{row['case']:<{width}}", *(_cell(row.get(c), c in ratios) for c in columns), marks.strip()]).rstrip())
    by_family: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in listed:
        by_family[row["family"]].append(row)
    groups = [*sorted(by_family.items()), ("all", listed)]
    lines.append("")
    lines.append("  ".join([f"{'geometric mean':<{width}}", *(f"{c:>11}" for c in ratios), "cases"]))
    for family, members in groups:
        means = [geometric_mean(r[c] for r in members if r.get(c)) for c in ratios]
        lines.append("  ".join([f"{family:<{width}}", *(_cell(m, True) for m in means), str(len(members))]))
    return "\n".join(lines)


def _short(row: dict[str, Any]) -> bool:
    """Whether a measured figure misses what its case asks."""
    floors = (("of limit", "asked"), ("judged", "asked speed"), ("vs unfused", "asked fusion"))
    slow = any(row[figure] and row[asked] and row[figure] < row[asked] for figure, asked in floors)
    slow = slow or bool(row["of bare"] and row["asked of bare"] and row["of bare"] > row["asked of bare"])
    return slow or bool(row["compile"] and row["asked compile"] and row["compile"] > row["asked compile"])


def verdict(record: Record) -> str:
    """Result of the run for the targets: share of the limit, torch.compile on every case and in the mean, failures."""
    listed = rows(record, ["eager", "inductor", "jax"])
    ours = [r for r in listed if r[OURS]]
    short = [r for r in ours if r["of limit"] and r["asked"] and r["of limit"] < r["asked"]]
    slower = [r for r in ours if r["vs inductor"] and r["vs inductor"] < 1.0]
    missing = [r["case"] for r, entry in zip(listed, record.cases.values()) if OURS in entry["peers"] and not r[OURS]]
    mean = geometric_mean(r["vs inductor"] for r in ours if r["vs inductor"])
    lines = [f"tilefuse ran {len(ours)} of {len(ours) + len(missing)} cases"]
    if any(r["of limit"] for r in ours):
        lines.append(f"below the asked share of the copy bandwidth: {len(short)}" + named(short))
    if mean is not None:
        lines.append(f"against torch.compile: {mean:.2f} in geometric mean; slower on {len(slower)}" + named(slower))
    if any(r["asked speed"] for r in ours):
        below = [r for r in ours if r["judged"] and r["asked speed"] and r["judged"] < r["asked speed"]]
        rival = "the best peer" if any(e.get("against") == "best" for e in record.cases.values()) else "torch.compile"
        lines.append(f"below the asked speed against {rival}: {len(below)}" + named(below))
        long = [r for r in ours if r["compile"] and r["asked compile"] and r["compile"] > r["asked compile"]]
        lines.append(f"compiled for longer than the asked share of torch.compile's time: {len(long)}" + named(long))
    if missing:
        lines.append("no result: " + ", ".join(missing[:12]) + (" ..." if len(missing) > 12 else ""))
    return "\n".join(lines)


def plot(record: Record, peers: list[str], path: Path) -> bool:
    """A bar chart of shares of the limit (or of the best peer's time) a case; False where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    listed = [r for r in rows(record, peers) if any(r.get(p) for p in (*peers, OURS))]
    if not listed:
        return False
    drawn = [*peers, OURS]
    figure, axes = plt.subplots(figsize=(10, max(3.0, 0.28 * len(listed) + 1)))
    height = 0.8 / len(drawn)
    with_limit = all(r["limit"] for r in listed)
    for number, peer in enumerate(drawn):
        ends = []
        for row in listed:
            base = row["limit"] if with_limit else min(row[p] for p in drawn if row.get(p))
            ends.append(base / row[peer] if row.get(peer) else 0.0)
        axes.barh([i + number * height for i in range(len(listed))], ends, height, label=peer)
    axes.set_yticks([i + 0.4 for i in range(len(listed))], [r["case"] for r in listed], fontsize=7)
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("share of the copy bandwidth of the same run" if with_limit else "speed relative to the fastest")
    axes.set_title(f"{record.header.get('suite')} on {record.header.get('device')}")
    axes.legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True


def _cell(value: float | None, is_ratio: bool) -> str:
    if value is None:
        return f"{'-':>11}"
    return f"{value:>11.3f}" if is_ratio else f"{value:>11.1f}"


def named(listed: list[dict[str, Any]]) -> str:
    """The first cases of a list of rows, in brackets; nothing of an empty one."""
    if not listed:
        return ""
    shown = ", ".join(r["case"] for r in listed[:8])
    return f" ({shown}{', ...' if len(listed) > 8 else ''})"
