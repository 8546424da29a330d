"""Random graphs with products: every stitched kernel, with tiles chosen or drawn, computes its graph bit for bit, without findings."""
from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.laws.random_products import product_inputs, random_joins, random_layers, random_products, random_tiles
from tests.unit.templates.host_build import SHORT_CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.test_compose import buffer_of
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import print_graph
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose
from tilefuse.templates.pattern import schedule_pattern
from tilefuse.templates.staged.stitched.template import schedule_stitched

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
TOGETHER = 14
# Most drawn cases must be accepted, or the law says nothing.
LEAST_ACCEPTED = TOGETHER // 2


def programs(graph: Graph, seed: int) -> list[TileProgram]:
    """The stitched programs of a graph: as chosen, and with tiles drawn by lot."""
    shape = max((graph.type_of(r).shape for r in graph.results), key=prod)
    found = (schedule_pattern(graph, [n.name for n in graph.nodes], {}, H200),
             schedule_stitched(graph, {}, H200, random_tiles(Random(seed), shape)))
    return [p for p in found if isinstance(p, TileProgram)]


DRAWN = [*((random_products, n) for n in range(0, 4 * TOGETHER, TOGETHER)), (random_layers, 0), (random_joins, 0)]


@pytest.mark.parametrize(("drawn", "first"), DRAWN)
def test_stitched_kernels_agree_bit_for_bit(drawn: Callable[[Random], Graph], first: int, tmp_path: Path) -> None:
    made = []
    for seed in range(first, first + TOGETHER):
        graph = drawn(Random(seed))
        made += [(seed, p, compose(p, H200)) for p in programs(graph, seed)]
    assert len(made) >= LEAST_ACCEPTED
    library = build_together([(k, True) for _, _, k in made], tmp_path, SHORT_CHECKED_FLAGS)
    for number, (seed, program, kernel) in enumerate(made):
        inputs = product_inputs(program.graph, seed)
        buffers = {b.name: inputs[b.origin].ravel() for b in kernel.parameters if b.origin in inputs}
        memory, status, report = call(getattr(library, f"{kernel.name}_{number}"), kernel, buffers)
        what = f"seed {seed}, {program.choice}\n{print_graph(program.graph)}"
        assert status == 0, f"{report}\n{what}"
        for result, value in zip(program.graph.results, interpret(program.graph, inputs), strict=True):
            found = memory[buffer_of(kernel, result).name].reshape(value.shape)
            np.testing.assert_array_equal(found.astype(np.float64), value.astype(np.float64), err_msg=what)
