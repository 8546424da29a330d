"""Parts of a packed kernel: independent patterns in one launch, and the groups of them that run one body.

Templates of any kind may be parts, so the records stand beside the templates; `packed/` puts the parts together.
"""
from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from tilefuse.base.candidate import Rejected
from tilefuse.domain.parts import structure_of
from tilefuse.domain.tile import Choice, TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its boundary values in the order of the group's operands (inputs, then results), its nodes, its number of blocks.

    num_elements: size of a part whose group's body takes any size; 0 where the group's body has the extents in it.
    """

    values: tuple[str, ...]
    nodes: tuple[str, ...]
    num_blocks: int
    num_elements: int = 0


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """Parts that run one body.

    program: the tile program of the body, for the largest part. any_size: its domain is that of a `SizedForm`, and parts differ in size.
    """

    program: TileProgram
    parts: tuple[Part, ...]
    any_size: bool = False

    @property
    def num_blocks(self) -> int:
        """Blocks of all parts."""
        return sum(p.num_blocks for p in self.parts)


@dataclass(slots=True)
class Known:
    """Parts of one graph that were scheduled, in one or more packed kernels.

    programs: by number of the structure and choice (None: the scheduler's own), with the names of the first part of that structure
    """

    programs: dict[tuple[int, Choice | None], TileProgram | Rejected] = field(default_factory=dict)
    numbers: dict[Hashable, int] = field(default_factory=dict)
    _parts: dict[tuple[str, ...], tuple[Graph, Layouts, int]] = field(default_factory=dict)

    def structure(self, part: Graph, layouts: Layouts) -> int:
        """A number for the structure of a part. A part that comes again in another set of parts, node by node the same, keeps its own."""
        names = tuple(n.name for n in part.nodes)
        own = {i.name: layouts[i.name] for i in part.inputs if i.name in layouts} | {r: layouts[r] for r in part.results if r in layouts}
        if (earlier := self._parts.get(names)) is not None:
            other, other_layouts, number = earlier
            if other.results == part.results and other_layouts == own and all(a is b for a, b in zip(other.nodes, part.nodes, strict=True)):
                return number
        number = self.numbers.setdefault(structure_of(part, layouts), len(self.numbers))
        self._parts[names] = (part, own, number)
        return number
