"""The search for tiles: which choices are planned, and what is told where none is taken."""
from __future__ import annotations

import pytest

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.templates.staged.search import Rank, cheapest

# Choices by their bound and their price.
CHOICES = ((3.0, 3.5), (1.0, 6.0), (2.0, 4.5), (5.0, 5.5))


def searched(ceiling: Rank | None) -> tuple[str | Rejected, list[float]]:
    """The plan, and the prices of the choices that were planned in order."""
    planned: list[float] = []

    def ranked(choice: tuple[float, float], _bound: Rank, _best: Rank | None) -> tuple[Rank, str]:
        planned.append(choice[1])
        return (choice[1],), str(choice[1])

    return cheapest(CHOICES, lambda c: (c[0],), ranked, ceiling), planned


def test_the_cheapest_choice_is_taken_and_dearer_bounds_are_not_planned() -> None:
    """Least bounds first; the last one exceeds the best price."""
    assert searched(None) == ("3.5", [6.0, 4.5, 3.5])


@pytest.mark.parametrize(("ceiling", "planned"), [(2.5, [6.0, 4.5]), (0.5, []), (3.2, [6.0, 4.5, 3.5])])
def test_nothing_is_planned_behind_another_kernels_price(ceiling: float, planned: list[float]) -> None:
    """A plan dearer than the other kernel does not lift the limit again, and is none to take."""
    plan, prices = searched((ceiling,))
    assert isinstance(plan, Rejected) and plan.reason is Reason.WORSE_THAN_INCUMBENT and prices == planned


def test_a_plan_at_the_ceiling_is_taken() -> None:
    """Of equal prices the order of templates decides."""
    assert searched((3.5,)) == ("3.5", [6.0, 4.5, 3.5])


def test_choices_whose_coarse_bounds_are_too_high_are_not_bounded_again() -> None:
    """Coarse bounds below the others: those of the third and the last choice exceed the best price."""
    bounded: list[float] = []

    def least(choice: tuple[float, float]) -> Rank:
        bounded.append(choice[1])
        return (choice[0],)

    plan = cheapest(CHOICES, least, lambda c, _bound, _best: ((c[1],), str(c[1])), None, lambda choices: [(2.5,), (1.0,), (4.0,), (4.5,)])
    assert plan == "3.5" and bounded == [6.0, 3.5]


@pytest.mark.parametrize(("decisive", "planned"), [
    ({3.5}, [6.0, 4.5, 3.5]),  # it is the cheapest
    ({6.0, 4.5}, [6.0, 4.5, 3.5]),  # both are planned before a cheaper one is
    ({5.5}, [6.0, 4.5]),  # its bound exceeds the second plan
    (set(), [6.0])])
def test_a_search_ends_where_no_decisive_choice_can_be_the_cheapest(decisive: set[float], planned: list[float]) -> None:
    """Whether one of them is the cheapest is as without an end."""
    prices: list[float] = []

    def ranked(choice: tuple[float, float], _bound: Rank, _best: Rank | None) -> tuple[Rank, float]:
        prices.append(choice[1])
        return (choice[1],), choice[1]

    plan = cheapest(CHOICES, lambda c: (c[0],), ranked, decisive=lambda c: c[1] in decisive)
    assert prices == planned and (plan in decisive) == (3.5 in decisive)
