"""Routines of a device, timed one by one: the table, the environments of its rows, and values between them.

`scripts/calibrate.py` fills it; `work.py` reads it. A load or store has a ratio: time of its bytes at the device's best rate, over its
measured time without the kernel's start. Source: Filipovic et al., "Optimizing CUDA Code by Kernel Fusion", section 4.2.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log

from tilefuse.base.search.limits import SEARCH
from tilefuse.target.device import DeviceSpec


@dataclass(frozen=True)
class Environment:
    """A simulated fusion: instances of a block, tiles of a block, the direction of its walk, shared memory beside the routine's own.

    Units: bytes of shared memory.
    """

    instances: int
    iterations: int
    extra_shared_bytes: int
    direction: str = "x"


# (function, implementation, routine): "load A", "compute", "store y".
RoutineName = tuple[str, str, str]


@dataclass(frozen=True)
class RoutineTimes:
    """Routines of a device, timed one by one. `scripts.calibrate` fills it.

    transfers  routine -> (environment, ratio): time of its bytes at the device's best rate, over their measured time
    computes   routine -> (environment, microseconds for a million words of the function's largest operand)
    start_us   time of an empty kernel in a CUDA graph; neither table includes it
    """

    device: str
    start_us: float
    transfers: Mapping[RoutineName, Sequence[tuple[Environment, float]]] = field(default_factory=dict)
    computes: Mapping[RoutineName, Sequence[tuple[Environment, float]]] = field(default_factory=dict)


def environments(nested: bool, threads: int, moves: bool = True) -> tuple[Environment, ...]:
    """The environments in which to time a routine whose instance has `threads` threads. moves: it loads or stores.

    A compute routine is timed in one environment: its operands are on chip, so neither the walk nor other shared memory changes its work.
    """
    instances = (1,) if nested or threads > 256 else (1, 2)
    directions = ("x", "y") if nested else ("x",)
    tiles_and_memory = SEARCH.scripts.transfer_environments if moves else SEARCH.scripts.compute_environments
    return tuple(Environment(i, n, extra, d) for d in directions for i in instances for n, extra in tiles_and_memory)


def transfer_ratio(num_bytes: int, us: float, start_us: float, device: DeviceSpec) -> float:
    """Table entry of a load or store. Units: bytes moved; microseconds of the probe and of an empty kernel."""
    ratio = num_bytes / device.global_bytes_per_s * 1e6 / max(us - start_us, SEARCH.scripts.least_probe_us)
    return min(ratio, device.fitted.scripts.largest_probe_ratio)


def compute_us(num_words: int, us: float, start_us: float) -> float:
    """Table entry of a compute routine: microseconds for a million words of the function's largest operand."""
    return max(us - start_us, 0.0) / num_words * 1e6


def interpolated_ratio(measured: Sequence[tuple[Environment, float]], environment: Environment) -> float | None:
    """The value for the environment's tiles a block, between those measured in the most similar environments; None without any.

    The interpolation is linear in the logarithm of the tiles: the first tiles of a block add most of the overlapping loads.
    """
    nearest = nearest_value(measured, environment)
    if nearest is None:
        return None
    like = min((e for e, _ in measured), key=lambda e: _distance(e, environment))
    value_by_tiles = {e.iterations: value for e, value in measured
             if (e.instances, e.extra_shared_bytes, e.direction) == (like.instances, like.extra_shared_bytes, like.direction)}
    tiles = max(environment.iterations, 1)
    below, above = max((n for n in value_by_tiles if n <= tiles), default=0), min((n for n in value_by_tiles if n >= tiles), default=0)
    if not below or not above or below == above:
        return nearest
    part = log(tiles / below) / log(above / below)
    return value_by_tiles[below] * (1 - part) + value_by_tiles[above] * part


def nearest_value(measured: Sequence[tuple[Environment, float]], environment: Environment) -> float | None:
    """The value measured in the most similar environment; None if there is none."""
    return min(measured, key=lambda pair: _distance(pair[0], environment))[1] if measured else None


def _distance(e: Environment, environment: Environment) -> float:
    return (abs(log(e.instances / environment.instances)) + abs(log(e.iterations / max(environment.iterations, 1)))
            + abs(e.extra_shared_bytes - environment.extra_shared_bytes) / SEARCH.scripts.unlike_shared_bytes
            + SEARCH.scripts.unlike_direction * (e.direction != environment.direction))
