"""Levels of the memory hierarchy, layouts, and the tile program: the refined plan of one kernel."""
from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from tilefuse.base.construction import quickly_built
from tilefuse.base.errors import InternalError
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.resolved import Domain
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch


class Level(enum.Enum):
    """Memory level of an edge's value. It decides how producer and user are composed and synchronised."""

    REGISTER = "register"
    WARP = "warp"
    SHARED = "shared"
    CLUSTER = "cluster"
    GRID = "grid"
    GLOBAL = "global"


@quickly_built
@dataclass(frozen=True, slots=True)
class EdgeLevel:
    """The level of the edge producer -> user."""

    producer: str
    user: str
    level: Level


class Choice(Protocol):
    """The record of a template: how it spreads one pattern over the machine. Immutable, comparable, hashable.

    template: the template's name, for texts and explanations; code finds the template by the record's type (`templates/registry.py`).
    """

    template: ClassVar[str]

    @property
    def num_threads(self) -> int:
        """Threads a block."""
        ...

    @property
    def resident(self) -> int:
        """Blocks that must fit a multiprocessor together; 0 sets no bound on registers."""
        ...

    @property
    def streams_results(self) -> bool:
        """Whether results leave the second-level cache first where the kernel moves more than it holds."""
        ...


class StagePlan(Protocol):
    """Stages of a kernel with their places in shared memory. Its template reads the rest of it, and nobody else does."""

    @property
    def shared_bytes(self) -> int:
        """Shared memory a block. Units: bytes."""
        ...


@quickly_built
@dataclass(frozen=True, slots=True)
class TileProgram:
    """All decisions of one kernel: template, tiles, launch, traffic. `templates.compose` turns it into kernel IR and decides nothing.

    graph        the pattern as a graph of its own: inputs are the boundary values, results the values it writes
    choice       the template's record; internal: the walked domain, or the stages; None where parts have theirs
    notation     the schedule in the template notation of FusionStitching 5.2, for `explain`
    layouts      strides of every boundary value
    parameters   template-specific decisions (threads per row, vector width, cluster, ...), sorted pairs
    levels       level of every edge inside the pattern
    Units: bytes_* count each boundary tensor once (ideal traffic); flops are floating-point operations.
    """

    name: str
    graph: Graph
    choice: Choice = field(compare=False, repr=False)
    notation: str
    layouts: Layouts
    parameters: tuple[tuple[str, object], ...]
    levels: tuple[EdgeLevel, ...]
    launch: Launch
    bytes_read: int
    bytes_written: int
    flops: int
    internal: Domain | StagePlan | None = field(default=None, compare=False, repr=False)

    @property
    def template(self) -> str:
        """The name of the choice's template, for texts and explanations."""
        return self.choice.template

    @property
    def domain(self) -> Domain:
        """The walked domain. Raises: InternalError for kernels of stages and packed ones."""
        if not isinstance(self.internal, Domain):
            raise InternalError(f"kernel {self.name} ({self.template}) walks no domain")
        return self.internal

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written




def kernel_name(graph: Graph) -> str:
    """A readable C name from the values that the kernel writes. Planning makes it unique."""
    return "k_" + re.sub(r"[^0-9A-Za-z]", "_", "_".join(graph.results[:2]) or graph.name)[:SEARCH.texts.name_characters]


def print_tile(program: TileProgram, device: DeviceSpec) -> str:
    """The text of a tile program for a reader: template, launch, traffic, boundary values, level of every edge. Ends with a newline."""
    launch, graph = program.launch, program.graph
    shape = f"{launch.num_blocks} blocks of {launch.num_threads} threads" + (f", {launch.cluster} a cluster" if launch.cluster > 1 else "")
    lines = [f"tile @{program.name} on {device.arch} {{", f"  schedule {program.notation}", f"  launch {shape}",
             f"  reads {program.bytes_read} bytes, writes {program.bytes_written} bytes, {program.flops} operations"]
    lines.append("  parameters " + ", ".join(f"{name} {_parameter_text(value)}" for name, value in program.parameters))
    for v in graph.inputs:
        lines.append(f"  %{v.name}: global {v.type}" + _strides_text(program, v.name))
    lines += [f"  %{edge.producer} -> %{edge.user}: {edge.level.value}" for edge in program.levels]
    for name in graph.results:
        lines.append(f"  %{name} -> global {graph.type_of(name)}" + _strides_text(program, name))
    return "\n".join([*lines, "}"]) + "\n"


def _parameter_text(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _strides_text(program: TileProgram, value: str) -> str:
    strides = program.layouts.get(value)
    return f" strides [{', '.join(map(str, strides))}]" if strides else ""
