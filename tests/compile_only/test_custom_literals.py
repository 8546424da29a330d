"""Whole numbers as operands of C functions in registered operators: they have the operands' type, on devices and on the host."""
from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from tilefuse.arrays.evaluation.custom_meaning import HostMeaning
from tilefuse.ir.custom import CustomFunction, register_function, unregister_function
from tilefuse.ir.custom_expression import C_FUNCTIONS
from tilefuse.runtime.compilers.nvrtc import compile_text

PAIRS = ("atan2", "copysign", "fdim", "fmax", "fmin", "fmod", "hypot", "max", "min", "pow", "remainder")
SINGLE = sorted(C_FUNCTIONS - {*PAIRS, "fma", "ldexp"})
TEXTS = (*(f"{f}(x, 2)" for f in PAIRS), *(f"{f}(-2, x)" for f in PAIRS), *(f"x + {f}(2)" for f in SINGLE), "fma(x, 2, 3)", "ldexp(x, 2)",
         "x > 0 ? 1 : x", "x * pow(2, -3)", "max(x > 0 ? 1 : 0, x)", "int n = 2; return copysign(x, n);", "hypot(x, x + 2)")


@pytest.fixture
def functions() -> Iterator[list[CustomFunction]]:
    names = [f"literal{n}" for n in range(len(TEXTS))]
    yield [register_function(name, "(x: float) -> float", text, meaning=HostMeaning(name)) for name, text in zip(names, TEXTS, strict=True)]
    for name in names:
        unregister_function(name)


def of_c_types(text: str) -> str:
    """The definitions for float and double."""
    return "\n".join(part for part in re.split(r"\n(?=TF_INLINE)", text) if re.match(r"TF_INLINE (float|double) ", part))


def kernel(functions: list[CustomFunction], opening: str) -> str:
    calls = "".join(f" p[{n}] = {f.symbol}(p[{n}]); q[{n}] = {f.symbol}(q[{n}]);" for n, f in enumerate(functions))
    return f"{opening}void k(float* p, double* q) {{{calls} }}\n"


def test_devices_compile_them(functions: list[CustomFunction]) -> None:
    texts = "\n".join(of_c_types(f.cuda) for f in functions)
    source = f"#define TF_INLINE __device__ __forceinline__\n{texts}\n" + kernel(functions, 'extern "C" __global__ ')
    assert compile_text(source, "k", "sm_90a", "k")


def test_the_host_compiles_them(functions: list[CustomFunction]) -> None:
    texts = "\n".join(of_c_types(f.host) for f in functions)
    source = f"#include <cmath>\n#define TF_INLINE static inline\n{texts}\n" + kernel(functions, "")
    done = subprocess.run(["g++", "-std=c++20", "-fsyntax-only", "-xc++", "-"], input=source, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
