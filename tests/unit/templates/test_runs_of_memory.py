"""Transpositions whose tiles are one run of memory: a short axis between neighbours of the one that is written."""
from __future__ import annotations

from dataclasses import replace

import pytest

from tilefuse.base.errors import UserError
from tilefuse.domain.tile import Choice, TileProgram
from tilefuse.ir.layouts import channels_last_strides
from tilefuse.ir.text import parse_graph
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200
from tilefuse.templates.by_hand import program_by_hand
from tilefuse.templates.compose import compose
from tilefuse.templates.neighbours import neighbours
from tilefuse.templates.notation import Setting, parse_template
from tilefuse.templates.pattern import schedule_graph
from tilefuse.templates.transpose.record import Transpose


def packing(shape: tuple[int, int, int, int], strides: tuple[int, ...] | None = None) -> Choice:
    """The schedule of a weight that is stored channels last."""
    return weights(shape, strides).choice


def weights(shape: tuple[int, int, int, int], strides: tuple[int, ...] | None = None) -> TileProgram:
    """The kernel that stores a weight channels last."""
    text = ", ".join(map(str, shape))
    graph = parse_graph(f"""graph @pack(%w: f16[{text}]) -> (f16[{text}]) {{
      %p: f16[{text}] = map [o, c, h, q] {{ f16(%w[o, c, h, q]) }}
      return %p
    }}""")
    layouts = {"p": channels_last_strides(shape)} | ({"w": strides} if strides else {})
    tile = schedule_graph(graph, layouts, H200)
    assert isinstance(tile, TileProgram)
    return tile


def test_weights_of_three_by_three_are_read_in_whole_vectors() -> None:
    choice = packing((512, 512, 3, 3))
    assert isinstance(choice, Transpose) and (choice.depth, choice.columns, choice.read_vector) == (0, 9, 8)
    assert choice.rows * choice.columns * 2 <= 16 * 1024


def images(shape: tuple[int, int, int, int], dtype: str = "f32", strides: tuple[int, ...] | None = None) -> TileProgram:
    """The kernel that lays images channels last."""
    text = ", ".join(map(str, shape))
    graph = parse_graph(f"""graph @images(%x: {dtype}[{text}]) -> ({dtype}[{text}]) {{
      %p: {dtype}[{text}] = map [n, c, h, w] {{ %x[n, c, h, w] }}
      return %p
    }}""")
    tile = schedule_graph(graph, {"p": strides or channels_last_strides(shape)}, H200)
    assert isinstance(tile, TileProgram)
    return tile


def test_images_of_three_channels_are_written_in_whole_vectors() -> None:
    """A block writes runs of pixels; one element a thread with two divisions took seven times as long as the bytes."""
    program = images((64, 3, 224, 224))
    choice = program.choice
    assert isinstance(choice, Transpose) and choice.writes_run and (choice.rows, choice.read_vector, choice.write_vector) == (3, 4, 4)
    source = print_cuda(compose(program, H200), H200)
    assert "tf_vector_store_stream<4>(p + " in source and "tf_vector_load_stream<4>(" in source
    small = images((1, 3, 224, 224)).choice
    assert isinstance(small, Transpose) and small.columns < choice.columns


def test_images_of_whole_vectors_of_channels_need_no_run() -> None:
    for channels in (4, 64):
        choice = images((8, channels, 64, 64)).choice
        assert not isinstance(choice, Transpose) or not choice.writes_run


def test_pixels_with_gaps_are_no_run() -> None:
    choice = images((8, 3, 64, 64), strides=(64 * 64 * 4, 1, 64 * 4, 4)).choice
    assert not isinstance(choice, Transpose)


@pytest.mark.parametrize(("shape", "wrong"), [((64, 3, 224, 224), "rows=2"), ((512, 512, 3, 3), "columns=32")])
def test_runs_have_one_width(shape: tuple[int, int, int, int], wrong: str) -> None:
    """Templates by hand and candidates for tuning keep the side that makes a tile a run."""
    program = images(shape, "f16") if shape[1] == 3 else weights(shape)
    for choice in neighbours(program, H200):
        assert isinstance(choice, Transpose)
        assert choice.rows == 3 if choice.writes_run else choice.columns == 9
    template = parse_template(program.notation)
    assert program_by_hand(program, template, H200).choice == program.choice
    kept = tuple(s for s in template.settings if s.name != wrong.split("=")[0])
    with pytest.raises(UserError, match="no runs of memory"):
        program_by_hand(program, parse_template(str(replace(template, settings=(*kept, Setting(*_setting(wrong)))))), H200)


def _setting(text: str) -> tuple[str, int]:
    name, value = text.split("=")
    return name, int(value)


def test_an_axis_of_whole_vectors_needs_no_run() -> None:
    choice = packing((512, 256, 4, 4))
    assert not isinstance(choice, Transpose) or choice.depth > 0


def test_gaps_between_the_pieces_are_no_run() -> None:
    choice = packing((64, 64, 3, 3), (1024, 16, 3, 1))
    assert not isinstance(choice, Transpose) or choice.depth > 0


def test_pieces_that_begin_between_vectors_are_no_run() -> None:
    choice = packing((64, 60, 3, 3), (543, 9, 3, 1))
    assert not isinstance(choice, Transpose) or choice.depth > 0
