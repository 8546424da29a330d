"""A compiled model: a program with the signature of its source, with the source's arguments and outputs.

The program takes and returns plain tensors. A torch module may also take numbers, return its arguments, or return tensors whose dimensions
are permuted or expanded views; `Imported.outputs` describes these.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilefuse.base.errors import UserError
from tilefuse.driver.model_form import ModelForm, arguments_for, form_of, text_of
from tilefuse.frontends.imported import Output
from tilefuse.runtime.archive import save_program
from tilefuse.runtime.calls.arguments import all_numpy, as_numpy, as_tensor
from tilefuse.runtime.calls.library import as_complex
from tilefuse.runtime.program import Program
from tilefuse.runtime.spec import KernelCode, ProgramSpec


class CompiledModel:
    """A callable with the signature of the original module or function. `program` computes the results.

    form: structure of the arguments and results. If it says so, the first call is recorded as a CUDA graph and replayed from then on (on a
    GPU).
    """

    def __init__(self, program: Program, form: ModelForm) -> None:
        self.program = program
        self.form = form
        self._run: Callable[..., list[Any]] = program
        self._replay = form.replay and program.device.type == "cuda"
        self._arguments = form.names
        self._outputs = form.outputs
        self._rebuild = form.rebuild()
        self._flatten = form.arguments.flat if form.arguments is not None else None

    @property
    def spec(self) -> ProgramSpec:
        """The program as plain data."""
        return self.program.spec

    @property
    def argument_names(self) -> tuple[str | None, ...]:
        """The program's input for every leaf of the arguments; None for an unused leaf. Empty: the arguments are its inputs."""
        return tuple(self._arguments)

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Source of each of the model's outputs among the program's results; empty: they are its results."""
        return tuple(self._outputs)

    @property
    def kernels(self) -> tuple[KernelCode, ...]:
        """The kernels' sources and launches."""
        return self.program.kernels

    def explain(self, json: bool = False) -> Any:
        """The reasons for these kernels: text, or plain data with `json=True`."""
        return self.program.explain(json=json)

    def view(self, path: Path | str | None = None, *, arguments: Sequence[Any] | None = None, show: bool = False) -> Path:
        """Writes the model's page and returns its path, as `Program.view`.

        arguments: positional arguments of a call, which is run and measured.
        """
        return self.program.view(path, arguments=None if arguments is None else self.leaves(arguments), show=show)

    def leaves(self, arguments: Sequence[Any], named: Mapping[str, Any] | None = None) -> list[Any]:
        """The program's inputs in arguments of the model, by place and by name."""
        return self._tensors(list(self._flatten(tuple(arguments), dict(named or {}))) if self._flatten is not None else list(arguments))

    def _tensors(self, flat: list[Any]) -> list[Any]:
        """The program's inputs among the leaves of the arguments."""
        return [a for a, name in zip(flat, self._arguments) if name is not None] if self._arguments else flat

    def source(self, kernel: str | None = None) -> str:
        """Source text of one kernel, or of all. Raises: NameLookupError for an unknown kernel."""
        return self.program.source(kernel)

    def save(self, path: Path | str, *, sign: Path | str | None = None) -> None:
        """Writes the program to one file, signed with the key in the file `sign` if one is named. The loaded program is called as this one,
        and its results have the same structure.

        Raises: UserError when it cannot be written or the key cannot be read.
        """
        save_program(self.program, path, sign, text_of(self.form, self.spec.name))

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs that are tensors, by their keys in the structure of the results; empty where these have no keys."""
        return self.form.output_names()

    def arguments_of(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call's arguments, by place and by name, from the program's inputs in order; numbers are those that it was compiled with."""
        return arguments_for(self.form, tensors)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Runs the model; arguments that all are arrays of NumPy give arrays of NumPy.

        Raises: as `Program.__call__`; UserError for other arguments than the model was compiled for.
        """
        flat = list(self._flatten(arguments, named)) if self._flatten is not None else list(arguments)
        if self._arguments and len(flat) > len(self._arguments):
            raise UserError(f"the model was compiled for {len(self._arguments)} arguments, got {len(flat)}")
        tensors = self._tensors(flat)
        if self._flatten is None and named:
            tensors = list(self.program.in_order(tuple(tensors), named))
        if all_numpy(tensors):
            return self._on_numpy(flat, tensors)
        if self._replay:
            self._run, self._replay = self.program.capture(*tensors, copy_results=True), False
        return self._restored(flat, self._run(*tensors))

    def _on_numpy(self, flat: Sequence[Any], arrays: Sequence[Any]) -> Any:
        """The call on NumPy arrays, through tensors on the program's device; its results as arrays."""
        tensors = [as_tensor(a, str(n)).to(self.program.device) for n, a in enumerate(arrays)]
        rest = iter(tensors)
        names = self._arguments or (True,) * len(flat)
        leaves = [next(rest) if name is not None else leaf for leaf, name in zip(flat, names)]
        outputs = [as_numpy(o) for o in self._outputs_of(leaves, self.program(*tensors))]
        return outputs if self._rebuild is None else self._rebuild(outputs)

    def _restored(self, flat: Sequence[Any], results: list[Any]) -> Any:
        outputs = self._outputs_of(flat, results)
        return outputs if self._rebuild is None else self._rebuild(outputs)

    def _outputs_of(self, flat: Sequence[Any], results: list[Any]) -> list[Any]:
        return [restore(o, results, flat) for o in self._outputs] if self._outputs else results


def loaded_model(program: Program, text: str, path: Path | str) -> CompiledModel:
    """The model around a loaded program. Raises: UserError for a damaged text."""
    try:
        return CompiledModel(program, form_of(text))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a readable saved program: {error}", hint="compile and save it again") from error


def restore(output: Output, results: Sequence[Any], arguments: Sequence[Any]) -> Any:
    """One output of the source from the program's results and the call's arguments."""
    if output.argument is not None:
        return arguments[output.argument]
    if output.result is None:
        return output.literal
    tensor = results[output.result]
    if output.permutation is not None:
        tensor = tensor.permute(output.permutation)
    if output.expanded is not None:
        tensor = tensor.expand(output.expanded)
    if output.complex:
        tensor = as_complex(tensor)
    return tensor.to(output.device) if output.device and tensor.device.type != output.device else tensor
