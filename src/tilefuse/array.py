"""Symbolic arrays that follow the Python array API standard: `import tilefuse.array as ta`.

Operations record a graph; asking for data compiles what led to it into fused kernels and runs them. docs/arrays.md shows how.
"""
from __future__ import annotations

from math import e, inf, nan, pi
from typing import TYPE_CHECKING, NoReturn

from tilefuse.arrays.array import Array
from tilefuse.arrays.evaluation.compile import compile
from tilefuse.arrays.evaluation.evaluate import evaluate, program
from tilefuse.arrays.evaluation.gradients import grad, value_and_grad
from tilefuse.arrays.evaluation.nan import trace_nan
from tilefuse.arrays.evaluation.registered import register_operator
from tilefuse.arrays.evaluation.session import Session, Variable, placeholder, variable
from tilefuse.arrays.functions import fft, linalg, random
from tilefuse.arrays.functions.creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tril,
    triu,
    zeros,
    zeros_like,
)
from tilefuse.arrays.functions.elementwise import (
    abs,
    acos,
    acosh,
    add,
    angle,
    asin,
    asinh,
    astype,
    atan,
    atan2,
    atanh,
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    ceil,
    clip,
    conj,
    copysign,
    cos,
    cosh,
    digamma,
    divide,
    equal,
    erf,
    erfc,
    erfinv,
    exp,
    exp2,
    expm1,
    floor,
    floor_divide,
    fma,
    greater,
    greater_equal,
    hypot,
    imag,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    lgamma,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    negative,
    nextafter,
    not_equal,
    positive,
    pow,
    real,
    reciprocal,
    remainder,
    round,
    rsqrt,
    sigmoid,
    sign,
    signbit,
    sin,
    sinh,
    sqrt,
    square,
    subtract,
    tan,
    tanh,
    trunc,
    where,
)
from tilefuse.arrays.functions.inspection import (
    __array_namespace_info__,
    can_cast,
    finfo,
    iinfo,
    isdtype,
    result_type,
)
from tilefuse.arrays.functions.manipulation import (
    broadcast_arrays,
    broadcast_shapes,
    broadcast_to,
    concat,
    diagonal,
    expand_dims,
    flip,
    matrix_transpose,
    moveaxis,
    pad,
    permute_dims,
    repeat,
    reshape,
    roll,
    split,
    squeeze,
    stack,
    swapaxes,
    take,
    take_along_axis,
    tile,
    unstack,
)
from tilefuse.arrays.functions.products import (
    einsum,
    matmul,
    outer,
    tensordot,
    vecdot,
)
from tilefuse.arrays.functions.random import dropout
from tilefuse.arrays.functions.scan import scan
from tilefuse.arrays.functions.selection import (
    nonzero,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
)
from tilefuse.arrays.functions.sorting import (
    argsort,
    isin,
    searchsorted,
    sort,
    topk,
)
from tilefuse.arrays.functions.statistics import (
    all,
    any,
    argmax,
    argmin,
    count_nonzero,
    cumulative_prod,
    cumulative_sum,
    diff,
    log_softmax,
    logsumexp,
    max,
    mean,
    min,
    prod,
    softmax,
    std,
    sum,
    var,
)
from tilefuse.arrays.functions.writing import put
from tilefuse.arrays.own_gradient import custom_gradient, stop_gradient
from tilefuse.base.errors import nearest
from tilefuse.ir.dtype import BF16 as bfloat16
from tilefuse.ir.dtype import BOOL as bool
from tilefuse.ir.dtype import C64 as complex64
from tilefuse.ir.dtype import C128 as complex128
from tilefuse.ir.dtype import F8E4M3 as float8_e4m3fn
from tilefuse.ir.dtype import F8E5M2 as float8_e5m2
from tilefuse.ir.dtype import F16 as float16
from tilefuse.ir.dtype import F32 as float32
from tilefuse.ir.dtype import F64 as float64
from tilefuse.ir.dtype import I8 as int8
from tilefuse.ir.dtype import I16 as int16
from tilefuse.ir.dtype import I32 as int32
from tilefuse.ir.dtype import I64 as int64
from tilefuse.ir.dtype import U8 as uint8
from tilefuse.ir.dtype import U16 as uint16
from tilefuse.ir.dtype import U32 as uint32
from tilefuse.ir.dtype import U64 as uint64

# Name in other libraries -> name here.
_OTHER_NAMES = {
    "absolute": "abs", "amax": "max", "amin": "min", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh",
    "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh", "array": "asarray", "cat": "concat", "clamp": "clip",
    "concatenate": "concat", "cumprod": "cumulative_prod", "cumsum": "cumulative_sum", "dot": "matmul or vecdot", "hstack": "concat",
    "inv": "linalg.inv", "mul": "multiply", "norm": "linalg.vector_norm", "power": "pow", "rand": "random.uniform",
    "randn": "random.normal", "sub": "subtract", "transpose": "permute_dims or matrix_transpose", "unsqueeze": "expand_dims",
    "vstack": "concat", "mod": "remainder", "invert": "bitwise_invert", "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift", "unique": "unique_values", "masked_fill": "where", "masked_select": "x[mask]",
    "tensor": "asarray", "from_numpy": "asarray", "flatnonzero": "nonzero", "argwhere": "nonzero", "index_put": "put",
    "copy": "asarray(x, copy=True)",
}


if not TYPE_CHECKING:  # a checker should still find slips itself
    def __getattr__(name: str) -> NoReturn:
        hint = _OTHER_NAMES.get(name)
        told = f"; it is called {hint} here" if hint is not None else ""
        if not told:
            near = nearest(name, __all__)
            told = f"; {near}" if near else ""
        raise AttributeError(f"tilefuse.array has no {name!r}{told}", name=name)


newaxis = None
__array_api_version__ = "2024.12"

__all__ = [
    "__array_namespace_info__", "abs", "acos", "acosh", "add", "all", "angle", "any", "arange", "argmax", "argmin", "argsort", "Array",
    "asarray", "asin", "asinh", "astype", "atan", "atan2", "atanh", "bfloat16", "bitwise_and", "bitwise_invert",
    "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "bool", "broadcast_arrays", "broadcast_shapes",
    "broadcast_to", "can_cast", "ceil", "clip", "compile", "complex128", "complex64", "concat", "conj", "copysign", "cos", "cosh",
    "count_nonzero", "cumulative_prod", "cumulative_sum", "custom_gradient",
    "diagonal", "diff", "digamma", "divide", "dropout", "e", "einsum", "empty",
    "empty_like", "equal", "erf", "erfc", "erfinv", "evaluate", "exp", "exp2", "expand_dims", "expm1", "eye", "fft", "finfo", "flip",
    "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "floor", "floor_divide", "fma", "from_dlpack", "full",
    "full_like", "grad", "greater", "greater_equal", "hypot", "iinfo", "imag", "inf", "int16", "int32", "int64", "int8", "isdtype",
    "isfinite", "isin", "isinf", "isnan", "less", "less_equal", "lgamma", "linalg", "linspace", "log", "log10", "log1p", "log2",
    "log_softmax", "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor", "logsumexp", "matmul",
    "matrix_transpose", "max", "maximum", "mean", "meshgrid", "min", "minimum", "moveaxis", "multiply", "nan", "negative",
    "newaxis", "nextafter", "nonzero", "not_equal", "ones", "ones_like", "outer", "pad", "permute_dims", "pi", "placeholder",
    "positive", "pow", "prod", "program", "put", "random", "real", "reciprocal", "register_operator", "remainder", "repeat",
    "reshape", "result_type", "roll", "round", "rsqrt", "scan", "searchsorted", "Session", "sigmoid", "sign", "signbit", "sin",
    "sinh", "softmax", "sort", "split", "sqrt", "square", "squeeze", "stack", "std", "stop_gradient", "subtract", "sum", "swapaxes", "take",
    "take_along_axis", "tan", "tanh", "tensordot", "tile", "topk", "trace_nan", "tril", "triu", "trunc", "uint16", "uint32",
    "uint64", "uint8", "unique_all", "unique_counts", "unique_inverse", "unique_values", "unstack", "value_and_grad", "var",
    "Variable", "variable", "vecdot", "where", "zeros", "zeros_like",
]
