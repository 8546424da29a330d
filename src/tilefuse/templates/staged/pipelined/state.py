"""The state of a pipelined product as its parts write it: buffers, the point of the product at hand, its sum in a register."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilefuse.domain.contraction import COLUMN, sum_dtype
from tilefuse.domain.tile import TileProgram
from tilefuse.emit.subscripts import kernel_dtype
from tilefuse.ir.affine import Affine, bounds, linearise, number, substitute
from tilefuse.ir.dtype import F32, I32, DType
from tilefuse.ir.graph import Graph
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Bound, Call, Expr, Lookup, Read
from tilefuse.kernel.ir import Buffer, KExpr, Load, Reg
from tilefuse.kernel.pipeline import SWIZZLE_LINE_BYTES, WARPGROUP, WARPGROUP_ROWS
from tilefuse.kernel.tensor_map import TensorMap
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.graph_values import GraphResolver, GraphStatements
from tilefuse.templates.staged.pipelined.exchanges import Exchange
from tilefuse.templates.staged.pipelined.grouped.order import GroupedTile
from tilefuse.templates.staged.pipelined.grouped.tables import table_buffers
from tilefuse.templates.staged.pipelined.plan import LOW_TILES, LowParts, OperandTile, ProductPlan
from tilefuse.templates.staged.pipelined.stages import StagedTile


class ProductState(GraphStatements):
    """The statements of one kernel so far. `env` gives the product's axes at the current point.

    sum       where the element of each product's sum lies there, in the register arrays `totals`
    stored    registers with the one element of narrow tensors that the operand's element at hand reads
    source    the value whose elements the first array holds in place of the sums; "" for the sums
    by_row    register arrays of values that have one element a row, an element for each row of the thread
    row_slot  number of the current row among those
    turn      number of the tile among those of the block
    first_of_step  the first row of the product of which the tile at hand takes every `row_step`-th; shift: inner elements before the first
              one in its slots; both 0 where rows follow each other
    group_tile  the tile at hand; row_tiles: tiles of rows that the offsets at hand have; both None without groups
    column_tile  number of the tile at hand among those of a row of tiles
    """

    def __init__(self, program: TileProgram, plan: ProductPlan, device: DeviceSpec, graph: Graph | None = None) -> None:
        """graph: the values that elements are computed from, where they are not those of the plan's form."""
        super().__init__(program, graph or plan.form.graph, device)
        self.plan, self.form = plan, plan.form
        self.add_boundary()
        self.slots = self._all_slots()
        self.lows = {low.tile.key: self._lows(low) for low in plan.lows}
        self.stages = {t.name: self._stages(t) for t in plan.beside.tiles}
        self.maps: dict[str, TensorMap] = {}
        self.totals: tuple[Reg, ...] = ()
        self.stored: dict[str, KExpr] = {}
        self.sum: Affine | None = None
        self.source = ""
        self.by_row: dict[str, Reg] = {}
        self.row_slot: Affine | None = None
        self.turn = number(0)
        self.first_of_step, self.shift = number(0), number(0)
        self.group_tile: GroupedTile | None = None
        self.row_tiles: Affine | None = None
        self.column_tile = number(0)
        self.tables = table_buffers(self, plan.tables) if plan.tables is not None else None
        self.exchanged = [self._exchanged(e) for e in plan.exchanges]
        # Operands whose first tiles come before the kernel ahead has ended.
        self.ahead: frozenset[str] = frozenset()
        self.met = self._meetings()
        self.received = self._receiving()
        self.workspaces, self.counter = self._workspaces()
        # Boundary values and offsets that elements have loaded so far, in order.
        self.loads: dict[tuple[str, Affine], None] = {}
        # The same for elements at subscripts that data give, with these and their strides.
        self.lookups: dict[tuple[str, Affine, tuple[tuple[KExpr, int], ...]], None] = {}
        # Extents of the axes over which the expression at hand is written.
        self.reach: Mapping[str, int] = self.form.operand_extents
        self.here = _Here(self)

    def _all_slots(self) -> dict[str, Buffer]:
        """The slots of each operand, by key; right operands that lie side by side have one buffer."""
        left, *rights = self.plan.operands
        if self.plan.together == 1:
            return {tile.key: self._slots(tile) for tile in self.plan.operands}
        name = self.fresh("_".join(t.operand.value for t in rights) + "_slots")
        joint = Buffer(name, rights[0].operand.dtype, rights[0].pitch * self.plan.choice.slots, "shared", "", "", rights[0].offset_bytes,
                       swizzle=SWIZZLE_LINE_BYTES)
        return {left.key: self._slots(left)} | dict.fromkeys((t.key for t in rights), joint)

    def _slots(self, tile: OperandTile) -> Buffer:
        operand = tile.operand
        return Buffer(self.fresh(f"{operand.value}_slots"), operand.dtype, tile.elements * self.plan.choice.slots, "shared", "",
                      operand.value, tile.offset_bytes, swizzle=SWIZZLE_LINE_BYTES)

    def _lows(self, low: LowParts) -> Buffer:
        operand = low.tile.operand
        return Buffer(self.fresh(f"{operand.value}_low"), operand.dtype, LOW_TILES * low.tile.elements, "shared", "", operand.value,
                      low.offset_bytes, swizzle=SWIZZLE_LINE_BYTES)

    def _stages(self, r: StagedTile) -> Buffer:
        count = r.count * self.plan.choice.warpgroups * r.stage_elements
        return Buffer(self.fresh(f"{r.name}_stages"), r.dtype, count, "shared", "", r.name, r.offset_bytes, swizzle=r.swizzle)

    def _exchanged(self, e: Exchange) -> dict[str, Buffer]:
        """The slots of an exchange, by part."""
        if e.in_memory:
            return {p.name: Buffer(self.fresh(f"{p.name}_blocks"), p.sent, e.part_elements, "global", "workspace") for p in e.parts}
        return {p.name: Buffer(self.fresh(f"{p.name}_blocks"), p.sent, e.part_elements, "shared", "", "",
                               e.part_offset_bytes(p)) for p in e.parts}

    def _meetings(self) -> Buffer | None:
        """The counters at which the blocks of scattered clusters meet."""
        count = self.plan.num_meetings * self.plan.choice.num_clusters
        return Buffer(self.fresh("met"), I32, count, "global", "counter") if count else None

    def _receiving(self) -> tuple[Buffer, ...]:
        """Shared memory for the sums that blocks of a cluster receive, a buffer for each product."""
        received, products = self.plan.received, self.form.products
        if received is None:
            return ()
        each = received.elements // len(products) * received.copies
        return tuple(Buffer(self.fresh(f"{p.node.name}_received"), sum_dtype(self.form.left.dtype), each, "shared", "", "",
                            received.offset_bytes + n * each * F32.itemsize) for n, p in enumerate(products))

    def _workspaces(self) -> tuple[tuple[Buffer, ...], Buffer | None]:
        """Global memory for the sums of parts, a buffer for each product, and a counter for each tile whose parts meet there."""
        plan, choice = self.plan, self.plan.choice
        if choice.memory_parts == 1:
            return (), None
        each = plan.workspace_elements // len(self.form.products)
        spaces = tuple(Buffer(self.fresh(f"{p.node.name}_parts"), sum_dtype(self.form.left.dtype), each, "global", "workspace")
                       for p in self.form.products)
        return spaces, Buffer(self.fresh("arrived"), I32, plan.num_tiles * choice.finishers, "global", "counter")

    def first_sum(self) -> Reg:
        """The register of the first product's sum at the current point, or of the value in its place."""
        return self.sum_of(0)

    def sum_of(self, product: int) -> Reg:
        """The register of a product's sum at the current point. Those of one instruction lie side by side for every 64 rows."""
        assert self.sum is not None, "a point of the products"
        total, count, index = self.totals[product], self.plan.together, self.sum
        if count > 1:
            each = WARPGROUP_ROWS * self.plan.choice.columns // WARPGROUP
            index = self.simplified(index // each * (count * each) + product * each + index % each)
        return Reg(total.name, total.dtype, index)

    def known(self, name: str) -> KExpr | None:
        """A value of the current row that is computed once a row, or the value whose elements replace the sums; None for others."""
        if name in self.by_row and self.row_slot is not None:
            return replace(self.by_row[name], index=self.row_slot)
        if name == self.source and self.sum is not None:
            return _as(self.first_sum(), self.graph.type_of(name).dtype)
        return None

    def forget_rows(self) -> None:
        """At the end of a tile: nothing is known of rows."""
        self.by_row, self.row_slot, self.source, self.sum = {}, None, "", None

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

    def product_row(self, row: Affine) -> Affine:
        """The row of the product that a row of the tiles is."""
        return row * self.form.row_step + self.first_of_step

    def place(self, row: Affine, column: Affine) -> dict[str, Affine]:
        """The products' axes at a row and a column of the tiles."""
        return self.form.place(self.product_row(row), column)

    def beyond_rows(self, row: Affine) -> tuple[Bound, ...]:
        """The bound under which a row of the tile is one of the results', or of the tile's group."""
        if self.group_tile is None:
            return self.beyond(self.product_row(row), self.form.rows)
        return (Bound(self.simplified(self.group_tile.end - row), 1, self.form.rows + 1),)

    def element(self, name: str) -> KExpr:
        """The element of a result, or of a value that the kernel keeps, at the current point, in its own type."""
        if name in self.here.products:
            return self.here.product(name, 0)
        point = self.form.points.get(name)
        place = self.form.reduced.places[name] if point is None else tuple(point[a] for a in self.graph.node_by_name[name].axes)
        return self.here.value(name, tuple(self.index(e) for e in place))

    def expression(self, e: Expr, inline: bool = False) -> KExpr:
        """An expression of the graph at the current point. inline: inner maps stand in it, and take no registers of their own."""
        return self.here.expression(e, inline)

    def result_offset(self, name: str) -> Affine:
        """Its offset in memory. Units: elements."""
        node = self.graph.node_by_name[name]
        point = self.form.points[name]
        at = [self.index(point[a]) for a in node.axes] if point else [self.env[a] for a in self.form.extents]
        return self.simplified(linearise(tuple(at), self.strides(name)))


class _Here(GraphResolver):
    """The graph's expressions at the writer's current point: inner maps are computed where they are read, each element once."""

    writer: ProductState

    def __init__(self, writer: ProductState) -> None:
        super().__init__(writer)
        self.products = frozenset(n.name for n in writer.form.nodes)

    def index(self, e: Affine) -> Affine:
        return self.writer.index(e)

    def never(self, bound: Bound) -> bool:
        return self.writer.never(bound)

    def read(self, e: Read, guarded: bool) -> KExpr:
        w = self.writer
        if e.value in w.stored:
            return w.stored[e.value]
        at = tuple(self.index(i) for i in e.index)
        if e.value in self.products:
            return self.product(e.value, self._first(at[-1]))
        if e.value in w.graph.node_by_name:
            return self.value(e.value, at, guarded)
        buffer = w.buffers[e.value]
        offset = w.simplified(linearise(at, w.strides(e.value)))
        held = w.loaded((e.value, offset))
        if held is not None:
            return held
        made = Load(buffer.name, buffer.dtype, offset)
        if guarded and not self._is_of_every_column(e.value, at):
            return made
        w.loads[e.value, offset] = None
        held = w.register(made, buffer.dtype, e.value)
        w.hold((e.value, offset), held)
        return held

    def _is_of_every_column(self, value: str, at: tuple[Affine, ...]) -> bool:
        """Whether a boundary value's element exists and is the same for all columns of the row at hand, as its label: it is loaded once."""
        w = self.writer
        if not w.form.reduced.stages or COLUMN not in w.env or not all(i.axes().isdisjoint(w.env[COLUMN].axes()) for i in at):
            return False
        return all(w.always(Bound(w.simplified(i), 0, extent)) for i, extent in zip(at, w.graph.type_of(value).shape, strict=True))

    def _lookup(self, e: Lookup, guarded: bool) -> KExpr:
        """As of the base; an element is loaded once."""
        w = self.writer
        offset, dynamic = self.looked_up(e, guarded)
        buffer, key = w.buffers[e.value], (e.value, offset, dynamic)
        held = w.loaded(key)
        if held is not None:
            return held
        made = Load(buffer.name, buffer.dtype, offset, dynamic)
        if guarded:
            return made
        w.lookups[key] = None
        held = w.register(made, buffer.dtype, e.value)
        w.hold(key, held)
        return held

    def is_inside(self, e: Affine, extent: int) -> bool:
        """As of the base. Tiles hang over the products' ends, but nothing is read there."""
        reached = bounds(e, self.writer.reach)
        return reached is not None and reached[0] >= 0 and reached[1] < extent or super().is_inside(e, extent)

    def offset(self, e: Read) -> Affine:
        w = self.writer
        return w.simplified(linearise(tuple(self.index(i) for i in e.index), w.strides(e.value)))

    def value(self, name: str, at: tuple[Affine, ...], guarded: bool = False) -> KExpr:
        """An inner value's element at subscripts over kernel names."""
        w = self.writer
        known = w.known(name)
        if known is not None:
            return known
        node = w.graph.node_by_name[name]
        at = tuple(w.simplified(a) for a in at)
        held = w.loaded((name, *at))
        if held is not None:
            return held
        assert node.body is not None
        reach, w.reach = w.reach, node.extents
        with w.at(**dict(zip(node.axes, at, strict=True))):
            made = _as(self.expression(node.body, guarded), node.type.dtype)
        w.reach = reach
        if guarded:
            return made
        held = w.register(made, node.type.dtype, name)
        w.hold((name, *at), held)
        return held

    def call(self, e: Call[Expr], guarded: bool) -> KExpr:
        """A call; elements that the sums' registers hold in f32 are not rounded and widened again."""
        w = self.writer
        if e.fn == F32.name and isinstance(e.args[0], Read) and e.args[0].value == w.source and w.sum is not None:
            return w.first_sum()
        return super().call(e, guarded)

    def body(self, name: str) -> KExpr:
        """The element that a reduction combines at the current point."""
        w = self.writer
        node, point = w.graph.node_by_name[name], w.form.reduction_points[name]
        assert node.body is not None
        reach, w.reach = w.reach, node.extents
        with w.at(**{a: w.simplified(w.index(e)) for a, e in point.items()}):
            element = self.expression(node.body, False)
        w.reach = reach
        return w.register(element, dtype_of(node.body, lambda v: w.graph.type_of(v).dtype), f"{name}_x")

    def _first(self, column: Affine) -> int:
        """First column of the slice of a node's columns that a subscript lies in. Results read each slice at the same place of it."""
        w = self.writer
        here = number(0) if w.form.windows[COLUMN] == 1 else w.env[COLUMN]
        distance = column - here
        origin = substitute(distance, {a: number(0) for a in distance.axes()}, w.extents)
        assert origin.is_const
        return origin.const

    def product(self, name: str, first: int) -> KExpr:
        """The element at hand of a node's slice with its bias, rounded as the library rounds it."""
        w = self.writer
        known = w.known(name)
        if known is not None:
            return known
        held = w.loaded((name, first))
        if held is not None:
            return held
        dtype = w.graph.type_of(name).dtype
        held = w.register(_as(self.unrounded(name, first), dtype), dtype, name)
        w.hold((name, first), held)
        return held

    def unrounded(self, name: str, first: int) -> KExpr:
        """The element at hand of a node's slice with its bias, in the type of its sum."""
        w = self.writer
        number_of = next(n for n, p in enumerate(w.form.products) if (p.node.name, p.first) == (name, first))
        product = w.form.products[number_of]
        made: KExpr = w.sum_of(number_of)
        if product.contraction.bias:
            with w.at(**{COLUMN: w.env[COLUMN] + first}):
                bias = self.read(Read(product.contraction.bias, product.contraction.bias_index), False)
            made = Call("add", (made, _as(bias, kernel_dtype(made))))
        return made


def _as(e: KExpr, dtype: DType) -> KExpr:
    return e if kernel_dtype(e) == dtype else Call(dtype.name, (e,))
