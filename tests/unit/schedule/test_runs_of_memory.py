"""Transpositions whose tiles are one run of memory: a short axis between neighbours of the one that is written."""
from __future__ import annotations

from tilefuse.ir.text import parse_graph
from tilefuse.plan.layout import channels_last_strides
from tilefuse.schedule.pattern import schedule_graph
from tilefuse.schedule.template import Choice, Transpose
from tilefuse.schedule.tile import TileProgram
from tilefuse.target.device import H200


def packing(shape: tuple[int, int, int, int], strides: tuple[int, ...] | None = None) -> Choice:
    """The schedule of a weight that is stored channels last."""
    text = ", ".join(map(str, shape))
    graph = parse_graph(f"""graph @pack(%w: f16[{text}]) -> (f16[{text}]) {{
      %p: f16[{text}] = map [o, c, h, q] {{ f16(%w[o, c, h, q]) }}
      return %p
    }}""")
    layouts = {"p": channels_last_strides(shape)} | ({"w": strides} if strides else {})
    tile = schedule_graph(graph, layouts, H200)
    assert isinstance(tile, TileProgram)
    return tile.choice


def test_weights_of_three_by_three_are_read_in_whole_vectors() -> None:
    choice = packing((512, 512, 3, 3))
    assert isinstance(choice, Transpose) and (choice.depth, choice.columns, choice.read_vector) == (0, 9, 8)
    assert choice.rows * choice.columns * 2 <= 16 * 1024


def test_an_axis_of_whole_vectors_needs_no_run() -> None:
    choice = packing((512, 256, 4, 4))
    assert isinstance(choice, Transpose) and choice.depth > 0


def test_gaps_between_the_pieces_are_no_run() -> None:
    choice = packing((64, 64, 3, 3), (1024, 16, 3, 1))
    assert not isinstance(choice, Transpose) or choice.depth > 0


def test_pieces_that_begin_between_vectors_are_no_run() -> None:
    choice = packing((64, 60, 3, 3), (543, 9, 3, 1))
    assert not isinstance(choice, Transpose) or choice.depth > 0
