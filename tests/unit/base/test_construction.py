"""Constructors of `quickly_built` classes: they do what those of dataclasses do."""
from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pytest

from tilefuse.base.construction import quickly_built, replace


@dataclass(frozen=True, slots=True)
class Plain:
    """As dataclasses make it."""

    name: str
    sizes: tuple[int, ...] = ()
    by_name: dict[str, int] = field(default_factory=dict)
    note: str = field(default="", compare=False, repr=False)
    double: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "double", 2 * sum(self.sizes))


@quickly_built
@dataclass(frozen=True, slots=True)
class Quick:
    """The same fields. Their names may be those that a constructor's text uses."""

    name: str
    sizes: tuple[int, ...] = ()
    by_name: dict[str, int] = field(default_factory=dict)
    note: str = field(default="", compare=False, repr=False)
    double: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "double", 2 * sum(self.sizes))


@quickly_built
@dataclass(frozen=True)
class Noted:
    """A class whose objects have a dictionary."""

    cls: int
    changes: int = 1

    @cached_property
    def total(self) -> int:
        """Worked out once."""
        return self.cls + self.changes


@dataclass(frozen=True, slots=True)
class Longer(Quick):
    """A subclass that is not decorated."""

    more: int = 5


ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("a",), {}), (("a", (1, 2)), {}), (("a",), {"by_name": {"x": 1}}), ((), {"name": "b", "sizes": (3,), "note": "n"})]


@pytest.mark.parametrize(("values", "named"), ARGUMENTS)
def test_the_same_objects_as_dataclasses_make(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    plain, quick = Plain(*values, **named), Quick(*values, **named)
    assert type(quick) is Quick
    assert dataclasses.astuple(quick) == dataclasses.astuple(plain)
    assert repr(quick) == repr(plain).replace("Plain", "Quick")
    assert quick == Quick(*values, **named) and quick != plain
    assert copy.deepcopy(quick) == quick == pickle.loads(pickle.dumps(quick))


def test_arguments_that_do_not_fit_are_refused() -> None:
    for wrong in ({}, {"name": "a", "other": 1}, {"name": "a", "double": 1}):
        with pytest.raises(TypeError):
            Quick(**wrong)
        with pytest.raises(TypeError):
            replace(Quick("a"), **{"other": 1} | {k: v for k, v in wrong.items() if k != "name"})
    with pytest.raises(TypeError):
        replace(Noted(1), total=3)


def test_objects_stay_frozen() -> None:
    for made in (Quick("a"), replace(Quick("a"), name="b"), Noted(1), replace(Noted(1), cls=2), Longer("a")):
        first = dataclasses.fields(made)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, first, 0)
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(made, first)


def test_copies_with_changes() -> None:
    quick = Quick("a", (1,), note="n")
    assert replace(quick, sizes=(2, 3)) == dataclasses.replace(quick, sizes=(2, 3)) == Quick("a", (2, 3), note="n")
    assert replace(quick, sizes=(2, 3)).double == 10 and replace(quick, sizes=(2, 3)).note == "n"
    noted = Noted(3)
    assert noted.total == 4 and replace(noted, changes=5).total == 8 and type(replace(noted, changes=5)) is Noted
    longer = replace(Longer("a", more=6), sizes=(4,))
    assert type(longer) is Longer and longer.more == 6 and longer.double == 8 and longer == Longer("a", (4,), more=6)


def test_default_factories_are_called_for_each_object() -> None:
    assert Quick("a").by_name is not Quick("a").by_name


def test_fields_that_are_taken_by_name_alone_are_refused() -> None:
    with pytest.raises(AssertionError):
        quickly_built(dataclass(frozen=True, kw_only=True)(type("Named", (), {"__annotations__": {"x": int}})))
