"""Cost of a kernel, predicted from its traffic and arithmetic. Every number comes from the device's record.

`CostModel` is the interface; `AnalyticCost` is the cheap source that filters. Costs by execution come from outside through the same
interface. No scheduling decision is made here.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tilefuse.domain.roofline import Parts, busy_us_by_unit, price_work
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Unit, Work
from tilefuse.plan.pattern import Cost
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.early import beside_others
from tilefuse.templates.registry import kernel_template

# Units that stages keep busy, as explanations name them.
UNIT_NAMES: tuple[tuple[Unit, str], ...] = (
    ("threads", "threads"), ("tensor", "tensor cores"), ("special", "special functions"), ("shared", "shared memory"), ("l2", "port to L2"))
STAGES_WITHIN = "; the time of a kernel of stages is part of its arithmetic time"
STAGES_ORIGIN = "issue slots and latencies of the kernel's stages, estimated by the scheduler"


class CostModel(Protocol):
    """Predicts the time of one kernel."""

    def cost(self, program: TileProgram) -> Cost:
        """Time of the kernel. Units: microseconds."""
        ...

    def limit_us(self, program: TileProgram) -> float:
        """Lower bound on the kernel's time. Units: microseconds. Source: the device's record, or a measurement, as the model states."""
        ...


@dataclass(frozen=True, slots=True)
class Figure:
    """One number behind a cost. `unit` as in "us", "bytes", "1"; `origin` states its source."""

    name: str
    value: float
    unit: str
    origin: str


class AnalyticCost:
    """K(P) + phi: the work of a tile program, priced by `roofline.price_work`.

    Units: microseconds. Boundary tensors count once in global memory; repeated reads of blocks come from L2. Few blocks, or few threads on
    a multiprocessor, have too few loads in flight to saturate the memory. The launch is that of a captured graph: an eager launch is hidden
    behind the previous kernel on a busy device.
    Source: FusionStitching 4.3; roofline model, Williams, Waterman and Patterson 2009, CACM 52(4); Little's law for the loads in flight.
    """

    def __init__(self, device: DeviceSpec) -> None:
        self.device = device

    def cost(self, program: TileProgram) -> Cost:
        """Time of the kernel. Units: microseconds. Source: the class's text."""
        parts = self.parts(program)
        return Cost(parts.us, parts.decided_by)

    def limit_us(self, program: TileProgram) -> float:
        """The kernel's boundary bytes at full bandwidth, without launch.

        Units: microseconds. Source: DeviceSpec.global_bytes_per_s, a device copy of 1 GiB.
        """
        return program.bytes_moved / self.device.global_bytes_per_s * 1e6

    def parts(self, program: TileProgram) -> Parts:
        """The time's parts. Source: as the class."""
        return price_work(self.work(program), self.device)

    def work(self, program: TileProgram) -> Work:
        """The kernel's work, and whether its launch passes while the kernel ahead ends. Source: its template; `templates/early.py`."""
        template = kernel_template(program.choice)
        return beside_others(template.work(program, self.device), template.overlaps(program.choice), program, self.device)

    def figures(self, program: TileProgram) -> tuple[Figure, ...]:
        """The parts as numbers with unit and origin, for `explain`. Source: each figure's own `origin`."""
        work, device = self.work(program), self.device
        parts = price_work(work, device)
        origin_by_field = dict(device.origins)

        def rate(field: str) -> str:
            return origin_by_field.get(field, "not measured")

        busy_us = busy_us_by_unit(work, device)
        within = STAGES_WITHIN if work.blocks else ""
        computed = STAGES_ORIGIN if work.blocks else f"flops_per_s: {rate('flops_per_s')}"
        return (
            Figure("global bytes", parts.global_bytes, "bytes", "boundary tensors, each once"),
            Figure("L2 bytes", parts.l2_bytes, "bytes", "what each block reads and writes, summed over blocks" + within),
            Figure("shared bytes", parts.shared_bytes, "bytes", "tiles staged in shared memory, written and read" + within),
            Figure("global time", parts.global_us, "us", f"transfer_curve: {rate('transfer_curve')}"),
            Figure("L2 time", parts.l2_us, "us", f"resident_curve: {rate('resident_curve')}"),
            Figure("shared time", parts.shared_us, "us", f"shared_bytes_per_s: {rate('shared_bytes_per_s')}"),
            Figure("scattered time", parts.scattered_us, "us", "; ".join(
                f"{name}: {rate(name)}" for name in ("scattered_adds_per_s", "line_adds_per_s", "line_requests_per_s"))),
            Figure("time of partial sectors", parts.partial_us, "us", f"partial_sectors_per_s: {rate('partial_sectors_per_s')}"),
            Figure("time to start blocks", parts.started_us, "us", f"blocks_per_s: {rate('blocks_per_s')}"),
            Figure("arithmetic time", parts.arithmetic_us, "us", computed),
            *(Figure(f"busy {name}", busy_us.get(unit, 0.0), "us", "cycles of stages, over all multiprocessors; part of arithmetic time")
              for unit, name in UNIT_NAMES),
            Figure("end of sums", parts.ending_us, "us", "the last block of sums that blocks split; after the other times"),
            Figure("launch", parts.launch_us, "us", f"graph_launch_us: {rate('graph_launch_us')}"),
            Figure("busy multiprocessors", parts.busy_multiprocessors, "1", f"blocks of the launch, at most {device.num_multiprocessors}"),
            Figure("occupancy", parts.occupancy, "1", "threads of the blocks that fit a multiprocessor over its most"),
            Figure("bandwidth share", parts.share, "1", f"loads under way over saturating_bytes: {rate('saturating_bytes')}"),
        )


def gain_us(alone: Sequence[Cost], together: Cost) -> float:
    """f(P): time that one kernel saves compared with one per node. Each cost contains its launch, so N launches are replaced by one.

    Units: microseconds. Source: FusionStitching 4.3, f(P) = sum K(op) + (N - 1) phi - K(P).
    """
    return sum(c.us for c in alone) - together.us
