"""Grouped products by torch: its own operator where that takes the operands as they are, else a product for each group."""
from __future__ import annotations

import torch

# Multiple of the rows of operands of torch's operator on a GPU, and the device that has a kernel for it. Source: torch._grouped_mm.
ROW_BYTES, LEAST_CAPABILITY = 16, (9, 0)


def grouped_product(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Rows of x times the matrix of their group: group g ends before row offsets[g]. Rows behind the last group are zeros.

    Offsets are taken within the rows, and none lies below an earlier one. Nothing waits for a device.
    """
    rows = x.shape[0]
    ends = torch.cummax(offsets.clamp(0, rows), 0).values
    if x.device.type == "cpu":
        return _one_by_one(x, w, [int(e) for e in ends])
    number = torch.arange(rows, device=x.device)
    if x.device.type == "cuda" and _is_taken(x, w):
        product: torch.Tensor = torch._grouped_mm(x, w, offs=ends.to(torch.int32))
        return product.masked_fill_((number >= ends[-1])[:, None], 0)
    # Which rows are a group's is not known here: each product has all rows, of which those of its group are kept.
    result = x.new_zeros(rows, w.shape[2])
    group = torch.searchsorted(ends, number.to(ends.dtype), right=True)
    for n, matrix in enumerate(w):
        result = torch.where((group == n)[:, None], x @ matrix, result)
    return result


def _one_by_one(x: torch.Tensor, w: torch.Tensor, ends: list[int]) -> torch.Tensor:
    result, first = x.new_zeros(x.shape[0], w.shape[2]), 0
    for last, matrix in zip(ends, w, strict=True):
        if last > first:
            result[first:last] = x[first:last] @ matrix
        first = last
    return result


def _is_taken(x: torch.Tensor, w: torch.Tensor) -> bool:
    """Whether torch's operator takes the operands: bf16, one contiguous axis each, other strides multiples of 16 bytes."""
    if x.dtype != torch.bfloat16 or torch.cuda.get_device_capability(x.device) < LEAST_CAPABILITY:
        return False
    strides = (*x.stride(), *w.stride())
    whole = all(s == 1 or s * x.element_size() % ROW_BYTES == 0 for s in strides)
    return whole and 1 in x.stride() and 1 in w.stride()[1:] and x.data_ptr() % ROW_BYTES == 0 == w.data_ptr() % ROW_BYTES
