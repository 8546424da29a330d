"""Calls of a program as replays of a CUDA graph where that is faster: the fast path of `torch.compile`'s calls.

A replay costs the host a few microseconds for any number of kernels. Inputs with fixed addresses (parameters, caches) are read in place,
others are copied into the recording's buffers by one launch. A call that fits no recording runs directly.
"""
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tilefuse.base.errors import OutOfMemoryError, UnsupportedError
from tilefuse.base.logs import log_of
from tilefuse.runtime.calls.call_log import watch_calls
from tilefuse.runtime.calls.call_plan import root_of
from tilefuse.runtime.calls.callable_program import CallableProgram
from tilefuse.runtime.calls.graphs import library_settings
from tilefuse.runtime.calls.lent import given_results
from tilefuse.runtime.calls.library import LIBRARY, torch_operator
from tilefuse.runtime.calls.strided import fits, places_once
from tilefuse.runtime.spec import KernelStep, LibraryStep

MAX_RECORDINGS = 64
# Limit on the recordings of a backward part: one for each set of addresses of the values saved by its forward part. A recording of the
# forward part is one such set, of which a loop has one (one for each stream and set of parameters); where the forward part runs directly,
# the allocator decides the addresses. Each recording holds all gradients. At twice the limit, a part whose addresses never settle holds 16
# times the weights before it gives up; at half, a loop over five sets of parameters gives up.
MAX_BACKWARD_RECORDINGS = 8
# A recording takes about as long as three calls, so it waits for three calls: the total is at most twice that of the better choice.
CALLS_BEFORE_RECORDING = 3
# Number of the replay whose device time is measured: the driver uploads a graph at the first.
WATCHED_REPLAY = 2
# After this many inputs were seen to move one by one, all inputs that may be copied are copied.
MAX_FOUND_MOVING = 4


@dataclass(slots=True)
class _Callers:
    """History of the calls with the same parameters on one stream of one thread."""

    calls: int = 0
    addresses: list[int] = field(default_factory=list)


class _Recording:
    """One graph with its inputs and results.

    addresses: one for each input; inputs with a buffer are copied into it, the others are read in place.
    """

    def __init__(self, graphs: Any, pool: Any, recorded: Any, inputs: Sequence[torch.Tensor], buffers: Mapping[int, torch.Tensor],
                 addresses: list[int], trusted: Collection[int], lent: Collection[int], are_saved: bool) -> None:
        self.guard = pool.guard
        self._same_addresses = graphs.same_addresses
        self._addresses = addresses
        self._fixed = [i for i in range(len(addresses)) if i not in buffers]
        # Torch's guards check the strides of parameters; moving inputs are copied from any strides.
        self._looked_at = [(i, t.shape, t.dtype, None if i in buffers else t.stride()) for i, t in enumerate(inputs) if i not in trusted]
        groups: dict[torch.dtype, tuple[list[torch.Tensor], list[int]]] = {}
        # Expanded inputs: subscripts that write each place in memory once.
        self._expanded: list[tuple[torch.Tensor, int, tuple[slice, ...]]] = []
        for i, buffer in buffers.items():
            once = places_once(buffer.shape, buffer.stride())
            if buffer[once].shape != buffer.shape:
                self._expanded.append((buffer[once], i, once))
                continue
            targets, sources = groups.setdefault(buffer.dtype, ([], []))
            targets.append(buffer)
            sources.append(i)
        self._copies = list(groups.values())
        self._settings = library_settings()
        self._replay = recorded.replay
        self._kept = recorded
        places = {n: i for n, r in enumerate(recorded.results) for i, t in enumerate(inputs) if t is r}
        own = [n for n in range(len(recorded.results)) if n not in places]
        self.results = given_results([recorded.results[n] for n in own], [m for m, n in enumerate(own) if n in lent], are_saved)
        self._places = sorted(places.items())

    def serves(self, tensors: list[Any]) -> bool:
        """Whether a replay computes the program's results for these tensors."""
        if not self._same_addresses(tensors, self._addresses, self._fixed) or library_settings() != self._settings:
            return False
        return all((t := tensors[i]).dtype is dtype and t.shape == shape and (strides is None or t.stride() == strides)
                   for i, shape, dtype, strides in self._looked_at)

    def bare(self) -> Callable[[], None]:
        """Only the copies of inputs and the replay, from tensors that stand in for the inputs: a lower bound on a call's time."""
        copies = [(targets, [t.clone() for t in targets]) for targets, _ in self._copies]
        copies += [([target], [target.clone()]) for target, _, _ in self._expanded]

        def call() -> None:
            for targets, sources in copies:
                torch._foreach_copy_(targets, sources)
            self._replay()

        return call

    def run(self, tensors: list[Any]) -> list[torch.Tensor]:
        """One call. Requires: `serves`; `guard` held; gradients off."""
        for targets, sources in self._copies:
            torch._foreach_copy_(targets, [tensors[i] for i in sources])
        for target, i, once in self._expanded:
            target.copy_(tensors[i][once])
        self._replay()
        results = self.results.give()
        for n, i in self._places:
            results.insert(n, tensors[i])
        return results


class ReplayedProgram:
    """A boxed call of a program (`Program.call_boxed`) that replays recordings.

    static: numbers of the inputs that are parameters or buffers, or values saved by a forward part: read in place, and recorded again where
    their addresses change.
    always: replay at any cost (`reduce-overhead`); otherwise where the host would take longer than the device.
    lent: numbers of the results that lie in the recording's memory while no caller keeps them; the others are copied at each call.
    copies_kept: where a caller keeps lent results across a call, copy them from then on. Otherwise only autograd sees them (a forward
    part's, for its backward part): every replay returns the same tensors, and once one is kept, every call is direct from then on.
    trusted: numbers of inputs beside the static ones whose types need no check (saved by a forward part for its backward part).
    graphs: records and replays (`CudaGraphs`, or a stand-in in tests).
    Figures: `num_recordings`, `num_replays`; `direct_s`, the host's least time for a direct call (seconds); `why_not`, the reason why every
    call is direct, if it is.
    """

    def __init__(self, program: CallableProgram, graphs: Any, static: Collection[int] = (), *, always: bool = False,
                 lent: Collection[int] = (), copies_kept: bool = True, trusted: Collection[int] = ()) -> None:
        self.program = program
        self.num_recordings = 0
        self.num_replays = 0
        self._graphs = graphs
        self._stream, self._may_replay = graphs.stream, graphs.may_replay
        self._static = frozenset(static)
        self._updated = frozenset(i for i, name in enumerate(program.spec.inputs) if name in program.spec.updates)
        self._always = always
        self._lent = frozenset(lent)
        self._trusted = self._static | frozenset(trusted)
        self._copies_kept = copies_kept
        self._most_recordings = MAX_BACKWARD_RECORDINGS if trusted else MAX_RECORDINGS
        self._guard = threading.Lock()
        self._current: dict[int, _Recording] = {}
        self._recordings: dict[object, _Recording] = {}
        self._callers: dict[object, _Callers] = {}
        self._moving: set[int] = set()
        self.direct_s = float("inf")
        self._clock: Any = None
        self._is_watched = not always
        self._is_over = False
        self.why_not = ""
        watch_calls(self, "_replayed", f"{program.spec.name}, replayed")

    def __call__(self, tensors: list[Any]) -> list[torch.Tensor]:
        """Runs the program and empties the list. Requires: types and shapes are those compiled for. Raises: as the program."""
        recording = self._current.get(self._stream())
        if recording is not None and self._may_replay() and recording.guard.acquire(False):
            try:
                if recording.serves(tensors) and not recording.results.are_held():
                    return self._replayed(recording, tensors)
            finally:
                recording.guard.release()
        return self._otherwise(tensors)

    def bare(self) -> Callable[[], None] | None:
        """The current stream's recording without its surroundings (`_Recording.bare`), as a baseline for measurements; None where there is
        none.

        It overwrites the recording's inputs and results.
        """
        recording = self._current.get(self._stream())
        return None if recording is None else recording.bare()

    def _replayed(self, recording: _Recording, tensors: list[Any]) -> list[torch.Tensor]:
        self.num_replays += 1
        if self._is_watched:
            self._watch()
        graded = torch.is_grad_enabled()
        if graded:
            torch._C._set_grad_enabled(False)
        try:
            results = recording.run(tensors)
        finally:
            if graded:
                torch._C._set_grad_enabled(True)
        tensors.clear()
        if self._is_watched and self._clock is not None and self.num_replays == WATCHED_REPLAY:
            self._clock.stop()
        return results

    def _watch(self) -> None:
        """Times one replay on the device, and drops the recordings where it takes longer than the host takes without them.

        Such recordings would only hold memory. The first replay is not measured: the driver uploads the graph then.
        """
        if self.num_replays == WATCHED_REPLAY:
            self._clock = self._graphs.clock()
            self._clock.start()
        elif self._clock is not None and (device_s := self._clock.elapsed_s()) is not None:
            self._is_watched = False
            if device_s > self.direct_s:
                self._end(f"the device takes {device_s * 1e6:.0f} us, the host {self.direct_s * 1e6:.0f} without a graph")

    def _otherwise(self, tensors: list[Any]) -> list[torch.Tensor]:
        """A call that no current recording fits: by another one, by a new one, or directly."""
        if self._is_over or not self._may_replay() or not self._guard.acquire(False):
            return self.program.call_boxed(tensors)
        try:
            recording, is_timed = self._fitting(tensors)
        finally:
            self._guard.release()
        if recording is not None and recording.guard.acquire(False):
            try:
                return self._replayed(recording, tensors)
            finally:
                recording.guard.release()
        started = time.perf_counter()
        results = self.program.call_boxed(tensors)
        if is_timed:
            self.direct_s = min(self.direct_s, time.perf_counter() - started)
        return results

    def _fitting(self, tensors: list[Any]) -> tuple[_Recording | None, bool]:
        """A recording for these tensors, made if it is due; and whether a direct call should be timed."""
        stream = self._stream()
        addresses = [t.data_ptr() for t in tensors]
        caller = (stream, threading.get_ident(), tuple([addresses[i] for i in self._static]))
        if len(self._callers) > 16 * MAX_RECORDINGS:
            self._callers.clear()
        seen = self._callers.setdefault(caller, _Callers())
        if not self._find_moving(seen, addresses):
            return None, False
        seen.calls += 1
        place = (stream, tuple([addresses[i] for i in range(len(tensors)) if i not in self._moving]), library_settings())
        recording = self._recordings.get(place)
        if recording is not None and recording.results.are_held():
            if not self._copies_kept:
                self._end("a caller keeps the results of several calls")
                return None, False
            self._forget()
            self._lent, recording = frozenset(), None
        if recording is None:
            if seen.calls <= (1 if self._always else CALLS_BEFORE_RECORDING):
                return None, True
            recording = self._recorded(tensors, addresses, stream)
            if recording is None:
                return None, False
            self._recordings[place] = recording
        self._current[stream] = recording
        return recording, False

    def _find_moving(self, seen: _Callers, addresses: list[int]) -> bool:
        """Marks inputs whose addresses changed since the previous call; False where a replay could no longer be correct or cheap."""
        before, seen.addresses = seen.addresses, addresses
        if not before:
            return True
        new = [i for i, (a, b) in enumerate(zip(before, addresses)) if a != b and i not in self._static and i not in self._moving]
        if self._updated.intersection(new):
            self._end("an input that the program updates lies elsewhere at each call")
            return False
        if new:
            self._moving.update(new)
            if len(self._moving) > MAX_FOUND_MOVING:
                self._moving.update(i for i in range(len(addresses)) if i not in self._static and i not in self._updated)
            self._forget()
        return True

    def _recorded(self, tensors: list[Any], addresses: list[int], stream: int) -> _Recording | None:
        program = self.program
        if len(self._recordings) >= self._most_recordings:
            self._end(f"{self._most_recordings} sets of parameters are recorded already")
            return None
        if not self._always and _device_bound_s(program) > self.direct_s:
            self._end("the device takes longer than the host")
            return None
        arguments = program.arguments
        copied = {i for i, (t, want) in enumerate(zip(tensors, arguments))
                  if i in self._moving or not fits(t, want.shape, want.strides) or t.is_neg() or t.device != program.device}
        if self._updated & copied:
            self._end("an input that the program updates does not lie as it was compiled")
            return None
        pool = self._graphs.pool(stream, shared=not self._lent)
        if not pool.guard.acquire(False):
            return None
        try:
            with torch.no_grad():
                buffers = {i: torch.empty_strided(arguments[i].shape, arguments[i].strides, dtype=arguments[i].dtype,
                                                  device=program.device) for i in sorted(copied)}
                inputs = [buffers.get(i, t) for i, t in enumerate(tensors)]
                recorded = self._graphs.record(program, inputs, pool)
                self.num_recordings += 1
                return _Recording(self._graphs, pool, recorded, inputs, buffers, addresses, self._trusted, self._lent,
                                  not self._copies_kept)
        except (UnsupportedError, OutOfMemoryError) as reason:
            self._end(reason.message)
            return None
        finally:
            pool.guard.release()

    def _forget(self) -> None:
        self._recordings.clear()
        self._current.clear()

    def _end(self, why: str) -> None:
        """Every call from now on is a direct one."""
        self.why_not = why
        log_of("calls").info("%s: every call is a direct one from now on: %s", self.program.spec.name, why)
        self._is_over = True
        self._forget()


def may_be_replayed(program: CallableProgram, always: bool) -> bool:
    """Whether a replay returns the same results as a call. Without `always`, only where no operator depends on more than its operands."""
    spec = program.spec
    value_by_name = {v.name: v for v in spec.values}
    for name in spec.results:
        root, _ = root_of(value_by_name[name], value_by_name)
        if root != name and value_by_name[root].role in ("input", "constant"):
            # A view of an input belongs to the tensor of this call.
            return False
        if value_by_name[name].role == "constant":
            return False
    return always or all(depends_on_operands(s) for s in spec.steps if isinstance(s, LibraryStep))


def depends_on_operands(step: LibraryStep) -> bool:
    """Whether a library call's result depends only on its operands: no random numbers, no state of a user's operator."""
    if step.operator in LIBRARY:
        return step.operator != "random_seed" and not dict(step.attributes).get("dropout")
    if not step.operator.startswith("aten."):
        return False
    operator: Any = torch_operator(step.operator)
    if {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}.intersection(operator.tags):
        return False
    return torch.Tag.nondeterministic_seeded not in operator.tags or _drops_nothing(step, operator._schema)


def _drops_nothing(step: LibraryStep, schema: Any) -> bool:
    """Whether an operator that may draw random numbers (attention) draws none, since its dropout probability is zero."""
    attributes = dict(step.attributes)
    args, kwargs = attributes.get("args", ()), attributes.get("kwargs", ())
    assert isinstance(args, tuple) and isinstance(kwargs, tuple)
    named = {str(pair[0]): pair[1] for pair in kwargs if isinstance(pair, tuple)}
    for n, argument in enumerate(schema.arguments):
        if argument.name == "dropout_p":
            return not (args[n] if n < len(args) else named.get("dropout_p", argument.default_value))
    return False


def _device_bound_s(program: CallableProgram) -> float:
    """Lower bound on the device's time, from the bytes of the program's own kernels. Units: seconds."""
    kernels = program.spec.kernels
    return sum(kernels[s.kernel].limit_us for s in program.spec.steps if isinstance(s, KernelStep)) * 1e-6
