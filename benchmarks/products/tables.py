"""The suite's tables as Markdown: bare products, then fused ones, with geometric means by family."""
from __future__ import annotations

from collections import defaultdict
from typing import Any

from benchmarks.products.listing import FUSED
from benchmarks.record import Record
from benchmarks.report import OURS, RATE, geometric_mean, rows

TIMES = {"limit": "limit us", "bare": "its products alone us", "eager": "eager us", "jax": "jax.jit us", "inductor": "torch.compile us",
         OURS: "tilefuse us", RATE: RATE}
RATIOS = {"of limit": "share of the limit", "vs best": "× best peer", "of bare": "of its products alone", "vs inductor": "× torch.compile"}
BARE_COLUMNS = ("limit", "eager", "jax", OURS, RATE, "of limit", "vs best")
FUSED_COLUMNS = ("limit", "bare", "eager", "inductor", OURS, RATE, "of limit", "of bare", "vs inductor")


def products_table(record: Record) -> str:
    """Both tables; the one of fused products is left out where none was measured, and so the other."""
    measured = [row for row in rows(record, ["eager", "inductor", "jax"]) if row[OURS]]
    bare, fused = ([row for row in measured if (row["family"] == FUSED) == is_fused] for is_fused in (False, True))
    calls = {name: entry["peers"].get(OURS, {}).get("library_calls") for name, entry in record.cases.items()}
    return "\n\n".join(_table(title, listed, columns, calls) for title, listed, columns in
                       (("product", bare, BARE_COLUMNS), ("fused product", fused, FUSED_COLUMNS)) if listed)


def _table(title: str, listed: list[dict[str, Any]], columns: tuple[str, ...], calls: dict[str, list[str] | None]) -> str:
    heads = [title, *(TIMES.get(c) or RATIOS[c] for c in columns), "library calls"]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for row in listed:
        count = calls[row["case"]]
        cells = [_cell(row.get(c), c) for c in columns]
        lines.append(f"| {row['case']} | {' | '.join([*cells, '-' if count is None else str(len(count))])} |")
    by_family: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in listed:
        by_family[row["family"]].append(row)
    for family, members in [*sorted(by_family.items()), ("all", listed)] if len(by_family) > 1 else [("all", listed)]:
        means = ["" if c in TIMES else _cell(geometric_mean(r[c] for r in members if r.get(c)), c) for c in columns]
        lines.append(f"| **{family}** (geometric mean of {len(members)}) | {' | '.join([*means, ''])} |")
    return "\n".join(lines)


def _cell(value: float | None, column: str) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if column in TIMES else f"{value:.2f}"
