"""Conditions on row and column by which a mask keeps scores, as bounds of each row's columns.

    column <= row                        columns below row + 1
    row - column < w                     columns from row - w + 1 on
    column <= row  or  column < p        columns below the greater of row + 1 and p
    column < length[batch]               columns below a number that memory holds
    column // 64 < end[row // 64]        columns below 64 times a number that memory holds for each 64 rows
    column < p  or  same[row, column]    nothing is hidden of the columns below p, wherever the rest hides something
    column < p  or  row - column < w     a gap: the columns from p to row - w are hidden, those on both sides are not

A condition is taken apart where `and` joins conditions that keep elements, and `or` conditions that hide them. Parts that bound no
columns stay conditions.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from tilefuse.ir.affine import Affine, FloorDiv, axis, bounds, number
from tilefuse.ir.dtype import BOOL, DTYPES, EXACT_F32, I32, I64, DType
from tilefuse.ir.monoids import highest
from tilefuse.ir.ops import NEGATED
from tilefuse.ir.scalar import Bound, Call, Const, Expr, Guard, Index, Read, const, walk
from tilefuse.templates.staged.online.products import LEAD, ROW, WALK

AND, OR = ("logical_and", "bit_and"), ("logical_or", "bit_or")
NOT = ("logical_not", "bit_not")
# Functions of integers whose values are integers.
OF_INTEGERS = ("add", "sub", "mul", "neg", "minimum", "maximum", "i32", "i64")
# Functions that choose among integers of a block of rows, whose conditions compare such integers.
CHOOSING = ("select", "eq", "ne", "ge", "gt", "le", "lt")
ORDERED = ("ge", "gt", "le", "lt")


@dataclass(frozen=True)
class Edge:
    """The column slope * row + beyond + data. `slope` is not negative, so that edges of later rows do not lie before those of earlier ones.

    data  an integer of the lead place that memory holds, or is computed from such; None: 0
    rows  of a block that has such an integer of its own; 0: all rows have the same
    """

    slope: int
    beyond: int
    data: Expr | None = None
    rows: int = 0

    def at(self, row: int) -> int:
        """The column without `data`, or 0 where it lies before the first one."""
        return max(self.slope * row + self.beyond, 0)


# Groups of edges, as of `Bounds`.
Groups = tuple[tuple[Edge, ...], ...]


@dataclass(frozen=True)
class Bounds:
    """Bounds of a row's columns. ends: columns lie below the greatest edge of each group; starts: and not before the least edge of each.

    gaps: (ends, starts) of columns on both sides of which columns lie: they are below such ends, or not before such starts.
    Numbers of `start` and `end` are the widest that data may give.
    """

    ends: Groups = ()
    starts: Groups = ()
    gaps: tuple[tuple[Groups, Groups], ...] = ()

    def joined(self, other: Bounds) -> Bounds:
        """Both bounds together."""
        return Bounds(*(tuple(dict.fromkeys((*a, *b))) for a, b in (
            (self.ends, other.ends), (self.starts, other.starts), (self.gaps, other.gaps))))

    def either(self, other: Bounds) -> Bounds | None:
        """The bounds of columns that one of both has; None where no such bounds describe them."""
        if self.gaps or other.gaps:
            return None
        if self.starts or other.starts:
            if self.ends or other.ends:
                return None
            return Bounds(starts=tuple((*a, *b) for a in self.starts for b in other.starts))
        return Bounds(ends=tuple((*a, *b) for a in self.ends for b in other.ends))

    def end(self, row: int, length: int) -> int:
        """The first column behind those of a row, among `length`."""
        return min((max(e.at(row) for e in group) for group in self.ends if not any(e.data for e in group)), default=length)

    def start(self, row: int) -> int:
        """The first column of a row."""
        return max((min(e.at(row) for e in group) for group in self.starts if not any(e.data for e in group)), default=0)

    def around(self, other: Bounds) -> Bounds | None:
        """The bounds of columns that one of both has, where one ends and the other starts: a gap between them. None for others, and where
        memory has edges for blocks of rows."""
        first, last = (self, other) if self.ends else (other, self)
        if not first.ends or not last.starts or first.starts or last.ends or first.gaps or last.gaps:
            return None
        return None if any(e.rows for e in (*first.edges, *last.edges)) else Bounds(gaps=((first.ends, last.starts),))

    def gap(self, first_row: int, last_row: int, length: int) -> tuple[int, int]:
        """First column of the gap of all of some rows, and the first one behind it; (0, 0) for none, and where memory has an edge of it."""
        for ends, starts in self.gaps:
            if not any(e.data for group in (*ends, *starts) for e in group):
                begin, end = Bounds(ends).end(last_row, length), Bounds(starts=starts).start(first_row)
                return (begin, end) if begin < end else (0, 0)
        return 0, 0

    @property
    def edges(self) -> tuple[Edge, ...]:
        """All edges, without those of gaps."""
        return tuple(e for group in (*self.ends, *self.starts) for e in group)


@dataclass(frozen=True)
class Mask:
    """A condition that keeps elements, or hides them; facts that guard an element keep it. Elsewhere it is -inf."""

    condition: Expr | tuple[Bound, ...]
    keeps: bool

    def around(self, e: Expr, dtype: DType) -> Expr:
        """The element with this mask."""
        lowest = const(-float("inf"), dtype)
        if isinstance(self.condition, tuple):
            return Guard(self.condition, e, lowest)
        return Call("select", (self.condition, *((e, lowest) if self.keeps else (lowest, e))))


@dataclass(frozen=True)
class Unmasked:
    """An element without masks. masks: all of them, the outermost last; rests: those that are no bounds of a row's columns, and hide
    something of the columns within `inner`."""

    core: Expr
    bounds: Bounds = field(default_factory=Bounds)
    masks: tuple[Mask, ...] = ()
    rests: tuple[Mask, ...] = ()
    inner: Bounds = field(default_factory=Bounds)

    @property
    def whole(self) -> Bounds:
        """Bounds of the columns of which nothing but `rests` hides an element."""
        return self.bounds.joined(self.inner)

    def masked(self, dtype: DType) -> Expr:
        """The element with all masks, which stand outside."""
        return _around(self.core, self.masks, dtype)

    def bare(self, dtype: DType) -> Expr:
        """The element of a column within the bounds of `whole`."""
        return _around(self.core, self.rests, dtype)

    def within(self, core: Expr, *others: Unmasked) -> Unmasked:
        """Another element that is -inf where this one is, or one of the others."""
        both = replace(self, core=core)
        for o in others:
            both = Unmasked(core, both.bounds.joined(o.bounds), both.masks + o.masks, both.rests + o.rests, both.inner.joined(o.inner))
        return both


def _around(e: Expr, masks: tuple[Mask, ...], dtype: DType) -> Expr:
    for mask in masks:
        e = mask.around(e, dtype)
    return e


class Conditions:
    """Recognition of masks. extents: of the axes ROW and WALK; is_integer: whether a value is one of memory that holds integers."""

    def __init__(self, extents: Mapping[str, int], is_integer: Callable[[str], bool] = lambda value: False) -> None:
        self.extents, self.is_integer = extents, is_integer

    def unmasked(self, e: Expr) -> Unmasked:
        """An element with its masks taken off."""
        match e:
            case Call("select", (condition, Const() as c, x)) if c.value == -float("inf"):
                return self._without(condition, x, keeps=False)
            case Call("select", (condition, x, Const() as c)) if c.value == -float("inf"):
                return self._without(condition, x, keeps=True)
            case Guard(facts, Const() as c, Const() as x) if c.value == -float("inf"):
                return self._without(_condition(facts), x, keeps=False)
            case Guard(facts, x, Const() as c) if c.value == -float("inf"):
                known = [(b, self._between(b)) for b in facts]
                rest = tuple(fact for fact, edges in known if edges is None)
                bounds_ = reduce(Bounds.joined, (edges for _, edges in known if edges is not None), Bounds())
                own = Unmasked(x, bounds_, (Mask(facts, True),), (Mask(rest, True),) if rest else ())
                inner = self.unmasked(x)
                return inner.within(inner.core, own)
            case Call("add", (a, b)):
                one, two = self.unmasked(a), self.unmasked(b)
                for own, other in ((one, two), (two, one)):
                    if other.masks and isinstance(other.core, Const) and other.core.value == 0:
                        return own.within(own.core, other)
                return one.within(Call("add", (one.core, two.core)), two)
            case Call("mul" | "div" as fn, (x, Const() as c)) if 0 < c.value < float("inf"):
                inner = self.unmasked(x)
                return inner.within(Call(fn, (inner.core, c)))
            case Call("mul", (Const() as c, x)) if 0 < c.value < float("inf"):
                inner = self.unmasked(x)
                return inner.within(Call("mul", (c, inner.core)))
            case Call(fn, (x,)) if fn in DTYPES and DTYPES[fn].is_float:
                inner = self.unmasked(x)
                zero = isinstance(inner.core, Const) and inner.core.value == 0
                return inner.within(const(0, DTYPES[fn]) if zero else Call(fn, (inner.core,)))
        return Unmasked(e)

    def _without(self, condition: Expr, x: Expr, keeps: bool) -> Unmasked:
        inner = self.unmasked(x)
        edges, within, rest = self._split(condition, keeps)
        own = Unmasked(x, edges, (Mask(condition, keeps),), () if rest is None else (Mask(rest, keeps),), within)
        return inner.within(inner.core, own)

    def _split(self, e: Expr, keeps: bool) -> tuple[Bounds, Bounds, Expr | None]:
        """Bounds of the columns that a condition keeps (or hides, if not `keeps`), those of columns that its other parts keep whole, and
        the rest of the condition, which keeps no such columns; None: no rest."""
        e = _plain(e)
        match e:
            case Call(fn, (a, b)) if fn in (AND if keeps else OR):
                (one, inner, first), (two, other, second) = self._split(a, keeps), self._split(b, keeps)
                rests = [r for r in (first, second) if r is not None]
                rest = Call(fn, tuple(rests)) if len(rests) == 2 else rests[0] if rests else None
                return one.joined(two), inner.joined(other), rest
            case Call(fn, (x,)) if fn in NOT:
                edges, inner, rest = self._split(x, not keeps)
                return edges, inner, None if rest is None else Call(fn, (rest,))
        own = self._clause(e, keeps)
        if own is not None:
            return own, Bounds(), None
        match e:
            case Call(fn, (a, b)) if fn in (OR if keeps else AND):
                clauses = [c for c in (self._clause(a, keeps), self._clause(b, keeps)) if c is not None]
                gap = clauses[0].around(clauses[1]) if len(clauses) == 2 else None
                if gap is not None:
                    return gap, next(c for c in clauses if c.starts), None
                if clauses:
                    return Bounds(), clauses[0], None
        return Bounds(), Bounds(), e

    def _clause(self, e: Expr, keeps: bool) -> Bounds | None:
        """The bounds that a whole condition is; None where it is something else."""
        e = _plain(e)
        match e:
            case Call(fn, (a, b)) if fn in (*AND, *OR):
                one, two = self._clause(a, keeps), self._clause(b, keeps)
                if one is None or two is None:
                    return None
                return one.joined(two) if (fn in AND) == keeps else one.either(two)
            case Call(fn, (x,)) if fn in NOT:
                return self._clause(x, not keeps)
            case Call(fn, (a, b)) if fn in ORDERED:
                return self._comparison(fn if keeps else NEGATED[fn], a, b)
        return None

    def _comparison(self, fn: str, a: Expr, b: Expr) -> Bounds | None:
        left, right = self._index(a), self._index(b)
        strict = number(int(fn.endswith("t")))
        if left is None or right is None:
            terms = self._with_data(Call("sub", (a, b) if fn.startswith("g") else (b, a)))
            return None if terms is None or len(terms[1]) != 1 else _column_bounds(terms[0] - strict, terms[1][0])
        return self._not_negative((left - right if fn.startswith("g") else right - left) - strict)

    def _not_negative(self, e: Affine) -> Bounds | None:
        """The bounds of columns at which an index expression is not negative; those of all columns where it never is."""
        span = bounds(e, self.extents)
        return Bounds() if span is not None and span[0] >= 0 else _column_bounds(e)

    def _with_data(self, e: Expr) -> tuple[Affine, tuple[Expr, ...]] | None:
        """A whole number as an index expression and integers of the lead place, which are added to it."""
        index = self._index(e)
        if index is not None:
            return index, ()
        if self._is_of_block(e):
            return number(0), (e,)
        match e:
            case Call("add" | "sub" as fn, (a, b)):
                one, two = self._with_data(a), self._with_data(b)
                if one is None or two is None:
                    return None
                if fn == "add":
                    return one[0] + two[0], (*one[1], *two[1])
                return one[0] - two[0], (*one[1], *map(_negated, two[1]))
            case Call("i64", (x,)):
                return self._with_data(x)
        return None

    def _is_of_block(self, e: Expr) -> bool:
        """Whether an expression is an integer that the lead place decides, or it and a block of rows, with memory."""
        match e:
            case Read(value, index):
                return self.is_integer(value) and all(i.axes() <= {LEAD, ROW} for i in index) and rows_of(e) is not None
            case Index(affine):
                return affine.axes() <= {LEAD}
            case Const():
                return e.dtype.is_integer
            case Call(fn, args):
                return fn in (*OF_INTEGERS, *CHOOSING) and all(map(self._is_of_block, args)) and rows_of(e) is not None
        return False

    def _between(self, b: Bound) -> Bounds | None:
        low, high = self._not_negative(b.index - number(b.low)), self._not_negative(number(b.high - 1) - b.index)
        return None if low is None or high is None else low.joined(high)

    def _index(self, e: Expr) -> Affine | None:
        """A whole number that depends on indices, as an index expression; floats only where they hold it exactly."""
        match e:
            case Index(affine):
                return affine
            case Const() if float(e.value).is_integer():
                return number(int(e.value))
            case Call("add" | "sub" as fn, (a, b)):
                left, right = self._index(a), self._index(b)
                if left is None or right is None:
                    return None
                return self._exact(e, left + right if fn == "add" else left - right)
            case Call("neg", (x,)):
                inner = self._index(x)
                return None if inner is None else number(0) - inner
            case Call("i64" | "i32", (x,)):
                return self._index(x)
            case Call("f32" | "f64", (x,)):
                inner = self._index(x)
                span = None if inner is None else bounds(inner, self.extents)
                return inner if span is not None and span[0] > -EXACT_F32 and span[1] < EXACT_F32 else None
        return None

    def _exact(self, e: Expr, sum_: Affine) -> Affine | None:
        """A sum, unless floats of it could be rounded."""
        span = bounds(sum_, self.extents)
        return sum_ if span is not None and span[0] > -EXACT_F32 and span[1] < EXACT_F32 else None


def rows_of(e: Expr) -> int | None:
    """Rows of the blocks that an integer of memory is of: 0 where it is the same in all rows, None where it is of no such blocks."""
    atoms = {atom for x in walk(e) if isinstance(x, Read) for i in x.index for atom, _ in i.terms if ROW in Affine(((atom, 1),)).axes()}
    extents = {atom.by if isinstance(atom, FloorDiv) and atom.of == axis(ROW) else None for atom in atoms}
    return 0 if not extents else extents.pop() if len(extents) == 1 else None


def _column_bounds(e: Affine, data: Expr | None = None) -> Bounds | None:
    """The bounds of columns at which an index expression, plus an integer of memory, is not negative; None without such edges."""
    blocks = [(atom.by, by) for atom, by in e.terms if isinstance(atom, FloorDiv) and atom.of == axis(WALK)]
    if blocks:
        extent, by_column = blocks[0]
        if len(e.terms) > 1 or abs(by_column) != 1:
            return None
        # Whole blocks of columns: column // extent <= x is column < extent * (x + 1).
        e = Affine((), e.const * extent + (extent - 1 if by_column < 0 else 0)) + axis(WALK) * by_column
        data = None if data is None else _times(data, extent)
    by_column = e.coefficient(WALK)
    slope = -by_column * e.coefficient(ROW)
    rest = Affine(e.terms, 0)
    if abs(by_column) != 1 or slope < 0 or not rest.is_linear or rest.axes() - {ROW, WALK}:
        return None
    rows = (rows_of(data) or 0) if data is not None else 0
    if by_column < 0:
        return Bounds(ends=((Edge(slope, e.const + 1, data, rows),),))
    return Bounds(starts=((Edge(slope, -e.const, data if data is None else _negated(data), rows),),))


def _times(e: Expr, factor: int) -> Expr:
    """An integer times a positive factor, cut off beyond the numbers of all blocks, so that the product does not wrap."""
    most = const(highest(I32).value, I64)
    return Call("mul", (Call("maximum", (Call("minimum", (Call("i64", (e,)), most)), Call("neg", (most,)))), const(factor, I64)))


def _negated(e: Expr) -> Expr:
    return e.args[0] if isinstance(e, Call) and e.fn == "neg" else Call("neg", (e,))


def _plain(e: Expr) -> Expr:
    """A comparison of a distance as two comparisons, a guarded truth as comparisons."""
    match e:
        case Call("le" | "lt" as fn, (Call("abs", (x,)), Const() as c)):
            return Call("logical_and", (Call(fn, (x, c)), Call(fn, (Call("neg", (x,)), c))))
        case Call("gt" | "ge" as fn, (Call("abs", (x,)), Const() as c)):
            return Call("logical_or", (Call(fn, (x, c)), Call(fn, (Call("neg", (x,)), c))))
        case Guard(facts, Const() as a, Const() as b) if a.dtype == b.dtype == BOOL and a.value != b.value:
            inside = _condition(facts)
            return inside if a.value else Call("logical_not", (inside,))
    return e


def _condition(facts: tuple[Bound, ...]) -> Expr:
    """Facts as comparisons."""
    parts: list[Expr] = []
    for b in facts:
        parts += [Call("ge", (Index(b.index), const(b.low, I64))), Call("lt", (Index(b.index), const(b.high, I64)))]
    whole = parts[0]
    for part in parts[1:]:
        whole = Call("logical_and", (whole, part))
    return whole
