"""Numbers fitted to a device are data of `tilefuse.target.fitted` with their evidence, bounds of searches data of `tilefuse.base.search`
with their reasons; templates and planner read them there."""
from __future__ import annotations

import ast

import pytest

from tests.house.numbers import DECIDING, ROOMS, STRUCTURAL, constants, files_of, inline_numbers, kind_of, numbers
from tests.house.source_tree import package_files
from tilefuse.base.search.bound import BY_HAND, bounds_of
from tilefuse.base.search.limits import SEARCH
from tilefuse.target.device import H200
from tilefuse.target.fitted.evidence import NO_RECORD, figures_of

# Fitted numbers that still stand in the lines of a room: module constants, and unnamed numbers in functions. Each ceiling only falls.
MODULE_CEILINGS = {"domain": 0, "emit": 0, "templates/rows": 0, "templates": 0, "plan": 0, "passes/device": 0, "scripts": 0}
INLINE_CEILINGS = {"domain": 0, "emit": 0, "templates": 0, "plan": 0, "passes/device": 0, "scripts": 0}
# Figures whose measurement nobody wrote down.
UNRECORDED_CEILING = 44
# Numbers that stay in the rooms: codes, rounding, units of generated code. The ceiling only falls.
STRUCTURAL_CEILING = 33
# Bounds of searches that decide between kernels or plans where a price could. With the numbers of the rooms they are the constants that
# issue 19 wants below 80.
DECIDING_CEILING = 14
# Bounds of searches that were set by hand and never tried with other values.
UNTRIED_CEILING = 15


@pytest.mark.parametrize("room", MODULE_CEILINGS)
def test_no_more_constants_of_a_device_stand_in_a_room(room: str) -> None:
    """A constant is listed as structural, or it is a fitted number, a bound of a search or a fact of CUDA, which have homes."""
    left = [str(n) for n in numbers(files_of(room)) if n.kind == "device"]
    homes = "tilefuse.target.fitted, tilefuse.base.search or tilefuse.target"
    assert len(left) <= MODULE_CEILINGS[room], f"move to {homes}, or list in tests/house/numbers.py: {', '.join(left)}"


@pytest.mark.parametrize("room", INLINE_CEILINGS)
def test_no_more_unnamed_numbers_stand_in_functions(room: str) -> None:
    """Numbers without a name have neither unit nor evidence."""
    left = [str(n) for n in numbers(files_of(room)) if n.kind == "inline"]
    assert len(left) <= INLINE_CEILINGS[room], "name these, in tilefuse.target.fitted where they speak of a device: " + ", ".join(left)


def test_listed_names_are_constants_of_the_rooms() -> None:
    """A list that names what is gone would let a new constant of that name pass."""
    present = {n.name for room in ROOMS for n in numbers(files_of(room)) if n.kind != "inline"}
    gone = sorted(STRUCTURAL - present)
    assert not gone, f"no longer a constant: {gone}"


def test_few_numbers_stay_in_the_rooms() -> None:
    """Codes and units are explained where they stand; everything that decides has a record."""
    left = [str(n) for room in ROOMS for n in numbers(files_of(room)) if n.kind == "structural"]
    assert len(left) <= STRUCTURAL_CEILING, left


def test_few_bounds_of_searches_decide_by_themselves() -> None:
    """Every name is a bound, and no new one decides where candidates could be priced."""
    assert not DECIDING - {b.name for b in bounds_of(SEARCH)}
    assert len(DECIDING) <= DECIDING_CEILING


def test_every_bound_of_a_search_has_unit_meaning_and_reason_and_is_read() -> None:
    """A bound that nobody reads says of a search what is not so."""
    bounds, text = list(bounds_of(SEARCH)), "".join(f.path.read_text(encoding="utf-8") for f in package_files())
    assert len({b.name for b in bounds}) == len(bounds) > 80
    for b in bounds:
        assert b.reason.unit and b.reason.meaning.endswith(".") and b.reason.reason, b.name
        assert f"SEARCH.{b.name}" in text or f"limits.{b.name.partition('.')[2]}" in text, f"{b.name} is read nowhere"
    untried = [b.name for b in bounds if b.reason.reason == BY_HAND]
    assert len(untried) <= UNTRIED_CEILING, f"say what a larger value costs: {untried}"


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
    tree = ast.parse("ALPHA_US, STEP = 0.7, (1, 2)\nNAME = 'x'\nLESS = lambda x: x < 43\n\ndef f(x):\n    return 41 * x + 32\n")
    assert [(name, kind_of(name)) for _, name, _ in constants(tree)] == [("ALPHA_US", "device"), ("STEP", "structural")]
    assert [(name, value) for _, name, value in inline_numbers(tree)] == [("f", 41), ("lambda", 43)]
