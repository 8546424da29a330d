"""Random graphs with products: every stitched kernel, with tiles chosen or drawn, computes its graph bit for bit, without findings."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.laws.random_products import product_inputs, random_joins, random_layers, random_products, random_tiles, random_wide_layers
from tests.unit.templates.host_build import SHORT_CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.test_compose import buffer_of
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import print_graph
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.templates.compose import compose
from tilefuse.templates.pattern import schedule_pattern
from tilefuse.templates.staged.stitched.plan import StitchPlan
from tilefuse.templates.staged.stitched.record import Stitched
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
        made += [(seed, p) for p in programs(graph, seed)]
    assert len(made) >= LEAST_ACCEPTED
    agree(made, tmp_path)


def agree(made: Sequence[tuple[int, TileProgram]], folder: Path) -> None:
    """Every program computes its graph; each has the seed of its inputs."""
    kernels = [compose(p, H200) for _, p in made]
    library = build_together([(k, True) for k in kernels], folder, SHORT_CHECKED_FLAGS)
    for number, ((seed, program), kernel) in enumerate(zip(made, kernels, strict=True)):
        inputs = product_inputs(program.graph, seed)
        buffers = {b.name: inputs[b.origin].ravel() for b in kernel.parameters if b.origin in inputs}
        memory, status, report = call(getattr(library, f"{kernel.name}_{number}"), kernel, buffers)
        what = f"seed {seed}, {program.choice}\n{print_graph(program.graph)}"
        assert status == 0, f"{report}\n{what}"
        for result, value in zip(program.graph.results, interpret(program.graph, inputs), strict=True):
            found = memory[buffer_of(kernel, result).name].reshape(value.shape)
            np.testing.assert_array_equal(found.astype(np.float64), value.astype(np.float64), err_msg=what)


def sharing(device: DeviceSpec) -> DeviceSpec:
    """The device, with slow threads and warps that exchange sums for nothing: each idle warp takes a part of the inner axis."""
    stitch = device.fitted.stitch
    multiply = replace(stitch.multiply, exchange_cycles=0.0, half_step_cycles=1e4, fma_per_cycle=0.01)
    return replace(device, fitted=replace(device.fitted, stitch=replace(stitch, multiply=multiply)))


@pytest.mark.parametrize("first", range(0, 4 * TOGETHER, TOGETHER))
def test_warps_that_share_the_inner_axis_agree_bit_for_bit(first: int, tmp_path: Path) -> None:
    """Layers in one block, whose sums, operands and results take each other's place in shared memory."""
    made: list[tuple[int, TileProgram]] = []
    shared = 0
    for seed in range(first, first + TOGETHER):
        random = Random(seed)
        graph = random_wide_layers(random)
        columns = graph.type_of(graph.results[0]).shape[-1]
        choice = Stitched((16, random.choice((columns, 8))), random.choice((128, 256, 512)), random.choice((0, 0, 1, 3)))
        program = schedule_stitched(graph, {}, sharing(H200), choice)
        if isinstance(program, TileProgram):
            assert isinstance(program.internal, StitchPlan)
            shared += any(s.exchange_bytes for s in program.internal.stages)
            made.append((seed, program))
    assert shared >= LEAST_ACCEPTED
    agree(made, tmp_path)
