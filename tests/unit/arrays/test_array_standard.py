"""Names and signatures of the Python array API standard: what static shapes allow is there, the rest is listed with its reason."""
from __future__ import annotations

import inspect

import array_api_strict as strict
import numpy as np
import pytest
import torch

import tilefuse.array as ta
from tilefuse.arrays.array import Array
from tilefuse.base.errors import TypeMismatchError, UserError

# Names of the strict implementation that are not the standard's.
NOT_STANDARD = {"ArrayAPIStrictFlags", "Device", "ModuleType", "get_array_api_strict_flags", "set_array_api_strict_flags",
                "reset_array_api_strict_flags"}
FUNCTIONS = sorted(n for n in dir(strict) if not n.startswith("_") and n not in NOT_STANDARD and inspect.isfunction(getattr(strict, n)))
METHODS = [*sorted(n for n in dir(strict.asarray(1.0)) if n.startswith("__") and n not in dir(object)),
           "dtype", "device", "mT", "ndim", "shape", "size", "T", "to_device"]


def test_no_name_is_missing() -> None:
    """Every name of the standard is offered, those of its extensions too."""
    names = [n for n in dir(strict) if not n.startswith("_") and n not in NOT_STANDARD]
    for theirs, ours in ((names, ta), (strict.linalg.__all__, ta.linalg), (strict.fft.__all__, ta.fft)):
        assert not [n for n in theirs if not hasattr(ours, n)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signature(name: str) -> None:
    """Parameters of the standard have its names, kinds and order (ours may add keywords)."""
    theirs, ours = inspect.signature(getattr(strict, name)), inspect.signature(getattr(ta, name))
    mine = ours.parameters
    for position, (key, parameter) in enumerate(theirs.parameters.items()):
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            listed = [p for p in mine.values() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
            assert position < len(listed), f"{name}: parameter {key}"
            continue
        assert key in mine, f"{name}: no parameter {key}"
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            assert mine[key].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        has_default = parameter.default is not inspect.Parameter.empty
        assert has_default <= (mine[key].default is not inspect.Parameter.empty), f"{name}: {key} has no default"


# In-place operators: Python makes x += y into x = x + y for a type without them: other names of the array keep the old values.
PRESENT = ("__int__", "__invert__", "__index__", "__iter__")
ABSENT_METHODS = {n for n in METHODS if n.startswith("__i") and n not in PRESENT} | {"__buffer__"}


@pytest.mark.parametrize("name", [m for m in METHODS if m not in ABSENT_METHODS])
def test_method(name: str) -> None:
    """An array has the attribute."""
    assert hasattr(Array, name)


def test_namespace() -> None:
    """`__array_namespace__` gives the module; a version that does not exist is refused."""
    x = ta.zeros((2,))
    assert x.__array_namespace__() is ta and x.__array_namespace__(api_version="2023.12") is ta
    with pytest.raises(UserError, match="1999"):
        x.__array_namespace__(api_version="1999.01")


def test_inspection() -> None:
    """The facts that the standard asks for."""
    facts = ta.__array_namespace_info__()
    assert facts.capabilities()["boolean indexing"] is facts.capabilities()["data-dependent shapes"] is True
    assert facts.default_device() in facts.devices()
    assert facts.default_dtypes()["real floating"] == ta.float32 and facts.default_dtypes()["integral"] == ta.int64
    assert set(facts.dtypes(kind="unsigned integer")) == {"uint8", "uint16", "uint32", "uint64"}
    assert set(facts.dtypes(kind=("bool", "real floating"))) == {"bool", "float32", "float64"}
    for ask in (facts.dtypes, facts.default_dtypes):
        assert ask(device="host")
        with pytest.raises(UserError, match="no device 'mars'"):
            ask(device="mars")


def test_names_of_other_libraries_are_told() -> None:
    """Names that numpy or torch spell otherwise, and slips; an AttributeError, so that `hasattr` works."""
    for name, told in (("concatenate", "it is called concat here"), ("dot", "matmul or vecdot"), ("unique", "unique_values"),
                       ("expandims", "expand_dims")):
        with pytest.raises(AttributeError, match=told):
            getattr(ta, name)
    assert not hasattr(ta, "nothing_like_it")
    offered = {n for names in ta._OTHER_NAMES.values() for n in names.replace(" or ", ", ").split(", ")}
    for name in (n for n in offered if n.replace(".", "").isidentifier()):
        place = ta
        for part in name.split("."):
            place = getattr(place, part)


def test_types_that_arrays_lack_are_refused_with_the_types_there_are() -> None:
    """Every way in names the type and those that exist."""
    cases = (
        lambda: ta.asarray(np.zeros(2, np.clongdouble)), lambda: ta.asarray(torch.zeros(2, dtype=torch.complex32)),
        lambda: ta.asarray([np.clongdouble(1j)]), lambda: ta.zeros(2, dtype="complex256"), lambda: ta.finfo(np.clongdouble),
    )
    for case in cases:
        with pytest.raises(TypeMismatchError, match="complex") as caught:
            case()
        assert "bfloat16, float32, float64, complex64" in str(caught.value) or "complex128" in str(caught.value), str(caught.value)
        assert f"{__file__}:{case.__code__.co_firstlineno}:" in str(caught.value)
