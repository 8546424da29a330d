"""The adjoint of a registered operator, tried against differences of the operator's own values.

Both are run by the interpreter, in f64 where the text can be: the adjoint as autodiff would write it into a graph, the value from its
expression, or from its compiled host text where the expression is beyond the operator table. Points are the same in every process.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilefuse.base.errors import ToolchainError, UserError
from tilefuse.base.source import Span
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.custom import CustomFunction, table_names
from tilefuse.ir.custom_expression import C_FLOAT_FUNCTIONS, table_text
from tilefuse.ir.dtype import DTYPES, F32, F64, DType
from tilefuse.ir.interpret import interpret
from tilefuse.ir.ops import SCALAR_OPS
from tilefuse.ir.scalar import NUMPY_DTYPES, Expr, Read, call
from tilefuse.passes.autodiff.scalar import instantiated, parsed_rule

Array = np.ndarray[Any, Any]
NUM_POINTS = 192
# Ranges that points are drawn from, a third of the points each: arithmetic with any sign, inverse functions, logarithms and roots. The
# functions of an operator overflow in none of them.
NEAR = ((-4.0, 4.0), (-1.0, 1.0), (0.0, 4.0))
# And where an operator has no finite value there.
FAR = ((4.0, 1024.0), (-1024.0, -4.0), (-1024.0, 1024.0))
# Constants of a text may be rounded: half the digits of f32 must be right.
RELATIVE = 2.0**-12
# Steps of the differences, in units of the largest: powers of the golden ratio, since an oscillation much shorter than the steps gives
# equal differences where the steps are multiples of each other.
STEPS = (1.0, 0.6180339887498949, 0.2360679774997897)


@dataclass(frozen=True, slots=True)
class _Operator:
    """A function's value and the adjoint of each argument as functions of arrays. eps: rounding error of one value, relative."""

    custom: CustomFunction
    dtype: DType
    eps: float
    value: Callable[[list[Array]], Array]

    def adjoint(self, number: int, points: list[Array], y: Array, g: Array) -> Array:
        """Gradient of argument `number` where `g` is the gradient of the result."""
        point_of = {f"x{n}": p for n, p in enumerate(points)} | {"y": y, "g": g}
        return _run(self.custom.adjoint[number], point_of, self.dtype)


def check_adjoint(custom: CustomFunction, text: str, where: Span | None = None) -> None:
    """Compares the adjoint of each argument with differences of the operator's value. `text`: the operator's expression on the host.

    Points where the value is not finite, or where differences of several step sizes or to both sides disagree (kinks, jumps, noise), say
    nothing. An operator that no compiler of this machine takes, where one is needed, is not tried.
    Raises: UserError with the operator, the argument, the point and both values at the point where they differ most.
    """
    op = SCALAR_OPS[custom.name]
    if not custom.adjoint or not any(DTYPES[d].is_float for d in op.dtypes) or op.result != "same" and not DTYPES[op.result].is_float:
        return
    operator = _operator(custom, text)
    for ranges in (NEAR, FAR):
        points, g = _points(op.arity, ranges, operator.dtype)
        try:
            y = operator.value(points)
        except ToolchainError:
            return
        if np.isfinite(y).any():
            for number in range(op.arity):
                _check_argument(operator, number, points, y, g, where)
            return


def _operator(custom: CustomFunction, text: str) -> _Operator:
    names = table_names(custom.arguments)
    try:
        rule = table_text(text, names, "")
    except UserError:  # a text for compilers alone
        wide = "f64" in SCALAR_OPS[custom.name].dtypes
        words = set(re.findall(r"[A-Za-z_]\w*", text))
        single = not wide or words & {*C_FLOAT_FUNCTIONS, "float"} or SCALAR_OPS[custom.name].result not in ("same", "f64")
        dtype = F64 if wide else F32
        eps = np.finfo(np.float32 if single else np.float64).eps
        return _Operator(custom, dtype, float(eps), lambda points: _called(custom.name, points, dtype))
    return _Operator(custom, F64, float(np.finfo(np.float64).eps),
                     lambda points: _run(rule, {f"x{n}": p for n, p in enumerate(points)}, F64))


def _points(arity: int, ranges: tuple[tuple[float, float], ...], dtype: DType) -> tuple[list[Array], Array]:
    """Points, one array an argument, and the result's adjoint at each: of either sign, and never near 1, which hides a missing factor."""
    random = np.random.default_rng(0)
    as_dtype = NUMPY_DTYPES[dtype.name]
    each = NUM_POINTS // len(ranges)
    points = np.concatenate([random.uniform(low, high, (each, arity)) for low, high in ranges])
    g = random.uniform(1.5, 3.0, NUM_POINTS) * random.choice([-1.0, 1.0], NUM_POINTS)
    return [np.ascontiguousarray(column).astype(as_dtype) for column in points.T], g.astype(as_dtype)


def _check_argument(operator: _Operator, number: int, points: list[Array], y: Array, g: Array, where: Span | None) -> None:
    with np.errstate(all="ignore"):
        slope, error = _differences(operator, number, points, y)
        ours = operator.adjoint(number, points, y, g).astype(np.float64) / g
        allowed = error + RELATIVE * np.maximum(np.abs(ours), np.abs(slope))
        # A NaN or an infinity of the adjoint is wrong as well.
        wrong = np.isfinite(slope) & ~(np.abs(ours - slope) <= allowed)
        excess = np.where(wrong, np.nan_to_num(np.abs(ours - slope) / allowed, nan=np.inf), -1.0)
    worst = int(np.argmax(excess))
    if not wrong[worst]:
        return
    custom = operator.custom
    at = ", ".join(f"{a} = {p[worst]:.6g}" for a, p in zip(custom.arguments, points, strict=True))
    raise UserError(f"adjoint of operator {custom.name} for {custom.arguments[number]} is wrong at {at}, y = {y[worst]:.6g}, g = "
                    f"{g[worst]:.6g}: it gives {ours[worst] * g[worst]:.6g}, differences of the operator's values give "
                    f"{slope[worst] * g[worst]:.6g}", where=where,
                    hint="mend adjoint=, or say check_gradient=False for one that is meant to differ (a surrogate gradient)")


def _differences(operator: _Operator, number: int, points: list[Array], y: Array) -> tuple[Array, Array]:
    """The derivative in one argument and the bound of its error; NaN where differences do not tell it.

    The step balances the cut series (step**2) with rounding (eps / step). Source: Press et al., Numerical Recipes, section 5.7.
    """
    size = operator.eps ** (1 / 3) * np.maximum(np.abs(points[number]), 1)
    values, distances = {}, {}
    for step in (*(-s for s in STEPS), *STEPS):
        moved = (points[number] + step * size).astype(points[number].dtype)
        values[step] = operator.value([*points[:number], moved, *points[number + 1:]]).astype(np.float64)
        distances[step] = moved.astype(np.float64) - points[number]
    y = y.astype(np.float64)
    wide, close, fine = ((values[s] - values[-s]) / (distances[s] - distances[-s]) for s in STEPS)
    left, right = ((values[s] - y) / distances[s] for s in (-STEPS[1], STEPS[1]))
    rounding = 16 * operator.eps * np.abs(y) / (size * STEPS[-1])
    error = 2 * (np.abs(wide - close) + np.abs(left - right)) + rounding
    agree = (np.abs(wide - close) <= np.abs(close) / 32 + rounding) & (np.abs(fine - close) <= np.abs(close) / 32 + rounding)
    smooth = np.abs(left - right) <= np.abs(close) / 8 + rounding
    return np.where(np.isfinite(y) & agree & smooth, close, np.nan), error


def _run(rule: str, points: Mapping[str, Array], dtype: DType) -> Array:
    """A text of the operator table, interpreted."""
    return _interpreted(lambda leaves: instantiated(parsed_rule(rule), leaves, dtype), points, dtype)


def _called(name: str, points: list[Array], dtype: DType) -> Array:
    """The operator itself, interpreted."""
    point_of = {f"x{n}": p for n, p in enumerate(points)}
    return _interpreted(lambda leaves: call(name, *leaves.values()), point_of, dtype)


def _interpreted(body: Callable[[Mapping[str, Read]], Expr], points: Mapping[str, Array], dtype: DType) -> Array:
    b = TensorBuilder("tried")
    count = len(next(iter(points.values())))
    for name in points:
        b.input(name, dtype, (count,))
    expression = body({name: b.read(name, (count,), ("i",)) for name in points})
    result = b.make_map("tried", b.expression_dtype(expression), (count,), ("i",), expression)
    return np.asarray(interpret(b.finish([result]), {n: a.astype(NUMPY_DTYPES[dtype.name]) for n, a in points.items()})[0])
