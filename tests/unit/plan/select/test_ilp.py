"""The integer program: equal to exhaustive search, cycles cut, ties and time limits settled."""
from __future__ import annotations

import random
from itertools import combinations

import pytest

from tilefuse.base.errors import InfeasibleError
from tilefuse.plan.select.cycles import Contraction
from tilefuse.plan.select.ilp import Column, IntegerProgram, Row, Selection

Edges = list[tuple[int, int]]


def solved(num_nodes: int, edges: Edges, columns: list[Column], seconds: float = 60.0, start: tuple[int, ...] = ()) -> Selection:
    return IntegerProgram(num_nodes, edges, columns).solve(seconds, start)


def exhaustive(num_nodes: int, edges: Edges, columns: list[Column]) -> float:
    """The best score of any disjoint choice whose contracted graph has an order, by trying all choices."""
    best = 0.0
    for count in range(1, len(columns) + 1):
        for taken in combinations(range(len(columns)), count):
            members = [m for c in taken for m in columns[c].members]
            if len(members) == len(set(members)) and ordered(num_nodes, edges, [columns[c].members for c in taken]):
                best = max(best, sum(columns[c].score_us for c in taken))
    return best


def ordered(num_nodes: int, edges: Edges, groups: list[tuple[int, ...]]) -> bool:
    """Whether the contracted graph can be emptied by taking away groups without predecessors (independent of the code under test)."""
    group_of = {m: min(g) for g in groups for m in g}
    left = {group_of.get(n, n) for n in range(num_nodes)}
    arcs = {(group_of.get(a, a), group_of.get(b, b)) for a, b in edges}
    arcs = {(a, b) for a, b in arcs if a != b}
    while left:
        free = left - {b for a, b in arcs if a in left}
        if not free:
            return False
        left -= free
    return True


def random_program(seed: int) -> tuple[int, Edges, list[Column]]:
    draw = random.Random(seed)
    num_nodes = draw.randint(3, 8)
    edges = [(a, b) for a in range(num_nodes) for b in range(a + 1, num_nodes) if draw.random() < 0.35]
    sets = {tuple(sorted(draw.sample(range(num_nodes), draw.randint(2, min(4, num_nodes))))) for _ in range(draw.randint(2, 11))}
    return num_nodes, edges, [Column(s, round(draw.uniform(0.0, 10.0), 2)) for s in sorted(sets)]


@pytest.mark.parametrize("seed", range(150))
def test_equal_to_exhaustive_search(seed: int) -> None:
    num_nodes, edges, columns = random_program(seed)
    found = solved(num_nodes, edges, columns)
    assert found.proven and found.objective_us == pytest.approx(exhaustive(num_nodes, edges, columns), abs=1e-6), f"seed {seed}"
    assert ordered(num_nodes, edges, [columns[c].members for c in found.taken]), f"seed {seed}"
    assert found.bound_us == pytest.approx(found.objective_us, abs=1e-6)


def test_figure_3_of_fusion_stitching() -> None:
    """A feeds B, B feeds C, A feeds C. {A, C} saves most, but then B waits for the kernel that waits for B."""
    a, b, c = 0, 1, 2
    edges = [(a, b), (b, c), (a, c)]
    columns = [Column((a, c), 5.0), Column((a, b), 2.0), Column((b, c), 3.0)]
    found = solved(3, edges, columns)
    assert found.taken == (2,) and found.objective_us == 3.0
    assert found.rounds == 2 and found.cuts == 1


def test_a_set_that_holds_the_whole_way_round_is_legal() -> None:
    edges = [(0, 1), (1, 2), (0, 2)]
    found = solved(3, edges, [Column((0, 2), 5.0), Column((0, 1, 2), 4.0)])
    assert found.taken == (1,)


def test_cycles_between_two_kernels_are_cut() -> None:
    """0 -> 1 and 2 -> 3; {0, 3} and {1, 2} would each wait for the other. The other two pairs are free."""
    edges = [(0, 1), (2, 3)]
    columns = [Column((0, 3), 5.0), Column((1, 2), 5.0), Column((0, 2), 3.0), Column((1, 3), 3.0)]
    found = solved(4, edges, columns)
    assert found.taken == (2, 3) and found.objective_us == 6.0 and found.cuts == 1


def test_one_cut_forbids_every_candidate_that_closes_the_same_cycle() -> None:
    """Eight candidates each way differ by one idle node; without lifted cuts each of the 64 pairs would need a round."""
    edges = [(0, 1), (2, 3)]
    columns = [Column((0, 3, 4 + n), 5.0) for n in range(8)] + [Column((1, 2, 12 + n), 5.0) for n in range(8)]
    found = solved(20, edges, columns)
    assert found.objective_us == 5.0 and found.cuts == 1 and found.rounds == 2


def test_equal_inputs_give_equal_choices() -> None:
    for seed in range(20):
        assert solved(*random_program(seed)).taken == solved(*random_program(seed)).taken


def test_without_time_the_start_is_kept() -> None:
    num_nodes, edges, columns = 4, [(0, 1), (2, 3)], [Column((0, 3), 5.0), Column((1, 2), 5.0), Column((0, 2), 3.0)]
    found = solved(num_nodes, edges, columns, seconds=0.0, start=(2,))
    assert found.taken == (2,) and found.objective_us == 3.0 and not found.proven and found.bound_us >= 5.0


# A part of a decoder's plan: HiGHS 1.16.0 proves its optimum and returns the start.
DECODER_LAYER = [
    ((0, 1), 1.12), ((1, 2, 3), 1.65), ((2, 3), 0.83), ((2, 3, 4, 5, 6), 4.93), ((2, 3, 4, 5, 6, 7), 6.26), ((2, 3, 4, 6), 3.21),
    ((3, 4, 5, 6, 7), 4.57), ((4, 5), 1.72), ((4, 5, 6, 7), 3.42), ((4, 5, 7), 3.04), ((4, 6), 0.97), ((5, 6, 7), 3.04), ((5, 7), 1.21),
    ((6, 7), 1.32), ((7, 8, 9), 2.44), ((8, 9), 1.12), ((9, 10, 11), 1.65), ((10, 11), 0.83), ((10, 11, 12, 13, 14), 4.54),
    ((12, 13, 14), 2.53)]


@pytest.mark.parametrize("start", [(), (0, 4, 15, 17), (0, 4, 15), (19,)])
def test_no_start_changes_the_optimum(start: tuple[int, ...]) -> None:
    edges = [(n, n + 1) for n in range(11)] + [(11, 12), (11, 13), (11, 14)]
    found = solved(15, edges, [Column(*c) for c in DECODER_LAYER], start=start)
    assert found.taken == (0, 4, 15, 18) and found.proven


@pytest.mark.parametrize("seed", range(60))
def test_any_start_leads_to_the_best_choice(seed: int) -> None:
    num_nodes, edges, columns = random_program(seed)
    draw = random.Random(seed)
    start: tuple[int, ...] = ()
    for column in draw.sample(range(len(columns)), len(columns)):
        together = tuple(sorted((*start, column)))
        members = [m for c in together for m in columns[c].members]
        if len(members) == len(set(members)) and ordered(num_nodes, edges, [columns[c].members for c in together]):
            start = together
    found = solved(num_nodes, edges, columns, start=start)
    assert found.proven and found.objective_us == pytest.approx(exhaustive(num_nodes, edges, columns), abs=1e-6), f"seed {seed}"


def test_a_solver_that_returns_its_start_is_asked_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As HiGHS 1.16.0 does: the value of the optimum with the variables of the start."""
    import highspy

    given: list[list[float]] = []
    read = highspy.Highs.getSolution

    def keep(self: highspy.Highs, solution: highspy.HighsSolution) -> None:
        given.append(list(solution.col_value))

    def solution_of(self: highspy.Highs) -> highspy.HighsSolution:
        solution = read(self)
        if given:
            solution.col_value = given.pop()
        return solution

    monkeypatch.setattr(highspy.Highs, "setSolution", keep)
    monkeypatch.setattr(highspy.Highs, "getSolution", solution_of)
    found = solved(3, [(0, 1), (1, 2)], [Column((0, 1), 2.0), Column((1, 2), 3.0)], start=(0,))
    assert found.taken == (1,) and found.proven and not given


def test_a_round_too_few_keeps_a_repaired_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first solution has a cycle; when time is over before the second, its better half is kept rather than nothing."""
    from tilefuse.plan.select import ilp

    clock = iter([0.0, 0.0, 10.0, 10.0])
    monkeypatch.setattr(ilp.time, "thread_time", lambda: next(clock))
    found = solved(4, [(0, 1), (2, 3)], [Column((0, 3), 5.0), Column((1, 2), 6.0)], seconds=1.0)
    assert found.taken == (1,) and found.objective_us == 6.0 and not found.proven and found.bound_us == 11.0


def test_an_illegal_start_is_not_used() -> None:
    found = solved(3, [(0, 1), (1, 2)], [Column((0, 2), 5.0)], seconds=0.0, start=(0,))
    assert found.taken == ()


def test_conditions_that_nothing_keeps_are_an_error() -> None:
    program = IntegerProgram(2, [(0, 1)], [Column((0, 1), 1.0)], lambda taken: [Row(((0, 1.0),), -1.0)])
    with pytest.raises(InfeasibleError, match="no choice of kernels"):
        program.solve(5.0)


def test_a_program_without_candidates_is_solved() -> None:
    """With a ceiling on memory also a graph without candidates is asked for; the solver calls its model empty."""
    def nothing(taken: object) -> list[Row]:
        return []

    found = IntegerProgram(2, [(0, 1)], [], nothing).solve(5.0)
    assert found.taken == () and found.proven and found.objective_us == found.bound_us == 0.0
    with pytest.raises(InfeasibleError, match="no choice of kernels"):
        IntegerProgram(2, [(0, 1)], [], lambda taken: [Row((), -1.0)]).solve(5.0)


def test_other_conditions_are_kept() -> None:
    """At most one of two disjoint candidates, asked for only once both are taken."""
    def separator(taken: object) -> list[Row]:
        return [Row(((0, 1.0), (1, 1.0)), 1.0)] if tuple(taken) == (0, 1) else []  # type: ignore[arg-type]

    found = IntegerProgram(4, [], [Column((0, 1), 1.0), Column((2, 3), 2.0)], separator).solve(5.0)
    assert found.taken == (1,) and found.cuts == 1


def test_a_cycle_names_where_it_enters_and_leaves() -> None:
    found = Contraction(3, [(0, 1), (1, 2)], [(0, 2)]).cycles([0])
    assert [(c.pairs, c.columns, c.nodes) for c in found] == [(((2, 0),), (0,), (1,))]


def test_the_solver_writes_nothing_to_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    """HiGHS 1.16 printed its licence at every compile."""
    assert solved(2, [(0, 1)], [Column((0, 1), 1.0)]).taken
    assert capfd.readouterr().out == ""
