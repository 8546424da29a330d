"""Register tiles in the notation: loops as of a flat walk; tile and order follow from the pattern.

    V [GRID,GRID,GRID,GRID-CTA_128];
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Level, TileProgram
from tilefuse.ir.graph import Node
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.flat_loops import flat_attrs, read_flat_loops
from tilefuse.templates.notation import Attr, Schedule, Template
from tilefuse.templates.tiles.record import RegisterTile
from tilefuse.templates.walk_notation import WalkNotation


class RegisterTileNotation(WalkNotation[RegisterTile, RegisterTile]):
    """Loops show the threads; there are no settings."""

    kind: ClassVar[str] = "register tile"
    shown_fields: ClassVar[frozenset[str]] = frozenset({"threads"})

    def settings_of(self, choice: RegisterTile) -> RegisterTile:
        """The choice itself."""
        return choice

    def parameters(self, choice: RegisterTile) -> tuple[tuple[str, Any], ...]:
        """Threads, and the elements of a tile along each axis."""
        return ("threads", choice.threads), ("tile", " x ".join(f"{axis} {side}" for axis, side in choice.sides))

    def attrs(self, choice: RegisterTile, domain: Domain, node: Node) -> tuple[Attr, ...]:
        """The loops of a flat walk."""
        return flat_attrs(node, choice.threads)

    def exchange_level(self, choice: RegisterTile) -> Level:
        """Registers: threads exchange nothing."""
        return Level.REGISTER

    def destinations(self, choice: RegisterTile, is_exchanged: bool, is_result: bool) -> tuple[Level, ...]:
        """Global memory only."""
        return ()

    def in_own_words(self, template: Template, choice: RegisterTile, program: TileProgram, device: DeviceSpec) -> Template:
        """As it is written."""
        return template

    def with_loops(self, settings: RegisterTile, schedule: Schedule, usual: Schedule, num_kept: int) -> RegisterTile:
        """The threads of a block."""
        return replace(settings, threads=read_flat_loops(schedule, usual) or settings.threads)

    def with_covering_steps(self, settings: RegisterTile, domain: Domain) -> RegisterTile:
        """As they are: a thread takes one tile."""
        return settings

    def choice_from(self, settings: RegisterTile, usual: RegisterTile, domain: Domain, device: DeviceSpec) -> RegisterTile:
        """The settings themselves."""
        return settings
