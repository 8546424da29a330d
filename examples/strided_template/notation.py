"""The text of a choice, and the choice of a text: y [GRID,GRID-CTA_256]; blocks=1056;"""
from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from examples.strided_template.record import Strided
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Level, TileProgram
from tilefuse.ir.graph import Node
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.flat_loops import flat_attrs, read_flat_loops
from tilefuse.templates.notation import Attr, Schedule, Template
from tilefuse.templates.walk_notation import WalkNotation, sorted_numbers


class StridedNotation(WalkNotation[Strided, Strided]):
    """Loops show the threads; `blocks` is a setting."""

    kind: ClassVar[str] = "strided"
    shown_fields: ClassVar[frozenset[str]] = frozenset({"threads"})

    def settings_of(self, choice: Strided) -> Strided:
        """The choice itself."""
        return choice

    def parameters(self, choice: Strided) -> tuple[tuple[str, Any], ...]:
        """All fields."""
        return sorted_numbers(choice)

    def attrs(self, choice: Strided, domain: Domain, node: Node) -> tuple[Attr, ...]:
        """Elements over blocks and their threads."""
        return flat_attrs(node, choice.threads)

    def exchange_level(self, choice: Strided) -> Level:
        """Registers: threads exchange nothing."""
        return Level.REGISTER

    def destinations(self, choice: Strided, is_exchanged: bool, is_result: bool) -> tuple[Level, ...]:
        """Global memory only."""
        return ()

    def in_own_words(self, template: Template, choice: Strided, program: TileProgram, device: DeviceSpec) -> Template:
        """As it is written."""
        return template

    def with_loops(self, settings: Strided, schedule: Schedule, usual: Schedule, num_kept: int) -> Strided:
        """The threads of a block."""
        return replace(settings, threads=read_flat_loops(schedule, usual) or settings.threads)

    def with_covering_steps(self, settings: Strided, domain: Domain) -> Strided:
        """As they are: strides cover any domain."""
        return settings

    def choice_from(self, settings: Strided, usual: Strided, domain: Domain, device: DeviceSpec) -> Strided:
        """The settings themselves; `StridedTemplate.refusal` checks them."""
        return settings
