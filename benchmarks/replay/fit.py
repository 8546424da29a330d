"""Figures of `target/fitted` with other values, and figures fitted to measured kernels by least squares."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.replay.conditions import measured_parts
from benchmarks.replay.rows import HALVES, Case, half_of, kernels
from tilefuse.domain.tile import TileProgram
from tilefuse.target.device import DeviceSpec

# Damped steps of the fit; a figure changes by a factor of four a step at most.
STEPS, LARGEST_FACTOR, SLOPE_STEP = 10, 4.0, 3e-3


def figures_of_text(text: str) -> dict[str, float]:
    """The values of `NAME=VALUE,...`."""
    return {name: float(value) for name, _, value in (pair.partition("=") for pair in text.split(",") if pair)}


def with_figures(device: DeviceSpec, value_by_name: Mapping[str, float]) -> DeviceSpec:
    """The device with other values of fitted figures, each named by its path below `device.fitted`."""
    fitted: Any = device.fitted
    for name, value in value_by_name.items():
        fitted = _with(fitted, name.split("."), value)
    return replace(device, fitted=fitted)


def _with(record: Any, path: Sequence[str], value: float) -> Any:
    first, *rest = path
    return replace(record, **{first: _with(getattr(record, first), rest, value) if rest else value})


def figure_of(device: DeviceSpec, name: str) -> float:
    """The value of a fitted figure. Raises: AttributeError where there is none of this path."""
    found: Any = device.fitted
    for part in name.split("."):
        found = getattr(found, part)
    return float(found)


def fitted(cases: Mapping[str, Case], device: DeviceSpec, names: Sequence[str]) -> dict[str, float]:
    """Figures that make the squares of the logarithms of predicted over measured time least, over the half "fit".

    The kernels stay as they are: only their work and its price follow the figures. Kernels of one graph weigh as its root together.
    """
    timed = [(label, kernel) for label, kernel in kernels(cases, device) if isinstance(kernel, TileProgram)
             and half_of(cases[label]) == HALVES[0]]
    measured = np.log([cases[label]["measured_us"] for label, _ in timed])
    of_graph = [label.split()[0] for label, _ in timed]
    weights = np.array([of_graph.count(g) ** -0.25 for g in of_graph])

    def errors(logs: np.ndarray) -> np.ndarray:
        other = with_figures(device, dict(zip(names, map(float, np.exp(logs)), strict=True)))
        return weights * (np.log([measured_parts(program, other)[0] for _, program in timed]) - measured)

    at = np.log([figure_of(device, n) for n in names])
    damping, best = 1e-2, errors(at)
    for _ in range(STEPS):
        slopes = np.stack([(errors(at + SLOPE_STEP * unit) - best) / SLOPE_STEP for unit in np.eye(len(names))], axis=1)
        normal = slopes.T @ slopes
        away = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + damping), slopes.T @ best)
        moved = at - np.clip(away, -math.log(LARGEST_FACTOR), math.log(LARGEST_FACTOR))
        now = errors(moved)
        at, best, damping = (moved, now, damping / 3) if now @ now < best @ best else (at, best, damping * 5)
    return dict(zip(names, map(float, np.exp(at)), strict=True))
