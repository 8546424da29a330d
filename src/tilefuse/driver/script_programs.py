"""From the calls of a script to one program: fusions compiled from meanings or glued from routines, joined in order."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.frontends.blas_meaning import graph_of_calls
from tilefuse.ir.elementary import CallGraph
from tilefuse.runtime.spec import ProgramSpec
from tilefuse.target.device import DeviceSpec


@dataclass(frozen=True)
class Choice:
    """The program of a script and how it came about. predicted_us: time expected of its kernels (None: not estimated)."""

    spec: ProgramSpec
    how: str
    constants: Mapping[str, object] = field(default_factory=dict)
    predicted_us: float | None = None


def choose(graph: CallGraph, device: DeviceSpec, place: str, options: Options) -> Choice:
    """The program expected to be fastest. Raises: UnsupportedError where neither routines nor meanings can compute a call."""
    return from_meanings(graph, device, options)


def from_meanings(graph: CallGraph, device: DeviceSpec, options: Options) -> Choice:
    """The whole script through the ordinary pipeline. Raises: UnsupportedError for a function without a meaning."""
    imported = graph_of_calls(graph)
    made = generate(imported.graph, constants=imported.constants, input_layouts=imported.layouts, device=device, options=options,
                    result_layouts=imported.result_layouts)
    return Choice(made.spec, "meanings", made.constants)
