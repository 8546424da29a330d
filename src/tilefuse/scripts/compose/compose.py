"""FusedRoutines -> kernel IR: the paper's algorithm 1 around the routine calls, and the kernels before and behind it.

    registers, thread and block indices      before      loop over whole tiles { group }  { single }      edge      after
Whole tiles are loaded with 16-byte accesses and no bounds; the tile that reaches over the edge of the data runs once, with bounds.
Composing decides nothing. Source: Filipovic et al., "Optimizing CUDA Code by Kernel Fusion", section 4.3.2.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import Buffer, Declare, For, If, Kernel, Let, Load, Stmt
from tilefuse.kernel.widths import check_launch, with_index_bits
from tilefuse.scripts.compose.finish import clear_kernel, last_blocks, second_kernels
from tilefuse.scripts.compose.step import step
from tilefuse.scripts.compose.tiles import behind_groups, edge_tile, may_exceed, most_turns
from tilefuse.scripts.compose.triangle import ends_early, triangle_walk
from tilefuse.scripts.compose.writer import RoutineWriter, Where
from tilefuse.scripts.schedule.routines import FusedRoutines
from tilefuse.scripts.schedule.sizes import Case
from tilefuse.scripts.schedule.steps import Step, elements_of
from tilefuse.target.launch import Launch


def compose_routines(fused: FusedRoutines) -> tuple[Kernel, ...]:
    """The kernels of a fusion, in order: what clears results of atomics, the fused kernel, second kernels of reductions.

    Raises: UnsupportedError where one has more blocks than a launch can have.
    """
    w = RoutineWriter(fused)
    nowhere = Where(None, dict.fromkeys(fused.grid.extents, False))
    top = _declared(w, (*fused.before, *fused.after), frozenset())
    outer = frozenset(d.name for d in top)
    loops = _loops(w, outer)
    after = (*_steps(w, fused.after, nowhere), *last_blocks(w))
    scalars = [Declare(r.name, r.dtype, None, Load(v, r.dtype, number(0))) for v, r in w.scalars.items() if v not in w.computed]
    body = (*_block_indices(w), *w.lets, *scalars, *top, *loops, *after)
    shared = (*_shared_buffers(fused), *w.extra)
    num_bytes = max((b.offset_bytes + b.num_elements * b.dtype.itemsize for b in shared), default=0)
    num_bytes = -(-num_bytes // 16) * 16 + fused.extra_shared_bytes
    launch = Launch(w.sizes.most_blocks, fused.threads, 1, num_bytes, fused.device.starts_early)
    buffers = (*w.buffers.values(), *w.scratch, *shared)
    main = Kernel(fused.name, buffers, launch, tuple(body), _header(fused), routines=w.namespaces.texts())
    kernels = tuple(map(with_index_bits, (*clear_kernel(w), w.sizes.of(main, w.sizes.num_blocks), *second_kernels(w))))
    if fused.device.kind == "cuda":
        for kernel in kernels:
            check_launch(kernel)
    return kernels


def _header(fused: FusedRoutines) -> tuple[str, ...]:
    names = ", ".join(f"{', '.join(c.results)} = {c.function.name}({', '.join(map(str, c.arguments))})"
                      for c in (fused.call(k) for k in range(len(fused.decision.calls))))
    moved = (f"moves {fused.transfers} words",) if fused.sized is None else (_needs(fused.sized.case),)
    return (f"calls: {names}", f"decision: {fused.decision}", *moved)


def _needs(case: Case) -> str:
    rows = "rows of matrices begin at 16 bytes" if case.aligned else "matrices of any width"
    return f"sizes are arguments: up to {case.most_extent} words along each, {rows}"


def _block_indices(w: RoutineWriter) -> tuple[Stmt, ...]:
    """Block numbers along the directions; blocks that follow each other lie side by side along x.

    Where a triangle ends the walks of some blocks early, those with the longest come first, so that short ones fill the end.
    """
    sizes = w.sizes
    if w.other is None:
        return (Let("block_x", axis("block"), sizes.most(w.blocks("x"))),)
    along, most = w.blocks("x"), {d: sizes.most(w.blocks(d)) for d in "xy"}
    first, x = sizes.remainder("launched_x", axis("block"), along, most["x"] - 1)
    second, y = sizes.quotient("launched_y", axis("block"), along, most["y"] - 1)
    numbers = {"x": x, "y": y}
    if ends_early(w.fused):
        numbers[w.other] = w.blocks(w.other) - 1 - numbers[w.other]
    return (*first, *second, *(Let(f"block_{d}", at, most[d]) for d, at in numbers.items()))


def _shared_buffers(fused: FusedRoutines) -> tuple[Buffer, ...]:
    instances = 1 if fused.grid.nested else fused.decision.instances
    buffers = []
    for name, offset in fused.shared.items():
        slab = name in fused.slab_words
        e = fused.elements[name.removesuffix("_partials") if slab else name]
        words = fused.slab_words[name] if slab else e.shared_words * instances
        buffers.append(Buffer(name if slab else f"{name}_l", e.unit, words * e.units, "shared", "", e.variable, offset))
    return tuple(buffers)


def _declared(w: RoutineWriter, stage: Iterable[Step], known: frozenset[str]) -> tuple[Declare, ...]:
    """Register arrays of a stage that are not known already."""
    names = dict.fromkeys(name for s in stage for name in elements_of(s) if name in w.fused.elements)
    elements = [w.fused.elements[n] for n in names if w.fused.elements[n].in_registers]
    return tuple(Declare(f"{e.name}_l", e.unit, e.held * e.units) for e in elements if f"{e.name}_l" not in known)


def _steps(w: RoutineWriter, stage: Iterable[Step], where: Where) -> tuple[Stmt, ...]:
    return tuple(x for s in stage for x in step(w, s, where))


def _loops(w: RoutineWriter, outer: frozenset[str]) -> tuple[Stmt, ...]:
    """The stage before the loop and the loop, for blocks whose tiles lie inside the data across the walk and for those at its edge."""
    o = w.other
    if o is None or w.sizes.whole(o) == w.sizes.tiles(o):
        return _walk(w, outer, True)
    whole = w.sizes.whole(o)
    if whole == number(0):
        return _walk(w, outer, False)
    return (If((w.sizes.below(w.block(o), whole),), _walk(w, outer, True), _walk(w, outer, False)),)


def _walk(w: RoutineWriter, outer: frozenset[str], inside_other: bool) -> tuple[Stmt, ...]:
    fused, d, sizes = w.fused, w.walk, w.sizes
    chunks, unroll, whole, tiles = sizes.chunks, fused.decision.unroll, sizes.whole(d), sizes.tiles(d)
    inside = dict.fromkeys(fused.grid.extents, inside_other)
    before = _steps(w, fused.before, Where(None, inside | {d: False}))

    def body(stage: Sequence[Step], tile: Affine, whole_tile: bool) -> tuple[Stmt, ...]:
        return (*_declared(w, stage, outer), *_steps(w, stage, Where(tile, inside | {d: whole_tile}, chunks)))

    block, tile = w.block(d), axis("tile")
    if fused.grid.triangle:
        return (*before, *triangle_walk(w, body, inside_other))
    turns = most_turns(w)
    if not inside_other:
        return (*before, *_tiles(w, block, tiles, chunks, chunks, body(fused.edge, tile, False), turns))
    statements: list[Stmt] = list(before)
    start = block
    grouped, ahead = chunks * unroll, chunks * (unroll - 1)
    singles = whole != number(0) and (unroll == 1 or not _divides(grouped, whole))
    if turns == unroll > 1:
        # A block's tiles are one group, or fewer.
        group = (Let("tile", block, sizes.most(chunks)), *body(fused.group, tile, True))
        rest = _tiles(w, block, whole, chunks, chunks, body(fused.single, tile, True), turns)
        statements.append(If((sizes.below(block + ahead, whole),), group, rest))
    else:
        if unroll > 1 and may_exceed(whole, ahead):
            statements += _tiles(w, block, whole - ahead, grouped, chunks, body(fused.group, tile, True), turns // unroll)
            rest, start = behind_groups(w, block, whole, grouped)
            statements += rest
        if singles:
            statements += _tiles(w, start, whole, chunks, chunks, body(fused.single, tile, True), turns)
    if tiles != whole:
        statements += edge_tile(w, body(fused.edge, tile, False), whole, tiles)
    return tuple(statements)


def _divides(by: Affine, e: Affine) -> bool:
    """Whether a number is known to be a multiple of another one."""
    return by.is_const and e.is_const and e.const % by.const == 0


def _tiles(w: RoutineWriter, start: Affine, stop: Affine, step: Affine, chunks: Affine, body: tuple[Stmt, ...],
           turns: int) -> tuple[Stmt, ...]:
    """The body for tile = start, start + step, ... below `stop`; without a loop where that is one tile at most. turns: so many; 0: any."""
    known = stop.is_const and step.is_const and chunks.is_const
    if known and step.const >= stop.const and len(start.terms) == 1 and not start.const:
        once = (Let("tile", start, max(chunks.const, 1)), *body)
        return (If((Bound(start, 0, min(chunks.const, stop.const)),), once),)
    if turns == 1:
        return (If((w.sizes.below(start, stop),), (Let("tile", start, w.sizes.most(chunks)), *body)),)
    return (For("tile", start, stop, step.const if step.is_const else step, body),)
