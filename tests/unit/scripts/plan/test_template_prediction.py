"""Kernels made from meanings, predicted beside fused routines: what reads, last blocks and persistent grids change."""
from __future__ import annotations

import pytest

from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.ir.text import parse_graph
from tilefuse.plan.pattern import PlannedKernel
from tilefuse.scripts.plan.prediction import ARRIVALS_US, READ_SHARE, STANDING_READY_US, behind_another_us
from tilefuse.scripts.plan.template_prediction import LAST_BLOCK_US, LAST_OF_COLUMNS_US, PERSISTENT_US, template_us
from tilefuse.target.catalog import device_by_name
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.packed.packed import Packed

H200 = device_by_name("h200")


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
    """By READ_SHARE of what stands beyond the launch, for the part that is read."""
    (kernel,) = kernels(streaming(reads))
    beyond = kernel.cost.us - H200.graph_launch_us
    assert template_us(kernel, H200) == pytest.approx(kernel.cost.us - beyond * (1 - READ_SHARE) * reads / (reads + 1) - STANDING_READY_US)


def test_a_sum_over_blocks_costs_its_last_block() -> None:
    """All blocks of the one row arrive at one counter."""
    (kernel,) = kernels("graph @g(%x: f32[1048576]) -> (f32[]) {\n  %s: f32[] = reduce.sum [] over [k < 1048576] { %x[k] }\n  return %s\n}")
    read = kernel.cost.us - (kernel.cost.us - H200.graph_launch_us) * (1 - READ_SHARE) * (1 - 4 / (4 * 1048576 + 4))
    ending = LAST_BLOCK_US + ARRIVALS_US * kernel.program.launch.num_blocks / 1000
    assert template_us(kernel, H200) == pytest.approx(behind_another_us(read) + ending, rel=1e-6)


def test_a_persistent_grid_costs_its_start_and_end() -> None:
    """A'(A x): rows kept on chip, column sums in registers."""
    first, _ = kernels("""graph @atax(%A: f32[4096, 4096], %x: f32[4096]) -> (f32[4096]) {
      %t: f32[4096] = reduce.sum [i] over [k < 4096] { mul(%A[i, k], %x[k]) }
      %y: f32[4096] = reduce.sum [j] over [k < 4096] { mul(%A[k, j], %t[k]) }
      return %y
    }""")
    share = first.program.bytes_read / (first.program.bytes_read + first.program.bytes_written)
    bandwidth_us = first.cost.us - (first.cost.us - H200.graph_launch_us) * (1 - READ_SHARE) * share
    assert template_us(first, H200) == pytest.approx(behind_another_us(bandwidth_us) + PERSISTENT_US)


def test_a_packed_sum_over_blocks_costs_its_last_block_too() -> None:
    """Rows and columns of a small matrix summed in one launch: its column sums are split as those of a kernel of their own."""
    (kernel,) = kernels("""graph @both(%A: f32[512, 512], %x: f32[512], %y: f32[512]) -> (f32[512], f32[512]) {
      %t: f32[512] = reduce.sum [i] over [k < 512] { mul(%A[i, k], %x[k]) }
      %u: f32[512] = reduce.sum [j] over [k < 512] { mul(%A[k, j], %y[k]) }
      return %t, %u
    }""")
    assert isinstance(kernel.program.choice, Packed)
    assert template_us(kernel, H200) > behind_another_us(kernel.cost.us * READ_SHARE) + LAST_OF_COLUMNS_US


def test_the_host_has_no_such_costs() -> None:
    """Nothing is added where nothing was measured."""
    host = device_by_name("host")
    (kernel,) = kernels(streaming(1), host)
    assert template_us(kernel, host) == kernel.cost.us
