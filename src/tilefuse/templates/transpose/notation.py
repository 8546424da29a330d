"""Transpositions in the notation: loops of a flat walk whose values all lie in shared memory, and the tile as settings.

    y [GRID,GRID-CTA_256]S; rows=64; columns=64; read_vector=4; write_vector=4;
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from tilefuse.base.candidate import Rejected
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Level, TileProgram
from tilefuse.ir.graph import Node
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.flat_loops import flat_attrs, read_flat_loops
from tilefuse.templates.notation import Attr, Schedule, Template
from tilefuse.templates.transpose.legality import transpose_refusal
from tilefuse.templates.transpose.record import Transpose
from tilefuse.templates.walk_notation import WalkNotation, sorted_numbers


class TransposeNotation(WalkNotation[Transpose, Transpose]):
    """The record's own fields are the settings."""

    kind: ClassVar[str] = "transpose"
    shown_fields: ClassVar[frozenset[str]] = frozenset({"threads"})

    def settings_of(self, choice: Transpose) -> Transpose:
        """The choice itself."""
        return choice

    def parameters(self, choice: Transpose) -> tuple[tuple[str, Any], ...]:
        """All fields."""
        return sorted_numbers(choice)

    def attrs(self, choice: Transpose, domain: Domain, node: Node) -> tuple[Attr, ...]:
        """The loops of a flat walk."""
        return flat_attrs(node, choice.threads)

    def exchange_level(self, choice: Transpose) -> Level:
        """Registers: no reduction is shared."""
        return Level.REGISTER

    def destinations(self, choice: Transpose, is_exchanged: bool, is_result: bool) -> tuple[Level, ...]:
        """Every value is turned in shared memory."""
        return (Level.SHARED,)

    def in_own_words(self, template: Template, choice: Transpose, program: TileProgram, device: DeviceSpec) -> Template:
        """As it is: the paper's forms write no tiles."""
        return template

    def with_loops(self, settings: Transpose, schedule: Schedule, usual: Schedule, num_kept: int) -> Transpose:
        """The threads of a block."""
        return replace(settings, threads=read_flat_loops(schedule, usual) or settings.threads)

    def with_covering_steps(self, settings: Transpose, domain: Domain) -> Transpose:
        """As they are: the threads of a block go round its tile."""
        return settings

    def choice_from(self, settings: Transpose, usual: Transpose, domain: Domain, device: DeviceSpec) -> Transpose | Rejected:
        """The tiles, where they are runs of memory on the side of the usual ones and hold whole vectors."""
        return transpose_refusal(settings, usual, domain) or settings
