"""Arguments of the wrong kind: every public function answers with an error of ours, at the line of the caller."""
from __future__ import annotations

import inspect
import random
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilefuse.array as ta
from tilefuse import nn, optim
from tilefuse.base.errors import CompilerError, InternalError, TypeMismatchError

# Functions that compute, or take functions, have tests of their own.
APART = {"compile", "Array", "Session", "Variable", "trace_nan", "register_operator", "evaluate", "TYPE_CHECKING"}
MODULES = {
    "array": (ta, ta.__all__),
    "linalg": (ta.linalg, ("cholesky", "cross", "det", "eigh", "inv", "matrix_norm", "matrix_power", "pinv", "qr", "slogdet", "solve",
                           "svd", "trace", "vector_norm")),
    "random": (ta.random, ("uniform", "normal", "bernoulli", "integers")), "nn": (nn, nn.__all__), "optim": (optim, optim.__all__),
}
FUNCTIONS = [(place, name) for place, (module, names) in MODULES.items() for name in names
             if callable(getattr(module, name)) and name not in APART and not name.startswith("_")]


def data(*shape: int) -> ta.Array:
    return ta.asarray(np.ones(shape, np.float32))


KINDS: tuple[Callable[[], Any], ...] = (
    lambda: data(3, 4), lambda: data(4), lambda: data(), lambda: data(0, 3), lambda: data(2, 3, 4, 5), lambda: data(4, 4),
    lambda: ta.asarray([1, 2, 3]), lambda: ta.asarray([True, False, True]), lambda: ta.ones((3,), dtype="bfloat16"),
    lambda: ta.ones((2,), dtype="uint64"), lambda: ta.placeholder((3,)), lambda: None, lambda: "abc", lambda: 2, lambda: -1, lambda: 0,
    lambda: 1.5, lambda: True, lambda: (1, 2), lambda: [3, 4], lambda: (), object, lambda: {"a": 1}, lambda: float("nan"), lambda: 1j,
    lambda: slice(1), lambda: "float32", lambda: ta.float64, lambda: [data(3), data(3)], lambda: (-1,), lambda: np.float16(2),
)


def wrong_calls(function: Any, draw: random.Random) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            args += [draw.choice(KINDS)() for _ in range(draw.randrange(3))]
        elif parameter.kind is parameter.KEYWORD_ONLY and draw.random() < 0.3:
            named[parameter.name] = draw.choice(KINDS)()
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) and not named:
            if parameter.default is not parameter.empty and draw.random() < 0.5:
                break
            args.append(draw.choice(KINDS)())
    return args, named


@pytest.mark.parametrize(("place", "name"), FUNCTIONS, ids=[f"{p}.{n}" for p, n in FUNCTIONS])
def test_wrong_arguments_are_told_at_the_callers_line(place: str, name: str) -> None:
    """Twenty draws of arguments of all kinds: what is refused is refused by us. Python itself tells of missing arguments."""
    function = getattr(MODULES[place][0], name)
    draw = random.Random(f"{place}.{name}")
    for _ in range(20):
        args, named = wrong_calls(function, draw)
        try:
            function(*args, **named)
        except CompilerError as error:
            assert not isinstance(error, InternalError), (args, named)
            assert error.where is not None and __file__ in str(error.where), (str(error), args, named)
        except TypeError as error:
            assert len(traceback.extract_tb(error.__traceback__)) == 1, (args, named)


def test_what_is_no_array_is_named() -> None:
    """The function, its argument, the kind that came, and what makes an array."""
    for call, told in (
        (lambda: ta.sum([1, 2]), "sum takes an array for x, not a list"), (lambda: nn.relu(np.ones(3)), "relu takes an array"),
        (lambda: ta.matmul(data(2, 2), None), "matmul takes an array for x2"), (lambda: nn.linear(data(2), 3, None), "weight"),
        (lambda: ta.broadcast_arrays(data(2), 3), "for arrays, not a int"), (lambda: ta.concat(3), "in a list"),
    ):
        with pytest.raises(TypeMismatchError, match=told) as caught:
            call()
        assert f"{__file__}:{call.__code__.co_firstlineno}:" in str(caught.value)


def test_constructors_of_optimisers_name_the_callers_line() -> None:
    """Their code is written by a decorator, and has no file of its own."""
    for call, told in ((lambda: optim.Adam(-1.0), "not 0 or more"), (lambda: optim.SGD("fast"), "the rate is a number"),
                       (lambda: optim.AdamW(decays=0.9), "two numbers"), (lambda: optim.SGD(1.0, nesterov=True), "needs momentum")):
        with pytest.raises(CompilerError, match=told) as caught:
            call()
        assert f"{__file__}:{call.__code__.co_firstlineno}:" in str(caught.value)
