"""Several threads that trace, evaluate and draw at the same time: what one traces is nothing to the others."""
from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tilefuse.array as ta
from tilefuse import nn
from tilefuse.arrays.evaluation import evaluate as array_evaluate
from tilefuse.arrays.nodes import number_of_template, number_of_type
from tilefuse.arrays.tracing import is_tracing
from tilefuse.base.errors import UserError
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Type


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Arrays are made on the host, and threads take turns as often as they can."""
    monkeypatch.setattr(array_evaluate.Evaluation, "default_device", staticmethod(lambda: "host"))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*work: Callable[[], Any]) -> list[Any]:
    """Results of functions that run at the same time, each in a thread. Raises: the error of the first that failed."""
    found: list[Any] = [None] * len(work)
    start = threading.Barrier(len(work))

    def run(number: int) -> None:
        start.wait(20)
        try:
            found[number] = work[number]()
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


def test_a_trace_is_of_its_thread() -> None:
    """While one thread is in the middle of a trace, another computes, draws, calls compiled functions and traces its own."""
    tracing, done = threading.Event(), threading.Event()
    x = ta.asarray(np.arange(4, dtype=np.float32))
    double = ta.compile(lambda v: v * 2)

    def slow(v: ta.Array) -> ta.Array:
        tracing.set()
        assert done.wait(20) and is_tracing()
        return v + ta.random.uniform((4,)) * 0

    def other() -> tuple[Any, ...]:
        assert tracing.wait(20)
        try:
            assert not is_tracing()
            drawn = ta.random.uniform((4,))
            return (x + 1).numpy(), double(x), drawn.numpy(), ta.compile(lambda v: v * 3)(x).numpy()
        finally:
            done.set()

    made, (plus, twice, drawn, thrice) = together(lambda: ta.compile(slow)(x), other)
    np.testing.assert_array_equal(made.numpy(), x.numpy())
    np.testing.assert_array_equal(plus, x.numpy() + 1)
    assert twice.node.buffer is not None  # it ran: it was no part of the other's trace
    np.testing.assert_array_equal(thrice, x.numpy() * 3)
    assert ((drawn >= 0) & (drawn < 1)).all()


def test_looking_for_nan_is_of_its_thread() -> None:
    """`trace_nan` in one thread refuses nothing in another."""
    inside, done = threading.Event(), threading.Event()
    zero = ta.asarray(np.zeros(3, np.float32))

    def looks() -> None:
        with ta.trace_nan():
            inside.set()
            assert done.wait(20)
            with pytest.raises(UserError, match="NaN"):
                (zero / zero).numpy()

    def computes() -> None:
        assert inside.wait(20)
        try:
            assert np.isnan((zero / zero).numpy()).all()
        finally:
            done.set()

    together(looks, computes)


def test_shared_arrays_are_computed_by_whoever_comes() -> None:
    """Threads that build on and evaluate the same arrays get the same numbers as one after the other would."""
    x = ta.asarray(np.arange(6, dtype=np.float32))
    rounds = 60
    bases = [x * 2 + ta.asarray(float(n)) for n in range(rounds)]

    def work() -> list[np.ndarray[Any, Any]]:
        found = []
        for base in bases:
            top = base * base - 1
            if len(found) % 2:
                ta.evaluate(base)
            found.append(top.numpy().copy())
        return found

    for row in together(*[work] * 4):
        for n, got in enumerate(row):
            np.testing.assert_array_equal(got, (x.numpy() * 2 + n) ** 2 - 1)


def test_a_network_is_applied_in_two_threads() -> None:
    """`nn.apply` puts arrays in place of the module's own for its thread alone."""
    model = nn.Linear(3, 2)
    own = model.parameters()["weight"]
    held, done = threading.Event(), threading.Event()

    class Waiting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Any) -> Any:
            held.set()
            assert done.wait(20)
            return self.inner(x)

    outer = Waiting()
    x = ta.ones((1, 3))
    zeros = {name: ta.zeros(v.shape) for name, v in outer.parameters().items()}

    def sees() -> Any:
        assert held.wait(20)
        try:
            return model.parameters()["weight"]
        finally:
            done.set()

    (result, _), seen = together(lambda: nn.apply(outer, zeros, x), sees)
    assert seen is own and model.parameters()["weight"] is own
    np.testing.assert_array_equal(result.numpy(), np.zeros((1, 2), np.float32))


def test_numbers_of_types_and_templates_are_unique() -> None:
    """Programs are found by these numbers: two threads that meet new types at once must not give two of them one number."""
    template = (ta.asarray([1.0]) + 1.0).node.node

    def numbers(offset: int) -> list[tuple[Type, int]]:
        types = [Type(F32, (n, 7919, offset)) for n in range(400)]
        return [(t, number_of_type(t)) for t in types]

    found = [pair for row in together(*[lambda k=k: numbers(k) for k in range(4)]) for pair in row]
    assert len({number for _, number in found}) == len({t for t, _ in found}) == 1600
    assert len(set(together(*[lambda: number_of_template(template)] * 4))) == 1


def test_draws_of_threads_differ() -> None:
    """Each draw of the global generator takes a key of its own."""
    drawn = [n for row in together(*[lambda: [ta.random.generator.next_number() for _ in range(500)]] * 4) for n in row]
    assert len(set(drawn)) == 2000
