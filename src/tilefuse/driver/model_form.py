"""The form of a compiled model as data: structure of its arguments, their numbers, and structure of its results.

A saved program carries it beside its kernels, so that the loaded program has the model's signature and returns results in the model's
structure.
"""
from __future__ import annotations

import importlib
import json
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tilefuse.base.errors import UserError
from tilefuse.driver.torch.arguments import Arguments
from tilefuse.frontends.imported import Output

FORMAT = 1


class StructureWarning(UserWarning):
    """A structure of arguments or results that a file cannot store, or that the installed packages cannot rebuild."""


class NotKeptError(Exception):
    """A type or number that has no form as data; the message names it."""


@dataclass(frozen=True)
class ModelForm:
    """How a model is called around its program.

    names      the program's input for every leaf of the arguments; None for a leaf that it does not read. Empty: arguments are the inputs
    outputs    how each leaf of the results comes from the program's; empty: the results in order
    arguments  the structure of a call; None: tensors by place
    results    the structure of the results as torch's pytree tells it; None: a list
    replay     whether calls are recorded as a CUDA graph
    """

    names: tuple[str | None, ...] = ()
    outputs: tuple[Output, ...] = ()
    arguments: Arguments | None = None
    results: Any = None
    replay: bool = False

    def output_names(self) -> list[str]:
        """A name for each output that is a tensor, by its keys in the results ("logits", "states.0"); empty where these have no keys."""
        if self.results is None or not self.outputs:
            return []
        places = pytree.tree_flatten_with_path(pytree.tree_unflatten([_Leaf()] * len(self.outputs), self.results))[0]
        paths = [[_key_text(k) for k in path] for path, _ in places]
        if len(paths) != len(self.outputs) or all(text.isdigit() for path in paths for text in path):
            return []
        return [".".join(path) for path, output in zip(paths, self.outputs) if output.result is not None or output.argument is not None]

    def rebuild(self) -> Callable[[list[Any]], Any] | None:
        """The results' structure around a flat list of outputs; None: the list itself. One tensor or a tuple needs no visit of a tree."""
        if self.results is None:
            return None
        if self.results == pytree.tree_structure(0):
            return lambda outputs: outputs[0]
        if self.results == pytree.tree_structure((0,) * len(self.outputs)):
            return tuple
        return lambda outputs: pytree.tree_unflatten(outputs, self.results)

    def as_text(self) -> str:
        """The form as JSON. Raises: NotKeptError for a type or number without a form as data."""
        return json.dumps({
            "format": FORMAT, "names": self.names, "replay": self.replay,
            "outputs": [{**asdict(o), "literal": _number_data(o.literal)} for o in self.outputs],
            "arguments": None if self.arguments is None else _arguments_data(self.arguments),
            "results": None if self.results is None else {"structure": structure_data(self.results)}}, indent=1)


class _Leaf:
    """Stands for a tensor in a structure."""


def text_of(form: ModelForm, name: str) -> str | None:
    """The form as text for a file; None, with a warning, where it cannot be stored: the loaded program then takes and returns plain
    tensors."""
    try:
        return form.as_text()
    except NotKeptError as error:
        warnings.warn(f"the saved program {name} takes tensors and gives a list of them: {error}", StructureWarning, stacklevel=3)
        return None


def form_of(text: str) -> ModelForm:
    """The form in a file's text. Raises: ValueError, KeyError, TypeError for a damaged text."""
    data = json.loads(text)
    if data["format"] != FORMAT:
        raise ValueError("its model has another format")
    known = {f.name for f in fields(Output)}
    outputs = tuple(Output(**{k: _from_json(v) for k, v in o.items() if k in known} | {"literal": _number_of(o["literal"])})
                    for o in data["outputs"])
    arguments = None if data["arguments"] is None else _arguments_of(data["arguments"])
    results = None if data["results"] is None else pytree.tree_structure(template_of(data["results"]["structure"]))
    return ModelForm(tuple(data["names"]), outputs, arguments, results, data["replay"])


def _from_json(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# ---------------------------------------------------------------- structures

def structure_data(spec: Any) -> Any:
    """A pytree's structure as data: null is a leaf. Raises: NotKeptError."""
    if spec.is_leaf():
        return None
    children = spec.children() if hasattr(spec, "children") else spec.children_specs
    content = {"children": [structure_data(c) for c in children]}
    if spec.type in (tuple, list):
        return {"type": spec.type.__name__, **content}
    if spec.type in (dict, OrderedDict):
        return {"type": spec.type.__name__, "context": _as_json(list(spec.context), "keys of a mapping"), **content}
    kind = spec.context if pytree.is_namedtuple_class(spec.context) else spec.type
    context = None if kind is spec.context else _as_json(spec.context, f"a {kind.__qualname__}")
    if "<locals>" in kind.__qualname__:
        raise NotKeptError(f"the class {kind.__qualname__} is defined inside a function, where a file cannot find it")
    return {"type": f"{kind.__module__}:{kind.__qualname__}", "context": context, **content}


def _as_json(value: Any, what: str) -> Any:
    try:
        if json.loads(json.dumps(value)) == _listed(value):
            return value
    except (TypeError, ValueError):
        pass
    raise NotKeptError(f"{what} with {value!r} has no form as data")


def _listed(value: Any) -> Any:
    return [_listed(v) for v in value] if isinstance(value, list | tuple) else value


def template_of(data: Any) -> Any:
    """A structure with stand-ins for its leaves. A class that cannot be imported becomes a mapping or a tuple, with a warning."""
    if data is None:
        return _Leaf()
    children = [template_of(c) for c in data["children"]]
    match data["type"]:
        case "tuple":
            return tuple(children)
        case "list":
            return children
        case "dict":
            return dict(zip(data["context"], children, strict=True))
        case "OrderedDict":
            return OrderedDict(zip(data["context"], children, strict=True))
    kind = _class_of(data["type"])
    if pytree.is_namedtuple_class(kind):
        return kind(*children)
    node = pytree.SUPPORTED_NODES.get(kind)
    if node is not None:
        return node.unflatten_fn(children, data["context"])
    keys = data["context"]
    keyed = isinstance(keys, list) and len(keys) == len(children) and all(isinstance(k, str) for k in keys)
    warnings.warn(f"{data['type'].replace(':', '.')} is not here or no structure that torch knows: its place is taken by a "
                  f"{'mapping' if keyed else 'tuple'}", StructureWarning, stacklevel=2)
    return dict(zip(keys, children)) if keyed else tuple(children)


def _class_of(text: str) -> Any:
    """The class of this name, imported; None where it does not exist."""
    module, _, name = text.partition(":")
    try:
        class_: Any = importlib.import_module(module)
        for part in name.split("."):
            class_ = getattr(class_, part)
    except (ImportError, AttributeError):
        return None
    return class_


# ---------------------------------------------------------------- arguments

def _arguments_data(arguments: Arguments) -> dict[str, Any]:
    return {"structure": structure_data(arguments.structure), "shown": arguments.shown,
            "numbers": [[place, _number_data(number)] for place, number in arguments.numbers.items()], "parameters": arguments.parameters()}


def _arguments_of(data: Mapping[str, Any]) -> Arguments:
    numbers = {place: _number_of(number) for place, number in data["numbers"]}
    template = template_of(data["structure"])
    leaves, structure = pytree.tree_flatten(template)
    examples, named = pytree.tree_unflatten([numbers.get(n, torch.empty(0)) for n in range(len(leaves))], structure)
    return Arguments.kept(examples, named, data["shown"], data["parameters"])


def _number_data(value: Any) -> Any:
    """A number, word or torch name of an argument as data. Raises: NotKeptError."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"float": repr(value)}
    if type(value) is complex:
        return {"complex": [repr(value.real), repr(value.imag)]}
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    raise NotKeptError(f"an argument of type {type(value).__name__} ({value!r}) has no form as data")


def _number_of(data: Any) -> Any:
    match data:
        case {"float": text}:
            return float(text)
        case {"complex": [real, imaginary]}:
            return complex(float(real), float(imaginary))
        case {"torch": name}:
            return getattr(torch, name)
        case {"device": text}:
            return torch.device(text)
    return data


def _key_text(key: Any) -> str:
    for name in ("key", "idx", "name"):
        if hasattr(key, name):
            return str(getattr(key, name))
    return str(key)


def arguments_for(form: ModelForm, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call's arguments, by place and by name, from the tensors that the program reads. Raises: UserError for another number of them."""
    names = [n for n in form.names if n is not None] if form.names else list(tensors)
    if len(tensors) != len(names):
        raise UserError(f"the model reads {len(names)} tensors ({', '.join(map(str, names))}), got {len(tensors)}")
    if form.arguments is None:
        return tuple(tensors), {}
    rest = iter(tensors)
    return form.arguments.around([next(rest) if name is not None else None for name in form.names])
