"""The state of a pipelined walk as its parts write it: that of `online/state.py`, with rings of slots that tensor copies fill."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from tilefuse.domain.contraction import INNER
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.scalar import Read
from tilefuse.kernel.ir import Buffer
from tilefuse.kernel.pipeline import SWIZZLE_LINE_BYTES, Produce, Ring
from tilefuse.kernel.tensor_map import TensorCopy, TensorMap
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.online.products import OnlineForm
from tilefuse.templates.staged.online.state import OnlineState
from tilefuse.templates.staged.pipelined.plan import OperandTile, map_of_tile
from tilefuse.templates.staged.walked.leads import digit_places
from tilefuse.templates.staged.walked.operand import WalkOperand
from tilefuse.templates.staged.walked.plan import WalkPlan
from tilefuse.templates.staged.walked.stage import lead_places


class WalkState(OnlineState):
    """The statements of one kernel so far. walk: the whole plan; `form` is the form of the turn at hand, with or without its mask."""

    def __init__(self, program: TileProgram, walk: WalkPlan, device: DeviceSpec) -> None:
        super().__init__(program, walk.walk, device)
        self.walk = walk
        self.maps: dict[str, TensorMap] = {}
        self.slots = {t.key: Buffer(self.fresh(f"{t.operand.value}_slots"), t.operand.dtype, t.elements * walk.slots(t), "shared", "",
                                    t.operand.value, t.offset_bytes, swizzle=SWIZZLE_LINE_BYTES) for t in walk.tiles}
        self.rings = tuple(Ring(t.key, walk.slots(t), (self.slots[t.key].name,)) for t in walk.tiles)
        self.stages = {r.name: Buffer(self.fresh(f"{r.name}_stage"), r.dtype, r.elements, "shared", "", r.name, r.offset_bytes,
                                      swizzle=SWIZZLE_LINE_BYTES) for r in walk.staged}
        self.lead = number(0)
        # Biases that rings bring, by their reads.
        self.biases = {bias.read: (bias, tile) for bias, tile in zip(walk.form.biases, walk.biases, strict=False)}

    @contextlib.contextmanager
    def taking(self, form: OnlineForm) -> Iterator[None]:
        """Inside, elements are those of this form."""
        kept, self.form = self.form, form
        yield
        self.form = kept

    def is_on_chip(self, e: Read) -> bool:
        """Whether a ring brings the element."""
        return e in self.biases

    def produce(self, of: WalkOperand, tile: OperandTile, first_line: Affine, first_inner: Affine) -> str:
        """A filling of an operand's ring: the tile from a line and an element of the inner axis on. The name of its slot."""
        def copied(slot: Affine) -> None:
            self._copy(of, tile, slot, first_line, first_inner)

        return self.fill(tile, copied)

    def fill(self, tile: OperandTile, body: Callable[[Affine], None], threads: int = 1) -> str:
        """A filling of a tile's ring by so many threads. body: writes the slot of that number."""
        slot = self.fresh(f"{tile.key}_slot")
        with self.nested() as produced:
            produced.extents[slot] = self.walk.slots(tile)
            if threads > 1:
                produced.extents["thread"] = threads
            body(axis(slot))
        self.emit(Produce(tile.key, slot, tuple(produced.statements), threads))
        self.frame.extents[slot] = self.walk.slots(tile)
        return slot

    def _copy(self, of: WalkOperand, tile: OperandTile, slot: Affine, first_line: Affine, first_inner: Affine) -> None:
        operand, m = of.operand, map_of_tile(of.sizes, tile)
        if tile.key not in self.maps:
            name, source = self.fresh(f"{operand.value}_map"), self.buffers[operand.value].name
            self.maps[tile.key] = TensorMap(name, source, operand.dtype, m.extents, m.strides, m.box, SWIZZLE_LINE_BYTES, operand.first)
        leads = lead_places(of, self.lead)
        place = {**leads, **digit_places(of.digits, leads, self.extents), operand.line: first_line, INNER: first_inner}
        for panel in range(tile.num_panels):
            coordinates = [place[a] for a in m.axes]
            coordinates[-1] = coordinates[-1] + panel * tile.width
            self.emit(TensorCopy(self.maps[tile.key].name, tuple(map(self.simplified, coordinates)), self.slots[tile.key].name,
                                 self.simplified(slot * tile.elements + panel * tile.panel_lines * tile.width)))
