"""Registers of row and column kernels, which decide what they may be packed with."""
from __future__ import annotations

import pytest

from tilefuse.domain.tile import TileProgram
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200
from tilefuse.templates.pattern import schedule_pattern
from tilefuse.templates.registry import kernel_template


def registers(sums: int, turned: bool) -> int:
    """Of a kernel that adds each row, or each column, for every one of some places."""
    kept, reduced = ("j", "i < 65536") if turned else ("i", "j < 4096")
    count = 64 if turned else 256
    shape = "65536, 64" if turned else "256, 4096"
    nodes = "\n".join(f"%s{n}: f32[{count}] = reduce.sum [{kept}] over [{reduced}] {{ select(eq(%w[i, j], {n}:i32), %x[i, j], 0.0:f32) }}"
                      for n in range(sums))
    results = ", ".join(f"%s{n}" for n in range(sums))
    graph = parse_graph(f"graph @sums(%x: f32[{shape}], %w: i32[{shape}]) -> ({', '.join([f'f32[{count}]'] * sums)}) {{\n{nodes}\n"
                        f"return {results}\n}}")
    program = schedule_pattern(graph, [f"s{n}" for n in range(sums)], {}, H200)
    assert isinstance(program, TileProgram) and program.choice.template == ("columns" if turned else "rows")
    return kernel_template(program.choice).resources(program, H200).registers


@pytest.mark.parametrize("turned", [False, True], ids=["rows", "columns"])
def test_many_sums_take_registers_of_their_own(turned: bool) -> None:
    few, some, many = (registers(n, turned) for n in (1, 4, 20))
    assert few == some < many and many - some >= 16
