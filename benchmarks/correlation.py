"""How well predicted times rank measured ones: Spearman's correlation, and quartiles of measured over predicted time by template.

A row is a kernel or call as the records of the suite `planner` hold it: `template`, `predicted_us`, `measured_us`.
"""
from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def by_template(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """For every template: kernels, rank correlation, the quartiles of measured over predicted time."""
    found: dict[str, dict[str, float]] = {}
    rows_by_template: dict[str, list[Row]] = {}
    for row in rows:
        rows_by_template.setdefault(row["template"], []).append(row)
    for template, own in sorted(rows_by_template.items()):
        ratios = sorted(row["measured_us"] / row["predicted_us"] for row in own)
        quarter = len(ratios) // 4
        found[template] = {"kernels": len(own), "rank_correlation": of_rows(own),
                           "low": ratios[quarter], "median": statistics.median(ratios), "high": ratios[-1 - quarter]}
    return found


def of_rows(rows: Iterable[Row]) -> float:
    """Rank correlation of the rows' predicted and measured times."""
    return rank_correlation([(row["predicted_us"], row["measured_us"]) for row in rows])


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's rank correlation of predicted and measured times; ties share their mean rank. 0 for fewer than two distinct pairs."""
    a, b = (_ranks([p[side] for p in pairs]) for side in (0, 1))
    mean = (len(pairs) - 1) / 2
    across = sum((x - mean) * (y - mean) for x, y in zip(a, b))
    squares = sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b)
    return across / squares ** 0.5 if squares > 0 else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in order[start:end + 1]:
            ranks[place] = (start + end) / 2
        start = end + 1
    return ranks
