"""Combination of the blocks' partial values: by the last block, in a second kernel, or by atomics on cleared results.

    workspace   block 0 | w0 w1 w2 ...        threads (word, g) add rows g, g + G, ...; then the G sums are combined
                block 1 | w0 w1 w2 ...
The order of additions is fixed, except with atomics. Source: Filipovic et al., "Optimizing CUDA Code by Kernel Fusion", section 3.2.2.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import InternalError
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.counts import Operand, ceil, most
from tilefuse.ir.dtype import BOOL, I32
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import (
    Assign,
    Barrier,
    Buffer,
    Comment,
    Declare,
    For,
    If,
    IfValue,
    Kernel,
    LastBlock,
    Let,
    Load,
    Pointer,
    Reg,
    RoutineCall,
    Stmt,
    Touched,
)
from tilefuse.scripts.compose.partials import (
    combine,
    exchange,
    from_slab,
    padded_words,
    repeated_once,
    result,
    row_of_workspace,
    to_slab,
    workspace,
)
from tilefuse.scripts.compose.writer import RoutineWriter
from tilefuse.scripts.language.elementary import ThreadMapping
from tilefuse.scripts.schedule.combine import combine_threads
from tilefuse.scripts.schedule.elements import ATOMICS, LAST_BLOCK, SECOND_KERNEL, Element
from tilefuse.target.launch import Launch


def _finished_by(w: RoutineWriter, finish: str) -> list[Element]:
    """One element of every output whose partial values this finish combines."""
    element_by_variable: dict[str, Element] = {}
    for e in w.fused.elements.values():
        if e.partial and w.fused.reductions[e.variable].finish == finish:
            element_by_variable.setdefault(e.variable, e)
    return list(element_by_variable.values())


def last_blocks(w: RoutineWriter) -> tuple[Stmt, ...]:
    """The last block to arrive adds up the partial values of all that share its words. Outputs with the same blocks share a counter."""
    by_blocks: dict[tuple[str, ...], list[Element]] = {}
    for e in _finished_by(w, LAST_BLOCK):
        by_blocks.setdefault(w.fused.reductions[e.variable].over, []).append(e)
    statements: list[Stmt] = []
    for n, (over, elements) in enumerate(by_blocks.items()):
        remaining = [d for d in w.fused.grid.extents if d not in over]
        index, cells = number(0), number(1)
        for d in remaining:  # at most one: the blocks along the other direction share the words
            index, cells = w.block(d), w.blocks(d)
        counter, last = f"arrivals_{n}", f"last_{n}"
        count = None if w.fused.sized is None else w.sizes.count(cells)
        w.scratch.append(Buffer(counter, I32, w.sizes.most(cells), "global", "counter", "", 0, count))
        body: list[Stmt] = []
        w.extra_is_read = False
        for e in elements:
            body += _of_this_block(w, e)
        arrivals = _constant_or(w.sizes.partials(elements[0].variable))
        statements += [Declare(last, BOOL), LastBlock(Reg(last, BOOL), counter, index, arrivals),
                       IfValue(Reg(last, BOOL), tuple(body), uniform=True)]
    return tuple(statements)


def _constant_or(e: Affine) -> int | Affine:
    return e.const if e.is_const else e


def _of_this_block(w: RoutineWriter, e: Element) -> tuple[Stmt, ...]:
    """Completes the words that this block shares with others: those of one tile, or of all tiles of its walk."""
    if w.walk not in e.axes:
        return _sums(w, e, w.fused.threads, [w.block(d) for d in e.axes], e.words, e.words)
    # One thread for each word of all tiles of the walk, without barriers.
    sizes = w.sizes
    tiles, chunks = sizes.tiles(w.walk), sizes.chunks
    most = sizes.most(tiles)
    lets, walked = sizes.quotient("walked", tiles + chunks - 1, chunks, most)
    name, rows, value = workspace(w, e), sizes.partials(e.variable), f"{e.variable}_total"

    def one(n: Affine) -> tuple[Stmt, ...]:
        tile, word = axis(f"tile_of_{e.name}"), n % e.words
        body = (*from_slab(w, e, name, rows, padded_words(w, e), tile * e.words + word, value),
                *result(w, e, Reg(value, e.unit, number(0)), word, [tile]))
        first, begins = sizes.product(f"turn_of_{e.name}", n // e.words, chunks, 2 * most)
        at = begins + w.block(w.walk)
        last = walked.const * chunks.const if walked.is_const and chunks.is_const else 3 * most
        return (*first, Let(f"tile_of_{e.name}", at, last), If((sizes.below(tile, tiles),), body))

    return (*lets, *w.spread_over_threads(_constant_or(walked * e.words), one))


def _sums(w: RoutineWriter, e: Element, threads: int, tiles: Sequence[Affine], words: int, extent: int) -> tuple[Stmt, ...]:
    """Completes the `words` words of a tile of `extent` words; all threads of the block take part."""
    wide = 1 << (words - 1).bit_length()
    name, rows = workspace(w, e), w.sizes.partials(e.variable)
    stride = padded_words(w, e)
    start = tiles[0] * extent if tiles else number(0)
    value = f"{e.variable}_total"
    if wide >= threads or threads & (threads - 1):
        def one(word: Affine) -> tuple[Stmt, ...]:
            return (*from_slab(w, e, name, rows, stride, start + word, value), *_store_total(w, e, value, word, tiles, extent))

        return w.spread_over_threads(words, one) if threads == w.fused.threads else _guarded(words, threads, one(axis("thread")))
    each = threads // wide
    word, group = (axis("thread") % wide if wide > 1 else number(0)), axis("thread") // wide
    function, implementation, _ = w.role(*e.owner)
    other = f"{value}_other"
    clear = RoutineCall(w.namespaces.clear(function, implementation, 1), (Reg(value, e.unit, number(0)),),
                        (Touched(value, axis("tf_w"), (("tf_w", e.units),), True, True),))
    lets, begins = row_of_workspace(w, axis("row"), stride)
    at = (begins + start + word) * e.units
    loads = [*lets, *(Assign(Reg(other, e.unit, number(u)), Load(name, e.unit, at + u)) for u in range(e.units))]
    loop = For("row", group, rows, each, (Declare(other, e.unit, e.units), *loads,
                                                  *combine(w, e, Reg(value, e.unit, number(0)), Reg(other, e.unit, number(0)))))
    # A tile of a second kernel may end beyond a row of the workspace.
    in_row = [Bound(word, 0, words)] if wide > words else []
    whole_rows = all(c % extent == 0 for c in (stride.const, *(c for _, c in stride.terms)))
    in_row += [w.sizes.below(start + word, stride)] if tiles and extent != e.words and not whole_rows else []
    statements: list[Stmt] = [Declare(value, e.unit, e.units), clear, If(tuple(in_row), (loop,)) if in_row else loop]
    mapping = ThreadMapping((1,), (axis("tx"),) if wide > 1 else ())
    combination = combine_threads(mapping, (wide, each), threads, (wide,) if wide > 1 else ())
    if isinstance(combination, Rejected):
        raise InternalError(f"partial values of %{e.variable} cannot be combined: {combination}; please report")
    statements += exchange(w, e, value, combination)
    if combination.copies > 1:
        slab = _extra_slab(w, e, combination.copies * wide)
        total = f"{value}_done"
        statements += [*([Barrier()] if w.extra_is_read else []), *to_slab(e, value, combination, slab), Barrier()]
        w.extra_is_read = True
        statements += _guarded(words, threads, (*from_slab(w, e, slab, combination.copies, wide, axis("thread"), total),
                                           *_store_total(w, e, total, axis("thread"), tiles, extent)))
    else:
        at = substitute(combination.word, {"slot": number(0)})
        bounds = (*repeated_once(combination), *((Bound(at, 0, words),) if wide > words else ()))
        stores = _store_total(w, e, value, at, tiles, extent)
        statements += [If(bounds, stores)] if bounds else stores
    return tuple(statements)


def _guarded(words: int, threads: int, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    return (If((Bound(axis("thread"), 0, words),), body),) if words < threads else body


def _store_total(w: RoutineWriter, e: Element, value: str, word: Affine, tiles: Sequence[Affine], extent: int) -> tuple[Stmt, ...]:
    if extent == e.words:
        return result(w, e, Reg(value, e.unit, number(0)), word, tiles)
    # The tiles of a second kernel differ from those of the first.
    return result(w, replace(e, extents=(extent,)), Reg(value, e.unit, number(0)), word, tiles)


def _extra_slab(w: RoutineWriter, e: Element, words: int) -> str:
    """Shared memory for the last block's sums. It overlaps the elements of tiles, which are not read any more."""
    name = f"{e.variable}_total_partials"
    if all(b.name != name for b in w.extra_buffers):
        w.extra_buffers.append(Buffer(name, e.unit, words * e.units, "shared", "", e.variable, 0))
    return name


def second_kernels(w: RoutineWriter) -> tuple[Kernel, ...]:
    """A kernel for every output whose partial values it adds up."""
    return tuple(_second_kernel(w, e) for e in _finished_by(w, SECOND_KERNEL))


def _second_kernel(w: RoutineWriter, e: Element) -> Kernel:
    own = RoutineWriter(w.fused)
    count = own.sizes.extent(e.axes[0]) if e.axes else number(1)
    figures = w.fused.device.fitted.scripts
    words, threads = figures.combining_words if e.axes else 1, figures.combining_threads
    blocks = max(-(-own.sizes.most(count) // words), 1)
    tiles = [axis("block_x")] if e.axes else []
    body = (Let("block_x", axis("block"), blocks), *_sums(own, e, threads, tiles, words, words))
    scratch = replace(own.scratch[0], role="in")
    shared = max((b.num_elements * b.dtype.itemsize for b in own.extra_buffers), default=0)
    launch = Launch(blocks, threads, 1, -(-shared // 16) * 16, w.fused.device.starts_early)
    kernel = Kernel(f"{w.fused.name}_{e.variable}", (*own.buffers.values(), scratch, *own.extra_buffers), launch, body,
                  (f"adds up the partial values of %{e.variable}",), routines=own.namespaces.texts())
    return own.sizes.with_arguments(kernel, most(ceil(own.sizes.count(count), words), 1))


def clear_kernel(w: RoutineWriter) -> tuple[Kernel, ...]:
    """The kernel that sets the results of atomic updates to the neutral element; none if there are no such results."""
    elements = _finished_by(w, ATOMICS)
    if not elements:
        return ()
    own, threads = RoutineWriter(w.fused), w.fused.device.fitted.scripts.combining_threads
    body: list[Stmt] = [Comment("results that are updated by atomics")]
    largest = 1
    words: Operand = 1
    for e in elements:
        function, implementation, _ = own.role(*e.owner)
        own.add_parameter(e.variable, True)
        count = own.sizes.extent(e.axes[0]) if e.axes else number(1)
        largest, words = max(largest, own.sizes.most(count)), most(words, own.sizes.count(count))
        word = axis("block") * threads + axis("thread")
        at = word if e.axes else number(0)
        name = own.namespaces.clear(function, implementation, 1)
        call = RoutineCall(name, (Pointer(e.variable, at),), (Touched(e.variable, at, (), True),))
        body.append(If((own.sizes.below(word, count),), (call,)))
    launch = Launch(-(-largest // threads), threads, 1, 0, w.fused.device.starts_early)
    kernel = Kernel(f"{w.fused.name}_clear", tuple(own.buffers.values()), launch, tuple(body), ("clears results",),
                  routines=own.namespaces.texts())
    return (own.sizes.with_arguments(kernel, ceil(words, threads)),)
