"""A compiled program: kernels, library calls and copies in order, on torch tensors. It is independent of the compiler.

The work of a call is prepared when the program is built; a call checks its arguments, writes their addresses into a table and
runs the prepared operations on torch's current stream. Calls may come from several threads and streams at the same time.
"""
from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn

import torch

from tilefuse.base.errors import DeviceError, InternalError, NameLookupError, OutOfMemoryError, UserError, nearest
from tilefuse.base.logs import is_shown, parse_logs
from tilefuse.base.options import Options
from tilefuse.base.trace import ARTIFACTS, Trace
from tilefuse.runtime.archive import save_program
from tilefuse.runtime.calls.arguments import Argument, adapt, all_numpy, as_numpy, as_tensor, bind_constant, make_argument
from tilefuse.runtime.calls.call_log import watch_calls
from tilefuse.runtime.calls.call_plan import CallPlan, MemoryPlan, plan_calls
from tilefuse.runtime.calls.callable_program import AroundStep
from tilefuse.runtime.calls.capture import CapturedProgram
from tilefuse.runtime.calls.frame import Counts, Frame, Prepared, is_out_of_memory
from tilefuse.runtime.calls.graphs import SAME_ADDRESSES
from tilefuse.runtime.calls.library import as_complex
from tilefuse.runtime.calls.step_times import StepTime, profile_program
from tilefuse.runtime.calls.strided import POINTER_ALIGNMENT_BYTES, relaid
from tilefuse.runtime.compilers.binaries import Progress, build_kernels
from tilefuse.runtime.compilers.host import load_host
from tilefuse.runtime.compilers.nvrtc import Resources, parse_resources
from tilefuse.runtime.cuda_api import INVALID_CONTEXT, check, load_function, use_device
from tilefuse.runtime.explanation import explanation_data, explanation_text
from tilefuse.runtime.index_report import INDEX_OUT_OF_RANGE, index_error
from tilefuse.runtime.page import running_data, write_page
from tilefuse.runtime.spec import KernelCode, KernelStep, LibraryStep, ProgramSpec
from tilefuse.runtime.stores.cache import CacheEntry, KernelCache, cache_of

_MASK = POINTER_ALIGNMENT_BYTES - 1


class Program:
    """A callable compiled program. `spec` is its plain-data form; `counts` counts the copies that calls had to make.

    constants: data of every constant value. device: "host", "cuda", or a torch device. binaries: compiled kernels, one for each kernel
    code, if available (a saved program); else they come from the cache or the compilers. begun: as for `build_kernels`.
    copies_constants: whether the program copies tensors among the constants, because their owner may write to them later. Constants are
    packed and folded when a program is built, so shared memory would show some changes and not others.
    """

    def __init__(self, spec: ProgramSpec, constants: Mapping[str, Any], device: str | torch.device = "host", options: Options | None = None,
                 *, binaries: list[CacheEntry] | None = None, cache: KernelCache | None = None, progress: Progress | None = None,
                 copies_constants: bool = False, begun: Mapping[str, Future[CacheEntry]] | None = None) -> None:
        self.spec = spec
        self.options = Options.from_environment() if options is None else options
        self.device = _torch_device(device)
        self.counts = Counts()
        if binaries is None:
            store = cache_of(self.options.cache, self.options.cache_dir) if cache is None else cache
            binaries = build_kernels(spec.kernels, store, jobs=self.options.jobs, cxx=self.options.cxx, progress=progress, begun=begun)
        self.binaries = binaries
        plan = plan_calls(spec)
        index_by_name = {v.name: i for i, v in enumerate(spec.values)}
        bound = self._bind(constants, copies_constants)
        self._prepared = Prepared(spec, plan, index_by_name, bound, self._load(), self.device, self.counts, self.device.type == "cuda")
        value_by_name = {v.name: v for v in spec.values}
        read_by_torch = _read_by_torch(spec)
        self.arguments: tuple[Argument, ...] = tuple(
            make_argument(value_by_name[name], title, i, index_by_name[name], plan.slots_by_root.get(name, ()), name in spec.updates,
                          name in read_by_torch)
            for i, (name, title) in enumerate(zip(spec.inputs, spec.told_inputs, strict=True)))
        # Properties of each argument for the hot loop, as plain tuples: attribute access of records costs more than the checks themselves.
        self._expected = [(i, a.dtype, a.shape, a.strides, a.may_be_negated, a.index, a.slot_pairs, a)
                          for i, a in enumerate(self.arguments)]
        self.trust(())
        # Kernels are invisible to autograd; it would record only the operators that torch runs.
        self._torch_runs = any(not isinstance(s, KernelStep) for s in spec.steps) or any(plan.views_before) or bool(spec.updates)
        self._result_indices = tuple(index_by_name[name] for name in spec.results)
        self._overwritten = tuple(value_by_name[name] for name in spec.overwritten)
        self._idle: dict[int, list[Frame]] = {}
        kernel_trace = Trace(self.options)
        is_timed = self.options.debug >= ARTIFACTS["time"] or parse_logs(self.options.logs).get("kernels") == logging.DEBUG
        self._untold: Trace | None = kernel_trace if is_timed or is_shown("kernels", logging.DEBUG) else None
        if self._untold is None and kernel_trace.shows("kernels"):
            for kernel in spec.kernels:
                kernel_trace.line("kernels", f"{spec.name}: {kernel_text(kernel)}")
        watch_calls(self, "_call", spec.name)
        self._on_gpu = self.device.type == "cuda"
        self._inputs_by_name = {name: i for names in (spec.inputs, spec.told_inputs) for i, name in enumerate(names)}

    @property
    def kernels(self) -> tuple[KernelCode, ...]:
        """The kernels' sources and launches."""
        return self.spec.kernels

    @property
    def memory(self) -> MemoryPlan:
        """Where a call's bytes go."""
        return self._prepared.plan.memory

    @property
    def call_plan(self) -> CallPlan:
        """The work of a call as plain data."""
        return self._prepared.plan

    @property
    def constants(self) -> Mapping[str, torch.Tensor]:
        """The constants' data, on the program's device."""
        return self._prepared.constants

    @property
    def resources(self) -> dict[str, Resources]:
        """Registers, spills and shared memory of each CUDA kernel, as the assembler reported them."""
        resources = {k.name: parse_resources(b.log) for k, b in zip(self.spec.kernels, self.binaries) if k.target == "cuda"}
        return {name: row for name, row in resources.items() if row is not None}

    def source(self, kernel: str | None = None) -> str:
        """Source text of one kernel, or of all. Raises: NameLookupError for an unknown kernel."""
        return self.spec.source(kernel)

    def explain(self, json: bool = False) -> Any:
        """The reasons for these kernels: text, or plain data with `json=True` (as `tilefuse explain --json` prints)."""
        data = explanation_data(self.spec)
        return data if json else explanation_text(data) if data else ""

    def view(self, path: Path | str | None = None, *, arguments: Sequence[Any] | None = None, show: bool = False) -> Path:
        """Writes the program's page, one HTML file that needs no network, and returns its path (see `runtime.page`).

        path: None is "<name>.html" in the current folder. arguments: those of a call, which is run and measured. show: opens the page.
        Raises: UnsupportedError where the packages of a page are missing (`tilefuse[view]`); UserError where it cannot be written.
        """
        return write_page(self.spec.name, [running_data(self, arguments)], path, show=show)

    def __call__(self, *tensors: Any, **named: Any) -> list[torch.Tensor]:
        """Runs the program; the results in order, as new tensors each time (or as the views and inputs that they are).

        Arguments that all are arrays of NumPy are brought to the device, and give arrays of NumPy.

        Raises: TypeMismatchError, ShapeError, UserError naming an argument that does not fit; OutOfMemoryError with the
        memory plan; DeviceError.
        """
        if named:
            tensors = self.in_order(tensors, named)
        if all_numpy(tensors):
            on_device = [as_tensor(array, name).to(self.device) for array, name in zip(tensors, self.spec.told_inputs)]
            return [as_numpy(result) for result in self._enter(on_device if len(on_device) == len(tensors) else tensors, False)]
        return self._enter(tensors, False)

    def call_boxed(self, tensors: list[Any]) -> list[torch.Tensor]:
        """A call that empties `tensors`: an argument that only this list references is freed after its last use (saved activations).

        Requires: the memory of the inputs `spec.overwritten` is not read after this call.
        Raises: as a call.
        """
        return self._enter(tensors, True)

    def _enter(self, tensors: Sequence[Any], consume: bool) -> list[torch.Tensor]:
        """The call on torch's current stream of the program's device."""
        if len(tensors) != len(self.arguments):
            names = ", ".join(self.spec.told_inputs)
            raise UserError(f"program {self.spec.name} takes {len(self.arguments)} tensors ({names}), got {len(tensors)}")
        if self._untold is not None:
            self._tell_times(tensors)
        if self._on_gpu:
            if torch._C._cuda_getDevice() != self.device.index:
                with torch.cuda.device(self.device):
                    return self._call(tensors, _current_stream(self.device.index), consume)
            return self._call(tensors, _current_stream(self.device.index), consume)
        return self._call(tensors, 0, consume)

    def _call(self, tensors: Sequence[Any], stream: int, consume: bool) -> list[torch.Tensor]:
        idle = self._idle.get(stream)
        if idle is None:
            idle = self._idle.setdefault(stream, [])
        try:
            frame = idle.pop()
        except IndexError:
            frame = self.new_frame(stream)
        graded = self._torch_runs and torch.is_grad_enabled()
        if graded:
            torch._C._set_grad_enabled(False)
        try:
            results = self.run_frame(frame, tensors, None, consume)
        finally:
            if graded:
                torch._C._set_grad_enabled(True)
        # The frame of a failed call is not used again: its counters may not be zero.
        idle.append(frame)
        return results

    def run_frame(self, frame: Frame, tensors: Sequence[Any], around: AroundStep | None = None, consume: bool = False
                  ) -> list[torch.Tensor]:
        """One call on a frame of the current stream. `around(step, operation)` runs an operation of a step, where given;
        `consume` empties the list `tensors` before the first step.

        Requires: as many tensors as the program has inputs; gradients off.
        """
        values = frame.values
        self.counts.calls += 1
        write_back = self._take(frame, tensors)
        if self._overwritten and not consume:
            self._copy_overwritten(frame)
        if consume:
            assert isinstance(tensors, list)
            tensors.clear()
        try:
            if around is None:
                for operation in frame.operations:
                    if code := operation():
                        self._retry(frame, operation, code)
            else:
                for operation, step in zip(frame.operations, frame.labels):
                    if code := (operation() if step < 0 else around(step, operation)):
                        self._retry(frame, operation, code)
            results = [values[i] for i in self._result_indices]
            if write_back is not None:
                for caller_tensor, tensor in write_back:
                    _write_back(caller_tensor, tensor)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise self._out_of_memory(error) from error
        finally:
            # Also after an error: a reference to the error must not keep the memory alive.
            frame.clear()
        return results

    def _copy_overwritten(self, frame: Frame) -> None:
        """Gives the call copies of the inputs whose memory it reuses, since the caller keeps them."""
        for value in self._overwritten:
            index = self._prepared.index_by_name[value.name]
            frame.values[index] = relaid(frame.values[index], value.shape, value.strides)
            frame.point(self.call_plan.slots_by_root.get(value.name, ()), frame.values[index].data_ptr())

    def trust(self, static: Collection[int]) -> None:
        """Makes calls check only the addresses of these inputs. Requires: the caller guarantees the compiled types.

        While their addresses stay the same, the frame's table needs no change for them either.
        """
        trusted = frozenset(i for i in static if self.spec.inputs[i] not in self.spec.overwritten)
        self._static = [i for i in range(len(self.arguments)) if i in trusted]
        self._static_places = [(i, self.arguments[i].index) for i in self._static]
        self._moving = [row for row in self._expected if row[0] not in trusted]

    def _take(self, frame: Frame, tensors: Sequence[Any]) -> list[tuple[Any, torch.Tensor]] | None:
        """Enters a call's arguments into the frame; returns the updated arguments that were copied, with their copies."""
        device, values, table = self.device, frame.values, frame.slots
        write_back: list[tuple[Any, torch.Tensor]] | None = None
        rows, settled = self._expected, frame.settled
        if settled is not None and isinstance(tensors, list) and SAME_ADDRESSES(tensors, settled, self._static):
            for i, index in self._static_places:
                values[index] = tensors[i]
            rows = self._moving
        for i, dtype, shape, strides, may_be_negated, index, slots, want in rows:
            tensor = tensors[i]
            if (isinstance(tensor, torch.Tensor) and tensor.dtype is dtype and tensor.shape == shape and tensor.stride() == strides
                    and tensor.device == device and not (address := tensor.data_ptr()) & _MASK
                    and not (may_be_negated and tensor.is_neg())):
                values[index] = tensor
            else:
                caller_tensor, tensor = tensor, self._adapt(tensor, want)
                values[index] = tensor
                address = tensor.data_ptr()
                if want.updated and tensor is not caller_tensor:
                    write_back = [*(write_back or ()), (caller_tensor, tensor)]
            for number, offset in slots:
                table[number] = address + offset
        if self._static and rows is self._expected:
            frame.settled = None
            # A copy lies elsewhere at each call.
            if all(values[index] is tensors[i] for i, index in self._static_places):
                frame.settled = [0] * len(tensors)
                for i in self._static:
                    frame.settled[i] = tensors[i].data_ptr()
        return write_back

    def new_frame(self, stream: int) -> Frame:
        """A frame for `stream` that no call uses yet (a captured graph owns its frame). Raises: OutOfMemoryError with the memory plan."""
        try:
            return Frame(self._prepared, stream)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise self._out_of_memory(error) from error

    def _adapt(self, caller_tensor: Any, want: Argument) -> torch.Tensor:
        tensor = adapt(caller_tensor, want, self.device)
        if tensor is not caller_tensor:
            self.counts.argument_copies += 1
        return tensor

    def in_order(self, tensors: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Positional and named arguments in input order; names are the source's, or those of values. Raises: NameLookupError, UserError."""
        titles = self.spec.told_inputs
        by_number: dict[int, Any] = dict(enumerate(tensors))
        for name, tensor in named.items():
            number = self._inputs_by_name.get(name)
            if number is None:
                raise NameLookupError(f"program {self.spec.name} has no input {name!r}",
                                      hint=nearest(name, titles) or f"inputs: {', '.join(titles)}")
            if number in by_number:
                raise UserError(f"input {name} of program {self.spec.name} is given twice")
            by_number[number] = tensor
        missing = [name for number, name in enumerate(titles) if number not in by_number]
        if missing:
            raise UserError(f"program {self.spec.name} needs {', '.join(missing)} as well")
        return tuple(by_number[number] for number in range(len(titles)))

    def _tell_times(self, tensors: Sequence[Any]) -> None:
        """Before the first call: logs one line per step with its time, bytes and bandwidth, if the options ask for it."""
        trace, self._untold = self._untold, None
        assert trace is not None
        for row in self.profile(*tensors, repeats=3):
            trace.line("kernels", str(row))

    def _retry(self, frame: Frame, operation: Any, code: int) -> None:
        """Raises the error of a code. A thread that never used the GPU has no context yet: it gets one, and the launch is tried again."""
        step = frame.labels[frame.operations.index(operation)]
        kernel = self._kernel_of(step)
        if not self._on_gpu:
            if code == INDEX_OUT_OF_RANGE:
                self._raise_index_error(step, frame.report.raw)
            report = frame.report.value.decode(errors="replace")
            raise InternalError(f"kernel {kernel.name} reports: {report or f'status {code}'}", where=", ".join(kernel.nodes) or None)
        if code == INVALID_CONTEXT:
            use_device(self.device.index)
            code = operation()
        launch = kernel.launch
        check(code, "cuLaunchKernelEx", f"kernel {kernel.name}: {launch.num_blocks} blocks of {launch.num_threads} threads, clusters of "
              f"{launch.cluster}, {launch.shared_bytes} bytes of shared memory")

    def _raise_index_error(self, step: int, report: bytes) -> NoReturn:
        """Raises: IndexRangeError with the contents of a kernel's report."""
        kernel_step = self.spec.steps[step]
        assert isinstance(kernel_step, KernelStep)
        raise index_error(report, kernel_step.arguments, self.spec, self._kernel_of(step))

    def _kernel_of(self, step: int) -> KernelCode:
        kernel_step = self.spec.steps[step]
        assert isinstance(kernel_step, KernelStep)
        return self.spec.kernels[kernel_step.kernel]

    def _out_of_memory(self, error: BaseException) -> OutOfMemoryError:
        return OutOfMemoryError(f"program {self.spec.name} does not fit in the memory of {self.device}: {self.memory}",
                                hint="use a smaller batch", notes=[str(error).splitlines()[0]])

    def _bind(self, constants: Mapping[str, Any], copies: bool) -> dict[str, torch.Tensor]:
        bound: dict[str, torch.Tensor] = {}
        try:
            for value in self.spec.values:
                if value.role == "constant":
                    if value.name not in constants:
                        raise InternalError(f"program {self.spec.name} has no data for constant {value.name}")
                    bound[value.name] = bind_constant(constants[value.name], value, self.device, copies)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemoryError(f"the constants of program {self.spec.name} do not fit in the memory of {self.device}",
                                   notes=[str(error).splitlines()[0]]) from error
        if bound and self.device.type == "cuda":
            # Kernels fetch constants before they wait for the kernel ahead: that may be no writer of these.
            torch.cuda.synchronize(self.device)
        return bound

    def _load(self) -> list[Any]:
        loaded: list[Any] = []
        for kernel, binary in zip(self.spec.kernels, self.binaries, strict=True):
            target = "cuda" if self.device.type == "cuda" else "host"
            if kernel.target != target:
                raise InternalError(f"kernel {kernel.name} is {kernel.target} code, the program runs on {self.device}")
            if target == "host":
                loaded.append(load_host(binary))
            else:
                loaded.append(load_function(binary.payload, binary.symbol, kernel.launch, self.device.index))
        return loaded

    def __repr__(self) -> str:
        num_library = sum(isinstance(s, LibraryStep) for s in self.spec.steps)
        num_kernels = sum(isinstance(s, KernelStep) for s in self.spec.steps)
        return f"Program({self.spec.name}: {num_kernels} kernel launches, {num_library} library calls, on {self.device})"

    @property
    def library_operators(self) -> tuple[str, ...]:
        """Names of the library operators that the program calls, each once, in order of first use."""
        return tuple(dict.fromkeys(s.operator for s in self.spec.steps if isinstance(s, LibraryStep)))

    def capture(self, *examples: Any, zero_copy: Collection[str] = (), copy_results: bool = False) -> CapturedProgram:
        """The program recorded as a CUDA graph, a callable of the same arguments. `examples` are arguments of a first call.

        zero_copy: inputs read where they are instead of copied (parameters). copy_results: each call gives tensors of its
        own; otherwise the next call overwrites them.
        Raises: UserError on the CPU; UnsupportedError when a library call cannot be recorded.
        """
        return CapturedProgram(self, examples, zero_copy, copy_results)

    def profile(self, *tensors: Any, repeats: int = 10) -> list[StepTime]:
        """Time of each step, with bytes and bandwidth (see `step_times`)."""
        return profile_program(self, tensors, repeats)

    def save(self, path: Path | str, *, sign: Path | str | None = None) -> None:
        """Writes the program with machine code and constants to one file; `load_program` runs it without compiling.

        sign: file with the key that signs it; None: the one of the options, if they name one.
        Raises: UserError when the file cannot be written or the key cannot be read.
        """
        save_program(self, path, sign)


def kernel_text(kernel: KernelCode) -> str:
    """One line about a kernel."""
    launch = kernel.launch
    shared = f", {launch.shared_bytes} bytes shared" if launch.shared_bytes else ""
    return (f"{kernel.name}: {', '.join(kernel.nodes)}; {kernel.bytes_read + kernel.bytes_written} bytes, limit {kernel.limit_us:.2f} us; "
            f"{launch.num_blocks} blocks of {launch.num_threads} threads{shared}")


def _read_by_torch(spec: ProgramSpec) -> frozenset[str]:
    """Inputs that only torch's own operators read."""
    others: set[str] = {*spec.results, *(v.base for v in spec.values if v.role == "view")}
    torchs: set[str] = set()
    for step in spec.steps:
        match step:
            case LibraryStep(operator, operands) if operator.startswith("aten."):
                torchs.update(operands)
            case LibraryStep(_, operands):
                others.update(operands)
            case KernelStep():
                others.update(step.arguments)
            case _:
                others.update((step.source, step.target))
    return frozenset(torchs - others)


def _write_back(caller_tensor: Any, tensor: torch.Tensor) -> None:
    """Copies the new contents into an updated argument that had been copied."""
    target = caller_tensor if isinstance(caller_tensor, torch.Tensor) else torch.from_dlpack(caller_tensor)
    target.detach().copy_(as_complex(tensor) if target.is_complex() else tensor)


def _torch_device(device: str | torch.device) -> torch.device:
    """The torch device; "host" is the CPU. Raises: UserError for another kind, DeviceError where there is no GPU."""
    place = torch.device("cpu" if device == "host" else device)
    if place.type == "cuda":
        if not torch.cuda.is_available():
            raise DeviceError("this program runs on a GPU, and torch sees none", hint="compile with device='host', or check the driver")
        return torch.device("cuda", torch.cuda.current_device() if place.index is None else place.index)
    if place.type != "cpu":
        raise UserError(f"programs run on cpu and cuda, not on {place.type}")
    return torch.device("cpu")


def _current_stream(device_index: int) -> int:
    """The handle of torch's current stream on a device."""
    return int(torch._C._cuda_getCurrentRawStream(device_index))
