"""The model that a command's MODEL argument names: an ONNX file, an exported program, a Python factory, a graph in text form, or a
program that tilefuse saved."""
from __future__ import annotations

import enum
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tilefuse.base.errors import NameLookupError, UnsupportedError, UserError, nearest
from tilefuse.driver.onnx.model_file import EXPORTED_SUFFIX, TEXT_SUFFIXES, exported_program, graph_of_text, require_file
from tilefuse.ir.graph import Graph
from tilefuse.runtime.archive import is_saved
from tilefuse.tools.python_file import defined
from tilefuse.tools.scripts import is_script
from tilefuse.tools.shapes import ShapeFlag

if TYPE_CHECKING:
    import torch

FORMS = ("MODEL is a .onnx file, a .pt2 file of torch.export, package.module:factory or file.py:factory, "
         "a graph in text form (.tf, .txt), or a saved program (.tilefuse)")


# Functions and classes of a Python file that an error names.
SHOWN_NAMES = 8


class SourceKind(enum.Enum):
    """Where a model comes from."""

    ONNX = "onnx"
    TORCH = "torch"
    TEXT = "text"
    SAVED = "saved"


@dataclass(frozen=True)
class ModelSource:
    """A model as the driver takes it. `model` is a path (ONNX, saved program), a module or function (torch) or a graph (text).

    inputs   torch: example inputs, in the order of the call; named: those given by name
    eager    torch: the model itself, to compare with; else None
    """

    name: str
    kind: SourceKind
    model: Any
    inputs: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    eager: Callable[..., Any] | None = None

    @property
    def examples(self) -> tuple[Any, ...] | None:
        """The example inputs as `tilefuse.compile` takes them; None where a model has none."""
        return self.inputs if self.kind is SourceKind.TORCH else None


def load_model(text: str, shapes: Mapping[str, ShapeFlag]) -> ModelSource:
    """The model that the argument `text` names.

    Raises: UserError for a missing file, a factory that cannot be imported or gives no model, or inputs whose shapes are unknown.
    """
    path = Path(text)
    if is_saved(path):
        return ModelSource(path.stem, SourceKind.SAVED, str(path))
    if path.suffix == ".onnx":
        require_file(path)
        return ModelSource(path.stem, SourceKind.ONNX, str(path))
    if path.suffix == EXPORTED_SUFFIX:
        return _load_exported(path)
    if path.suffix in TEXT_SUFFIXES:
        graph = graph_of_text(path)
        return ModelSource(graph.name, SourceKind.TEXT, graph)
    if text.partition(":")[0] and ":" in text:
        return _load_factory(text, shapes)
    if is_script(text):
        raise UserError(f"{text!r} is a BLAS script and no model", hint="`tilefuse blas` runs and times it, or writes it as C++; "
                        "`tilefuse explain` and `tilefuse view` take it as they take models")
    if path.suffix == ".py" and path.is_file():
        names = defined(path)
        raise UserError(f"{text} is a Python file; name the function or class in it that makes the model",
                        hint=", ".join(f"{text}:{name}" for name in names[:SHOWN_NAMES]) + (", ..." if len(names) > SHOWN_NAMES else "")
                        or "it defines no function and no class")
    raise UserError(f"{text!r} names no model", hint=FORMS)


def load_graph(text: str, shapes: Mapping[str, ShapeFlag]) -> Graph:
    """The graph of the model that `text` names, as the frontend gives it, before any pass.

    Raises: as `load_model`; errors of the frontend.
    """
    source = load_model(text, shapes)
    if source.kind is SourceKind.SAVED:
        raise UnsupportedError(f"{text} is a saved program: it holds plan and kernels, and not the graph that they were made of",
                               hint="name the model that it was compiled from")
    if source.kind is SourceKind.TEXT:
        graph: Graph = source.model
        return graph
    from tilefuse.driver.compile import import_model

    imported: Graph = import_model(source.model, source.examples, shapes=shape_arguments(shapes), example_kwargs=source.named).graph
    return imported


def shape_arguments(shapes: Mapping[str, ShapeFlag]) -> dict[str, tuple[int, ...]] | None:
    """The flags as `tilefuse.compile` takes them; None if none was given."""
    return {name: flag.shape for name, flag in shapes.items()} or None


def _load_exported(path: Path) -> ModelSource:
    program = exported_program(path)
    if program.example_inputs is None:
        return ModelSource(path.stem, SourceKind.TORCH, program, eager=program.module())
    arguments, keywords = program.example_inputs
    module = program.module()
    return ModelSource(path.stem, SourceKind.TORCH, module, tuple(arguments), dict(keywords), module)


def _load_factory(text: str, shapes: Mapping[str, ShapeFlag]) -> ModelSource:
    import torch

    module_name, _, attribute = text.rpartition(":")
    module = _module_of_file(Path(module_name)) if module_name.endswith(".py") else _module_of_name(module_name)
    factory = getattr(module, attribute, None)
    if factory is None:
        raise NameLookupError(f"{module_name} has no {attribute!r}", hint=nearest(attribute, dir(module)))
    parts = factory if isinstance(factory, torch.nn.Module) else _called(factory, text) if callable(factory) else factory
    model, inputs, named = _parts_of(parts, text)
    if isinstance(model, torch.nn.Module):
        model = model.eval()
    if inputs is None and not named:
        inputs = _drawn_inputs(model, shapes)
    return ModelSource(attribute, SourceKind.TORCH, model, inputs or (), named, model)


def _parts_of(parts: Any, text: str) -> tuple[Any, tuple[Any, ...] | None, dict[str, Any]]:
    """The model, its positional inputs (None: it gave none) and its keyword inputs that a factory gave.

    Raises: UserError for anything but the forms of a factory's result.
    """
    import torch

    from tilefuse.driver.torch.arguments import as_tensors

    model, *rest = parts if isinstance(parts, tuple) and parts else (parts,)
    is_model = isinstance(model, torch.nn.Module) or inspect.isfunction(model)
    if not is_model or len(rest) > 2 or len(rest) == 2 and not isinstance(rest[1], dict | None):
        got = f"({', '.join(type(part).__name__ for part in parts)})" if isinstance(parts, tuple) else type(parts).__name__
        raise UserError(f"{text} gave {got}, which is no model with its inputs",
                        hint="give a torch.nn.Module or function, or a tuple: (module, inputs), or (module, inputs, keyword inputs)")
    inputs, keywords = (*rest, None, None)[:2]
    if len(rest) == 1 and _are_keywords(model, inputs):
        inputs, keywords = (), inputs
    positional = None if inputs is None else tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    return model, as_tensors(positional) if positional else None, as_tensors(dict(keywords or {}))


def _are_keywords(model: Any, inputs: Any) -> bool:
    """Whether inputs are a mapping from the model's own parameters, and not one argument that is a mapping."""
    if not isinstance(inputs, dict) or not inputs:
        return False
    parameters = inspect.signature(model.forward if hasattr(model, "forward") else model).parameters
    return all(name in parameters for name in inputs)


def _called(factory: Callable[..., Any], text: str) -> Any:
    try:
        inspect.signature(factory).bind()
    except ValueError:
        pass  # builtins may hide their signature; calling tells
    except TypeError as cause:
        raise UserError(f"{text} takes arguments ({cause})",
                        hint="a factory without any gives the module, (module, inputs) or (module, inputs, keyword inputs)") from cause
    return factory()


def _module_of_name(name: str) -> ModuleType:
    # As with `python -m`, modules beside the user are found.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as cause:
        if cause.name is None or not f"{name}.".startswith(f"{cause.name}."):
            raise  # the module is there; something that it imports is not
        raise NameLookupError(f"cannot import {name!r}: {cause}", hint=FORMS) from cause


def _module_of_file(path: Path) -> ModuleType:
    """The file run as a module of its stem's name; as with `python file.py`, it finds the modules beside it."""
    require_file(path)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # so that torch.export and pickling find its classes
    spec.loader.exec_module(module)
    return module


def _drawn_inputs(model: Any, shapes: Mapping[str, ShapeFlag]) -> tuple[torch.Tensor, ...]:
    """Random inputs of the flags' shapes, in the order of the model's parameters.

    Raises: UserError where a parameter without default has no flag, or a flag names no parameter.
    """
    from tilefuse.tools.inputs import random_tensor

    signature = inspect.signature(model.forward if hasattr(model, "forward") else model)
    for name in shapes:
        if name not in signature.parameters:
            raise NameLookupError(f"the model has no input {name!r}", hint=f"its inputs: {', '.join(signature.parameters)}")
    drawn: list[torch.Tensor] = []
    for number, (name, parameter) in enumerate(signature.parameters.items()):
        if name in shapes:
            drawn.append(random_tensor(shapes[name].dtype or "f32", shapes[name].shape, seed=number))
        elif parameter.default is inspect.Parameter.empty:
            raise UserError(f"the shape of input {name!r} is not known", hint=f"give it with --shapes {name}:1x3x224x224")
        else:
            break
    return tuple(drawn)
