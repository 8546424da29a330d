"""Scans: a step over the first dimension, with trees of state, inputs and outputs."""
from __future__ import annotations

import numpy as np
import pytest

import tilefuse.array as ta
from tests.unit.arrays.array_values import value
from tilefuse.arrays.functions import scan as array_scan
from tilefuse.arrays.graph import graph_of
from tilefuse.base.errors import ShapeError, TypeMismatchError, UserError


def test_running_sum_and_products() -> None:
    xs = np.arange(1, 6, dtype=np.float32)
    last, ys = ta.scan(lambda s, x: (s + x, s * x), ta.asarray(0.0), ta.asarray(xs))
    assert float(last) == 15.0 and ys.numpy().tolist() == [0.0, 2.0, 9.0, 24.0, 50.0]
    last, ys = ta.scan(lambda s, x: (s + x, s), ta.asarray(0.0), ta.asarray(xs), reverse=True)
    assert float(last) == 15.0 and ys.numpy().tolist() == [14.0, 12.0, 9.0, 5.0, 0.0]


def test_trees_and_a_recurrence_under_gradients() -> None:
    w = ta.asarray(np.array([[0.5, -0.2], [0.1, 0.3]]))
    xs = {"x": ta.asarray(np.random.default_rng(0).standard_normal((4, 2)))}

    def step(state: tuple[ta.Array, ta.Array], x: dict[str, ta.Array]) -> tuple[tuple[ta.Array, ta.Array], dict[str, ta.Array]]:
        h, count = state
        h = ta.tanh(h @ w + x["x"])
        return (h, count + 1), {"h": h}

    def total() -> ta.Array:
        (_, count), out = ta.scan(step, (ta.zeros(2, dtype=ta.float64), ta.asarray(0)), xs)
        assert int(count) == 4 and out["h"].shape == (4, 2)
        return ta.sum(out["h"] ** 2)

    found = ta.grad(total(), w).numpy()
    h, saved = np.zeros(2), []
    for x in xs["x"].numpy():
        saved.append((h, np.tanh(h @ w.numpy() + x)))
        h = saved[-1][1]
    wanted, back = np.zeros((2, 2)), np.zeros(2)
    for before, after in reversed(saved):
        d = (2 * after + back) * (1 - after**2)
        wanted += np.outer(before, d)
        back = d @ w.numpy().T
    assert np.allclose(found, wanted, rtol=1e-12)


def test_lengths() -> None:
    doubled, none = ta.scan(lambda s, x: (s * 2, None), ta.asarray(1.0), length=5)
    assert float(doubled) == 32.0 and none is None
    same, nothing = ta.scan(lambda s, x: (s + ta.sum(x), {"x": x, "s": s > 0}), ta.asarray(1.0), ta.zeros((0, 3)))
    assert float(same) == 1.0 and nothing["x"].shape == (0, 3) and nothing["s"].shape == (0,) and nothing["s"].dtype == ta.bool


def test_what_is_wrong_is_said() -> None:
    one = ta.asarray(1.0)
    for call, error, words in (
        (lambda: ta.scan(lambda s, x: (s, x), one), UserError, "needs xs, or length"),
        (lambda: ta.scan(lambda s, x: (s, x), one, ta.ones(3), length=4), UserError, "with length=4"),
        (lambda: ta.scan(lambda s, x: (s, x), one, (ta.ones(3), ta.ones(4))), ShapeError, "first dimension"),
        (lambda: ta.scan(lambda s, x: (s, x), one, ta.asarray(2.0)), ShapeError, "first dimension"),
        (lambda: ta.scan(lambda s, x: s, one, ta.ones(3)), TypeMismatchError, "state, output"),
        (lambda: ta.scan(lambda s, x: ((s, s), x), one, ta.ones(3)), TypeMismatchError, "another form"),
        (lambda: ta.scan(lambda s, x: (s + ta.ones(2), x), one, ta.ones(3)), TypeMismatchError,
         r"takes a state float32\[\] and gives float32\[2\]"),
    ):
        with pytest.raises(error, match=words):
            call()


@pytest.mark.parametrize("reverse", (False, True))
def test_many_outputs_are_put_together_in_pieces(reverse: bool) -> None:
    """A kernel that reads hundreds of arrays takes the compiler minutes; pieces have equal kernels. Every output lies in its place."""
    xs = np.arange(1, 71 + 64, dtype=np.float32)
    last, ys = ta.scan(lambda s, x: (s + x, s), ta.asarray(0.0), ta.asarray(xs), reverse=reverse)
    graph, _ = graph_of([last, ys])
    assert max(len(n.reads()) for n in graph.nodes) <= array_scan.PIECE
    order = xs[::-1] if reverse else xs
    before = np.concatenate([[0.0], np.cumsum(order)[:-1]])
    np.testing.assert_array_equal(value(ys), before[::-1] if reverse else before)
    assert value(last) == xs.sum()


def test_a_scan_of_too_many_turns_says_what_to_do() -> None:
    with pytest.raises(UserError, match="a scan over 5000 turns.*(\n.*)*hint: compile a function that scans a piece"):
        ta.scan(lambda s, x: (s, x), ta.asarray(1.0), ta.zeros((5000,)))
