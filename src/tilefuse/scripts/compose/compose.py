"""FusedRoutines -> kernel IR: the paper's algorithm 1 around the routine calls, and the kernels before and after it.

    registers, thread and block indices      before      loop over whole tiles { group }  { single }      edge      after
Whole tiles are loaded with 16-byte accesses and without bounds; the tile that reaches over the edge of the data runs once, with bounds.
Decisions stand in `scripts/schedule`. Source: Filipovic et al., "Optimizing CUDA Code by Kernel Fusion", section 4.3.2.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import Buffer, Declare, For, If, Kernel, Let, Load, Stmt
from tilefuse.kernel.widths import check_launch, with_index_bits
from tilefuse.scripts.compose.finish import clear_kernel, last_blocks, second_kernels
from tilefuse.scripts.compose.step import write_step
from tilefuse.scripts.compose.tiles import edge_tile, first_after_groups, may_be_larger, most_tiles_of_a_block
from tilefuse.scripts.compose.triangle import Body, ends_early, triangle_walk
from tilefuse.scripts.compose.writer import Iteration, RoutineWriter
from tilefuse.scripts.schedule.routines import FusedRoutines
from tilefuse.scripts.schedule.sizes import Case
from tilefuse.scripts.schedule.steps import Step, elements_of
from tilefuse.target.launch import Launch


def compose_routines(fused: FusedRoutines) -> tuple[Kernel, ...]:
    """The kernels of a fusion, in order: the one that clears results of atomics, the fused kernel, second kernels of reductions.

    Raises: UnsupportedError if one has more blocks than a launch can have.
    """
    w = RoutineWriter(fused)
    outside_loop = Iteration(None, dict.fromkeys(fused.grid.extents, False))
    declared = _declared(w, (*fused.before, *fused.after), frozenset())
    outer = frozenset(d.name for d in declared)
    loops = _walk(w, outer)
    after = (*_steps(w, fused.after, outside_loop), *last_blocks(w))
    scalars = [Declare(r.name, r.dtype, None, Load(v, r.dtype, number(0))) for v, r in w.scalars.items() if v not in w.computed]
    body = (*_block_indices(w), *w.index_lets, *scalars, *declared, *loops, *after)
    shared = (*_shared_buffers(fused), *w.extra_buffers)
    num_bytes = max((b.offset_bytes + b.num_elements * b.dtype.itemsize for b in shared), default=0)
    num_bytes = -(-num_bytes // 16) * 16 + fused.extra_shared_bytes
    launch = Launch(w.sizes.most_blocks, fused.threads, 1, num_bytes, fused.device.starts_early)
    buffers = (*w.buffers.values(), *w.scratch, *shared)
    main = Kernel(fused.name, buffers, launch, tuple(body), _header(fused), routines=w.namespaces.texts())
    kernels = tuple(map(with_index_bits, (*clear_kernel(w), w.sizes.with_arguments(main, w.sizes.num_blocks), *second_kernels(w))))
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
    """Block numbers along the directions; consecutive blocks are neighbours along x.

    If a triangle ends the walks of some blocks early, blocks with long walks get low numbers, so that short ones fill the last wave.
    """
    sizes = w.sizes
    if w.across is None:
        return (Let("block_x", axis("block"), sizes.most(w.blocks("x"))),)
    along, most = w.blocks("x"), {d: sizes.most(w.blocks(d)) for d in "xy"}
    first, x = sizes.remainder("launched_x", axis("block"), along, most["x"] - 1)
    second, y = sizes.quotient("launched_y", axis("block"), along, most["y"] - 1)
    numbers = {"x": x, "y": y}
    if ends_early(w.fused):
        numbers[w.across] = w.blocks(w.across) - 1 - numbers[w.across]
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


def _declared(w: RoutineWriter, section: Iterable[Step], declared: frozenset[str]) -> tuple[Declare, ...]:
    """Register arrays of a section that are not declared yet."""
    names = dict.fromkeys(name for s in section for name in elements_of(s) if name in w.fused.elements)
    elements = [w.fused.elements[n] for n in names if w.fused.elements[n].in_registers]
    return tuple(Declare(f"{e.name}_l", e.unit, e.held * e.units) for e in elements if f"{e.name}_l" not in declared)


def _steps(w: RoutineWriter, section: Iterable[Step], iteration: Iteration) -> tuple[Stmt, ...]:
    return tuple(statement for s in section for statement in write_step(w, s, iteration))


def _walk(w: RoutineWriter, outer: frozenset[str]) -> tuple[Stmt, ...]:
    """The section before the loop and the loop, for blocks whose tiles lie inside the data across the walk and for those at its edge."""
    across = w.across
    if across is None or w.sizes.whole(across) == w.sizes.tiles(across):
        return _loop_over_tiles(w, outer, True)
    whole = w.sizes.whole(across)
    if whole == number(0):
        return _loop_over_tiles(w, outer, False)
    return (If((w.sizes.below(w.block(across), whole),), _loop_over_tiles(w, outer, True), _loop_over_tiles(w, outer, False)),)


def _loop_over_tiles(w: RoutineWriter, outer: frozenset[str], inside_across: bool) -> tuple[Stmt, ...]:
    """The section before the loop and the loop; `inside_across`: the block's tiles lie inside the data across the walk."""
    fused, d, sizes = w.fused, w.walk, w.sizes
    inside = dict.fromkeys(fused.grid.extents, inside_across)
    before = _steps(w, fused.before, Iteration(None, inside | {d: False}))

    def body(section: Sequence[Step], tile: Affine, whole_tile: bool) -> tuple[Stmt, ...]:
        return (*_declared(w, section, outer), *_steps(w, section, Iteration(tile, inside | {d: whole_tile}, sizes.chunks)))

    if fused.grid.triangle:
        return (*before, *triangle_walk(w, body, inside_across))
    if inside_across:
        return (*before, *_tiles_inside(w, body))
    edge, most_tiles = body(fused.edge, axis("tile"), False), most_tiles_of_a_block(w)
    return (*before, *_tiles(w, w.block(d), sizes.tiles(d), sizes.chunks, sizes.chunks, edge, most_tiles))


def _tiles_inside(w: RoutineWriter, body: Body) -> tuple[Stmt, ...]:
    """Groups of tiles, single tiles and the edge tile of a block whose tiles lie inside the data across the walk."""
    fused, d, sizes = w.fused, w.walk, w.sizes
    chunks, unroll, whole, tiles = sizes.chunks, fused.decision.unroll, sizes.whole(d), sizes.tiles(d)
    block, tile, most_tiles = w.block(d), axis("tile"), most_tiles_of_a_block(w)
    statements: list[Stmt] = []
    start = block
    group_tiles, in_flight = chunks * unroll, chunks * (unroll - 1)
    singles = whole != number(0) and (unroll == 1 or not _divides(group_tiles, whole))
    if most_tiles == unroll > 1:
        # A block takes one group of tiles, or fewer.
        group = (Let("tile", block, sizes.most(chunks)), *body(fused.group, tile, True))
        rest = _tiles(w, block, whole, chunks, chunks, body(fused.single, tile, True), most_tiles)
        statements.append(If((sizes.below(block + in_flight, whole),), group, rest))
    else:
        if unroll > 1 and may_be_larger(whole, in_flight):
            group = body(fused.group, tile, True)
            statements += _tiles(w, block, whole - in_flight, group_tiles, chunks, group, most_tiles // unroll)
            rest, start = first_after_groups(w, block, whole, group_tiles)
            statements += rest
        if singles:
            statements += _tiles(w, start, whole, chunks, chunks, body(fused.single, tile, True), most_tiles)
    if tiles != whole:
        statements += edge_tile(w, body(fused.edge, tile, False), whole, tiles)
    return tuple(statements)


def _divides(by: Affine, e: Affine) -> bool:
    """Whether both numbers are constants and the second is a multiple of the first."""
    return by.is_const and e.is_const and e.const % by.const == 0


def _tiles(w: RoutineWriter, start: Affine, stop: Affine, step: Affine, chunks: Affine, body: tuple[Stmt, ...],
           most_tiles: int) -> tuple[Stmt, ...]:
    """The body for tile = start, start + step, ... below `stop`; without a loop if that is at most one tile.

    most_tiles: most tiles of a block; 0: unknown.
    """
    known = stop.is_const and step.is_const and chunks.is_const
    if known and step.const >= stop.const and len(start.terms) == 1 and not start.const:
        once = (Let("tile", start, max(chunks.const, 1)), *body)
        return (If((Bound(start, 0, min(chunks.const, stop.const)),), once),)
    if most_tiles == 1:
        return (If((w.sizes.below(start, stop),), (Let("tile", start, w.sizes.most(chunks)), *body)),)
    return (For("tile", start, stop, step.const if step.is_const else step, body),)
