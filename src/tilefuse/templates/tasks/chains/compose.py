"""Kernels of chains in groups: bodies by their own templates, rings in place of the values that they hand on, counters of each group.

    producer of group g     await users of slot g:    products of group g - slots     ..   publish counter [g]
    product of group g      await producers of g, and the users of group g - slots    ..   publish counter [groups + g]
    user of group g         await products of g                                       ..   publish counter [2 groups + g]

Composing proves the kernel: its task program is read back from the kernel IR, access by access.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from tilefuse.base.errors import InternalError
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import I32
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.asynchronous import AsyncCopy
from tilefuse.kernel.ir import Barrier, Buffer, For, Group, If, Kernel, Let, Load, Member, Stmt, Store, VectorLoad, VectorStore
from tilefuse.kernel.tasks.bundles import prove_bundles
from tilefuse.kernel.tasks.extract import TASK, bundles_of
from tilefuse.kernel.tasks.order import COUNTER_WORDS, OWN_COUNTERS, TaskOrder
from tilefuse.kernel.tasks.statements import Await, Publish
from tilefuse.kernel.writer import identifier
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.tasks.ahead import TILE
from tilefuse.templates.tasks.bodies import without_start
from tilefuse.templates.tasks.chains.record import PRODUCER, PRODUCT, USER, GroupedChain, mixture_of
from tilefuse.templates.tasks.compose import COUNTERS

GROUP, SLOTS, REUSED = "tf_group", ("tf_slot_v", "tf_slot_m"), ("tf_reused_v", "tf_reused_m")
_ACCESSES = (Load, VectorLoad, VectorStore, Store, AsyncCopy)


@dataclass(frozen=True, slots=True)
class _Ring:
    """The ring of a handed value. length: elements of a group."""

    slots: int
    length: int
    start: Affine

    @property
    def shift(self) -> Affine:
        """From an element of the whole value to its place in the ring."""
        return (self.start - axis(GROUP)) * self.length


def compose_chain(program: TileProgram, choice: GroupedChain, device: DeviceSpec) -> Kernel:
    """The kernel of a chain. Raises: InternalError where its order is not proved."""
    taken = {COUNTERS}
    composed: list[Kernel] = []
    for body in choice.bodies:
        kernel = kernel_template(body.choice).compose(body, device, frozenset(), taken)
        taken.update(text for b in kernel.buffers for text in (b.name, identifier(b.name)))
        composed.append(kernel)
    rings = {value: _Ring(choice.rhythm.slots[n], choice.bodies[n].graph.type_of(value).num_elements // choice.groups, axis(SLOTS[n]))
             for n, value in enumerate(choice.handed)}
    buffers = _parameters(program, composed, rings)
    groups = tuple(_group(choice, n, kernel, buffers, rings) for n, kernel in enumerate(composed))
    mixture = mixture_of(choice)
    num_counters = OWN_COUNTERS + 3 * choice.groups
    counters = Buffer(COUNTERS, I32, num_counters * COUNTER_WORDS, "global", "counter")
    shared = tuple(b for kernel in composed for b in kernel.buffers if b.space == "shared")
    order = TaskOrder((), COUNTERS, num_counters, tuple(b.notation for b in choice.bodies), (), choice.limit_ms, choice.recorded, mixture)
    launch = Launch(program.launch.num_blocks, choice.threads, 1, max(k.launch.shared_bytes for k in composed), device.starts_early)
    header = (program.notation, f"reads {program.bytes_read} bytes, writes {program.bytes_written} bytes",
              f"{mixture.num_tasks} tasks of {choice.groups} groups, {num_counters} counters")
    kernel = Kernel(program.name, (*buffers.values(), counters, *shared), launch, groups, header, min_blocks=choice.resident, tasks=order)
    findings = prove_bundles(bundles_of(kernel))
    if findings:
        listed = tuple(f"{f.task} {f.message}" for f in findings)
        raise InternalError(f"kernel {kernel.name}: {listed[0]}", hint="please report it with the graph's text", notes=listed[1:])
    return kernel


def _parameters(program: TileProgram, composed: Sequence[Kernel], rings: Mapping[str, _Ring]) -> dict[str, Buffer]:
    """The kernel's buffers in global memory, by value: those of the caller, and a workspace for each ring."""
    written = set(program.graph.results)
    buffers: dict[str, Buffer] = {}
    for slot in (b for kernel in composed for b in kernel.parameters):
        if slot.origin in rings:
            ring = rings[slot.origin]
            buffers.setdefault(slot.origin, replace(slot, num_elements=ring.slots * ring.length, role="workspace", origin=""))
        else:
            buffers.setdefault(slot.origin, replace(slot, role="out" if slot.origin in written else "in"))
    return {value: replace(b, name=f"{b.name}_of_all") for value, b in buffers.items()}


def _group(choice: GroupedChain, body: int, kernel: Kernel, buffers: Mapping[str, Buffer], rings: Mapping[str, _Ring]) -> Group:
    """A body with its waits and its publication; a member for each group of tiles."""
    slots = tuple(replace(b, num_elements=buffers[b.origin].num_elements) for b in kernel.parameters)
    shift_by_slot = {b.name: rings[b.origin].shift for b in kernel.parameters if b.origin in rings}
    arguments = tuple(buffers[b.origin].name for b in kernel.parameters)
    rhythm, groups = choice.rhythm, range(choice.groups)
    columns = {GROUP: list(groups)}
    for n, of in enumerate(rhythm.slots):
        columns |= {SLOTS[n]: [g % of for g in groups], REUSED[n]: [int(g >= of) for g in groups]}
    used = {PRODUCER: (GROUP, SLOTS[0], REUSED[0]), PRODUCT: (GROUP, *SLOTS, REUSED[1]), USER: (GROUP, SLOTS[1])}[body]
    members = tuple(Member(arguments, choice.tasks(body), tuple(columns[name][g] for name in used)) for g in groups)
    numbers = tuple((name, 1 + max(columns[name])) for name in used)
    work = _blocks(choice, body, _in_rings(without_start(kernel), shift_by_slot))
    publish = Publish(COUNTERS, axis(GROUP) + (OWN_COUNTERS + body * choice.groups))
    return Group(0, slots, members, (*_awaits(choice, body), *work, publish), numbers, (), kernel.narrow)


def _awaits(choice: GroupedChain, body: int) -> tuple[Await, ...]:
    """Waits of a group's tasks: for the writers of their operands, and for the last readers of the slots that they write."""
    def of(other: int) -> Await:
        return Await(COUNTERS, axis(GROUP) + (OWN_COUNTERS + other * choice.groups), number(choice.tasks(other)))

    def readers(ring: int, other: int) -> Await:
        behind = axis(REUSED[ring]) * choice.rhythm.slots[ring]
        return Await(COUNTERS, axis(GROUP) - behind + (OWN_COUNTERS + other * choice.groups), axis(REUSED[ring]) * choice.tasks(other))

    reused = [choice.rhythm.slots[n] < choice.groups for n in range(2)]
    if body == PRODUCER:
        return (readers(0, PRODUCT),) if reused[0] else ()
    if body == PRODUCT:
        return (of(PRODUCER), *((readers(1, USER),) if reused[1] else ()))
    return (of(PRODUCT),)


def _blocks(choice: GroupedChain, body: int, work: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The statements of a task: the body's for each of its blocks, which follow each other."""
    count, each, total = choice.blocks[body], choice.each[body], choice.bodies[body].launch.num_blocks
    own: Affine = axis(GROUP) * count + axis(TASK) * each
    whole = count * choice.groups
    if each == 1:
        block = Let("block", own, whole)
        return (block, *work) if whole == total else (block, If((Bound(axis("block"), 0, total),), work))
    inner: tuple[Stmt, ...] = (*work, Barrier())
    if whole > total:
        inner = (If((Bound(axis("block"), 0, total),), inner),)
    return (For(TILE, number(0), number(each), 1, (Let("block", own + axis(TILE), whole), *inner), rolled=True),)


def _in_rings(body: tuple[Stmt, ...], shift_by_slot: Mapping[str, Affine]) -> tuple[Stmt, ...]:
    """The statements with accesses to handed values in their rings, without hints that would let L2 give them up."""
    def changed(x: Any) -> Any:
        if type(x) is tuple:
            new = tuple(map(changed, x))
            return new if any(a is not b for a, b in zip(x, new, strict=True)) else x
        if not is_dataclass(x) or isinstance(x, Affine):
            return x
        inner: dict[str, Any] = {f.name: new for f in fields(x) if f.init and (new := changed(old := getattr(x, f.name))) is not old}
        if isinstance(x, _ACCESSES) and x.buffer in shift_by_slot:
            inner["index"] = x.index + shift_by_slot[x.buffer]
            if not isinstance(x, AsyncCopy):
                inner["cache"] = ""
        return replace(x, **inner) if inner else x

    result: tuple[Stmt, ...] = changed(body)
    return result
