"""Optimisers as functions: `init(parameters)` gives the first state, `update(parameters, gradients, state)` the new parameters and state.

Parameters and gradients are mappings from names to arrays. Each update is written in array operations, so the compiler sees the whole
training step, fuses the updates of all parameters into few kernels and, where parameters and state are donated, writes them in place.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, log
from typing import Any, Union

import tilefuse.array as ta
from tilefuse.arrays.arguments import real_number
from tilefuse.arrays.nodes import user_span
from tilefuse.base.errors import TypeMismatchError, UserError
from tilefuse.nn.initialise import filled

__all__ = ["SGD", "Adam", "AdamW"]

Arrays = Mapping[str, Any]
# A number, or a function from the number of steps taken so far (an f32 scalar) to one.
Rate = Union[float, Callable[[Any], Any]]


@dataclass(frozen=True, slots=True)
class SGD:
    """Gradient descent, along a decaying sum of gradients where `momentum` is not 0.

    rate: step size, a number or a function of the number of steps taken so far (an f32 scalar).
    nesterov: looks one step ahead along that sum. weight_decay: added to the gradient as weight_decay * parameter.
    Raises: UserError for settings out of range.
    """

    rate: Rate
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check(self.rate, momentum=self.momentum, weight_decay=self.weight_decay)
        if self.nesterov and not self.momentum:
            raise UserError("nesterov needs momentum", where=user_span())

    def init(self, parameters: Arrays) -> dict[str, Any]:
        """The state before the first step, for `parameters` by name: arrays by name, as `update` takes and gives them."""
        state: dict[str, Any] = {}
        if callable(self.rate):
            state["step"] = _first_step(parameters)
        if self.momentum:
            state["speed"] = {name: _zeros(p) for name, p in parameters.items()}
        return state

    def update(self, parameters: Arrays, gradients: Arrays, state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """New parameters and state, from `parameters` and their `gradients` by name. Shapes: each gradient as its parameter -> the same"""
        rate, after = _rate_and_step(self.rate, state)
        made: dict[str, Any] = {}
        speeds: dict[str, Any] = {}
        for name, p in parameters.items():
            g = gradients[name] + p * self.weight_decay if self.weight_decay else gradients[name]
            if self.momentum:
                # The first step sees zeros: the sum then is the gradient itself.
                speeds[name] = v = state["speed"][name] * self.momentum + g
                g = g + v * self.momentum if self.nesterov else v
            made[name] = p - g * rate
        if self.momentum:
            after["speed"] = speeds
        return made, after


@dataclass(frozen=True, slots=True)
class Adam:
    """Steps along the mean of gradients over the root of the mean of their squares, both decaying and corrected for their start at zero.

    rate: step size, a number or a function of the number of steps taken so far (an f32 scalar).
    decays: how much of either mean a step keeps. eps: added to the root, so that nothing is divided by zero.
    weight_decay: added to the gradient as weight_decay * parameter.
    Source: Kingma and Ba 2015, algorithm 1.
    Raises: UserError for settings out of range.
    """

    rate: Rate = 1e-3
    decays: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.decays, (tuple, list)) or len(self.decays) != 2:
            raise TypeMismatchError(f"decays are two numbers, not {self.decays!r}", where=user_span())
        _check(self.rate, first_decay=self.decays[0], second_decay=self.decays[1], weight_decay=self.weight_decay)

    def init(self, parameters: Arrays) -> dict[str, Any]:
        """The state before the first step, for `parameters` by name: arrays by name, as `update` takes and gives them."""
        return {"step": _first_step(parameters), "mean": {name: _zeros(p) for name, p in parameters.items()},
                "square": {name: _zeros(p) for name, p in parameters.items()}}

    def update(self, parameters: Arrays, gradients: Arrays, state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """New parameters and state, from `parameters` and their `gradients` by name. Shapes: each gradient as its parameter -> the same"""
        return self._moved(parameters, gradients, state, self.weight_decay, 0.0)

    def _moved(self, parameters: Arrays, gradients: Arrays, state: Mapping[str, Any], into_gradient: float,
               into_parameter: float) -> tuple[dict[str, Any], dict[str, Any]]:
        first, second = self.decays
        rate, after = _rate_and_step(self.rate, state)
        # Scalars of the step, computed once: p - rate * (m / c1) / (sqrt(v / c2) + eps) with these two in place of the divisions.
        taken = _counted(after["step"], parameters)
        speed = rate / _correction(first, taken)
        scale = 1.0 / ta.sqrt(_correction(second, taken))
        kept: dict[str, dict[str, Any]] = {"parameter": {}, "mean": {}, "square": {}}
        for name, p in parameters.items():
            g = gradients[name] + p * into_gradient if into_gradient else gradients[name]
            m = state["mean"][name] * first + g * (1.0 - first)
            v = state["square"][name] * second + g * g * (1.0 - second)
            old = p * (1.0 - rate * into_parameter) if into_parameter else p
            kept["parameter"][name] = old - m * _as(speed, p) / (ta.sqrt(v) * _as(scale, p) + self.eps)
            kept["mean"][name], kept["square"][name] = m, v
        return kept["parameter"], after | {"mean": kept["mean"], "square": kept["square"]}


@dataclass(frozen=True, slots=True)
class AdamW(Adam):
    """Adam that shrinks parameters by rate * weight_decay a step, apart from the gradient.

    rate, decays, eps: as for `Adam`.
    Source: Loshchilov and Hutter 2019, algorithm 2.
    """

    weight_decay: float = 1e-2

    def update(self, parameters: Arrays, gradients: Arrays, state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """New parameters and state, from `parameters` and their `gradients` by name. Shapes: each gradient as its parameter -> the same"""
        return self._moved(parameters, gradients, state, 0.0, self.weight_decay)


def _correction(decay: float, step: Any) -> Any:
    """1 - decay^step, as -expm1(step * log(decay)): the difference itself would lose the digits that matter in the first steps."""
    return -ta.expm1(step * log(decay)) if decay else ta.ones_like(step)


def _counted(step: Any, parameters: Arrays) -> Any:
    """The number of steps in the type that corrections need: f32 unless a parameter is f64."""
    return ta.astype(step, ta.float64) if any(p.dtype == ta.float64 for p in parameters.values()) else step


def _as(scalar: Any, like: Any) -> Any:
    """A scalar of the step in the parameter's type, so that it does not widen it."""
    return scalar if scalar.dtype == like.dtype else ta.astype(scalar, like.dtype)


def _first_step(parameters: Arrays) -> Any:
    first = next(iter(parameters.values()), None)
    if first is None:
        raise UserError("there is nothing to train", where=user_span(), hint="parameters() of the model is empty")
    return ta.asarray(0.0, dtype=ta.float32, device=first.device)


def _zeros(like: Any) -> Any:
    """Zeros as data: a state of hundreds of slots needs no program to make it."""
    return filled(like.shape, 0.0, like.dtype, like.device)


def _rate_and_step(rate: Rate, state: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The rate of this step, and the state's count of steps after it (where it counts)."""
    if "step" not in state:
        return rate, {}
    return rate(state["step"]) if callable(rate) else rate, {"step": state["step"] + 1.0}


def _check(rate: Rate, **settings: float) -> None:
    if not callable(rate) and not real_number(rate, "the rate") >= 0:
        raise UserError(f"the rate {rate} is not 0 or more", where=user_span())
    for name, value in settings.items():
        if not 0 <= real_number(value, name) < (inf if name == "weight_decay" else 1):
            raise UserError(f"{name} {value} is out of range", where=user_span(),
                            hint="between 0 and 1" if name != "weight_decay" else "at least 0")
