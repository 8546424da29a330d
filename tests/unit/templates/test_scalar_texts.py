"""Every scalar function and conversion, printed for the host, agrees with the operator table's numpy meaning on special values too."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.host_build import compiler, run
from tilefuse.ir.affine import axis
from tilefuse.ir.dtype import BOOL, DTYPES, DType
from tilefuse.ir.ops import SCALAR_OPS, ScalarOp, convert
from tilefuse.ir.scalar import NUMPY_DTYPES, call, cast
from tilefuse.kernel.ir import Buffer, Kernel, Load, Stmt, Store
from tilefuse.target.launch import Launch

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

ARITHMETIC = [t for t in DTYPES.values() if t.is_arithmetic]
# Units of the last place by which the C library may be off where it is not within 2; lgamma loses digits near its zeros.
LOOSE_ULP = {"lgamma": 4096, "digamma": 64, "polygamma": 64, "pow": 8, "tan": 4, "erfinv": 8, "erfc": 8, "random_normal": 16, "tanh": 4,
             "sinh": 4}


def values(dtype: DType, seed: int) -> np.ndarray:
    """Special values and random ones; 400 elements, in another order for every seed."""
    draw = np.random.default_rng(seed)
    numpy = NUMPY_DTYPES[dtype.name]
    if dtype == BOOL:
        return draw.integers(0, 2, 400).astype(bool)
    if dtype.is_integer:
        low, high = np.iinfo(numpy).min, np.iinfo(numpy).max
        special = [low, low + 1, high, high - 1, 0, 1, 2, 3, 7] + ([-1, -2, -7] if low else [])
        wide = draw.integers(low, high, 100, dtype=numpy, endpoint=True)
        small = draw.integers(0 if low == 0 else -70, 70, 400 - len(special) - 100)
        return draw.permutation(np.concatenate([np.array(special, numpy), wide, small.astype(numpy)]))
    special = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-30, 1e-40, 3.0, -3.0, 464.0, 465.0,
               57344.0, 61440.0, 65504.0, 65520.0, 448.0, 2**-9, 2**-10, 1.5 * 2**-10, 2**-16, 2**-17, 2**-24, 2**-25]
    drawn = draw.standard_normal(400 - len(special)) * 10.0 ** draw.integers(-3, 3, 400 - len(special))
    with np.errstate(all="ignore"):
        return draw.permutation(np.concatenate([special, drawn])).astype(numpy)


def ops_kernel(dtype: DType) -> tuple[Kernel, list[ScalarOp]]:
    """One output a function that takes `dtype`, over the inputs a, b, c and the condition d."""
    found = [op for op in SCALAR_OPS.values() if dtype.name in op.dtypes]
    a, b, c, d = (Load(name, t, axis("block")) for name, t in (("a", dtype), ("b", dtype), ("c", dtype), ("d", BOOL)))
    outs: list[Buffer] = []
    body: list[Stmt] = []
    for op in found:
        args = (d, a, b) if op.name == "select" else (a, b, c)[:op.arity]
        result = dtype if op.result == "same" else DTYPES[op.result]
        outs.append(Buffer(f"y_{op.name}", result, 400, "global", "out"))
        body.append(Store(f"y_{op.name}", axis("block"), call(op.name, *args)))  # type: ignore[arg-type]
    ins = tuple(Buffer(name, t, 400, "global", "in") for name, t in (("a", dtype), ("b", dtype), ("c", dtype), ("d", BOOL)))
    return Kernel(f"ops_{dtype.name}", (*ins, *outs), Launch(400, 1), tuple(body)), found


def units_apart(got: np.ndarray, wanted: np.ndarray) -> float:
    """Largest distance in units of the last place; NaN matches NaN, and subnormal results may be flushed."""
    both_nan = np.isnan(got) & np.isnan(wanted)
    both_nan |= (np.abs(got) < np.finfo(wanted.dtype).tiny) & (np.abs(wanted) < np.finfo(wanted.dtype).tiny)
    with np.errstate(all="ignore"):
        unit = np.spacing(np.maximum(np.abs(wanted), np.finfo(wanted.dtype).tiny)).astype(np.float64)
        apart = np.abs(got.astype(np.float64) - wanted.astype(np.float64)) / unit
    apart = np.where(both_nan | (got == wanted), 0.0, apart)
    return float(np.where(np.isnan(apart), np.inf, apart).max())


@pytest.mark.parametrize("dtype", ARITHMETIC, ids=str)
def test_host_texts_mean_what_the_table_says(dtype: DType, tmp_path: Path) -> None:
    """Integers, comparisons and random bits to the bit; real functions within the C library's error."""
    kernel, found = ops_kernel(dtype)
    inputs = {"a": values(dtype, 1), "b": values(dtype, 2), "c": values(dtype, 3), "d": values(BOOL, 4)}
    memory, status, _ = run(kernel, inputs, tmp_path)
    assert status == 0
    wrong = {}
    for op in found:
        args = [inputs["d"], inputs["a"], inputs["b"]] if op.name == "select" else [inputs["a"], inputs["b"], inputs["c"]][:op.arity]
        with np.errstate(all="ignore"):
            wanted = np.asarray(op.meaning(*args))
        got = memory[f"y_{op.name}"]
        if got.dtype.kind == "f":
            apart = units_apart(got, wanted.astype(got.dtype))
            if apart > LOOSE_ULP.get(op.name, 2):
                at = int(np.argmax(np.where(np.isnan(got) & np.isnan(wanted), 0, np.nan_to_num(np.abs(got - wanted), nan=np.inf))))
                wrong[op.name] = (apart, [x[at] for x in args], got[at], wanted[at])
        elif not np.array_equal(got, wanted.astype(got.dtype)):
            at = int(np.flatnonzero(got != wanted.astype(got.dtype))[0])
            wrong[op.name] = ([x[at] for x in args], got[at], wanted[at])
    assert not wrong, wrong


def conversions_kernel(source: DType) -> Kernel:
    """One output a data type."""
    outs = tuple(Buffer(f"y_{t.name}", t, 400, "global", "out") for t in DTYPES.values())
    body = tuple(Store(f"y_{t.name}", axis("block"), cast(Load("a", source, axis("block")), t)) for t in DTYPES.values())  # type: ignore[arg-type]
    return Kernel(f"from_{source.name}", (Buffer("a", source, 400, "global", "in"), *outs), Launch(400, 1), body)


@pytest.mark.parametrize("source", list(DTYPES.values()), ids=str)
def test_host_conversions_are_exact(source: DType, tmp_path: Path) -> None:
    """Bit for bit, but for NaN patterns and for floats that no integer of the target holds."""
    a = values(source, 5)
    memory, _, _ = run(conversions_kernel(source), {"a": a}, tmp_path)
    wrong = {}
    for target in DTYPES.values():
        wanted, got = convert(a, source, target), memory[f"y_{target.name}"]
        wide = np.float64
        if target.is_float:
            both_nan = np.isnan(got.astype(wide)) & np.isnan(wanted.astype(wide))
            same = both_nan | (got.view(f"u{got.itemsize}") == wanted.view(f"u{got.itemsize}"))
        else:
            same = got == wanted
            if source.is_float and target != BOOL:
                real = a.astype(wide)
                with np.errstate(all="ignore"):
                    low, high = np.iinfo(wanted.dtype).min, np.iinfo(wanted.dtype).max
                    same |= ~((np.trunc(real) >= low) & (np.trunc(real) <= high))
                    same |= (np.abs(real) >= 2.0**62)
        if not same.all():
            at = int(np.flatnonzero(~same)[0])
            wrong[target.name] = (a[at], got[at], wanted[at])
    assert not wrong, wrong
