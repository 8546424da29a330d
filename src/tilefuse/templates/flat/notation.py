"""Flat walks in the notation: the last dimension over blocks and their threads; vectors and steps as settings.

    y [GRID,GRID-CTA_128]; vector=4; steps=2; unrolled=true;
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from tilefuse.base.candidate import Rejected
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Level, TileProgram
from tilefuse.ir.graph import Node
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.flat.legality import flat_refusal
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.flat.whole_in_block import with_flat_blocks
from tilefuse.templates.flat_loops import flat_attrs, read_flat_loops, spread_at
from tilefuse.templates.notation import Attr, Schedule, Template
from tilefuse.templates.walk_notation import WalkNotation, exchanged_to, sorted_numbers


class FlatNotation(WalkNotation[Pointwise, Pointwise]):
    """The record's own fields are the settings."""

    kind: ClassVar[str] = "pointwise"
    shown_fields: ClassVar[frozenset[str]] = frozenset({"threads"})

    def settings_of(self, choice: Pointwise) -> Pointwise:
        """The choice itself."""
        return choice

    def parameters(self, choice: Pointwise) -> tuple[tuple[str, Any], ...]:
        """All fields; `across` and `side` only where warps stand across two axes."""
        return sorted_numbers(choice, without=("across", "side") if choice.side == 1 else ())

    def attrs(self, choice: Pointwise, domain: Domain, node: Node) -> tuple[Attr, ...]:
        """The loops of a flat walk."""
        return flat_attrs(node, choice.threads)

    def exchange_level(self, choice: Pointwise) -> Level:
        """Registers: no reduction is shared."""
        return Level.REGISTER

    def destinations(self, choice: Pointwise, is_exchanged: bool, is_result: bool) -> tuple[Level, ...]:
        """Registers for values that the walk reads again."""
        return exchanged_to(Level.REGISTER, is_exchanged, is_result)

    def in_own_words(self, template: Template, choice: Pointwise, program: TileProgram, device: DeviceSpec) -> Template:
        """Blocks of whole dimensions as threads and steps."""
        return with_flat_blocks(template, choice, self._spread_extents(choice, program), device)

    def with_loops(self, settings: Pointwise, schedule: Schedule, usual: Schedule, num_kept: int) -> Pointwise:
        """The threads of a block."""
        return replace(settings, threads=read_flat_loops(schedule, usual) or settings.threads)

    def with_covering_steps(self, settings: Pointwise, domain: Domain) -> Pointwise:
        """As they are: the number of blocks follows from the steps."""
        return settings

    def choice_from(self, settings: Pointwise, usual: Pointwise, domain: Domain, device: DeviceSpec) -> Pointwise | Rejected:
        """The settings themselves, where warps that stand across two axes are whole ones."""
        return flat_refusal(settings, domain) or settings

    def _spread_extents(self, choice: Pointwise, program: TileProgram) -> dict[str, tuple[int, ...]]:
        """Extents of the dimensions that the walk goes over, of every value with a schedule."""
        usual = self.template_of(choice, program.domain, program.graph, program.launch)
        node_by_name = program.graph.node_by_name
        extents = {s.name: (*node_by_name[s.name].type.shape, *(e for _, e in node_by_name[s.name].over)) for s in usual.schedules}
        return {s.name: extents[s.name][:spread_at(s) + 1] for s in usual.schedules}
