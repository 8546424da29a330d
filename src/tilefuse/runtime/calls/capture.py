"""A program recorded as one CUDA graph: arguments are copied into fixed buffers, and a replay costs one call.

Arguments with fixed addresses (parameters) need no copy: named as `zero_copy`, the graph reads their own memory, and a changed address
records a new graph. Results lie in the graph's memory; unless copied, the next replay overwrites them.
"""
from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilefuse.base.errors import CompilerError, NameLookupError, UserError, nearest
from tilefuse.runtime.calls.arguments import Argument, check_argument
from tilefuse.runtime.calls.callable_program import CallableProgram
from tilefuse.runtime.calls.graphs import cannot_be_recorded, free_generator
from tilefuse.runtime.calls.strided import fits

MAX_RECORDINGS = 8


@dataclass(frozen=True, slots=True)
class _Recording:
    """One graph: its inputs, its results, and the objects that it keeps alive (the frame owns table and counters).

    places: the input that each result is, or -1.
    """

    graph: torch.cuda.CUDAGraph
    inputs: tuple[torch.Tensor, ...]
    results: list[torch.Tensor]
    places: tuple[int, ...]
    frame: object


class CapturedProgram:
    """A callable like the program it records. Calls from several streams run one after the other.

    zero_copy: inputs read in place (copied all the same if their layout is not the compiled one).
    copy_results: whether each call returns tensors of its own.
    """

    def __init__(self, program: CallableProgram, examples: Sequence[Any], zero_copy: Collection[str] = (),
                 copy_results: bool = False) -> None:
        if program.device.type != "cuda":
            raise UserError(f"program {program.spec.name} runs on the CPU; only GPU programs can be captured")
        for name in zero_copy:
            if name not in program.spec.inputs:
                raise NameLookupError(f"program {program.spec.name} has no input {name!r}", hint=nearest(name, program.spec.inputs))
        self.program = program
        self.copy_results = copy_results
        self.num_recordings = 0
        tensors = self._checked(examples)
        self._in_place = tuple(i for i, name in enumerate(program.spec.inputs) if name in zero_copy and self._as_compiled(i, tensors[i]))
        self._copied = tuple(i for i in range(len(program.spec.inputs)) if i not in self._in_place)
        self._updated = tuple(i for i, name in enumerate(program.spec.inputs) if name in program.spec.updates and i not in self._in_place)
        self._recordings: OrderedDict[tuple[int, ...], _Recording] = OrderedDict()
        self._guard = threading.Lock()
        self._stream = torch.cuda.Stream(program.device)
        self._last_stream: torch.cuda.Stream | None = None
        self._buffers = {i: _buffer(program.arguments[i], program.device) for i in self._copied}
        self._recording(tensors)

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        """The tensors that the latest recording reads: a caller that fills them and passes them avoids the copies."""
        return next(reversed(self._recordings.values())).inputs

    def __call__(self, *tensors: Any) -> list[torch.Tensor]:
        """Replays the program on these arguments, on torch's current stream.

        Raises: as the program; UnsupportedError when a new recording (changed addresses) fails.
        """
        if torch._C._cuda_getDevice() != self.program.device.index:
            with torch.cuda.device(self.program.device):
                return self(*tensors)
        with self._guard, torch.no_grad():
            checked = self._checked(tensors)
            if not all(self._as_compiled(i, checked[i]) for i in self._in_place):
                # Its copy would have another address each time: a plain call costs less than a recording.
                return self.program(*tensors)
            recording = self._recording(checked)
            self._follow()
            self._fill(recording, checked)
            recording.graph.replay()
            for i in self._updated:
                if checked[i] is not recording.inputs[i]:
                    checked[i].copy_(recording.inputs[i])
            return [self._result(tensor, place, checked) for tensor, place in zip(recording.results, recording.places)]

    @property
    def zero_copy(self) -> tuple[int, ...]:
        """Numbers of the inputs that are read where they are."""
        return self._in_place

    def recorded_in_place(self) -> list[torch.Tensor]:
        """The tensors that recordings read where they are, each kept alive by its recording."""
        return [recording.inputs[i] for recording in self._recordings.values() for i in self._in_place]

    @property
    def copied(self) -> tuple[int, ...]:
        """Numbers of the inputs that each call copies."""
        return self._copied

    def again(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """A call with the zero-copy arguments of the previous call, which are not checked again.

        Requires: the others are tensors of the compiled types and shapes on the program's device, which is torch's current one.
        """
        with self._guard, torch.no_grad():
            recording = next(reversed(self._recordings.values()))
            self._follow()
            for i in self._copied:
                recording.inputs[i].copy_(tensors[i])
            recording.graph.replay()
            for i in self._updated:
                tensors[i].copy_(recording.inputs[i])
            return [self._result(tensor, place, tensors) for tensor, place in zip(recording.results, recording.places)]

    def _follow(self) -> None:
        """Makes the current stream wait for the previous call's stream, if it is another one: both use the same buffers."""
        stream = torch.cuda.current_stream()
        if self._last_stream is not None and stream != self._last_stream:
            stream.wait_stream(self._last_stream)
        self._last_stream = stream

    def _result(self, tensor: torch.Tensor, place: int, arguments: Sequence[torch.Tensor]) -> torch.Tensor:
        """The result that the caller gets: its own argument where the program returns an input."""
        if place >= 0:
            return arguments[place]
        return tensor.clone() if self.copy_results else tensor

    def _checked(self, tensors: Sequence[Any]) -> list[torch.Tensor]:
        arguments = self.program.arguments
        if len(tensors) != len(arguments):
            raise UserError(f"program {self.program.spec.name} takes {len(arguments)} tensors, got {len(tensors)}")
        return [check_argument(t, want, self.program.device) for t, want in zip(tensors, arguments)]

    def _as_compiled(self, i: int, tensor: torch.Tensor) -> bool:
        """Whether kernels can read the argument in place."""
        want = self.program.arguments[i]
        return fits(tensor, want.shape, want.strides)

    def _fill(self, recording: _Recording, arguments: Sequence[torch.Tensor]) -> None:
        groups: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for i in self._copied:
            target, source = recording.inputs[i], arguments[i]
            if source is target or not target.numel():
                continue
            targets, sources = groups.setdefault(target.dtype, ([], []))
            targets.append(target)
            sources.append(source)
        for targets, sources in groups.values():
            # One launch for all inputs of a dtype.
            torch._foreach_copy_(targets, sources)

    def _recording(self, arguments: Sequence[torch.Tensor]) -> _Recording:
        addresses = tuple(arguments[i].data_ptr() for i in self._in_place)
        known = self._recordings.get(addresses)
        if known is not None:
            return known
        inputs = tuple(self._buffers[i] if i in self._buffers else arguments[i] for i in range(len(arguments)))
        recording = self._record(inputs, arguments)
        self._recordings[addresses] = recording
        if len(self._recordings) > MAX_RECORDINGS:
            self._recordings.popitem(last=False)
        return recording

    def _record(self, inputs: tuple[torch.Tensor, ...], arguments: Sequence[torch.Tensor]) -> _Recording:
        program = self.program
        self.num_recordings += 1
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.no_grad(), torch.cuda.device(program.device):
                self._stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(self._stream):
                    for i in self._copied:
                        inputs[i].copy_(arguments[i])
                    frame = program.new_frame(self._stream.cuda_stream)
                    self._warm_up(frame, inputs)
                torch.cuda.current_stream().wait_stream(self._stream)
                with torch.cuda.graph(graph, stream=self._stream):
                    results = program.run_frame(frame, inputs)
        except CompilerError:
            raise
        except RuntimeError as error:
            free_generator(self._stream)
            raise cannot_be_recorded(program, error) from error
        places = tuple(next((i for i, t in enumerate(inputs) if t is r), -1) for r in results)
        return _Recording(graph, inputs, results, places, frame)

    def _warm_up(self, frame: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        """One run outside the graph, since libraries initialise at first use; inputs that it updates are restored."""
        before_run = [(inputs[a.position], inputs[a.position].clone()) for a in self.program.arguments if a.updated]
        self.program.run_frame(frame, inputs)
        for tensor, before in before_run:
            tensor.copy_(before)


def _buffer(argument: Argument, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(argument.shape, argument.strides, dtype=argument.dtype, device=device)
