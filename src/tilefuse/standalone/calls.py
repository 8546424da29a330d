"""Library calls of a program as plain shapes: products, convolutions, attention. Other calls are refused.

A shape says extents, and strides in elements of every operand, with views, transposes and broadcasts worked in; the C++ support
(`sources/`) knows nothing else of the call.
"""
from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tilefuse.base.errors import UnsupportedOpError
from tilefuse.runtime.calls.library import int_list, padding_of
from tilefuse.runtime.spec import Attribute, LibraryStep, ProgramSpec, Value

Fields = dict[str, object]
Attributes = Mapping[str, Attribute]


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a call: the value, and the strides of its dimensions. Units: elements."""

    value: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A library call in the words of the C++ support.

    kind: "product", "convolution" or "attention". shape: the fields of its shape, in order. operands: in the order of `run`, None
    where there is none. constant: number of the operand that the support may pack once, -1 for none.
    """

    kind: str
    shape: Fields
    operands: tuple[Operand | None, ...]
    result: str
    constant: int = -1


@dataclass(frozen=True, slots=True)
class Told:
    """Places of a program's values in the user's model."""

    places: Mapping[str, str] = field(default_factory=dict)

    def of(self, name: str) -> str | None:
        """The user's line or module of a value; None where it is unknown."""
        return self.places.get(name) or None


def told_places(spec: ProgramSpec) -> Told:
    """Places of values from the program's explanation."""
    if not spec.explanation:
        return Told()
    nodes = json.loads(spec.explanation).get("graph", {}).get("nodes", [])
    return Told({n["name"]: ", ".join(part for part in (n["place"], f"in {n['path']}" if n["path"] else "") if part) for n in nodes})


def operand_of(value: Value) -> Operand:
    """A value as an operand."""
    return Operand(value.name, value.dtype, value.shape, value.strides)


def call_of(step: LibraryStep, values: Mapping[str, Value], told: Told) -> Call:
    """The call of a library step.

    Raises: UnsupportedOpError, naming the operator and the user's line, for one that has no form outside Python.
    """
    attributes = dict(step.attributes)
    results = [n for n in step.results if n]
    where = next((place for n in results if (place := told.of(n))), None)
    make = _CALLS.get(step.operator)
    if make is None:
        raise UnsupportedOpError(
            f"an exported program cannot call {step.operator} (it makes {', '.join(f'%{n}' for n in results)})", where=where,
            hint=HINTS.get(step.operator, "compute it outside the exported program, or write it with operators that become kernels"))
    operands = [operand_of(values[n]) for n in step.operands]
    if len(results) != 1 or step.results[0] != results[0]:
        raise UnsupportedOpError(f"an exported program has the first result of {step.operator} only, and this one reads "
                                 f"{', '.join(f'%{n}' for n in results)}", where=where,
                                 hint="logarithms of sums and the like belong to training: export the model in evaluation")
    try:
        return make(attributes, operands, operand_of(values[results[0]]), values)
    except UnsupportedOpError as error:
        raise UnsupportedOpError(str(error.message), where=where, hint=error.hint) from error


HINTS = {
    "random_seed": "call model.eval(), or compute what is random outside the exported program",
    "convolution_backward": "export the model in evaluation: gradients of convolutions are not exported",
}


# ---------------------------------------------------------------- products

def _product(attributes: Attributes, operands: Sequence[Operand], d: Operand, values: Mapping[str, Value]) -> Call:
    a, b = operands[0], operands[1]
    if a.dtype in ("f8e4m3", "f8e5m2", "bool"):
        raise UnsupportedOpError(f"an exported program cannot multiply matrices of {a.dtype}", hint="convert the operands to f32")
    if attributes.get("dtype"):
        raise UnsupportedOpError(f"an exported program cannot multiply matrices of {a.dtype} into {attributes['dtype']}",
                                 hint="convert the operands to the type of the result")
    bias = operands[2] if attributes.get("has_bias") else None
    if bias is not None and bias.dtype != a.dtype:
        raise UnsupportedOpError(f"an exported product of {a.dtype} cannot add a bias of {bias.dtype}", hint="convert the bias")
    a_row, a_inner, rows, inner = _matrix(a, bool(attributes.get("transpose_a")), is_left=True)
    b_inner, b_column, _, columns = _matrix(b, bool(attributes.get("transpose_b")), is_left=False)
    ends = (len(a.shape) > 1) + (len(b.shape) > 1)
    d_row = d.strides[-ends] if len(a.shape) > 1 else 0
    d_column = d.strides[-1] if len(b.shape) > 1 else 0
    lead = d.shape[:len(d.shape) - ends]
    of_bias = _broadcast(bias, d.shape) if bias is not None else (0,) * len(d.shape)
    bias_row = of_bias[-ends] if len(a.shape) > 1 else 0
    bias_column = of_bias[-1] if len(b.shape) > 1 else 0
    batches = _joined([
        (extent, *strides) for extent, *strides in zip(
            lead, _leading(a, lead), _leading(b, lead), of_bias[:len(lead)], d.strides[:len(lead)], strict=True)])
    for number, (extent, at_a, at_b, at_bias, at_d) in enumerate(batches):
        if at_b == 0 and extent > rows:
            # Any dimension that the second operand lacks may be the rows; the longest gives the fewest products.
            batches[number] = (rows, a_row, 0, bias_row, d_row)
            rows, a_row, bias_row, d_row = extent, at_a, at_bias, at_d
            break
    shape: Fields = {
        "dtype": a.dtype, "rows": rows, "columns": columns, "inner": inner, "a_row": a_row, "a_inner": a_inner, "b_inner": b_inner,
        "b_column": b_column, "bias_row": bias_row, "bias_column": bias_column, "d_row": d_row, "d_column": d_column,
        "batches": [dict(zip(("extent", "a", "b", "bias", "d"), row)) for row in batches if row[0] != 1], "has_bias": bias is not None,
        "tf32": attributes.get("precision") == "tf32"}
    return Call("product", shape, (a, b, bias), d.value, 1 if values[b.value].role == "constant" or _base_is_constant(b, values) else -1)


def _base_is_constant(operand: Operand, values: Mapping[str, Value]) -> bool:
    value = values[operand.value]
    while value.role == "view":
        value = values[value.base]
    return value.role == "constant"


def _matrix(x: Operand, turned: bool, is_left: bool) -> tuple[int, int, int, int]:
    """Strides of the two dimensions of a matrix, then their extents; a vector is a row on the left and a column on the right."""
    if len(x.shape) == 1:
        return (0, x.strides[0], 1, x.shape[0]) if is_left else (x.strides[0], 0, x.shape[0], 1)
    (rows, columns), (row, column) = x.shape[-2:], x.strides[-2:]
    return (column, row, columns, rows) if turned else (row, column, rows, columns)


def _leading(x: Operand, lead: Sequence[int]) -> tuple[int, ...]:
    """Strides of an operand's batch dimensions, broadcast to `lead`."""
    own = Operand(x.value, x.dtype, x.shape[:-2], x.strides[:-2])
    return _broadcast(own, lead)


def _broadcast(x: Operand, shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of an operand that is broadcast to a shape: 0 along repeated dimensions."""
    missing = len(shape) - len(x.shape)
    return (0,) * missing + tuple(0 if n == 1 else s for n, s in zip(x.shape, x.strides))


def _joined(rows: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Batch dimensions (extent, strides ...) with neighbours made one where all operands allow it, and none of extent 1."""
    merged: list[tuple[int, ...]] = []
    for row in rows:
        if row[0] == 1:
            continue
        if merged and all(outer == inner * row[0] for outer, inner in zip(merged[-1][1:], row[1:])):
            merged[-1] = (merged[-1][0] * row[0], *row[1:])
        else:
            merged.append(row)
    return merged


# ---------------------------------------------------------------- convolutions

def _convolution(attributes: Attributes, operands: Sequence[Operand], y: Operand, values: Mapping[str, Value]) -> Call:
    x, w = operands[0], operands[1]
    if x.dtype not in ("f64", "f32", "f16", "bf16"):
        raise UnsupportedOpError(f"an exported program cannot convolve {x.dtype}", hint="convert the operands to f32")
    bias = operands[2] if attributes.get("has_bias") else None
    rank, transposed = len(x.shape) - 2, bool(attributes.get("transposed"))
    if not 1 <= rank <= 3:
        raise UnsupportedOpError(f"an exported convolution has one to three spatial dimensions, not {rank}", hint="reshape its operands")
    symmetric, extra = padding_of(attributes, rank)
    pairs = [(p, p) for p in symmetric]
    if extra is not None:
        if transposed:
            raise UnsupportedOpError("a transposed convolution with unequal padding at the two ends", hint="pad outside the convolution")
        pairs = [(extra[2 * n], extra[2 * n + 1]) for n in reversed(range(rank))]
    groups = attributes.get("groups", 1)
    assert isinstance(groups, int)
    ones = (1,) * (3 - rank)
    last = any(_lies(o, last=True) and not _lies(o, last=False) for o in (x, w, y))
    shape: Fields = {
        "dtype": x.dtype, "images": x.shape[0], "groups": groups, "in_channels": x.shape[1] // groups,
        "out_channels": y.shape[1] // groups,
        "in": (*ones, *x.shape[2:]), "out": (*ones, *y.shape[2:]), "window": (*ones, *w.shape[2:]),
        "step": (*ones, *int_list(attributes.get("stride"), 1, rank)),
        "padding_begin": (*(0 for _ in ones), *(p for p, _ in pairs)), "padding_end": (*(0 for _ in ones), *(p for _, p in pairs)),
        "dilation": (*ones, *int_list(attributes.get("dilation"), 1, rank)),
        "x": _image_strides(x, last), "w": _image_strides(w, last), "y": _image_strides(y, last),
        "bias": bias.strides[0] if bias is not None else 0, "transposed": transposed, "has_bias": bias is not None,
        "tf32": attributes.get("precision", "default") == "default"}
    return Call("convolution", shape, (x, w, bias), y.value, 1 if _base_is_constant(w, values) else -1)


def dense_strides(shape: Sequence[int], last: bool) -> tuple[int, ...]:
    """Strides of a dense tensor of images, row-major or (`last`) with its channels side by side. Units: elements."""
    order = (0, *range(2, len(shape)), 1) if last else tuple(range(len(shape)))
    strides, step = [0] * len(shape), 1
    for d in reversed(order):
        strides[d] = step
        step *= shape[d]
    return tuple(strides)


def _lies(x: Operand, last: bool) -> bool:
    return all(n == 1 or have == want for n, have, want in zip(x.shape, x.strides, dense_strides(x.shape, last), strict=True))


def _image_strides(x: Operand, last: bool) -> tuple[int, ...]:
    """Strides over image, channel and three spatial dimensions; those of extent 1 as the layout of the others has them."""
    strides = x.strides
    for kind in (last, not last):
        if _lies(x, kind):
            strides = dense_strides(x.shape, kind)
            break
    missing = 5 - len(x.shape)
    outer = strides[2] * x.shape[2] if missing else 0
    return (*strides[:2], *(outer,) * missing, *strides[2:])


# ---------------------------------------------------------------- attention

def _attention(attributes: Attributes, operands: Sequence[Operand], y: Operand, values: Mapping[str, Value]) -> Call:
    mask = operands[3] if attributes.get("has_mask") else None
    return _attention_call(operands[0], operands[1], operands[2], mask, y, attributes.get("scale"), attributes.get("dropout", 0.0),
                           bool(attributes.get("causal")))


def _of_torch(*names: str) -> Callable[..., Call]:
    """Attention as an operator of torch, whose arguments by place are called `names`."""
    def make(attributes: Attributes, operands: Sequence[Operand], y: Operand, values: Mapping[str, Value]) -> Call:
        args, kwargs = attributes.get("args", ()), attributes.get("kwargs", ())
        assert isinstance(args, tuple) and isinstance(kwargs, tuple)
        arguments: dict[str, Attribute] = dict(zip(names, args))
        arguments |= {str(pair[0]): pair[1] for pair in kwargs if isinstance(pair, tuple)}

        def operand(name: str) -> Operand | None:
            template = arguments.get(name)
            if template is None:
                return None
            assert isinstance(template, tuple) and template[0] == "%" and isinstance(template[1], int)
            return operands[template[1]]

        q, k, v = operand("query"), operand("key"), operand("value")
        assert q is not None and k is not None and v is not None
        return _attention_call(q, k, v, operand("mask") or operand("attn_mask"), y, arguments.get("scale"), arguments.get("dropout_p", 0.0),
                               bool(arguments.get("is_causal")))

    return make


def _attention_call(q: Operand, k: Operand, v: Operand, mask: Operand | None, y: Operand, scale: Attribute, dropout: Attribute,
                    causal: bool) -> Call:
    if dropout:
        raise UnsupportedOpError("an exported program has no dropout in attention", hint="call model.eval()")
    if q.dtype not in ("f32", "f16", "bf16", "f64"):
        raise UnsupportedOpError(f"an exported program has no attention over {q.dtype}", hint="convert the operands to f32")
    if mask is not None and mask.dtype not in ("bool", q.dtype):
        raise UnsupportedOpError(f"an exported attention over {q.dtype} cannot add a mask of {mask.dtype}", hint=f"convert it to {q.dtype}")
    lead = y.shape[:-2]
    groups = q.shape[-3] // k.shape[-3] if len(lead) and len(k.shape) > 2 and k.shape[-3] not in (1, q.shape[-3]) else 1
    of_mask = _broadcast(mask, (*lead, q.shape[-2], k.shape[-2])) if mask is not None else (0,) * (len(lead) + 2)

    def leading(x: Operand) -> tuple[int, ...]:
        if x.shape[-3:-2] == lead[-1:] or groups == 1:
            return _split(_leading(x, lead))
        # A head of keys serves `groups` heads of queries, one after the other.
        return (*_leading(Operand(x.value, x.dtype, (*x.shape[:-3], 1, *x.shape[-2:]), x.strides), lead)[:-1], x.strides[-3], 0)

    def _split(strides: tuple[int, ...]) -> tuple[int, ...]:
        return strides if groups == 1 else (*strides[:-1], strides[-1] * groups, strides[-1])

    extents = lead if groups == 1 else (*lead[:-1], lead[-1] // groups, groups)
    rows = _joined([(extent, *strides) for extent, *strides in zip(
        extents, leading(q), leading(k), leading(v), _split(of_mask[:-2]), _split(y.strides[:-2]), strict=True)])
    factor = float(scale) if isinstance(scale, int | float) else 1 / math.sqrt(q.shape[-1])
    shape: Fields = {
        "dtype": q.dtype, "rows": q.shape[-2], "keys": k.shape[-2], "depth": q.shape[-1], "width": v.shape[-1],
        "q_row": q.strides[-2], "q_column": q.strides[-1], "k_row": k.strides[-2], "k_column": k.strides[-1], "v_row": v.strides[-2],
        "v_column": v.strides[-1], "mask_row": of_mask[-2], "mask_column": of_mask[-1], "y_row": y.strides[-2], "y_column": y.strides[-1],
        "batches": [dict(zip(("extent", "q", "k", "v", "mask", "y"), row)) for row in rows], "scale": factor, "causal": causal,
        "mask": 0 if mask is None else 1 if mask.dtype == "bool" else 2}
    return Call("attention", shape, (q, k, v, mask), y.value)


_FLASH = _of_torch("query", "key", "value", "dropout_p", "is_causal")
_WITH_MASK = _of_torch("query", "key", "value", "mask", "compute_log_sumexp", "dropout_p", "is_causal")
_CALLS: Mapping[str, Callable[[Attributes, Sequence[Operand], Operand, Mapping[str, Value]], Call]] = {
    "matmul": _product,
    "convolution": _convolution,
    "attention": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _FLASH,
    "aten._scaled_dot_product_flash_attention.default": _FLASH,
    "aten._scaled_dot_product_efficient_attention.default": _WITH_MASK,
    "aten._scaled_dot_product_cudnn_attention.default": _WITH_MASK,
    "aten._scaled_dot_product_fused_attention_overrideable.default": _of_torch("query", "key", "value", "mask", "dropout_p", "is_causal"),
}
EXPORTED_OPERATORS = tuple(_CALLS)
