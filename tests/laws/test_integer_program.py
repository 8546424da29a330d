"""Law: the integer program, whole or in parts, finds what exhaustive search finds on every small graph."""
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.plan.select.test_ilp import exhaustive, ordered
from tilefuse.plan.select.components import select
from tilefuse.plan.select.ilp import Column, IntegerProgram

Program = tuple[int, list[tuple[int, int]], list[Column]]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Up to seven nodes with any dependences, and up to nine candidates with scores, some equal, some below zero."""
    count = draw(st.integers(2, 7))
    nodes = st.integers(0, count - 1)
    edges = draw(st.sets(st.tuples(nodes, nodes).filter(lambda e: e[0] < e[1]), max_size=14))
    sets = draw(st.sets(st.frozensets(nodes, min_size=2, max_size=4), min_size=1, max_size=9))
    scores = st.integers(-4, 40).map(lambda n: n / 4)
    return count, sorted(edges), [Column(tuple(sorted(s)), draw(scores)) for s in sorted(sets, key=sorted)]


@given(programs())
def test_the_integer_program_equals_exhaustive_search(program: Program) -> None:
    count, edges, columns = program
    best = exhaustive(count, edges, columns)
    for found in (IntegerProgram(count, edges, columns).solve(60.0), select(count, edges, columns, 60.0)):
        assert found.proven and abs(found.objective_us - best) < 1e-5 and abs(found.bound_us - best) < 1e-5
        assert ordered(count, edges, [columns[c].members for c in found.taken])


@given(programs(), st.floats(0.0, 1e-4))
def test_no_time_limit_makes_an_illegal_choice(program: Program, seconds: float) -> None:
    count, edges, columns = program
    found = select(count, edges, columns, seconds)
    assert ordered(count, edges, [columns[c].members for c in found.taken])
    assert found.objective_us >= 0 and found.bound_us >= exhaustive(count, edges, columns) - 1e-5
