"""Nested stretches: every count is taken whole, and no accumulator takes many terms."""
from __future__ import annotations

from math import prod

import pytest

from tilefuse.emit.cascade import OUTER_STRETCH, STRETCH, nested_counts


@pytest.mark.parametrize("count", [1, 64, 128, 129, 1000, 1024, 1025, 65_536, 1_000_003, 1 << 24, (1 << 28) + 1])
def test_loops_take_every_step_and_little_more(count: int) -> None:
    loops = nested_counts(count)
    if count <= 2 * STRETCH:
        assert loops == ()
        return
    assert loops[-1] == STRETCH and loops[0] <= OUTER_STRETCH and set(loops[1:-1]) <= {OUTER_STRETCH}
    assert count <= prod(loops) and prod(loops) * (loops[0] - 1) <= count * loops[0]
