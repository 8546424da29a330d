"""Plans and templates by hand through `tilefuse.compile`: they run, and what does not fit the device is refused before it is built."""
from __future__ import annotations

import pytest
import torch

import tilefuse
from tests.unit.templates.test_by_hand import SOFTMAX
from tilefuse.base.errors import CompilerError, UserError
from tilefuse.ir.text import parse_graph


def test_more_shared_memory_than_a_block_has_is_refused_with_the_numbers() -> None:
    """Sixty rows of 4 KiB on their way are 240 KiB; an H200 gives a block 227."""
    with pytest.raises(UserError) as caught:
        tilefuse.compile(SOFTMAX, target="h200", template="s [GRID_12,CTA_256]S; stages=60;")
    text = str(caught.value)
    assert "bytes of shared memory a block, and h200 has 232448" in text and "fewer stages" in text and "kernel k0" in text


def test_rows_on_their_way_that_fit_are_taken() -> None:
    made = tilefuse.compile(SOFTMAX, target="h200", template="s [GRID_12,CTA_256]S; stages=4;")
    (kernel,) = made.explain(json=True)["kernels"]
    assert "stages=4;" in kernel["notation"] and 4 * 4096 <= made.spec.kernels[0].launch.shared_bytes < 8 * 4096


def test_a_template_and_a_plan_run_on_the_host() -> None:
    x = torch.rand(64, 1024)
    ours = tilefuse.compile(SOFTMAX, device="host")
    lanes = tilefuse.compile(SOFTMAX, device="host", template="s [GRID,THREAD]; lanes=4;")
    followed = tilefuse.compile(SOFTMAX, device="host", plan=ours.spec.plan_text)
    assert "lanes=4;" in lanes.explain(json=True)["kernels"][0]["notation"]
    for program in (ours, lanes, followed):
        torch.testing.assert_close(program(x)[0], torch.softmax(x, -1))


@pytest.mark.parametrize(("lanes", "told"), [(1, ""), (2, "simd safelen(2)"), (4, "simd safelen(4)"), (8, "simd safelen(8)")])
def test_accumulators_fewer_than_a_vector_are_not_assigned_side_by_side(lanes: int, told: str) -> None:
    """Sixteen elements go round so many accumulators: where the compiler was told that all are independent, AVX-512 lost three of four."""
    x = torch.rand(64, 1024)
    program = tilefuse.compile(SOFTMAX, device="host", template=f"s [GRID,THREAD]; lanes={lanes};")
    torch.testing.assert_close(program(x)[0], torch.softmax(x, -1))
    source = program.source()
    assert told in source and source.count("safelen") == 2 * bool(told)


def test_the_request_stands_in_the_error_and_long_texts_do_not() -> None:
    text = tilefuse.compile(SOFTMAX, target="h200").spec.plan_text.replace("%m, ", "%mm, ")
    with pytest.raises(CompilerError) as caught:
        tilefuse.compile(SOFTMAX, target="h200", plan=text)
    (note,) = caught.value.__notes__
    assert "graph @softmax for h200 with plan=<" in note and "kernel k0" not in note


def test_blocks_of_whole_dimensions_run_on_the_host() -> None:
    """FusionStitching's form of an elementwise kernel: a block a row, which one vector more than its threads does not fill."""
    graph = parse_graph("""graph @mapped(%x: f32[7, 3, 85]) -> (f32[7, 3, 85]) {
      %y: f32[7, 3, 85] = map [i, j, k] { add(%x[i, j, k], 1.0:f32) }
      return %y
    }""")
    x = torch.rand(7, 3, 85)
    for text in ("y [GRID,CTA,CTA];", "y [GRID,GRID,WARP]; cta_size=32; vector=2;", "y [CTA,CTA,CTA];"):
        torch.testing.assert_close(tilefuse.compile(graph, device="host", check=True, template=text)(x)[0], x + 1)


MOTIVATING = """graph @motivating(%a: f32[6, 94, 8], %b: f32[6, 94, 8]) -> (f32[6, 94, 8], f32[6, 94], f32[6, 94, 94]) {
  %dot_1: f32[6, 94, 94] = library.matmul (%a, %b) {precision = "default", transpose_a = false, transpose_b = true}
  %add: f32[6, 94, 94] = map [i, j, k] { add(%dot_1[i, j, k], 1.0:f32) }
  %reduce_1: f32[6, 94] = reduce.max [i, j] over [k < 94] { %add[i, j, k] }
  %exp: f32[6, 94, 94] = map [i, j, k] { exp(sub(%add[i, j, k], %reduce_1[i, j])) }
  %reduce_2: f32[6, 94] = reduce.sum [i, j] over [k < 94] { %exp[i, j, k] }
  %divide: f32[6, 94, 94] = map [i, j, k] { div(%exp[i, j, k], %reduce_2[i, j]) }
  %log_1: f32[6, 94] = map [i, j] { log(%reduce_2[i, j]) }
  %dot_2: f32[6, 94, 8] = library.matmul (%divide, %b) {precision = "default", transpose_a = false, transpose_b = false}
  return %dot_2, %log_1, %divide
}"""


@pytest.mark.parametrize(("text", "rows"), [
    ("dot_1 [GRID,CTA,CTA]S; add [GRID,CTA,CTA]S; divide [GRID,CTA,CTA]; log_1 [GRID,CTA]; cta_num=6; cta_size=256;", 94),
    ("divide [GRID,GRID-CTA_25,CTA]; log_1 [GRID,GRID-CTA_25];", 25),
    ("reduce_1 [GRID,GRID-CTA_16,WARP]S;", 16)])
def test_schedules_of_other_values_tell_the_tile_of_a_stitched_kernel(text: str, rows: int) -> None:
    """FusionStitching's motivating example, figure 1, without a schedule of the last product."""
    made = tilefuse.compile(parse_graph(MOTIVATING), target="h200", template=text)
    (kernel,) = made.explain(json=True)["kernels"]
    assert kernel["template"] == "stitched" and f"tile_1={rows};" in kernel["notation"]
    with pytest.raises(UserError, match="contradicts the others"):
        tilefuse.compile(parse_graph(MOTIVATING), target="h200", template="divide [GRID,GRID-CTA_25,CTA]; log_1 [GRID,GRID-CTA_16];")
