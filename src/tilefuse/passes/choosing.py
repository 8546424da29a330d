"""Device passes that choose by price and keep their choices for explanations."""
from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Protocol

from tilefuse.ir.graph import Graph
from tilefuse.passes.facts import CHOICES
from tilefuse.passes.manager import DevicePass, PassContext


class Explained(Protocol):
    """A choice of a pass."""

    def text(self) -> str:
        """One line for explanations."""
        ...


class ChoosingPass(DevicePass):
    """A device pass that keeps the texts of its choices in the attribute `CHOICES`, each text once, behind those of passes before it."""

    provides: ClassVar[tuple[str, ...]] = (CHOICES,)

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        """As `DevicePass.run`; the attribute is there in any case."""
        ctx.attributes.setdefault(CHOICES, ())
        return super().run(graph, ctx)

    def keep(self, choices: Iterable[Explained], ctx: PassContext) -> None:
        """Adds the texts of choices to the attribute."""
        ctx.attributes[CHOICES] = tuple(dict.fromkeys((*ctx.attributes[CHOICES], *(c.text() for c in choices))))
