"""Functions of f32 on the host: within two units in the last place of f64 over bit patterns of all kinds, and in vector code."""
from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.host_build import build, compiler, run
from tests.unit.templates.host_build import call as call_kernel
from tilefuse.ir.affine import axis, number
from tilefuse.ir.dtype import BF16, F16, F32
from tilefuse.ir.ops import SCALAR_OPS
from tilefuse.ir.scalar import call, cast
from tilefuse.kernel.ir import Buffer, For, Kernel, Load, Store
from tilefuse.printers.host import print_host
from tilefuse.runtime.compilers.host import FLAGS
from tilefuse.target.launch import Launch

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

# Largest error in units of the last place, found over every 1021st bit pattern and rounded up; a sigmoid is a quotient with exp in it.
LARGEST = {"exp": 1.0, "exp2": 1.1, "expm1": 1.5, "log": 1.0, "log2": 1.0, "log10": 1.0, "log1p": 1.5, "tanh": 1.5, "erf": 1.2,
           "sigmoid": 2.5}
COUNT = 1 << 17
TINY = float(np.finfo(np.float32).tiny)


def narrow_kernel(count: int) -> Kernel:
    """One loop a narrow type: widened, computed with, narrowed."""
    types = (F16, BF16)
    loops = tuple(For("v", number(0), number(count), 1,
                      (Store(f"y_{t}", axis("v"), cast(call("exp", cast(Load(f"x_{t}", t, axis("v")), F32)), t)),), simd=True)  # type: ignore[arg-type]
                  for t in types)
    buffers = [Buffer(f"{name}_{t}", t, count, "global", role) for t in types for name, role in (("x", "in"), ("y", "out"))]
    return Kernel("narrow", tuple(buffers), Launch(1, 1), loops)


def math_kernel(count: int) -> Kernel:
    """One loop a function, each over all of x."""
    loops = tuple(For("v", number(0), number(count), 1, (Store(f"y_{name}", axis("v"), call(name, Load("x", F32, axis("v")))),), simd=True)  # type: ignore[arg-type]
                  for name in LARGEST)
    outs = tuple(Buffer(f"y_{name}", F32, count, "global", "out") for name in LARGEST)
    return Kernel("functions", (Buffer("x", F32, count, "global", "in"), *outs), Launch(1, 1), loops)


def arguments(seed: int) -> np.ndarray:
    """Half of them random bits, the rest where functions change their form, end, or are special; never two in one order."""
    draw = np.random.default_rng(seed)
    turns = np.array([0.0, 0.55, 0.92, 1.0, 2**0.5, 0.5**0.5, 9.1, 4.0, 88.72283, 89.0, 104.0, 103.97, 87.33, 128.0, 126.0, 149.5, 18.0,
                      17.33, 5e-8, np.inf, np.nan, TINY, 1e-45, 3.4028235e38], np.float32)
    with np.errstate(over="ignore"):
        near = np.concatenate([turns, np.nextafter(turns, np.float32(np.inf)), np.nextafter(turns, np.float32(-np.inf))])
    usual = np.concatenate([draw.standard_normal(COUNT // 4) * scale for scale in (1, 30)]).astype(np.float32)
    special = np.concatenate([near, -near, usual])
    bits = draw.integers(0, 2**32, COUNT - len(special), dtype=np.uint64).astype(np.uint32).view(np.float32)
    return draw.permutation(np.concatenate([special, bits]))


def units_apart(got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Distance from a result in f64, in units of the last place of f32; infinite where a NaN, an infinity or a zero's sign is wrong."""
    rounded = wanted.astype(np.float32)
    unit = np.spacing(np.maximum(np.abs(rounded), np.float32(TINY))).astype(np.float64)
    apart = np.abs(got.astype(np.float64) - wanted) / unit
    same = (got == rounded) & (np.signbit(got) == np.signbit(rounded)) | np.isnan(got) & np.isnan(rounded)
    # At the ends of the range a result one unit away is an infinity or a zero.
    end = np.isinf(got) != np.isinf(rounded)
    reach = (np.minimum(np.abs(got), np.abs(rounded)) >= np.finfo(np.float32).max) & (np.signbit(got) == np.signbit(rounded))
    wrong_zero = (got == 0) & (np.signbit(got) != np.signbit(wanted))
    apart = np.where(end, np.where(reach, 1.0, np.inf), np.where(wrong_zero, np.inf, apart))
    return np.where(same, np.minimum(np.nan_to_num(apart, nan=0.0, posinf=0.0), 0.5), np.where(np.isnan(apart), np.inf, apart))


@pytest.mark.parametrize("flags", [FLAGS, (*(f for f in FLAGS if f != "-march=native"),)], ids=["native", "plain"])
def test_functions_of_f32_keep_their_last_digits(flags: tuple[str, ...], tmp_path: Path, seed: int = 5) -> None:
    """Also on processors that have no product and sum in one rounding."""
    x, kernel = arguments(seed), math_kernel(COUNT)
    function = getattr(build(print_host(kernel), tmp_path, flags), kernel.name)
    memory, status, _ = call_kernel(function, kernel, {"x": x})
    assert status == 0
    for name, largest in LARGEST.items():
        with np.errstate(all="ignore"):
            wanted = np.asarray(SCALAR_OPS[name].meaning(x.astype(np.float64)))
            if name == "sigmoid":  # exp(-a) is infinite before the result is below the normal numbers
                wanted = np.where(wanted < TINY, memory["y_sigmoid"], wanted)
            apart = units_apart(memory[f"y_{name}"], wanted)
        worst = int(np.argmax(apart))
        assert apart[worst] <= largest, f"{name}({x[worst]!r}) = {memory[f'y_{name}'][worst]!r}, not {wanted[worst]!r}; seed {seed}"


def test_functions_of_f32_are_the_same_when_checked(tmp_path: Path, seed: int = 6) -> None:
    """The checking mode calls the same functions; its loops are no vector code."""
    kernel = math_kernel(1 << 10)
    x = arguments(seed)[: 1 << 10]
    plain, _, _ = run(kernel, {"x": x}, tmp_path)
    checked, status, report = run(kernel, {"x": x}, tmp_path, check=True)
    assert status == 0, report
    for name in LARGEST:
        assert np.array_equal(plain[f"y_{name}"], checked[f"y_{name}"], equal_nan=True), f"{name}, seed {seed}"


@pytest.mark.skipif("g++" not in str(compiler()), reason="asks g++ which loops became vector code")
def test_functions_of_f32_are_vector_code(tmp_path: Path) -> None:
    """A call in a loop, or a branch that does not go, would be ten times slower and fail no other test."""
    for kernel, count in ((math_kernel(1 << 12), len(LARGEST)), (narrow_kernel(1 << 12), 2)):
        text = tmp_path / f"{kernel.name}.cpp"
        text.write_text(print_host(kernel))
        log = subprocess.run([str(compiler()), *FLAGS, "-fopt-info-vec-missed", str(text), "-o", str(tmp_path / "functions.so")],
                             capture_output=True, text=True, check=True).stderr
        assert text.read_text().count("#pragma omp simd") == count
        assert "couldn't vectorize loop" not in log, log
