"""Placeholders, variables, assignments and sessions."""
from __future__ import annotations

import numpy as np
import pytest

import tilefuse.array as ta
from tilefuse import optim
from tilefuse.arrays.evaluation.session import Assign
from tilefuse.base.errors import ShapeError, TypeMismatchError, UserError


def test_a_linear_model_is_trained_by_runs() -> None:
    x, t = ta.placeholder((16, 3), name="x"), ta.placeholder((16,), name="t")
    w = ta.variable(np.zeros(3, np.float32), name="w")
    loss = ta.mean((x @ w - t) ** 2)
    step = w.assign(w - 0.2 * ta.grad(loss, w))
    draw = np.random.default_rng(0)
    given = draw.standard_normal((16, 3)).astype(np.float32)
    wanted = np.array([1, -2, 3], np.float32)
    session = ta.Session()
    losses = [session.run([loss, step], {x: given, t: given @ wanted})[0] for _ in range(60)]
    assert float(losses[-1]) < 1e-4 * float(losses[0])
    assert np.abs(w.value.numpy() - wanted).max() < 0.05
    assert len(session._programs) == 1


def test_fetches_of_one_run_see_the_variables_before_it() -> None:
    a, b = ta.variable([1.0, 2.0], "a"), ta.variable([10.0, 20.0], "b")
    swapped = ta.Session().run({"a": a.assign(b), "b": b.assign(a), "sum": a + b, "now": a})
    assert {k: v.numpy().tolist() for k, v in swapped.items()} == {
        "a": [10.0, 20.0], "b": [1.0, 2.0], "sum": [11.0, 22.0], "now": [1.0, 2.0]}
    assert a.numpy().tolist() == [10.0, 20.0] and b.value.numpy().tolist() == [1.0, 2.0]


def test_what_was_fetched_stays_when_variables_change() -> None:
    count = ta.variable(0, "count")
    session = ta.Session()
    up = count.assign(count + 1)
    seen = [session.run(up) for _ in range(3)]
    held = session.run(count)
    session.run(up)
    assert [int(s) for s in seen] == [1, 2, 3] and int(held) == 3 and int(count) == 4


def test_a_variable_copies_its_initial_data() -> None:
    data = np.zeros(3, np.float32)
    array = ta.asarray(data)
    one, two = ta.variable(array), ta.variable(data)
    ta.Session().run([one.assign(one + 1), two.assign(two + 2)])
    assert not data.any() and one.numpy().tolist() == [1.0] * 3 and two.numpy().tolist() == [2.0] * 3
    assert one.value.numpy().tolist() == [1.0] * 3
    assert ta.variable([1, 2], dtype=ta.float64).dtype == ta.float64


def test_assigning_data() -> None:
    w = ta.variable([[1.0, 2.0]])
    found = ta.Session().run(w.assign([[3.0, 4.0]]))
    assert isinstance(w.assign(w), Assign) and found.numpy().tolist() == w.numpy().tolist() == [[3.0, 4.0]]


def test_placeholders_take_numbers_lists_and_arrays() -> None:
    x = ta.placeholder((2,), ta.int64)
    session = ta.Session()
    for given in ([1, 2], np.array([1, 2]), ta.asarray([1, 2])):
        assert session.run(x * 2, {x: given}).numpy().tolist() == [2, 4]
    assert int(session.run(ta.sum(x), {x: [1, 2]})) == 3
    scalar = ta.placeholder((), name="rate")
    assert float(session.run(scalar * 2, {scalar: 0.5})) == 1.0


def test_what_is_wrong_is_said() -> None:
    x = ta.placeholder((2, 3), name="images")
    w = ta.variable(np.zeros(3, np.float32), "weights")
    session = ta.Session()
    with pytest.raises(UserError, match="need images, which is not fed"):
        session.run(x @ w)
    with pytest.raises(UserError, match="value of the placeholder images is needed"):
        (x @ w).numpy()
    with pytest.raises(ShapeError, match=r"placeholder images has shape \(2, 3\), the data has \(3,\)"):
        session.run(x @ w, {x: [1.0, 2.0, 3.0]})
    with pytest.raises(TypeMismatchError, match="images takes float32, the data is float64"):
        session.run(x @ w, {x: np.zeros((2, 3))})
    with pytest.raises(UserError, match="only placeholders are fed"):
        session.run(w, {w: [1.0, 2.0, 3.0]})
    with pytest.raises(UserError, match="only placeholders are fed, not a str"):
        session.run(x @ w, {"images": np.zeros((2, 3), np.float32)})  # type: ignore[dict-item]
    with pytest.raises(UserError, match="assigned twice"):
        session.run([w.assign(w), w.assign(w + 1)])
    with pytest.raises(ShapeError, match="cannot hold a value of shape"):
        w.assign(ta.zeros(4))
    with pytest.raises(TypeMismatchError, match="cannot hold float64"):
        w.assign(ta.zeros(3, dtype=ta.float64))
    with pytest.raises(TypeMismatchError, match="not a int"):
        session.run(3)
    with pytest.raises(ShapeError, match="is numbers"):
        ta.placeholder((None, 3))  # type: ignore[arg-type]
    assert "placeholder images" in repr(x)


def test_no_elements_and_nothing_to_compute() -> None:
    w = ta.variable(np.zeros((0, 3), np.float32))
    assert ta.Session().run(w).shape == (0, 3)
    assert ta.Session().run([]) == []


def test_what_was_printed_follows_its_variables() -> None:
    """An array that was computed, by name or on the way, is computed again after an assignment; one that `evaluate` took is data."""
    w = ta.variable([1.0, 2.0])
    twice = w * 2
    more = twice + 1
    assert twice.tolist() == [2, 4] and more.tolist() == [3, 5] and twice[0].tolist() == 2
    kept = ta.evaluate(w * 3)
    part = twice[1]
    session = ta.Session()
    assert session.run(w.assign(w + 10)).tolist() == [11, 12]
    assert twice.tolist() == [22, 24] and more.tolist() == [23, 25] and part.tolist() == 24 and kept.tolist() == [3, 6]
    assert session.run([more, kept + 1])[0].tolist() == [23, 25]
    read = ta.compile(lambda x: x + twice)
    assert read(ta.zeros(2)).tolist() == [22, 24]
    session.run(w.assign(w + 1))
    assert read(ta.zeros(2)).tolist() == [24, 26] and session.run(more).tolist() == [25, 27]
    wanted = ta.ones(2)
    change = w.assign(wanted)
    wanted[0] = 5.0
    assert session.run(change).tolist() == [1, 1]


def test_an_assignment_is_an_array_and_is_made_on_the_way() -> None:
    """Adam as a graph by hand, whose update reads the new moments: fetching the update alone makes all assignments, as optim.Adam does."""
    rate, first, second = 0.1, 0.9, 0.999

    def minimise(loss: ta.Array, variables: list[ta.Variable]) -> list[ta.Array]:
        step = ta.variable(0.0, "step")
        now = step.assign(step + 1)
        speed = rate * ta.sqrt(1 - second ** now) / (1 - first ** now)
        updates = []
        for v, g in zip(variables, ta.grad(loss, variables)):
            m, s = ta.variable(ta.zeros(v.shape)), ta.variable(ta.zeros(v.shape))
            mean, square = m.assign(first * m + (1 - first) * g), s.assign(second * s + (1 - second) * g * g)
            updates.append(v.assign(v - speed * mean / (ta.sqrt(square) + 1e-8)))
        return updates

    start = {"a": np.array([1.0, -2.0], np.float32), "b": np.array([0.5], np.float32)}
    a, b = (ta.variable(v, name) for name, v in start.items())
    loss = ta.sum(a ** 4) + ta.sum(ta.exp(b) * a)
    session, updates = ta.Session(), minimise(loss, [a, b])
    adam, held = optim.Adam(rate), {name: ta.asarray(v) for name, v in start.items()}
    state = adam.init(held)
    for _ in range(4):
        found = session.run(updates)
        slopes = ta.grad(ta.sum(held["a"] ** 4) + ta.sum(ta.exp(held["b"]) * held["a"]), held)
        held, state = adam.update(held, slopes, state)
        for mine, other in zip(found, held.values()):
            np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-5)
    assert a.value.tolist() == found[0].tolist() and len(session._programs) == 1
    with pytest.raises(UserError, match="an assignment is not written to"):
        updates[0][0] = 1.0
    twice = a.assign(a + 1) + a.assign(a + 2)
    with pytest.raises(UserError, match="assigned twice"):
        session.run(twice)
