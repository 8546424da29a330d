"""Packing kernels of a cover: only those that do not depend on each other, directly or through a library call."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from tilefuse.base.options import Options
from tilefuse.driver.compile import compile_graph, generate
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200


def chain(link: str) -> str:
    """Many library calls from x to the result, and beside them two kernels of y, one of which needs the other; both can wait."""
    steps = "".join(f"  %x{n + 1}: f32[64, 64] = library.matmul (%x{n}, %w) {{transpose_a = false, transpose_b = false}}\n"
                    for n in range(8))
    return ("graph @g(%x0: f32[64, 64], %w: f32[64, 64], %y: f32[64, 64]) -> (f32[64, 64], f32[64, 64]) {\n"
            f"{steps}  %a: f32[64, 64] = map [i, j] {{ exp(%y[i, j]) }}\n{link}  return %x8, %d\n}}\n")


THROUGH_LIBRARY = chain("  %b: f32[64, 64] = library.matmul (%a, %w) {transpose_a = false, transpose_b = false}\n"
                        "  %d: f32[64, 64] = map [i, j] { exp(%b[i, j]) }\n")
DIRECT = chain("  %b: f32[64] = reduce.sum [j] over [i < 64] { %a[i, j] }\n"
               "  %c: f32[64] = reduce.sum [i] over [j < 64] { mul(%a[i, j], %b[j]) }\n"
               "  %d: f32[64, 64] = map [i, j] { exp(mul(%c[j], 0.001:f32)) }\n")


@pytest.mark.parametrize("text", [THROUGH_LIBRARY, DIRECT], ids=["through-library", "direct"])
def test_a_kernel_and_one_that_needs_it_are_not_packed(text: str) -> None:
    """The plan is found, and gives what torch gives."""
    generate(parse_graph(text), constants={}, device=H200, options=Options())
    generator = torch.Generator().manual_seed(3)
    x, w, y = (torch.randn(64, 64, generator=generator) * 0.1 for _ in range(3))
    first, second = compile_graph(parse_graph(text), constants={}, device="host", options=Options())(x, w, y)
    wanted = x
    for _ in range(8):
        wanted = wanted @ w
    a = torch.exp(y)
    other = torch.exp(a @ w) if text is THROUGH_LIBRARY else torch.exp((a * a.sum(0)).sum(1) * 0.001).expand(64, 64)
    np.testing.assert_allclose(first, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(second, other, rtol=1e-4, atol=1e-4)
