"""Left operands of swapped products that consumers compute in registers, from the narrow elements of a slot.

    slot, 64 lines of i8      ->  registers of a warpgroup, 64 lines x 64 inner elements of f16  ->  left operand of a warpgroup product
      part 0 | part 1 | ..        array 0       array 1       array 0 ..                            while the next part is computed

Beside few lines (`ProductPlan.in_pieces`) four lanes share a part of a line; one load brings 16 neighbours:

    lane 0      0 1 .. 15       positions    0 1     8 9     16 17    ..     56 57        two in each group of 8
    lane 1     16 17 .. 31                   2 3    10 11    18 19    ..     58 59

Single warps take two such parts at once. A lane has 32 neighbours of them, and its two loads are in the order of lanes in which eight lanes
meet in no bank of shared memory (`WarpgroupProduct.in_pieces`).
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from tilefuse.domain.contraction import INNER
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.dtype import DTYPES, F32, DType
from tilefuse.ir.graph import Graph
from tilefuse.ir.scalar import Bound, Call, Expr, Read, const
from tilefuse.kernel.ir import Assign, Declare, KExpr, Load, Reg, Stmt, VectorLoad
from tilefuse.kernel.pipeline import PIECES, SWIZZLE_LINE_BYTES, WARPGROUP, WARPGROUP_ROWS, WarpgroupProduct, WarpgroupWait, panel_width
from tilefuse.target.capabilities import MMA_COLUMNS, MMA_ROWS, WARP
from tilefuse.target.warpgroup import HALF_ROWS, LANE_ELEMENTS, NEIGHBOURS
from tilefuse.templates.staged.pipelined.plan import EXPANDED_ARRAYS, LANE_NEIGHBOURS, OperandTile
from tilefuse.templates.staged.pipelined.state import ProductState


@dataclass(frozen=True)
class _Line:
    """One of a thread's lines of an operand: in the block's tile, and of the whole operand; its first register among those of 8 inner
    elements."""

    of_tile: Affine
    of_operand: Affine
    register: int


@dataclass(frozen=True)
class _SharedValue:
    """A value that all neighbours of a lane's piece share, in a register for the next slot. offset, bounds: over the step's name."""

    value: str
    offset: Affine
    bounds: tuple[Bound, ...]
    ahead: Reg


class ExpandedProducts:
    """The products of one tile's main loop whose left operands are computed. group: the warpgroup's number; first_row: of the tile."""

    def __init__(self, w: ProductState, group: Affine, first_row: Affine) -> None:
        self.w, self.plan = w, w.plan
        self.tiles = [t for t in w.plan.rights if t.expanded is not None]
        self.step, self.shared = "", list[_SharedValue]()
        if not self.tiles:
            return
        # As many inner elements as a panel of the right operand has, so that a part of that begins where a panel does.
        self.pieces = PIECES if w.plan.in_pieces and w.plan.choice.by_warps else 1
        self.part = self.pieces * panel_width(SWIZZLE_LINE_BYTES, w.plan.left.operand.dtype.itemsize)
        self.parts = w.plan.choice.depth // self.part
        rows, thread = w.plan.choice.warpgroup_rows, axis("thread")
        self.pair = w.let("pair", thread % 4, 4)
        own = w.let("own_line", thread % WARPGROUP // WARP * MMA_ROWS + thread % WARP // 4, WARPGROUP_ROWS - HALF_ROWS)
        lines = [(a, half, group * rows + a * WARPGROUP_ROWS + own + half * HALF_ROWS) for a in range(rows // WARPGROUP_ROWS)
                 for half in range(LANE_ELEMENTS // NEIGHBOURS)]
        self.lines = [_Line(w.simplified(line), w.simplified(first_row + line), a * self.part // MMA_COLUMNS * LANE_ELEMENTS
                            + half * NEIGHBOURS) for a, half, line in lines]
        self.group, self.rows = group, rows
        self.arrays = self._declared()
        for tile in self.tiles:
            self._hold_values_of_lines(tile)

    def _declared(self) -> list[Reg]:
        """Register arrays that parts of operands use in turn.

        One array where sums of parts meet: there the assembler puts products one after the other once another array is written beside them
        (its remark C7513, CUDA 13.0).
        """
        w = self.w
        uses = len(self.plan.rights) * self.parts
        dtype = self.plan.left.operand.dtype
        in_turn = uses % EXPANDED_ARRAYS == 0 and self.plan.choice.split == 1 and not self.plan.choice.by_warps
        arrays = [Reg(w.fresh("expanded"), dtype) for _ in range(EXPANDED_ARRAYS if in_turn else 1)]
        w.emit(*(Declare(a.name, dtype, self.rows * self.part // WARPGROUP) for a in arrays))
        return arrays

    def begin(self, first_step: Affine) -> None:
        """Before the main loop: loads the values of the first slot that a lane's neighbours share, as scales of groups."""
        w = self.w
        if not self.plan.in_pieces:
            return
        self.step = w.fresh("later_step")
        w.frame.extents[self.step] = self.plan.fillings
        for (value, offset), bounds in self._values_of_pieces((first_step + axis(self.step)) * self.plan.choice.depth).items():
            ahead = Reg(w.fresh(f"{value}_ahead"), w.buffers[value].dtype, number(0))
            w.emit(Declare(ahead.name, ahead.dtype, 1))
            self.shared.append(_SharedValue(value, offset, bounds, ahead))
        for shared in self.shared:
            self._load_shared(shared, number(0))

    def fetch(self, step: Affine) -> None:
        """In the main loop, before the wait for a slot: its shared values are those loaded a step ago; loads those of the next slot."""
        w = self.w
        for shared in self.shared:
            current = Reg(w.fresh(f"{shared.value}_held"), shared.ahead.dtype, number(0))
            w.emit(Declare(current.name, current.dtype, 1), Assign(current, shared.ahead))
            w.hold((shared.value, self._at_step(shared.offset, step)), current)
        if self.shared and self.plan.fillings > 1:
            with w.when([Bound(step + 1, 0, self.plan.fillings)]):
                for shared in self.shared:
                    self._load_shared(shared, step + 1)

    def _at_step(self, e: Affine, step: Affine) -> Affine:
        return substitute(e, {self.step: step}, self.w.extents)

    def _load_shared(self, shared: _SharedValue, step: Affine) -> None:
        """Loads a value of a step into the register ahead; zeros beyond its operand's end."""
        w = self.w
        bounds = [b for b in (Bound(self._at_step(b.index, step), b.low, b.high) for b in shared.bounds) if not w.always(b)]
        if bounds:
            w.emit(Assign(shared.ahead, const(0, shared.ahead.dtype)))
        with w.when(bounds):
            w.emit(Assign(shared.ahead, Load(w.buffers[shared.value].name, shared.ahead.dtype, self._at_step(shared.offset, step))))

    def use(self, first_inner: Affine, step: Affine, slot_by_key: Mapping[str, Affine]) -> tuple[Stmt, ...]:
        """The products of a slot: parts of each operand are computed while products of the parts before are in flight."""
        w, uses = self.w, 0
        with w.nested() as inside:
            for part in range(self.parts):
                for total, tile in zip(w.totals, self.plan.rights, strict=True):
                    array = self.arrays[uses % len(self.arrays)]
                    if not self.plan.choice.by_warps:
                        w.emit(WarpgroupWait(len(self.arrays) - 1))
                    if tile.expanded is not None:
                        self._expand(tile, array, slot_by_key[tile.key], part, first_inner)
                    w.emit(self._product(total, tile, array, part, step, slot_by_key))
                    uses += 1
        return tuple(inside.statements)

    def _product(self, total: Reg, tile: OperandTile, array: Reg, part: int, step: Affine,
                 slot_by_key: Mapping[str, Affine]) -> WarpgroupProduct:
        """The product of one part: its left operand is computed, or lies in the slot."""
        w, choice, right = self.w, self.plan.choice, self.plan.left
        inner = self.part
        right_index = slot_by_key[right.key] * right.elements + self._inner_place(right, part)
        term = step if part == 0 else None
        if tile.expanded is not None:
            return WarpgroupProduct(total.name, array.name, number(0), 0, False, w.slots[right.key].name, right_index,
                                    right.panel_lines * right.width, right.operand.inner_is_contiguous, self.rows, choice.columns, inner,
                                    left_registers=True, term=term, by_warps=choice.by_warps,
                                    in_pieces=choice.by_warps and self.plan.in_pieces)
        first = self.group * (self.rows * (tile.width if tile.operand.inner_is_contiguous else tile.depth))
        left_index = slot_by_key[tile.key] * tile.elements + first + self._inner_place(tile, part)
        return WarpgroupProduct(total.name, w.slots[tile.key].name, left_index, tile.panel_lines * tile.width,
                                not tile.operand.inner_is_contiguous, w.slots[right.key].name, right_index,
                                right.panel_lines * right.width, right.operand.inner_is_contiguous, self.rows, choice.columns, inner,
                                term=term)

    def _inner_place(self, tile: OperandTile, part: int) -> int:
        """Elements from the start of a slot to a part of the inner axis."""
        return part * self.part // tile.width * tile.panel_lines * tile.width if tile.operand.inner_is_contiguous \
            else part * self.part * tile.width

    # -- elements ----------------------------------------------------------------------------------------------------------

    def _expand(self, tile: OperandTile, array: Reg, slot: Affine, part: int, first_inner: Affine) -> None:
        """A part of an operand into its register array; zeros beyond the operand's end."""
        w = self.w
        if self.plan.in_pieces:
            self._expand_by_lanes(tile, array, slot, part, first_inner)
            return
        for line in self.lines:
            with w.loop("b", self.part // MMA_COLUMNS, unroll=w.unroll) as b:
                of_slot = part * self.part + b * MMA_COLUMNS + self.pair * NEIGHBOURS
                stored = self._stored(tile, slot, line, of_slot)
                self._neighbours(tile, array, b * LANE_ELEMENTS + line.register, line, w.simplified(first_inner + of_slot), stored)

    def _expand_by_lanes(self, tile: OperandTile, array: Reg, slot: Affine, part: int, first_inner: Affine) -> None:
        """The same where each lane expands neighbours that one load brings."""
        w, groups = self.w, LANE_NEIGHBOURS // NEIGHBOURS
        for piece in range(self.pieces):
            first = self._first_of_piece(part * self.pieces + piece)
            for line in self.lines:
                stored = self._stored(tile, slot, line, first, LANE_NEIGHBOURS)
                for group in range(groups):
                    place, register = group * NEIGHBOURS, (piece * groups + group) * LANE_ELEMENTS + line.register
                    inner = w.simplified(first_inner + first + place)
                    self._neighbours(tile, array, number(register), line, inner, stored[place:place + NEIGHBOURS])

    def _stored(self, tile: OperandTile, slot: Affine, line: _Line, of_slot: Affine, neighbours: int = NEIGHBOURS) -> list[Reg]:
        """The narrow elements that `neighbours` elements of the operand read, in registers, one for each of these."""
        w, dtype = self.w, tile.operand.dtype
        place = of_slot // tile.packing
        index = slot * tile.elements + place // tile.width * (tile.lines * tile.width) + line.of_tile * tile.width + place % tile.width
        raw = w.fresh(f"{tile.operand.value}_stored")
        together = max(neighbours // tile.packing, 1)
        buffer = w.slots[tile.key].name
        if together == 1:
            w.emit(Declare(raw, dtype, 1), Assign(Reg(raw, dtype, number(0)), Load(buffer, dtype, w.simplified(index))))
        else:
            w.emit(Declare(raw, dtype, together), VectorLoad(raw, number(0), buffer, w.simplified(index), together))
        return [Reg(raw, dtype, number(v * together // neighbours)) for v in range(neighbours)]

    def _neighbours(self, tile: OperandTile, array: Reg, register: Affine, line: _Line, inner: Affine, stored: list[Reg]) -> None:
        """Two neighbouring elements along the inner axis."""
        w, operand = self.w, tile.expanded
        assert operand is not None and operand.element is not None
        bounds = (*w.beyond(line.of_operand, operand.lines), *w.beyond(inner + NEIGHBOURS - 1, w.form.inner))
        if _keeps_zero(w.graph, operand.element, tile.operand.value):
            # Tensor copies bring zeros beyond the tensor's end.
            bounds = ()
        places = [Reg(array.name, array.dtype, register + v) for v in range(NEIGHBOURS)]
        if bounds:
            w.emit(*(Assign(place, const(0, array.dtype)) for place in places))
        if w.form.inner % NEIGHBOURS and bounds:
            self._one_by_one(tile, places, line, inner, stored)
            return
        with w.when(bounds):
            # Neighbours in one element are computed as a pair, which the printer sees where they are written out.
            values = [self._element(tile, line, inner + v, stored[v], tile.packing > 1) for v in range(NEIGHBOURS)]
            w.emit(*(Assign(place, value) for place, value in zip(places, values, strict=True)))

    def _one_by_one(self, tile: OperandTile, places: list[Reg], line: _Line, inner: Affine, stored: list[Reg]) -> None:
        """The same where the operand may end between the two."""
        w, operand = self.w, tile.expanded
        assert operand is not None
        for v, place in enumerate(places):
            with w.when((*w.beyond(line.of_operand, operand.lines), *w.beyond(inner + v, w.form.inner))):
                w.emit(Assign(place, self._element(tile, line, inner + v, stored[v])))

    def _element(self, tile: OperandTile, line: _Line, inner: Affine, stored: KExpr, inline: bool = False) -> KExpr:
        """The operand's element at a line and an inner place. stored: the narrow element that it reads; inline: as of `expression`."""
        w, operand = self.w, tile.expanded
        assert operand is not None and operand.element is not None
        w.stored = {tile.operand.value: stored}
        with w.at(**{operand.line: line.of_operand, INNER: w.simplified(inner)}):
            value = w.expression(operand.element, inline)
        w.stored = {}
        return _through_f32(value, operand.dtype)

    def _first_of_piece(self, piece: int) -> Affine:
        """A lane's first inner place in one of its pieces of a slot, from the start of that."""
        if self.pieces == 1:
            return piece * self.part + self.pair * LANE_NEIGHBOURS
        return piece // PIECES * self.part + (self.pair * PIECES + (self.pair // 2 + piece) % PIECES) * LANE_NEIGHBOURS

    def _values_of_pieces(self, first_inner: Affine) -> dict[tuple[str, Affine], tuple[Bound, ...]]:
        """(value, offset) of the values that all neighbours of a lane's piece share, of all pieces of a slot, and the bounds inside which
        the operand has these neighbours."""
        w = self.w
        bounds_by_place: dict[tuple[str, Affine], tuple[Bound, ...]] = {}
        for tile, piece, line in product(self.tiles, range(self.parts * self.pieces), self.lines):
            inner = w.simplified(first_inner + self._first_of_piece(piece))
            places = [self._loads_at(tile, line, inner + v) for v in range(0, LANE_NEIGHBOURS, NEIGHBOURS)]
            bounds = (*w.beyond(line.of_operand, self._lines_of(tile)), *w.beyond(inner, w.form.inner))
            for key in places[0]:
                if all(key in others for others in places):
                    bounds_by_place.setdefault(key, bounds)
        return bounds_by_place

    def _loads_at(self, tile: OperandTile, line: _Line, inner: Affine) -> tuple[tuple[str, Affine], ...]:
        """(value, offset) of the loads that an element beside its narrow one needs, of those that no register holds yet."""
        w = self.w
        w.loads.clear()
        with w.nested():
            self._element(tile, line, inner, Reg("", tile.operand.dtype))
        return tuple(w.loads)

    def _load_held(self, loads: Sequence[tuple[str, Affine]], bounds: tuple[Bound, ...]) -> None:
        """Loads elements into registers that expressions read from here on, where `bounds` hold; zeros elsewhere."""
        w = self.w
        for value, offset in loads:
            buffer = w.buffers[value]
            held = Reg(w.fresh(f"{value}_held"), buffer.dtype, number(0))
            w.emit(Declare(held.name, buffer.dtype, 1))
            if bounds:
                w.emit(Assign(held, const(0, buffer.dtype)))
            with w.when(bounds):
                w.emit(Assign(held, Load(buffer.name, buffer.dtype, offset)))
            w.hold((value, offset), held)

    def _lines_of(self, tile: OperandTile) -> int:
        """Lines of the operand that consumers compute from a tile."""
        assert tile.expanded is not None
        return tile.expanded.lines

    def _hold_values_of_lines(self, tile: OperandTile) -> None:
        """Loads the values that all elements of a line share, as scales, before the main loop."""
        w, inner = self.w, self.w.fresh("k")
        for line in self.lines:
            with w.nested() as tried:
                tried.extents[inner] = w.form.inner
                loads = self._loads_at(tile, line, axis(inner))
            self._load_held([(v, o) for v, o in loads if inner not in o.axes()], w.beyond(line.of_operand, self._lines_of(tile)))


def _keeps_zero(graph: Graph, e: Expr, narrow: str) -> bool:
    """Whether an element is a conversion of the one that it reads of `narrow`, so that it is zero where that is."""
    match e:
        case Call(fn, (inner,)) if fn in DTYPES:
            return _keeps_zero(graph, inner, narrow)
        case Read(value):
            node = graph.node_by_name.get(value)
            return value == narrow if node is None or node.body is None else _keeps_zero(graph, node.body, narrow)
    return False


def _through_f32(e: KExpr, dtype: DType) -> KExpr:
    """The same, as a rounding of f32: a narrow integer is exact in f32, and the device rounds two of these together."""
    match e:
        case Call(fn, (Call(again) as inner,)) if fn == again == dtype.name:
            return _through_f32(inner, dtype)
        case Call(fn, (Reg(dtype=narrow) as register,)) if fn == dtype.name and narrow.is_integer and narrow.bits <= 8:
            return Call(fn, (Call(F32.name, (register,)),))
    return e
