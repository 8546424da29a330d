"""A device's measured figures as a file, and how they enter its record.

`tilefuse calibrate` writes one file a device; a present device takes its figures from there, and records in `catalog.py` were copied from
such a file. Who measures stands in `runtime/calibrate.py`.
"""
from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tilefuse.base.errors import UserError
from tilefuse.target.device import DeviceSpec

FORMAT = 1
FOLDER = "devices"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Figures of one device. Units: microseconds beyond an empty kernel's interval against bytes read plus written (curves).

    num_multiprocessors tells a part of a device from the whole; `when` is the day of the measurement.
    """

    device: str
    num_multiprocessors: int
    when: str
    launch_us: float
    graph_launch_us: float
    transfer_curve: tuple[tuple[int, float], ...]
    resident_curve: tuple[tuple[int, float], ...]
    saturating_bytes: int
    flops_per_s: float

    def text(self) -> str:
        """The figures as JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"


class CalibrationWarning(UserWarning):
    """A calibration could not be used; the figures of the device's record stand."""


def parse_calibration(text: str | bytes, source: str) -> Calibration:
    """The calibration that `text` holds. Raises: UserError when it is none, naming `source`."""
    try:
        data: dict[str, Any] = json.loads(text)
        if data.pop("format") != FORMAT:
            raise ValueError("another format")
        curves = {name: tuple((int(size), float(us)) for size, us in data.pop(name)) for name in ("transfer_curve", "resident_curve")}
        made = Calibration(**{**data, **curves})
        for curve in curves.values():
            if not curve or list(curve) != sorted(curve) or curve[0][1] <= 0 or any(b[1] < a[1] for a, b in zip(curve, curve[1:])):
                raise ValueError("a curve does not rise")
        figures = (made.launch_us, made.graph_launch_us, made.flops_per_s, *(us for curve in curves.values() for _, us in curve))
        if not all(math.isfinite(f) and f > 0 for f in figures) or made.saturating_bytes < 0:
            raise ValueError("a figure is not positive")
    except (ValueError, TypeError, KeyError, AttributeError) as cause:
        raise UserError(f"{source} is no calibration: {cause}", hint="measure again: tilefuse calibrate") from cause
    return made


def calibration_path(folder: Path, spec: DeviceSpec) -> Path:
    """Where the calibration of a device lies below the cache folder."""
    return folder / FOLDER / f"{spec.name}-{spec.num_multiprocessors}.json"


def with_calibration(spec: DeviceSpec, folder: Path | None) -> DeviceSpec:
    """The record with the figures of its file in `folder`; the same object where there is none, or only a damaged one, which is told.

    A warning, not an error: else the calibration that replaces the file could not run either.
    """
    if folder is None:
        return spec
    path = calibration_path(folder, spec)
    try:
        found = parse_calibration(path.read_bytes(), str(path))
    except OSError:
        return spec
    except UserError as error:
        warnings.warn(f"{error.message}; the figures of the device's record are used instead ({error.hint})", CalibrationWarning,
                      stacklevel=2)
        return spec
    return calibrated(spec, found)


def calibrated(spec: DeviceSpec, found: Calibration) -> DeviceSpec:
    """The record with a calibration's figures, whose origin says so."""
    origin = f"tilefuse calibrate on this device, {found.when}"
    figures: Mapping[str, Any] = {
        "launch_us": found.launch_us, "graph_launch_us": found.graph_launch_us, "transfer_curve": found.transfer_curve,
        "resident_curve": found.resident_curve, "saturating_bytes": found.saturating_bytes,
        "flops_per_s": found.flops_per_s, "global_bytes_per_s": peak_bytes_per_s(found.transfer_curve),
    }
    origins = {**dict(spec.origins), **dict.fromkeys(figures, origin)}
    return replace(spec, **figures, origins=tuple(origins.items()))


def peak_bytes_per_s(curve: tuple[tuple[int, float], ...]) -> float:
    """The best rate on a curve of transfer times. Units: bytes per second."""
    return max(size / us * 1e6 for size, us in curve)
