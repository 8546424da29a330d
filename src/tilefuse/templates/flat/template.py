"""The flat walk as a template."""
from __future__ import annotations

from collections.abc import Hashable

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.construction import replace
from tilefuse.domain.access import accesses
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Ending, Work
from tilefuse.emit.kernel_writer import KernelWriter
from tilefuse.target.capabilities import WARP
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.any_size import AnySize
from tilefuse.templates.explained import LevelTile, extents_of, length_of
from tilefuse.templates.flat.any_size import FlatOfAnySize
from tilefuse.templates.flat.choose import choose_pointwise
from tilefuse.templates.flat.compose import compose_pointwise
from tilefuse.templates.flat.legality import flat_refusal
from tilefuse.templates.flat.neighbours import flat_neighbours
from tilefuse.templates.flat.notation import FlatNotation
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.flat.side_by_side import last_axis, num_vectors
from tilefuse.templates.levels import LevelTraffic, flat_bytes, line_adds, run_of, with_sectors
from tilefuse.templates.neighbours import others_than
from tilefuse.templates.overwrites import reads_lie_at_results
from tilefuse.templates.request import WalkedPattern
from tilefuse.templates.template import Overlaps, Resources
from tilefuse.templates.walk import WalkTemplate, elementwise_thread_loss, widest_itemsize


class FlatTemplate(WalkTemplate[Pointwise]):
    """Elementwise kernels: every thread takes vectors of the results in memory order."""

    record = Pointwise
    notation = FlatNotation()

    def walk_traffic(self, choice: Pointwise, program: TileProgram, device: DeviceSpec, near_bytes: int) -> LevelTraffic:
        """Each tile of points touches each of its elements once, and tiles share nothing."""
        domain = program.domain
        points = choice.vector * choice.threads * choice.steps
        moved = sum(flat_bytes(a, choice.order, points, domain, program.graph.type_of(a.value).num_bytes) for a in accesses(domain))
        lanes = WARP // choice.side * choice.vector
        run = run_of(choice.order, lanes, domain)
        if choice.side > 1:
            run = [*run_of((last_axis(choice.order, domain.extents),), lanes, domain), (choice.across, choice.side)]
        return with_sectors(LevelTraffic(max(moved, program.bytes_moved), 0), domain, device.fitted.traffic, run, run)

    def work(self, program: TileProgram, device: DeviceSpec) -> Work:
        """As of every walk, and the operations of a thread between its loads and its stores. Vectors of warps across two axes have a rate
        of their own, at any width. They touch single sectors of lines: where L2 does not hold the tensors, other warps come for the
        other sectors of a line too late."""
        work, c, fitted = super().work(program, device), self.choice_of(program), device.fitted.flat
        if program.domain.scatter is not None:
            adds, requests = line_adds(program, last_axis(c.order, program.domain.extents))
            work = replace(work, line_adds=adds, line_requests=requests)
        if all(n.category != "reduce" for n in program.graph.nodes):
            threads = program.launch.num_blocks * program.launch.num_threads
            work = replace(work, item_operations=program.flops / max(threads * c.steps, 1))
        if c.side == 1:
            return work
        vectors = length_of(program.domain, c.order) / c.vector
        return replace(work, stage_us=vectors / fitted.across_vectors_per_us,
                       traffic_factor=fitted.sectors_factor if program.bytes_moved > device.l2_bytes else 1.0)

    def endings(self, choice: Pointwise, program: TileProgram) -> tuple[Ending, ...]:
        """None: no thread waits for another."""
        return ()

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """Vectors of a thread's loads under way."""
        choice = self.choice_of(program)
        operands = len(program.graph.inputs) + len(program.graph.results)
        least = device.fitted.packed.flat_registers
        return Resources(least + min(operands, 8) * choice.vector * choice.steps * widest_itemsize(program) // 4, 0)

    def overlaps(self, choice: Pointwise) -> Overlaps:
        """Its blocks walk memory by their numbers alone."""
        return Overlaps(walks_memory=True, turns=True, waits_itself=True, fetches_settled=False)

    def write(self, writer: KernelWriter, choice: Pointwise) -> None:
        """Loads, expressions and stores of a thread's vectors."""
        compose_pointwise(writer, choice)

    def refusal(self, choice: Pointwise, domain: Domain, device: DeviceSpec) -> Rejected | None:
        """Warps that stand across two axes are whole ones."""
        return flat_refusal(choice, domain)

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[Pointwise, ...]:
        """Other numbers of threads and steps, other lanes across; on the host other widths and steps."""
        base = self.choice_of(program)
        return others_than(base, flat_neighbours(base, device))

    # -- from a pattern to a program -------------------------------------------------------------------------------------------

    priority = 1

    def choose(self, pattern: WalkedPattern) -> Pointwise | Rejected:
        """A walk in memory order, for patterns whose threads share nothing, or scatter."""
        if pattern.exchanges_values:
            return Rejected(Reason.OTHER_TEMPLATE, "threads share results of reductions")
        return choose_pointwise(pattern.domain, pattern.device, pattern.accesses)

    def launch(self, choice: Pointwise, domain: Domain) -> Launch:
        """As many blocks as cover all vectors, and one for points that fill none."""
        vectors = max(num_vectors(choice, domain.extents), min(length_of(domain, choice.order), 1))
        return Launch(-(-vectors // (choice.threads * choice.steps)), choice.threads)

    def in_one_pass(self, domain: Domain) -> Domain:
        """The domain itself: threads share no reductions."""
        return domain

    def keeps_elements(self, choice: Pointwise) -> bool:
        """False: no reduction needs an element again."""
        return False

    def sums_vectors(self, choice: Pointwise) -> bool:
        """False: each lane of a vector is a point of its own."""
        return False

    # -- updates in place, explanations, parts of packed kernels ---------------------------------------------------------------

    def loads_where_it_stores(self, program: TileProgram, value: str) -> bool:
        """Each thread computes its own elements from operands that it loads itself."""
        return True

    def reads_where_it_stores(self, program: TileProgram, value: str, target: str) -> bool:
        """Whether the walk touches `target` at the offset of the result only, and stores each element once."""
        domain = program.domain
        once = domain.scatter is None and domain.num_kept * domain.num_reduced == program.graph.type_of(value).num_elements
        return bool(target) and once and reads_lie_at_results(domain, value, target)

    def tiles(self, program: TileProgram, launch: Launch) -> tuple[LevelTile, ...]:
        """Elements in the order of the walk."""
        choice = self.choice_of(program)
        each, walked = choice.vector * choice.steps, "*".join(choice.order) or "element"
        return (LevelTile("grid", extents_of(program.domain, choice.order)), LevelTile("block", ((walked, each * launch.num_threads),)),
                LevelTile("warp", ((walked, each * min(WARP, launch.num_threads)),)), LevelTile("thread", ((walked, each),)))

    def part_refusal(self, program: TileProgram) -> Rejected | None:
        """None: its blocks know nothing of each other."""
        return None

    def with_threads(self, program: TileProgram, threads: int, device: DeviceSpec) -> Pointwise | None:
        """A flat walk takes any number of threads."""
        return replace(self.choice_of(program), threads=threads)

    def thread_loss(self, choice: Pointwise, changed: Pointwise, device: DeviceSpec) -> float:
        """Smaller blocks leave threads of a multiprocessor unused."""
        return elementwise_thread_loss(choice, changed, device)

    def likeness(self, program: TileProgram) -> Hashable | None:
        """The same kinds of nodes on the same element types, whatever the extents."""
        graph = program.graph
        return tuple((n.kind, n.type.dtype.name) for n in graph.nodes), tuple(i.type.dtype.name for i in graph.inputs), len(graph.results)

    @property
    def any_size(self) -> AnySize[Pointwise] | None:
        """Walks whose accesses follow the flat position take any number of elements."""
        return FlatOfAnySize()
