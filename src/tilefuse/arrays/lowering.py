"""Lowerings of elementwise array functions: one map each, computed in the compute dtype and rounded once.

`ELEMENTWISE` is the table: a function's name, which operand types it takes, and its expression.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilefuse.arrays.nodes import user_span
from tilefuse.arrays.types import DEFAULT_FLOAT, NAME_OF, Scalar, met_by_number, promote_all
from tilefuse.base.errors import TypeMismatchError
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.building.tensor_elementwise import broadcast_shapes, converted
from tilefuse.ir.dtype import BOOL, F32, I32, DType, compute_dtype
from tilefuse.ir.monoids import log_added
from tilefuse.ir.scalar import Const, Expr, call, const

Body = Callable[..., Expr]


# Operand and result classes of a function (`takes` of its row).
#   numeric   numbers -> their type           float    floats (integers become the default float) -> their type
#   compare   anything -> bool                logical  bool -> bool
#   bitwise   integers and bool -> their type shift    integers -> their type
#   any       anything -> its type            test     numbers -> bool (computed on floats)
@dataclass(frozen=True, slots=True)
class Elementwise:
    """One row of the table. body: (compute dtype, operand expressions) -> expression."""

    name: str
    arity: int
    takes: str
    body: Body
    doc: str
    whole: bool = False  # integers are already what the function would make of them (floor, ceil, ...)

    @property
    def is_of_complex(self) -> bool:
        """Whether it takes complex numbers too."""
        return self.name in OF_COMPLEX


ELEMENTWISE: dict[str, Elementwise] = {}
# The functions that the standard gives to complex numbers, and those of ours that have a meaning for them.
OF_COMPLEX = frozenset((
    "abs", "acos", "acosh", "add", "angle", "asin", "asinh", "atan", "atanh", "conj", "cos", "cosh", "divide", "equal", "exp", "expm1",
    "imag", "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "multiply", "negative", "not_equal", "positive", "pow", "real",
    "reciprocal", "round", "sign", "sin", "sinh", "sqrt", "square", "subtract", "tan", "tanh"))


def _row(name: str, arity: int, takes: str, body: Body | str, doc: str, whole: bool = False) -> None:
    function = _called(body) if isinstance(body, str) else body
    ELEMENTWISE[name] = Elementwise(name, arity, takes, function, doc, whole)


def _called(fn: str) -> Body:
    return lambda t, *xs: call(fn, *xs)


for _name, _fn, _doc in (
    ("add", "add", "x1 + x2"), ("subtract", "sub", "x1 - x2"), ("multiply", "mul", "x1 * x2"),
    ("floor_divide", "floordiv", "x1 / x2 rounded down"),
    ("remainder", "mod", "the remainder of x1 / x2, with the sign of x2"), ("pow", "pow", "x1 to the power x2"),
    ("maximum", "maximum", "the larger; NaN where either is NaN"), ("minimum", "minimum", "the smaller; NaN where either is NaN"),
):
    _row(_name, 2, "numeric", _fn, _doc)
for _name, _fn, _doc in (
    ("divide", "div", "x1 / x2, correctly rounded"), ("atan2", "atan2", "the angle of the point (x2, x1)"),
    ("hypot", "hypot", "sqrt(x1^2 + x2^2) without overflow"), ("copysign", "copysign", "|x1| with the sign of x2"),
    ("nextafter", "nextafter", "the next number after x1 towards x2"),
):
    _row(_name, 2, "float", _fn, _doc)
for _name, _fn, _doc in (
    ("equal", "eq", "x1 == x2"), ("not_equal", "ne", "x1 != x2"), ("less", "lt", "x1 < x2"), ("less_equal", "le", "x1 <= x2"),
    ("greater", "gt", "x1 > x2"), ("greater_equal", "ge", "x1 >= x2"),
):
    _row(_name, 2, "compare", _fn, _doc)
for _name in ("logical_and", "logical_or", "logical_xor"):
    _row(_name, 2, "logical", _name, _name.replace("logical_", "") + " of truth values")
_row("logical_not", 1, "logical", "logical_not", "not of a truth value")
for _name, _fn in (("bitwise_and", "bit_and"), ("bitwise_or", "bit_or"), ("bitwise_xor", "bit_xor")):
    _row(_name, 2, "bitwise", _fn, f"{_name.replace('bitwise_', '')} bit by bit")
_row("bitwise_invert", 1, "bitwise", "bit_not", "every bit turned over")
_row("bitwise_left_shift", 2, "shift", "shift_left", "x1 with its bits moved up by x2")
_row("bitwise_right_shift", 2, "shift", "shift_right", "x1 with its bits moved down by x2, keeping the sign")
for _name, _doc in (
    ("exp", "e to the x"), ("exp2", "2 to the x"), ("expm1", "exp(x) - 1 without cancellation"), ("log", "natural logarithm"),
    ("log2", "logarithm to base 2"), ("log10", "logarithm to base 10"), ("log1p", "log(1 + x) without cancellation"),
    ("sqrt", "square root"), ("rsqrt", "1 / sqrt(x)"), ("reciprocal", "1 / x"), ("sin", "sine"), ("cos", "cosine"), ("tan", "tangent"),
    ("asin", "inverse sine"), ("acos", "inverse cosine"), ("atan", "inverse tangent"), ("sinh", "hyperbolic sine"),
    ("cosh", "hyperbolic cosine"), ("tanh", "hyperbolic tangent"), ("asinh", "inverse hyperbolic sine"),
    ("acosh", "inverse hyperbolic cosine"), ("atanh", "inverse hyperbolic tangent"), ("erf", "error function"),
    ("erfc", "1 - erf(x) without cancellation"), ("erfinv", "inverse of erf"), ("lgamma", "log |gamma(x)|"),
    ("digamma", "derivative of lgamma"), ("sigmoid", "1 / (1 + exp(-x))"),
):
    _row(_name, 1, "float", _name, _doc)
_row("negative", 1, "numeric", "neg", "-x")
_row("abs", 1, "numeric", "abs", "absolute value")
_row("sign", 1, "numeric", "sign", "-1, 0 or 1; NaN stays NaN")
_row("square", 1, "numeric", lambda t, x: call("mul", x, x), "x * x")
_row("positive", 1, "numeric", lambda t, x: x, "x", whole=True)
_row("real", 1, "numeric", lambda t, x: call("real", x) if t.is_complex else x, "the real part", whole=True)
_row("conj", 1, "numeric", lambda t, x: call("conj", x) if t.is_complex else x, "the complex conjugate", whole=True)
_row("imag", 1, "numeric", lambda t, x: call("imag", x) if t.is_complex else const(0, t), "the imaginary part; 0 for real numbers")
_row("angle", 1, "float", lambda t, x: call("angle", x) if t.is_complex else call("atan2", const(0, t), x),
     "the angle of the complex number, in (-pi, pi]")
for _name, _doc in (("floor", "largest integer not above x"), ("ceil", "smallest integer not below x"),
                    ("trunc", "nearest integer toward zero"), ("round", "nearest integer, halves to even")):
    _row(_name, 1, "numeric", _name, _doc, whole=True)
for _name, _doc in (("isnan", "whether x is NaN"), ("isinf", "whether x is infinite"),
                    ("isfinite", "whether x is neither infinite nor NaN"),
                    ("signbit", "whether the sign of x is minus, also of -0.0 and NaN")):
    _row(_name, 1, "test", _name, _doc)


_row("logaddexp", 2, "float", lambda t, a, b: log_added(a, b, t), "log(exp(x1) + exp(x2)) without overflow")


def operand_dtype(row: Elementwise, dtypes: Sequence[DType], numbers: Sequence[Scalar]) -> DType:
    """The type that the operands of a function are brought to.

    Raises: TypeMismatchError where the function does not take it.
    """
    common = promote_all(dtypes)
    for number in numbers:
        common = met_by_number(common, number)
    takes = row.takes
    if common.is_complex:
        if not row.is_of_complex:
            raise TypeMismatchError(f"{row.name} takes real numbers, not {NAME_OF[common]}", where=user_span(),
                                    hint="real(x), imag(x) and abs(x) are real")
        return common
    if takes == "float" and not common.is_float:
        if common.kind == "bool":
            raise TypeMismatchError(f"{row.name} takes numbers, not bool", where=user_span(), hint="convert with astype")
        return DEFAULT_FLOAT
    fine = {
        "numeric": common.kind != "bool", "logical": common.kind == "bool", "bitwise": not common.is_float,
        "shift": common.is_integer, "test": common.kind != "bool",
    }.get(takes, True)
    if not fine:
        kinds = {"numeric": "numbers", "logical": "bool", "bitwise": "integers or bool", "shift": "integers", "test": "numbers"}[takes]
        hint = "compare with 0 first" if takes == "logical" else "convert with astype"
        raise TypeMismatchError(f"{row.name} takes {kinds}, not {NAME_OF.get(common, common)}", where=user_span(), hint=hint)
    return common


def lower_elementwise(b: TensorBuilder, *given: object) -> str:
    """The map of a row of the table. given: operand names, then (name of the row, common dtype, arguments): an argument is a constant
    of the common dtype or the number of an operand."""
    *values, name, common, arguments = given
    assert isinstance(name, str) and isinstance(common, DType) and isinstance(arguments, tuple)
    row = ELEMENTWISE[name]
    names = [str(v) for v in values]
    if row.whole and (common.is_integer or common == BOOL):
        return b.cast(names[0], common)
    if row.takes == "test" and common.is_integer:
        if name != "signbit":
            return b.full(b.shape_of(names[0]), name == "isfinite", BOOL)
        return b.elementwise("lt", names[0], 0)
    work = _work_dtype(row, common)
    shape = broadcast_shapes(*(b.shape_of(n) for n in names))
    axes = axis_names(len(shape))
    operands = [const(a.value, work) if isinstance(a, Const) else _operand(b, names[a], common, work, shape, axes) for a in arguments]
    body = row.body(work, *operands)
    natural = b.expression_dtype(body)
    result_dtype = common if natural == work else natural
    return b.make_map(name, result_dtype, shape, axes, converted(body, natural, result_dtype))


def _operand(b: TensorBuilder, x: str, common: DType, work: DType, shape: Sequence[int], axes: Sequence[str]) -> Expr:
    """An operand's element, brought to the common type and from there to the compute dtype."""
    return converted(converted(b.read(x, shape, axes), b.dtype_of(x), common), common, work)


def _work_dtype(row: Elementwise, common: DType) -> DType:
    if common == BOOL:
        return BOOL if row.takes in ("logical", "bitwise") else I32
    work = compute_dtype(common)
    return F32 if row.takes in ("float", "test") and work.is_integer else work


def lower_full(b: TensorBuilder, shape: tuple[int, ...], constant: Const) -> str:
    """A map of a constant."""
    return b.full(shape, constant.value, constant.dtype)
