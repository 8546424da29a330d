"""Row schedules: how many vectors a thread takes where combining threads costs more than an element."""
from __future__ import annotations

import pytest

from tests.unit.codegen.pattern_graphs import row_extremes
from tilefuse.schedule.pattern import schedule_graph
from tilefuse.schedule.template import Rows
from tilefuse.schedule.tile import TileProgram
from tilefuse.target.device import H200


def chosen(rows: int, length: int, dtype: str) -> Rows:
    """The schedule of a row's extremes and their positions."""
    program = schedule_graph(row_extremes(rows, length, dtype).graph, {}, H200)
    assert isinstance(program, TileProgram) and isinstance(program.choice, Rows)
    return program.choice


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("length", [1024, 4096, 8192])
def test_threads_that_find_positions_hold_many_narrow_elements(length: int, dtype: str) -> None:
    choice = chosen((1 << 27) // length, length, dtype)
    assert choice.chunks * choice.vector >= 64 and choice.threads * choice.rows == 128


@pytest.mark.parametrize("length", [4096, 8192])
def test_few_rows_keep_their_threads(length: int) -> None:
    """Fewer threads a row would leave multiprocessors idle."""
    assert chosen(300, length, "f16").threads >= 128
