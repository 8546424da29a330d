"""One turn of a walk between several products: scores arrive one after another, and products start as soon as elements are known.

    start s, d | draw | s arrives: powers | round them, start y0 | d arrives: the other elements | round them, start y1 | all products end

Scores' registers hold the elements before these are rounded: each score is read before an element takes its place.
"""
from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator

from tilefuse.emit.subscripts import kernel_dtype
from tilefuse.emit.vectors import vector_parts
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.dtype import U32, DType
from tilefuse.ir.scalar import Bound, Call, Expr, Guard, Lookup, Read, children, const, walk
from tilefuse.kernel.ir import Assign, Comment, Declare, If, KExpr, Reg, VectorLoad, VectorStore
from tilefuse.kernel.pipeline import WARPGROUP_ROWS, WarpgroupProduct, WarpgroupWait
from tilefuse.target.capabilities import MMA_COLUMNS
from tilefuse.target.warpgroup import NEIGHBOURS
from tilefuse.templates.staged.online.fragments import Fragment
from tilefuse.templates.staged.online.products import ROW, WALK, OnlineForm
from tilefuse.templates.staged.recomputed.form import held_elements, multiplied_elements
from tilefuse.templates.staged.recomputed.powers import bodies_of
from tilefuse.templates.staged.recomputed.state import BackState
from tilefuse.templates.staged.recomputed.turned_draws import TurnedBits
from tilefuse.templates.staged.walked.draws import Draw, DrawnBits
from tilefuse.templates.staged.walked.own_rows import Chunks, Known, parts_of_blocks, with_known
from tilefuse.templates.staged.walked.turn_range import lesser


class BackTurn:
    """The statements of one turn within its filling.

    kept_at, slot  slots of both rings
    start          first element of the walked axis
    row_values     parts of elements that a row keeps over all turns, as arrays over the thread's rows
    """

    def __init__(self, w: BackState, form: OnlineForm, here: Fragment, group: Affine, kept_at: Affine, slot: str, start: Affine,
                 row_values: dict[Expr, Reg], scores: list[Reg], lefts: list[Reg], sums: list[Reg]) -> None:
        self.w, self.form, self.here, self.group, self.start = w, form, here, group, start
        self.kept_at, self.slot, self.row_values = kept_at, slot, row_values
        self.scores, self.lefts, self.sums = scores, lefts, sums
        self.multiplied, self.elements = multiplied_elements(form), held_elements(form)
        self.early = early_part(form)
        self.drawn = tuple(self._bits(draw) for draw in w.walk.draws)
        names, limit = frozenset(form.reads), w.walk.form.limit
        self.is_bounded = limit is not None and limit.is_of_blocks and bool(w.edges_in_memory)
        self.reads_rows = any(isinstance(e, Lookup) or e not in w.biases and e.value not in names and ROW in _axes(e)
                              for body in bodies_of(form) for e in _reads(body, row_values))

    def emit(self) -> None:
        """Products and elements."""
        w, form = self.w, self.form
        started = len(form.scores)
        for n in range(len(form.scores)):
            w.emit(self._score(n))
        for bits in self.drawn:
            bits.declare()
            bits.draw(self.start)
        early = self._early_elements()
        if self.early is not None:
            w.emit(WarpgroupWait(started - 1), Comment("elements of the first score, in its place"))
            self._each({self.early: self.scores[0]}, 1)
            for e in early:
                started += self._use(e, self.scores[0])
        w.emit(WarpgroupWait(started - len(form.scores)))
        rest = tuple(e for e in self.elements if e not in early)
        place_by_element = dict(zip(rest, self._places(len(rest)), strict=True))
        w.emit(Comment("elements of all scores"))
        self._each(place_by_element, len(form.scores))
        for e, place in place_by_element.items():
            self._use(e, place)
        w.emit(WarpgroupWait(0))

    def _bits(self, draw: Draw) -> DrawnBits | TurnedBits:
        """The words of one comparison."""
        w, name = self.w, Reg(self.w.fresh("left_bits"), U32)
        if draw.along == WALK:
            return DrawnBits(w, self.here, {draw: name})
        return TurnedBits(w, self.here, w.place_of_thread[1], draw, name)

    def _early_elements(self) -> tuple[Expr, ...]:
        """Elements that depend on scores by the early part alone: itself, and such as drop it, where lanes drew the numbers before. Others
        come later, with the elements that the same numbers drop."""
        if self.early is None:
            return ()
        names, early, w = frozenset(self.form.reads), self.early, self.w
        drawn = {draw.condition.args[0] for draw in w.walk.draws}
        return tuple(e for e in self.elements if e == early or e in self.multiplied
                     and not any(x in w.biases or isinstance(x, Read) and x.value in names for x in _reads(e, (early,)))
                     and all(x in drawn for x in walk(e) if isinstance(x, Call) and x.fn == "random_bits"))

    # -- elements ----------------------------------------------------------------------------------------------------------

    def _places(self, count: int) -> list[Reg]:
        """Arrays for elements: those of scores, the last ones first; others where there are more elements."""
        w, places = self.w, self.scores[:0:-1]
        if self.early not in self.multiplied:
            places.append(self.scores[0])
        while len(places) < count:
            places.append(Reg(w.fresh("element"), self.scores[0].dtype))
            w.emit(Declare(places[-1].name, places[-1].dtype, self.here.size))
        return places[:count]

    def _each(self, place_by_element: dict[Expr, Reg], num_scores: int) -> None:
        """Computes elements of every score of the thread, of which `num_scores` scores are known, into arrays; 0 beyond the ends. Where
        memory bounds rows, the mask is left in the columns alone that it cuts for the rows of the thread's warpgroup."""
        w, bare = self.w, early_part(self.w.walk.form.whole)
        masked = next(iter(place_by_element))
        if not self.is_bounded or masked != self.early or bare is None or next(parts_of_blocks(masked), None) is None:
            self._each_of(place_by_element, num_scores, 0, w.walk.choice.columns)
            return

        def emit(first: int, end: int, known: Known) -> None:
            body = bare if known is None else with_known(masked, known)
            self._each_of({body: place_by_element[masked]}, num_scores, first, end)

        Chunks(w, self.start, w.walk.choice.columns, masked, emit).write()

    def _each_of(self, place_by_element: dict[Expr, Reg], num_scores: int, first: int, end: int) -> None:
        """The same for the columns of a turn from `first` to before `end`."""
        w, here = self.w, self.here
        with w.loop("g", end // MMA_COLUMNS, start=first // MMA_COLUMNS, unroll=w.unroll) as g:
            bodies = [*place_by_element, *(t.body for t in self.form.totals if num_scores == len(self.form.scores))]
            pairs = {read: self._pair(read, g) for read in w.vectors if any(read in walk(e) for e in bodies)}
            biases = {read: b.load(w, axis(self.slot), here, g) for read, b in w.biases.items() if any(read in walk(e) for e in bodies)}
            with w.loop("v", here.vector, unroll=w.unroll) as v, w.loop("i", here.rows, unroll=w.unroll) as i, self._at(i, g, v) as facts:
                place = here.place(i, g, v)
                with w.nested() as inner:
                    self._known(i, g, v, place, pairs, num_scores)
                    for read, pair in biases.items():
                        w.remember(read, Reg(pair.name, pair.dtype, i * here.vector + v))
                    values = [(Reg(r.name, r.dtype, place), w.register(_as(w.element(e), r.dtype), r.dtype, "element"))
                              for e, r in place_by_element.items()]
                    if num_scores == len(self.form.scores):
                        self._add_to_totals(i)
                    # From here on, places of scores have elements.
                    w.emit(*(Assign(reg, value) for reg, value in values))
                zeros = tuple(Assign(Reg(r.name, r.dtype, place), const(0, r.dtype)) for r in place_by_element.values())
                w.emit(*([If(facts, tuple(inner.statements), zeros)] if facts else inner.statements))

    def _add_to_totals(self, i: Affine) -> None:
        """Adds one score's elements to the sums of its row."""
        w = self.w
        for t in self.form.totals:
            own = w.carried[t.value]
            total = Reg(own.name, own.dtype, i)
            w.emit(Assign(total, Call("add", (total, _as(w.element(t.body), t.dtype)))))

    @contextlib.contextmanager
    def _at(self, i: Affine, g: Affine, v: Affine) -> Iterator[tuple[Bound, ...]]:
        """Inside, ROW and WALK are at one score of the thread; yields the bounds under which it exists."""
        w = self.w
        row, place = w.simplified(w.first_row + self.here.row(i)), w.simplified(self.start + self.here.column(g, v))
        if self.is_bounded or self.reads_rows:
            # No element asks for its row: the last one stands for those beyond the end.
            num_rows = w.walk.form.online.num_rows
            row = lesser(w, row, number(num_rows - 1), num_rows)
        with w.at(**{ROW: row, WALK: place}):
            yield w.beyond(**{WALK: place})

    def _known(self, i: Affine, g: Affine, v: Affine, place: Affine, pairs: dict[Read, Reg], num_scores: int) -> None:
        """Makes the scores and other values known that elements are computed from."""
        w = self.w
        for bits in self.drawn:
            if isinstance(bits, TurnedBits):
                bits.know(i, g, v)
            else:
                bits.know(i, g * self.here.vector + v)
        for n, (s, reg) in enumerate(zip(self.form.scores, self.scores, strict=True)):
            known = Reg(reg.name, reg.dtype, place)
            if n == 0 and num_scores > 1 and self.early is not None:
                w.remember(self.early, known)
            elif n < num_scores:
                w.remember(self.form.reads[s.value], known)
        for e, array in self.row_values.items():
            w.remember(e, Reg(array.name, array.dtype, i))
        for read, pair in pairs.items():
            w.remember(read, Reg(pair.name, pair.dtype, v))

    def _pair(self, read: Read, g: Affine) -> Reg:
        """Registers with a vector's elements for a group of columns."""
        w, buffer = self.w, self.w.vectors[read]
        tile = next(t for t in w.walk.vectors if t.read == read)
        pair = Reg(w.fresh(f"{read.value}_pair"), tile.dtype)
        at = w.simplified(axis(self.slot) * tile.elements + self.here.column(g, number(0)))
        w.emit(Declare(pair.name, pair.dtype, self.here.vector), VectorLoad(pair.name, number(0), buffer.name, at, self.here.vector))
        return pair

    def _round_early(self, e: Expr, left: Reg) -> None:
        """An element of the early part, which stays in its place, as a left operand: neighbours one after the other."""
        w, here = self.w, self.here
        with w.loop("g", here.groups, unroll=w.unroll) as g:
            pairs = {read: self._pair(read, g) for read in w.vectors if read in walk(e)}
            with w.loop("i", here.rows, unroll=w.unroll) as i, w.loop("v", here.vector, unroll=w.unroll) as v, self._at(i, g, v) as facts:
                place = here.place(i, g, v)
                target = Reg(left.name, left.dtype, place)
                with w.nested() as inner:
                    self._known(i, g, v, place, pairs, len(self.form.scores))
                    w.emit(Assign(target, _as(w.element(e), left.dtype)))
                zero = (Assign(target, const(0, left.dtype)),)
                w.emit(*([If(facts, tuple(inner.statements), zero)] if facts else inner.statements))

    # -- products ----------------------------------------------------------------------------------------------------------

    def _score(self, n: int) -> WarpgroupProduct:
        plan, slots = self.w.walk, self.w.slots
        left, right = plan.own[n], plan.walked[plan.form.rights[n]]
        along = left.operand.inner_is_contiguous
        first = self.group * (WARPGROUP_ROWS * (left.width if along else left.depth))
        return WarpgroupProduct(
            self.scores[n].name, slots[left.key].name, self.kept_at * left.elements + first, left.panel_lines * left.width, not along,
            slots[right.key].name, axis(self.slot) * right.elements, right.panel_lines * right.width, right.operand.inner_is_contiguous,
            WARPGROUP_ROWS, plan.choice.columns, plan.inner(n), term=number(0))

    def _use(self, e: Expr, source: Reg) -> int:
        """Starts the products of an element, and stores it beside them where it is written. Returns the number of products."""
        started = self._multiply(e, source) if e in self.multiplied else 0
        for name, written in self.form.element_results:
            if written == e:
                self._store(name, self.lefts[self.multiplied.index(e)] if started else source)
        return started

    def _store(self, name: str, source: Reg) -> None:
        """Stores the elements of every score of the thread that exists: neighbouring columns together where they lie so."""
        w, here, dtype = self.w, self.here, self.w.buffers[name].dtype
        lane = w.fresh("v")
        w.frame.extents[lane] = here.vector
        with w.loop("g", here.groups, unroll=w.unroll) as g, w.loop("i", here.rows, unroll=w.unroll) as i:
            row, column = w.simplified(w.first_row + here.row(i)), self.start + here.column(g, number(0))
            out = Reg(w.fresh(f"{name}_out"), dtype)
            with w.at(**{ROW: row, WALK: column + axis(lane)}):
                offset = w.global_offset(name, self.form.points[name])
            with w.when(w.beyond(**{ROW: row})):
                w.emit(Declare(out.name, dtype, here.vector))
                for v in range(here.vector):
                    element = Reg(source.name, source.dtype, here.place(i, g, number(v)))
                    w.emit(Assign(Reg(out.name, dtype, number(v)), _as(element, dtype)))
                # Neighbours exist together, or each has a bound of its own.
                count = here.vector if w.walk.length % here.vector == 0 else 1
                for first in range(0, here.vector, count):
                    with w.when(w.beyond(**{WALK: w.simplified(column + first)})):
                        for start, part in vector_parts(offset, lane, count, dtype):
                            at = substitute(offset, {lane: number(first + start)}, w.extents)
                            w.emit(VectorStore(w.buffers[name].name, at, out.name, number(first + start), part))

    def _multiply(self, e: Expr, source: Reg) -> int:
        """Rounds an element to a left operand, and starts the products with it: their number. source: the element, or the early part."""
        w, plan, left = self.w, self.w.walk, self.lefts[self.multiplied.index(e)]
        if source is self.scores[0] and e != self.early and e in self._early_elements():
            self._round_early(e, left)
        else:
            with w.loop("n", self.here.size // NEIGHBOURS, unroll=w.unroll) as n:
                for v in range(NEIGHBOURS):
                    at = n * NEIGHBOURS + v
                    w.emit(Assign(Reg(left.name, left.dtype, at), Call(left.dtype.name, (Reg(source.name, source.dtype, at),))))
        of = [number_ for number_, p in enumerate(self.form.weighted) if p.total.body == e]
        for number_ in of:
            right = plan.walked[plan.form.weights[number_]]
            w.emit(WarpgroupProduct(
                self.sums[number_].name, left.name, number(0), 0, False, w.slots[right.key].name, axis(self.slot) * right.elements,
                right.panel_lines * right.width, not right.operand.inner_is_contiguous, WARPGROUP_ROWS, plan.width(number_),
                plan.choice.columns, left_registers=True))
        return len(of)


def early_part(form: OnlineForm) -> Expr | None:
    """The one expression by which all elements depend on the first score, where it depends on no other score; None for none or several.

    Elements may choose between it and another value, as those that are dropped.
    """
    first = form.reads[form.scores[0].value]
    others = frozenset(form.reads[s.value] for s in form.scores[1:])
    if not others:
        return None
    parts = list(dict.fromkeys(p for body in bodies_of(form) for p in _parts(body, first, others)))
    shared = [p for p in parts if all(first not in _reads(other, (p,)) for other in parts)]
    return shared[0] if shared and shared[0] != first else None


def _parts(e: Expr, first: Read, others: frozenset[Read]) -> Iterator[Expr]:
    """The largest parts of an expression that depend on one score and on no other."""
    inside = frozenset(x for x in walk(e) if isinstance(x, Read))
    if first not in inside:
        return
    if not inside & others:
        yield e
        return
    if isinstance(e, Guard):
        # Neither side is computed where the other one is taken.
        yield first
        return
    for part in children(e):
        yield from _parts(part, first, others)


def _as(e: KExpr, dtype: DType) -> KExpr:
    return e if kernel_dtype(e) == dtype else Call(dtype.name, (e,))


def _axes(e: Read) -> frozenset[str]:
    return frozenset[str]().union(*(i.axes() for i in e.index))


def _reads(e: Expr, known: Container[Expr]) -> Iterator[Read | Lookup]:
    """Reads in an expression, but for those within parts that are known."""
    if e in known:
        return
    if isinstance(e, Read | Lookup):
        yield e
    for part in children(e):
        yield from _reads(part, known)
