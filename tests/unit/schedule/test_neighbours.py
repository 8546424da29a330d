"""Candidates for tuning: the chosen template first, none twice, all composable, and their kernels give the same results."""
from __future__ import annotations

import pytest

from tests.golden.workloads import WORKLOADS, tile_program
from tests.unit.schedule.test_by_hand import softmax
from tilefuse.base.candidate import Rejected
from tilefuse.base.options import Options
from tilefuse.codegen.compose import compose
from tilefuse.driver.measure import KernelMeasurer
from tilefuse.plan.measure import Timing
from tilefuse.schedule.by_hand import program_by_hand
from tilefuse.schedule.neighbours import neighbours
from tilefuse.schedule.notation import parse_template
from tilefuse.schedule.pattern import schedule_graph
from tilefuse.schedule.tile import TileProgram
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200

HOST = host_device()


@pytest.mark.parametrize("device", [H200, HOST], ids=lambda d: d.name)
@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_neighbours_are_kernels_and_have_templates(name: str, device) -> None:  # type: ignore[no-untyped-def]
    program = tile_program(name, device)
    if not isinstance(program, TileProgram):
        pytest.skip("no schedule on this device")
    found = neighbours(program, device)
    assert found[0] == program.choice and len(set(found)) == len(found)
    for choice in found[1::5]:
        made = schedule_graph(program.graph, program.layouts, device, choice)
        if isinstance(made, Rejected):
            continue
        assert compose(made, device).launch.num_threads <= device.max_threads_per_block
        assert program_by_hand(program, parse_template(made.notation), device).choice == made.choice


def test_a_program_without_parameters_has_none() -> None:
    program = softmax()
    object.__setattr__(program, "choice", None)
    assert neighbours(program, H200) == ()


def test_every_host_neighbour_gives_the_results_of_the_first() -> None:
    program = softmax(HOST)
    measurer = KernelMeasurer(HOST, "host", Options())
    made = [schedule_graph(program.graph, program.layouts, HOST, c) for c in neighbours(program, HOST)]
    programs = [m for m in made if isinstance(m, TileProgram)]
    assert len(programs) > 2
    measurer.prepare(programs)
    assert all(isinstance(measurer.measure(p), Timing) for p in programs)
