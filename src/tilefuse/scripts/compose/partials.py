"""Partial values of reductions: exchanges within warps, copies of warps in shared memory, and the stores of a block.

    gather:  y_l[0..7] of 32 lanes  ->  lane l holds the sum of word l / 4  ->  slab[warp][word]
    finish:  threads 0 .. words - 1 add the rows of the slab; the result, an atomic update, or a row of the workspace takes the sum
A word is one value, or several 32-bit words of a struct that a routine combines.
"""
from __future__ import annotations

from collections.abc import Sequence

from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.counts import times
from tilefuse.ir.scalar import Bound, Call, Guard
from tilefuse.kernel.ir import (
    Assign,
    Atomic,
    Buffer,
    Declare,
    For,
    If,
    Load,
    Pointer,
    Reg,
    RoutineCall,
    Shuffle,
    Stmt,
    Store,
    Touched,
)
from tilefuse.scripts.compose.writer import Iteration, RoutineWriter
from tilefuse.scripts.language.elementary import ElementaryFunction
from tilefuse.scripts.schedule.combine import ThreadCombination
from tilefuse.scripts.schedule.elements import ATOMICS, SECOND_KERNEL, SINGLE, Element
from tilefuse.scripts.schedule.sizes import strides_of

OPERATORS = {"+": ("add", "sum"), "max": ("maximum", "max"), "min": ("minimum", "min")}


def combine(w: RoutineWriter, e: Element, into: Reg, other: Reg) -> tuple[Stmt, ...]:
    """into = into combined with other; both point to one word."""
    function, implementation, _ = w.role(*e.owner)
    if function.state:
        touched = (Touched(into.name, (into.index or number(0)) + axis("tf_w"), (("tf_w", e.units),), False, True),
                   Touched(other.name, (other.index or number(0)) + axis("tf_w"), (("tf_w", e.units),), False, True))
        return (RoutineCall(w.namespaces.combine(function, implementation), (into, other), touched),)
    return (Assign(into, Call(operator_of(function)[0], (into, other))),)


def operator_of(function: ElementaryFunction) -> tuple[str, str]:
    """(scalar function, atomic operation) of a reduction of plain values."""
    return OPERATORS[function.operator]


def exchange(w: RoutineWriter, e: Element, array: str, combination: ThreadCombination) -> tuple[Stmt, ...]:
    """The exchanges within warps: afterwards a thread holds `combination.slots` words at the start of its array."""
    statements: list[Stmt] = []
    slots = combination.slots << sum(halved for _, halved in combination.lanes)
    units = e.units
    for bit, halved in combination.lanes:
        slots = slots // 2 if halved else slots
        upper = Bound(axis("thread") // (1 << bit) % 2, 1, 2)
        for slot in range(slots):
            sent, received = (f"{array}_{bit}_{slot}_{x}" for x in ("sent", "got"))
            body: list[Stmt] = [Declare(n, e.unit, units) for n in (sent, received)]
            for u in range(units):
                lower_word = Reg(array, e.unit, number(slot * units + u))
                if halved:
                    upper_word = Reg(array, e.unit, number((slot + slots) * units + u))
                    body.append(Assign(Reg(sent, e.unit, number(u)), Guard((upper,), lower_word, upper_word)))
                    body.append(Assign(lower_word, Guard((upper,), upper_word, lower_word)))
                else:
                    body.append(Assign(Reg(sent, e.unit, number(u)), lower_word))
                body.append(Shuffle(Reg(received, e.unit, number(u)), Reg(sent, e.unit, number(u)), "xor", 1 << bit))
            statements += (*body, *combine(w, e, Reg(array, e.unit, number(slot * units)), Reg(received, e.unit, number(0))))
    return tuple(statements)


def repeated_once(combination: ThreadCombination) -> tuple[Bound, ...]:
    """Bounds that hold for one of the lanes with equal values."""
    return tuple(Bound(axis("thread") // (1 << bit) % 2, 0, 1) for bit in combination.repeated)


def to_slab(e: Element, array: str, combination: ThreadCombination, slab: str) -> tuple[Stmt, ...]:
    """Words of this warp into its row of the slab."""
    row = number(0)
    for n, bit in enumerate(combination.upper):
        row = row + axis("thread") // (1 << bit) % 2 * (1 << n)
    stores = []
    for slot in range(combination.slots):
        word = substitute(combination.word, {"slot": number(slot)})
        at = (row * combination.words + word) * e.units
        stores += [Store(slab, at + u, Reg(array, e.unit, number(slot * e.units + u))) for u in range(e.units)]
    bounds = repeated_once(combination)
    return (If(bounds, tuple(stores)),) if bounds else tuple(stores)


def from_slab(w: RoutineWriter, e: Element, slab: str, rows: int | Affine, stride: int | Affine, word: Affine,
              value: str) -> tuple[Stmt, ...]:
    """Declares `value` as the combination of a word's copies: rows of `stride` words."""
    rows, stride = (number(n) if isinstance(n, int) else n for n in (rows, stride))

    def load(row: Affine, name: str) -> list[Stmt]:
        lets, begins = row_of_workspace(w, row, stride)
        at = (begins + word) * e.units
        return [*lets, *(Assign(Reg(name, e.unit, number(u)), Load(slab, e.unit, at + u)) for u in range(e.units))]

    statements: list[Stmt] = [Declare(value, e.unit, e.units), *load(number(0), value)]
    if not rows.is_const or rows.const > 1:
        other = f"{value}_other"
        into, addend = Reg(value, e.unit, number(0)), Reg(other, e.unit, number(0))
        body = (Declare(other, e.unit, e.units), *load(axis("row"), other), *combine(w, e, into, addend))
        statements.append(For("row", number(1), rows, 1, body))
    return tuple(statements)


def row_of_workspace(w: RoutineWriter, row: Affine, stride: Affine) -> tuple[tuple[Stmt, ...], Affine]:
    """(statements, first word of a row of partial values); rows are `stride` words apart."""
    is_affine = row.is_const or stride.is_const
    return w.sizes.product("row_begins", row, stride, 0 if is_affine else w.sizes.most_handed - 1)


def gather(w: RoutineWriter, e: Element, slab: str) -> tuple[Stmt, ...]:
    """Combines a block's partial values within warps, and stores the copies of warps to the slab."""
    combination = w.fused.reductions[e.variable].combination
    if combination is None:
        return ()
    statements = exchange(w, e, f"{e.name}_l", combination)
    return (*statements, *to_slab(e, f"{e.name}_l", combination, slab)) if slab else statements


def finish(w: RoutineWriter, e: Element, slab: str, iteration: Iteration) -> tuple[Stmt, ...]:
    """Combines the copies of a block's partial values and delivers them."""
    combination = w.fused.reductions[e.variable].combination
    tiles = [(iteration.tile + e.copy * iteration.stride if d == w.walk and iteration.tile is not None else w.block(d)) for d in e.axes]
    if combination is None or slab:
        rows, stride, source = (combination.copies, e.words, slab) if combination else (1, e.words, f"{e.name}_l")
        if combination is None and not w.fused.grid.nested:
            rows, stride = w.fused.decision.instances, e.shared_words
        value = f"{e.name}_sum"

        def one(word: Affine) -> tuple[Stmt, ...]:
            return (*from_slab(w, e, source, rows, stride, word, value), *deliver(w, e, Reg(value, e.unit, number(0)), word, tiles))

        return w.spread_over_threads(e.words, one)
    statements: list[Stmt] = []
    for slot in range(combination.slots):
        word = substitute(combination.word, {"slot": number(slot)})
        statements += deliver(w, e, Reg(f"{e.name}_l", e.unit, number(slot * e.units)), word, tiles)
    bounds = repeated_once(combination)
    return (If(bounds, tuple(statements)),) if bounds else tuple(statements)


def deliver(w: RoutineWriter, e: Element, value: Reg, word: Affine, tiles: Sequence[Affine]) -> tuple[Stmt, ...]:
    """Stores one word of a block: to the result if no other block has partial values, by an atomic update, or to its workspace row."""
    reduction = w.fused.reductions[e.variable]
    if reduction.finish == SINGLE:
        return result(w, e, value, word, tiles)
    if reduction.finish == ATOMICS:
        function, _, _ = w.role(*e.owner)
        w.add_parameter(e.variable, True, updates=True)
        index, bounds = place(w, e, word, tiles)
        update = Atomic(operator_of(function)[1], e.variable, index, value)
        return (If(bounds, (update,)),) if bounds else (update,)
    if len(reduction.over) == len(w.fused.grid.extents) and w.fused.sized is not None:
        row = axis("block")  # every block has a row
    else:
        row = number(0)
        for d in reduction.over:
            row = row * w.blocks(d).const + w.block(d) if row != number(0) else w.block(d)
    lets, begins = row_of_workspace(w, row, padded_words(w, e))
    at = (begins + tile_word(e, word, tiles)) * e.units
    name = workspace(w, e)
    assert value.index is not None
    return (*lets, *(Store(name, at + u, Reg(value.name, value.dtype, value.index + u)) for u in range(e.units)))


def result(w: RoutineWriter, e: Element, value: Reg, word: Affine, tiles: Sequence[Affine]) -> tuple[Stmt, ...]:
    """Stores a complete word to the result, through the function's `finish` routine if it has one."""
    function, implementation, p = w.role(*e.owner)
    w.add_parameter(e.variable, True)
    index, bounds = place(w, e, word, tiles)
    if not function.finishes:
        store: tuple[Stmt, ...] = (Store(e.variable, index, value),)
        return (If(bounds, store),) if bounds else store
    name = w.namespaces.finish(function, implementation)
    assert value.index is not None
    touched = (Touched(value.name, value.index + axis("tf_w"), (("tf_w", e.units),), False, True),
               Touched(e.variable, index, (), True))
    call: tuple[Stmt, ...] = (RoutineCall(name, (value, Pointer(e.variable, index)), touched),)
    return (If(bounds, call),) if bounds else call


def place(w: RoutineWriter, e: Element, word: Affine, tiles: Sequence[Affine]) -> tuple[Affine, tuple[Bound, ...]]:
    """(index of a tile's word in the result, bounds that hold if the word is inside the data)."""
    strides = strides_of(w.fused.graph.variables[e.variable])
    index, bounds = number(0), []
    for d, extent, tile, stride in zip(e.axes, e.extents, tiles, strides, strict=True):
        at = tile * extent + (word if len(e.axes) == 1 else word % extent)
        index = index + at * stride.const  # results of reductions are dense
        words = w.sizes.extent(d)
        if not words.is_const or words.const % extent or not words.const:
            bounds.append(w.sizes.inside(at, d))
    return index, tuple(bounds)


def tile_word(e: Element, word: Affine, tiles: Sequence[Affine]) -> Affine:
    """Number of a word in a row of the workspace, which holds whole tiles."""
    return tiles[0] * e.words + word if tiles else word


def padded_words(w: RoutineWriter, e: Element) -> Affine:
    """Words of a row of the workspace."""
    return w.sizes.tiles(e.axes[0]) * e.words if e.axes else number(1)


def workspace(w: RoutineWriter, e: Element) -> str:
    """The buffer that holds the blocks' partial values of an output."""
    name = f"{e.variable}_blocks"
    if all(b.name != name for b in w.scratch):
        reduction = w.fused.reductions[e.variable]
        # A second kernel reads the workspace after this kernel; a last block reads it within the kernel.
        role = "out" if reduction.finish == SECOND_KERNEL else "workspace"
        words, count = reduction.partials * e.units, None
        if w.fused.sized is None:
            words *= padded_words(w, e).const
        else:
            words = w.sizes.most_handed * e.units
            count = times(w.sizes.count(w.sizes.partials(e.variable)), w.sizes.count(padded_words(w, e)), e.units)
        w.scratch.append(Buffer(name, e.unit, words, "global", role, e.variable, 0, count))
    return name
