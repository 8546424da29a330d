"""Planted faults of the planner: each must turn a test red."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.plan.select import test_components, test_global_plan, test_ilp, test_memory
from tilefuse.plan.generators import candidates
from tilefuse.plan.select import components, ilp, memory
from tilefuse.plan.select.cycles import Contraction
from tilefuse.plan.select.ilp import IntegerProgram, Row

FAULTS: dict[str, tuple[object, str, object, Callable[[], None]]] = {
    "no cycle cut": (Contraction, "cycles", lambda self, taken: [], test_ilp.test_figure_3_of_fusion_stitching),
    "a cut that forbids one candidate too many": (
        IntegerProgram, "_cycle_row",
        lambda self, cycle: Row(tuple((c, 1.0) for c in range(len(self._columns))), len(cycle.pairs) - 1.0),
        lambda: test_ilp.test_cycles_between_two_kernels_are_cut()),
    "a cut for this combination only": (
        IntegerProgram, "_cycle_row", lambda self, cycle: Row(tuple((c, 1.0) for c in sorted(cycle.columns)), len(cycle.columns) - 1.0),
        test_ilp.test_one_cut_forbids_every_candidate_that_closes_the_same_cycle),
    "parts split although a cycle joins them": (
        components, "strongly_connected", lambda successors: [(node,) for node in successors],
        test_components.test_candidates_that_may_close_a_cycle_stay_together),
    "an illegal start is believed": (IntegerProgram, "_legal", lambda self, taken: True, test_ilp.test_an_illegal_start_is_not_used),
    "every set is convex": (candidates, "is_convex", lambda units, members: True, test_global_plan.test_no_kernel_waits_for_itself),
    "memory of values is freed at once": (
        memory, "peak", lambda units, stored, groups: memory.Peak(0, 0, ()),
        test_global_plan.test_a_ceiling_that_nothing_keeps_is_told_with_numbers),
    "the values of a kernel stay on chip": (
        memory.PeakMemory, "change_bytes", lambda self, members, moment: 0,
        test_memory.test_packing_the_first_maps_keeps_one_of_them_waiting),
    "the incumbent is thrown away": (
        ilp.IntegerProgram, "_repaired", lambda self, taken: None,
        lambda: with_clock(test_ilp.test_a_round_too_few_keeps_a_repaired_solution)),
}


def with_clock(test: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        test(patch)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, fault, test = FAULTS[name]
    test()
    monkeypatch.setattr(owner, attribute, fault)
    with pytest.raises(BaseException) as found:
        test()
    assert not isinstance(found.value, KeyboardInterrupt | SystemExit)
