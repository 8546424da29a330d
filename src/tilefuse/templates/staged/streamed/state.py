"""The state of a streamed product as its parts write it: buffers, the row and the column at hand, the products' sums there."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from tilefuse.domain.contraction import COLUMN, ROW
from tilefuse.domain.tile import TileProgram
from tilefuse.emit.subscripts import kernel_dtype
from tilefuse.emit.vectors import vector_parts
from tilefuse.ir.affine import Affine, axis, bounds, linearise, number
from tilefuse.ir.dtype import F32, DType
from tilefuse.ir.scalar import Bound, Call, Expr, Guard, Read
from tilefuse.kernel.ir import Buffer, Declare, KExpr, Load, Reg, VectorLoad
from tilefuse.target.capabilities import WARP
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.graph_values import GraphResolver, GraphStatements
from tilefuse.templates.staged.streamed.form import Stream
from tilefuse.templates.staged.streamed.plan import StreamPlan

# A boundary value and the offset of an element of it, as statements that loaded it record them.
Place = tuple[str, Affine]


class StreamState(GraphStatements):
    """The statements of one kernel so far. `row` is the left operand's row at the current point, `sums` the products' sums there."""

    def __init__(self, program: TileProgram, plan: StreamPlan, device: DeviceSpec) -> None:
        super().__init__(program, program.graph, device)
        self.plan, self.form = plan, plan.form
        self.add_boundary()
        self.results: dict[str, Buffer] = {}
        self.partials: dict[str, list[Buffer]] = {}
        place = self._reductions()
        self.left = self._shared("rows", self.form.left_dtype, plan.held_rows * plan.row_elements, place)
        self.rings = self._each_stream("weights", lambda s: s.dtype, lambda s: plan.ring_bytes(s), place + plan.left_bytes)
        self.warp_sums = self._each_stream("warp_sums", lambda s: F32, lambda s: plan.warp_sum_bytes, place)
        place += plan.warp_sum_bytes * len(self.form.streams)
        self.block_sums = self._each_stream("block_sums", lambda s: F32, lambda s: plan.block_sum_bytes, place)
        self.products = frozenset(s.product.name for s in self.form.streams)
        self.row = number(0)
        # The products' axes at the element at hand: maps between may have axes of the same names.
        self.place: dict[str, Affine] = {}
        self.sums: dict[tuple[str, int], KExpr] = {}
        # Boundary values and offsets that elements have loaded so far, in order.
        self.loads: dict[Place, None] = {}
        self.here = _Here(self)

    def _shared(self, stem: str, dtype: DType, count: int, place: int) -> Buffer:
        return Buffer(self.fresh(stem), dtype, count, "shared", "", "", place)

    def _each_stream(self, stem: str, dtype: Callable[[Stream], DType], size: Callable[[Stream], int],
                     place: int) -> dict[tuple[str, int], Buffer]:
        buffers = {}
        for s in self.form.streams:
            buffers[s.key] = self._shared(f"{s.product.name}_{stem}", dtype(s), size(s) // dtype(s).itemsize, place)
            place += size(s)
        return buffers

    def _reductions(self) -> int:
        place, plan = 0, self.plan
        for node in plan.reductions:
            self.results[node.name] = self._shared(node.name, node.type.dtype, self.form.rows, place)
            place += plan.result_bytes(node)
            self.partials[node.name] = []
            for dtype in plan.parts(node):
                buffer = self._shared(f"{node.name}_parts", dtype, self.form.rows * plan.team // WARP, place)
                self.partials[node.name].append(buffer)
                place += plan.partial_bytes(node)
        return place

    @property
    def shared_buffers(self) -> tuple[Buffer, ...]:
        """Every buffer in shared memory that holds something."""
        listed = [*self.results.values(), *(b for parts in self.partials.values() for b in parts), self.left]
        for by_product in (self.rings, self.warp_sums, self.block_sums):
            listed += by_product.values()
        return tuple(b for b in listed if b.num_elements)

    # -- points ----------------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def at(self, **point: Affine) -> Iterator[None]:
        """Inside, axes are at these places."""
        outside = dict(self.env)
        self.env.update(point)
        yield
        self.env = outside

    def beyond(self, place: Affine, extent: int) -> tuple[Bound, ...]:
        """The bound under which a place lies within `extent`; none where it always does."""
        bound = Bound(self.simplified(place), 0, extent)
        return () if self.always(bound) else (bound,)

    def at_row(self, e: Affine, row: Affine) -> Affine:
        """An index expression over the lead axes and ROW at a row of the left operand."""
        with self.at(**{ROW: row}):
            return self.index(e)

    def value(self, name: str, index: tuple[Affine, ...]) -> KExpr:
        """The element of a value at subscripts over kernel names."""
        return self.here.read(Read(name, index), False, resolved=True)

    def element(self, name: str) -> KExpr:
        """The element of a result at the current row and column."""
        point = self.form.points[name]
        node = self.graph.node_by_name[name]
        return self.here.product(name, 0) if name in self.products else self.value(name, tuple(self.index(point[a]) for a in node.axes))

    def result_offset(self, name: str) -> Affine:
        """Its offset in memory. Units: elements."""
        point = self.form.points[name]
        axes = self.graph.node_by_name[name].axes
        at = [self.place[a] for a in self.form.extents] if name in self.products else [self.index(point[a]) for a in axes]
        return self.simplified(linearise(tuple(at), self.strides(name)))

    # -- neighbours ------------------------------------------------------------------------------------------------------------

    def load_neighbours(self, evaluate: Callable[[Affine], object], count: int) -> None:
        """Loads boundary values that `evaluate` reads next to each other for the numbers 0 .. count - 1, by few accesses."""
        read: list[tuple[Place, ...]] = []
        for n in range(count):
            self.loads.clear()
            with self.nested():
                evaluate(number(n))
            read.append(tuple(self.loads))
        if len({len(places) for places in read}) > 1:
            return
        for places in zip(*read, strict=True):
            self._load_together(places)

    def _load_together(self, places: Sequence[Place]) -> None:
        """The elements of one read, where they are neighbours in memory."""
        value, first = places[0]
        buffer, lane = self.buffers[value], self.fresh("v")
        together = all(v == value and o - first == number(n) for n, (v, o) in enumerate(places))
        parts = vector_parts(first + axis(lane), lane, len(places), buffer.dtype)
        if not together or len(parts) == len(places):
            return
        array = self.fresh(f"{value}_neighbours")
        self.emit(Declare(array, buffer.dtype, len(places)))
        for start, width in parts:
            self.emit(VectorLoad(array, number(start), buffer.name, self.simplified(first + start), width))
        for n, place in enumerate(places):
            self.hold(place, Reg(array, buffer.dtype, number(n)))


class _Here(GraphResolver):
    """The graph's expressions at the writer's current point: inner maps are computed where they are read, each element once."""

    writer: StreamState

    def index(self, e: Affine) -> Affine:
        return self.writer.index(e)

    def expression(self, e: Expr, guarded: bool = False) -> KExpr:
        if isinstance(e, Guard):
            spans = [(bounds(self.index(b.index), self.writer.extents), b) for b in e.bounds]
            if any(s is not None and (s[1] < b.low or s[0] >= b.high) for s, b in spans):
                return self.expression(e.otherwise, guarded)
        return super().expression(e, guarded)

    def read(self, e: Read, guarded: bool, resolved: bool = False) -> KExpr:
        w = self.writer
        at = e.index if resolved else tuple(self.index(i) for i in e.index)
        if e.value in w.products:
            # Slices of a product begin a number of columns after the element at hand.
            return self.product(e.value, w.simplified(at[-1] - w.place[COLUMN]).const)
        node = w.graph.node_by_name.get(e.value)
        if node is not None and node.category == "reduce":
            result = w.results[e.value]
            return Load(result.name, result.dtype, w.row)
        if node is not None:
            return self._map(e.value, at, guarded)
        buffer = w.buffers[e.value]
        offset = w.simplified(linearise(at, w.strides(e.value)))
        element = w.loaded((e.value, offset))
        if element is not None:
            return element
        expression = Load(buffer.name, buffer.dtype, offset)
        if guarded:
            return expression
        w.loads[e.value, offset] = None
        element = w.register(expression, buffer.dtype, e.value)
        w.hold((e.value, offset), element)
        return element

    def offset(self, e: Read) -> Affine:
        w = self.writer
        return w.simplified(linearise(tuple(self.index(i) for i in e.index), w.strides(e.value)))

    def _map(self, name: str, at: tuple[Affine, ...], guarded: bool) -> KExpr:
        w = self.writer
        node = w.graph.node_by_name[name]
        at = tuple(w.simplified(a) for a in at)
        register = w.loaded((name, w.row, *at))
        if register is not None:
            return register
        assert node.body is not None
        with w.at(**dict(zip(node.axes, at, strict=True))):
            expression = converted(self.expression(node.body, guarded), node.type.dtype)
        if guarded:
            return expression
        register = w.register(expression, node.type.dtype, name)
        w.hold((name, w.row, *at), register)
        return register

    def product(self, name: str, column: int) -> KExpr:
        """An element of a product, or of the slice that begins at a column, with its bias, rounded as the library rounds it."""
        w = self.writer
        stream = next(s for s in w.form.streams if s.key == (name, column))
        register = w.loaded(stream.key)
        if register is not None:
            return register
        expression, contraction, dtype = w.sums[stream.key], stream.contraction, stream.product.type.dtype
        if contraction.bias:
            with w.at(**{**w.place, COLUMN: w.place[COLUMN] + column}):
                bias = self.read(Read(contraction.bias, contraction.bias_index), False)
            expression = Call("add", (expression, converted(bias, kernel_dtype(expression))))
        register = w.register(converted(expression, dtype), dtype, name)
        w.hold(stream.key, register)
        return register


def converted(e: KExpr, dtype: DType) -> KExpr:
    """An expression in a type; itself where it has that type."""
    return e if kernel_dtype(e) == dtype else Call(dtype.name, (e,))
