"""Answers that a page carries: for neighbouring steps and inside kernels, each form of pair once, as `plan.text.why` gives them."""
from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from tests.unit.pages.models import attention, resnet
from tests.unit.templates.tasks.task_models import Recurrence
from tilefuse.base.options import Options
from tilefuse.driver.compile import generate_sources
from tilefuse.driver.explain.why import neighbour_answers, page_answers
from tilefuse.plan.text.edit import setting_of_plan
from tilefuse.plan.text.why import why
from tilefuse.target.device import H200


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


def recurrence() -> Any:
    """Three steps of an LSTM, whose gates read values of kernels that are no neighbours."""
    torch.manual_seed(0)
    with torch.no_grad():
        given = (torch.randn(3, 8, 48), torch.randn(8, 48), torch.randn(8, 48))
        return generate_sources(Recurrence(3).eval(), given, device=H200, plan_cache=False)


def test_a_page_has_the_cuts_of_every_kernel() -> None:
    """Each cut is the planner's answer; the kernels that it names are those of the plan, and no pair is asked twice."""
    made = resnet()
    answers = page_answers(made.plan, made.device, Options())
    setting = setting_of_plan(made.plan, made.device, Options())
    cuts = [a for a in answers if "cut" in a]
    forms = {k.program.name: k.pattern.nodes for k in reversed(made.plan.kernels)}
    views = {v.value for v in made.plan.views}
    # A view of an operand is nothing to cut off.
    assert {a["cut"][0] for a in cuts} == {name for name, nodes in forms.items() if len(set(nodes) - views) > 1}
    for a in cuts[:8]:
        name, place = a["cut"]
        expected = why(made.plan, setting, forms[name][0], forms[name][place])
        assert (a["other_us"], a["together"]) == (expected.other_us, True) and a["second"] == forms[name][place]


def test_a_page_has_pairs_that_are_no_neighbours() -> None:
    """Steps that read a common value, with others between them."""
    made = recurrence()
    answers = page_answers(made.plan, made.device, Options())
    num_cuts = sum("cut" in a for a in answers)
    apart = answers[len(neighbour_answers(made.plan, made.device, Options())) + num_cuts:]
    assert apart and all(not a["together"] for a in apart)
