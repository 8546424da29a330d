"""The state of a pipelined product as its parts write it: buffers, the point of the product at hand, its sum in a register."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tilefuse.domain.tile import TileProgram
from tilefuse.emit.subscripts import kernel_dtype
from tilefuse.ir.affine import Affine, linearise
from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Bound, Call, Read
from tilefuse.kernel.ir import Buffer, KExpr, Load
from tilefuse.kernel.tensor_map import TensorMap
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.graph_values import GraphResolver, GraphStatements
from tilefuse.templates.staged.pipelined.plan import STAGES, SWIZZLE, OperandTile, ProductPlan, StagedResult


class ProductState(GraphStatements):
    """The statements of one kernel so far. `env` gives the product's axes at the current point; `sum`: its element there."""

    def __init__(self, program: TileProgram, plan: ProductPlan, device: DeviceSpec) -> None:
        super().__init__(program, program.graph, device)
        self.plan, self.form = plan, plan.form
        self.add_boundary()
        self.slots = {tile.operand.line: self._slots(tile) for tile in (plan.left, plan.right)}
        self.stages = {r.name: self._stages(r) for r in plan.staged}
        self.maps: dict[str, TensorMap] = {}
        self.sum: KExpr | None = None
        # Boundary values and offsets that elements have loaded so far, in order.
        self.loads: dict[tuple[str, Affine], None] = {}
        self.here = _Here(self)

    def _slots(self, tile: OperandTile) -> Buffer:
        operand = tile.operand
        return Buffer(self.fresh(f"{operand.value}_slots"), operand.dtype, tile.elements * self.plan.choice.slots, "shared", "",
                      operand.value, tile.offset_bytes, swizzle=SWIZZLE)

    def _stages(self, r: StagedResult) -> Buffer:
        count = STAGES * self.plan.choice.warpgroups * r.stage_elements
        return Buffer(self.fresh(f"{r.name}_stages"), r.dtype, count, "shared", "", r.name, r.offset_bytes, swizzle=SWIZZLE)

    @contextlib.contextmanager
    def at(self, **point: Affine) -> Iterator[None]:
        """Inside, axes are at these places."""
        kept = dict(self.env)
        self.env.update(point)
        yield
        self.env = kept

    def beyond(self, place: Affine, extent: int) -> tuple[Bound, ...]:
        """The bound under which a place lies within `extent`; none where it always does."""
        bound = Bound(self.simplified(place), 0, extent)
        return () if self.always(bound) else (bound,)

    def element(self, name: str) -> KExpr:
        """The element of a result at the current point, in its own type."""
        if name == self.form.product.name:
            return self.here.product()
        own = {a: self.index(e) for a, e in self.form.points[name].items()}
        return self.here.value(name, tuple(own[a] for a in self.graph.node_by_name[name].axes))

    def result_offset(self, name: str) -> Affine:
        """Its offset in memory. Units: elements."""
        node = self.graph.node_by_name[name]
        point = self.form.points[name]
        at = [self.env[a] for a in self.form.extents] if node is self.form.product else [self.index(point[a]) for a in node.axes]
        return self.simplified(linearise(tuple(at), self.strides(name)))


class _Here(GraphResolver):
    """The graph's expressions at the writer's current point: inner maps are computed where they are read, each element once."""

    writer: ProductState

    def index(self, e: Affine) -> Affine:
        return self.writer.index(e)

    def read(self, e: Read, guarded: bool) -> KExpr:
        w = self.writer
        if e.value == w.form.product.name:
            return self.product()
        at = tuple(self.index(i) for i in e.index)
        if e.value in w.graph.node_by_name:
            return self.value(e.value, at, guarded)
        buffer = w.buffers[e.value]
        offset = w.simplified(linearise(at, w.strides(e.value)))
        held = w.loaded((e.value, offset))
        if held is not None:
            return held
        made = Load(buffer.name, buffer.dtype, offset)
        if guarded:
            return made
        w.loads[e.value, offset] = None
        held = w.register(made, buffer.dtype, e.value)
        w.hold((e.value, offset), held)
        return held

    def offset(self, e: Read) -> Affine:
        w = self.writer
        return w.simplified(linearise(tuple(self.index(i) for i in e.index), w.strides(e.value)))

    def value(self, name: str, at: tuple[Affine, ...], guarded: bool = False) -> KExpr:
        """An inner map's element at subscripts over kernel names."""
        w = self.writer
        node = w.graph.node_by_name[name]
        at = tuple(w.simplified(a) for a in at)
        held = w.loaded((name, *at))
        if held is not None:
            return held
        assert node.body is not None
        with w.at(**dict(zip(node.axes, at, strict=True))):
            made = _as(self.expression(node.body, guarded), node.type.dtype)
        if guarded:
            return made
        held = w.register(made, node.type.dtype, name)
        w.hold((name, *at), held)
        return held

    def product(self) -> KExpr:
        """The product's element with its bias, rounded as the library rounds it."""
        w, contraction = self.writer, self.writer.form.contraction
        held = w.loaded((w.form.product.name,))
        if held is not None:
            return held
        assert w.sum is not None, "a point of the product"
        made = w.sum
        if contraction.bias:
            bias = self.read(Read(contraction.bias, contraction.bias_index), False)
            made = Call("add", (made, _as(bias, kernel_dtype(made))))
        held = w.register(_as(made, w.form.product.type.dtype), w.form.product.type.dtype, w.form.product.name)
        w.hold((w.form.product.name,), held)
        return held


def _as(e: KExpr, dtype: DType) -> KExpr:
    return e if kernel_dtype(e) == dtype else Call(dtype.name, (e,))
