"""Work of a script's kernels: reads, last blocks and persistent grids of templates, measured compute routines."""
from __future__ import annotations

import pytest

from tests.unit.scripts.routine_scripts import sequence
from tilefuse.base.options import Options
from tilefuse.domain.roofline import price_work
from tilefuse.driver.compile import generate
from tilefuse.ir.text import parse_graph
from tilefuse.plan.pattern import PlannedKernel
from tilefuse.plan.price.cost import AnalyticCost
from tilefuse.scripts.plan.fusions import find_fusions
from tilefuse.scripts.plan.implementations import list_candidates
from tilefuse.scripts.plan.routine_times import Environment, RoutineTimes
from tilefuse.scripts.plan.work import routine_work, template_us
from tilefuse.target.catalog import device_by_name
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.packed.packed import Packed

H200 = device_by_name("h200")
FIGURES, ENDINGS = H200.fitted.scripts, H200.fitted.endings
START_OVERLAP_US = H200.fitted.flight.start_overlap_us


def kernels(text: str, device: DeviceSpec = H200) -> list[PlannedKernel]:
    """The planned kernels of a graph."""
    plan = generate(parse_graph(text), constants={}, input_layouts={}, device=device, options=Options()).plan
    return [step for step in plan.steps if isinstance(step, PlannedKernel)]


def streaming(reads: int) -> str:
    """A map of so many vectors."""
    names = [f"%x{n}" for n in range(reads)]
    inputs = ", ".join(f"{n}: f32[67108864]" for n in names)
    body = f"neg({names[0]}[i])"
    for n in names[1:]:
        body = f"add({body}, {n}[i])"
    return f"graph @g({inputs}) -> (f32[67108864]) {{\n  %y: f32[67108864] = map [i] {{ {body} }}\n  return %y\n}}"


@pytest.mark.parametrize("reads", [1, 3])
def test_reads_count_less_than_writes(reads: int) -> None:
    """By `read_share` of the traffic's time, for the part that is read."""
    (kernel,) = kernels(streaming(reads))
    saved_us = AnalyticCost(H200).parts(kernel.program).global_us * (1 - FIGURES.read_share) * reads / (reads + 1)
    assert template_us(kernel, H200) == pytest.approx(kernel.cost.us - saved_us - START_OVERLAP_US)


def test_a_sum_over_blocks_costs_its_last_block() -> None:
    """All blocks of the one row arrive at one counter."""
    (kernel,) = kernels("graph @g(%x: f32[1048576]) -> (f32[]) {\n  %s: f32[] = reduce.sum [] over [k < 1048576] { %x[k] }\n  return %s\n}")
    parts = AnalyticCost(H200).parts(kernel.program)
    assert parts.ending_us == ENDINGS.last_block_us + ENDINGS.arrivals_us * kernel.program.launch.num_blocks
    saved_us = parts.global_us * (1 - FIGURES.read_share) * (1 - 4 / (4 * 1048576 + 4))
    assert template_us(kernel, H200) == pytest.approx(kernel.cost.us - saved_us - START_OVERLAP_US, rel=1e-6)


def test_a_persistent_grid_costs_its_start_and_end() -> None:
    """A'(A x): rows kept on chip, column sums in registers."""
    first, _ = kernels("""graph @atax(%A: f32[4096, 4096], %x: f32[4096]) -> (f32[4096]) {
      %t: f32[4096] = reduce.sum [i] over [k < 4096] { mul(%A[i, k], %x[k]) }
      %y: f32[4096] = reduce.sum [j] over [k < 4096] { mul(%A[k, j], %t[k]) }
      return %y
    }""")
    share = first.program.bytes_read / (first.program.bytes_read + first.program.bytes_written)
    bandwidth_us = first.cost.us - (first.cost.us - H200.graph_launch_us) * (1 - FIGURES.read_share) * share
    assert template_us(first, H200) == pytest.approx(bandwidth_us - START_OVERLAP_US + FIGURES.persistent_us)


def test_a_packed_sum_over_blocks_costs_its_last_block_too() -> None:
    """Rows and columns of a small matrix summed in one launch: its column sums are split as those of a kernel of their own."""
    (kernel,) = kernels("""graph @both(%A: f32[512, 512], %x: f32[512], %y: f32[512]) -> (f32[512], f32[512]) {
      %t: f32[512] = reduce.sum [i] over [k < 512] { mul(%A[i, k], %x[k]) }
      %u: f32[512] = reduce.sum [j] over [k < 512] { mul(%A[k, j], %y[k]) }
      return %t, %u
    }""")
    assert isinstance(kernel.program.choice, Packed)
    ending = ENDINGS.last_columns_us
    assert template_us(kernel, H200) > (kernel.cost.us - ending) * FIGURES.read_share - START_OVERLAP_US + ending


def test_the_host_has_no_such_costs() -> None:
    """Nothing is added where nothing was measured."""
    host = device_by_name("host")
    (kernel,) = kernels(streaming(1), host)
    assert template_us(kernel, host) == kernel.cost.us


@pytest.mark.parametrize("double", [False, True])
def test_a_measured_compute_routine_is_charged_by_the_word(double: bool) -> None:
    """Words of f64 were charged twice: their bytes were taken for words of f32."""
    graph = sequence("sscal", 0, 1 << 22, double)
    facts = list_candidates(graph, find_fusions(graph).legal[0], H200).ranked[0].facts
    moved = facts.moved[0]
    times = RoutineTimes("h200", 0.5, {}, {(moved.function, moved.implementation, "compute"): [(Environment(1, 8, 0), 3.0)]})
    priced = price_work(routine_work(facts, H200, times, Environment(1, 8, 0)), H200)
    assert priced.arithmetic_us == pytest.approx(3.0 * (1 << 22) / 1e6)
