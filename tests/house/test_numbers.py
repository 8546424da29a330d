"""Numbers fitted to a device are data of `tilefuse.target.fitted`, with their evidence; templates and planner read them there."""
from __future__ import annotations

import ast

import pytest

from tests.house.numbers import LIMITS, ROOMS, STRUCTURAL, constants, files_of, inline_numbers, kind_of, numbers
from tilefuse.target.device import H200
from tilefuse.target.fitted.evidence import NO_RECORD, figures_of

# Fitted numbers that still stand in the lines of a room: module constants, and unnamed numbers in functions. Each ceiling only falls.
MODULE_CEILINGS = {"domain": 0, "emit": 0, "templates/rows": 0, "templates": 0, "plan": 0, "passes/device": 0, "scripts": 0}
INLINE_CEILINGS = {"domain": 0, "emit": 0, "templates": 2, "plan": 0, "passes/device": 0, "scripts": 0}
# Figures whose measurement nobody wrote down.
UNRECORDED_CEILING = 43


@pytest.mark.parametrize("room", MODULE_CEILINGS)
def test_no_more_constants_of_a_device_stand_in_a_room(room: str) -> None:
    """A constant is listed as structural or as a limit of a search, or it is a fitted number and belongs into `target/fitted`."""
    left = [str(n) for n in numbers(files_of(room)) if n.kind == "device"]
    assert len(left) <= MODULE_CEILINGS[room], "move to tilefuse.target.fitted, or list in tests/house/numbers.py: " + ", ".join(left)


@pytest.mark.parametrize("room", INLINE_CEILINGS)
def test_no_more_unnamed_numbers_stand_in_functions(room: str) -> None:
    """Numbers without a name have neither unit nor evidence."""
    left = [str(n) for n in numbers(files_of(room)) if n.kind == "inline"]
    assert len(left) <= INLINE_CEILINGS[room], "name these, in tilefuse.target.fitted where they speak of a device: " + ", ".join(left)


def test_listed_names_are_constants_of_the_rooms() -> None:
    """A list that names what is gone would let a new constant of that name pass."""
    present = {n.name for room in ROOMS for n in numbers(files_of(room)) if n.kind != "inline"}
    gone = sorted((STRUCTURAL | LIMITS) - present)
    assert not gone, f"no longer a constant: {gone}"


def test_every_fitted_number_has_unit_meaning_and_source() -> None:
    """A number can be measured again only if it says what was measured."""
    figures = list(figures_of(H200.fitted))
    assert len({f.name for f in figures}) == len(figures) > 100
    for f in figures:
        assert f.evidence.unit and f.evidence.meaning.endswith(".") and f.evidence.source, f.name
    unrecorded = [f.name for f in figures if f.evidence.source == NO_RECORD]
    assert len(unrecorded) <= UNRECORDED_CEILING, f"say what measured these: {unrecorded}"


def test_a_constant_and_an_unnamed_number_are_found() -> None:
    """The check itself can fail."""
    tree = ast.parse("ALPHA_US, STEPS = 0.7, (1, 2)\nNAME = 'x'\n\ndef f(x):\n    return 41 * x + 32\n")
    assert [(name, kind_of(name)) for _, name, _ in constants(tree)] == [("ALPHA_US", "device"), ("STEPS", "limit")]
    assert [(name, value) for _, name, value in inline_numbers(tree)] == [("f", 41)]
