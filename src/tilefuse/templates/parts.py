"""Parts of a packed kernel: independent patterns in one launch, and the groups of them that run one body.

Templates of any kind may be parts, so the records stand beside the templates; `packed/` puts the parts together.
"""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.domain.tile import TileProgram


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
    """Parts that run one body. program: the tile program of the body, for the largest part. flat: its domain is in flat form."""

    program: TileProgram
    parts: tuple[Part, ...]
    flat: bool = False

    @property
    def num_blocks(self) -> int:
        """Blocks of all parts."""
        return sum(p.num_blocks for p in self.parts)
