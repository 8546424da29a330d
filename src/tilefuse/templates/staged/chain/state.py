"""The state of a chain as its parts write it: the product at hand, whose sums are in the one register array of all products."""
from __future__ import annotations

from dataclasses import replace

from tilefuse.domain.contraction import INNER
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import Affine, number
from tilefuse.kernel.ir import Buffer
from tilefuse.kernel.pipeline import SWIZZLE_LINE_BYTES, Ring
from tilefuse.kernel.tensor_map import TensorCopy, TensorMap
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.chain.plan import LEFT_RING, RIGHT_RING, ChainPlan
from tilefuse.templates.staged.pipelined.plan import OperandTile, ProductPlan, operand_map
from tilefuse.templates.staged.pipelined.stages import Stages
from tilefuse.templates.staged.pipelined.state import ProductState


class ChainState(ProductState):
    """The statements of one kernel so far. `plan` and `form` are those of the product at hand; `rings`: of all operands."""

    def __init__(self, program: TileProgram, chain: ChainPlan, device: DeviceSpec) -> None:
        first = chain.layers[0].plan
        super().__init__(program, replace(first, rights=(), beside=Stages()), device, program.graph)
        self.chain = chain
        self.stages = {r.name: self._stages(r) for r in chain.staged}
        self.rings = [Ring(LEFT_RING, chain.choice.left_slots, (self.slots[chain.left.key].name,))]
        shared: Buffer | None = None
        for layer in chain.layers:
            slots = chain.choice.slots or layer.fillings
            if shared is None or chain.stays:
                shared = Buffer(self.fresh(f"{layer.right.operand.value}_slots" if chain.stays else f"{RIGHT_RING}_slots"),
                                layer.right.operand.dtype, layer.right.elements * slots, "shared", "", layer.right.operand.value,
                                layer.right.offset_bytes, swizzle=SWIZZLE_LINE_BYTES)
                self.rings.append(Ring(layer.ring, slots, (shared.name,)))
            self.slots[layer.right.key] = shared

    def take(self, plan: ProductPlan) -> None:
        """From here on, elements are those of this product and of maps on its sums."""
        self.plan, self.form = plan, plan.form
        self.reach = {**plan.form.extents, INNER: plan.form.inner}
        self.here.products = frozenset(n.name for n in plan.form.nodes)

    def copy(self, tile: OperandTile, slot: Affine, place: dict[str, Affine]) -> None:
        """Starts the tensor copies of a tile into a slot. place: of its first line and inner element; lead axes are those at hand."""
        operand, m = tile.operand, operand_map(self.form, tile)
        if tile.key not in self.maps:
            name, source = self.fresh(f"{operand.value}_map"), self.buffers[operand.value].name
            self.maps[tile.key] = TensorMap(name, source, operand.dtype, m.extents, m.strides, m.box, SWIZZLE_LINE_BYTES, operand.first)
        for panel in range(tile.num_panels):
            coordinates = [place.get(a, self.env.get(a, number(0))) for a in m.axes]
            coordinates[-1] = coordinates[-1] + panel * tile.width
            self.emit(TensorCopy(self.maps[tile.key].name, tuple(map(self.simplified, coordinates)), self.slots[tile.key].name,
                                 self.simplified(slot * tile.elements + panel * tile.panel_lines * tile.width)))
