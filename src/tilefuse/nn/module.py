"""Module: a network as an object that holds arrays by name, and `apply`, which runs it as a pure function of these arrays.

An array that a constructor stores as `Parameter` is trained; one stored as `Statistic` is saved with the network but follows the data
(running means). The training step of a network is a function of both, so this file knows neither gradients nor compilers.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

import tilefuse.array as ta
from tilefuse.arrays.nodes import user_span
from tilefuse.arrays.tracing import array_read, is_tracing, setting_read
from tilefuse.base.errors import NameLookupError, ShapeError, TypeMismatchError, UserError, nearest

Arrays = dict[str, Any]
M = TypeVar("M", bound="Module")


@dataclass(frozen=True, slots=True)
class Parameter:
    """Marks an array, `value`, that is trained: `self.weight = Parameter(array)`; reading `self.weight` then gives the array itself."""

    value: Any


@dataclass(frozen=True, slots=True)
class Statistic:
    """Marks an array, `value`, that belongs to the network and is not trained. Assigning to it during a call gives its next value."""

    value: Any


# Module (by identity) -> (parameters, statistics) that replace its own in this context: see `apply`.
_held: ContextVar[Mapping[int, tuple[Arrays, Arrays]]] = ContextVar("tilefuse_held_arrays", default=MappingProxyType({}))


class Module:
    """A network or a part of one: `forward` computes it; parts are attributes that are modules, or lists of modules."""

    def __init__(self) -> None:
        self.__dict__["_parameters"] = {}
        self.__dict__["_statistics"] = {}
        self.__dict__["_parts"] = {}
        self.__dict__["training"] = True

    @property
    def training(self) -> bool:
        """Whether dropout drops and batch norm looks at the batch."""
        mode: bool = self.__dict__["training"]
        setting_read(id(self), lambda: self.__dict__["training"], mode)
        return mode

    @property
    def _parameters(self) -> Arrays:
        trained = _held.get().get(id(self))
        own: Arrays = self.__dict__["_parameters"]
        return own if trained is None else trained[0]

    @property
    def _statistics(self) -> Arrays:
        trained = _held.get().get(id(self))
        own: Arrays = self.__dict__["_statistics"]
        return own if trained is None else trained[1]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The module's result. Raises: UserError where a subclass does not say."""
        raise UserError(f"{type(self).__name__} has no forward", where=user_span(), hint="define forward(self, x)")

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The result of `forward`; NumPy arrays and tensors of other libraries become arrays."""
        return self.forward(*map(_as_array, inputs), **{name: _as_array(x) for name, x in named.items()})

    def __repr__(self) -> str:
        """The parts, indented, with the shapes of their arrays."""
        shapes = ", ".join(f"{name}: {list(array.shape)}" for name, array in (*self._parameters.items(), *self._statistics.items()))
        lines = [f"{type(self).__name__}({shapes})"]
        for name, part in self._parts.items():
            first, *rest = repr(part).splitlines()
            lines += [f"  {name}: {first}", *(f"  {line}" for line in rest)]
        return "\n".join(lines)

    def __setattr__(self, name: str, value: Any) -> None:
        if "_parts" not in self.__dict__:
            raise UserError(f"{type(self).__name__} sets {name} before its parts can be counted",
                            where=user_span(), hint="call super().__init__() first")
        if isinstance(value, Parameter | Statistic | Module):
            self.__dict__.pop(name, None)  # None, where the part is optional: it would hide the new value
        match value:
            case Parameter(array):
                self._parameters[name] = ta.asarray(array)
            case Statistic(array):
                self._statistics[name] = ta.asarray(array)
            case Module():
                self._parts[name] = value
            case list() | tuple() if value and all(isinstance(v, Module) for v in value):
                self._parts.update({f"{name}.{n}": v for n, v in enumerate(value)})
                self.__dict__[name] = list(value)
            case _ if name in self._parameters:
                self._check_change(name)
                self._parameters[name] = _fitting(name, self._parameters[name], value)
            case _ if name in self._statistics:
                self._check_change(name)
                self._statistics[name] = _fitting(name, self._statistics[name], value)
            case _:
                self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        for kind in ("_parameters", "_statistics", "_parts") if "_parts" in self.__dict__ else ():
            kept = getattr(self, kind)
            if name in kept:
                return kept[name] if kind == "_parts" else self._read(kind, name, kept[name])
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def _read(self, kind: str, name: str, array: Any) -> Any:
        """`array`; a function that is being traced reads it again at each call if it is the module's own."""
        own: Arrays = self.__dict__[kind]
        if is_tracing() and name in own and own[name] is array:
            array.buffer("data")
            array_read(array.node, lambda: own[name].node)
        return array

    def _check_change(self, name: str) -> None:
        """Raises: UserError where a trace would leave its stand-ins in a module that is not of `apply`."""
        if is_tracing() and id(self) not in _held.get():
            raise UserError(f"{type(self).__name__} would change its {name} while a function is traced, which runs once for many calls",
                            where=user_span(), hint="nn.apply(model, arrays, x) gives the new values; after eval() statistics stay")

    # Names

    def modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all inside it, with their dotted names ("" for itself), in order of definition."""
        yield prefix, self
        for name, part in self._parts.items():
            yield from part.modules(f"{prefix}.{name}" if prefix else name)

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """(dotted name, array) of everything that is trained."""
        yield from self._named("_parameters")

    def parameters(self) -> Arrays:
        """Trained arrays by dotted name: the form that `tilefuse.array.grad` and the optimisers take."""
        return dict(self.named_parameters())

    def statistics(self) -> Arrays:
        """Statistics stored beside the parameters, by dotted name."""
        return dict(self._named("_statistics"))

    def _named(self, kind: str) -> Iterator[tuple[str, Any]]:
        for prefix, module in self.modules():
            for name, array in getattr(module, kind).items():
                yield f"{prefix}.{name}" if prefix else name, module._read(kind, name, array)

    # Modes

    def train(self: M, mode: bool = True) -> M:
        """Sets training mode (dropout drops, batch norm looks at the batch) in all parts; the module itself."""
        for _, module in self.modules():
            module.__dict__["training"] = mode
        return self

    def eval(self: M) -> M:
        """Sets evaluation mode in all parts; the module itself."""
        return self.train(False)

    # State

    def load(self, arrays: Mapping[str, Any]) -> None:
        """Gives parameters and statistics of these dotted names new values. Names that are not listed keep theirs.

        Raises: NameLookupError for a name that the module does not have; ShapeError, TypeMismatchError where a value does not fit.
        """
        homes = {(f"{prefix}.{name}" if prefix else name): (home, name) for prefix, module in self.modules()
                 for home in (module._parameters, module._statistics) for name in home}
        for name, value in arrays.items():
            if name not in homes:
                raise NameLookupError(f"{type(self).__name__} has no parameter or statistic {name!r}", where=user_span(),
                                      hint=nearest(name, homes))
            home, own = homes[name]
            self._check_change(name)
            home[own] = _fitting(name, home[own], value)

    def state_dict(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copies of all parameters and statistics as NumPy arrays, by dotted name."""
        return {name: np.array(array.numpy()) for name, array in (self.parameters() | self.statistics()).items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over a whole state: arrays, NumPy arrays or torch tensors by dotted name; values are converted to the dtypes here.

        Raises: UserError when a name is missing or unknown; ShapeError when a shape differs.
        """
        own = self.parameters() | self.statistics()
        missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        if missing or unknown:
            raise UserError(f"the state is not one of {type(self).__name__}: missing {missing}, unknown {unknown}", where=user_span())
        # Copies: the source of the values (another network that is still trained) may change.
        self.load({name: ta.astype(ta.asarray(value, copy=True), own[name].dtype) for name, value in state.items()})


def _as_array(x: Any) -> Any:
    return ta.asarray(x) if not isinstance(x, ta.Array) and hasattr(x, "__dlpack__") else x


def _fitting(name: str, old: Any, value: Any) -> Any:
    """`value` as an array, if it has the shape and dtype of the replaced one."""
    array = ta.asarray(value)
    if tuple(array.shape) != tuple(old.shape):
        raise ShapeError(f"{name} has shape {tuple(old.shape)}, the new value {tuple(array.shape)}", where=user_span())
    if array.dtype != old.dtype:
        raise TypeMismatchError(f"{name} is {old.dtype}, the new value {array.dtype}", where=user_span(),
                                hint="convert it with tilefuse.array.astype")
    return array


# Calls as pure functions

def apply(model: Module, arrays: Mapping[str, Any], *inputs: Any, seed: Any = None, **named: Any) -> tuple[Any, Arrays]:
    """Result of `model` with these parameters and statistics in place of its own, and its statistics afterwards.

    The module itself is left as it was, and other threads see its own arrays meanwhile.
    seed: an i64 scalar that decides all random draws of the call; None: the generator of `tilefuse.array.random` does.
    Raises: as `Module.load`, and whatever `forward` raises.
    """
    if not isinstance(model, Module) or not isinstance(arrays, Mapping):
        raise TypeMismatchError(f"apply takes a module and a mapping of arrays by name, not a {type(model).__name__} and a "
                                f"{type(arrays).__name__}", where=user_span(), hint="apply(model, model.parameters(), x)")
    with _holding(model, arrays), nullcontext() if seed is None else ta.random.generator.tracing(ta.reshape(seed, (1,))):
        result = model(*inputs, **named)
        return result, model.statistics()


@contextmanager
def _holding(model: Module, arrays: Mapping[str, Any]) -> Iterator[None]:
    before = _held.set({**_held.get(), **{id(m): (dict(m._parameters), dict(m._statistics)) for _, m in model.modules()}})
    try:
        model.load(arrays)
        yield
    finally:
        _held.reset(before)


class Sequential(Module):
    """Modules in sequence: each of `layers` takes the result of the one before it."""

    def __init__(self, *layers: Module) -> None:
        super().__init__()
        for number, layer in enumerate(layers):
            setattr(self, str(number), layer)

    def forward(self, x: Any) -> Any:
        """The result of the last layer."""
        for layer in self._parts.values():
            x = layer(x)
        return x
