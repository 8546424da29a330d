"""Products of 8-bit operands whose results are wider: torch's own calls where they take the operands, else products of converted ones."""
from __future__ import annotations

import torch

# Rows that torch's product of 8-bit integers on a GPU must exceed, and the multiple that its other extents are. Source: torch._int_mm.
LEAST_ROWS, INTEGER_MULTIPLE = 16, 8
# Multiple of the inner axis and of the columns of torch's product of 8-bit floats, and the device that has one. Source: torch._scaled_mm.
FLOAT_MULTIPLE, FLOAT_CAPABILITY = 16, (8, 9)


def widened_product(a: torch.Tensor, b: torch.Tensor, result: torch.dtype, fast: bool) -> torch.Tensor:
    """a @ b in the type `result`. fast: sums of 8-bit floats may stay in the accumulators of the tensor cores.

    Shapes: a: [..., M, K], b: [..., K, N]. Exact: sums of integers.
    """
    if not a.dtype.is_floating_point:
        return _of_integers(a, b).to(result)
    if _is_scaled(a, b):
        one = torch.ones((), dtype=torch.float32, device=a.device)
        scaled: torch.Tensor = torch._scaled_mm(a, b, one, one, out_dtype=result, use_fast_accum=fast)
        return scaled
    return torch.matmul(a.to(torch.float32), b.to(torch.float32)).to(result)


def _of_integers(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b of integers. f64 holds the sums of up to 2^37 products of 8-bit integers exactly."""
    matrices = a.dim() == 2 and b.dim() == 2 and a.dtype == b.dtype == torch.int8
    on_gpu = a.shape[-2] > LEAST_ROWS and not a.shape[-1] % INTEGER_MULTIPLE and not b.shape[-1] % INTEGER_MULTIPLE and a.shape[-1] > 0
    if matrices and (on_gpu or a.device.type == "cpu"):
        sums: torch.Tensor = torch._int_mm(a, b)
        return sums
    return torch.matmul(a.to(torch.float64), b.to(torch.float64)).to(torch.int64)


def _is_scaled(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether torch's product of 8-bit floats on a GPU takes the operands."""
    if a.device.type != "cuda" or a.dim() != 2 or b.dim() != 2 or a.dtype == b.dtype == torch.float8_e5m2:
        return False
    in_order = a.stride(1) == 1 and b.stride(0) == 1 and not a.stride(0) % FLOAT_MULTIPLE and not b.stride(1) % FLOAT_MULTIPLE
    extents = a.shape[1] % FLOAT_MULTIPLE == 0 and b.shape[1] % FLOAT_MULTIPLE == 0 and min(a.shape) > 0
    return in_order and extents and torch.cuda.get_device_capability(a.device) >= FLOAT_CAPABILITY
