"""An ONNX model in parts: tilefuse compiles the operators that it can express; ONNX's reference implementation runs the others.

    call -> part: compiled for these sizes?   its program
                  worth a compile?            imported with these sizes and, where they decide shapes, this data; compiled and kept
                  else                        the reference implementation, on the host

Sizes after an operator like NonZero are known only when it has run. The first size of a part is compiled at once; another one when it
returns, since a size that occurs once does not pay for a compile. A node that stops an import moves: behind the data that it waits for, or
to the reference implementation.
"""
from __future__ import annotations

import ast
import math
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from tilefuse.base import trace
from tilefuse.base.errors import NameLookupError, ShapeError, UnsupportedError, UnsupportedOpError, UserError, nearest
from tilefuse.driver.onnx.saved import UNREADABLE, SavedSplit, read_split, unreadable, write_split
from tilefuse.frontends.imported import Imported
from tilefuse.frontends.onnx.call import ValueNeededError
from tilefuse.frontends.onnx.importer import Stop, import_until
from tilefuse.frontends.onnx.model import element_dtype, input_names, input_shapes, load_model
from tilefuse.frontends.onnx.parts import Key, Part, given_results, key_of, part_model, split, with_constants_held
from tilefuse.frontends.onnx.reference import reference
from tilefuse.ir.names import plain_name
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.runtime.calls.arguments import all_numpy, as_numpy, as_tensor
from tilefuse.runtime.calls.library import DTYPE_NAMES
from tilefuse.runtime.spec import KernelCode, ProgramSpec
from tilefuse.runtime.spec import Value as SpecValue

# Maximum size of an operand whose data may decide a program: counts, shapes, axes. Units: elements.
MOST_DECIDING_ELEMENTS = 64
# Number of the call at which a size is compiled, except a part's first size. As `compile_at_call` of torch's backend.
COMPILE_AT_CALL = 2
# Programs kept per part (the most recently called), and sizes whose calls are counted.
MOST_PROGRAMS, MOST_COUNTED = 16, 4096
# Errors that the reference implementation raises for operands or operators that it does not support.
REFERENCE_ERRORS = (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, AssertionError,
                    OSError)

SizeKey = tuple[object, ...]


@dataclass
class _Compiled:
    """State of one part: its programs by sizes, call counts of other sizes, and operands whose data decides a program."""

    programs: OrderedDict[SizeKey, Any] = field(default_factory=OrderedDict)
    calls: OrderedDict[SizeKey, int] = field(default_factory=OrderedDict)
    deciding: tuple[str, ...] = ()
    evaluator: Any = None


class SplitModel:
    """A callable over a model's parts; its results in order, as those of a program. See the module.

    make: compiles an imported part; None: only the known programs exist. device: the programs' device. known: `facts` of an earlier model.
    Threads may call it at the same time.
    """

    def __init__(self, source: Any, shapes: Mapping[str, Sequence[int]] | None, make: Callable[[Imported], Any] | None,
                 device: torch.device, device_name: str, runs: bool = True,
                 known: tuple[Mapping[str, Any], Sequence[Any]] | None = None) -> None:
        """Raises: UserError for a bad model or missing shapes; UnsupportedOpError for an operator that nothing runs."""
        model, self._title = load_model(source)
        self._model = with_constants_held(model)
        self.device = device
        self._device_name = device_name
        self._make = make
        self._runs = runs
        self._hosted: dict[Key, str] = dict(known[0]["hosted"]) if known else {}
        self._waiting: dict[Key, str] = dict(known[0]["waiting"]) if known else {}
        self._known: dict[tuple[tuple[Key, ...], tuple[str, ...]], _Compiled] = {}
        self._lock = threading.RLock()
        graph = self._model.graph
        self.inputs = input_names(self._model)
        self.results = [out.name for out in graph.output]
        stored = {t.name: t for t in graph.initializer}
        self._constants = {name: onnx.numpy_helper.to_array(stored[name]) for name in given_results(self._model) if name in stored}
        shape_by_input = input_shapes(self._model, shapes or {}, frozenset(stored) | {t.values.name for t in graph.sparse_initializer})
        self._types = {i.name: (element_dtype(i.type.tensor_type.elem_type, f"input {i.name!r}"), shape_by_input[i.name])
                       for i in graph.input if i.name in shape_by_input}
        self._parts = split(self._model, self._hosted, self._waiting)
        if known is not None:
            self._restore(*known)
        self._prepare()

    def _prepare(self) -> None:
        """Compiles the parts that read only inputs, whose sizes are known, and checks that the reference implementation runs the others."""
        stand_ins = {name: np.broadcast_to(np.zeros((), NUMPY_DTYPES[dtype.name]), shape) for name, (dtype, shape) in self._types.items()}
        at = 0
        while at < len(self._parts):
            part = self._parts[at]
            if not part.ours:
                self._evaluator(part)
            elif self._make is not None and all(name in stand_ins for name in part.takes) and self._state(part).deciding == ():
                if self._compiled(part, stand_ins, deciding=False) is CHANGED:
                    continue
            at += 1
        for key, reason in self._hosted.items():
            trace.current().event("fallback", "frontend", operator=self._operator(key), reason=reason)

    # A call

    def __call__(self, *arguments: Any, **named: Any) -> list[Any]:
        """Runs the model. Arrays of NumPy give arrays of NumPy.

        Raises: as a program; UnsupportedError where the reference implementation cannot run an operator on this data.
        """
        if not self._runs:
            raise UnsupportedError(f"{self._title} was planned as sources for {self._device_name}, and cannot be called",
                                   hint="compile it with device= of a device that is here")
        positional = self._in_order(arguments, named)
        inputs = {name: self._checked(name, value) for name, value in zip(self.inputs, positional, strict=True)}
        # A call keeps its list of parts: another thread may move a node meanwhile. After moving a node itself, it starts again.
        results: Any = CHANGED
        while results is CHANGED:
            results = self._through(self._parts, inputs | self._constants)
        return [as_numpy(r) for r in results] if all_numpy(positional) else [self._tensor(r) for r in results]

    def _through(self, parts: Sequence[Part], values: dict[str, Any]) -> Any:
        """The results computed by these parts; CHANGED where the model has other parts now."""
        for part in parts:
            outputs = self._run(part, values)
            if outputs is CHANGED:
                return CHANGED
            values.update(zip(part.gives, outputs, strict=True))
            for name in part.released:
                values.pop(name, None)
        return [values[name] for name in self.results]

    def _run(self, part: Part, values: Mapping[str, Any]) -> Any:
        """The values that a part computes; CHANGED where the model has other parts now."""
        if part.ours and all(_is_plain(values[name]) for name in part.takes):
            program = self._compiled(part, values)
            if program is CHANGED:
                return CHANGED
            if program is not None:
                return program(*(self._tensor(values[name]) for name in program.spec.told_inputs))
        feeds = {name: value if isinstance(value, list) else as_numpy(value) for name, value in values.items() if name in part.takes}
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                outputs = self._evaluator(part).run(None, feeds)
        except REFERENCE_ERRORS as cause:
            operators = ", ".join(part.operators)
            raise UnsupportedError(f"{self._title}: the reference implementation of ONNX cannot run {operators} here: {cause}",
                                   where=f"node {part.nodes[0].name or part.keys[0]}") from cause
        return [np.asarray(value) if isinstance(value, np.generic) else value for value in outputs]

    def _in_order(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
        if len(arguments) > len(self.inputs):
            raise UserError(f"{self._title} takes {len(self.inputs)} tensors ({', '.join(self.inputs)}), got {len(arguments)}")
        value_by_name = dict(zip(self.inputs, arguments))
        for name, value in named.items():
            if name not in self.inputs:
                raise NameLookupError(f"{self._title} has no input {name!r}",
                                      hint=nearest(name, self.inputs) or f"inputs: {', '.join(self.inputs)}")
            if name in value_by_name:
                raise UserError(f"input {name} of {self._title} is given twice")
            value_by_name[name] = value
        missing = [name for name in self.inputs if name not in value_by_name]
        if missing:
            raise UserError(f"{self._title} needs {', '.join(missing)} as well")
        return [value_by_name[name] for name in self.inputs]

    def _checked(self, name: str, value: Any) -> torch.Tensor:
        """An input as a tensor. Raises: ShapeError, UserError for one that the model was not compiled for."""
        dtype, shape = self._types[name]
        tensor = as_tensor(value, name)
        if tuple(tensor.shape) != shape:
            raise ShapeError(f"argument {name} has shape {tuple(tensor.shape)}, expected {shape}",
                             hint="a model is compiled for one set of shapes; compile for this one")
        if DTYPE_NAMES.get(tensor.dtype) != dtype.name:
            raise UserError(f"argument {name} has dtype {tensor.dtype}, expected {dtype.name}")
        return tensor

    def _tensor(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype.kind not in "OUS":
            value = as_tensor(np.ascontiguousarray(value).reshape(value.shape), "of the reference implementation")
        return value.to(self.device) if isinstance(value, torch.Tensor) else value

    # Programs of parts

    def _state(self, part: Part) -> _Compiled:
        return self._known.setdefault((part.keys, part.gives), _Compiled())

    def _evaluator(self, part: Part) -> Any:
        """The reference implementation of a part. Raises: UnsupportedOpError where it has none, with the reason why tilefuse has none."""
        state = self._state(part)
        with self._lock:
            if state.evaluator is None:
                try:
                    state.evaluator = reference(part_model(self._model, part, {}))
                except REFERENCE_ERRORS as cause:
                    reasons = [self._hosted[key] for key in part.keys if key in self._hosted]
                    raise UnsupportedOpError("; ".join(reasons) or str(cause), where=f"node {part.keys[0]}",
                                             hint="the reference implementation of ONNX does not run it either") from cause
            return state.evaluator

    def _compiled(self, part: Part, values: Mapping[str, Any], deciding: bool = True) -> Any:
        """The program of a part for these values; None where compiling does not pay, CHANGED where the model has other parts now.

        deciding: whether the program may depend on the values' data, and not only on their sizes.
        """
        with self._lock:
            state = self._state(part)
            key = _size_key(part, state, values)
            known = state.programs.get(key)
            if known is not None:
                state.programs.move_to_end(key)
                return known
            calls = state.calls[key] = state.calls.get(key, 0) + 1
            if len(state.calls) > MOST_COUNTED:
                state.calls.popitem(last=False)
            if self._make is None or state.programs and calls < COMPILE_AT_CALL:
                return None
            imported = self._imported(part, state, values, deciding)
            if not isinstance(imported, Imported):
                return imported
            program = self._make(imported)
            state.programs[_size_key(part, state, values) if deciding else key] = program
            if len(state.programs) > MOST_PROGRAMS:
                state.programs.popitem(last=False)
            return program

    def _imported(self, part: Part, state: _Compiled, values: Mapping[str, Any], deciding: bool) -> Any:
        """The graph of a part for these values; None where it depends on data that may not be read, CHANGED after a node was moved."""
        model = part_model(self._model, part, {name: _stand_in(values[name]) for name in part.takes})
        while True:
            outcome = import_until(model, self._title, {}, {name: as_numpy(values[name]) for name in state.deciding})
            if not isinstance(outcome, Stop):
                return outcome
            needed = outcome.error.inputs if isinstance(outcome.error, ValueNeededError) else ()
            few = all(math.prod(values[name].shape) <= MOST_DECIDING_ELEMENTS for name in needed)
            if needed and few and not set(needed) <= set(state.deciding):
                state.deciding = tuple(dict.fromkeys((*state.deciding, *needed)))
                if not deciding:
                    return None
                continue
            self._move(outcome)
            return CHANGED

    def _move(self, stop: Stop) -> None:
        """Moves the node that stopped an import: behind its operands where it waits for data, else to the reference implementation."""
        key = key_of(stop.node)
        if isinstance(stop.error, ValueNeededError) and key not in self._waiting:
            self._waiting[key] = stop.error.message
        else:
            self._hosted[key] = stop.error.message
            trace.current().line("fallbacks", f"{self._title}: {stop.node.op_type} runs by the reference implementation of ONNX on the "
                                 f"host: {stop.error.message}")
        self._parts = split(self._model, self._hosted, self._waiting)

    # Explanations

    def _operator(self, key: Key) -> str:
        return str(next(node.op_type for part in self._parts for node in part.nodes if key_of(node) == key))

    @property
    def programs(self) -> list[Any]:
        """The programs of all parts so far, in order of the parts."""
        with self._lock:
            return [program for part in self._parts for program in self._state(part).programs.values()]

    @property
    def kernels(self) -> tuple[KernelCode, ...]:
        """Kernels of all programs so far."""
        return tuple(dict.fromkeys(kernel for program in self.programs for kernel in program.spec.kernels))

    @property
    def spec(self) -> ProgramSpec:
        """Inputs, results and kernels as plain data; the steps are those of the parts' programs."""
        name = plain_name(self._model.graph.name) or "model"
        values = tuple(SpecValue(n, dtype.name, shape, _dense(shape), "input") for n, (dtype, shape) in self._types.items())
        return ProgramSpec(name, self._device_name, tuple(self.inputs), tuple(self.results), values, self.kernels, ())

    def source(self, kernel: str | None = None) -> str:
        """Source text of one kernel, or of all so far. Raises: NameLookupError for an unknown kernel."""
        return self.spec.source(kernel)

    def explain(self, json: bool = False) -> Any:
        """The compiled parts, the parts in the reference implementation with reasons, and the kernels so far; as text or plain data."""
        from tilefuse.driver.explain.explain import joined_explanations
        from tilefuse.runtime.explanation import explanation_text

        explanations = [p.explain(json=True) for p in self.programs]
        fallbacks = [(self._operator(key), f"runs by the reference implementation of ONNX on the host: {reason}")
                     for key, reason in self._hosted.items()]
        data = joined_explanations(self.spec.name, self._device_name, explanations, fallbacks, self.notes())
        return data if json else explanation_text(data)

    def view(self, path: Path | str | None = None, *, show: bool = False) -> Path:
        """Writes one page with the programs so far and returns its path, as `Program.view`. Raises: UserError where there is none yet."""
        from tilefuse.runtime.page import spec_data, write_page

        programs = self.programs
        if not programs:
            raise UserError(f"{self._title} has no program yet", hint="its parts are compiled when their sizes are known: call it once")
        pages = [spec_data(p.spec, label=f"{p.spec.name} {n} of {len(programs)}") for n, p in enumerate(programs, 1)]
        return write_page(self.spec.name, pages, path, show=show)

    def notes(self) -> list[str]:
        """One line a part."""
        lines: list[str] = []
        for number, part in enumerate(self._parts):
            state = self._state(part)
            operators = ", ".join(part.operators[:8]) + (", ..." if len(part.operators) > 8 else "")
            head = f"part {number} of {len(self._parts)}: {len(part.nodes)} operator{'' if len(part.nodes) == 1 else 's'} ({operators})"
            if not part.ours:
                lines.append(f"{head}, run by the reference implementation on the host")
                continue
            count = len(state.programs)
            waits = [self._waiting[key] for key in part.keys if key in self._waiting]
            data = f", a program for every value of {', '.join(state.deciding)}" if state.deciding else ""
            later = "" if count else ", its sizes are known when it runs: the first is compiled then, another one when it returns"
            lines.append(f"{head}, compiled for {count} size{'' if count == 1 else 's'}{data}{later}" + "".join(f"; {w}" for w in waits))
        return lines

    def save(self, path: Path | str, *, sign: Path | str | None = None) -> None:
        """Writes the model and the programs compiled so far to one file, for `tilefuse.load`; other sizes run there by the reference
        implementation. Raises: as `write_split`; UnsupportedError for sources without machine code.
        """
        if not self._runs:
            raise UnsupportedError(f"{self._title} was planned as sources for {self._device_name}: it has no machine code to save",
                                   hint="compile it with device= of a device that is here")
        write_split(SavedSplit(self._model, *self.facts()), self._title, path, sign)

    @property
    def title(self) -> str:
        """How messages name the model."""
        return self._title

    def facts(self) -> tuple[dict[str, Any], list[Any]]:
        """The model's split as plain data, and the programs in the order of their numbers in the data."""
        programs: list[Any] = []
        rows: list[dict[str, Any]] = []
        with self._lock:
            for part in self._parts:
                state = self._state(part)
                listed = [[repr(key), len(programs) + n] for n, key in enumerate(state.programs)]
                programs += state.programs.values()
                rows.append({"keys": part.keys, "gives": part.gives, "deciding": state.deciding, "programs": listed})
            return {"device": self._device_name, "place": "host" if self.device.type == "cpu" else str(self.device),
                    "shapes": {name: shape for name, (_, shape) in self._types.items()}, "hosted": self._hosted, "waiting": self._waiting,
                    "parts": rows, "programs": len(programs)}, programs

    def _restore(self, facts: Mapping[str, Any], programs: Sequence[Any]) -> None:
        for row in facts["parts"]:
            state = self._known[tuple(row["keys"]), tuple(row["gives"])] = _Compiled(deciding=tuple(row["deciding"]))
            state.programs.update((tuple(ast.literal_eval(text)), programs[number]) for text, number in row["programs"])

    @property
    def plan(self) -> Any:
        """Raises: UnsupportedError always: every program of a part has a plan of its own."""
        raise self._in_parts("one plan", "`tilefuse explain` tells the parts")

    def _in_parts(self, missing: str, hint: str) -> UnsupportedError:
        outside = ", ".join(dict.fromkeys(self._operator(key) for key in (*self._hosted, *self._waiting)))
        return UnsupportedError(f"{self._title} runs in parts, since {outside} cannot be compiled with the rest: there is not {missing} "
                                "of it", hint=hint)


def load_split(path: Path | str, device: Any = None, require_signature: Path | str | None = None) -> SplitModel:
    """The saved model in parts, ready to run. Its machine code runs in this process: load only trusted files.

    Raises: as `load_program`.
    """
    saved = read_split(path, device, require_signature)
    try:
        place = str(device or saved.facts["place"])
        where = torch.device("cpu" if place in ("host", "cpu") else place)
        return SplitModel(saved.model, saved.facts["shapes"], None, where, saved.facts["device"], known=(saved.facts, saved.programs))
    except UNREADABLE as error:
        raise unreadable(path, error) from error


class _Changed:
    """The model has other parts than before."""


CHANGED = _Changed()


def _is_plain(value: Any) -> bool:
    """Whether a value is a tensor of numbers: sequences and text stay with the reference implementation."""
    return isinstance(value, torch.Tensor) or isinstance(value, np.ndarray) and value.dtype.kind not in "OUSV"


def _stand_in(value: Any) -> np.ndarray:
    """An array of the value's type without its data."""
    if isinstance(value, np.ndarray):
        return value
    return np.broadcast_to(np.zeros((), NUMPY_DTYPES[DTYPE_NAMES[value.dtype]]), tuple(value.shape))


def _size_key(part: Part, state: _Compiled, values: Mapping[str, Any]) -> SizeKey:
    sizes = tuple((str(values[name].dtype).removeprefix("torch."), tuple(values[name].shape)) for name in part.takes)
    return (*sizes, *(as_numpy(values[name]).tobytes() for name in state.deciding))


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
