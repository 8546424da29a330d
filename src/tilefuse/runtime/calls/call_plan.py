"""The plan of a call as plain data, derived from a program's spec: pointer slots, allocations, releases, the arena.

Every pointer argument of every kernel step is one slot of one table. Storage that only kernels touch lies in the arena; storage that
library calls or the caller use is a tensor of its own. This file does not use torch.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilefuse.base.errors import InternalError
from tilefuse.runtime.calls.arena import Extent, Placement, aligned, live_peak_bytes, place
from tilefuse.runtime.spec import CopyStep, KernelStep, LibraryStep, ProgramSpec, Value
from tilefuse.target.memory import SMALL_TENSOR_BYTES

ITEMSIZE: dict[str, int] = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "f8e4m3": 1, "f8e5m2": 1, "i64": 8, "i32": 4, "i16": 2, "i8": 1,
                            "u64": 8, "u32": 4, "u16": 2, "u8": 1, "bool": 1}
LARGE_BYTES = SMALL_TENSOR_BYTES
# Bytes of inputs that a call may hold longer than necessary, so that few steps release anything. From 16 to 128 KiB, small values are
# released together with the large ones after them.
# Steps that release: 50 layers of [64, 512], backward: 74 of 151 (100 at 0, 49 at 1 MiB); ViT-S: 131 of 158 (131, 119).
WAITING_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Slot:
    """A pointer argument: slot number in the table, and bytes from the start of the storage it points into."""

    number: int
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory of a call by use. Units: bytes. `peak_bytes` excludes inputs and constants; `unplanned_bytes`: without any sharing."""

    constant_bytes: int
    input_bytes: int
    result_bytes: int
    arena_bytes: int
    counter_bytes: int
    peak_bytes: int
    unplanned_bytes: int

    def __str__(self) -> str:
        rows = (("constants", self.constant_bytes), ("inputs", self.input_bytes), ("results", self.result_bytes),
                ("arena", self.arena_bytes), ("peak besides inputs and constants", self.peak_bytes),
                ("without sharing", self.unplanned_bytes))
        return ", ".join(f"{name} {num_bytes / 2**20:.2f} MiB" for name, num_bytes in rows)


@dataclass(frozen=True, slots=True)
class CallPlan:
    """The steps of a call.

    slots_by_root       for every storage (a value that is no view) that is a tensor: the slots that point into it
    arena_slots         slots that point into the arena: offsets from its start
    counter_slots       slots that point into the counters, which are zero between kernels
    step_slots          per step: first slot and number of slots (kernel steps), else (0, 0)
    allocate_before     per step: tensors that must be made before it
    release_after       per step: tensors that nothing needs after it
    views_before        per step: views (tensors for library calls, copies and results) that can be made before it; one more
                        entry at the end for the views that only the caller sees
    """

    num_slots: int
    slots_by_root: Mapping[str, tuple[Slot, ...]]
    arena_slots: tuple[Slot, ...]
    counter_slots: tuple[Slot, ...]
    step_slots: tuple[tuple[int, int], ...]
    allocate_before: tuple[tuple[str, ...], ...]
    release_after: tuple[tuple[str, ...], ...]
    views_before: tuple[tuple[str, ...], ...]
    memory: MemoryPlan


@dataclass(slots=True)
class _Use:
    """First and last step that touches a storage; whether other steps than kernels touch it; whether the caller receives it."""

    first: int
    last: int
    foreign: bool = False
    written: bool = False
    library_result: bool = False


def storage_bytes(value: Value) -> int:
    """Bytes from the first to the last element of a value. Units: bytes."""
    return storage_span(value.shape, value.strides) * ITEMSIZE[value.dtype]


def storage_span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last, gaps included. Units: elements."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides))


def root_of(value: Value, values: Mapping[str, Value]) -> tuple[str, int]:
    """The storage that a value lies in, and its offset there. Units: bytes. Raises: InternalError for an unknown base or a cycle."""
    offset = 0
    for _ in range(len(values) + 1):
        if value.role != "view":
            return value.name, offset
        offset += value.offset * ITEMSIZE[value.dtype]
        if value.base not in values:
            raise InternalError(f"view {value.name} has an unknown base {value.base!r}")
        value = values[value.base]
    raise InternalError(f"view {value.name} is a view of itself")


@dataclass(slots=True)
class _Draft:
    """The plan while the steps are visited."""

    spec: ProgramSpec
    values: dict[str, Value]
    uses: dict[str, _Use] = field(default_factory=dict)
    slots: dict[str, list[Slot]] = field(default_factory=dict)
    scratch: list[tuple[int, int, int]] = field(default_factory=list)
    counters: list[Slot] = field(default_factory=list)
    counter_bytes: int = 0
    num_slots: int = 0
    step_slots: list[tuple[int, int]] = field(default_factory=list)

    def touch(self, name: str, step: int, *, foreign: bool, written: bool = False, library_result: bool = False) -> str:
        """Records that a step touches a value's storage; returns the storage's name."""
        if name not in self.values:
            raise InternalError(f"step {step} of program {self.spec.name} names an unknown value {name!r}")
        root, _ = root_of(self.values[name], self.values)
        use = self.uses.setdefault(root, _Use(step, step))
        use.last = max(use.last, step)
        use.foreign |= foreign
        use.written |= written
        use.library_result |= library_result
        return root


def plan_calls(spec: ProgramSpec) -> CallPlan:
    """The call plan of a program. Raises: InternalError when the spec contradicts itself."""
    draft = _Draft(spec, {v.name: v for v in spec.values})
    for number, step in enumerate(spec.steps):
        match step:
            case KernelStep():
                _walk_kernel(draft, number, step)
            case LibraryStep():
                for name in step.operands:
                    draft.touch(name, number, foreign=True)
                for name in step.results:
                    if name:
                        draft.touch(name, number, foreign=True, written=True, library_result=True)
                draft.step_slots.append((0, 0))
            case CopyStep():
                draft.touch(step.source, number, foreign=True)
                draft.touch(step.target, number, foreign=True, written=True)
                draft.step_slots.append((0, 0))
            case _:
                raise InternalError(f"program {spec.name} has an unknown step {step!r}")
    end = len(spec.steps)
    for name in spec.results:
        draft.touch(name, end, foreign=True)
    _check_written(draft)
    return _assemble(draft, _in_arena(draft))


def _walk_kernel(draft: _Draft, number: int, step: KernelStep) -> None:
    kernel = draft.spec.kernels[step.kernel]
    if len(step.arguments) != len(kernel.parameters):
        raise InternalError(f"kernel {kernel.name} takes {len(kernel.parameters)} arguments, step {number} gives {len(step.arguments)}")
    first = draft.num_slots
    counter_offset = 0
    for position, (name, parameter) in enumerate(zip(step.arguments, kernel.parameters)):
        num_bytes = parameter.num_elements * ITEMSIZE[parameter.dtype]
        if parameter.role == "counter":
            draft.counters.append(Slot(first + position, counter_offset))
            counter_offset += aligned(num_bytes)
            draft.counter_bytes = max(draft.counter_bytes, counter_offset)
        elif parameter.role == "workspace" and not name:
            draft.scratch.append((first + position, number, num_bytes))
        elif not name:
            raise InternalError(f"step {number} gives kernel {kernel.name} no value for parameter {parameter.name}")
        else:
            root = draft.touch(name, number, foreign=False, written=parameter.role != "in")
            value = draft.values[name]
            if value.dtype != parameter.dtype:
                raise InternalError(f"kernel {kernel.name}: parameter {parameter.name} is {parameter.dtype}, value {name} is {value.dtype}")
            draft.slots.setdefault(root, []).append(Slot(first + position, root_of(value, draft.values)[1]))
    draft.num_slots += len(step.arguments)
    draft.step_slots.append((first, len(step.arguments)))


def _check_written(draft: _Draft) -> None:
    for name, use in draft.uses.items():
        value = draft.values[name]
        if value.role in ("intermediate", "result") and not use.written and storage_bytes(value):
            raise InternalError(f"program {draft.spec.name} reads {name}, which no step writes")


def _extents(draft: _Draft, names: Sequence[str]) -> list[Extent]:
    return [Extent(n, storage_bytes(draft.values[n]), draft.uses[n].first, draft.uses[n].last) for n in names]


def _own_memory(draft: _Draft) -> list[str]:
    """Storages that a call allocates: all but inputs and constants."""
    return [n for n in draft.uses if draft.values[n].role in ("intermediate", "result")]


def _scratch_extents(draft: _Draft) -> list[Extent]:
    return [Extent(f"workspace {slot}", num_bytes, step, step) for slot, step, num_bytes in draft.scratch]


def _in_arena(draft: _Draft) -> list[str]:
    """Storages that only kernels touch, except those for which holding the arena during the whole call would raise the peak.

    Tries in turn: all; the small ones; the small ones that live for few steps; none.
    """
    candidates = [n for n in _own_memory(draft) if not draft.uses[n].foreign]
    if not candidates:
        return candidates
    given_up = [Extent(n, storage_bytes(draft.values[n]), 0, draft.uses[n].last) for n in draft.spec.given_up if n in draft.uses]
    everything = live_peak_bytes(_extents(draft, _own_memory(draft)) + _scratch_extents(draft) + given_up)
    # A caller that gives up its inputs for this call needs memory most.
    allowed_bytes = everything + (min(WAITING_BYTES, everything // 1024) if given_up else LARGE_BYTES)
    if _peak(draft, candidates, given_up) <= allowed_bytes:
        return candidates
    small = [n for n in candidates if storage_bytes(draft.values[n]) < LARGE_BYTES]
    steps = len(draft.spec.steps)
    while given_up and small and _peak(draft, small, given_up) > allowed_bytes:
        steps = min(steps - 1, steps // 2)
        small = [n for n in small if draft.uses[n].last - draft.uses[n].first < steps]
    return small


def _peak(draft: _Draft, arena: Sequence[str], given_up: Sequence[Extent] = ()) -> int:
    """Most bytes that a call holds beyond its inputs and constants, including the inputs that are `given_up`."""
    inside = set(arena)
    others = [n for n in _own_memory(draft) if n not in inside]
    return _placement(draft, arena).num_bytes + live_peak_bytes([*_extents(draft, others), *given_up])


def _placement(draft: _Draft, arena: Sequence[str]) -> Placement:
    return place(_extents(draft, arena) + _scratch_extents(draft))


def _assemble(draft: _Draft, arena: Sequence[str]) -> CallPlan:
    spec, inside = draft.spec, set(arena)
    num_steps = len(spec.steps)
    placement = _placement(draft, arena)
    arena_slots = [Slot(slot, placement.offset_by_name[f"workspace {slot}"]) for slot, _, _ in draft.scratch]
    for name in arena:
        arena_slots += [Slot(s.number, placement.offset_by_name[name] + s.offset_bytes) for s in draft.slots.get(name, [])]
    allocate: list[list[str]] = [[] for _ in range(num_steps + 1)]
    release: list[list[str]] = [[] for _ in range(num_steps + 1)]
    for name in _own_memory(draft):
        use = draft.uses[name]
        if name in inside:
            continue
        if not use.library_result:
            allocate[use.first].append(name)
        if use.last < num_steps:
            release[use.last].append(name)
    for name, last in _let_go(draft):
        release[last].append(name)
    own = _own_memory(draft)
    sizes = {v.name: aligned(storage_bytes(v)) for v in spec.values if v.role != "view"}
    memory = MemoryPlan(
        constant_bytes=sum(n for name, n in sizes.items() if draft.values[name].role == "constant"),
        input_bytes=sum(n for name, n in sizes.items() if draft.values[name].role == "input"),
        result_bytes=sum(n for name, n in sizes.items() if draft.values[name].role == "result"),
        arena_bytes=placement.num_bytes, counter_bytes=draft.counter_bytes, peak_bytes=_peak(draft, arena),
        unplanned_bytes=sum(sizes[name] for name in own) + sum(aligned(n) for _, _, n in draft.scratch))
    return CallPlan(
        draft.num_slots, {n: tuple(s) for n, s in draft.slots.items() if n not in inside}, tuple(arena_slots), tuple(draft.counters),
        tuple(draft.step_slots), tuple(map(tuple, allocate)), tuple(map(tuple, release)), _views(draft), memory)


def _let_go(draft: _Draft) -> list[tuple[str, int]]:
    """Inputs with the step after which the call releases them: a boxed call may hold the last reference.

    A training step's backward part receives hundreds of small values, whose memory the gradients need. Their release waits until they sum
    to `WAITING_BYTES`, so that few steps release anything; the last step releases all.
    """
    end, given_up = len(draft.spec.steps) - 1, set(draft.spec.given_up)
    ends = sorted((use.last, n, name) for n, (name, use) in enumerate(draft.uses.items()) if draft.values[name].role == "input")
    releases: list[tuple[str, int]] = []
    waiting: list[str] = []
    num_bytes = 0
    for last, _, name in ends:
        if last == end or name not in given_up and storage_bytes(draft.values[name]) < LARGE_BYTES:
            continue
        waiting.append(name)
        num_bytes += storage_bytes(draft.values[name])
        if num_bytes >= WAITING_BYTES:
            releases += [(n, last) for n in waiting]
            waiting, num_bytes = [], 0
    return releases


def _views(draft: _Draft) -> tuple[tuple[str, ...], ...]:
    """The step before which each view is created that a library call, a copy or the caller needs as a tensor."""
    created: dict[str, None] = {}
    rows: list[tuple[str, ...]] = []
    for step in (*draft.spec.steps, None):
        match step:
            case LibraryStep():
                tensors: Sequence[str] = step.operands
            case CopyStep():
                tensors = (step.source, step.target)
            case None:
                tensors = draft.spec.results
            case _:
                tensors = ()
        row = [n for n in dict.fromkeys(tensors) if draft.values[n].role == "view" and n not in created]
        created.update(dict.fromkeys(row))
        rows.append(tuple(row))
    return tuple(rows)
