"""Columns of a turn that a mask hides nothing of, asked for by each warpgroup for its own rows: where memory has bounds for blocks of rows,
a turn that is cut for the rows of one warpgroup is often whole for those of another.

    rows 0 .. 63 of document 5, rows 64 .. 127 of 5 and 6        columns 0 .. 63 of 5 | 64 .. 127 of 5 and 6
    warpgroup 0                                                  no mask              | mask
    warpgroup 1                                                  mask                 | mask

Parts of the mask that are the same in a whole block of rows and columns are asked for once for all of these; the rest of the mask is
computed for each score.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from math import gcd

from tilefuse.ir.affine import Affine, FloorDiv, axis
from tilefuse.ir.dtype import BOOL
from tilefuse.ir.ops import NEGATED
from tilefuse.ir.scalar import Bound, Call, Const, Expr, Guard, Index, Lookup, children, const, index_maps, transform, walk
from tilefuse.kernel.ir import Assign, Declare, If, IfValue, KExpr, Reg
from tilefuse.kernel.pipeline import WARPGROUP, WARPGROUP_ROWS
from tilefuse.kernel.visit import statements
from tilefuse.templates.staged.online.products import ROW, WALK
from tilefuse.templates.staged.walked.conditions import AND, NOT, OR, Edge
from tilefuse.templates.staged.walked.rings import RingState

# Columns that are asked for together.
CHUNK = WARPGROUP_ROWS


# Conditions that are known in some columns; None: the mask hides nothing of them.
Known = tuple[tuple[Expr, bool], ...] | None
# Writes the elements of some columns of a turn, the first one and the one behind the last one given.
Emit = Callable[[int, int, Known], None]


@dataclass(frozen=True)
class Chunks:
    """Elements of a turn of `columns` columns in chunks, each in the form that a warpgroup's own rows leave of `masked`.

    start  first column along the walked axis
    """

    w: RingState
    start: Affine
    columns: int
    masked: Expr
    emit: Emit

    def write(self) -> None:
        """All chunks. They begin at multiples of their columns, so that each lies in one block."""
        w, size = self.w, gcd(CHUNK, self.columns)
        for first in range(0, self.columns, size):
            with w.nested() as inner:
                place = w.simplified(self.start + first)
                self._either(own_columns_are_whole(w, place, size), "is_whole", partial(self.emit, first, first + size, None),
                             partial(self._asked, first, first + size, self.masked, ()))
            row = Bound(self._row, 0, w.walk.of.online.num_rows)
            w.emit(*(inner.statements if w.always(row) else [If((row,), tuple(inner.statements))]))

    @property
    def _row(self) -> Affine:
        """The first row of the thread's warpgroup."""
        group = axis("thread") // WARPGROUP * WARPGROUP_ROWS if self.w.walk.tiling.warpgroups > 1 else 0
        return self.w.simplified(self.w.first_row + group)

    def _asked(self, first: int, end: int, masked: Expr, known: tuple[tuple[Expr, bool], ...]) -> None:
        """A chunk whose conditions are asked for one after another: the next one that is left in the mask."""
        w = self.w
        part = next(parts_of_blocks(masked), None)
        if part is None:
            self.emit(first, end, known)
            return
        with w.at(**{ROW: self._row, WALK: w.simplified(self.start + first)}):
            condition = w.element(part, guarded=True)
        sides = (partial(self._asked, first, end, decided(masked, part, value), (*known, (part, value))) for value in (True, False))
        self._either(condition, "of_block", *sides)

    def _either(self, condition: KExpr, stem: str, where_true: Callable[[], None], where_false: Callable[[], None]) -> None:
        """Statements of one side. condition: the same in all threads of a warpgroup."""
        w, value = self.w, Reg(self.w.fresh(stem), BOOL)
        w.emit(Declare(value.name, BOOL, None, condition))
        opposite: KExpr = Call("logical_not", (value,))
        for when, write in ((value, where_true), (opposite, where_false)):
            with w.nested() as inner:
                write()
            if any(isinstance(s, Assign) for s in statements(tuple(inner.statements))):
                w.emit(IfValue(when, tuple(inner.statements)))


def with_known(e: Expr, known: tuple[tuple[Expr, bool], ...]) -> Expr:
    """An expression in which conditions are known."""
    return reduce(lambda x, fact: decided(x, *fact), known, e)


def own_columns_are_whole(w: RingState, first: Affine, columns: int) -> KExpr:
    """Whether all rows of a thread's warpgroup have all of some columns.

    Requires: `emit_turns` has named the tile's integers of memory.
    """
    limit = w.walk.of.limit
    assert limit is not None
    end = first + columns
    length: KExpr = Index(Affine((), w.walk.length))
    clauses: list[KExpr] = [Call("le", (Index(w.simplified(end)), length))] if w.walk.length % columns else []
    for group in limit.whole.ends:
        clauses.append(_joined("logical_or", [Call("le", (Index(w.simplified(end)), _edge(w, e, is_end=True))) for e in group]))
    for group in limit.whole.starts:
        clauses.append(_joined("logical_or", [Call("ge", (Index(w.simplified(first)), _edge(w, e, is_end=False))) for e in group]))
    return _joined("logical_and", clauses)


def _joined(fn: str, parts: list[KExpr]) -> KExpr:
    return reduce(lambda a, b: Call(fn, (a, b)), parts)


def _edge(w: RingState, e: Edge, is_end: bool) -> KExpr:
    """The edge of the warpgroup's rows: the least end, or the greatest start."""
    warpgroups = w.walk.tiling.warpgroups
    group = axis("thread") // WARPGROUP
    # Ends do not fall with the rows, and starts neither.
    row = w.first_row + (group * WARPGROUP_ROWS if warpgroups > 1 else 0) + (0 if is_end else WARPGROUP_ROWS - 1)
    if e.data is None:
        return Index(w.simplified(row * e.slope + e.beyond))
    edges: list[KExpr] = [Index(w.simplified(row * e.slope + x)) for x in w.edges_in_memory[e]]
    if e.rows == WARPGROUP_ROWS and len(edges) == warpgroups:
        return reduce(lambda rest, n: Call("select", (Call("eq", (Index(group), Index(Affine((), n)))), edges[n], rest)),
                      range(warpgroups - 1), edges[-1])
    return _joined("minimum" if is_end else "maximum", edges)


def parts_of_blocks(e: Expr) -> Iterator[Expr]:
    """The largest conditions in an expression that have one value in all rows of a warpgroup and all columns of a chunk, which begin at
    multiples of their numbers."""
    if isinstance(e, Call) and e.fn in (*NEGATED, *AND, *OR, *NOT) and _is_of_block(e):
        yield e
    elif not isinstance(e, Guard):
        for part in children(e):
            yield from parts_of_blocks(part)


def _is_of_block(e: Expr) -> bool:
    places = [i for x in walk(e) for i in index_maps(x)]
    atoms = {atom for i in places for atom, _ in i.terms if Affine(((atom, 1),)).axes() & {ROW, WALK}}
    plain = not any(isinstance(x, Guard | Lookup) for x in walk(e))
    return plain and bool(atoms) and all(
        isinstance(a, FloorDiv) and a.of in (axis(ROW), axis(WALK)) and a.by % (CHUNK if a.of == axis(WALK) else WARPGROUP_ROWS) == 0
        for a in atoms)


def decided(e: Expr, part: Expr, value: bool) -> Expr:
    """An expression in which a condition is known."""
    return transform(e, lambda x: const(value, BOOL) if x == part else _folded(x))


def _folded(e: Expr) -> Expr:
    match e:
        case Call(fn, (Const() as a, b)) | Call(fn, (b, Const() as a)) if fn in (*AND, *OR) and a.dtype == BOOL:
            return b if bool(a.value) == (fn in AND) else a
        case Call(fn, (Const() as a,)) if fn in NOT and a.dtype == BOOL:
            return const(not a.value, BOOL)
        case Call("select", (Const() as a, x, y)):
            return x if a.value else y
    return e
