"""Templates whose kernels hold other kernels' blocks as tasks: the answers that follow from these bodies."""
from __future__ import annotations

from typing import Protocol, TypeVar

from tilefuse.domain.tile import Choice, TileProgram
from tilefuse.ir.graph import Graph, Node
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.explained import NO_STAGES, LevelTile, Staging, largest_result, numbered
from tilefuse.templates.own_launch import OwnLaunchTemplate
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.stage_tree import StageTree
from tilefuse.templates.template import Overlaps, Resources


class Bodied(Choice, Protocol):
    """A choice with bodies, each the program of a kernel."""

    @property
    def bodies(self) -> tuple[TileProgram, ...]:
        """The programs whose blocks are tasks."""
        ...


B = TypeVar("B", bound=Bodied)


class BodiedTemplate(OwnLaunchTemplate[B]):
    """The most that a body needs; no tiles, stages or products of the kernel as a whole."""

    priority = 3

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """The most of each that a body needs."""
        needs = [kernel_template(b.choice).resources(b, device) for b in self.choice_of(program).bodies]
        return Resources(max(r.registers for r in needs), max(r.shared_bytes for r in needs))

    def overlaps(self, choice: B) -> Overlaps:
        """Blocks take tasks of all kinds: there is no one direction, and the counters are the kernel ahead's until it has ended."""
        return Overlaps(walks_memory=False, turns=False, waits_itself=False, fetches_settled=False)

    def holds_product(self, node: Node, graph: Graph, device: DeviceSpec) -> bool:
        """False: its bodies' templates do."""
        return False

    def tiles(self, program: TileProgram, launch: Launch) -> tuple[LevelTile, ...]:
        """The largest result; each body has tiles of its own."""
        return (LevelTile("grid", numbered(largest_result(program))),)

    def staging(self, program: TileProgram) -> Staging:
        """Nothing for the kernel as a whole."""
        return NO_STAGES

    def stage_tree(self, program: TileProgram) -> StageTree | None:
        """None: the bodies are listed among the parameters."""
        return None
