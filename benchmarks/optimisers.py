"""Optimizer updates in place on lists of tensors, as a training loop applies them. All that changes is in the arguments.

Eager runs torch's multi-tensor kernels; a compiler sees the same operators inside the graph of the whole step.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# Parameters first, then one group of tensors for each kind of slot.
State = list[list[Tensor]]


@dataclass(frozen=True)
class Optimiser:
    """slots: groups of tensors beside the parameters, as after some steps; update: changes the whole state, given the gradients."""

    name: str
    slots: Callable[[list[Tensor]], State]
    update: Callable[[State, list[Tensor]], None]


def _filled(parameters: list[Tensor], value: float) -> list[Tensor]:
    return [torch.full_like(p, value) for p in parameters]


def sgd(rate: float) -> Optimiser:
    """Plain gradient descent."""

    def update(state: State, gradients: list[Tensor]) -> None:
        torch._foreach_add_(state[0], gradients, alpha=-rate)

    return Optimiser("sgd", lambda parameters: [], update)


def momentum(rate: float, decay: float = 0.9) -> Optimiser:
    """Gradient descent along a decaying sum of gradients."""

    def update(state: State, gradients: list[Tensor]) -> None:
        parameters, speeds = state
        torch._foreach_mul_(speeds, decay)
        torch._foreach_add_(speeds, gradients)
        torch._foreach_add_(parameters, speeds, alpha=-rate)

    return Optimiser("momentum", lambda parameters: [_filled(parameters, 0.0)], update)


def adam(rate: float, first_decay: float = 0.9, second_decay: float = 0.999, eps: float = 1e-8) -> Optimiser:
    """Adam; the powers of both decays are tensors of the state, so that a step recorded once stays right.

    Source: Kingma and Ba 2015, section 2, with the two corrections gathered in the step size.
    """

    def slots(parameters: list[Tensor]) -> State:
        steps = 10
        powers = [parameters[0].new_full((), decay**steps) for decay in (first_decay, second_decay)]
        return [_filled(parameters, 0.0), _filled(parameters, 1e-6), powers]

    def update(state: State, gradients: list[Tensor]) -> None:
        parameters, means, squares, (first_power, second_power) = state
        first_power.mul_(first_decay)
        second_power.mul_(second_decay)
        step = torch.sqrt(1 - second_power) / (1 - first_power) * -rate
        torch._foreach_mul_(means, first_decay)
        torch._foreach_add_(means, gradients, alpha=1 - first_decay)
        torch._foreach_mul_(squares, second_decay)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - second_decay)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, eps)
        changes = torch._foreach_div(means, roots)
        torch._foreach_mul_(changes, step)
        torch._foreach_add_(parameters, changes)

    return Optimiser("adam", slots, update)


def rmsprop(rate: float, decay: float = 0.9, eps: float = 1e-10) -> Optimiser:
    """Gradients scaled by the root of a decaying mean of their squares."""

    def update(state: State, gradients: list[Tensor]) -> None:
        parameters, squares = state
        torch._foreach_mul_(squares, decay)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - decay)
        roots = torch._foreach_add(squares, eps)
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(parameters, torch._foreach_div(gradients, roots), alpha=-rate)

    return Optimiser("rmsprop", lambda parameters: [_filled(parameters, 1e-6)], update)
