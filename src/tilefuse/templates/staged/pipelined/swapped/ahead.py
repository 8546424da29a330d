"""Weights of few rows whose first tiles fill the slots while the kernel ahead still runs.

    producer   copies of weights into all slots | wait for the kernel ahead | copies of rows into the same slots | next fillings ..
"""
from __future__ import annotations

from collections.abc import Set

from tilefuse.kernel.early import PrefetchOnly
from tilefuse.templates.staged.pipelined.plan import ProductPlan, why_no_copies


def fetched_ahead(plan: ProductPlan, settled: Set[str]) -> frozenset[str]:
    """Keys of the tiles that come before the wait: settled weights of few rows, which tensor copies bring."""
    if not plan.choice.swapped or isinstance(settled, PrefetchOnly):
        return frozenset()
    return frozenset(t.key for t in plan.rights if t.operand.value in settled and not why_no_copies(plan.form, t))
