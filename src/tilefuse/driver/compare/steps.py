"""A program step by step against the definition of its graph: the error of each kernel and call alone, and the accumulated error.

    step k reads %a, %b, writes %c
      own error          %c in memory  -  %c as defined, in f64, from what %a and %b really held
      from the start     %c in memory  -  %c as defined, in f64, from the program's inputs

The steps run one after the other, with a wait after each. A fault that occurs only when kernels overlap is detected by comparing the
results with those of an ordinary call.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tilefuse.base.errors import UnsupportedOpError
from tilefuse.driver.compare.meaning import Array, Meaning, as_array, as_tensor
from tilefuse.driver.compare.values import BY_DTYPE, Reference, Tolerance, ValueReport, allows_tf32, compare_values
from tilefuse.driver.compile import Generated
from tilefuse.driver.lowering.lower import storage_by_value
from tilefuse.plan.pattern import LibraryCall, Plan, PlannedKernel, outside_reads
from tilefuse.runtime.calls.call_plan import storage_bytes
from tilefuse.runtime.calls.frame import Frame
from tilefuse.runtime.calls.library import TORCH_DTYPES
from tilefuse.runtime.program import Program
from tilefuse.runtime.spec import CopyStep, KernelStep, LibraryStep, Value

# Calls whose results do not follow from their operands.
DRAWING = ("random_seed",)


@dataclass(frozen=True, slots=True)
class StepReport:
    """One kernel or call of the library compared.

    own         every value that it writes, against its definition from what the step read
    from_start  the same values against the definition from the program's inputs: largest difference over the value's size
    overwritten values that it read and that no longer held what was written
    note        why a call is taken as it is: "drawn" (random), "undefined" (no definition outside of torch); else ""
    """

    number: int
    kind: str
    name: str
    nodes: tuple[str, ...]
    own: tuple[ValueReport, ...] = ()
    from_start: float = 0.0
    own_error: float = 0.0
    overwritten: tuple[str, ...] = ()
    note: str = ""

    @property
    def agrees(self) -> bool:
        """Whether every written value agrees and every operand was intact."""
        return not self.overwritten and all(v.agrees for v in self.own)

    def as_data(self) -> dict[str, Any]:
        """The report as plain data."""
        return {"step": self.number, "kind": self.kind, "name": self.name, "nodes": list(self.nodes), "agrees": self.agrees,
                "own_error": self.own_error, "from_start": self.from_start, "overwritten": list(self.overwritten), "note": self.note,
                "values": [v.as_data() for v in self.own]}


@dataclass(slots=True)
class SteppedRun:
    """A run step by step: a report of each, the results, and the values that the first faulty step read."""

    steps: list[StepReport] = field(default_factory=list)
    results: list[torch.Tensor] = field(default_factory=list)
    read: dict[str, Array] = field(default_factory=dict)

    @property
    def first(self) -> StepReport | None:
        """The first step whose results differ from their definition."""
        return next((s for s in self.steps if not s.agrees), None)


def compare_steps(made: Generated, program: Program, inputs: Mapping[str, Array], tensors: Sequence[torch.Tensor],
                  tolerance: Tolerance = BY_DTYPE, each: Callable[[StepReport], object] | None = None) -> SteppedRun:
    """The program's steps compared, for one call.

    made: the plan and the spec that the program was built from. inputs: arrays of the call by name, constants among them; tensors: the
    arguments. each: called with every report as soon as it is there.
    Raises: as a call of the program; errors of the interpreter.
    """
    return _Stepper(made, program, inputs, tolerance, each).run(tensors)


class _Stepper:
    """State of one run."""

    def __init__(self, made: Generated, program: Program, inputs: Mapping[str, Array], tolerance: Tolerance,
                 each: Callable[[StepReport], object] | None) -> None:
        self.plan, self.program, self.tolerance, self.each = made.plan, program, tolerance, each
        self.inputs = inputs
        self.storage = storage_by_value(made.plan)
        self.base = {v.value: v.base for v in made.plan.windows}
        self.value_by_name = {v.name: v for v in program.spec.values}
        self.index = {v.name: n for n, v in enumerate(program.spec.values)}
        # Values written into the memory of a value at the end of its life: the writing kernel uses that value's address.
        self.over = {v.name: v.base for v in program.spec.values if v.role == "view" and v.name not in self.base}
        self.own = Meaning(made.plan.graph, inputs, wide=True)
        self.total = Meaning(made.plan.graph, inputs, wide=True)
        self.held: dict[str, torch.Tensor] = {}
        self.operator = ""
        self.stepped = SteppedRun()
        self.last_read = _last_reads(made.plan)
        # Number of the plan's step for each step of the program: copies exist only in the program, and the next step's number is theirs.
        running = [n for n, s in enumerate(made.plan.steps) if _runs(s)]
        num_copies = 0
        self.place: dict[int, int] = {}
        for n, step in enumerate(program.spec.steps):
            self.place[n] = running[n - num_copies] if n - num_copies < len(running) else len(made.plan.steps)
            num_copies += isinstance(step, CopyStep)

    def run(self, tensors: Sequence[torch.Tensor]) -> SteppedRun:
        """Runs and compares the steps of one call."""
        gpu = self.program.device.type == "cuda"
        frame = self.program.new_frame(torch.cuda.current_stream(self.program.device).cuda_stream if gpu else 0)
        planned = list(_planned_steps(self.plan, self.program))
        calls = self.program.call_plan
        begun: dict[int, int] = {}

        def around(number: int, operation: Callable[[], int | None]) -> int | None:
            turn = begun[number] = begun.get(number, -1) + 1
            ahead = len(calls.allocate_before[number]) + len(calls.views_before[number])
            step = planned[number]
            if turn != ahead or step is None:
                return operation()
            before = self._memory(frame, number)
            code = operation()
            if gpu:
                torch.cuda.synchronize(self.program.device)
            if not code:
                self._compare(number, step, before, self._memory(frame, number))
            return code

        with torch.no_grad():
            self.stepped.results = [t.clone() for t in self.program.run_frame(frame, tuple(tensors), around)]
        return self.stepped

    def _memory(self, frame: Frame, number: int) -> dict[str, torch.Tensor]:
        """Copies of the current contents of a step's operands, by the names of their storage."""
        step = self.program.spec.steps[number]
        copies: dict[str, torch.Tensor] = {}
        if isinstance(step, KernelStep):
            first, _ = self.program.call_plan.step_slots[number]
            address = {name: int(frame.table[first + position]) for position, name in enumerate(step.arguments) if name}
            address = {name: address[base] for name, base in self.over.items() if base in address} | address
            for name, place in address.items():
                copies[name] = _at_address(place, self.value_by_name[name], self.program.device)
        elif isinstance(step, LibraryStep):
            for name in (*step.operands, *step.results):
                tensor = frame.values[self.index[name]] if name else None
                if tensor is not None:
                    copies[name] = tensor.detach().clone()
        return copies

    def _compare(self, number: int, step: PlannedKernel | LibraryCall, before: Mapping[str, torch.Tensor],
                 after: Mapping[str, torch.Tensor]) -> None:
        kernel = isinstance(step, PlannedKernel)
        nodes = nodes_of(step)
        written = step.pattern.written if isinstance(step, PlannedKernel) else nodes
        reads = outside_reads(self.plan.graph, nodes)
        overwritten = self._take_reads(reads, before)
        name = self.program.spec.kernels[self._kernel(number)].name if isinstance(step, PlannedKernel) else step.operator
        self.operator = "" if kernel else name
        after_step = {v: self._held_of(v, after) for v in written}
        note = "" if kernel else "drawn" if name in DRAWING else self._undefined(written)
        own = () if note else tuple(self._value_report(v, nodes, after_step[v], kernel) for v in written)
        own_error = 0.0 if note else max((_relative(after_step[v], self.own.value(v)) for v in written), default=0.0)
        if self.stepped.first is None and not all(v.agrees for v in own):
            self.stepped.read = {v: self._narrow(v) for v in reads}
        self.own.forget(nodes)
        from_start = 0.0
        for value, tensor in after_step.items():
            self.own.assume(value, as_array(tensor))
            self.held[value] = tensor
            if note:
                self.total.assume(value, as_array(tensor))
            else:
                from_start = max(from_start, _relative(tensor, self.total.value(value)))
        read_later = {v for v, last in self.last_read.items() if last > self.place[number]}
        self.own.keep_only(read_later)
        self.total.keep_only(read_later)
        self.held = {v: t for v, t in self.held.items() if v in read_later}
        report = StepReport(number, "kernel" if kernel else "library", name, nodes, own, from_start, own_error, overwritten,
                            note)
        self.stepped.steps.append(report)
        if self.each is not None:
            self.each(report)

    def _undefined(self, written: Iterable[str]) -> str:
        """The reason why results of a library call cannot be compared; "" where they can."""
        try:
            for value in written:
                self.own.value(value)
        except UnsupportedOpError:
            return "undefined"
        return ""

    def _kernel(self, number: int) -> int:
        step = self.program.spec.steps[number]
        assert isinstance(step, KernelStep)
        return step.kernel

    def _take_reads(self, reads: Iterable[str], before: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
        """Passes the current contents of the step's operands to the definition; returns operands that were overwritten since."""
        overwritten: dict[str, None] = {}
        for value in reads:
            root = self._root(value)
            storage = self.storage.get(root, root)
            if storage in before:
                contents, known = before[storage], self.held.get(root)
                if known is not None and not _same_bits(known, contents):
                    overwritten[root] = None
                self.own.forget([value])  # a view is computed anew
                self.own.assume(root, as_array(contents))
            elif value in before:
                self.own.assume(value, as_array(before[value]))
        return tuple(overwritten)

    def _value_report(self, value: str, nodes: Sequence[str], contents: torch.Tensor, kernel: bool) -> ValueReport:
        """A value that a step wrote, compared with its definition in f64; outside the tolerance also in the declared types."""
        tolerance = self.tolerance if kernel else replace(self.tolerance, tf32=allows_tf32(contents.device, (self.operator,)))
        wide = as_tensor(self.own.value(value))
        report = compare_values(value, contents, wide, tolerance)
        if report.agrees:
            return report
        narrow = Meaning(self.plan.graph, {}, wide=False)
        inside = set(nodes)
        for n in nodes:
            for read in self.plan.graph.node_by_name[n].reads():
                if read not in inside:
                    narrow.assume(read, self.own.value(read))
        second = compare_values(value, contents, as_tensor(narrow.value(value)), tolerance, Reference(wide, True))
        return second if second.agrees else report

    def _narrow(self, value: str) -> Array:
        """A value that a step reads, in the type that the graph declares."""
        narrow = Meaning(self.plan.graph, {}, wide=False)
        narrow.assume(value, self.own.value(value))
        return narrow.value(value)

    def _held_of(self, value: str, memory: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The tensor that the step wrote for a value."""
        name = self.storage.get(value, value)
        return memory[name if name in memory else value]

    def _root(self, value: str) -> str:
        """The value whose memory a view looks at."""
        while value in self.base:
            value = self.base[value]
        return value


def nodes_of(step: PlannedKernel | LibraryCall) -> tuple[str, ...]:
    """Names of the nodes that a step of a plan computes."""
    return step.pattern.nodes if isinstance(step, PlannedKernel) else tuple(v for _, v in step.results)


def _runs(step: PlannedKernel | LibraryCall) -> bool:
    return isinstance(step, PlannedKernel) or step.runs


def _planned_steps(plan: Plan, program: Program) -> Iterator[PlannedKernel | LibraryCall | None]:
    """The plan's step for each step of the program; None for copies."""
    steps = (s for s in plan.steps if _runs(s))
    for step in program.spec.steps:
        yield None if isinstance(step, CopyStep) else next(steps)


def _last_reads(plan: Plan) -> dict[str, int]:
    """For every value the number of the last step of the plan that reads it, directly or through a view."""
    base = {v.value: v.base for v in plan.windows}
    last_reads: dict[str, int] = {}
    for number, step in enumerate(plan.steps):
        for value in (v for n in nodes_of(step) for v in plan.graph.node_by_name[n].reads()):
            last_reads[value] = number
            while value in base:
                value = base[value]
                last_reads[value] = number
    return last_reads


def _at_address(address: int, value: Value, device: torch.device) -> torch.Tensor:
    """A copy of a value's memory."""
    num_bytes = storage_bytes(value)
    dtype = TORCH_DTYPES[value.dtype]
    if not num_bytes:
        return torch.empty(value.shape, dtype=dtype)
    if device.type == "cuda":
        flat = torch.as_tensor(_DeviceBytes(address, num_bytes), device=device).clone()
    else:
        flat = torch.frombuffer(bytearray((ctypes.c_uint8 * num_bytes).from_address(address)), dtype=torch.uint8)
    return flat.view(dtype).as_strided(value.shape, value.strides).clone()


class _DeviceBytes:
    """A range of a GPU's memory, for torch to wrap."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {"shape": (num_bytes,), "typestr": "|u1", "data": (address, False), "version": 3}


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return True  # another view of the same memory: not the same value
    return bool(torch.equal(a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8)))


def _relative(contents: torch.Tensor, expected: Array) -> float:
    """Largest difference of finite elements over the root mean square of the expected values."""
    a, b = contents.detach().cpu(), as_tensor(expected)
    if not a.dtype.is_floating_point:
        return float((a != b).any())
    a, b = a.double().reshape(-1), b.double().reshape(-1)
    finite = a.isfinite() & b.isfinite()
    if not bool(finite.any()):
        return 0.0
    size = float(b[finite].square().mean().sqrt())
    gap = float((a[finite] - b[finite]).abs().max())
    return gap / size if size else float(gap > 0)
