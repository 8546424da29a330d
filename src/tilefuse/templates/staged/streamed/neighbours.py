"""Neighbours of streamed products for tuning: every tile that is tried."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilefuse.templates.staged.streamed.plan import StreamPlan
from tilefuse.templates.staged.streamed.record import Streamed


def stream_neighbours(plan: StreamPlan) -> Iterator[Streamed]:
    """Twice and half as many columns of a warp, warps, blocks of a cluster, and slots."""
    base = plan.choice
    for field in ("slots", "along", "across", "wide", "cluster"):
        value = getattr(base, field)
        for other in (value * 2, value // 2):
            if other:
                yield replace(base, **{field: other})
    # The same columns by more blocks, and the same warps in another shape.
    if base.along > 1:
        yield replace(base, along=base.along // 2, cluster=base.cluster * 2)
        yield replace(base, along=base.along // 2, across=base.across * 2)
    if base.across > 1:
        yield replace(base, across=base.across // 2, along=base.along * 2)
