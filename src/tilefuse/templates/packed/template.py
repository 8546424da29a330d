"""Independent parts in one kernel as a template: what it says of itself follows from its parts' templates."""
from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence, Set
from dataclasses import replace

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Work, summed
from tilefuse.ir.graph import Graph, Node
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.any_size import AnySize
from tilefuse.templates.explained import NO_STAGES, LevelTile, Staging, largest_result, numbered
from tilefuse.templates.notation import Template
from tilefuse.templates.packed.compose import compose_packed
from tilefuse.templates.packed.neighbours import packed_neighbours
from tilefuse.templates.packed.packed import Packed, blocks_together, packed_like, schedule_packed
from tilefuse.templates.packed.packed_by_hand import packed_by_hand
from tilefuse.templates.packed.shares import turns_bytes
from tilefuse.templates.parts import PackedGroup
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.request import Request
from tilefuse.templates.stage_tree import StageTree
from tilefuse.templates.template import KernelTemplate, Overlaps, Resources


class PackedTemplate(KernelTemplate[Packed]):
    """Parts of any template that may be one of several, each over its own range of blocks."""

    record = Packed

    def work(self, program: TileProgram, device: DeviceSpec) -> Work:
        """The sum of the work of all parts; its grid is the whole launch.

        Parts of a group may differ in size: operations and bytes beyond the boundary's are taken in proportion to their elements.
        """
        choice = self.choice_of(program)
        works = [_group_work(g, device) for g in choice.groups]
        together = blocks_together(choice.groups, device, choice.threads) if any(w.blocks for w in works) else 0
        blocks = tuple(replace(b, resident=max(min(b.resident, together), 1)) for w in works for b in w.blocks)
        whole = replace(summed(works), grid=program.launch, read_bytes=program.bytes_read, global_bytes=program.bytes_moved, blocks=blocks)
        return _in_turns(whole, choice, works, device) if takes_turns(choice) else whole

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """The most of each that a part needs."""
        needs = [kernel_template(g.program.choice).resources(g.program, device) for g in self.choice_of(program).groups]
        return Resources(max(r.registers for r in needs), max(r.shared_bytes for r in needs), max(r.min_blocks for r in needs))

    def overlaps(self, choice: Packed) -> Overlaps:
        """Parts walk memory side by side: there is no one direction. Blocks in turns fetch ahead in all parts, or in none."""
        early = takes_turns(choice)
        return Overlaps(walks_memory=False, turns=False, waits_itself=early, fetches_settled=early, one_wave=early, prefetches=early)

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """One group of statements for each body."""
        return compose_packed(program, self.choice_of(program), device, settled)

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[Packed, ...]:
        """Other threads for all parts, or another body for one of them."""
        return packed_neighbours(self.choice_of(program), device)

    def program_with(self, program: TileProgram, choice: Packed, device: DeviceSpec) -> TileProgram | Rejected:
        """The same groups with those bodies, where they fit one launch."""
        return packed_like(program, choice.groups, device, choice.threads)

    def program_by_hand(self, program: TileProgram, template: Template, device: DeviceSpec) -> TileProgram:
        """The parts that the template writes, the others as they are."""
        return packed_by_hand(program, template, device)

    # -- from a pattern to a program -------------------------------------------------------------------------------------------

    priority = 0

    def propose(self, request: Request) -> TileProgram | Rejected:
        """Independent parts side by side, where packing is asked for; the program of the only part where there is one."""
        return schedule_packed(request)

    def own_kernel_share(self, device: DeviceSpec) -> float:
        """That of kernels whose prices leave out reads of cold weights."""
        return device.fitted.products.own_kernel_share

    def holds_product(self, node: Node, graph: Graph, device: DeviceSpec) -> bool:
        """False: its parts' templates do."""
        return False

    # -- updates in place, explanations, parts of packed kernels ---------------------------------------------------------------

    def loads_where_it_stores(self, program: TileProgram, value: str) -> bool:
        """False for the kernel as a whole: `groups` are asked one by one."""
        return False

    def reads_end_before_writes(self, program: TileProgram, value: str, target: str) -> bool:
        """False for the kernel as a whole: `groups` are asked one by one."""
        return False

    def reads_where_it_stores(self, program: TileProgram, value: str, target: str) -> bool:
        """False for the kernel as a whole: `groups` are asked one by one."""
        return False

    def computed_by_several(self, program: TileProgram) -> frozenset[str]:
        """None that the kernel as a whole knows: `groups` are asked one by one."""
        return frozenset()

    def tiles(self, program: TileProgram, launch: Launch) -> tuple[LevelTile, ...]:
        """The largest result; each group has tiles of its own."""
        return (LevelTile("grid", numbered(largest_result(program))),)

    def staging(self, program: TileProgram) -> Staging:
        """The shared memory of the part that allocates most before it is composed; each part has stages of its own."""
        parts = [kernel_template(g.program.choice).staging(g.program) for g in self.choice_of(program).groups]
        largest = max(parts, key=lambda s: s.allocated_bytes, default=NO_STAGES)
        return replace(NO_STAGES, requested_bytes=largest.requested_bytes, allocated_bytes=largest.allocated_bytes)

    def stage_tree(self, program: TileProgram) -> StageTree | None:
        """None: each part has a tree of its own."""
        return None

    @property
    def any_size(self) -> AnySize[Packed] | None:
        """None: it is no part."""
        return None

    @property
    def packs(self) -> bool:
        """Its parts are independent."""
        return True

    def stands_for(self, program: TileProgram) -> tuple[TileProgram, ...]:
        """None: its nodes would be kernels of their own."""
        return ()

    def groups(self, program: TileProgram) -> tuple[PackedGroup, ...]:
        """The groups in the order of their blocks."""
        return self.choice_of(program).groups

    def part_refusal(self, program: TileProgram) -> Rejected | None:
        """Its parts are parts of one kernel only."""
        return Rejected(Reason.UNSUPPORTED_OP, f"%{program.graph.results[0]} has a kernel of its own kind ({program.template})")

    def with_threads(self, program: TileProgram, threads: int, device: DeviceSpec) -> Packed | None:
        """None: it is no part."""
        return None

    def in_turns(self, program: TileProgram, blocks: int, fetches_early: bool, device: DeviceSpec) -> TileProgram | None:
        """None: it is no part."""
        return None

    def turns_bytes(self, program: TileProgram) -> int:
        """0: as `in_turns`."""
        return 0

    def thread_loss(self, choice: Packed, changed: Packed, device: DeviceSpec) -> float:
        """Nothing: it is no part."""
        return 0.0

    def likeness(self, program: TileProgram) -> Hashable | None:
        """None: it is no part."""
        return None


def takes_turns(choice: Packed) -> bool:
    """Whether the blocks of all parts take turns and run at once."""
    return all(turns_bytes(g.program) for g in choice.groups)


def _in_turns(whole: Work, choice: Packed, works: Sequence[Work], device: DeviceSpec) -> Work:
    """The work of blocks in turns: their copies in flight, and the block with the most turns, whose last ones have the memory alone."""
    blocks = sum(g.num_blocks for g in choice.groups)
    flight_bytes = sum(w.flight_bytes * g.num_blocks for w, g in zip(works, choice.groups, strict=True)) // blocks
    mean_bytes = whole.global_bytes / device.num_multiprocessors
    beyond = max(max(turns_bytes(g.program) for g in choice.groups) / mean_bytes - 1.0, 0.0)
    return replace(whole, flight_bytes=flight_bytes, fetches_early=all(w.fetches_early for w in works),
                   traffic_factor=1.0 + beyond / device.fitted.flight.multiprocessor_shares)


def _group_work(group: PackedGroup, device: DeviceSpec) -> Work:
    """Work of all parts of a group: of its body, in proportion to their elements; blocks of stages part by part."""
    body = replace(group.program, launch=replace(group.program.launch, num_blocks=group.num_blocks))
    work = kernel_template(body.choice).work(body, device)
    blocks = tuple(replace(b, blocks=p.num_blocks) for b in work.blocks for p in group.parts)
    # The last block of a part may be nearly empty: blocks of unlike parts are no measure of their work.
    sizes = [p.num_elements for p in group.parts] if group.any_size else [1] * len(group.parts)
    return replace(work.scaled(sum(sizes), max(1, *sizes)), blocks=blocks)
