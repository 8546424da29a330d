"""One call's working state: the pointer table, the tensors, and the list of prepared operations.

A frame belongs to one call at a time, and on a GPU to one stream. It owns the counters that kernels leave at zero, which two concurrent
kernels must not share. Every operation is a call without arguments that returns 0 (or None) on success.
"""
from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tilefuse.base.errors import InternalError
from tilefuse.runtime.calls.call_plan import CallPlan, Slot, root_of
from tilefuse.runtime.calls.library import TORCH_DTYPES
from tilefuse.runtime.calls.prepared_library import prepare_call
from tilefuse.runtime.calls.strided import POINTER_ALIGNMENT_BYTES, empty_maker, fits, relaid
from tilefuse.runtime.calls.tensor_maps import LaunchMaps
from tilefuse.runtime.cuda_api import prepare_launch
from tilefuse.runtime.spec import CopyStep, KernelStep, LibraryStep, ProgramSpec, Step, Value

REPORT_BYTES = 4096
ALIGNMENT_MASK = POINTER_ALIGNMENT_BYTES - 1

Operation = Callable[[], int | None]


@dataclass(slots=True)
class Counts:
    """Number of times that a program had to make copies which its compiled form tries to avoid."""

    calls: int = 0
    argument_copies: int = 0
    library_copies: int = 0


@dataclass(frozen=True, slots=True)
class Prepared:
    """State that all frames of a program share. `functions`: a loaded kernel each (host: callable, CUDA: handle)."""

    spec: ProgramSpec
    plan: CallPlan
    index_by_name: Mapping[str, int]
    constants: Mapping[str, torch.Tensor]
    functions: Sequence[Any]
    device: torch.device
    counts: Counts
    on_gpu: bool


class Frame:
    """See the module's text. `operations` and `labels` (the step each belongs to, or -1) run in order."""

    def __init__(self, prepared: Prepared, stream: int) -> None:
        self.prepared = prepared
        plan = prepared.plan
        self.table = np.zeros(max(plan.num_slots, 1), dtype=np.uint64)
        self.slots: Any = (ctypes.c_uint64 * max(plan.num_slots, 1)).from_buffer(self.table.data)
        self.report = ctypes.create_string_buffer(REPORT_BYTES)
        self.template: list[Any] = [None] * len(prepared.index_by_name)
        self.arena: torch.Tensor | None = None
        self.arena_base = 0
        # Addresses of the trusted arguments of the last call, if they were read in place (`Program.trust`).
        self.settled: list[int] | None = None
        self._arena_slots = np.array([s.number for s in plan.arena_slots], dtype=np.intp)
        self._arena_offsets = np.array([s.offset_bytes for s in plan.arena_slots], dtype=np.uint64)
        self._kept: list[object] = []
        self._saved: dict[int, int] = {}
        self._bind_constants()
        self._bind_counters()
        self.values: list[Any] = list(self.template)
        self.operations: list[Operation] = []
        self.labels: list[int] = []
        self._build(stream)

    def point(self, slots: Sequence[Slot], address: int) -> None:
        """Lets the slots point into storage at `address`."""
        table = self.slots
        for slot in slots:
            table[slot.number] = address + slot.offset_bytes

    def clear(self) -> None:
        """Forgets the call's tensors; constants stay."""
        self.values[:] = self.template
        if self.prepared.on_gpu:
            self.arena = None

    def _bind_constants(self) -> None:
        index_by_name = self.prepared.index_by_name
        for name, tensor in self.prepared.constants.items():
            self.template[index_by_name[name]] = tensor
            self.point(self.prepared.plan.slots_by_root.get(name, ()), tensor.data_ptr())

    def _bind_counters(self) -> None:
        plan = self.prepared.plan
        if plan.memory.counter_bytes:
            counters = torch.zeros(plan.memory.counter_bytes, dtype=torch.uint8, device=self.prepared.device)
            self._kept.append(counters)
            self.point(plan.counter_slots, counters.data_ptr())

    def _build(self, stream: int) -> None:
        plan, spec = self.prepared.plan, self.prepared.spec
        value_by_name = {v.name: v for v in spec.values}
        if plan.memory.arena_bytes:
            if not self.prepared.on_gpu:
                # Kept between calls: fresh pages cost more than most kernels.
                self._take_arena()
            else:
                self._add(-1, self._take_arena)
        # Addresses of the arguments: the CUDA driver takes a pointer to each argument.
        self._addresses = self.table.ctypes.data + 8 * np.arange(max(plan.num_slots, 1), dtype=np.uint64)
        joined: set[int] = set()
        for number, step in enumerate(spec.steps):
            for name in plan.allocate_before[number]:
                self._add(number, self._allocation(value_by_name[name]))
            for name in plan.views_before[number]:
                self._add(number, self._view(value_by_name[name], value_by_name))
            match step:
                case KernelStep():
                    if spec.kernels[step.kernel].launch.num_blocks:
                        self._add(number, self._kernel(number, step, stream))
                case LibraryStep():
                    self._add(number, self._library(step, value_by_name))
                case CopyStep() if number in joined:
                    # A copy before it does this one as well.
                    pass
                case CopyStep():
                    together = independent_copies(spec, plan, value_by_name, number)
                    if len(together) > 1 and not self._saved:
                        joined.update(together)
                        self._add(number, self._copies(together))
                    else:
                        for later in overwritten_sources(spec, value_by_name, number):
                            self._saved[later] = self._add_saved(number, spec.steps[later])
                        self._add(number, self._copy(number, step))
            if plan.release_after[number]:
                self._add(number, self._release(plan.release_after[number], spec.values))
        last = len(spec.steps)
        for name in plan.allocate_before[last]:
            self._add(-1, self._allocation(value_by_name[name]))
        for name in plan.views_before[last]:
            self._add(-1, self._view(value_by_name[name], value_by_name))

    def _add(self, step: int, operation: Operation) -> None:
        self.operations.append(operation)
        self.labels.append(step)

    def _take_arena(self) -> None:
        self.arena = torch.empty(self.prepared.plan.memory.arena_bytes, dtype=torch.uint8, device=self.prepared.device)
        base = self.arena.data_ptr()
        # The allocator mostly returns the same block again; then the table is still right.
        if base != self.arena_base:
            self.arena_base = base
            self.table[self._arena_slots] = self._arena_offsets + np.uint64(base)

    def _allocation(self, value: Value) -> Operation:
        make = allocator(value, self.prepared.device)
        index = self.prepared.index_by_name[value.name]
        slots = [(s.number, s.offset_bytes) for s in self.prepared.plan.slots_by_root.get(value.name, ())]
        values, table = self.values, self.slots

        def allocate() -> None:
            tensor = make()
            values[index] = tensor
            address = tensor.data_ptr()
            for number, offset in slots:
                table[number] = address + offset

        return allocate

    def _view(self, value: Value, value_by_name: Mapping[str, Value]) -> Operation:
        offset, base = 0, value
        while base.role == "view":
            offset += base.offset
            base = value_by_name[base.base]
        if base.dtype != value.dtype:
            raise InternalError(f"view {value.name} is {value.dtype}, its base {base.name} is {base.dtype}")
        index, base_index = self.prepared.index_by_name[value.name], self.prepared.index_by_name[base.name]
        values, shape, strides = self.values, value.shape, value.strides
        # Torch's own entry for compiled programs: takes a third of the time of `as_strided`.
        window = torch._C._dynamo.guards._reinterpret_tensor

        def view() -> None:
            values[index] = window(values[base_index], shape, strides, offset)

        return view

    def _kernel(self, number: int, step: KernelStep, stream: int) -> Operation:
        first, count = self.prepared.plan.step_slots[number]
        function = self.prepared.functions[step.kernel]
        if not self.prepared.on_gpu:
            return functools.partial(function, self.table.ctypes.data + 8 * first, self.report, REPORT_BYTES)
        code = self.prepared.spec.kernels[step.kernel]
        # The driver takes the address of each argument: of every pointer in the table, or of all of them as one structure.
        addresses = self._addresses[first:first + 1] if code.one_structure else self._addresses[first:]
        maps = LaunchMaps(code, self.slots, first) if code.maps else None
        if maps is not None:
            addresses = np.concatenate([addresses[:count], np.array(maps.addresses, dtype=np.uint64)])
        call, structures = prepare_launch(function, code.launch, stream, addresses.ctypes.data)
        self._kept.append((structures, addresses))
        return call if maps is None else maps.before(call)

    def _library(self, step: LibraryStep, value_by_name: Mapping[str, Value]) -> Operation:
        index_by_name, slots_by_root = self.prepared.index_by_name, self.prepared.plan.slots_by_root
        operands = [index_by_name[n] for n in step.operands]
        results = [(i, index_by_name[n], value_by_name[n], value_by_name[n].strides, slots_by_root.get(n, ()))
                   for i, n in enumerate(step.results) if n]
        operator, values, counts = step.operator, self.values, self.prepared.counts
        run = prepare_call(operator, dict(step.attributes), [value_by_name[n] for n in step.operands], self.prepared.device)
        # Types of an operator's results are checked once per frame, their addresses at each call.
        is_checked = False

        def call() -> None:
            nonlocal is_checked
            tensors = run([values[i] for i in operands])
            if not is_checked:
                _check_results(operator, tensors, results)
                is_checked = True
            for position, index, value, strides, slots in results:
                tensor = tensors[position]
                assert tensor is not None
                address = tensor.data_ptr()
                if (tensor.stride() != strides or address & ALIGNMENT_MASK) and not fits(tensor, value.shape, strides):
                    tensor = relaid(tensor, value.shape, strides)
                    address = tensor.data_ptr()
                    counts.library_copies += 1
                values[index] = tensor
                self.point(slots, address)

        return call

    def _add_saved(self, number: int, later: Step) -> int:
        """Adds a copy of a value that step `number` overwrites and a later step reads; returns its index in `values`."""
        assert isinstance(later, CopyStep)
        place, source, values = len(self.values), self.prepared.index_by_name[later.source], self.values
        self.template.append(None)
        values.append(None)

        def save() -> None:
            values[place] = values[source].clone()

        self._add(number, save)
        return place

    def _copy(self, number: int, step: CopyStep) -> Operation:
        source = self._saved.get(number, self.prepared.index_by_name[step.source])
        target = self.prepared.index_by_name[step.target]
        values = self.values

        def copy() -> None:
            values[target].copy_(values[source])

        return copy

    def _copies(self, numbers: Sequence[int]) -> Operation:
        """Several copy steps as one call per dtype: a model's running statistics are a hundred tensors of a few hundred elements."""
        spec, index_by_name, values = self.prepared.spec, self.prepared.index_by_name, self.values
        dtype_by_name = {v.name: v.dtype for v in spec.values}
        groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for number in numbers:
            step = spec.steps[number]
            assert isinstance(step, CopyStep)
            pair = (index_by_name[step.target], index_by_name[step.source])
            groups.setdefault((dtype_by_name[step.target], dtype_by_name[step.source]), []).append(pair)
        listed = [([t for t, _ in pairs], [s for _, s in pairs]) for pairs in groups.values()]

        def copy() -> None:
            for targets, sources in listed:
                torch._foreach_copy_([values[i] for i in targets], [values[i] for i in sources])

        return copy

    def _release(self, names: Sequence[str], all_values: Sequence[Value]) -> Operation:
        released = set(names)
        for value in all_values:
            if value.role == "view" and value.base in released:
                released.add(value.name)
        indices = sorted(self.prepared.index_by_name[n] for n in released)
        values = self.values

        def release() -> None:
            for index in indices:
                values[index] = None

        return release


def _check_results(operator: str, tensors: Sequence[torch.Tensor | None], results: Sequence[tuple[int, int, Value, Any, Any]]) -> None:
    """Raises InternalError where an operator's results are missing, or not of the planned types."""
    for position, _, value, *_ in results:
        tensor = tensors[position]
        if tensor is None:
            raise InternalError(f"library operator {operator} gave nothing for {value.name}")
        if tensor.dtype != TORCH_DTYPES[value.dtype] or tuple(tensor.shape) != value.shape:
            raise InternalError(f"library operator {operator} gave {tensor.dtype}{tuple(tensor.shape)} for {value.name}, "
                                f"expected {value.dtype}{value.shape}")


def independent_copies(spec: ProgramSpec, plan: CallPlan, value_by_name: Mapping[str, Value], number: int) -> list[int]:
    """Copy step `number` and the following ones that can run as one call: none allocates memory, none reads what another writes."""
    last = number
    while last + 1 < len(spec.steps) and isinstance(spec.steps[last + 1], CopyStep):
        if plan.allocate_before[last + 1] or plan.views_before[last + 1]:
            break
        last += 1
    numbers = list(range(number, last + 1))
    return [number] if any(overwritten_sources(spec, value_by_name, n) for n in numbers) else numbers


def overwritten_sources(spec: ProgramSpec, value_by_name: Mapping[str, Value], number: int) -> list[int]:
    """Later copy steps whose source is the input that copy step `number` overwrites: two inputs that are swapped."""
    step = spec.steps[number]
    assert isinstance(step, CopyStep)
    target, _ = root_of(value_by_name[step.target], value_by_name)
    readers = []
    for n, later in enumerate(spec.steps[number + 1:], number + 1):
        if isinstance(later, CopyStep) and value_by_name[later.source].role == "input":
            if root_of(value_by_name[later.source], value_by_name)[0] == target:
                readers.append(n)
    return readers


def allocator(value: Value, device: torch.device) -> Callable[[], torch.Tensor]:
    """A call without arguments that makes an uninitialised tensor of the value's shape and strides on the current device."""
    return empty_maker(tuple(value.shape), tuple(value.strides), TORCH_DTYPES[value.dtype], device)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error of torch means out of memory. For host memory there is no exception class: the allocator's name is in the text."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
