"""Products of f32 as three tf32 products of halves: as exact as an f32 loop, and special values are those of f32. On the host executor."""
from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

from tests.unit.templates.host_build import FLAGS, build_together, call, compiler
from tests.unit.templates.split_numbers import COLUMNS, ROWS, SPECIALS, bound, draw, exact_product, f32_loop, sum_of_sizes
from tests.unit.templates.stitched_cases import StitchedCase, tiles
from tests.unit.templates.stitched_graphs import turned_product
from tilefuse.ir.dtype import F32
from tilefuse.kernel.ir import Kernel, MatrixProduct
from tilefuse.kernel.visit import statements
from tilefuse.templates.staged.stitched.plan import StitchPlan

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
