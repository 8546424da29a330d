"""Tiles of rows along a walked axis: the turns that a mask leaves of each, and the block that has most of them.

    causal, 4 tiles of rows      turns 1 2 3 4       blocks take the longest first, every other round in the opposite order
"""
from __future__ import annotations

from functools import cached_property
from math import ceil
from operator import add
from typing import Protocol

from tilefuse.base.search.limits import SEARCH
from tilefuse.ir.scalar import Read, walk
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.online.plan import OnlinePlan
from tilefuse.templates.staged.online.products import OnlineForm
from tilefuse.templates.staged.pipelined.plan import OperandMap, OperandTile, map_of_tile
from tilefuse.templates.staged.walked.conditions import Bounds
from tilefuse.templates.staged.walked.limit import Limit, Turns, turns_of
from tilefuse.templates.staged.walked.operand import WalkOperand


class TiledForm(Protocol):
    """A form with a walked axis."""

    @property
    def online(self) -> OnlineForm:
        """The products, and the elements between them."""
        ...

    @property
    def limit(self) -> Limit | None:
        """The mask that bounds the columns of each row."""
        ...

    @property
    def staged_by(self) -> WalkOperand:
        """An operand with the columns of the results."""
        ...


class TiledChoice(Protocol):
    """Tiles of a walk."""

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        ...

    @property
    def columns(self) -> int:
        """Elements of the walked axis a turn."""
        ...

    @property
    def warpgroups(self) -> int:
        """Consumer warpgroups."""
        ...

    @property
    def blocks(self) -> int:
        """Persistent blocks."""
        ...

    @property
    def band(self) -> int:
        """Lead places whose tiles are taken together."""
        ...


class TiledWalk:
    """Facts of a plan that follow from its form and its tiles alone."""

    @property
    def of(self) -> TiledForm:
        """The form."""
        raise NotImplementedError

    @property
    def tiling(self) -> TiledChoice:
        """The tiles."""
        raise NotImplementedError

    @property
    def tiles(self) -> tuple[OperandTile, ...]:
        """One slot's tile of each operand that comes through a ring."""
        raise NotImplementedError

    @property
    def walk(self) -> OnlinePlan:
        """The plan that the statements of a turn are written from."""
        raise NotImplementedError

    @property
    def segments(self) -> int:
        """Equal parts of the walked axis that masks begin again in, as the rows of heads that share keys; turns lie within one."""
        return 1

    @property
    def length(self) -> int:
        """Elements of a segment."""
        return self.of.online.length // self.segments

    def slots(self, tile: OperandTile) -> int:
        """Slots of an operand's ring."""
        raise NotImplementedError

    def map_of(self, of: WalkOperand, tile: OperandTile) -> OperandMap:
        """The tensor map of an operand."""
        return map_of_tile(of.sizes, tile)

    @property
    def row_tiles(self) -> int:
        """Tiles along the rows."""
        return -(-self.of.online.num_rows // self.tiling.rows)

    @property
    def parts(self) -> int:
        """Parts of a tile along the walked axis, each of which is one block's at a time."""
        return 1

    @property
    def heads(self) -> int:
        """Lead places of the products whose rows lie in one tile."""
        return 1

    @property
    def rows_of_tile(self) -> int:
        """Rows of a tile as masks count them: of one lead place. A tile of several has all of their rows."""
        return self.tiling.rows if self.heads == 1 else self.of.online.num_rows // self.heads

    @property
    def num_items(self) -> int:
        """Parts of all tiles."""
        return self.num_tiles * self.parts

    @property
    def num_tiles(self) -> int:
        """Tiles of all lead places."""
        return self.of.online.num_leads * self.row_tiles

    @property
    def most_turns(self) -> int:
        """Turns along a whole segment of the walked axis."""
        return -(-self.length // self.tiling.columns)

    def turns(self, row_tile: int) -> int:
        """Turns of a tile of rows in a segment: between the first and the last column that one of its rows has."""
        return self._row_turns[row_tile].count

    @cached_property
    def _row_turns(self) -> tuple[Turns, ...]:
        """Turns of every tile of rows."""
        rows, columns, limit = self.rows_of_tile, self.tiling.columns, self.of.limit
        bounds, whole = (Bounds(), Bounds()) if limit is None else (limit.bounds, limit.whole)
        return tuple(turns_of(bounds, n * rows, rows, columns, self.length, whole) for n in range(self.row_tiles))

    @property
    def edge_registers(self) -> int:
        """Registers of a consumer thread for the bounds that memory has for the blocks of rows of its tile."""
        edges = () if self.of.limit is None else self.of.limit.whole.edges
        return sum(max(self.rows_of_tile // e.rows, 1) for e in edges if e.rows)

    @property
    def longest_last(self) -> bool:
        """Whether the last rows have most turns, so that their tiles are taken first."""
        return self.of.limit is not None and self.turns(self.row_tiles - 1) >= self.turns(0)

    @property
    def all_turns(self) -> int:
        """Turns of all tiles."""
        if self.of.limit is None:
            return self.num_tiles * self.most_turns * self.segments
        return self.of.online.num_leads * self.segments * sum(self.turns(n) for n in range(self.row_tiles))

    @property
    def whole_turns(self) -> int:
        """Turns of all tiles that the mask cuts nothing of."""
        return self.of.online.num_leads * self.segments * sum(t.whole_end - t.whole_first for t in self._row_turns)

    @property
    def assumed_share(self) -> float:
        """Share of a tile's turns that prices count: below 1 where memory has bounds for blocks of rows, which only the call knows."""
        return SEARCH.pipelines.walked_share if self.of.limit is not None and self.of.limit.is_of_blocks else 1.0

    @property
    def likely_turns(self) -> int:
        """Turns of all tiles that are computed as far as prices go."""
        return max(ceil(self.all_turns * self.assumed_share), self.num_tiles)

    @property
    def most_loaded(self) -> tuple[int, int]:
        """Tiles of the block with the most turns, and those of its turns that are computed as far as prices go."""
        tiles, turns = self._most_loaded
        return tiles, max(ceil(turns * self.assumed_share), tiles)

    @cached_property
    def _most_loaded(self) -> tuple[int, int]:
        """Tiles and turns of the block with the most turns. Blocks take tiles in turn, those with the most turns first, and every other
        time in the opposite order."""
        choice, row_tiles = self.tiling, self.row_tiles
        tiles = -(-self.num_items // choice.blocks)
        if self.parts > 1:
            return tiles, tiles * -(-max(self.turns(n) for n in range(row_tiles)) // self.parts)
        if self.of.limit is None:
            return tiles, tiles * self.most_turns * self.segments
        if tiles > SEARCH.pipelines.walk_tiles:
            return tiles, -(-self.all_turns // choice.blocks)
        turns = [self.turns(n) for n in range(row_tiles)]
        if self.longest_last:
            turns.reverse()
        of_band = [t for t in turns for _ in range(choice.band)]
        of_tiles = of_band * (self.num_tiles // len(of_band))
        loads = [0] * choice.blocks
        for round_ in range(tiles):
            taken = of_tiles[round_ * choice.blocks:(round_ + 1) * choice.blocks]
            taken += [0] * (choice.blocks - len(taken))
            loads = list(map(add, loads, reversed(taken) if round_ % 2 else taken))
        return tiles, max(loads) * self.segments

    def missed_bytes(self, filling_bytes: int, device: DeviceSpec) -> float:
        """Bytes of walked operands that come from memory: once where L2 holds those of a band, else once for all tiles of a lead place that
        are at work together. filling_bytes: of the walked operands' slots of one turn."""
        band = self.tiling.band
        if band * self.most_turns * filling_bytes <= device.l2_bytes * device.fitted.traffic.pending_l2_share:
            return 0.0
        return self.likely_turns * filling_bytes / max(self.tiling.blocks / band, 1.0)

    def turns_text(self) -> str:
        """Turns that a mask leaves of those of all tiles, and their parts; "" without either."""
        parts = (f"in {self.parts} parts, which the last block of a tile combines",) if self.parts > 1 else ()
        return "; ".join((*self._turns_of_mask(), *parts))

    def _turns_of_mask(self) -> tuple[str, ...]:
        if self.of.limit is None:
            return ()
        of_all = f"{self.all_turns} of {self.num_tiles * self.most_turns * self.segments} turns of all tiles"
        of_blocks = {e.rows: None for e in self.of.limit.bounds.edges if e.rows}
        if of_blocks:
            names = dict.fromkeys(f"%{x.value}" for e in self.of.limit.whole.edges if e.rows and e.data is not None for x in walk(e.data)
                                  if isinstance(x, Read))
            return (f"at most {of_all}: {', '.join(names)} bound those of every {', '.join(map(str, of_blocks))} rows at run time, and say "
                    f"which of them carry no mask; {self.assumed_share:.0%} are assumed",)
        if any(e.data is not None for e in self.of.limit.bounds.edges):
            return (f"at most {of_all}: memory ends them",)
        return (f"{of_all}, {self.whole_turns} of them without the mask",)
