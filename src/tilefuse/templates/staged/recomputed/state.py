"""The state of a walk between several products as its parts write it: one ring for the rows' operands, one for those of a turn."""
from __future__ import annotations

from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import Affine, number, substitute
from tilefuse.ir.scalar import Read
from tilefuse.kernel.ir import Buffer
from tilefuse.kernel.pipeline import Ring
from tilefuse.kernel.tensor_map import TensorCopy, TensorMap
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.online.products import LEAD
from tilefuse.templates.staged.recomputed.plan import KEPT, WALKED, BackPlan, VectorTile
from tilefuse.templates.staged.walked.rings import RingState


class BackState(RingState):
    """The statements of one kernel so far. walk: the whole plan."""

    walk: BackPlan

    def __init__(self, program: TileProgram, walk: BackPlan, device: DeviceSpec) -> None:
        super().__init__(program, walk, walk.staged, device)
        self.vectors = {v.read: Buffer(self.fresh(f"{v.read.value}_slots"), v.dtype, v.elements * walk.choice.slots, "shared", "",
                                       v.read.value, v.offset_bytes) for v in walk.vectors}
        self.kept_ring = Ring(KEPT, walk.choice.kept_slots, tuple(self.slots[t.key].name for t in walk.own))
        self.walked_ring = Ring(WALKED, walk.choice.slots, (*(self.slots[t.key].name for t in walk.walked),
                                                            *(b.name for b in self.vectors.values()),
                                                            *(self.slots[b.tile.key].name for b in walk.biases)))
        self.biases = {b.bias.read: b for b in walk.biases}
        self.vector_maps: dict[Read, TensorMap] = {}

    def is_on_chip(self, e: Read) -> bool:
        """Whether a ring brings the element."""
        return e in self.vectors or e in self.biases

    def fill_kept(self) -> str:
        """A filling with the operands of the rows: the name of its slot."""
        def body(slot: Affine) -> None:
            for of, tile in zip(self.walk.form.own, self.walk.own, strict=True):
                self.copy_tile(of, tile, slot, self.first_row, number(0))

        return self.filling(self.kept_ring, body)

    def fill_walked(self, first: Affine) -> str:
        """A filling with the walked operands and vectors from an element of the walked axis on: the name of its slot."""
        def body(slot: Affine) -> None:
            for of, tile in zip(self.walk.form.walked, self.walk.walked, strict=True):
                self.copy_tile(of, tile, slot, first, number(0))
            for v in self.walk.vectors:
                self._copy_vector(v, slot, first)
            for b in self.walk.biases:
                b.copy(self, slot, self.first_row, first)

        return self.filling(self.walked_ring, body)

    def _copy_vector(self, v: VectorTile, slot: Affine, first: Affine) -> None:
        if v.read not in self.vector_maps:
            name = self.fresh(f"{v.read.value}_map")
            self.vector_maps[v.read] = TensorMap(name, self.buffers[v.read.value].name, v.dtype, v.extents, v.strides, v.box, 0, v.first)
        coordinates = (first,) if v.lead is None else (substitute(v.lead, {LEAD: self.lead}, self.extents), first)
        self.emit(TensorCopy(self.vector_maps[v.read].name, tuple(map(self.simplified, coordinates)), self.vectors[v.read].name,
                             self.simplified(slot * v.elements)))
