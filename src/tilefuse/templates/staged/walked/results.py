"""The end of a tile of a pipelined walk: results through shared memory, by tensor stores that go on beside the next tile."""
from __future__ import annotations

from tilefuse.ir.affine import Affine, number
from tilefuse.kernel.ir import Barrier, VectorStore
from tilefuse.kernel.pipeline import SWIZZLE_LINE_BYTES, WARPGROUP, WARPGROUP_ROWS
from tilefuse.kernel.tensor_map import ProxyFence, TensorMap, TensorStore, TensorStoreWait
from tilefuse.templates.staged.online.ends import WalkEnd
from tilefuse.templates.staged.online.fragments import Fragment
from tilefuse.templates.staged.online.products import ROW, WIDTH
from tilefuse.templates.staged.walked.rings import RingState
from tilefuse.templates.staged.walked.stage import StagedResult, lead_places


class TileEnd(WalkEnd):
    """The statements behind the turns of one tile. Results that no tensor map describes leave from registers."""

    w: RingState

    def store(self, group: Affine, scores: Fragment, products: list[Fragment], added: bool = False) -> None:
        """All results of a tile. group: the warpgroup's number; added: as of `emit`."""
        w = self.w
        if w.staged:
            # The stores of the tile before have read the stages.
            w.emit(TensorStoreWait(team=WARPGROUP), Barrier(team=WARPGROUP))
        self.emit(scores, products, added)
        if w.staged:
            w.emit(ProxyFence(), Barrier(team=WARPGROUP))
        for r in w.staged:
            self._store_panels(r, group)

    def store_neighbours(self, name: str, array: str, column: Affine, i: Affine, here: Fragment) -> None:
        """Neighbouring elements of a row: to the result's stage, if it has one."""
        staged = {r.name: r for r in self.w.staged}.get(name)
        if staged is None:
            super().store_neighbours(name, array, column, i, here)
            return
        place = self.w.simplified(staged.place(here.row(i), column))
        self.w.emit(VectorStore(self.w.stages[name].name, place, array, number(0), here.vector))

    def _store_panels(self, r: StagedResult, group: Affine) -> None:
        w = self.w
        if r.name not in w.maps:
            w.maps[r.name] = TensorMap(w.fresh(f"{r.name}_map"), w.buffers[r.name].name, r.dtype, r.extents, r.strides, r.box,
                                       SWIZZLE_LINE_BYTES, r.first)
        at = {**lead_places(w.walk.of.staged_by, w.lead), ROW: w.first_row + group * WARPGROUP_ROWS}
        for panel in range(r.num_panels):
            coordinates = tuple(w.simplified({**at, WIDTH: number(panel * r.width)}[a]) for a in r.axes)
            first = w.simplified(number(panel * r.rows * r.width) + group * (WARPGROUP_ROWS * r.width))
            w.emit(TensorStore(w.maps[r.name].name, coordinates, w.stages[r.name].name, first, team=WARPGROUP))


def settle_stores(w: RingState) -> None:
    """The block's last stores: it must not end before they have read the stages."""
    if w.staged:
        w.emit(TensorStoreWait(team=WARPGROUP))
