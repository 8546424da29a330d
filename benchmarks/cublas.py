"""cuBLAS functions that torch has no call for, through torch's own handle: they run on its stream and are recorded in CUDA graphs.

Elsewhere than on a GPU the same is computed by torch.
"""
from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

# cublasFillMode_t. A matrix stored by rows is its transposed to cuBLAS: the lower triangle is the upper one there.
_UPPER = 1
_HOST_POINTERS = 0


@functools.cache
def _library() -> ctypes.CDLL:
    """The cuBLAS that torch has loaded."""
    torch.cuda.current_blas_handle()
    with open("/proc/self/maps", encoding="utf-8") as maps:
        path = next(line.split()[-1] for line in maps if "libcublas.so" in line)
    return ctypes.CDLL(path)


def symv(matrix: Tensor, x: Tensor) -> Tensor:
    """matrix x for a symmetric matrix, of which the lower triangle is read.

    Shapes: matrix [n, n] by rows, x [n], result [n]; f32 or f64. Raises: RuntimeError with cuBLAS's status.
    """
    if matrix.device.type != "cuda":
        return (torch.tril(matrix) + torch.tril(matrix, -1).t()) @ x
    library, handle = _library(), ctypes.c_void_p(torch.cuda.current_blas_handle())
    single = matrix.dtype == torch.float32
    real, function = (ctypes.c_float, library.cublasSsymv_v2) if single else (ctypes.c_double, library.cublasDsymv_v2)
    y = torch.empty_like(x)
    library.cublasSetPointerMode_v2(handle, _HOST_POINTERS)
    one, zero = real(1.0), real(0.0)
    status = function(handle, _UPPER, matrix.shape[0], ctypes.byref(one), ctypes.c_void_p(matrix.data_ptr()), matrix.stride(0),
                      ctypes.c_void_p(x.data_ptr()), 1, ctypes.byref(zero), ctypes.c_void_p(y.data_ptr()), 1)
    if status:
        raise RuntimeError(f"cublas symv: status {status}")
    return y
