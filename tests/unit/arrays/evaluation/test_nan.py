"""NaN tracing names the first node that made one, with the user's line."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilefuse.array as ta
from tilefuse.arrays.evaluation.nan import checks_nan
from tilefuse.base.errors import UserError

HERE = Path(__file__).name


def model(x: ta.Array) -> ta.Array:
    shifted = x - 1
    logs = ta.log(shifted)  # the line
    return ta.sum(ta.tanh(logs) * 2)


def line() -> int:
    return next(n for n, text in enumerate(Path(__file__).read_text(encoding="utf-8").splitlines(), 1) if text.endswith("# the line"))


GOOD, BAD = np.array([2.0, 3.0, 4.0], np.float32), np.array([2.0, 0.5, 4.0], np.float32)


def test_without_it_a_nan_is_a_value() -> None:
    assert np.isnan(model(ta.asarray(BAD)).numpy()) and not checks_nan()


@pytest.mark.parametrize("how", ["array", "compiled", "session"])
def test_the_first_node_is_named(how: str) -> None:
    x = ta.placeholder((3,), name="x")
    compiled, session, total = ta.compile(model), ta.Session(), model(x)

    def run(data: np.ndarray) -> ta.Array:
        if how == "array":
            return ta.evaluate(model(ta.asarray(data)))
        return compiled(ta.asarray(data)) if how == "compiled" else session.run(total, {x: data})

    with ta.trace_nan():
        assert np.isfinite(run(GOOD).numpy())
        with pytest.raises(UserError) as caught:
            run(BAD)
    text = str(caught.value)
    assert "log" in text and "1 of 3 elements, first at [1]" in text and f"{HERE}:{line()}" in text and "no value before it" in text
    assert np.isnan(run(BAD).numpy())


def test_a_nan_that_was_given_is_told_apart() -> None:
    with ta.trace_nan(), pytest.raises(UserError, match="the input x has a NaN in 1 of 2 elements before anything"):
        ta.compile(lambda x: x + 1)(ta.asarray([1.0, float("nan")]))


def test_gradients_are_looked_at() -> None:
    with ta.trace_nan(), pytest.raises(UserError, match="gives a NaN in 1 of 2"):
        x = ta.asarray([0.0, 1.0])
        ta.evaluate(ta.grad(ta.sum(ta.where(x > 0, ta.sqrt(x), 0)), x))  # 0 / 0 where the root was not chosen


def test_donated_memory_is_not_touched_by_a_run_that_fails() -> None:
    step = ta.compile(lambda w, x: w + ta.log(x), donate=0)
    w = ta.evaluate(ta.ones(2) * 3)
    with ta.trace_nan(), pytest.raises(UserError, match="log"):
        step(w, ta.asarray([1.0, -1.0]))
    assert w.numpy().tolist() == [3.0, 3.0]


def test_long_graphs_are_looked_at_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilefuse.arrays.evaluation.nan.VALUES_AT_ONCE", 3)
    x = ta.asarray([1.0, -4.0])
    y = x
    for _ in range(5):
        y = ta.abs(y) + 1
    with ta.trace_nan(), pytest.raises(UserError, match="sqrt"):
        ta.evaluate(ta.sqrt(-y))
