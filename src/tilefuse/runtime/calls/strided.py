"""Layouts of torch tensors in memory, and copies into other layouts."""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

POINTER_ALIGNMENT_BYTES = 16


def empty_maker(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Callable[[], torch.Tensor]:
    """A call without arguments that makes an uninitialised tensor of this layout on the current device."""
    # Torch's own entry for compiled programs skips the general argument parsing: about a microsecond a tensor.
    fast = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), f"_empty_strided_{device.type}", None)
    if fast is not None:
        return functools.partial(fast, shape, strides, dtype)
    return functools.partial(torch.empty_strided, shape, strides, dtype=dtype, device=device)


def fits(tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements have these strides (extents of 1 may have any stride) and an address that kernels can use."""
    return 0 in shape or lies(tensor, strides) and tensor.data_ptr() % POINTER_ALIGNMENT_BYTES == 0


def lies(tensor: torch.Tensor, strides: tuple[int, ...]) -> bool:
    """Whether the elements have these strides (extents of 1 may have any stride)."""
    return all(n == 1 or have == want for n, have, want in zip(tensor.shape, tensor.stride(), strides, strict=True))


def relaid(tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """A copy of `tensor` with the given strides (on its device)."""
    copy = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
    once = places_once(shape, strides)
    copy[once].copy_(tensor.detach()[once])
    return copy


def places_once(shape: Sequence[int], strides: Sequence[int]) -> tuple[slice, ...]:
    """Subscripts that name each place in memory of such a layout once.

    Expanded layouts (stride 0) store several equal elements in one place: one write suffices, and torch refuses more.
    """
    return tuple(slice(0, 1) if s == 0 and n > 1 else slice(None) for n, s in zip(shape, strides, strict=True))


def as_traced(operands: Sequence[torch.Tensor], strides: Sequence[object], exact: bool) -> list[torch.Tensor]:
    """The operands of a call in the layouts that torch traced, copied where necessary.

    An operand that is a view may have another layout than in eager mode: attention requires contiguous elements, and a user's operator may
    rely on eager's strides without a check.
    strides: of each operand, None where any are accepted.
    exact: accepts only these strides (of extents above 1); otherwise also others whose last dimension is contiguous and whose other strides
    are multiples of 16 bytes.
    """
    tensors = list(operands)
    for n, (tensor, layout) in enumerate(zip(operands, strides, strict=True)):
        if not isinstance(layout, tuple) or not tensor.numel():
            continue
        if not (lies(tensor, layout) if exact else tensor.stride() == layout or _is_aligned(tensor)):
            tensors[n] = relaid(tensor, tuple(tensor.shape), layout)
    return tensors


def _is_aligned(tensor: torch.Tensor) -> bool:
    """Also for extents of 1, since attention checks their strides."""
    return tensor.dim() > 0 and tensor.stride(-1) == 1 and all(s * tensor.element_size() % 16 == 0 for s in tensor.stride()[:-1])
