"""From a plan to a program's plain data: sources of the distinct kernels, values with their roles, steps in order."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tilefuse.base import trace
from tilefuse.base.errors import InternalError
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.executor import executor_of
from tilefuse.driver.lowering.in_place import alias_buffers, alias_members, in_place_updates, scatter_bases
from tilefuse.driver.lowering.in_place_reuse import reused_storage
from tilefuse.driver.lowering.in_place_scatter import scatter_updates
from tilefuse.driver.lowering.walk_ends import backward_steps
from tilefuse.ir.graph import Type
from tilefuse.ir.layouts import strides_of
from tilefuse.kernel.asynchronous import LetNextStart
from tilefuse.kernel.early import PrefetchOnly, before_waiting, fetched_early, untimely
from tilefuse.kernel.ir import Kernel
from tilefuse.kernel.launch_contract import map_parameters, pointer_parameters, recorded_stages
from tilefuse.kernel.visit import statements, value_identifiers
from tilefuse.plan.pattern import LibraryCall, Plan, PlannedKernel
from tilefuse.printers.cuda import print_cuda
from tilefuse.printers.host import print_host
from tilefuse.runtime.calls.call_plan import storage_bytes
from tilefuse.runtime.spec import CopyStep, KernelCode, KernelStep, LibraryStep, ProgramSpec, Step, Value
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.compose import compose
from tilefuse.templates.early import blocks_move_enough, starts_early
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.template import Overlaps


def lower(plan: Plan, device: DeviceSpec, options: Options, given_up: Collection[str] = (),
          printed: Callable[[KernelCode], None] | None = None, overwritable: Collection[str] = ()) -> ProgramSpec:
    """The program of a plan, without its texts (plan and explanation are added by the caller).

    given_up: inputs that only the call holds; overwritable: those whose memory other values may take over. printed: receives each kernel as
    soon as it is printed. Equal kernels share one code; a kernel that updates its input in place has a code of its own.
    Raises: InternalError when a kernel addresses a value that its pattern does not have.
    """
    lowering = _Lowering(plan, device, options, given_up, printed, overwritable)
    return replace(lowering.run(), given_up=tuple(given_up), overwritten=lowering.overwritten)


def storage_by_value(plan: Plan) -> dict[str, str]:
    """Value -> value whose storage it is written into, for every value without storage of its own: updates of inputs, and bases of
    scatters."""
    target_of = in_place_updates(plan) | scatter_updates(plan)
    return target_of | scatter_bases(plan, target_of)


class _Lowering:
    """State of one lowering."""

    def __init__(self, plan: Plan, device: DeviceSpec, options: Options, given_up: Collection[str],
                 printed: Callable[[KernelCode], None] | None, overwritable: Collection[str] = ()) -> None:
        self.plan = plan
        self.printed = printed
        self.device = device
        self.executor = executor_of(device, options)
        self.options = options
        self.in_place = storage_by_value(plan)
        # Parts of a value are written into its memory.
        parts = {v: r for c in plan.library_calls if not c.runs for v in c.operands for _, r in c.results}
        self.reused = reused_storage(plan, self.in_place | parts, self._num_bytes, given_up=given_up, overwritable=overwritable)
        inputs = {i.name for i in plan.graph.inputs}
        self.overwritten = tuple(dict.fromkeys(v for v in self.reused.values() if v in inputs))
        self.written_over = self.in_place | {value: over for value, over in self.reused.items() if over in inputs}
        self.codes: list[KernelCode] = []
        self.origins: list[tuple[str, ...]] = []
        self.number_of: dict[tuple[int, tuple[tuple[str, str], ...], frozenset[str], bool, bool], int] = {}
        self.composed: dict[tuple[int, frozenset[str], bool], Kernel] = {}
        self.unwritten = unwritten_inputs(plan, self.written_over)
        self.inputs = inputs_by_value(plan)
        constants = {i.name for i in plan.graph.inputs if i.constant}
        self.constants = self.unwritten & {value for value, base in self.inputs.items() if base in constants}
        self.backwards = backward_steps(plan, device)
        self.calls_library = any(isinstance(s, LibraryCall) and s.runs for s in plan.steps)

    def run(self) -> ProgramSpec:
        """The program of the plan."""
        graph = self.plan.graph
        steps: list[Step] = []
        for number, step in enumerate(self.plan.steps):
            match step:
                case PlannedKernel():
                    steps.extend(self._initial_contents(step))
                    before = self.plan.steps[number - 1] if number else None
                    ahead = before if isinstance(before, PlannedKernel) and isinstance(steps[-1], KernelStep) else None
                    steps.append(self._kernel_step(step, steps, ahead, number in self.backwards))
                case LibraryCall() if step.runs:
                    steps.append(self._library_step(step))
        steps.extend(CopyStep(value, target) for target, value in graph.updates if self.in_place.get(value) != target)
        inputs = tuple(i.name for i in graph.inputs if not i.constant)
        results = tuple(graph.results)
        values = tuple(self._values(steps).values())
        return ProgramSpec(graph.name, self.executor.kind, inputs, results, values, tuple(self.codes), tuple(steps),
                           updates=tuple(dict.fromkeys(i for i, _ in graph.updates)))

    def _initial_contents(self, kernel: PlannedKernel) -> list[CopyStep]:
        """A scatter kernel writes only some elements of its result: the others are first copied from its operand, if they are not already
        there."""
        scatters = [n for n in map(self.plan.graph.node_by_name.__getitem__, kernel.pattern.nodes) if n.category == "scatter"]
        copies = [CopyStep(self.in_place.get(n.operands[0], n.operands[0]), self.in_place.get(n.name, n.name)) for n in scatters]
        return [c for c in copies if c.source != c.target]

    def _settled(self, kernel: PlannedKernel, steps: Sequence[Step], before: PlannedKernel | None) -> frozenset[str]:
        """Boundary values that a kernel may fetch while its predecessor still runs: inputs that neither of the two writes.

        The previous program may still be writing the inputs of the program's first kernel, which prefetches these at most; constants are
        the program's own memory, complete before its first call. Earlier writers of an input have ended before the predecessor ended, also
        in a previous run of the program, such as a training step that updates weights.
        """
        if not self.options.fetches_early:
            return frozenset()
        ahead = steps[-1] if steps else None
        overlaps = self._overlaps(kernel.program)
        if not overlaps.fetches_settled or not self._starts_early(kernel.program):
            return frozenset()
        bound = (there for _, there in kernel.binding)
        if not isinstance(ahead, KernelStep) or not self.codes[ahead.kernel].launch.num_blocks:
            constants = frozenset(here for here, there in kernel.binding if there in self.constants)
            names = PrefetchOnly(here for here, there in kernel.binding if there in self.unwritten)
            return constants or (names if overlaps.prefetches else frozenset())
        unwritten = self.unwritten if before is None else inputs_unwritten_by((before, kernel), bound, self.inputs, self.written_over)
        return frozenset(here for here, there in kernel.binding if there in unwritten)

    def _starts_early(self, program: TileProgram) -> bool:
        overlaps = self._overlaps(program)
        return self.options.early_start != "off" and starts_early(overlaps, program, self.device, self.calls_library)

    @staticmethod
    def _overlaps(program: TileProgram) -> Overlaps:
        """The overlap of a kernel with its predecessor and its successor."""
        return kernel_template(program.choice).overlaps(program.choice)

    def _kernel_step(self, kernel: PlannedKernel, steps: Sequence[Step], before: PlannedKernel | None, backwards: bool) -> KernelStep:
        binding = dict(kernel.binding)
        own_name = {there: here for here, there in kernel.binding}
        over = self.in_place | self.reused
        joined = tuple((own_name[v], own_name[over[v]]) for v in kernel.pattern.written if v in over and over[v] in own_name)
        settled = self._settled(kernel, steps, before)
        composed = self._composed(kernel, settled)
        fetched = fetched_early(composed)
        if fetched != settled:
            settled = PrefetchOnly(fetched) if isinstance(settled, PrefetchOnly) else fetched
            composed = self._composed(kernel, settled)
        key = (id(kernel.program), joined, settled, isinstance(settled, PrefetchOnly), backwards)
        number = self.number_of.get(key)
        if number is None:
            number = self.number_of[key] = len(self.codes)
            if backwards:
                composed = replace(composed, name=f"{composed.name}_backwards", backwards=True)
            self._add_code(kernel, composed, dict(joined))
        arguments = []
        for origin in self.origins[number]:
            if origin and origin not in binding:
                raise InternalError(f"kernel {self.codes[number].name} addresses %{origin}, which is not a boundary value of its pattern")
            value = binding.get(origin, "")
            arguments.append(self.in_place.get(value, value))
        return KernelStep(number, tuple(arguments))

    def _composed(self, planned: PlannedKernel, settled: frozenset[str]) -> Kernel:
        """The kernel IR of a planned kernel; one that fetches `settled` values early has a name of its own."""
        only = isinstance(settled, PrefetchOnly)
        kernel = self.composed.get((id(planned.program), settled, only))
        if kernel is None:
            with trace.current().span("compose", "codegen", kernel=planned.program.name):
                kernel = compose(planned.program, self.device, settled)
            wrong = untimely(kernel, settled)
            if wrong:
                raise InternalError(f"kernel {kernel.name} begins too early: {'; '.join(wrong)}")
            if before_waiting(kernel):
                # Kernels that prefetch and kernels that copy the same values have names of their own too.
                fetched = {(fetched_early(k), by) for (program, _, by), k in self.composed.items() if program == id(planned.program)}
                others = len({pair for pair in fetched if pair[0]} - {(fetched_early(kernel), only)})
                kernel = replace(kernel, name=f"{kernel.name}_early{others + 1 if others else ''}")
            if not self.options.index_checks:
                kernel = replace(kernel, checked=False)
            if not self._starts_early(planned.program):
                kernel = started_late(kernel, planned.program.bytes_moved, self.device, self.options)
            self.composed[id(planned.program), settled, only] = kernel
        return kernel

    def _add_code(self, planned: PlannedKernel, kernel: Kernel, joined: Mapping[str, str]) -> None:
        if joined:
            buffer_of = {b.origin: b.name for b in kernel.parameters if b.origin}
            pairs = {buffer_of[v]: buffer_of[i] for v, i in joined.items() if i in buffer_of}
            alias = alias_members if kernel.groups else alias_buffers
            kernel = replace(alias(kernel, pairs), name=f"{kernel.name}_in_place")
        with trace.current().span("print", "codegen", kernel=kernel.name):
            on_host = self.executor.kind == "host"
            source = print_host(kernel, check=self.options.check) if on_host else print_cuda(kernel, self.device)
        program = planned.program
        self.codes.append(KernelCode(
            kernel.name, kernel.name, source, self.executor.kind, self.executor.arch, kernel.launch, pointer_parameters(kernel),
            planned.pattern.nodes,
            program.bytes_read, program.bytes_written, planned.limit_us, flags=compiler_flags(self.executor, self.options),
            one_structure=bool(kernel.groups), names=value_identifiers(kernel), maps=() if on_host else map_parameters(kernel),
            tasks=recorded_stages(kernel)))
        if self.printed is not None:
            self.printed(self.codes[-1])
        self.origins.append(tuple(b.origin for b in kernel.parameters))
        trace.current().line("source", source)
        trace.current().dump(f"kernels/{kernel.name}{'.cpp' if on_host else '.cu'}", source)

    def _library_step(self, call: LibraryCall) -> LibraryStep:
        node = self.plan.graph.node_by_name[call.results[0][1]]
        results = [""] * (1 + max(number for number, _ in call.results))
        for number, value in call.results:
            results[number] = value
        attributes = tuple((k, v) for k, v in node.attributes if k != "result")
        operands = tuple(self.in_place.get(v, v) for v in call.operands)
        return LibraryStep(call.operator, operands, tuple(results), attributes)

    def _num_bytes(self, name: str) -> int:
        return storage_bytes(value_of(name, self.plan.graph.type_of(name), strides_of(self.plan.graph, self.plan.layouts, name), ""))

    def _values(self, steps: list[Step]) -> dict[str, Value]:
        graph = self.plan.graph
        values: dict[str, Value] = {}

        def add(name: str, role: str) -> None:
            if name in self.reused:
                add(self.reused[name], role)
            if name and name not in values:
                value = value_of(name, graph.type_of(name), strides_of(graph, self.plan.layouts, name), role)
                values[name] = replace(value, role="view", base=self.reused[name]) if name in self.reused else value

        for declared in graph.inputs:
            add(declared.name, "constant" if declared.constant else "input")
        views = {v.value: v for v in self.plan.windows}
        results = {views[r].base if r in views else r for r in graph.results}
        for last, first in self.reused.items():  # in the order of steps: all values of one memory count as one from the first on
            results.update([first] if last in results else [])
        for step in steps:
            match step:
                case KernelStep(arguments=names):
                    written = names
                case LibraryStep(results=names):
                    written = names
                case CopyStep():
                    written = (step.target,)
            for name in written:
                if name not in views:
                    add(name, "result" if name in results else "intermediate")
        for name in self.reused:
            add(name, "intermediate")
        needed = {v for s in steps if isinstance(s, LibraryStep) for v in s.operands} | set(graph.results)
        needed |= {v for s in steps if isinstance(s, KernelStep) for v in s.arguments}
        needed |= {s.source for s in steps if isinstance(s, CopyStep)}
        for view in self.plan.windows:
            if view.value in needed:
                base = self.in_place.get(view.base, view.base)
                add(base, "intermediate")
                window = value_of(view.value, graph.type_of(view.value), view.strides, "view")
                values[view.value] = replace(window, base=base, offset=view.offset)
        return values


def started_late(kernel: Kernel, moved_bytes: int, device: DeviceSpec, options: Options) -> Kernel:
    """The kernel as one that starts after its predecessor has ended. It waits for nothing, so its successor may start early in the slots
    that its last blocks free, with two exceptions: the kernel itself contains the signal, or its blocks move little each.
    H200, small kernels behind one of 16 MiB and more: 0.7 to 1.1 us faster with an early start.
    H200, 815 blocks per us signal the next start at most: 256 MiB through 65536 blocks took 80.4 us with signals, 65.8 without."""
    says = any(isinstance(s, LetNextStart) for s in statements(kernel.body))
    lets = device.starts_early and options.early_start != "off" and not says
    enough = blocks_move_enough(moved_bytes, kernel.launch, device.fitted.starts)
    ready = (LetNextStart(),) if lets and enough else ()
    return replace(kernel, launch=replace(kernel.launch, early=False), body=(*ready, *kernel.body))


def inputs_by_value(plan: Plan) -> dict[str, str]:
    """The program's inputs and views of them, each with the input whose memory it lies in."""
    inputs = {i.name: i.name for i in plan.graph.inputs}
    return inputs | {v.value: v.base for v in plan.windows if v.base in inputs}


def unwritten_inputs(plan: Plan, in_place: Mapping[str, str]) -> frozenset[str]:
    """Inputs of the program that nothing in it writes, and views of them. `in_place`: value -> value whose storage it is written into."""
    written = {*in_place.values(), *(target for target, _ in plan.graph.updates)}
    return frozenset(value for value, base in inputs_by_value(plan).items() if base not in written)


def inputs_unwritten_by(kernels: Iterable[PlannedKernel], values: Iterable[str], inputs: Mapping[str, str],
                        in_place: Mapping[str, str]) -> frozenset[str]:
    """Those of the values that are inputs of the program, or views of inputs, and that these kernels do not write.

    inputs: of `inputs_by_value`. in_place: as for `unwritten_inputs`.
    """
    written: set[str] = set()
    for value in (v for k in kernels for v in k.pattern.written):
        while value in in_place and in_place[value] not in written:
            value = in_place[value]
            written.add(value)
    return frozenset(v for v in values if v in inputs and inputs[v] not in written)


def value_of(name: str, type_: Type, strides: tuple[int, ...], role: str) -> Value:
    """A value with its type in the program's plain form."""
    return Value(name, type_.dtype.name, type_.shape, strides, role)


# The options behind -ffast-math, one by one: under that name gcc links start-up code into the shared object that makes the whole process
# flush subnormal numbers to zero, including the caller's arithmetic (gcc's documentation of -mdaz-ftz).
HOST_FAST_MATH = ("-fassociative-math", "-freciprocal-math", "-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno",
                  "-ffinite-math-only")
# Optimising the checks takes longer and makes them no faster (g++ 12, softmax of 512 x 1024 f32 in three kernels, one core: 3.9 s to
# compile and 0.105 s a run with -O3, 2.2 and 0.107 with -O1, 2.2 and 0.33 with -O0).
HOST_CHECKED = ("-O1",)


def compiler_flags(device: DeviceSpec, options: Options) -> tuple[str, ...]:
    """Compiler flags that the options require, in addition to the executor's usual ones."""
    if device.kind == "cuda":
        return ("--use_fast_math",) if options.fast_math else ()
    return (HOST_CHECKED if options.check else ()) + (HOST_FAST_MATH if options.fast_math else ())
