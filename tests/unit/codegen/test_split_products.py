"""Products of f32 as three tf32 products of halves: as exact as an f32 loop, and special values are those of f32. On the host executor."""
from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

from tests.unit.codegen.host_build import FLAGS, build_together, call, compiler
from tests.unit.codegen.stitched_cases import StitchedCase, tiles
from tests.unit.codegen.stitched_graphs import turned_product
from tilefuse.codegen.kernel import Kernel, MatrixProduct
from tilefuse.codegen.walk import statements
from tilefuse.ir.dtype import F32
from tilefuse.schedule.stitch import StitchPlan

ROWS, COLUMNS = 32, 21
# Unit roundoffs of f32 and of a number of 11 bits.
U, U_TF32 = 2.0**-24, 2.0**-11
MAX = float(np.finfo(np.float32).max)
pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

Product = Callable[[np.ndarray, np.ndarray], np.ndarray]


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Product]:
    """The kernel for an inner extent, as a function of both operands."""
    folder = tmp_path_factory.mktemp("split")

    @functools.cache
    def made(inner: int) -> Product:
        case = StitchedCase(f"inner {inner}", turned_product(ROWS, inner, COLUMNS, (False, False), F32), tiles(16, COLUMNS, threads=32))
        kernel = case.kernel()
        assert [s.arithmetic for s in statements(kernel.body) if isinstance(s, MatrixProduct)] == ["split"]
        function = getattr(build_together([(kernel, False)], folder, FLAGS), f"{kernel.name}_0")
        return functools.partial(_called, function, case, kernel)

    return made


def _called(function: Callable[..., int], case: StitchedCase, kernel: Kernel, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    by_origin = dict(zip([i.name for i in case.graph.inputs], (x, w), strict=True))
    buffers = {b.name: by_origin[b.origin].astype(np.float32).ravel() for b in kernel.parameters if b.origin in by_origin}
    memory, status, report = call(function, kernel, buffers)
    assert not status, report
    (out,) = (b.name for b in kernel.parameters if b.role == "out")
    return memory[out].reshape(ROWS, COLUMNS)


def f32_loop(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Multiply-adds in f32, in order; times two, as the pattern."""
    total = np.zeros((x.shape[0], w.shape[1]), np.float32)
    with np.errstate(all="ignore"):
        for k in range(x.shape[1]):
            total = (x[:, k:k + 1] * w[k:k + 1] + total).astype(np.float32)
        return total + total


def exact_product(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """In f64, times two."""
    with np.errstate(all="ignore"):
        return 2 * (x.astype(np.float64) @ w.astype(np.float64))


def sum_of_sizes(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The same of absolute values."""
    return exact_product(np.abs(x), np.abs(w))


def bound(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Largest error: of halves left out and cut, 2^-22 and twice 2^-23 of each term, and of the sum's roundings.

    Source: Higham 2002, section 3.1, first order; Ootomo and Yokota 2022, section 3.
    """
    return sum_of_sizes(x, w) * (U_TF32**2 + 4 * U + 3 * x.shape[1] * U) + 1e-42


def draw(kind: str, inner: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x, w = rng.standard_normal((ROWS, inner)), rng.standard_normal((inner, COLUMNS))
    if kind == "ill-scaled":
        scale = 2.0 ** rng.integers(-30, 30, inner)
        x, w = x * scale, w / scale[:, None] * 2.0 ** rng.integers(-10, 10, (inner, 1))
    if kind == "cancelling":
        half = inner // 2
        x[:, half:2 * half], w[half:2 * half] = x[:, :half], -w[:half] * (1 + rng.integers(-4, 5, (half, COLUMNS)) * 2.0**-22)
    if kind == "positive":
        x, w = np.abs(x), np.abs(w)
    return x.astype(np.float32), w.astype(np.float32)


@pytest.mark.parametrize("inner", [24, 43, 256])
@pytest.mark.parametrize("kind", ["normal", "positive", "ill-scaled", "cancelling"])
def test_error_is_within_the_bound_and_that_of_an_f32_loop(kind: str, inner: int, product: Callable[[int], Product], seed: int = 5) -> None:
    x, w = draw(kind, inner, np.random.default_rng(seed))
    exact = exact_product(x, w)
    error = np.abs(product(inner)(x, w) - exact)
    assert (error <= bound(x, w)).all(), f"seed {seed}, {np.max(error / bound(x, w)):.2f} of the bound"
    # As exact as multiply-adds, up to the part that is left out.
    assert error.max() <= 2 * np.abs(f32_loop(x, w) - exact).max() + 2.0**-22 * sum_of_sizes(x, w).max(), f"seed {seed}"


def test_one_product_of_11_bits_would_not_do(product: Callable[[int], Product], seed: int = 5) -> None:
    """The bound tells halves from rounding: 11 bits leave it far."""
    x, w = draw("positive", 24, np.random.default_rng(seed))

    def rounded(a: np.ndarray) -> np.ndarray:
        return ((a.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xffffe000)).view(np.float32)

    error = np.abs(exact_product(rounded(x), rounded(w)) - exact_product(x, w))
    assert (error > bound(x, w)).mean() > 0.5


SPECIALS: dict[str, float] = {"infinite": np.inf, "negative infinite": -np.inf, "nan": np.nan, "largest": MAX, "negative largest": -MAX,
                              "rounds up": float(np.float32(MAX * (1 - 2.0**-12))), "large": 1e30, "one": 1.0, "zero": 0.0}


@pytest.mark.parametrize("left", sorted(SPECIALS))
@pytest.mark.parametrize("right", sorted(SPECIALS))
def test_special_values_are_those_of_f32(left: str, right: str, product: Callable[[int], Product], seed: int = 9) -> None:
    """Infinities and NaN come out where an f32 product has them, with their signs; what is finite there is finite here."""
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((ROWS, 24), (24, COLUMNS)))
    x[3, 5], w[5, 7] = SPECIALS[left], SPECIALS[right]
    found, wanted = product(24)(x, w), f32_loop(x, w)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    infinite = np.isinf(wanted)
    np.testing.assert_array_equal(found[infinite], wanted[infinite])
    finite = np.isfinite(wanted)
    assert np.isfinite(found[finite]).all()
    with np.errstate(all="ignore"):
        error = np.abs(found - exact_product(x, w))
        assert (error[finite] <= bound(x, w)[finite]).all()


def test_the_kernels_tile_is_on_the_matrix_unit() -> None:
    case = StitchedCase("product", turned_product(ROWS, 24, COLUMNS, (False, False), F32), tiles(16, COLUMNS, threads=32))
    plan = case.program().internal
    assert isinstance(plan, StitchPlan)
    assert [s.tiling.arithmetic for s in plan.stages if s.tiling is not None] == ["split"]
