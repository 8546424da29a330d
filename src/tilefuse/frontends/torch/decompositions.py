"""Which torch operators torch itself takes apart before tilefuse sees them.

Torch's core decompositions, less the operators that have a lowering of their own here: those fuse better, or round better,
whole.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

from tilefuse.frontends.torch.fast_paths import DECOMPOSITIONS
from tilefuse.frontends.torch.fx import THEMES
from tilefuse.frontends.torch.ops import TORCH_OPS
from tilefuse.frontends.torch.ops_library import BY_DESIGN

# Gradients and composites outside torch's core table that are decomposed as well. Names that this torch lacks are skipped.
ALSO_DECOMPOSED = (
    "linalg_vector_norm_backward",
    "native_batch_norm",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "lerp_",
    "addmv",
    "silu_backward",
    "native_layer_norm_backward",
    "native_group_norm_backward",
    "native_batch_norm_backward",
    "batch_norm_backward",
    "upsample_nearest2d_backward",
    "upsample_bilinear2d",
    "upsample_nearest2d",
    "upsample_nearest1d",
    "upsample_nearest3d",
    "_fused_rms_norm_backward",
    "embedding_renorm",
    "log_sigmoid_backward",
    "cumsum_backward",
    "leaky_relu_backward",
    "gelu_backward",
    "hardtanh_backward",
    "mse_loss_backward",
    "max_pool2d_with_indices_backward",
    "addcmul",
    "addcdiv",
    "trunc",
    "std",
    "dist",
    "cdist",
    "grid_sampler_2d",
    "ldexp",
    "tril_indices",
    "triu_indices",
    "i0",
    "var_mean",
)

# Size of data that the partition between forward and backward should not keep twice. Units: bytes.
LARGE_LOG_SOFTMAX_BYTES = 1 << 24


# Resamplings that weigh neighbours. Of 8-bit images eager computes them in whole numbers, with weights rounded to as few bits as fit in 16,
# one direction after the other; the pieces, which compute in f32, differ from it by 1 in a fifth of the results.
# Source: torch, aten/src/ATen/native/cpu/UpSampleKernel.cpp, and comparison with it on images of 20 x 26.
WEIGHED_RESAMPLINGS = frozenset({"upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
                                 "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"})


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table given to torch.export. Cost: about 0.1 s the first time."""
    assert THEMES, "the lowerings are entered by importing their files"
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    extra = [getattr(torch.ops.aten, name) for name in ALSO_DECOMPOSED if hasattr(torch.ops.aten, name)]
    table.update(get_decompositions(extra))
    table.update(DECOMPOSITIONS)
    table[torch.ops.aten.linspace.default] = partial(_linspace, table[torch.ops.aten.linspace.default])
    for op in [op for op in table if _name(op).split(".")[1] in WEIGHED_RESAMPLINGS]:
        table[op] = partial(_of_floats, table[op])
    return {op: how for op, how in table.items() if _name(op) not in TORCH_OPS and _name(op) not in BY_DESIGN}


@cache
def decompositions_with_gradients() -> dict[Any, Callable[..., Any]]:
    """The table given to AOTAutograd: as `decompositions`, and large losses in pieces, which may be computed again for a gradient."""
    log_softmax = torch.ops.aten._log_softmax.default
    pieces = get_decompositions([log_softmax])[log_softmax]
    return decompositions() | {log_softmax: partial(_large_log_softmax, pieces),
                               torch.ops.aten.nll_loss_backward.default: _large_nll_loss_backward}


def _large_log_softmax(pieces: Callable[..., Any], x: torch.Tensor, dim: int, half_to_float: bool) -> Any:
    """A logarithm of a softmax over much data, decomposed where a gradient is needed, so that only row results are saved for the gradient.

    As one operator, its result is saved: 0.8 GB for the labels of 4096 tokens among 50257, in addition to the scores.
    """
    if not torch.is_grad_enabled() or not _is_large(x):
        return NotImplemented
    return pieces(x, dim, half_to_float)


def _large_nll_loss_backward(grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, reduction: int,
                             ignore_index: int, total_weight: torch.Tensor) -> Any:
    """The gradient of a loss over much data, as elements: the operator itself asks for scores of which it needs the shape alone.

    Source: torch documentation, nll_loss; reduction 1 is "mean".
    """
    if x.dim() != 2 or not _is_large(x):
        return NotImplemented
    each = (grad / total_weight if reduction == 1 else grad).neg()
    label = target.unsqueeze(1)
    counts = label != ignore_index
    picked = torch.arange(x.shape[1], device=x.device) == torch.where(counts, label, 0)
    each = each if each.dim() == 0 else each.unsqueeze(1)
    weighted = each if weight is None else each * weight
    return torch.where(picked & counts, weighted.to(x.dtype), torch.zeros((), dtype=x.dtype, device=x.device))


def _is_large(x: torch.Tensor) -> bool:
    return bool(x.numel() * x.element_size() >= LARGE_LOG_SOFTMAX_BYTES)


@contextlib.contextmanager
def whole_resamplings() -> Iterator[None]:
    """Inside, torch traces weighted resamplings of integers without decomposing them. Torch decomposes them during dispatch, before it
    consults a compiler's table; those of floats are still decomposed."""
    kernels = [(op, key, op.py_kernels[key]) for op in _resamplings() for key in (_AUTOGRAD, _COMPOSITE) if key in op.py_kernels]
    for op, key, kernel in kernels:
        op.py_kernels[key] = partial(_whole_of_integers, op, kernel)
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, key, kernel in kernels:
            op.py_kernels[key] = kernel
            op._dispatch_cache.clear()


_AUTOGRAD, _COMPOSITE = torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd


def _resamplings() -> Iterator[Any]:
    for name in sorted(WEIGHED_RESAMPLINGS):
        packet = getattr(torch.ops.aten, name)
        yield from (getattr(packet, overload) for overload in packet.overloads() if overload in ("default", "vec"))


def _whole_of_integers(op: Any, pieces: Callable[..., Any], x: torch.Tensor, size: Any, corners: bool, *scales: Any) -> Any:
    """Function that torch's dispatcher calls for a resampling: `pieces` of floats, else the operator with its sizes worked out."""
    if x.is_floating_point():
        return pieces(x, size, corners, *scales)
    if op._overloadname == "vec":
        factors = scales[0] if scales and scales[0] is not None else [None] * (x.dim() - 2)
        extents = size if size is not None else [int(e * f) for e, f in zip(x.shape[2:], factors, strict=True)]
        return getattr(torch.ops.aten, op._opname).default(x, extents, corners, *factors)
    with torch._C._AutoDispatchBelowAutograd():
        return op(x, size, corners, *scales)


def _of_floats(pieces: Callable[..., Any], x: torch.Tensor, *given: Any, **named: Any) -> Any:
    """An operator that is decomposed where its tensor holds floats; for integers torch runs it."""
    return pieces(x, *given, **named) if x.is_floating_point() else NotImplemented


def _linspace(
    of_floats: Callable[..., Any], start: float, end: float, steps: int, *, dtype: torch.dtype | None = None, **where: Any
) -> Any:
    """Of integers as eager torch counts them: the ends are cut to integers first, and each half is counted from its own end."""
    if dtype is None or dtype.is_floating_point or dtype.is_complex or steps < 2:
        return of_floats(start, end, steps, dtype=dtype, **where)
    first, last = int(start), int(end)
    step = (last - first) / (steps - 1)
    at = torch.arange(steps, dtype=torch.float64, device=where.get("device"))
    return torch.where(at < steps // 2, first + step * at, last - step * (steps - 1 - at)).to(dtype)


def is_taken_apart(program: torch.export.ExportedProgram) -> bool:
    """Whether every operator of an exported program has a lowering, and torch would neither decompose it nor let it write into a tensor.

    Decomposing traces the whole program again, which would not change such a program and takes most of the time of its import.
    """
    table = decompositions()
    known: dict[Any, bool] = {operator.getitem: True}
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target not in known:
            op = node.target
            known[op] = (isinstance(op, torch._ops.OpOverload) and _name(op) in TORCH_OPS and op not in table
                         and not op._schema.is_mutable and not op._can_decompose())
    return all(known.values())


def _name(op: Any) -> str:
    return f"{op.namespace}.{op._opname}.{op._overloadname}" if isinstance(op, torch._ops.OpOverload) else str(op)
