"""Compiled functions of arrays: one program a form of arguments, donated memory, and errors that name the user's line."""
from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import tilefuse.array as ta
from tilefuse.arrays.evaluation.compile import Compiled
from tilefuse.arrays.evaluation.donation import take_donated
from tilefuse.base.errors import UserError
from tilefuse.emit.emitter import Emitter

HERE = Path(__file__).name


def data(*shape: int, seed: int = 0) -> ta.Array:
    return ta.asarray(np.random.default_rng(seed).standard_normal(shape).astype(np.float32), copy=True)


def line_of(text: str) -> int:
    """Number of the line of this file that has a mark."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.rstrip().endswith(f"# {text}"))


def test_a_function_gives_what_it_gives_uncompiled() -> None:
    def fn(x: ta.Array, w: ta.Array) -> dict[str, Any]:
        y = ta.tanh(x @ w)
        return {"sum": ta.sum(y, axis=1), "pair": (y, [y * 2])}

    x, w = data(4, 8), data(8, 3, seed=1)
    made, plain = ta.compile(fn)(x, w), fn(x, w)
    assert list(made) == ["sum", "pair"] and isinstance(made["pair"], tuple) and isinstance(made["pair"][1], list)
    for a, b in ((made["sum"], plain["sum"]), (made["pair"][0], plain["pair"][0]), (made["pair"][1][0], plain["pair"][1][0])):
        # Products of 8 terms below 4, then functions within two units in the last place.
        assert np.abs(a.numpy() - b.numpy()).max() <= 64 * np.finfo(np.float32).eps


def test_each_form_of_arguments_has_one_program() -> None:
    calls = []

    @ta.compile
    def scaled(x: ta.Array, factor: float = 2.0) -> ta.Array:
        calls.append(x.shape)
        return x * factor

    x = data(3, 4)
    assert isinstance(scaled, Compiled)
    for _ in range(3):
        assert np.array_equal(scaled(x).numpy(), x.numpy() * 2)
    assert len(calls) == len(scaled.programs) == 1
    scaled(data(5))
    scaled(ta.astype(x, ta.float64))
    scaled(x, 3.0)
    scaled(x, factor=3.0)
    assert len(calls) == 5
    assert np.array_equal(scaled(x, True).numpy(), x.numpy()) and np.array_equal(scaled(x, 1).numpy(), x.numpy())
    assert len(calls) == 7  # True and 1 are equal and mean different programs


def test_arguments_may_be_torch_and_numpy() -> None:
    add = ta.compile(lambda a, b: a + b)
    a, b = torch.arange(6.0).reshape(2, 3), np.ones((2, 3), np.float32)
    assert np.array_equal(add(a, b).numpy(), a.numpy() + 1)
    assert np.array_equal(add(a.T.contiguous().T, b).numpy(), a.numpy() + 1)  # other strides, the same values


def test_trees_keep_their_types() -> None:
    class Pair(NamedTuple):
        left: Any
        right: Any

    swapped = ta.compile(lambda p, extra: (Pair(p.right, p.left), extra["none"], {"n": extra["n"]}))
    x, y = data(2), data(3)
    pair, nothing, rest = swapped(Pair(x, y), {"none": None, "n": 7})
    assert isinstance(pair, Pair) and nothing is None and rest == {"n": 7}
    assert np.array_equal(pair.left.numpy(), y.numpy()) and np.array_equal(pair.right.numpy(), x.numpy())


def test_arrays_from_outside_are_read_at_each_call() -> None:
    held = ta.variable([1.0, 2.0])
    fn = ta.compile(lambda x: x + held)
    x = ta.zeros(2)
    assert fn(x).numpy().tolist() == [1.0, 2.0]
    ta.Session().run(held.assign(held * 10))
    assert fn(x).numpy().tolist() == [10.0, 20.0] and len(fn.programs) == 1


def test_random_numbers_differ_from_call_to_call_and_repeat_from_a_seed() -> None:
    fn = ta.compile(lambda x: x + ta.random.uniform((64,)))
    x = ta.zeros(64)
    ta.random.seed(3)
    first, second = fn(x).numpy(), fn(x).numpy()
    ta.random.seed(3)
    assert not np.array_equal(first, second)
    assert np.array_equal(fn(x).numpy(), first) and np.array_equal(fn(x).numpy(), second)


def test_a_compiled_function_inside_another_is_part_of_it() -> None:
    inner = ta.compile(lambda x: ta.exp(x))
    outer = ta.compile(lambda x: ta.log(inner(x)) + 1)
    assert np.allclose(outer(data(5)).numpy(), data(5).numpy() + 1, atol=1e-6)
    assert not inner.programs


def test_a_method_may_be_compiled() -> None:
    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        @ta.compile
        def __call__(self, x: ta.Array) -> ta.Array:
            return x * self.factor

    assert Scale(2.0)(ta.ones(2)).numpy().tolist() == [2.0, 2.0] and Scale(3.0)(ta.ones(2)).numpy().tolist() == [3.0, 3.0]


# Donation


def test_donated_memory_is_updated_in_place() -> None:
    def step(state: dict[str, ta.Array], x: ta.Array) -> tuple[dict[str, ta.Array], ta.Array]:
        return {"w": state["w"] - 0.5 * x, "m": state["m"] * 0.5 + x}, ta.sum(state["w"])

    compiled = ta.compile(step, donate=0)
    state = {"w": data(4, 4), "m": data(4, 4, seed=1)}
    x = data(4, 4, seed=2)
    # Copies of torch's: memory that numpy has seen once counts as shared.
    want, held = dict(state), {k: v.buffer().clone() for k, v in state.items()}
    places = {k: v.buffer().data_ptr() for k, v in state.items()}
    for _ in range(3):
        state, total = compiled(state, x)
        assert float(total) == pytest.approx(float(held["w"].sum()), abs=1e-5)
        held = {"w": held["w"] - 0.5 * x.buffer(), "m": held["m"] * 0.5 + x.buffer()}
        assert {k: v.buffer().data_ptr() for k, v in state.items()} == places
        assert all(torch.allclose(state[k].buffer(), held[k], atol=1e-6) for k in held)
    assert set(compiled.programs[0].spec.updates) == {"state_w", "state_m"}
    for array in want.values():
        with pytest.raises(UserError, match="donated to .*step, called at .*" + HERE):
            array.numpy()


def test_whatever_is_asked_of_a_donated_array_is_an_error() -> None:
    x = data(3)
    y = x * 2
    ta.compile(lambda x: x + 1, donate=0)(x)
    for ask in (lambda: x.numpy(), lambda: repr(x), lambda: float(x[0]), lambda: y.numpy(), lambda: torch.from_dlpack(x),
                lambda: ta.compile(lambda a: a)(x), lambda: ta.evaluate(x + 1)):
        with pytest.raises(UserError, match="was donated"):
            ask()
    for build in (lambda: x + 1, lambda: x @ x, lambda: ta.sum(x), lambda: x[1:]):
        with pytest.raises(UserError, match=r"was donated .*(\n.*)*for build in"):  # at the line that builds, not where it is asked for
            build()


def test_memory_that_something_else_uses_is_not_taken() -> None:
    x = ta.evaluate(data(6) + 1)
    view, twin = x[:3], x.numpy()
    before = twin.copy()
    fn = ta.compile(lambda a, b: (a * 2, b), donate=0)
    made, same = fn(x, view)
    assert np.array_equal(made.numpy(), before * 2)
    assert np.array_equal(view.numpy(), before[:3]) and np.array_equal(twin, before) and np.array_equal(same.numpy(), before[:3])
    seen = ta.evaluate(data(6) + 1)
    numbers = seen.numpy()
    fn(seen, ta.zeros(3))
    assert np.array_equal(numbers, before)
    both = ta.compile(lambda a, b: (a + 1, b + 2), donate=(0, 1))
    zero, null = ta.zeros(4), ta.zeros(4)
    ta.evaluate(zero, null)  # equal values may be one result
    one, two = both(zero, null)
    assert one.numpy().tolist() == [1.0] * 4 and two.numpy().tolist() == [2.0] * 4


def test_the_callers_own_memory_is_not_taken() -> None:
    fn = ta.compile(lambda a: a * 2, donate=0)
    for make in (lambda n: n, lambda n: ta.asarray(n), lambda n: torch.from_numpy(n), lambda n: ta.from_dlpack(n)):
        own = np.ones(4, np.float32)
        assert fn(make(own)).numpy().tolist() == [2.0] * 4 and own.tolist() == [1.0] * 4
    tensor = torch.ones(4)
    assert fn(tensor).numpy().tolist() == [2.0] * 4 and tensor.tolist() == [1.0] * 4


def test_an_array_donated_and_given_back_as_it_came() -> None:
    fn = ta.compile(lambda a, b: (a, a + b), donate=0)
    x = data(3)
    before = x.numpy().copy()
    kept, other = fn(x, ta.ones(3))
    assert np.array_equal(kept.numpy(), before) and np.array_equal(other.numpy(), before + 1)
    with pytest.raises(UserError, match="donated"):
        x.numpy()


def test_two_outputs_may_swap_donated_memory() -> None:
    swap = ta.compile(lambda a, b: (b, a), donate=(0, 1))
    a, b = data(5), data(5, seed=1)
    wanted = b.numpy().copy(), a.numpy().copy()
    found = swap(a, b)
    assert np.array_equal(found[0].numpy(), wanted[0]) and np.array_equal(found[1].numpy(), wanted[1])


def test_a_missing_donated_argument_is_said() -> None:
    with pytest.raises(UserError, match="argument 3 of .* is donated, and there are 1"):
        ta.compile(lambda x: x + 1, donate=3)(data(2))


@pytest.mark.parametrize("wrong", (-1, "w", (0, -1), 1.0, True))
def test_donated_arguments_are_positions(wrong: Any) -> None:
    """A position counted from the end was overwritten, and its array not marked as given away."""
    with pytest.raises(UserError, match="positions of arguments"):
        ta.compile(lambda w, g: w - g, donate=wrong)


def test_a_list_of_traced_arrays_is_told_to_be_stacked() -> None:
    with pytest.raises(UserError, match="stack") as caught:
        ta.compile(lambda x: ta.asarray([x[0], x[1]]))(data(2))
    assert str(caught.value.where).startswith(f"{__file__}:")


def test_the_line_is_the_users_where_torch_asks() -> None:
    """torch calls back in its own files, which are not the place to look."""
    with pytest.raises(UserError, match="DLPack needs the value") as caught:
        ta.compile(lambda x: torch.from_dlpack(x))(data(2))
    assert str(caught.value.where).startswith(f"{__file__}:")


# Python control flow


def by_if(x: ta.Array) -> ta.Array:
    if ta.sum(x) > 0:  # if
        return x
    return -x


def by_while(x: ta.Array) -> ta.Array:
    while ta.any(x > 1):  # while
        x = x / 2
    return x


def by_range(x: ta.Array) -> ta.Array:
    for _ in range(int(ta.sum(x))):  # range
        x = x * 2
    return x


def by_choice(x: ta.Array) -> ta.Array:
    return x if ta.max(x) > 1 else -x  # choice


def by_float(x: ta.Array) -> ta.Array:
    return x * float(ta.sum(x))  # float


def by_print(x: ta.Array) -> ta.Array:
    print(x)  # print
    return x + 1


def by_assert(x: ta.Array) -> ta.Array:
    assert ta.all(x > 0)  # assert
    return x + 1


def by_evaluate(x: ta.Array) -> ta.Array:
    ta.evaluate(x + 1)  # evaluate
    return x


@pytest.mark.parametrize("fn, mark, words", [
    (by_evaluate, "evaluate", ["evaluate() needs the value", "after the call"]),
    (by_if, "if", ["an if needs the value", "where("]), (by_while, "while", ["a while loop", "scan("]),
    (by_range, "range", ["number of turns", "unrolled", "scan("]), (by_choice, "choice", ["a choice", "where("]),
    (by_float, "float", ["float()", "after the call"]), (by_print, "print", ["a print", "after the call"]),
    (by_assert, "assert", ["an assert", "after the call"]),
], ids=lambda v: getattr(v, "__name__", None))
def test_control_flow_by_data_names_the_line_and_the_remedy(fn: Any, mark: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        ta.compile(fn)(data(3))
    text = str(caught.value)
    assert f"{HERE}:{line_of(mark)}" in text and fn.__name__ in text
    assert all(word in text for word in words), text
    assert np.isfinite(ta.compile(lambda x: x + 1)(data(3)).numpy()).all()  # the failed trace has left nothing behind


def test_the_remedies_work() -> None:
    x = ta.asarray([3.0, -1.0, 9.0])
    assert ta.compile(lambda x: ta.where(ta.sum(x) > 0, x, -x))(x).numpy().tolist() == [3.0, -1.0, 9.0]

    @ta.compile
    def halved(x: ta.Array) -> ta.Array:
        return ta.scan(lambda x, _: (ta.where(ta.any(x > 1), x / 2, x), None), x, length=6)[0]

    assert halved(x).numpy().tolist() == [0.1875, -0.0625, 0.5625]

    @ta.compile
    def unrolled(x: ta.Array, turns: int) -> ta.Array:
        for _ in range(turns):
            x = x * 2
        return x

    assert unrolled(x, 3).numpy().tolist() == [24.0, -8.0, 72.0]


def test_a_value_used_many_times_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A while loop written as a scan uses its state several times a turn; the paths through it double and treble with every turn."""
    asked: list[int] = []
    find = Emitter.find
    monkeypatch.setattr(Emitter, "find", lambda self, key: asked.append(key) or find(self, key))

    @ta.compile(plan_cache=False)
    def steps_to_one(n: ta.Array) -> ta.Array:
        def turn(state: Any, _: Any) -> Any:
            n, count = state
            later = ta.where(n % 2 == 0, n // 2, 3 * n + 1)
            return (ta.where(n > 1, later, n), ta.where(n > 1, count + 1, count)), None
        return ta.scan(turn, (n, ta.asarray(0)), length=9)[0][1]

    assert int(steps_to_one(ta.asarray(6))) == 8
    assert 0 < len(asked) < 20_000, len(asked)


def test_values_that_no_argument_decides_may_be_asked_for() -> None:
    table = ta.asarray([1.0, 2.0])

    @ta.compile
    def fn(x: ta.Array) -> ta.Array:
        return x * (2.0 if float(ta.sum(table)) > 2 else 1.0)

    assert fn(ta.ones(2)).numpy().tolist() == [2.0, 2.0]


def test_a_function_without_arrays_is_said() -> None:
    with pytest.raises(UserError, match="gives no array"):
        ta.compile(lambda x: None)(data(2))
    with pytest.raises(UserError, match="takes a function"):
        ta.compile(3)
    with pytest.raises(UserError, match="neither an array nor a setting"):
        ta.compile(lambda x, y: x)(data(2), {1, 2})


def test_the_graph_and_the_program_can_be_had_without_a_call() -> None:
    fn = ta.compile(lambda x, w: ta.sum(x * w))
    graph = fn.lower(data(3), data(3))
    assert [i.name for i in graph.inputs] == ["x", "w"] and not fn.programs
    program = fn.program_of(data(3), data(3))
    assert program.spec.inputs == ("x", "w") and fn.programs == (program,)


def test_options_are_those_of_the_compiler() -> None:
    fn = ta.compile(lambda x: ta.exp(x) * ta.sum(x), fuse=False)
    assert len(fn.program_of(data(4, 4)).kernels) > 1
    checked = ta.compile(lambda x: ta.exp(x) * ta.sum(x), check=True)
    assert np.isfinite(checked(data(4, 4)).numpy()).all()


def test_a_compiled_function_writes_to_its_arguments_as_the_function_does() -> None:
    """Arguments in any nesting, returned or not, donated or not; what it made itself; several keys; in one program."""
    def fn(state: dict[str, ta.Array], x: ta.Array, n: int) -> ta.Array:
        old = state["a"] * 1.0
        state["a"][1:, 0] = x
        state["a"][state["a"] > 1.0] = 0.0
        own = ta.zeros(4)
        own[n] += ta.sum(old)
        own[ta.asarray([0, 3])] = state["b"][:2]
        return own

    for donate in ((), (0,)):
        compiled = ta.compile(fn, donate=donate)
        for n in (1, -2, 1):
            made = {"a": data(3, 2, seed=n + 2), "b": data(3)}
            plain = {"a": data(3, 2, seed=n + 2), "b": data(3)}
            own, wanted = compiled(made, data(2, seed=9), n), fn(plain, data(2, seed=9), n)
            assert np.allclose(own.numpy(), wanted.numpy(), atol=1e-6)
            assert np.array_equal(made["a"].numpy(), plain["a"].numpy())
            if not donate:
                assert np.array_equal(made["b"].numpy(), plain["b"].numpy())
        assert len(compiled.programs) == 2


def test_a_written_and_returned_argument_is_one_output() -> None:
    @ta.compile(donate=0)
    def step(x: ta.Array) -> tuple[ta.Array, ta.Array]:
        x[0] = x[1] + 1
        return x, x[1]

    x = data(2, 64)
    place, wanted = x.node.buffer.data_ptr(), np.array(x.tolist()[1], np.float32)
    made, row = step(x)
    assert x.node.buffer.data_ptr() == place
    assert np.array_equal(x.numpy(), made.numpy()) and np.array_equal(made.numpy()[0], wanted + 1) and np.array_equal(row.numpy(), wanted)
    x[0] = 0.0
    assert made.numpy()[0].any() and not x.numpy()[0].any()


def test_what_a_call_cannot_write_to_is_said() -> None:
    def fn(x: ta.Array, y: ta.Array) -> None:
        x[0] = y[0]

    compiled = ta.compile(fn)
    a, b = data(3), data(3, seed=1)
    assert compiled(a, b) is None and a.numpy()[0] == b.numpy()[0]
    for given, told in (((np.zeros(3, np.float32), b), "a ndarray is given"), ((ta.variable([1.0, 2.0, 3.0]), b), "a variable is given"),
                        ((a, a), "the same array is given for another")):
        with pytest.raises(UserError, match=told):
            compiled(*given)
    outer = ta.zeros(3)

    def leaking(x: ta.Array) -> ta.Array:
        outer[0] = x[0]
        return x

    with pytest.raises(UserError, match="made outside of it") as caught:
        ta.compile(leaking)(a)
    assert "leaking is being traced" in str(caught.value) and "outer[0] = x[0]" in str(caught.value) and not any(outer.tolist())


def test_a_function_sees_later_writes_to_arrays_from_outside() -> None:
    """Computed or not when it was traced; it is traced again then, and only then."""
    shift, lazy, traces = ta.asarray([1.0, 2.0]), ta.ones(2) * 3.0, []

    @ta.compile
    def moved(x: ta.Array) -> ta.Array:
        traces.append(1)
        mine = ta.asarray(shift, copy=True)
        mine[1] = 0.0
        return x + shift * lazy + mine

    x = ta.zeros(2)
    assert moved(x).tolist() == [4, 6] and moved(x).tolist() == [4, 6] and len(traces) == 1
    lazy[0] = 5.0
    assert moved(x).tolist() == [6, 6]
    shift[1] = 10.0
    assert moved(x).tolist() == [6, 30] and moved(x).tolist() == [6, 30] and len(traces) == 3
    x[0] = 1.0
    assert moved(x).tolist() == [7, 30] and len(traces) == 3


def test_a_recordings_view_of_a_complex_argument_is_no_other_use() -> None:
    """A recording keeps the pairs of reals that it reads in place. Their memory is updated there at every later call."""
    state = torch.zeros(3, 5, dtype=torch.complex64)
    recorded, place = [torch.view_as_real(state), torch.zeros(2)], state.data_ptr()
    for views, stays in ((recorded, True), ((), False)):
        buffers = [state]
        take_donated((0,), ((5, 1),), buffers, views)
        assert (buffers[0].data_ptr() == place) == stays
    users_view, buffers = state[0], [state]
    take_donated((0,), ((5, 1),), buffers, recorded)
    assert buffers[0].data_ptr() != place and users_view.data_ptr() == place
