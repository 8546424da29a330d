"""Meaning of a registered function: its host text, compiled at first use and applied to arrays.

The interpreter and constant folding read the meaning of a function from the operator table; for a function that exists as C text only,
that meaning is the text itself, run on this machine. Kernels do not come through here.
"""
from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tilefuse.base.options import Options
from tilefuse.ir.custom import CUSTOM_FUNCTIONS, CustomFunction
from tilefuse.ir.dtype import DTYPES
from tilefuse.ir.ops import C_TYPES, SCALAR_OPS
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.printers.support import paste
from tilefuse.runtime.compilers.binaries import build_kernels
from tilefuse.runtime.compilers.host import load_host
from tilefuse.runtime.spec import KernelCode
from tilefuse.runtime.stores.cache import cache_of
from tilefuse.target.launch import Launch

INCLUDES = "#include <cmath>\n#include <cstring>\n#include <algorithm>\n"


class HostMeaning:
    """The meaning of one function, a callable on numpy arrays of one shape. Raises: ToolchainError where no compiler takes its text."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._functions: dict[str, Any] = {}

    def __call__(self, *arrays: np.ndarray) -> np.ndarray:
        first = np.asarray(arrays[0])
        dtype = next(d for d in SCALAR_OPS[self._name].dtypes if NUMPY_DTYPES[d] == first.dtype)
        op = SCALAR_OPS[self._name]
        shape = np.broadcast_shapes(*(np.shape(a) for a in arrays))
        dense = [np.ascontiguousarray(np.broadcast_to(a, shape), dtype=first.dtype) for a in arrays]
        result = np.empty(shape, NUMPY_DTYPES[dtype if op.result == "same" else op.result])
        count = np.array(result.size, np.int64)
        addresses = (ctypes.c_void_p * (len(dense) + 2))(count.ctypes.data, result.ctypes.data, *(a.ctypes.data for a in dense))
        self._function(dtype)(addresses, None, 0)
        return result

    def _function(self, dtype: str) -> Any:
        if dtype not in self._functions:
            options = Options.from_environment()
            source = _loop(CUSTOM_FUNCTIONS[self._name], dtype)
            code = KernelCode(_entry(self._name, dtype), _entry(self._name, dtype), source, "host", "", Launch(1, 1), ())
            entry, = build_kernels([code], cache_of(options.cache, options.cache_dir), cxx=options.cxx)
            self._functions[dtype] = load_host(entry)
        return self._functions[dtype]


def _entry(name: str, dtype: str) -> str:
    return f"meaning_of_{name}_{dtype}"


def _loop(function: CustomFunction, dtype: str) -> str:
    """C++ that applies the function to every element."""
    op = SCALAR_OPS[function.name]
    own, result = C_TYPES[dtype], C_TYPES[dtype if op.result == "same" else DTYPES[op.result].name]
    operands = ", ".join(f"((const {own}*)arguments[{n + 2}])[i]" for n in range(op.arity))
    body = f"""extern "C" int {_entry(function.name, dtype)}(void* const* arguments, char*, long) {{
  for (long i = 0; i < *(const long*)arguments[0]; ++i) (({result}*)arguments[1])[i] = {function.symbol}({operands});
  return 0;
}}
"""
    return f"{INCLUDES}{paste('host', body)}\n\n{body}"
