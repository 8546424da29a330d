"""Fused kernels of routines before code generation: order of the paper's algorithm 3, spared transfers, barriers, combination, storage."""
from __future__ import annotations

from tests.unit.scripts.routine_runs import LIBRARY
from tests.unit.scripts.routine_scripts import sequence
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.ir.affine import axis
from tilefuse.scripts.language.elementary import ThreadMapping
from tilefuse.scripts.language.routine_source import cut_routines, state_bytes
from tilefuse.scripts.schedule.barriers import SharedAccesses, place_barriers
from tilefuse.scripts.schedule.combine import ThreadCombination, combine_threads
from tilefuse.scripts.schedule.elements import Decision
from tilefuse.scripts.schedule.routines import FusedRoutines, schedule_routines
from tilefuse.scripts.schedule.steps import BlockBarrier, Load, Step, Store
from tilefuse.target.device import H200


def number(function: str, start: str) -> int:
    """Number of the first implementation whose name starts so."""
    return next(n for n, i in enumerate(LIBRARY.functions[function].implementations) if i.name.startswith(start))


def fused(name: str, calls: tuple[int, ...], start: str, **walk: object) -> FusedRoutines:
    """A fused kernel of a sequence for matrices of 256 x 512."""
    graph = sequence(name, 256, 512)
    chosen = tuple(number(graph.calls[c].function.name, start) for c in calls)
    found = schedule_routines(graph, Decision(calls, chosen, **walk), "k", H200)  # type: ignore[arg-type]
    assert isinstance(found, FusedRoutines), found
    return found


def words(steps: tuple[Step, ...]) -> list[str]:
    """Steps as text: what they do, and to which element."""
    return [type(s).__name__ + (f" {s.element}" if hasattr(s, "element") else "") for s in steps]


def test_two_products_are_ordered_as_in_algorithm_3() -> None:
    """Along y: p is loaded and s cleared before the loop, q is stored in every iteration, s after the loop; A is loaded once."""
    kernel = fused("bicgk", (0, 1), "registers 32x8 ROWS=4 COLUMNS=1", iterations=8, direction="y")
    assert words(kernel.before) == ["Load p", "Clear s"]
    assert [w for w in words(kernel.single) if "Barrier" not in w] == [
        "Load A", "Load r", "Clear q", "Compute", "Gather q", "Compute", "Finish q"]
    assert words(kernel.after)[0] == "Gather s" and words(kernel.after)[-1] == "Finish s"


def test_walking_along_the_other_direction_turns_them_round() -> None:
    """Along x: r is loaded and q cleared before the loop."""
    kernel = fused("bicgk", (0, 1), "registers 32x8 ROWS=4 COLUMNS=1", iterations=4, direction="x")
    assert words(kernel.before) == ["Clear q", "Load r"] or words(kernel.before) == ["Load r", "Clear q"]
    assert words(kernel.after)[-1] == "Finish q"


def test_a_chain_in_registers_needs_no_barrier_and_stores_no_intermediate() -> None:
    """The sum of three vectors: three loads, one store, nothing in shared memory."""
    kernel = fused("vadd", (0, 1), "vectors 128x1 LOADS=1")
    assert [type(s) for s in kernel.single if isinstance(s, Load | Store)] == [Load, Load, Load, Store]
    assert kernel.shared_bytes == 0 and BlockBarrier() not in kernel.single


def test_tiles_in_shared_memory_have_two_barriers() -> None:
    """One between a tile's load and its use, one before the next tile overwrites it; the rows are padded."""
    kernel = fused("sgemv", (0,), "tile 32x4", iterations=4, direction="x")
    assert sum(isinstance(s, BlockBarrier) for s in kernel.single) == 2
    assert kernel.elements["A"].pitch == 33


def test_other_mappings_are_passed_through_shared_memory() -> None:
    """The same tile in two geometries: loaded once, put and got."""
    graph = sequence("bicgk", 256, 512)
    chosen = (number("sgemv", "registers 32x8 ROWS=4 COLUMNS=2"), number("sgemtv", "registers 64x4 ROWS=8 COLUMNS=1"))
    kernel = schedule_routines(graph, Decision((0, 1), chosen, 1, 2, "y"), "k", H200)
    assert isinstance(kernel, FusedRoutines), kernel
    kinds = [type(s).__name__ for s in kernel.single]
    assert kinds.count("Put") == kinds.count("Get") == 1 and sum("Load A" in w for w in words(kernel.single)) == 1


def test_a_result_of_a_reduction_is_not_used_inside() -> None:
    """The second product of A'(A x) needs the first one whole."""
    graph = sequence("atax", 256, 512)
    chosen = tuple(number(c.function.name, "registers 32x8 ROWS=4 COLUMNS=1") for c in graph.calls)
    found = schedule_routines(graph, Decision((0, 1), chosen, 1, 4, "y"), "k", H200)
    assert isinstance(found, Rejected) and found.reason is Reason.NEEDS_GRID_SYNC


def test_the_two_conditions_of_algorithm_2() -> None:
    """A barrier before a read of what others wrote, and before a write over what others read; none where the mapping is equal."""
    touched = {Load("a"): SharedAccesses(writes=(("a", 1),)), Store("a"): SharedAccesses(reads=(("a", 2),)),
               Load("b"): SharedAccesses(writes=(("b", 3),)), Store("c"): SharedAccesses(reads=(("a", 1),))}
    overlapping = {frozenset("a"), frozenset("b"), frozenset("ab")}

    def placed(*steps: Step) -> list[str]:
        found = place_barriers((), [steps], (), lambda s: touched[s], lambda a, b: frozenset((a, b)) in overlapping)  # type: ignore[index]
        return words(found.bodies[0])

    assert placed(Load("a"), Store("a")) == ["BlockBarrier", "Load a", "BlockBarrier", "Store a"]
    assert placed(Load("a"), Store("c")) == ["Load a", "Store c"]
    assert placed(Store("a"), Load("b")) == ["Store a", "BlockBarrier", "Load b"]


def test_lanes_halve_what_they_hold() -> None:
    """Eight words in each of 256 threads: three halvings, two exchanges, eight rows of copies."""
    found = combine_threads(ThreadMapping((8,), (axis("s0"),)), (256, 1), 256, (8,))
    assert isinstance(found, ThreadCombination)
    assert [halved for _, halved in found.lanes] == [True, True, True, False, False]
    assert found.slots == 1 and found.copies == 8 and found.upper == (5, 6, 7)


def test_threads_that_form_no_cube_are_rejected() -> None:
    """Copies that are not told apart by bits of the thread number."""
    assert isinstance(combine_threads(ThreadMapping((1,), ()), (96, 1), 96, ()), Rejected)


def test_routine_text_is_cut_and_macros_are_replaced() -> None:
    """Only what is called stays, with its helper; a struct of partial values has a size."""
    text = """
    struct Best { REAL value; INDEX at; };
    // a helper
    TF_ROUTINE REAL twice(REAL a) { return BX * a; }
    TF_ROUTINE void other(REAL* e) { e[0] = 0; }
    TF_ROUTINE void compute(const REAL* x, REAL* y) { y[0] = twice(x[0]); }
    """
    cut = cut_routines(text, {"REAL": "float", "BX": "2", "INDEX": "long long"}, ["compute"])
    assert "other" not in cut and "return 2 * a" in cut and "const float* x" in cut
    assert state_bytes(cut_routines(text, {"REAL": "float", "INDEX": "long long"}, ["Best"]), "Best") == 16
    assert state_bytes(cut_routines(text, {"REAL": "float", "INDEX": "int"}, ["Best"]), "Best") == 8
