"""Plans and templates by hand through `tilefuse.compile`: they run, and what does not fit the device is refused before it is built."""
from __future__ import annotations

import pytest
import torch

import tilefuse
from tests.unit.schedule.test_by_hand import SOFTMAX
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
