"""Registered scalar functions on arrays: one map each, broadcast and typed by the function's signature."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilefuse.arrays.array import Array, apply, checked_number
from tilefuse.arrays.nodes import user_span
from tilefuse.arrays.types import DEFAULT_FLOAT, NAME_OF, met_by_number, number_constant, promote_all
from tilefuse.base.errors import TypeMismatchError
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.building.tensor_elementwise import broadcast_shapes, converted
from tilefuse.ir.custom import CustomFunction
from tilefuse.ir.dtype import DTYPES, DType, compute_dtype
from tilefuse.ir.ops import SCALAR_OPS
from tilefuse.ir.scalar import Const, call, const


def operator_of(custom: CustomFunction) -> Callable[..., Array]:
    """The registered function as one of arrays and Python numbers."""
    name = custom.name

    def function(*given: Any) -> Array:
        if len(given) != len(custom.arguments):
            raise TypeMismatchError(f"{name} takes {len(custom.arguments)} arguments ({', '.join(custom.arguments)}), got {len(given)}",
                                    where=user_span())
        return applied(name, given)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{name}{custom.signature}: {SCALAR_OPS[name].doc}"
    return function


def applied(name: str, given: tuple[Any, ...]) -> Array:
    """A registered function of arrays and numbers. Raises: TypeMismatchError, ShapeError."""
    arrays = [g for g in given if isinstance(g, Array)]
    numbers = [g if isinstance(g, Array) else checked_number(name, g) for g in given]
    if not arrays:
        raise TypeMismatchError(f"{name} needs an array", where=user_span(), hint="asarray makes one of numbers")
    common = promote_all([a.dtype for a in arrays])
    for number in numbers:
        if not isinstance(number, Array):
            common = met_by_number(common, number)
    common = _accepted(name, common)
    place = iter(range(len(arrays)))
    arguments = tuple([next(place) if isinstance(n, Array) else number_constant(n, common) for n in numbers])
    return apply(lower_custom, arrays, (name, common, arguments))


def _accepted(name: str, common: DType) -> DType:
    """The type of the operands; integers become floats where only floats are accepted. Raises: TypeMismatchError."""
    taken = SCALAR_OPS[name].dtypes
    if compute_dtype(common).name in taken:
        return common
    if common.is_integer and DEFAULT_FLOAT.name in taken:
        return DEFAULT_FLOAT
    raise TypeMismatchError(f"{name} takes {', '.join(NAME_OF[DTYPES[t]] for t in taken)}, not {NAME_OF[common]}", where=user_span(),
                            hint="convert with astype")


def lower_custom(b: TensorBuilder, *given: object) -> str:
    """The map. given: operand names, then (function, common dtype, arguments): a constant, or the number of an operand."""
    *values, name, common, arguments = given
    assert isinstance(name, str) and isinstance(common, DType) and isinstance(arguments, tuple)
    names = [str(v) for v in values]
    work = compute_dtype(common)
    shape = broadcast_shapes(*(b.shape_of(n) for n in names))
    axes = axis_names(len(shape))
    operands = [const(a.value, work) if isinstance(a, Const) else
                converted(converted(b.read(names[a], shape, axes), b.dtype_of(names[a]), common), common, work) for a in arguments]
    op = SCALAR_OPS[name]
    natural = work if op.result == "same" else DTYPES[op.result]
    result_dtype = common if op.result == "same" else natural
    return b.make_map(name, result_dtype, shape, axes, converted(call(name, *operands), natural, result_dtype))
