"""Products by panels on the host executor: against f64, every access checked, any tiles; those that do not fit are refused."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.unit.templates.host_build import compiler, run
from tilefuse.base.candidate import Rejected
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import F16, F32, DType
from tilefuse.ir.graph import Graph, Input, Node, Type
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose
from tilefuse.templates.neighbours import neighbours, program_with
from tilefuse.templates.panels.record import Panels
from tilefuse.templates.panels.template import PanelsTemplate
from tilefuse.templates.request import Request

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


def product(lead: tuple[int, ...], rows: int, inner: int, columns: int, turned: bool, dtype: DType = F32,
            arithmetic: str = "default") -> Graph:
    """left [2, lead.., rows, inner] times right [lead.., inner, columns], or the same with the inner axis last."""
    right = (*lead, columns, inner) if turned else (*lead, inner, columns)
    inputs = (Input("left", Type(dtype, (2, *lead, rows, inner))), Input("right", Type(dtype, right)))
    attributes = (("precision", arithmetic), ("transpose_a", False), ("transpose_b", turned))
    node = Node("out", Type(dtype, (2, *lead, rows, columns)), "library.matmul", operands=("left", "right"), attributes=attributes)
    return Graph("product", inputs, (node,), ("out",))


def proposed(graph: Graph) -> TileProgram | Rejected:
    """The template's answer for a body of tasks."""
    return PanelsTemplate().propose(Request(graph, {}, H200, is_part=True, is_task=True))


@needs_compiler
@pytest.mark.parametrize("turned", [True, False], ids=["inner axis last", "columns last"])
def test_tiles_of_all_kinds(turned: bool, tmp_path: Path) -> None:
    """One, two and five panels beside rings of two to four slots; blocks of one warp's rows and of many."""
    draw, numbers = Random(4), np.random.default_rng(4)
    for inner in (32, 64, 160):
        graph = product((3,), 128, inner, 96, turned)
        program = proposed(graph)
        assert isinstance(program, TileProgram)
        left, right = (numbers.standard_normal(i.type.shape).astype(np.float32) for i in graph.inputs)
        exact = left.astype(np.float64) @ (right.swapaxes(-1, -2) if turned else right).astype(np.float64)
        for choice in (program.choice, *draw.sample(neighbours(program, H200)[1:], 3)):
            other = program_with(program, choice, H200)
            assert isinstance(other, TileProgram)
            kernel = compose(other, H200)
            after, status, report = run(kernel, {"left": left.ravel(), "right": right.ravel()}, tmp_path, check=True)
            assert not status, report
            assert np.abs(after["out"].reshape(exact.shape) - exact).max() < 2e-6 * inner**0.5 * 8, choice


def test_products_that_do_not_fit() -> None:
    """Other types, f32 without the matrix unit, sizes that no tile divides; and kernels of their own, which others compute faster."""
    assert isinstance(proposed(product((3,), 128, 64, 96, True, F16)), Rejected)
    assert isinstance(proposed(product((3,), 128, 64, 96, True, arithmetic="f32")), Rejected)
    assert "no tiles of panels cover" in str(proposed(product((3,), 100, 64, 96, True)))
    assert "no tiles of panels cover" in str(proposed(product((3,), 128, 60, 96, True)))
    alone = PanelsTemplate().propose(Request(product((3,), 128, 64, 96, True), {}, H200))
    assert "bodies of tasks" in str(alone)


def test_impossible_tiles_are_refused() -> None:
    """Warps that do not divide a tile, and rings beyond shared memory."""
    program = proposed(product((3,), 128, 64, 128, True))
    assert isinstance(program, TileProgram) and isinstance(program.choice, Panels)
    uneven = program_with(program, replace(program.choice, rows=32, down=4), H200)
    assert "divide no tile" in str(uneven)
    large = program_with(program, Panels(128, 128, 4, 4, 64, 8), H200)
    assert isinstance(large, Rejected)
