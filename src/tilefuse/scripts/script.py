"""BLAS scripts as functions over arrays: a program for each set of sizes, strides and devices that calls bring.

The calls of a script become kernels in one of two ways, or a mix of both: routines of the library in fused kernels, or the meanings of the
functions through the ordinary pipeline. Predicted or measured times decide (`programs.py`, `tune.py`).
"""
from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import torch

from tilefuse.base.errors import ShapeError, TypeMismatchError, UserError
from tilefuse.base.options import Options
from tilefuse.driver.compile import present_device
from tilefuse.runtime.calls.arguments import as_tensor
from tilefuse.runtime.calls.library import TORCH_DTYPES
from tilefuse.runtime.page import running_data, write_page
from tilefuse.runtime.program import Program
from tilefuse.scripts.calibrate import routine_times
from tilefuse.scripts.explain import explained
from tilefuse.scripts.language.elementary import CallGraph
from tilefuse.scripts.language.lower import ArgumentShape, ResolvedScript, call_graph, resolve
from tilefuse.scripts.language.routine_library import FunctionLibrary, read_library
from tilefuse.scripts.language.syntax import parse_script
from tilefuse.scripts.programs import Choice, Kind, ScriptSearch
from tilefuse.scripts.tune import best_known
from tilefuse.target.device import DeviceSpec

Folder = str | os.PathLike[str]
Key = tuple[str, tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]]


def compile_script(text: str, *, library: Folder | Sequence[Folder] = (), device: Any = None, name: str = "script",
                   kind: Kind = "auto", deterministic: bool = False, options: Mapping[str, Any] | None = None) -> CompiledScript:
    """The function that a script describes; see `tilefuse.blas.compile`. `options` are fields of `Options`."""
    if isinstance(text, str) and _names_a_file(text):
        raise UserError(f"{text!r} is the name of a file, and a script is its text",
                        hint=f"did you mean to read the file? pathlib.Path({text!r}).read_text()")
    if not isinstance(text, str):
        raise TypeMismatchError(f"a script is a text, the argument is of type {type(text).__name__}", hint="for a file, its read_text()")
    functions = read_library(*((library,) if isinstance(library, (str, os.PathLike)) else library))
    chosen = Options.from_environment().with_overrides(**(options or {}))
    return CompiledScript(resolve(parse_script(text, name), functions), functions, device, chosen, name, kind, deterministic)


def _names_a_file(text: str) -> bool:
    """Whether a text is the name of a file: one line without a semicolon, which every script has."""
    return ";" not in text and "\n" not in text.strip() and text.strip() != "" and (
        os.path.splitext(text.strip())[1] != "" or os.sep in text or os.path.isfile(text))


@dataclass(frozen=True)
class ScriptProgram:
    """The program of a script for one set of sizes. `choice` records how its kernels were chosen."""

    graph: CallGraph
    program: Program
    choice: Choice


class CompiledScript:
    """A callable with the inputs and results of a script. The first call with new sizes compiles a program for them.

    Arrays may be torch tensors, NumPy or CuPy arrays, or anything with DLPack; results are of the kind of the first array. Scalars may be
    numbers or arrays of one word.
    """

    def __init__(self, resolved: ResolvedScript, library: FunctionLibrary, device: Any, options: Options, name: str,
                 kind: Kind = "auto", deterministic: bool = False) -> None:
        self.resolved = resolved
        self.library = library
        self.options = options
        self.name = name
        self.kind = kind
        self.deterministic = deterministic
        self._device = device
        self._place = ""  # name of that device, from the first call on
        self._programs: dict[Key, ScriptProgram] = {}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in order."""
        return self.resolved.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the results, in order."""
        return self.resolved.outputs

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The results: one array, or a tuple of them; always new arrays.

        Raises: ShapeError where sizes disagree; TypeMismatchError for another element type than the script's functions take; UserError.
        """
        arrays = self._in_order(arguments, named)
        tensors = [self._tensor(name, value) for name, value in zip(self.inputs, arrays, strict=True)]
        sized = self._program(tensors)
        variables = sized.graph.variables
        operands = {name: t.t() if variables[name].is_transposed else t for name, t in zip(self.inputs, tensors, strict=True)}
        results = sized.program(*[operands[name] for name in sized.program.spec.inputs])
        transposed = [r.t() if variables[name].is_transposed else r for name, r in zip(self.outputs, results, strict=True)]
        convert = _conversion_to(arrays)
        converted = tuple(convert(r) for r in transposed)
        return converted[0] if len(converted) == 1 else converted

    def program_for(self, *arguments: Any, **named: Any) -> ScriptProgram:
        """The program that a call with these arguments runs. Raises: as a call."""
        arrays = self._in_order(arguments, named)
        return self._program([self._tensor(name, value) for name, value in zip(self.inputs, arrays, strict=True)])

    @property
    def programs(self) -> tuple[ScriptProgram, ...]:
        """The programs compiled so far, one for each set of sizes, strides and devices."""
        return tuple(self._programs.values())

    def view(self, path: Path | str | None = None, *, show: bool = False) -> Path:
        """Writes one page with the programs compiled so far and returns its path, as `Program.view`.

        Raises: UserError where there is no program yet.
        """
        if not self._programs:
            raise UserError(f"the script {self.name} has no program yet", hint="a call compiles the program for its sizes: call it once")
        return write_page(self.name, [running_data(sized.program, label=f"{self.name} {number}")
                                      for number, sized in enumerate(self._programs.values(), 1)], path, show=show)

    def graph_for(self, shapes: Mapping[str, Sequence[int]], strides: Mapping[str, tuple[int, ...]] | None = None) -> CallGraph:
        """The calls with the sizes of inputs of these shapes, dense where no strides (in words) are given. Raises: as a call."""
        unknown = [n for n in shapes if n not in self.inputs]
        if unknown:
            raise UserError(f"the script has no input {', '.join(unknown)}", hint=f"inputs: {', '.join(self.inputs)}")
        return call_graph(self.resolved, {n: ArgumentShape(tuple(s), (strides or {}).get(n, ())) for n, s in shapes.items()}, self.name)

    def search(self, graph: CallGraph, device: DeviceSpec, kind: Kind | None = None) -> ScriptSearch:
        """The search over programs for the graph's sizes, with the device's timed routines. kind: overrides the script's."""
        return ScriptSearch(graph, device, self.options, kind or self.kind, self.deterministic, routine_times(device, self.options))

    def _program(self, tensors: Sequence[torch.Tensor]) -> ScriptProgram:
        place = next((str(t.device) for t in tensors if t.dim()), str(tensors[0].device) if tensors else "host")
        key = (place, tuple((tuple(t.shape), t.stride()) for t in tensors))
        program = self._programs.get(key)
        if program is None:
            shapes = {n: ArgumentShape(tuple(t.shape), _strides(t)) for n, t in zip(self.inputs, tensors, strict=True)}
            graph = call_graph(self.resolved, shapes, self.name)
            device, executor = present_device("host" if place == "cpu" else place)
            program = self._programs[key] = self._build(graph, device, executor)
        return program

    def _build(self, graph: CallGraph, device: DeviceSpec, place: str) -> ScriptProgram:
        search = self.search(graph, device)
        choice = explained(search, self.chosen(search))
        return ScriptProgram(graph, Program(choice.spec, choice.constants, place, self.options), choice)

    def chosen(self, search: ScriptSearch) -> Choice:
        """The program of the script: the fastest that a search measured, else the one expected to be fastest."""
        return (best_known(search) if self.options.tuned else None) or search.first()

    def _in_order(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        if len(arguments) > len(self.inputs):
            takes = f"{len(self.inputs)} argument{'s' if len(self.inputs) != 1 else ''}"
            raise UserError(f"{self.name} takes {takes} ({', '.join(self.inputs)}), got {len(arguments)}")
        argument_by_name = dict(zip(self.inputs, arguments))
        for key, value in named.items():
            if key not in self.inputs or key in argument_by_name:
                raise UserError(f"{self.name} has no further input {key!r}", hint=f"inputs: {', '.join(self.inputs)}")
            argument_by_name[key] = value
        missing = [n for n in self.inputs if n not in argument_by_name]
        if missing:
            raise UserError(f"{self.name} needs {', '.join(missing)} as well", hint=f"inputs: {', '.join(self.inputs)}")
        return [argument_by_name[n] for n in self.inputs]

    def _tensor(self, name: str, value: Any) -> torch.Tensor:
        """An argument as a tensor, on the script's device if it has one."""
        dtype = TORCH_DTYPES[self.resolved.dtypes[name].name]
        kind = self.resolved.kinds[name]
        if isinstance(value, Real) and not isinstance(value, bool):
            if kind != "scalar":
                raise TypeMismatchError(f"{name} is a {kind}, the argument is the number {value}")
            return torch.tensor(float(value), dtype=dtype)
        if kind == "scalar" and not hasattr(value, "__array__") and not hasattr(value, "__dlpack__"):
            raise TypeMismatchError(f"{name} is a scalar, the argument is a {type(value).__name__}",
                                    hint="give a number or an array of one word")
        tensor = as_tensor(value, name).detach()
        if tensor.is_meta or tensor.layout != torch.strided:
            defect = "on the meta device, without data" if tensor.is_meta else f"of layout {tensor.layout}"
            raise TypeMismatchError(f"{name} is a tensor {defect}", hint="give a dense array")
        if tensor.dtype != dtype:
            raise TypeMismatchError(f"{name} has {tensor.dtype} elements, the script's functions take {dtype}",
                                    hint="functions that begin with s take f32, with d f64")
        if kind == "scalar":
            if tensor.numel() != 1:
                raise ShapeError(f"{name} is a scalar, the argument has shape {list(tensor.shape)}",
                                 hint="give a number or an array of one word")
            tensor = tensor.reshape(())
        if self._device is not None and not self._place:
            self._place = present_device(self._device)[1].replace("host", "cpu")
        return tensor.to(self._place) if self._place else tensor


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides that a program is compiled for: the tensor's own; () if a dimension with several words has stride 0."""
    strides = tensor.stride()
    distinct = all(s > 0 or n <= 1 for s, n in zip(strides, tensor.shape))
    return tuple(strides) if distinct else ()


def _conversion_to(arrays: Sequence[Any]) -> Callable[[torch.Tensor], Any]:
    """The conversion of results to arrays of the first array argument's library."""
    first = next((g for g in arrays if not isinstance(g, Real)), None)
    module = type(first).__module__.partition(".")[0]
    if first is None or isinstance(first, torch.Tensor):
        return lambda tensor: tensor
    if module == "numpy":
        return lambda tensor: tensor.cpu().numpy()
    # The argument's library is imported already.
    library: Any = sys.modules.get({"jaxlib": "jax"}.get(module, module))
    from_dlpack = getattr(library, "from_dlpack", None) or getattr(getattr(library, "dlpack", None), "from_dlpack", None)
    return (lambda tensor: from_dlpack(tensor)) if from_dlpack is not None else (lambda tensor: tensor)
