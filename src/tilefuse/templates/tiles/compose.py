"""The kernel of a register tile: one thread a tile. It loads the operands of its elements, computes all of them, and stores them.

    tile = block * threads + thread         neighbouring threads take neighbouring places of the fastest axis, so that accesses of a warp
                                            to one element of their tiles lie side by side
"""
from __future__ import annotations

from tilefuse.domain.access import flat_axes
from tilefuse.domain.resolved import Domain
from tilefuse.emit.kernel_writer import KernelWriter
from tilefuse.ir.affine import Affine, axis
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import Assign, Declare, KExpr, Reg, Store, VectorStore
from tilefuse.templates.tiles.record import RegisterTile
from tilefuse.templates.tiles.stores import StoredRun, stored_runs
from tilefuse.templates.tiles.unrolled import UnrolledTile


def compose_tile(writer: KernelWriter, choice: RegisterTile, tile: UnrolledTile, num_tiles: int) -> None:
    """One tile a thread. Requires: the writer's domain is that of the tile."""
    e, domain = writer.emitter, tile.domain
    blocks = max(writer.program.launch.num_blocks, 1)
    e.frame.extents |= {"block": blocks, "thread": choice.threads}
    at = e.let("tile", axis("block") * choice.threads + axis("thread"), max(blocks * choice.threads, 1))
    with e.when([Bound(at, 0, num_tiles)]):
        e.narrow_to(at, num_tiles)
        e.env = e.env | _named_places(writer, choice, domain, at)
        # All elements are computed before one is stored: a store may overwrite an operand of another element.
        values = {store.key: e.value(store.key) for store in tile.stores}
        for run in stored_runs(tile, writer.device):
            _store(writer, run, [values[s.key] for s in run.stores])


def _named_places(writer: KernelWriter, choice: RegisterTile, domain: Domain, at: Affine) -> dict[str, Affine]:
    """Each axis of the domain of tiles by a name of its own, so that its divisions are computed once."""
    e = writer.emitter
    places = flat_axes(choice.order, at, domain.extents, e.extents)
    return {a: e.let(a, place, domain.extents[a]) for a, place in places.items()}


def _store(writer: KernelWriter, run: StoredRun, values: list[KExpr]) -> None:
    """Stores elements that lie side by side, as one access where the tile has all of them."""
    e = writer.emitter
    first = run.stores[0]
    buffer = e.buffers[first.value]
    if run.is_vector:
        array = e.fresh(first.value + "_out")
        e.emit(Declare(array, buffer.dtype, len(values)))
        for n, value in enumerate(values):
            e.emit(Assign(Reg(array, buffer.dtype, Affine((), n)), value))
        with e.when([Bound(e.index(b.index), b.low, b.high) for b in first.inside]):
            e.emit(VectorStore(buffer.name, e.index(first.offset), array, Affine((), 0), len(values), writer.leaving))
        return
    for store, value in zip(run.stores, values, strict=True):
        with e.when([Bound(e.index(b.index), b.low, b.high) for b in store.inside]):
            e.emit(Store(buffer.name, e.index(store.offset), value, (), writer.leaving))
