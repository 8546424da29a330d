"""The search over fusions of routines: which subgraphs fuse, decisions, combinations in order of predicted time, and its speed."""
from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest

from tests.unit.scripts.routine_runs import script_graph
from tests.unit.scripts.routine_scripts import SEQUENCES, sequence
from tilefuse.base.candidate import Reason
from tilefuse.domain.roofline import price_work
from tilefuse.scripts.language.elementary import CallGraph
from tilefuse.scripts.plan.combinations import TEMPLATE, FusionImplementation, cheapest, combinations, in_order
from tilefuse.scripts.plan.fusions import find_fusions
from tilefuse.scripts.plan.implementations import bound_us, calling_orders, implementations, list_candidates
from tilefuse.scripts.plan.routine_times import Environment, RoutineTimes, interpolated_ratio
from tilefuse.scripts.plan.work import routine_work
from tilefuse.scripts.schedule.elements import ATOMICS, LAST_BLOCK
from tilefuse.target.device import H200

# Fusions of more than one call, of the paper's sequences. Products of BTO's scripts that need a global barrier in between are none.
FUSED = {
    "axpydot": [(0, 1)], "atax": [], "bicgk": [(0, 1)], "sgemv": [], "sgemvt": [], "sscal": [], "gemver": [(0, 1), (1, 2), (0, 1, 2)],
    "gesummv": [(0, 1)], "madd": [], "vadd": [(0, 1)], "waxpby": [(0, 1)],
}


@pytest.mark.parametrize("name", sorted(SEQUENCES))
def test_fusible_subgraphs(name: str) -> None:
    """Exactly the convex sets of one grid without a reduction's use that spare a transfer."""
    found = find_fusions(sequence(name, 96, 64))
    assert sorted(f.calls for f in found.legal if len(f.calls) > 1) == sorted(FUSED[name])


def test_reasons_are_kept() -> None:
    """Refused fusions say why: another nesting depth, a reduction inside, nothing spared."""
    reasons = {calls: why.reason for calls, why in find_fusions(sequence("atax", 96, 64)).rejected}
    assert reasons[0, 1] is Reason.NEEDS_GRID_SYNC
    reasons = {calls: why.reason for calls, why in find_fusions(sequence("sgemvt", 96, 64)).rejected}
    assert reasons[0, 1] is Reason.DOMAIN_MISMATCH
    assert reasons[0, 2] is Reason.NOT_CONVEX


def test_numbers_go_with_their_first_user() -> None:
    """A quotient of two sums stands in the kernel of the update that uses it."""
    graph = script_graph("vector x, y; scalar r; input x, y, r; s = sdot(x, y); a = sdivide(r, s); z = saxpy(a, x, y); return z;",
                         {"x": (64,), "y": (64,)})
    assert sorted(f.calls for f in find_fusions(graph).legal) == [(0,), (1, 2)]


def test_decisions_are_deterministic_on_request() -> None:
    """Without atomics where results must not depend on the order of blocks; with them otherwise."""
    graph = sequence("bicgk", 2048, 2048)
    fusion = find_fusions(graph).legal[-1]
    free, fixed = (list_candidates(graph, fusion, H200, d) for d in (False, True))
    assert any(c.decision.finish == ATOMICS for c in free.ranked)
    assert all(c.decision.finish != ATOMICS for c in fixed.ranked)
    assert {why.reason for _, why in free.pruned} >= {Reason.WORSE_THAN_INCUMBENT}


def test_implementations_come_in_predicted_order() -> None:
    """Fusions that can be built come cheapest first, and are bounded on request."""
    graph = sequence("bicgk", 512, 512)
    fusion = find_fusions(graph).legal[-1]
    ways = list(implementations(graph, fusion, H200, most=5))
    assert len(ways) == 5
    assert [w.predicted_us for w in ways] == sorted(w.predicted_us for w in ways)


def test_updates_with_a_sum_run_in_short_blocks() -> None:
    """z = w - a v with z.u over 2^26 words: blocks of one group of loads are predicted first, and no last block waits for all of them."""
    graph = script_graph("vector w, v, u; input w, v, u; z = saxpy(-0.75, v, w); r = sdot(z, u); return z, r;",
                         dict.fromkeys("wvu", (1 << 26,)))
    fusion = next(f for f in find_fusions(graph).legal if len(f.calls) == 2)
    best = list_candidates(graph, fusion, H200).ranked[0]
    assert best.decision.iterations == best.decision.unroll and best.facts.blocks > 8000
    assert best.decision.finish != LAST_BLOCK


def test_calling_orders_respect_data() -> None:
    """Every order has producers before their users."""
    graph = sequence("gemver", 96, 64)
    assert calling_orders(graph, (0, 1, 2)) == [(0, 1, 2)]
    assert set(calling_orders(sequence("bicgk", 96, 64), (0, 1))) == {(0, 1), (1, 0)}


def every_cover(graph: CallGraph, ways: dict[tuple[int, ...], list[FusionImplementation]], covered: frozenset[int],
                parts: Sequence[FusionImplementation]) -> Iterator[float]:
    """Times of all combinations, by trying all."""
    if len(covered) == len(graph.calls):
        if in_order(graph, parts) is not None:
            yield sum(p.predicted_us for p in parts)
        return
    lowest = min(set(range(len(graph.calls))) - covered)
    for calls, some in ways.items():
        if lowest in calls and not covered & set(calls):
            for way in some:
                yield from every_cover(graph, ways, covered | set(calls), [*parts, way])


@pytest.mark.parametrize("name", sorted(SEQUENCES))
def test_combinations_from_the_best_on(name: str) -> None:
    """All combinations, each once, in order of predicted time; a template competes with routines."""
    graph = sequence(name, 96, 64)
    numbers = random.Random(name)
    ways = {f.calls: [FusionImplementation(f.calls, TEMPLATE if n else "routines", numbers.uniform(1, 2) * len(f.calls)) for n in range(2)]
            for f in find_fusions(graph).legal}
    got = [c.predicted_us for c in combinations(graph, ways)]
    assert got == pytest.approx(sorted(every_cover(graph, ways, frozenset(), [])))


def test_combinations_are_lazy() -> None:
    """The first of very many combinations comes at once."""
    calls = " ".join(f"x{n + 1} = saxpy(0.5, x{n}, y);" for n in range(12))
    graph = script_graph(f"vector x0, y; input x0, y; {calls} return x12;", {"x0": (64,), "y": (64,)})
    ways = {f.calls: [FusionImplementation(f.calls, "routines", 1.0 + 0.1 * len(f.calls) + 0.01 * n) for n in range(8)]
            for f in find_fusions(graph).legal}
    first = list(itertools.islice(combinations(graph, ways), 3))
    assert [len(c.parts) for c in first] == [1, 1, 1]


@pytest.mark.parametrize("size", [1, 700, 16384])
@pytest.mark.parametrize("name", sorted(SEQUENCES))
def test_no_decision_is_predicted_below_its_bound(name: str, size: int) -> None:
    """By the catalog's figures, and where every routine was timed faster than the device's best."""
    graph = sequence(name, size, size)
    largest = H200.fitted.scripts.largest_probe_ratio
    fast = {(c.function.name, i.name, f"{verb} {p.name}"): [(Environment(1, 8, 0), largest)] for c in graph.calls
            for i in c.function.implementations for verb, ps in (("load", c.function.inputs), ("store", c.function.outputs)) for p in ps}
    for times in (None, RoutineTimes("h200", 2.0, fast)):
        for fusion in find_fusions(graph).legal:
            bound = bound_us(graph, fusion, H200)
            assert all(bound <= c.prediction.us for c in list_candidates(graph, fusion, H200, times=times).ranked)


def test_the_cheapest_combination_looks_at_few_fusions() -> None:
    """With lower bounds first: the same combination as with everything known, and most implementations never asked for."""
    graph = sequence("gemver", 64, 64)
    numbers = random.Random(5)
    true = {f.calls: [FusionImplementation(f.calls, TEMPLATE, numbers.uniform(1, 2) * len(f.calls))] for f in find_fusions(graph).legal}
    bounds = {calls: [FusionImplementation(calls, TEMPLATE, ways[0].predicted_us * 0.9)] for calls, ways in true.items()}
    asked: list[tuple[int, ...]] = []

    def look(calls: tuple[int, ...]) -> list[FusionImplementation]:
        asked.append(calls)
        return true[calls]

    best = cheapest(graph, dict(bounds), look)
    assert best == next(combinations(graph, true)) and len(asked) == len(set(asked)) < len(true)
    promised = cheapest(graph, dict(bounds), pytest.fail, enough_us=0.0)
    assert promised is not None and promised.predicted_us <= best.predicted_us


def test_one_start_for_a_fused_kernel() -> None:
    """A fusion is predicted faster than its parts one after the other, by more than the transfers it spares."""
    graph = sequence("axpydot", 0, 1 << 14)
    fused, alone = [], []
    for f in find_fusions(graph).legal:
        (fused if len(f.calls) == 2 else alone).append(list_candidates(graph, f, H200).ranked[0].prediction.us)
    assert fused[0] < 0.75 * sum(alone)


def test_routines_of_a_fusion_cover_for_each_other() -> None:
    """Copies of short walks alone reach half of the best rate; z = a x + y with three operands beside each other does not take twice as
    long as its bytes (waxpby of 2^26 f32: 185 us, where sums of such ratios said 331)."""
    graph = sequence("sscal", 0, 1 << 22)
    best = list_candidates(graph, find_fusions(graph).legal[0], H200).ranked[0]
    environment = Environment(1, 8, 0)
    slow = {(m.function, m.implementation, m.routine): ((environment, 0.5),) for m in best.facts.moved}
    assert len(slow) == 2
    timed = routine_work(best.facts, H200, RoutineTimes("h200", 0.5, slow), environment)
    alone, beside = best.prediction.global_us, price_work(timed, H200).global_us
    assert alone < beside < 1.1 * alone


def test_walks_between_the_measured_ones_are_between_them() -> None:
    """Along the logarithm of the walk; beyond the longest, in the other direction and with no row at all as well as can be."""
    rows = [(Environment(1, n, 0), ratio) for n, ratio in ((1, 0.6), (8, 0.9), (64, 1.0))]
    assert interpolated_ratio(rows, Environment(1, 8, 0)) == 0.9
    assert interpolated_ratio(rows, Environment(1, 2, 0)) == pytest.approx(0.6 + 0.3 / 3)
    assert interpolated_ratio(rows, Environment(2, 4, 1024)) == pytest.approx(0.6 + 0.3 * 2 / 3)
    assert interpolated_ratio(rows, Environment(1, 500, 0)) == interpolated_ratio(rows, Environment(1, 64, 0, "y")) == 1.0
    assert interpolated_ratio([], Environment(1, 8, 0)) is None


def test_measured_routines_change_the_order() -> None:
    """A load that was measured slow makes its implementation's prediction worse."""
    graph = sequence("sscal", 0, 1 << 22)
    fusion = find_fusions(graph).legal[0]
    best = list_candidates(graph, fusion, H200).ranked[0]
    environment = Environment(1, 1, 0)
    slow = {(m.function, m.implementation, m.routine): ((environment, 0.2),) for m in best.facts.moved}
    times = RoutineTimes("h200", 0.5, slow, {})
    assert price_work(routine_work(best.facts, H200, times, environment), H200).us > 2 * best.prediction.us
    assert list_candidates(graph, fusion, H200, times=times).ranked[0].facts.moved[0].implementation != best.facts.moved[0].implementation


@pytest.mark.parametrize(("words", "most"), [(1 << 18, 256), (1 << 20, 1024)])
def test_short_sums_run_in_few_blocks(words: int, most: int) -> None:
    """z = a x + y and z.u: what a block exchanges at its end is not hidden where blocks load little. 2^18 words took 3.2 us in 512 blocks
    and 3.0 in 256 with as many loads under way, 2^20 words 7.5 in 2048 blocks and 6.8 in 512."""
    graph = sequence("axpydot", 0, words)
    fusion = next(f for f in find_fusions(graph).legal if len(f.calls) == 2)
    ranked = list_candidates(graph, fusion, H200).ranked
    assert ranked[0].decision.finish == ATOMICS and ranked[0].facts.blocks <= most
    by_blocks = {c.facts.blocks: c.prediction.us for c in reversed(ranked) if c.decision.finish == ATOMICS}
    assert by_blocks[words // 512] > min(by_blocks.values())


@pytest.mark.parametrize(("script", "size", "most"), [("dsymv", 8192, 16), ("ssymv", 16384, 32)])
def test_triangles_are_walked_in_short_pieces(script: str, size: int, most: int) -> None:
    """Walks of twice as many tiles end at more different times: they took 11 % longer."""
    graph = script_graph(f"matrix A; vector x; input A, x; y = {script}(A, x); return y;", {"A": (size, size), "x": (size,)})
    fusion = next(f for f in find_fusions(graph).legal if len(f.calls) == 2)
    best = list_candidates(graph, fusion, H200).ranked[0]
    assert best.facts.ragged > 0 and best.decision.direction == "y" and best.decision.iterations <= most
