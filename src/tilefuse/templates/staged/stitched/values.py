"""State of a stitched kernel as its parts write it: statements, buffers, tiles, and where an element is when a statement reads it.

It is in a register of the same element, in a tile in shared memory that the current stage reads, in global memory, or, where its value is
not kept, evaluated there. Parts of the kernel take this state as a parameter; `compose_stitch.py` puts them together.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set

from tilefuse.base.errors import InternalError
from tilefuse.domain.access import is_vector
from tilefuse.domain.regions import Span, within
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import Affine, Extents, axis, bounds, linearise, number, simplify, substitute
from tilefuse.ir.dtype import F32, DType
from tilefuse.ir.graph import Node
from tilefuse.ir.scalar import Bound, Call, Const, Expr, Guard, Index, Lookup, Read, indexed_axes
from tilefuse.kernel.ir import Buffer, KExpr, Load, Reg
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.graph_values import GraphResolver, GraphStatements
from tilefuse.templates.staged.stitched.plan import Piece, StitchPlan
from tilefuse.templates.staged.stitched.record import Stitched

Point = tuple[Affine, ...]
# Choices one inside the other: the bounds, and whether they hold.
Path = tuple[tuple[tuple[Bound, ...], bool], ...]


class StitchValues(GraphStatements):
    """The statements of one stitched kernel so far, its values as they read them, and the facts that its parts share."""

    buffer_number: Affine = number(0)  # which of two tiles is copied, or read
    active: tuple[Bound, ...] = ()  # bounds under which this thread has an item, where its statements do not stand under them
    walks = False  # whether what is written is repeated for each of a block's tiles
    copying = False  # whether asynchronous copies were started since the last barrier
    lane: Affine = number(0)
    before_lane: Callable[[Affine], None] | None = None  # makes the sums of a product known at one lane
    keep_at: Callable[[Affine], Affine] | None = None  # where in the arrays `held` an element of the current point goes

    def __init__(self, program: TileProgram, plan: StitchPlan, choice: Stitched, device: DeviceSpec, taken: Iterable[str] = (),
                 settled: Set[str] = frozenset()) -> None:
        super().__init__(program, plan.graph, device)
        self.settled = settled
        self.names.update(taken)
        self.plan = plan
        self.threads, self.groups = choice.threads, choice.groups
        self.nodes = self.graph.node_by_name
        self.shared: dict[int, Buffer] = {}
        self.exchanges: dict[int, Buffer] = {}  # sums that warps add up, by the first product of their stage
        self.held: dict[int, str] = {}  # register arrays of pieces that later products take from there
        self.readable: dict[str, list[Piece]] = {}  # tiles in shared memory that the current stage reads
        self.add_boundary()
        for piece in plan.pieces:
            if piece.stored:
                elements = piece.num_bytes // piece.dtype.itemsize
                name = self.fresh(f"{piece.value}_tile")
                self.shared[piece.key] = Buffer(name, piece.dtype, elements, "shared", "", piece.value, piece.offset_bytes)
        for stage in plan.stages:
            if stage.exchange_bytes:
                value, sums = plan.pieces[stage.products[0]].value, stage.exchange_bytes // F32.itemsize
                self.exchanges[stage.products[0]] = Buffer(self.fresh(f"{value}_sums"), F32, sums, "shared", "", "", stage.exchange_offset)

    # -- places -----------------------------------------------------------------------------------------------------------

    def global_offset(self, value: str, index: Point) -> Affine:
        """Offset of an element in global memory. Units: elements."""
        return self.simplified(linearise(index, self.strides(value)))

    def tile_offset(self, piece: Piece, index: Point) -> Affine:
        """Offset of an element in the shared tile of a piece. Units: elements."""
        local = tuple(e - self.index(s.offset) for e, s in zip(index, piece.region, strict=True))
        start = self.buffer_number * piece.num_stored if piece.buffers > 1 else number(0)
        return self.simplified(linearise(local, piece.strides) + start)

    def tile_of(self, value: str, index: Point, operand: bool = True) -> Piece | None:
        """The tile in shared memory that holds an element, or None: the value is boundary or not kept.

        operand: the element is read as a product's operand. Tiles of boundary values hold what products read of them; elements that a
        map reads beside them may lie elsewhere.
        """
        tiles = self.readable.get(value, [])
        surely = operand or value in self.nodes
        if len(tiles) == 1 and surely:
            return tiles[0]
        extents = self.extents
        for piece in tiles:
            local = [(e - self.index(s.offset), s.extent) for e, s in zip(index, piece.region, strict=True)]
            if all(within(e, Span(number(0), n), extents) for e, n in local):
                return piece
        if tiles and surely:
            known = [(b.index, b.high) for b in self.active] + [(self.index(axis(name)), count) for name, count in self.plan.grid]
            extents = dict(extents) | {name: most for e, most in known for name in e.axes() if e == axis(name)}
            shape = self.graph.type_of(value).shape
            for piece in tiles:
                if all(self._covers(e, s, full, extents) for e, s, full in zip(index, piece.region, shape, strict=True)):
                    return piece
            raise InternalError(f"no tile of %{value} provably holds {', '.join(map(str, index))}; please report")
        return None

    def _covers(self, e: Affine, span: Span, full: int, extents: Extents) -> bool:
        """Whether a tile holds every element of a dimension that a subscript can mean: from reading beyond it a guard keeps it."""
        reach = bounds(simplify(e, extents), extents)
        if not span.offset.is_const or reach is None:
            return within(e - self.index(span.offset), Span(number(0), span.extent), extents)
        low, high = max(reach[0], 0), min(reach[1], full - 1)
        return low > high or span.offset.const <= low and high < span.offset.const + span.extent

    def start(self, region: tuple[Span, ...], local: Point, v: Affine) -> Point:
        """Subscripts of the element `v` elements, along the last dimension, behind local coordinates of a region."""
        last = len(local) - 1
        return tuple(self.index(s.offset) + x + (v if n == last else 0) for n, (s, x) in enumerate(zip(region, local, strict=True)))

    def writers(self, p: Piece) -> tuple[Bound, ...]:
        """Bounds under which a block writes a result: of blocks that compute the same region, the first."""
        return tuple(Bound(self.index(axis(name)), 0, 1) for name, _ in self.plan.grid if name not in p.grid_axes)

    # -- values -----------------------------------------------------------------------------------------------------------

    def known(self, value: str, index: Point) -> KExpr | None:
        """The register that holds an element at the current point, if one does."""
        return self.loaded((value, index))

    def remember(self, value: str, index: Point, held: KExpr) -> None:
        """From here on (in this frame) the element is in a register."""
        self.hold((value, index), held)

    def place(self, value: str, index: Point, operand: bool = True) -> tuple[str, Affine, DType] | None:
        """(buffer, offset, dtype) of an element that lies in memory, or None: it must be evaluated. `operand`: see `tile_of`."""
        piece = self.tile_of(value, index, operand)
        if piece is not None:
            return self.shared[piece.key].name, self.tile_offset(piece, index), piece.dtype
        if value in self.nodes:
            return None
        return self.buffers[value].name, self.global_offset(value, index), self.buffers[value].dtype

    def element(self, value: str, index: Point, guarded: bool = False) -> KExpr:
        """One element of a value: a register, a load, or its body evaluated here."""
        index = tuple(self.simplified(e) for e in index)
        held = self.known(value, index)
        if held is not None:
            return held
        place = self.place(value, index, False)
        element = Load(place[0], place[2], place[1]) if place is not None else self.body(self.nodes[value], index, guarded)
        if guarded or isinstance(element, (Reg, Const)):
            return element
        dtype = self.graph.type_of(value).dtype
        reg = self.register(element, dtype, value if place is None else f"{value}_at")
        self.remember(value, index, reg)
        return reg

    def body(self, node: Node, index: Point, guarded: bool = False, over: dict[str, Affine] | None = None) -> KExpr:
        """A node's body at a point of its domain."""
        assert node.body is not None
        at = dict(zip(node.axes, index, strict=True)) | (over or {})
        return self.expression(node.body, at, guarded)

    def expression(self, e: Expr, at: dict[str, Affine], guarded: bool) -> KExpr:
        """A scalar expression with its axes at a point."""
        return _AtPoint(self, at).expression(e, guarded)

    def reads(self, node: Node, point: Point, over: dict[str, Affine] | None = None) -> Iterator[tuple[str, Point]]:
        """Unguarded reads that end in memory, at a point of the node's domain."""
        if node.body is None:
            return
        at = dict(zip(node.axes, point, strict=True)) | (over or {})
        stack: list[Expr] = [node.body]
        while stack:
            e = stack.pop()
            match e:
                case Read(value, index):
                    here = tuple(substitute(x, at) for x in index)
                    if value in self.nodes and value not in self.plan.kept:
                        yield from self.reads(self.nodes[value], here)
                    else:
                        yield value, here
                case Call(_, args):
                    stack.extend(args[::-1])

    def chosen_reads(self, e: Expr, at: dict[str, Affine], lane: str, width: int,
                     path: Path | None = ()) -> Iterator[tuple[str, Point, Path | None]]:
        """Reads of an expression that end in memory, each with the choices under which it is made.

        None for the path: the choice differs among the `width` lanes of `lane`.
        """
        match e:
            case Read(value, index):
                here = tuple(substitute(x, at) for x in index)
                node = self.nodes.get(value)
                if node is None or value in self.plan.kept or node.body is None:
                    yield value, here, path
                else:
                    yield from self.chosen_reads(node.body, dict(zip(node.axes, here, strict=True)), lane, width, path)
            case Call(_, args):
                for a in args:
                    yield from self.chosen_reads(a, at, lane, width, path)
            case Guard(facts, then, otherwise):
                new = tuple(Bound(self.simplified(substitute(b.index, at)), b.low, b.high) for b in facts)
                needed = tuple(b for b in new if not self.always(b))
                if not needed:
                    yield from self.chosen_reads(then, at, lane, width, path)
                    return
                inner = None
                if path is not None and all(self._same_for_lanes(b, lane, width) for b in needed):
                    inner = tuple(Bound(substitute(b.index, {lane: number(0)}, self.extents), b.low, b.high) for b in needed)
                for branch, is_then in ((then, True), (otherwise, False)):
                    way = None if path is None or inner is None else (*path, (inner, is_then))
                    yield from self.chosen_reads(branch, at, lane, width, way)

    def lookup_key(self, e: Lookup, at: Mapping[str, Affine]) -> tuple[object, ...]:
        """Key of an element at data-dependent places, as of `loaded`."""
        return (e, *(self.simplified(at[a]) for a in sorted(indexed_axes(e)) if a in at))

    def lookup_vector(self, e: Lookup, at: dict[str, Affine], lane: str, width: int) -> tuple[Affine, tuple[tuple[KExpr, int], ...]] | None:
        """Place of the first of `width` neighbours in memory, as of `GraphResolver.looked_up`; None where the lanes' elements are none."""
        point, offset = _AtPoint(self, at), number(0)
        moving = frozenset(a for a, x in at.items() if lane in x.axes())
        for s, extent, stride in zip(e.subscripts, self.graph.type_of(e.value).shape, self.strides(e.value), strict=True):
            if isinstance(s, Index) and point.is_inside(s.affine, extent):
                offset = offset + point.index(s.affine) * stride
            elif indexed_axes(s) & moving or stride % width:
                return None
        if not is_vector(self.simplified(offset), lane, width):
            return None
        first = {a: substitute(x, {lane: number(0)}, self.extents) for a, x in at.items()}
        return _AtPoint(self, first).looked_up(e, False)

    def _same_for_lanes(self, bound: Bound, lane: str, width: int) -> bool:
        """Whether a bound holds for all lanes of a vector or for none."""
        if lane not in bound.index.axes():
            return True
        start = substitute(bound.index, {lane: number(0)})
        if any(atom == lane and c != 1 or atom != lane and c % width for atom, c in bound.index.terms):
            return False
        span = bounds(bound.index, self.extents)
        ends = [end for n, end in enumerate((bound.low, bound.high)) if span is None or (span[0] < end if n == 0 else span[1] >= end)]
        return all((end - start.const) % width == 0 for end in ends)


class _AtPoint(GraphResolver):
    """Expressions of the graph where their axes are `at`."""

    writer: StitchValues

    def __init__(self, writer: StitchValues, at: dict[str, Affine]) -> None:
        super().__init__(writer)
        self.at = at

    def index(self, e: Affine) -> Affine:
        return self.writer.simplified(substitute(e, self.at))

    def read(self, e: Read, guarded: bool) -> KExpr:
        return self.writer.element(e.value, tuple(substitute(x, self.at) for x in e.index), guarded)

    def offset(self, e: Read) -> Affine:
        return self.writer.global_offset(e.value, tuple(self.index(x) for x in e.index))

    def _lookup(self, e: Lookup, guarded: bool) -> KExpr:
        known = self.writer.loaded(self.writer.lookup_key(e, self.at))
        return super()._lookup(e, guarded) if known is None else known
