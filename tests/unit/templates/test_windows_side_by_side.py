"""Reductions over windows: one thread each where they overlap or are short, threads together where they are rows like others."""
from __future__ import annotations

import pytest

from tilefuse.domain.tile import TileProgram
from tilefuse.ir.text import parse_graph
from tilefuse.plan.price.cost import AnalyticCost
from tilefuse.target.device import H200
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.pattern import schedule_graph

# The norm of a patch merging: 4 * 96 features of four neighbouring pixels are a row.
MERGED = "112*j + 2*k + 56*((l // 96) % 2) + (l // 192)"
NORM = f"""graph @merged(%x: f16[16, 3136, 96]) -> (f16[16, 28, 28, 384]) {{
  %s: f32[16, 28, 28] = reduce.sum [i, j, k] over [l < 384] {{ f32(%x[i, {MERGED}, (l % 96)]) }}
  %n: f16[16, 28, 28, 384] = map [i, j, k, l] {{ f16(sub(f32(%x[i, {MERGED}, (l % 96)]), mul(%s[i, j, k], 0.0026:f32))) }}
  return %n
}}"""


def program(text: str) -> TileProgram:
    found = schedule_graph(parse_graph(text), {}, H200)
    assert isinstance(found, TileProgram)
    return found


def pool(window: int, stride: int) -> str:
    """Means of square windows of 16 images with 64 channels, channels last."""
    extent = stride * 8 + max(window - stride, 0)
    return f"""graph @pool(%x: f32[16, {extent}, {extent}, 64]) -> (f32[16, 8, 8, 64]) {{
      %y: f32[16, 8, 8, 64] = reduce.sum [n, i, j, c] over [k < {window}, l < {window}] {{ %x[n, {stride}*i + k, {stride}*j + l, c] }}
      return %y
    }}"""


def test_a_norm_of_merged_patches_is_walked_by_rows() -> None:
    """By one thread each, every element's thread would sum all of its row: a timm Swin at batch 16 took 12.3 ms on an H200."""
    made = program(NORM)
    assert not isinstance(made.choice, Pointwise)
    assert AnalyticCost(H200).cost(made).us < 40


@pytest.mark.parametrize(("window", "stride", "alone"), [(7, 2, True), (2, 2, True), (3, 3, True), (7, 7, False), (3, 1, True)])
def test_windows_that_overlap_or_are_short_are_one_threads(window: int, stride: int, alone: bool) -> None:
    assert isinstance(program(pool(window, stride)).choice, Pointwise) is alone


def test_what_every_thread_sums_for_itself_is_counted() -> None:
    """Softmax over four neighbours: each of the four elements' threads sums them."""
    made = program("""graph @g(%x: f32[65536, 4]) -> (f32[65536, 4]) {
      %s: f32[65536] = reduce.sum [i] over [k < 4] { exp(%x[i, k]) }
      %y: f32[65536, 4] = map [i, k] { div(exp(%x[i, k]), %s[i]) }
      return %y
    }""")
    assert isinstance(made.choice, Pointwise) and made.flops >= 65536 * 4 * 4 * 2
