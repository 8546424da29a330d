"""Forms of weights that a program computes from parameters alone (packed, padded, scaled), stored across calls.

    program(x, w):  p = pack(w); y = conv(x, p)    ->    weights(w):  p = pack(w)         when w has changed
                                                         rest(x, w, p):  y = conv(x, p)   at each call

A parameter has changed if its address or its version counter differs, or an optimiser made a step (torch's fused optimisers change no
counter). Writes through `.data`, or by kernels unknown to torch, change no counter either: kept weights are therefore an option, and its
documentation says so.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from tilefuse.runtime.calls.call_plan import root_of
from tilefuse.runtime.calls.replay import depends_on_operands
from tilefuse.runtime.program import Program
from tilefuse.runtime.spec import KernelCode, KernelStep, LibraryStep, ProgramSpec, Step, Value

Run = Callable[[list[Any]], list[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Split:
    """A program as two. `weights` computes `kept` from the inputs `read`; `rest` takes all inputs and `kept`."""

    weights: ProgramSpec
    rest: ProgramSpec
    read: tuple[str, ...]
    kept: tuple[str, ...]


def split_weights(spec: ProgramSpec, static: Collection[str]) -> Split | None:
    """The program split at the steps that read only `static` inputs and constants; None where there are none."""
    value_by_name = {v.name: v for v in spec.values}
    first = _weight_steps(spec, frozenset(static) - frozenset(spec.updates), value_by_name)
    created = dict.fromkeys(r for n in first for r in _written(spec, spec.steps[n], value_by_name))
    others = [n for n in range(len(spec.steps)) if n not in first]
    needed = {_root(name, value_by_name) for n in others for name in _read(spec, spec.steps[n])}
    stored = tuple(name for name in created if name in needed)
    if not stored:
        return None
    used = dict.fromkeys(_root(n, value_by_name) for i in first for n in _read(spec, spec.steps[i]))
    read = tuple(n for n in used if value_by_name[n].role == "input")
    mentioned = {n for i in first for n in (*_read(spec, spec.steps[i]), *_written(spec, spec.steps[i], value_by_name))}
    weights = _part(replace(spec, name=f"{spec.name}_weights", inputs=read, results=stored, updates=(), input_titles=(), result_titles=()),
                    sorted(first),
                    [replace(v, role="result") if v.name in stored else v for v in spec.values if _is_under(v, mentioned, value_by_name)])
    rest = _part(replace(spec, inputs=(*spec.inputs, *stored), input_titles=(*spec.told_inputs, *stored)), others,
                 [replace(v, role="input") if v.name in stored else v for v in spec.values if v.name not in created or v.name in stored])
    return Split(weights, rest, read, stored)


def _weight_steps(spec: ProgramSpec, static: frozenset[str], value_by_name: dict[str, Value]) -> set[int]:
    """Steps that read only static inputs, constants and results of such steps, and whose results nothing else writes and no caller
    receives."""
    steps: set[int] = set()
    stable = set(static) | {v.name for v in spec.values if v.role == "constant"}
    for n, step in enumerate(spec.steps):
        pure = isinstance(step, KernelStep) or isinstance(step, LibraryStep) and depends_on_operands(step)
        written = _written(spec, step, value_by_name)
        if pure and all(_root(name, value_by_name) in stable for name in _read(spec, step)):
            if written and all(value_by_name[r].role == "intermediate" for r in written):
                steps.add(n)
                stable.update(written)
    returned = {_root(name, value_by_name) for name in spec.results}
    while True:
        foreign = {r for n, s in enumerate(spec.steps) if n not in steps for r in _written(spec, s, value_by_name)}
        spoilt = {n for n in steps if not (foreign | returned).isdisjoint(_written(spec, spec.steps[n], value_by_name))
                  or any(_root(name, value_by_name) in foreign for name in _read(spec, spec.steps[n]))}
        if not spoilt:
            return steps
        steps -= spoilt


def _read(spec: ProgramSpec, step: Step) -> list[str]:
    """Values that a step reads, those among them that it updates in place."""
    match step:
        case KernelStep():
            return [n for n, p in zip(step.arguments, spec.kernels[step.kernel].parameters) if n and p.role in ("in", "inout")]
        case LibraryStep():
            return [n for n in step.operands if n]
    return [step.source]


def _written(spec: ProgramSpec, step: Step, value_by_name: dict[str, Value]) -> list[str]:
    """Storages that a step writes, or writes and reads."""
    match step:
        case KernelStep():
            names = [n for n, p in zip(step.arguments, spec.kernels[step.kernel].parameters) if n and p.role != "in"]
        case LibraryStep():
            names = [n for n in step.results if n]
        case _:
            names = [step.target]
    return [_root(n, value_by_name) for n in names]


def _root(name: str, value_by_name: dict[str, Value]) -> str:
    return root_of(value_by_name[name], value_by_name)[0]


def _is_under(value: Value, names: set[str], value_by_name: dict[str, Value]) -> bool:
    """Whether a value is one of `names`, or the base of a view among them."""
    return any(value.name in _line(name, value_by_name) for name in names)


def _line(name: str, value_by_name: dict[str, Value]) -> list[str]:
    line = [name]
    while value_by_name[line[-1]].role == "view":
        line.append(value_by_name[line[-1]].base)
    return line


def _part(spec: ProgramSpec, numbers: Sequence[int], values: Sequence[Value]) -> ProgramSpec:
    """The program of the steps with these numbers and their kernels.

    A kernel with an early start relies on its predecessor. Where another step precedes it now, it starts after that has ended.
    """
    kernels: dict[tuple[int, bool], KernelCode] = {}
    place: dict[tuple[int, bool], int] = {}
    steps: list[Step] = []
    for n in numbers:
        step = spec.steps[n]
        if isinstance(step, KernelStep):
            code = spec.kernels[step.kernel]
            key = (step.kernel, code.launch.early and n > 0 and n - 1 not in numbers)
            kernels.setdefault(key, replace(code, launch=replace(code.launch, early=False)) if key[1] else code)
            step = replace(step, kernel=place.setdefault(key, len(place)))
        steps.append(step)
    return replace(spec, kernels=tuple(kernels.values()), steps=tuple(steps), values=tuple(values))


class _Steps:
    """Number of steps that torch's optimisers have made in this process since the first kept weights."""

    def __init__(self) -> None:
        self.count = 0
        self._is_told = False

    def listen(self) -> None:
        """Makes every optimiser report its steps from now on."""
        if not self._is_told:
            self._is_told = True
            register_optimizer_step_post_hook(self._step)

    def _step(self, *_: object) -> None:
        self.count += 1


_STEPS = _Steps()


class KeptWeights:
    """A boxed call of a program with stored prepared weights. `around(rest)` returns the boxed call of the rest.

    Calls during a caller's recording, and with tensors without a version counter, run the whole program.
    """

    def __init__(self, program: Program, split: Split, around: Callable[[Program], Run]) -> None:
        self.program = program
        self.num_prepared = 0
        self._weights = _program(program, split.weights)
        self._rest = around(_program(program, split.rest))
        self._read = [program.spec.inputs.index(name) for name in split.read]
        self._guard = threading.Lock()
        self._seen: tuple[list[int], list[int], int] = ([], [], -1)
        self._kept: list[torch.Tensor] = []
        self._ready: Any = None
        self._stream = 0
        self._on_gpu = program.device.type == "cuda"
        _STEPS.listen()

    def __call__(self, tensors: list[Any]) -> list[torch.Tensor]:
        """Runs the program and empties the list. Raises: as the program."""
        if any(tensors[i].is_inference() for i in self._read) or self._on_gpu and torch._C._cuda_isCurrentStreamCapturing():
            return self.program.call_boxed(tensors)
        seen = [tensors[i].data_ptr() for i in self._read], [tensors[i]._version for i in self._read], _STEPS.count
        with self._guard:
            if seen != self._seen:
                self._prepare([tensors[i] for i in self._read], seen)
            elif self._on_gpu and (stream := torch.cuda.current_stream(self.program.device)).cuda_stream != self._stream:
                stream.wait_event(self._ready)
        tensors.extend(self._kept)
        return self._rest(tensors)

    def _prepare(self, weights: list[torch.Tensor], seen: tuple[list[int], list[int], int]) -> None:
        """Computes the stored forms, at their old addresses if there are any: graphs read them there."""
        prepared = self._weights(*weights)
        if self._kept:
            with torch.no_grad():
                torch._foreach_copy_(self._kept, prepared)
        else:
            self._kept = prepared
        self._seen = seen
        self.num_prepared += 1
        if self._on_gpu:
            stream = torch.cuda.current_stream(self.program.device)
            self._ready, self._stream = stream.record_event(), stream.cuda_stream


def _program(whole: Program, spec: ProgramSpec) -> Program:
    """A program of some of a program's steps, with its machine code and constants."""
    binary_by_name = {code.name: binary for code, binary in zip(whole.spec.kernels, whole.binaries, strict=True)}
    return Program(spec, whole.constants, whole.device, whole.options, binaries=[binary_by_name[k.name] for k in spec.kernels])
