"""Kernels of tasks: bodies by their own templates, waits before them and publications behind them, and the order of all tasks.

    await the stages that this one reads     for each tile of the task: the body's statements     publish

Composing proves the kernel: its task program is read back from the kernel IR, accesses by accesses.
"""
from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from tilefuse.base.errors import InternalError
from tilefuse.domain.tile import TileProgram
from tilefuse.emit.kernel_writer import extent_in_memory
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import I32
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import Barrier, Buffer, For, Group, If, Kernel, Let, Member, Stmt
from tilefuse.kernel.tasks.extract import TASK, program_of
from tilefuse.kernel.tasks.order import COUNTER_WORDS, OWN_COUNTERS, Segment, TaskOrder
from tilefuse.kernel.tasks.proof import prove
from tilefuse.kernel.tasks.statements import Await, Publish
from tilefuse.kernel.writer import free_identifier, identifier
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.tasks.ahead import TILE, begun_early, fetches_of, settled_inputs, touched_slots
from tilefuse.templates.tasks.bodies import without_start
from tilefuse.templates.tasks.record import Tasks

COUNTERS = "task_counters"


def compose_tasks(program: TileProgram, choice: Tasks, device: DeviceSpec) -> Kernel:
    """The kernel of a task program. Raises: InternalError where its order is not proved."""
    taken = {COUNTERS}
    written = {v for s in choice.stages for v in s.values[_num_inputs(choice.bodies[s.body]):]} | {w.value for w in choice.windows}
    settled = [_settled(choice, n, written) if device.kind == "cuda" else frozenset[str]() for n in range(len(choice.bodies))]
    composed: list[Kernel] = []
    for body, inputs in zip(choice.bodies, settled, strict=True):
        kernel = kernel_template(body.choice).compose(body, device, inputs, taken)
        taken.update(text for b in kernel.buffers for text in (b.name, identifier(b.name)))
        composed.append(kernel)
    parameters = _Parameters(program, taken)
    members = [_members(choice, n, kernel, parameters) for n, kernel in enumerate(composed)]
    groups = tuple(_group(choice, n, kernel, members[n], settled[n], device) for n, kernel in enumerate(composed))
    num_tasks = sum(choice.num_tasks(n) for n in range(len(choice.stages)))
    num_counters = OWN_COUNTERS + len(choice.stages)
    counters = Buffer(COUNTERS, I32, num_counters * COUNTER_WORDS, "global", "counter")
    globals_ = tuple(replace(b, role="out" if b.origin in written else "in") for b in parameters.buffers.values())
    shared = tuple(b for kernel in composed for b in kernel.buffers if b.space == "shared")
    name_of = {b.origin: b.name for b in globals_}
    order = TaskOrder(_segments(choice), COUNTERS, num_counters, tuple(b.notation for b in choice.bodies),
                      tuple((name_of[w.value], name_of[w.base], w.first) for w in choice.windows), choice.limit_ms,
                      choice.recorded)
    launch = Launch(choice.workers, choice.threads, 1, max(k.launch.shared_bytes for k in composed), device.starts_early)
    header = (program.notation, f"reads {program.bytes_read} bytes, writes {program.bytes_written} bytes",
              f"{num_tasks} tasks of {len(choice.stages)} stages, {len(groups)} bodies, {num_counters} counters")
    kernel = Kernel(program.name, (*globals_, counters, *shared), launch, groups, header, min_blocks=choice.together,
                    tasks=order)
    findings = prove(program_of(kernel))
    if findings:
        listed = tuple(f"{f.task} {f.message}" for f in findings)
        raise InternalError(f"kernel {kernel.name}: {listed[0]}", hint="please report it with the graph's text", notes=listed[1:])
    return kernel


class _Parameters:
    """Parameters of the kernel, one for each value. `buffers`: by value."""

    def __init__(self, program: TileProgram, taken: set[str]) -> None:
        self.program = program
        self.taken = taken
        self.buffers: dict[str, Buffer] = {}

    def of(self, value: str, slot: Buffer) -> str:
        """Name of the parameter that holds a value, for a slot of a body."""
        if value not in self.buffers:
            name = free_identifier(value, self.taken)
            self.buffers[value] = replace(slot, name=name, num_elements=extent_in_memory(self.program, value), origin=value)
        return self.buffers[value].name


def _num_inputs(body: TileProgram) -> int:
    return len(body.graph.inputs)


def _members(choice: Tasks, body: int, kernel: Kernel, parameters: _Parameters) -> tuple[Member, ...]:
    """The stages of one body, with operands and waits. Each has as many waits as the stage with most of them; spare ones wait for zero."""
    graph = choice.bodies[body].graph
    place = {v: n for n, v in enumerate((*(i.name for i in graph.inputs), *graph.results))}
    most = _most_waits(choice, body)
    members = []
    for n, stage in enumerate(choice.stages):
        if stage.body != body:
            continue
        arguments = tuple(parameters.of(stage.values[place[slot.origin]], slot) for slot in kernel.parameters)
        waits = [x for a in stage.awaits for x in (OWN_COUNTERS + a, choice.num_tasks(a))]
        numbers = (OWN_COUNTERS + n, *waits, *(OWN_COUNTERS, 0) * (most - len(stage.awaits)))
        members.append(Member(arguments, choice.num_tasks(n), numbers))
    return tuple(members)


def _most_waits(choice: Tasks, body: int) -> int:
    return max(len(s.awaits) for s in choice.stages if s.body == body)


def _settled(choice: Tasks, body: int, written: Set[str]) -> frozenset[str]:
    """Inputs of a body that its tasks may read before they wait: those that no stage of it reads from another task."""
    names = tuple(i.name for i in choice.bodies[body].graph.inputs)
    if not choice.ahead or not _most_waits(choice, body):
        return frozenset()
    return settled_inputs(names, [s.values for s in choice.stages if s.body == body], written)


def _group(choice: Tasks, body: int, kernel: Kernel, members: Sequence[Member], settled: Set[str], device: DeviceSpec) -> Group:
    """A body with its waits and its publication. settled: inputs that it may read before it waits."""
    waits = _most_waits(choice, body)
    names = ("tf_own", *(name for n in range(waits) for name in (f"tf_from_{n}", f"tf_tasks_{n}")))
    extents = tuple((name, 1 + max(m.numbers[n] for m in members)) for n, name in enumerate(names))
    awaits = tuple(Await(COUNTERS, axis(f"tf_from_{n}"), axis(f"tf_tasks_{n}")) for n in range(waits))
    awaited = {a for s in choice.stages for a in s.awaits}
    publishes = any(n in awaited for n, s in enumerate(choice.stages) if s.body == body)
    slots = frozenset(slot.name for slot in kernel.parameters if slot.origin in settled)
    num_blocks, tiles = choice.bodies[body].launch.num_blocks, choice.tiles[body]
    before: tuple[Stmt, ...] = ()
    if tiles == 1:
        before, work = begun_early(kernel.body, slots)
        before = (Let("block", axis(TASK), num_blocks), *before)
    else:
        work = _tiles(without_start(kernel), num_blocks, tiles)
    end = (Publish(COUNTERS, axis("tf_own")),) if publishes else ()
    group = Group(0, kernel.parameters, tuple(members), (*before, *awaits, *work, *end), extents, (), kernel.narrow)
    most_bytes = device.l2_bytes * device.fitted.traffic.pending_l2_share
    fetches = fetches_of(group, choice.threads, tiles, slots - touched_slots(before), most_bytes)
    if tiles > 1:
        work = _tiles(without_start(kernel), num_blocks, tiles, fetches.in_tile)
    return replace(group, body=(*before, *fetches.before, *awaits, *work, *end))


def _tiles(body: tuple[Stmt, ...], num_blocks: int, tiles: int, fetches: tuple[Stmt, ...] = ()) -> tuple[Stmt, ...]:
    """The statements of a task of several tiles: the body once for each, whose numbers follow each other. fetches: before each tile."""
    tile: Affine = axis(TASK) * tiles + axis(TILE)
    inner: tuple[Stmt, ...] = (*body, Barrier())
    if num_blocks % tiles:
        inner = (If((Bound(axis("block"), 0, num_blocks),), inner),)
    every = (*fetches, Let("block", tile, -(-num_blocks // tiles) * tiles), *inner)
    return (For(TILE, number(0), number(tiles), 1, every, rolled=True),)


def _segments(choice: Tasks) -> tuple[Segment, ...]:
    count = [0] * len(choice.bodies)
    segments = []
    for n, stage in enumerate(choice.stages):
        segments.append(Segment(stage.body, count[stage.body], choice.num_tasks(n)))
        count[stage.body] += 1
    return tuple(segments)
