"""Operators that users register, as functions of arrays: types, gradients, fusion, errors at the user's line."""
from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tilefuse
import tilefuse.array as ta
from tilefuse.base.errors import ShapeError, ToolchainError, TypeMismatchError, UserError
from tilefuse.ir.custom import CUSTOM_FUNCTIONS, unregister_function
from tilefuse.ir.custom_expression import table_text
from tilefuse.ir.ops import SCALAR_OPS
from tilefuse.runtime.compilers.nvrtc import compile_cuda

HERE = Path(__file__).name


def squash(name: str = "squash", **given: object) -> Callable[..., ta.Array]:
    """x / (1 + b |x|), a soft sign with a slope."""
    arguments = {"signature": "(x: float, b: float) -> float", "cuda": "x / (1 + b * fabs(x))",
                 "adjoint": ("g / (1 + b * abs(x)) ** 2", "-g * y * y * sign(x)")} | given
    return ta.register_operator(name, **arguments)  # type: ignore[arg-type]


def test_values_broadcast_and_types() -> None:
    op = squash()
    x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    b = np.array([0.5, 1, 2, 4], np.float32)
    assert np.allclose(op(ta.asarray(x), ta.asarray(b)).numpy(), x / (1 + b * np.abs(x)), rtol=1e-6)
    assert np.allclose(op(ta.asarray(x), 2.0).numpy(), x / (1 + 2 * np.abs(x)), rtol=1e-6)
    for dtype in (ta.float16, ta.bfloat16, ta.float32, ta.float64):
        assert op(ta.ones(3, dtype=dtype), 1).dtype == dtype
    assert op(ta.asarray([1, 2]), 1).dtype == ta.float32


def test_gradients_are_those_of_the_same_thing_in_array_operations() -> None:
    op = squash()
    x = ta.asarray(np.array([-2.0, -0.3, 0.7, 3.0]))
    b = ta.asarray(np.array([0.5, 1.0, 2.0, 3.0]))
    mine = ta.grad(ta.sum(ta.exp(op(x, b))), (x, b))
    plain = ta.grad(ta.sum(ta.exp(x / (1 + b * ta.abs(x)))), (x, b))
    for a, c in zip(mine, plain, strict=True):
        assert np.allclose(a.numpy(), c.numpy(), rtol=1e-13)
    second = ta.grad(ta.sum(ta.grad(ta.sum(op(x, b)), x)), x)
    step = 1e-6
    up, down = (ta.grad(ta.sum(op(ta.asarray(x.numpy() + d), b)), x_) for d, x_ in ((0, x), (0, x)))
    assert up is not down
    moved = [ta.asarray(x.numpy() + d) for d in (step, -step)]
    high, low = (ta.grad(ta.sum(op(m, b)), m).numpy() for m in moved)
    assert np.allclose(second.numpy(), (high - low) / (2 * step), atol=1e-7)


def test_it_fuses_with_its_neighbours_and_prints_in_the_graph() -> None:
    op = squash()
    x = ta.placeholder((64, 128), name="x")
    made = tilefuse.apply_passes(ta.softmax(op(x * 2, 1.5)) + 1, ["fusion", "codegen"], device="h200")
    assert len(set(made["kernel"].values())) == 1
    assert "squash(" in "".join(str(n.body) for g in made["subgraph"].values() for n in g.nodes) or "squash" in made["plan"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_device_takes_every_type(dtype: str) -> None:
    op = squash()
    x = ta.placeholder((64,), dtype, "x")
    code, = set(tilefuse.apply_passes(op(x, 1.5), ["fusion", "codegen"], device="h200")["kernel"].values())
    assert compile_cuda(code).payload


def test_integers_booleans_and_other_results() -> None:
    parity = ta.register_operator("parity_of", "(a: int) -> bool", "(a & 1) != 0")
    assert parity(ta.asarray([1, 2, 3])).numpy().tolist() == [True, False, True]
    rank = ta.register_operator("rank_of", "(x: float) -> i32", "x > 1 ? 2 : x > 0 ? 1 : 0")
    found = rank(ta.asarray([-1.0, 0.5, 3.0]))
    assert found.dtype == ta.int32 and found.numpy().tolist() == [0, 1, 2]
    cube = ta.register_operator("cube_of", "(x: f32) -> f32", "T y2 = x * x; return y2 * x;")
    assert cube(ta.asarray([2.0, -3.0])).numpy().tolist() == [8.0, -27.0]
    with pytest.raises(TypeMismatchError, match="cube_of takes float32, not float64"):
        cube(ta.ones(2, dtype=ta.float64))


def test_errors_name_the_users_line() -> None:
    op = squash(adjoint=None)
    with pytest.raises(UserError, match="which has no adjoint") as caught:
        x = ta.ones(3)
        ta.grad(ta.sum(op(x, 1.0)), x)
    assert HERE in str(caught.value) and "adjoint=" in str(caught.value)
    with pytest.raises(ShapeError) as caught_shape:
        op(ta.ones(3), ta.ones(4))
    assert HERE in str(caught_shape.value)
    for given in ((), (ta.ones(2),), (1.0, 2.0), (ta.ones(2), "x")):
        with pytest.raises(TypeMismatchError, match="squash"):
            op(*given)
    with pytest.raises(UserError, match="exists already") as caught_name:
        squash("tanh")
    assert HERE in str(caught_name.value)


def test_a_compiled_program_finds_it_by_content() -> None:
    first = squash()(ta.ones(3), 1.0).numpy()
    unregister_function("squash")
    second = squash(cuda="x * b + 3", adjoint=("g * b", "g * x"))(ta.ones(4), 1.0).numpy()
    assert first.tolist() == [0.5] * 3 and second.tolist() == [4.0] * 4


def test_a_wrong_adjoint_is_an_error_at_registration() -> None:
    with pytest.raises(UserError, match=r"adjoint of operator squash for b is wrong at x = .*, b = .*: it gives .*values give") as caught:
        squash(adjoint=("g / (1 + b * abs(x)) ** 2", "-g * y * y"))
    assert HERE in str(caught.value) and "check_gradient=False" in str(caught.value)
    assert "squash" not in CUSTOM_FUNCTIONS
    squash()  # the name is free
    with pytest.raises(UserError, match="registered already"):
        squash(adjoint=("g", "g"))
    assert "squash" in CUSTOM_FUNCTIONS


@pytest.mark.parametrize("text, adjoint, wrong", [
    ("x > 0 ? x : 0", "x > 0 ? g : 0.0", "x >= -1 ? g : 0.0"),  # a kink
    ("max(x, T(0))", "(x > 0) * g", "(x < 0) * g"),
    ("round(x)", "0", "g"),  # constant between its jumps
    ("acos(x)", "-g / sqrt(1 - x * x)", "g / sqrt(1 - x * x)"),  # finite on a small domain alone
    ("sqrt(x - 100)", "0.5 * g / y", "0.5 * g * y"),  # and far from 0
    ("1 / (x * x * x)", "-3 * g / (x * x * x * x)", "-3 * g / (x * x)"),  # a pole
    ("tanh(x)", "g * (1 - y * y)", "1 - y * y"),  # without what arrives
    ("x * x", "2 * x * g", "2 * exp(log(x)) * g"),  # NaN where x is negative
    ("if (x < -1) return -1 - x; return x > 2 ? 0.5 * x * x : x;", "if (x < -1) return -g; else { T s = x; return x > 2 ? g * s : g; }",
     "if (x < -1) return g; return x > 2 ? g * x : g;"),
    ("T a = x * x; for (int i = 0; i < 2; ++i) a *= x; return a;", "T a = x * x; a *= 4 * x; return g * a;", "3 * g * x * x * x"),
])
def test_adjoints_are_tried_where_differences_tell_them(text: str, adjoint: str, wrong: str) -> None:
    ta.register_operator("tried_right", "(x: float) -> float", text, adjoint=adjoint)
    with pytest.raises(UserError, match="is wrong at x = "):
        ta.register_operator("tried_wrong", "(x: float) -> float", text, adjoint=wrong)
    ta.register_operator("tried_wrong", "(x: float) -> float", text, adjoint=wrong, check_gradient=False)


C_TEXTS = (
    "x * (1 - z) / z", "x > 0 ? x : z > 0 ? 5 : 6", "(x > 0) + (z > 0) * 3", "x > 0 || !(z > 1) && x ? 1.0 : 2.0", "!x", "-x - -z",
    "x - z - 2", "x / z / 2", "T(1) / 2 + (T)3 / 2", "int(x) * 1.0 + (int)z", "0.1f + 0.1", "max(x, z) - fmin(x, z)", "round(x) + rint(z)",
    "max(x, 0) - min(z, 1) + max(sqrt(x), z) + min(sqrt(x), z)", "fdim(z, x) + hypot(x, z)", "atan2(x, z) + copysign(x, z)",
    "fmod(x, z) + fabs(x)", "isnan(x / 0.0) ? 1 : signbit(x)", "1 - 2 * 3 + x * -z", "(x < z) == (z > 1)",
    "T s = 0; if (x > 0) s = 1; else if (z > 0) { s = 2; s += x; } s *= 10; return s;",
    "if (x > 1) if (z > 1) return 2.0; else return 3.0; return 4.0;", "int n = x * 3; T a = n, b = a + 1; return a * b - n;",
    "bool p = x > z; return p + 1.0;", "const T a = x * x, b = a + z; return a > 2 && b > 3 ? a : b;")


def test_texts_mean_what_the_compiler_makes_of_them() -> None:
    """Every text read for an adjoint has the value that g++ gives it; one kernel of all."""
    rng = np.random.default_rng(5)
    x, z = np.concatenate([rng.uniform(-3, 3, (2, 61)), [[0.5, -0.5, 1.5, -2.5, 0.0], [2.5, 0.5, 1.5, -2.5, 1.0]]], axis=1)
    functions = {name: lambda *given, op=op: op.meaning(*np.broadcast_arrays(*given)) for name, op in SCALAR_OPS.items()}
    compiled = [ta.register_operator(f"text_{n}", "(x: f64, z: f64) -> f64", text)(ta.asarray(x), ta.asarray(z))
                for n, text in enumerate(C_TEXTS)]
    ta.evaluate(*compiled)
    for text, result in zip(C_TEXTS, compiled, strict=True):
        with np.errstate(all="ignore"):
            value = eval(table_text(text, {"x": "x0", "z": "x1"}, "text"), functions, {"x0": x, "x1": z})
        # A rounding for each of a few operations, and the libraries' own error.
        assert np.allclose(value, result.numpy(), rtol=1e-14, equal_nan=True), text


@pytest.mark.parametrize("kind", ["float", "int"])
def test_max_and_min_take_a_literal_on_the_host_and_the_device(kind: str) -> None:
    clip = ta.register_operator(f"clip_{kind}", f"(x: {kind}) -> {kind}", "min(max(x, 0), 3)", adjoint="x > 0 && x < 3 ? g : 0")
    x = ta.asarray([-1, 2, 5]) if kind == "int" else ta.asarray([-1.0, 2.0, 5.0, np.nan], dtype=ta.float32)
    assert clip(x).numpy().tolist() == ([0, 2, 3] if kind == "int" else [0, 2, 3, 0])
    for dtype in (("int32", "int64") if kind == "int" else ("float16", "float32", "float64")):
        made = tilefuse.apply_passes(clip(ta.placeholder((64,), dtype, "x")), ["fusion", "codegen"], device="h200")
        code, = set(made["kernel"].values())
        assert "tf_custom_clip" in code.source and compile_cuda(code).payload


def test_single_precision_is_tried_with_its_rounding() -> None:
    body = "T a = x; for (int i = 0; i < 2; ++i) a *= expf(x) + x; return a;"
    right = "T e = expf(x) + x; return g * (e * e + 2 * x * e * (expf(x) + 1));"
    ta.register_operator("single_right", "(x: f32) -> f32", body, adjoint=right)
    with pytest.raises(UserError, match="adjoint of operator single_wrong for x is wrong"):
        ta.register_operator("single_wrong", "(x: f32) -> f32", body, adjoint=right.replace("+ 1", ""))


def test_oscillations_shorter_than_the_steps_say_nothing() -> None:
    ta.register_operator("fast_wave", "(x: float) -> float", "sin(1e8 * x)", adjoint="g * 1e8 * cos(1e8 * x)")


def test_a_surrogate_gradient_is_the_users_own() -> None:
    step = ta.register_operator("hard_step", "(x: float) -> float", "x > 0 ? 1 : 0", adjoint="fabs(x) < 1 ? g : 0", check_gradient=False)
    x = ta.asarray([-2.0, -0.5, 0.5, 2.0])
    assert ta.grad(ta.sum(step(x)), x).numpy().tolist() == [0, 1, 1, 0]


def test_a_compilers_refusal_names_the_registration() -> None:
    """On the host and through NVRTC, among operators that compile."""
    fine = ta.register_operator("compiles_well", "(x: float) -> float", "x + 3")
    bad_line = line_before()
    bad = ta.register_operator("compiles_not", "(x: float) -> float", "T a = frobnicate(x); return a;")
    place = rf"^operator compiles_not, registered at \S*{HERE}:{bad_line + 1}, does not compile: "
    with pytest.raises(ToolchainError, match=place + "the C\\+\\+ compiler refuses kernel"):
        (bad(fine(ta.ones(4))) + 1).numpy()
    x = ta.placeholder((64,), "float16", "x")
    code, = set(tilefuse.apply_passes(bad(fine(x)), ["fusion", "codegen"], device="h200")["kernel"].values())
    assert "tf_custom_compiles_well" in code.source
    with pytest.raises(ToolchainError, match=place + "NVRTC cannot compile kernel"):
        compile_cuda(code)


def line_before() -> int:
    """Number of the line that calls this."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno
