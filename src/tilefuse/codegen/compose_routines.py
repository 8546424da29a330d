"""FusedRoutines -> kernel IR: the paper's algorithm 1 around the routine calls, and the kernels before and behind it.

    registers, thread and block indices      before      loop over whole tiles { group }  { single }      edge      after
Whole tiles are loaded with 16-byte accesses and no bounds; the tile that reaches over the edge of the data runs once, with bounds.
Composing decides nothing. Source: Filipovic et al., "Optimizing CUDA Code by Kernel Fusion", section 4.3.2.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilefuse.base.errors import InternalError
from tilefuse.codegen.kernel import Buffer, Comment, Declare, For, If, Kernel, Let, Load, Stmt
from tilefuse.codegen.routine_finish import clear_kernel, last_blocks, second_kernels
from tilefuse.codegen.routine_step import step
from tilefuse.codegen.routine_triangle import ends_early, triangle_walk
from tilefuse.codegen.routine_writer import RoutineWriter, Where
from tilefuse.codegen.widths import check_launch, with_index_bits
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.scalar import Bound
from tilefuse.schedule.routine_steps import Step, elements_of
from tilefuse.schedule.routines import FusedRoutines
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
    launch = Launch(fused.num_blocks, fused.threads, 1, num_bytes, fused.device.starts_early)
    buffers = (*w.buffers.values(), *w.scratch, *shared)
    main = Kernel(fused.name, buffers, launch, tuple(body), _header(fused), fused.index_bits, 0, 0, False, w.namespaces.texts())
    kernels = (*clear_kernel(w), main, *second_kernels(w))
    if fused.device.kind == "cuda":
        for kernel in kernels:
            check_launch(kernel)
    if any(with_index_bits(kernel).index_bits > fused.index_bits for kernel in kernels):
        raise InternalError(f"indices of kernel {fused.name} do not fit {fused.index_bits} bits")
    return kernels


def _header(fused: FusedRoutines) -> tuple[str, ...]:
    names = ", ".join(f"{', '.join(c.results)} = {c.function.name}({', '.join(map(str, c.arguments))})"
                      for c in (fused.call(k) for k in range(len(fused.decision.calls))))
    return (f"calls: {names}", f"decision: {fused.decision}", f"moves {fused.transfers} words")


def _block_indices(w: RoutineWriter) -> tuple[Stmt, ...]:
    """Block numbers along the directions; blocks that follow each other lie side by side along x.

    Where a triangle ends the walks of some blocks early, those with the longest come first, so that short ones fill the end.
    """
    if w.other is None:
        return (Let("block_x", axis("block"), w.blocks("x")),)
    along = w.blocks("x")
    numbers = {"x": axis("block") % along, "y": axis("block") // along}
    if ends_early(w.fused):
        numbers[w.other] = number(w.blocks(w.other) - 1) - numbers[w.other]
    return tuple(Let(f"block_{d}", at, w.blocks(d)) for d, at in numbers.items())


def _shared_buffers(fused: FusedRoutines) -> tuple[Buffer, ...]:
    instances = 1 if fused.grid.nested else fused.decision.instances
    found = []
    for name, offset in fused.shared.items():
        slab = name in fused.slab_words
        e = fused.elements[name.removesuffix("_partials") if slab else name]
        words = fused.slab_words[name] if slab else e.shared_words * instances
        found.append(Buffer(name if slab else f"{name}_l", e.unit, words * e.units, "shared", "", e.variable, offset))
    return tuple(found)


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
    if o is None or w.whole[o] == w.fused.num_tiles[o]:
        return _walk(w, outer, True)
    if not w.whole[o]:
        return _walk(w, outer, False)
    return (If((Bound(w.block(o), 0, w.whole[o]),), _walk(w, outer, True), _walk(w, outer, False)),)


def _walk(w: RoutineWriter, outer: frozenset[str], inside_other: bool) -> tuple[Stmt, ...]:
    fused, d = w.fused, w.walk
    chunks, unroll, whole, tiles = fused.chunks, fused.decision.unroll, w.whole[w.walk], fused.num_tiles[w.walk]
    inside = dict.fromkeys(fused.grid.extents, inside_other)
    before = _steps(w, fused.before, Where(None, inside | {d: False}))

    def body(stage: Sequence[Step], tile: Affine, whole_tile: bool) -> tuple[Stmt, ...]:
        return (*_declared(w, stage, outer), *_steps(w, stage, Where(tile, inside | {d: whole_tile}, chunks)))

    block, tile = w.block(d), axis("tile")
    if fused.grid.triangle:
        return (*before, *triangle_walk(w, body, inside_other))
    if not inside_other:
        return (*before, *_tiles(block, tiles, chunks, chunks, body(fused.edge, tile, False)))
    found: list[Stmt] = list(before)
    start = block
    grouped = unroll * chunks
    if whole > (unroll - 1) * chunks and unroll > 1:
        found += _tiles(block, whole - (unroll - 1) * chunks, grouped, chunks, body(fused.group, tile, True))
        start = block + (number(whole + chunks - 1) - block) // grouped * grouped
    if whole % grouped or unroll == 1:
        found += _tiles(start, whole, chunks, chunks, body(fused.single, tile, True)) if whole else ()
    if tiles > whole:
        found.append(Comment(f"the tile that reaches over the edge of {fused.grid.extents[d]} words"))
        last = whole % chunks
        edge = (Let("tile", number(whole), whole + 1), *body(fused.edge, tile, False))
        found.append(If((Bound(block, last, last + 1),), edge))
    return tuple(found)


def _tiles(start: Affine, stop: int, step: int, chunks: int, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The body for tile = start, start + step, ... below `stop`; without a loop where that is one tile at most."""
    if step >= stop and len(start.terms) == 1 and not start.const:
        once = (Let("tile", start, max(chunks, 1)), *body)
        return (If((Bound(start, 0, chunks),), once),) if stop >= chunks else (If((Bound(start, 0, stop),), once),)
    return (For("tile", start, number(stop), step, body),)
