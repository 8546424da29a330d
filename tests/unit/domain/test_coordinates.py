"""Coordinates of a pattern's nodes: a kernel writes every element of its results once, or there is no kernel, at every size."""
from __future__ import annotations

import pytest

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.domain import find_domain
from tilefuse.ir.text import parse_graph

SIZES = [(8, 12), (2048, 2052), (1024, 8200), (1 << 20, 1 << 16)]


def halves(rows: int, columns: int) -> str:
    """The first half of each row summed twice, beside the rows themselves: the sum's coordinates reach half of the elements only."""
    return f"""graph @g(%x: f32[{rows}, {columns}]) -> (f32[{rows}, {columns}], f32[{rows}]) {{
      %r: f32[{rows}, {columns}] = map [i, j] {{ exp(%x[i, j]) }}
      %s: f32[{rows}] = reduce.sum [i] over [j < {columns}] {{ %r[i, (j // 2)] }}
      return %r, %s
    }}"""


def shuffled(rows: int, columns: int) -> str:
    """Channels shuffled in two groups and summed, beside the rows themselves: the coordinates reach every element."""
    return f"""graph @g(%x: f32[{rows}, {columns}]) -> (f32[{rows}, {columns}], f32[{rows}]) {{
      %r: f32[{rows}, {columns}] = map [i, j] {{ exp(%x[i, j]) }}
      %s: f32[{rows}] = reduce.sum [i] over [j < {columns}] {{ %r[i, {columns // 2}*(j % 2) + (j // 2)] }}
      return %r, %s
    }}"""


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_a_walk_that_misses_elements_is_refused_at_every_size(rows: int, columns: int) -> None:
    found = find_domain(parse_graph(halves(rows, columns)), {})
    assert isinstance(found, Rejected)
    assert found.reason is Reason.DOMAIN_MISMATCH and "%r" in found.detail


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_a_walk_of_every_element_is_taken_at_every_size(rows: int, columns: int) -> None:
    assert not isinstance(find_domain(parse_graph(shuffled(rows, columns)), {}), Rejected)
