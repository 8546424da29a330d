"""What a command's MODEL argument names: an ONNX file, an exported program, a Python factory, or a graph in text form."""
from __future__ import annotations

import enum
import importlib
import importlib.util
import inspect
import os
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tilefuse.base.errors import NameLookupError, UserError, nearest
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.tools.shapes import ShapeFlag

if TYPE_CHECKING:
    import torch

TEXT_SUFFIXES = (".tf", ".txt", ".tilefuse")
FORMS = ("MODEL is a .onnx file, a .pt2 file of torch.export, package.module:factory or file.py:factory, "
         "or a graph in text form (.tf, .txt)")


class SourceKind(enum.Enum):
    """Where a model comes from."""

    ONNX = "onnx"
    TORCH = "torch"
    TEXT = "text"


@dataclass(frozen=True)
class ModelSource:
    """A model as the driver takes it. `model` is a path (ONNX), a module or function (torch) or a graph (text).

    inputs   torch: example inputs, in the order of the call
    eager    torch: the model itself, to compare with; else None
    """

    name: str
    kind: SourceKind
    model: Any
    inputs: tuple[Any, ...] = ()
    eager: Callable[..., Any] | None = None


def load_model(text: str, shapes: Mapping[str, ShapeFlag]) -> ModelSource:
    """The model that the argument `text` names.

    Raises: UserError for a missing file, a factory that cannot be imported or gives no model, or inputs whose shapes are unknown.
    """
    path = Path(text)
    if path.suffix == ".onnx":
        _require_file(path)
        return ModelSource(path.stem, SourceKind.ONNX, str(path))
    if path.suffix == ".pt2":
        _require_file(path)
        return _load_exported(path)
    if path.suffix in TEXT_SUFFIXES:
        _require_file(path)
        graph = parse_graph(_graph_text(path), source=str(path))
        return ModelSource(graph.name, SourceKind.TEXT, graph)
    if text.partition(":")[0] and ":" in text:
        return _load_factory(text, shapes)
    raise UserError(f"{text!r} names no model", hint=FORMS)


def load_graph(text: str, shapes: Mapping[str, ShapeFlag]) -> Graph:
    """The graph of the model that `text` names, as the frontend gives it, before any pass.

    Raises: as `load_model`; errors of the frontend.
    """
    source = load_model(text, shapes)
    if source.kind is SourceKind.TEXT:
        graph: Graph = source.model
        return graph
    from tilefuse.driver.compile import import_model

    imported: Graph = import_model(source.model, source.inputs or None, shapes=shape_arguments(shapes)).graph
    return imported


def shape_arguments(shapes: Mapping[str, ShapeFlag]) -> dict[str, tuple[int, ...]] | None:
    """The flags as `tilefuse.compile` takes them; None if none was given."""
    return {name: flag.shape for name, flag in shapes.items()} or None


def _require_file(path: Path) -> None:
    if path.is_file():
        return
    folder = path.parent if path.parent.is_dir() else None
    near = nearest(path.name, os.listdir(folder)) if folder is not None else f"the folder {path.parent} does not exist"
    raise UserError(f"there is no file {path}", hint=near)


def _graph_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as cause:
        raise UserError(f"cannot read {path}: {cause.strerror}") from cause
    except UnicodeDecodeError as cause:
        saved = zipfile.is_zipfile(path)
        raise UserError(f"{path} is {'a saved program' if saved else 'not text'}, not a graph in text form",
                        hint="tilefuse.load reads saved programs" if saved else FORMS) from cause


def _load_exported(path: Path) -> ModelSource:
    import torch

    try:
        program = torch.export.load(str(path))
    except (RuntimeError, ValueError, OSError, KeyError, zipfile.BadZipFile) as cause:
        raise UserError(f"{path} is not a program of torch.export: {cause}", hint="write it with torch.export.save") from cause
    arguments, keywords = program.example_inputs or ((), {})
    if keywords:
        raise UserError(f"{path} takes keyword inputs {', '.join(keywords)}", hint="export it with positional inputs")
    module = program.module()
    return ModelSource(path.stem, SourceKind.TORCH, module, tuple(arguments), module)


def _load_factory(text: str, shapes: Mapping[str, ShapeFlag]) -> ModelSource:
    import torch

    module_name, _, attribute = text.rpartition(":")
    module = _module_of_file(Path(module_name)) if module_name.endswith(".py") else _module_of_name(module_name)
    factory = getattr(module, attribute, None)
    if factory is None:
        raise NameLookupError(f"{module_name} has no {attribute!r}", hint=nearest(attribute, dir(module)))
    made = factory if isinstance(factory, torch.nn.Module) else _called(factory, text) if callable(factory) else factory
    model, inputs = made if isinstance(made, tuple) else (made, ())
    if not isinstance(model, torch.nn.Module) and not inspect.isfunction(model):
        raise UserError(f"{text} gave {type(model).__name__}, not a torch.nn.Module or (module, inputs)")
    if isinstance(model, torch.nn.Module):
        model = model.eval()
    given = inputs if isinstance(inputs, tuple | list) else (inputs,)
    return ModelSource(attribute, SourceKind.TORCH, model, tuple(given) or _drawn_inputs(model, shapes), model)


def _called(factory: Callable[..., Any], text: str) -> Any:
    try:
        inspect.signature(factory).bind()
    except ValueError:
        pass  # builtins may hide their signature; calling tells
    except TypeError as cause:
        raise UserError(f"{text} takes arguments ({cause})", hint="a factory without any gives the module, or (module, inputs)") from cause
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
    _require_file(path)
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
