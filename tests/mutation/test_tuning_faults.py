"""Planted faults of storage, timing, tuning and of what users write by hand: each must turn a test red."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.domain import test_storage
from tests.unit.driver.measure import test_measure as driver_measure
from tests.unit.driver.measure import test_tune
from tests.unit.plan.price import test_measure as plan_measure
from tests.unit.plan.text import test_edit, test_why
from tests.unit.templates import test_by_hand
from tilefuse.base.errors import UserError
from tilefuse.domain import storage
from tilefuse.driver.measure import measure as driver
from tilefuse.driver.measure import measured_planning
from tilefuse.driver.measure.tuning_results import TuningResults
from tilefuse.plan.price import measure
from tilefuse.plan.text import edit, why
from tilefuse.templates.rows import legality as row_legality

CYCLE = test_edit.kernel("k0", "%a, %c", "%a, %c") + "edge %a -> %c in k0 register\n" + test_edit.kernel("k1", "%b", "%b")

FAULTS: dict[str, tuple[object, str, object, Callable[[], None]]] = {
    "values that live together share a place": (
        storage, "conflict", lambda a, b: False, test_storage.test_the_third_of_a_chain_takes_the_place_of_the_first),
    "every value dominates every other": (
        storage, "_dominators", lambda operands: {n: set(operands) for n in operands}, lambda: storage_is_safe()),
    "any difference counts": (
        measure, "is_faster", lambda a, b: a.median_us < b.median_us, plan_measure.test_a_tie_keeps_the_fused_kernel),
    "no kernel is ever slower than its parts": (
        measured_planning, "timed_check", lambda *_: (),
        plan_measure.test_a_fused_kernel_slower_than_its_parts_is_replaced_and_the_record_learns_it),
    "a kernel that does not run is kept": (
        measure.MeasuredCost, "refuse", lambda self, program: None, plan_measure.test_a_kernel_that_does_not_run_is_replaced),
    "results are not compared": (
        driver.KernelMeasurer, "_compare", lambda self, *_: None,
        driver_measure.test_another_result_than_the_first_kernels_is_rejected),
    "tuning stores the first template": (
        test_tune.Tuner, "_stored", lambda self, program, form, base, best, chosen, *rest: STORED(
            self, program, form, base, base, program, *rest),
        test_tune.test_the_fastest_template_is_stored_and_used_for_every_pattern_of_the_form),
    "tuning results are forgotten": (
        TuningResults, "find", lambda self, key: None,
        test_tune.test_the_fastest_template_is_stored_and_used_for_every_pattern_of_the_form),
    "limits of the device are not looked at": (
        row_legality, "_thread_refusal", lambda *_: None,
        lambda: test_by_hand.test_a_wrong_template_names_schedule_value_and_remedy(
            "s [GRID,CLUSTER_32-CTA_64];", UserError, "clusters of 32 blocks", "CLUSTER_16")),
    "levels of edited plans are not looked at": (
        edit, "_check_levels", lambda *_: None,
        lambda: test_edit.test_a_plan_that_is_not_legal_says_why(
            test_edit.kernel("k0", "%a", "%a") + test_edit.kernel("k1", "%b, %c", "%c"), "has no level", "add the line")),
    "cycles of edited plans are taken as they stand": (
        edit, "_ordered", lambda patterns, names, setting: list(patterns),
        lambda: test_edit.test_a_plan_that_is_not_legal_says_why(CYCLE, "wait for each other", "outside")),
    "a path outside is not followed": (why, "_path_outside", lambda *_: None, test_why.test_a_path_through_a_library_call_is_named),
}
STORED = test_tune.Tuner._stored


def storage_is_safe() -> None:
    """Conflicts are looked at besides, so a wrong tree overlaps nothing: it only shares where the algorithm would not."""
    operands: dict[str, tuple[str, ...]] = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}
    assert storage._dominators(operands)["a"] == {"d"}
    assert storage._dominators(operands)["b"] == {"d"} and storage._dominators(operands)["d"] == set()


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, fault, test = FAULTS[name]
    test()
    monkeypatch.setattr(owner, attribute, fault)
    with pytest.raises(BaseException) as found:
        test()
    assert not isinstance(found.value, KeyboardInterrupt | SystemExit)
