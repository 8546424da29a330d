"""Library operators: the calls of a program that torch, cuBLAS, cuDNN or a framework kernel performs.

`call_library` runs one call on torch tensors and gives all its results. Operators named `<namespace>.<op>.<overload>`
are called through torch's dispatcher by a template of literals and operand numbers; the others are listed in `LIBRARY`.
Nothing here knows the graph: operands and plain attributes come in, tensors go out. Complex numbers travel as pairs of reals
in a last dimension of two (torch's `view_as_real`): the call sees complex tensors, the program does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Union

import torch

from tilefuse.base.errors import NameLookupError, UnsupportedOpError, nearest
from tilefuse.runtime.calls.grouped_products import grouped_product
from tilefuse.runtime.calls.strided import as_traced
from tilefuse.runtime.calls.widened_products import widened_product

Attribute = Union[int, float, bool, str, None, tuple["Attribute", ...]]
Attributes = Mapping[str, Attribute]

TORCH_DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u64": torch.uint64,
    "u32": torch.uint32,
    "u16": torch.uint16,
    "u8": torch.uint8,
    "bool": torch.bool,
}
COMPLEX_DTYPES: dict[str, torch.dtype] = {"c128": torch.complex128, "c64": torch.complex64, "c32": torch.complex32}
DTYPE_NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in TORCH_DTYPES.items()}

Results = Sequence[Union[torch.Tensor, None]]

# Elements of a window beyond which `turns_back` copies gradients of f32 to row-major.
LARGE_WINDOW = 25


def matmul(operands: Sequence[torch.Tensor], attributes: Attributes) -> list[torch.Tensor]:
    """a @ b (+ bias), transposed as the attributes say, without copies.

    Shapes: a: [..., M, K] (or [..., K, M] with transpose_a), b: [..., K, N] (or [..., N, K]), bias: broadcasts to [..., M, N]
    """
    a, b = operands[0], operands[1]
    a = a.mT if attributes.get("transpose_a") else a
    b = b.mT if attributes.get("transpose_b") else b
    wide = attributes.get("dtype")
    if isinstance(wide, str):
        product = widened_product(a, b, TORCH_DTYPES[wide], attributes.get("precision") == "fast")
        return [product.add_(operands[2]) if attributes.get("has_bias") else product]
    if attributes.get("has_bias"):
        bias = operands[2]
        if a.dim() == 2 and b.dim() == 2 and bias.dtype == a.dtype:
            return [torch.addmm(bias, a, b)]
        if a.dim() == 3 and b.dim() == 3 and a.shape[0] == b.shape[0] and bias.dtype == a.dtype:
            return [torch.baddbmm(bias, a, b)]
        return [torch.matmul(a, b).add_(bias)]
    if a.dim() == 2 and b.dim() == 2:
        return [torch.mm(a, b)]
    if a.dim() == 3 and b.dim() == 3 and a.shape[0] == b.shape[0]:
        return [torch.bmm(a, b)]
    return [torch.matmul(a, b)]


def grouped_matmul(operands: Sequence[torch.Tensor], attributes: Attributes) -> list[torch.Tensor]:
    """Rows of x times the matrix of their group, which ends at its offset; zeros behind the last group.

    Shapes: x: [M, K], w: [G, K, N] (or [G, N, K] with transpose_b), offsets: [G]
    """
    x, w, offsets = operands
    return [grouped_product(x, w.mT if attributes.get("transpose_b") else w, offsets)]


def padding_of(attributes: Attributes, rank: int) -> tuple[list[int], list[int] | None]:
    """Symmetric padding for the call, and the padding that `torch.nn.functional.pad` must add before where the two ends differ."""
    pairs = _pairs(attributes.get("padding"), rank)
    if all(begin == end for begin, end in pairs):
        return [begin for begin, _ in pairs], None
    extra = [n for begin, end in reversed(pairs) for n in (begin, end)]
    return [0] * rank, extra


def _pairs(padding: Attribute, rank: int) -> list[tuple[int, int]]:
    if not isinstance(padding, tuple):
        return [(0, 0)] * rank
    return [(_int(p[0]), _int(p[1])) if isinstance(p, tuple) else (_int(p), _int(p)) for p in padding]


def _int(value: Attribute) -> int:
    assert isinstance(value, int)
    return value


def int_list(value: Attribute, default: int, rank: int) -> list[int]:
    """A tuple of numbers as a list; `rank` times the default where there is none."""
    return [_int(v) for v in value] if isinstance(value, tuple) else [default] * rank


def convolution(operands: Sequence[torch.Tensor], attributes: Attributes) -> list[torch.Tensor]:
    """A convolution or transposed convolution over any number of spatial dimensions.

    Shapes: x: [N, C, ...], w: [O, C / groups, ...] (transposed: [C, O / groups, ...]), bias: [O]
    """
    x, w = operands[0], operands[1]
    bias = operands[2] if attributes.get("has_bias") else None
    rank = x.dim() - 2
    padding, extra = padding_of(attributes, rank)
    transposed = bool(attributes.get("transposed"))
    if extra is not None and transposed:
        raise UnsupportedOpError("a transposed convolution with unequal padding at the two ends", hint="pad outside the convolution")
    if extra is not None:
        x = torch.nn.functional.pad(x, extra)
    if _turns_back(x, w, attributes, is_gradient=False):
        x, w = x.contiguous(), w.contiguous()
    return [
        torch.ops.aten.convolution.default(
            x,
            w,
            bias,
            int_list(attributes.get("stride"), 1, rank),
            padding,
            int_list(attributes.get("dilation"), 1, rank),
            transposed,
            int_list(attributes.get("output_padding"), 0, rank),
            int(_int(attributes.get("groups", 1))),
        )
    ]


def convolution_backward(operands: Sequence[torch.Tensor], attributes: Attributes) -> list[torch.Tensor | None]:
    """Gradients of a convolution with respect to input, weight and bias; None where the mask excludes one."""
    grad, x, w = operands[:3]
    rank = x.dim() - 2
    padding, extra = padding_of(attributes, rank)
    if extra is not None:
        raise UnsupportedOpError("the gradient of a convolution with unequal padding at the two ends", hint="pad outside the convolution")
    transposed = bool(attributes.get("transposed"))
    groups = _int(attributes.get("groups", 1))
    mask = attributes.get("mask", (True, True, False))
    assert isinstance(mask, tuple)
    channels = w.shape[1] * groups if transposed else w.shape[0]
    if _turns_back(x, w, attributes, is_gradient=True):
        grad, x, w = grad.contiguous(), x.contiguous(), w.contiguous()
    return list(
        torch.ops.aten.convolution_backward.default(
            grad,
            x,
            w,
            [channels],
            int_list(attributes.get("stride"), 1, rank),
            padding,
            int_list(attributes.get("dilation"), 1, rank),
            transposed,
            int_list(attributes.get("output_padding"), 0, rank),
            groups,
            [bool(m) for m in mask],
        )
    )


def _turns_back(x: torch.Tensor, w: torch.Tensor, attributes: Attributes, is_gradient: bool) -> bool:
    return not (not x.is_cuda or x.is_contiguous()) and turns_back(tuple(w.shape), x.dtype, attributes, is_gradient)


def turns_back(weight_shape: Sequence[int], dtype: torch.dtype, attributes: Attributes, is_gradient: bool) -> bool:
    """Whether channels-last tensors on a GPU are computed faster row-major, copies included.

    True for depthwise convolutions with a window that is not square, and for gradients of f32 with large windows.
    Source: one H200, torch 2.11, 2026-11-22, cuDNN's channels-last and torch's row-major kernels: 1 x 11, 32 x 96 x 28 x 28, f32: 141 and
    37 us; gradients, 7 x 7, 32 x 96 x 56 x 56: 2503 and 1062 us.
    """
    window = tuple(weight_shape[2:])
    if not (_int(attributes.get("groups", 1)) > 1 and weight_shape[1] == 1):
        return False
    return len(set(window)) > 1 or is_gradient and dtype == torch.float32 and math.prod(window) > LARGE_WINDOW


def attention(operands: Sequence[torch.Tensor], attributes: Attributes) -> list[torch.Tensor]:
    """softmax(q @ k^T * scale + mask) @ v by torch's fastest kernel. Rows that a boolean mask hides whole are zeros.

    Shapes: q: [..., L, E], k: [..., S, E], v: [..., S, F], mask: broadcasts to [..., L, S]
    """
    q, k, v = operands[:3]
    mask = added_mask(operands[3], q.dtype) if attributes.get("has_mask") else None
    scale = attributes.get("scale")
    dropout = attributes.get("dropout", 0.0)
    assert isinstance(dropout, (int, float)) and (scale is None or isinstance(scale, (int, float)))
    return [
        torch.nn.functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=float(dropout),
            is_causal=bool(attributes.get("causal")),
            scale=scale,
            enable_gqa=bool(attributes.get("grouped")),
        )
    ]


def added_mask(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask that is added to scores: of a boolean one 0 where it is true, and -infinity elsewhere; others are returned.

    Torch makes this conversion itself, but for cuDNN with -65504 in place of -infinity (torch 2.5 to 2.11): a row that is hidden whole then
    sees every value, where all other kernels of torch give zeros.
    """
    if mask.dtype != torch.bool:
        return mask
    seen, hidden = (torch.full((), value, dtype=dtype) for value in (0.0, float("-inf")))
    return torch.where(mask, seen, hidden)


def attention_off_the_cpu(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: torch.Tensor | None = None, scale: float | None = None,
) -> Results:
    """Attention that torch recorded for a model on the CPU, run on another device: by its own kernels, which return no logarithms."""
    return [torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, scale=scale), None]


def random_seed(operands: Sequence[torch.Tensor], attributes: Attributes, device: torch.device | str = "cpu") -> list[torch.Tensor]:
    """A fresh seed from torch's default generator of the device, so that `torch.manual_seed` reproduces every draw. Shapes: [1]"""
    return [torch.randint(0, 2**62, (1,), dtype=torch.int64, device=device)]


LIBRARY: dict[str, Callable[..., Results]] = {
    "matmul": matmul,
    "grouped_matmul": grouped_matmul,
    "convolution": convolution,
    "convolution_backward": convolution_backward,
    "attention": attention,
    "random_seed": random_seed,
}

# Operators that exist on the CPU only, and their replacements where a model recorded there runs on another device.
OFF_THE_CPU: dict[str, Callable[..., Results]] = {"aten._scaled_dot_product_flash_attention_for_cpu.default": attention_off_the_cpu}


def call_library(
    operator: str, operands: Sequence[torch.Tensor], attributes: Attributes, device: torch.device | str | None = None
) -> list[torch.Tensor | None]:
    """All results of one library call, in order; None for a result that the operator did not compute.

    device: place of the result of operators without tensor operands; by default the first operand's, else the CPU.
    Raises: NameLookupError for an operator that is neither in `LIBRARY` nor known to torch.
    """
    if operator == "random_seed":
        return list(random_seed(operands, attributes, device or (operands[0].device if operands else "cpu")))
    known = LIBRARY.get(operator)
    if known is not None:
        return list(known(operands, attributes))
    away = operator in OFF_THE_CPU and bool(operands) and operands[0].device.type != "cpu"
    function = OFF_THE_CPU[operator] if away else torch_operator(operator)
    place = device or (operands[0].device if operands else None)
    args = attributes.get("args", ())
    kwargs = attributes.get("kwargs", ())
    assert isinstance(args, tuple) and isinstance(kwargs, tuple)
    traced = attributes.get("strides")
    if isinstance(traced, tuple):
        operands = as_traced(operands, traced, exact=not operator.startswith("aten."))
    named = {str(pair[0]): argument(pair[1], operands, place) for pair in kwargs if isinstance(pair, tuple)}
    results = [None if t is None else as_reals(t) for t in flat_results(function(*(argument(a, operands, place) for a in args), **named))]
    # A view of an operand would change when the operand's memory is reused.
    return [None if t is None else t.clone() for t in results] if gives_windows(operator) else results


@lru_cache(maxsize=4096)
def torch_operator(operator: str) -> Callable[..., Any]:
    """The torch operator named `<namespace>.<op>.<overload>`. Raises: NameLookupError when torch has none of that name."""
    parts = operator.split(".")
    if len(parts) != 3:
        raise NameLookupError(f"unknown library operator {operator}", hint=nearest(operator, LIBRARY))
    namespace, name, overload = parts
    packet = getattr(getattr(torch.ops, namespace), name, None)
    overloaded: Callable[..., Any] | None = getattr(packet, overload, None)
    if overloaded is None:
        raise NameLookupError(
            f"torch {torch.__version__} has no operator {operator}",
            hint="import the package that registers it, or compile again with this version of torch",
        )
    return overloaded


@lru_cache(maxsize=4096)
def gives_windows(operator: str) -> bool:
    """Whether a torch operator's results may share memory with its operands."""
    overload: Any = torch_operator(operator)
    return any(r.alias_info is not None for r in overload._schema.returns)


def as_complex(pairs: torch.Tensor) -> torch.Tensor:
    """Pairs of reals as complex numbers, in the same memory where its strides allow. Shapes: pairs: [..., 2]; result: [...]"""
    if not pairs.numel():
        # An empty tensor may have any strides, but torch's view rejects some of them.
        pairs = torch.empty(pairs.shape, dtype=pairs.dtype, device=pairs.device)
    return torch.view_as_complex(pairs if pairs.stride(-1) == 1 else pairs.contiguous())


def as_reals(tensor: torch.Tensor) -> torch.Tensor:
    """A complex tensor as pairs of reals, without torch's lazy conjugation; others as they are, without its lazy negation."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor.resolve_neg()


def argument(template: Attribute, operands: Sequence[torch.Tensor], device: torch.device | str | None) -> object:
    """The argument that a template stands for: ("%", n) is operand n, ("complex", n) its pairs as complex numbers, ("list", ...) a
    list, ("dtype", name) a dtype, ("number", re, im) a complex number, others themselves."""
    if not isinstance(template, tuple):
        return template
    match template:
        case ("%", int(n)):
            return operands[n]
        case ("complex", int(n)):
            return as_complex(operands[n])
        case ("number", float(real), float(imaginary)):
            return complex(real, imaginary)
        case ("list", *items):
            return [argument(i, operands, device) for i in items]
        case ("dtype", str(name)):
            return TORCH_DTYPES[name] if name in TORCH_DTYPES else COMPLEX_DTYPES[name]
        case ("device", str(name)):
            return device if device is not None else torch.device(name)
        case ("layout" | "memory_format", str(name)):
            return getattr(torch, name)
    return tuple(argument(i, operands, device) for i in template)


def flat_results(results: object) -> Iterator[torch.Tensor | None]:
    """The tensors of a call's result in order, lists and tuples flattened; numbers become None (they carry no tensor)."""
    match results:
        case list() | tuple():
            for item in results:
                yield from flat_results(item)
        case torch.Tensor():
            yield results
        case _:
            yield None
