"""Answers that a page carries: for neighbouring steps and inside kernels, each form of pair once, as `plan.why` gives them."""
from __future__ import annotations

from dataclasses import asdict

from tests.unit.pages.models import attention, resnet
from tilefuse.base.options import Options
from tilefuse.driver.explain_why import neighbour_answers
from tilefuse.plan.edit import setting_of_plan
from tilefuse.plan.why import why


def test_neighbours_are_answered_as_the_planner_answers() -> None:
    made = resnet()
    answers = neighbour_answers(made.plan, made.device, Options(), most=12)
    setting = setting_of_plan(made.plan, made.device, Options())
    assert len(answers) == 12 and len({(a["first"], a["second"]) for a in answers}) == 12
    for told in answers:
        expected = asdict(why(made.plan, setting, told["first"], told["second"]))
        assert told == {key: value for key, value in expected.items() if key != "others"}
    assert {a["together"] for a in answers} == {True, False}


def test_equal_pairs_are_asked_once() -> None:
    """ResNet-50 has 105 steps of few forms: the answers are far fewer than its pairs of neighbours."""
    made = resnet()
    assert len(neighbour_answers(made.plan, made.device, Options())) < 80


def test_the_ends_of_a_kernel_tell_what_cutting_it_costs() -> None:
    made = attention()
    inside = [a for a in neighbour_answers(made.plan, made.device, Options()) if a["together"]]
    assert inside and all(a["other_us"] > a["chosen_us"] for a in inside)
