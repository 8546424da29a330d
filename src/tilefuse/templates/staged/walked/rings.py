"""Rings of slots that tensor copies fill along a walk, and the stages of results, as the parts of such a kernel write them."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from tilefuse.domain.contraction import INNER
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.kernel.ir import Buffer
from tilefuse.kernel.pipeline import SWIZZLE_LINE_BYTES, Produce, Ring
from tilefuse.kernel.tensor_map import TensorCopy, TensorMap
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.online.products import OnlineForm
from tilefuse.templates.staged.online.state import OnlineState
from tilefuse.templates.staged.pipelined.plan import OperandMap, OperandTile
from tilefuse.templates.staged.walked.conditions import Edge
from tilefuse.templates.staged.walked.leads import digit_places
from tilefuse.templates.staged.walked.operand import WalkOperand
from tilefuse.templates.staged.walked.paged.copies import copy_pages
from tilefuse.templates.staged.walked.stage import StagedResult, lead_places
from tilefuse.templates.staged.walked.tiled import TiledWalk


class RingState(OnlineState):
    """The statements of one kernel so far; `form` is the form of the turn at hand, with or without its mask. staged: results that tensor
    stores write."""

    def __init__(self, program: TileProgram, walk: TiledWalk, staged: Sequence[StagedResult], device: DeviceSpec) -> None:
        super().__init__(program, walk.walk, device)
        self.walk, self.staged = walk, tuple(staged)
        self.maps: dict[str, TensorMap] = {}
        self.slots = {t.key: Buffer(self.fresh(f"{t.operand.value}_slots"), t.operand.dtype, t.elements * walk.slots(t), "shared", "",
                                    t.operand.value, t.offset_bytes, swizzle=SWIZZLE_LINE_BYTES) for t in walk.tiles}
        self.stages = {r.name: Buffer(self.fresh(f"{r.name}_stage"), r.dtype, r.elements, "shared", "", r.name, r.offset_bytes,
                                      swizzle=SWIZZLE_LINE_BYTES) for r in staged}
        self.lead = number(0)
        # Edges that memory holds for the tile at hand: one for each block of rows that it has rows of.
        self.edges_in_memory: dict[Edge, tuple[Affine, ...]] = {}

    @contextlib.contextmanager
    def taking(self, form: OnlineForm) -> Iterator[None]:
        """Inside, elements are those of this form."""
        before, self.form = self.form, form
        yield
        self.form = before

    def filling(self, ring: Ring, body: Callable[[Affine], None], threads: int = 1) -> str:
        """A filling of a ring by so many threads: the name of its slot. body: writes the slot of that number."""
        slot = self.fresh(f"{ring.name}_slot")
        with self.nested() as produced:
            produced.extents[slot] = ring.slots
            if threads > 1:
                produced.extents["thread"] = threads
            body(axis(slot))
        self.emit(Produce(ring.name, slot, tuple(produced.statements), threads))
        self.frame.extents[slot] = ring.slots
        return slot

    def copy_tile(self, of: WalkOperand, tile: OperandTile, slot: Affine, first_line: Affine, first_inner: Affine) -> None:
        """Starts the copies of an operand's tile from a line and an element of the inner axis on."""
        operand, m = of.operand, self.walk.map_of(of, tile)
        if tile.key not in self.maps:
            name, source = self.fresh(f"{operand.value}_map"), self.buffers[operand.value].name
            self.maps[tile.key] = TensorMap(name, source, operand.dtype, m.extents, m.strides, m.box, SWIZZLE_LINE_BYTES, operand.first)
        leads = lead_places(of, self.lead * self.walk.heads)
        place = {**leads, **digit_places(of.digits, leads, self.extents), operand.line: first_line, INNER: first_inner}
        if of.pages is None:
            self._copy_panels(tile, m, slot * tile.elements, place)
            return
        copy_pages(self, of.pages, tile.panel_lines, place, lambda row, at: self._copy_panels(
            tile, m, slot * tile.elements + row * tile.width, {**place, **at}))

    def _copy_panels(self, tile: OperandTile, m: OperandMap, first: Affine, place: Mapping[str, Affine]) -> None:
        """Starts the copies of the panels of a box to the ring's elements from `first` on."""
        for panel in range(tile.num_panels):
            coordinates = [place[a] for a in m.axes]
            coordinates[-1] = coordinates[-1] + panel * tile.width
            self.emit(TensorCopy(self.maps[tile.key].name, tuple(map(self.simplified, coordinates)), self.slots[tile.key].name,
                                 self.simplified(first + panel * tile.panel_lines * tile.width)))
