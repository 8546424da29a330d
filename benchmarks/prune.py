"""Keeps the folder of records small: one line of history a run, and no run whose figures newer ones have all replaced.

`python -m benchmarks prune` writes the missing lines of `history.md` and deletes the records that neither docs/results.md nor the README's
table takes a case or a peer from, with their pictures. The line of a deleted run stays.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import history, readme
from benchmarks.products.listing import is_bare
from benchmarks.record import RESULTS, Record
from benchmarks.report import OURS, geometric_mean, rows

PAGE = "history.md"
BLOCK = re.compile(r"(<!-- runs:begin -->\n)(.*?)(<!-- runs:end -->)", re.DOTALL)
HEADS = ("time (UTC)", "suite", "devices", "commit", "cases", "share of the limit", "× eager", "× torch.compile", "mode of torch.compile",
         "other figures", "record")
FIGURES = {"calls": readme.host_times("default"), "sizes": readme.totals}
# Suites without cases of peers, which have figures of their own.
WITHOUT_PEERS = ("search", "planner", "compiler")


def line(record: Record) -> str:
    """The run's row of history; its last cell is the record's name, by which a run is known."""
    header, suite = record.header, str(record.header["suite"])
    found = [] if suite in WITHOUT_PEERS else FIGURES.get(suite, readme.times())(record)
    means = readme.means(found)
    count = header.get("num_side_by_side") or header.get("num_parts") or 1
    cells = [str(header.get("time", ""))[:16].replace("T", " "), suite, f"{count} x {header.get('device')}", str(header.get("commit"))[:7],
             str(len(found) or len(record.cases)), *("-" if m is None else f"{m:.2f}" for m in means),
             str(header.get("inductor_mode") or "-") if means[2] is not None else "-", other_figures(record) or "-", record.path.stem]
    return f"| {' | '.join(cells)} |"


def other_figures(record: Record) -> str:
    """Figures that the other columns do not have, in words."""
    match record.header["suite"]:
        case "products":
            listed = rows(record, ["eager", "inductor", "jax"])
            best = geometric_mean(row["vs best"] for row in listed if row["vs best"] and is_bare(row["case"]))
            alone = geometric_mean(row["of bare"] for row in listed if row["of bare"])
            told = [f"bare × best peer {best:.3f}"] if best else []
            return ", ".join([*told, *([f"fused {alone:.3f} of their products alone"] if alone else [])])
        case "planner":
            return f"rank correlation {record.header['rank_correlation']:.3f}" if "rank_correlation" in record.header else ""
        case "search":
            shares = [row["first_of_best"] for row in record.cases.values() if row.get("first_of_best")]
            return f"first program at {geometric_mean(shares):.3f} of the best" if shares else ""
        case "compiler":
            seconds = {name: entry["peers"].get(OURS, {}).get("seconds") for name, entry in record.cases.items()}
            return ", ".join(f"{name} {seconds[name]:.2f} s" for name in ("bert-base/cold", "bert-base/warm") if seconds.get(name))
    return ""


def with_lines(page: str, records: Sequence[Record]) -> str:
    """The page with a line for every run that it does not name yet, all in order of time."""
    block = BLOCK.search(page)
    if block is None:
        raise ValueError(f"{PAGE} has no <!-- runs:begin --> and <!-- runs:end -->; put them where the table stands")
    old = [row for row in block[2].splitlines()[2:] if row]
    known = {row.rsplit("|", 2)[1].strip() for row in old}
    rows = sorted([*old, *(line(r) for r in records if r.path.stem not in known)], reverse=True)
    table = "\n".join([f"| {' | '.join(HEADS)} |", "| --- " * len(HEADS) + "|", *rows])
    return BLOCK.sub(lambda m: f"{m[1]}{table}\n{m[3]}", page)


def prune(folder: Path = RESULTS, names_by_suite: Mapping[str, Sequence[str]] | None = None) -> list[Path]:
    """Write the history and delete what no table needs; the paths that were deleted.

    Records of the host are left: they are nobody's evidence and nobody's history.
    """
    records = [Record.load(path) for path in sorted(folder.rglob("*.json"))]
    measured = [r for r in records if r.header.get("cuda") and r.cases]
    page = folder / PAGE
    page.write_text(with_lines(page.read_text(encoding="utf-8"), measured), encoding="utf-8")
    used = history.used_files(history.newest_records(folder, names_by_suite))
    gone: list[Path] = []
    for record in measured:
        if record.path.name not in used:
            pictures = (record.path.with_suffix(suffix) for suffix in (".png", ".figures.png"))
            gone += [record.path, *(p for p in pictures if p.exists())]
    for path in gone:
        path.unlink()
    return gone
