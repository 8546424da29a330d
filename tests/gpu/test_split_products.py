"""Products of f32 as three tf32 products on a CUDA device: errors within the bound of the host's test, special values those of f32."""
from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.unit.templates.split_numbers import COLUMNS, ROWS, SPECIALS, bound, draw, exact_product, f32_loop
from tests.unit.templates.stitched_cases import StitchedCase, tiles
from tests.unit.templates.stitched_graphs import turned_product
from tilefuse.base.options import Options
from tilefuse.driver.measure.lone_kernel import lone_program
from tilefuse.ir.dtype import F32
from tilefuse.target.device import H200

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

Product = Callable[[np.ndarray, np.ndarray], np.ndarray]


@functools.cache
def product(inner: int) -> Product:
    """The kernel for an inner extent, as a function of both operands."""
    case = StitchedCase(f"inner {inner}", turned_product(ROWS, inner, COLUMNS, (False, False), F32), tiles(16, COLUMNS, threads=32))
    program = lone_program(case.program(), H200, "cuda", Options())

    def run(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        (found,) = program(torch.from_numpy(x).cuda(), torch.from_numpy(w).cuda())
        return np.asarray(found.cpu().numpy())

    return run


@pytest.mark.parametrize("inner", [24, 43, 256])
@pytest.mark.parametrize("kind", ["normal", "positive", "ill-scaled", "cancelling"])
def test_error_is_within_the_bound(kind: str, inner: int, seed: int = 5) -> None:
    x, w = draw(kind, inner, np.random.default_rng(seed))
    error = np.abs(product(inner)(x, w) - exact_product(x, w))
    assert (error <= bound(x, w)).all(), f"seed {seed}, {np.max(error / bound(x, w)):.2f} of the bound"


def test_special_values_are_those_of_f32(seed: int = 9) -> None:
    """Infinities and NaN come out where an f32 product has them, with their signs; what is finite there is finite and near here."""
    wrong = []
    for left, x_value in SPECIALS.items():
        for right, w_value in SPECIALS.items():
            rng = np.random.default_rng(seed)
            x, w = (rng.standard_normal(s).astype(np.float32) for s in ((ROWS, 24), (24, COLUMNS)))
            x[3, 5], w[5, 7] = x_value, w_value
            found, wanted = product(24)(x, w), f32_loop(x, w)
            with np.errstate(all="ignore"):
                near = np.abs(found - exact_product(x, w)) <= bound(x, w)
            if not (np.isnan(wanted) == np.isnan(found)).all() or not (near | (found == wanted) | np.isnan(wanted)).all():
                wrong.append(f"{left} by {right}")
    assert not wrong, f"seed {seed}"
