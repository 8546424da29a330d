"""Tables 2 to 5 of Filipovic et al., "Optimizing CUDA Code by Kernel Fusion: Application on BLAS", from this project's records.

Table 2 and 3 are read from a record of the suite `blas` (the largest size in f32), 4 and 5 from one of `search`. The paper's own figures
are of a GeForce GTX 480 and stand beside ours.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.record import Record
from benchmarks.report import OURS, device_text, time_us

# Programs whose times differ by no more count as equally fast. Source: the paper, caption of table 4.
SAME = 0.001


@dataclass(frozen=True)
class Published:
    """A sequence's row in the paper. Units: operations for m x n matrices or vectors of n words are `per_word` of them a word.

    tag: F improvable by fusion, S by specialised kernels, B equal to one call of a library; in brackets where it matters little
    """

    name: str
    tag: str
    per_word: int
    speedup: float
    bto_speedup: float | None
    count: int
    best_rank: int
    first: float
    worst: float | None
    first_s: float
    all_s: float
    search: str


PAPER = (
    Published("axpydot", "FS", 4, 1.94, 1.58, 25, 4, 0.752, 0.349, 0.144, 0.241, "1 min 59 s"),
    Published("atax", "", 4, 1.03, 1.37, 1, 1, 1.0, None, 0.137, 0.144, "5 s"),
    Published("bicgk", "F", 4, 1.61, 1.5, 5, 1, 1.0, 0.64, 0.140, 0.164, "18 s"),
    Published("gemv", "B", 2, 1.05, 0.83, 83, 14, 0.992, 0.978, 0.152, 0.9, "8 min 22 s"),
    Published("gemvt", "(S)", 4, 1.03, 1.29, 41, 5, 0.998, 0.994, 0.123, 0.393, "4 min 42 s"),
    Published("scal", "B", 1, 1.05, None, 1, 1, 1.0, None, 0.139, 0.113, "3 s"),
    Published("gemver", "FS", 8, 2.61, 2.37, 1271, 54, 0.987, 0.431, 0.133, 42.165, "3 h 24 min 36 s"),
    Published("gesummv", "(F)", 4, 1.0, 0.93, 415, 51, 0.996, 0.944, 0.123, 5.707, "48 min 23 s"),
    Published("madd", "S", 1, 1.47, 1.47, 1, 1, 1.0, None, 0.128, 0.116, "4 s"),
    Published("vadd", "FS", 2, 2.26, 1.83, 41, 14, 0.946, 0.504, 0.133, 0.248, "3 min 3 s"),
    Published("waxpby", "F", 3, 1.93, 1.88, 83, 1, 1.0, 0.293, 0.156, 0.731, "7 min 14 s"),
)


def text(sequences: Record | None, searches: Record | None) -> str:
    """All four tables as Markdown; those without a record are left out."""
    parts: list[str] = []
    if sequences is not None:
        parts += [f"From {sequences.path.name}: {device_text(sequences)}, commit {sequences.header.get('commit')}.",
                  performance(sequences), bandwidth(sequences)]
    if searches is not None:
        parts += [f"From {searches.path.name}: {device_text(searches)}, commit {searches.header.get('commit')}.",
                  accuracy(searches), compilation(searches)]
    return "\n\n".join(parts)


def performance(record: Record) -> str:
    """Table 2: generated programs against cuBLAS."""
    def cells(p: Published, entry: Mapping[str, Any]) -> list[str]:
        ours, theirs = time_us(dict(entry), OURS), time_us(dict(entry), "eager")
        words = _words(str(entry["name"]))
        rate = [f"{p.per_word * words / us / 1e3:.0f}" if us else "-" for us in (ours, theirs)]
        return [*rate, f"{theirs / ours:.2f}" if ours and theirs else "-", f"{p.speedup:.2f}", p.tag]

    return _table(("table 2", "tilefuse GFLOP/s", "cuBLAS GFLOP/s", "speed-up", "the paper's", "tag"), _large(record), cells)


def bandwidth(record: Record) -> str:
    """Table 3: speed-up beside that of BTO BLAS on a processor, and the bandwidth of what inputs and results need to move."""
    def cells(p: Published, entry: Mapping[str, Any]) -> list[str]:
        ours, theirs = time_us(dict(entry), OURS), time_us(dict(entry), "eager")
        moved = entry["peers"].get(OURS, {}).get("bytes", 0)
        return [f"{theirs / ours:.2f}" if ours and theirs else "-", "-" if p.bto_speedup is None else f"{p.bto_speedup:.2f}",
                f"{moved / ours / 1e3:.0f}" if ours else "-"]

    return _table(("table 3", "speed-up", "BTO BLAS (paper)", "GB/s"), _large(record), cells)


def accuracy(record: Record) -> str:
    """Table 4: how many implementations, where the best one stands in the order of prediction, the first and the worst against it."""
    def cells(p: Published, row: Mapping[str, Any]) -> list[str]:
        times = [q["us"] for q in row["programs"] if q["us"]]
        best = min(times)
        rank = next(n for n, us in enumerate(times) if us <= (1 + SAME) * best)
        worst = "-" if p.worst is None else f"{p.worst:.1%}"
        return [str(row["num_implementations"]), str(rank + 1), f"{best / times[0]:.1%}", f"{best / max(times):.1%}",
                f"{p.count}, {p.best_rank}, {p.first:.1%}, {worst}"]

    heads = ("table 4", "implementations", "rank of the best", "first of the best", "worst of the best", "the paper's")
    return _table(heads, _large(record), cells)


def compilation(record: Record) -> str:
    """Table 5: seconds to the first program, to all that are listed, and of the empirical search."""
    def cells(p: Published, row: Mapping[str, Any]) -> list[str]:
        return [f"{row['first_s']:.3f}", f"{row['list_s']:.3f}", f"{row['search_s']:.1f} ({row['num_timed']} programs)",
                f"{p.first_s}, {p.all_s}, {p.search}"]

    return _table(("table 5", "first s", "listed s", "search s", "the paper's"), _large(record), cells)


def _words(name: str) -> int:
    size = name.rpartition("/")[2]
    rows, _, columns = size.partition("x")
    return int(rows) * int(columns or 1)


def _large(record: Record) -> dict[str, Mapping[str, Any]]:
    """The f32 case of each sequence at its largest size."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, entry in record.cases.items():
        script, _, rest = name.partition("/")
        if rest.startswith("f32/") and (script not in found or _words(name) > _words(str(found[script]["name"]))):
            found[script] = {**entry, "name": name}
    return found


def _table(heads: Sequence[str], rows: Mapping[str, Mapping[str, Any]], cells: Any) -> str:
    lines: Iterable[str] = ("| " + " | ".join([p.name, *cells(p, rows[p.name])]) + " |" for p in PAPER if p.name in rows)
    return "\n".join(["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|", *lines])
