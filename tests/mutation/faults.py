"""Faults planted in kernels, and whether the checking mode or a wrong result gives them away.

The faults: a barrier dropped (or narrowed from the cluster to the block), a bound widened or narrowed by one, a shared buffer moved onto
another, a loop one step shorter or longer, a vector access shifted by one, a last block that comes one too early or never, a product on the
matrix unit that leaves out its last inner element or column, or takes its right operand from elsewhere, a tensor copy or store that is
dropped, shifted, unfenced or not waited for, a tensor map of another tensor than its buffer holds. In pipelines: a slot that is not
filled, filled twice, not used or never released, a wait for products dropped or too short, a product that adds to or overwrites its sum.
Not planted: changed conditions that hold at exactly the same points.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.unit.templates.host_build import SHORT_CHECKED_FLAGS, build_together
from tilefuse.ir.affine import evaluate, number
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.asynchronous import AsyncCopy, AsyncGroup, AsyncWait, BulkCopy, BulkWait
from tilefuse.kernel.ir import (
    Barrier,
    Comment,
    Declare,
    For,
    If,
    IfValue,
    Kernel,
    LastBlock,
    Let,
    MatrixProduct,
    Shuffle,
    Stmt,
    VectorLoad,
    VectorStore,
)
from tilefuse.kernel.pipeline import WARPGROUP, Consume, EachWarpgroup, Pipeline, Produce, WarpgroupProduct, WarpgroupWait
from tilefuse.kernel.tensor_map import ProxyFence, TensorCopy, TensorMap, TensorStore, TensorStoreWait
from tilefuse.target.launch import Launch


def _variants(s: Stmt) -> Iterator[tuple[str, tuple[Stmt, ...]]]:
    """Faulty replacements of one statement (not of those inside it)."""
    match s:
        case Barrier("cluster"):
            yield "drop cluster barrier", ()
            yield "narrow cluster barrier", (Barrier("block"),)
        case Barrier():
            yield "drop barrier", ()
        case Shuffle():
            yield "drop shuffle", ()
        case BulkWait():
            yield "drop wait", ()
            yield "wait for the other phase", (replace(s, phase=-1 * s.phase + 1),)
        case AsyncWait():
            yield "drop wait for copies", ()
            yield "one group of copies too many under way", (replace(s, pending=s.pending + 1),)
        case AsyncGroup():
            yield "copies in no group", ()
        case AsyncCopy():
            yield "drop copy", ()
            yield "shift copy", (replace(s, index=s.index + s.num_elements),)
        case BulkCopy(arrive=True):
            yield "copy never arrives", (replace(s, arrive=False),)
        case TensorCopy():
            yield "drop tensor copy", ()
            yield "shift box", (replace(s, coordinates=(s.coordinates[0] + 1, *s.coordinates[1:])),)
            yield "shift box in shared memory", (replace(s, index=s.index + 4),)
            if s.barrier is not None:
                yield "box that never arrives", (replace(s, arrive=False),)
            if s.multicast:
                yield "box for one block", (replace(s, multicast=0),)
        case TensorStore():
            yield "drop tensor store", ()
            yield "shift stored box", (replace(s, coordinates=(s.coordinates[0] + 1, *s.coordinates[1:])),)
        case TensorStoreWait():
            yield "drop wait for stores", ()
            yield "one store too many under way", (replace(s, pending=s.pending + 1),)
        case ProxyFence():
            yield "drop fence", ()
        case LastBlock(count=count):
            yield "last block too early", (replace(s, count=count - 1),)
            yield "last block never", (replace(s, count=count + 1),)
        case VectorLoad() | VectorStore():
            yield "shift vector", (replace(s, index=s.index + 1),)
        case MatrixProduct():
            yield "last inner element left out", (replace(s, inner=s.inner - 1),)
            yield "shift right operand", (replace(s, right_index=s.right_index + 1),)
            yield "last column left out", (replace(s, columns=(s.columns or 8 * s.tiles_n) - 1),)
        case Produce():
            yield "drop filling", ()
            yield "fill twice", (s, s)
        case Consume():
            yield "drop use", ()
            yield "release no slot", (replace(s, held_slots=1 << 20),)
        case WarpgroupWait():
            yield "drop wait for products", ()
            yield "one product too many in flight", (replace(s, pending=s.pending + 1),)
        case WarpgroupProduct():
            yield "add to the sum of the tile before", (replace(s, term=None),)
            yield "overwrite the sum", (replace(s, term=number(0)),)
            yield "right operand of the next rows", (replace(s, right_index=s.right_index + 1024),)
        case For():
            yield "one step more", (replace(s, stop=s.stop + s.step),)
            yield "one step less", (replace(s, stop=s.stop - s.step),)
        case If(bounds) | EachWarpgroup(bounds=bounds):
            for n, b in enumerate(bounds):
                for name, low, high in (("widen above", 0, 1), ("narrow above", 0, -1), ("widen below", -1, 0), ("narrow below", 1, 0)):
                    changed = Bound(b.index, b.low + low, b.high + high)
                    yield f"{name} {n}", (replace(s, bounds=(*bounds[:n], changed, *bounds[n + 1:])),)


Points = dict[str, np.ndarray]


def _rewrites(body: tuple[Stmt, ...], path: str, points: Points) -> Iterator[tuple[str, tuple[Stmt, ...]]]:
    """Bodies that differ from `body` by one fault. `points` are the values of the index names wherever `body` is reached."""
    for n, s in enumerate(body):
        here = f"{path}.{n}"
        if isinstance(s, Let):
            points = points | {s.name: np.broadcast_to(evaluate(s.value, points), len(points["thread"]))}
        for fault, new in _variants(s):
            if not (new and _same(s, new[0], points)):
                yield f"{here} {fault}", (*body[:n], *new, *body[n + 1:])
        match s:
            case For(body=inner):
                inside = _looped(s, points)
            case If(body=inner):
                kept = np.flatnonzero(_holds(s, points))
                inside = {name: values[kept] for name, values in points.items()}
            case IfValue(body=inner):
                inside = points
            case Pipeline(body=inner):
                inside = _among(points, s.consumer_threads)
                inside |= {f"slots of {r.name}": np.full(len(inside["thread"]), r.slots) for r in s.rings}
            case Produce(ring, name, inner, threads):
                inside = _with_slots(_among(points, threads), name, ring)
            case Consume(ring, name, inner):
                inside = _with_slots(points, name, ring)
            case EachWarpgroup(inner_name, inner, after, bounds):
                inside = _turns(points, inner_name, bounds)
                behind = inside
                for let in (i for i in inner if isinstance(i, Let)):
                    behind = behind | {let.name: np.broadcast_to(evaluate(let.value, behind), len(behind["thread"]))}
                for fault, changed in _rewrites(after, f"{here} after", behind):
                    yield fault, (*body[:n], replace(s, after=changed), *body[n + 1:])
            case _:
                continue
        for fault, changed in _rewrites(inner, here, inside):
            yield fault, (*body[:n], replace(s, body=changed), *body[n + 1:])


def _among(points: Points, threads: int) -> Points:
    """The points of the first threads."""
    kept = np.flatnonzero(points["thread"] < threads)
    return {name: values[kept] for name, values in points.items()}


def _turns(points: Points, group: str, bounds: tuple[Bound, ...]) -> Points:
    """The points of every warpgroup's turn."""
    warpgroups = int(points["thread"].max()) // WARPGROUP + 1
    own = _among(points, WARPGROUP)
    size = len(own["thread"])
    inside = {n: np.tile(values, warpgroups) for n, values in own.items()} | {group: np.repeat(np.arange(warpgroups), size)}
    kept = np.flatnonzero(_holds(If(bounds, ()), inside))
    return {name: values[kept] for name, values in inside.items()}


def _with_slots(points: Points, name: str, ring: str) -> Points:
    """The points for every slot of a ring."""
    slots, size = int(points[f"slots of {ring}"][0]), len(points["thread"])
    return {n: np.tile(values, slots) for n, values in points.items()} | {name: np.repeat(np.arange(slots), size)}


def _same(s: Stmt, new: Stmt, points: Points) -> bool:
    """Whether the fault changes nothing: a condition that holds at the same points, a loop whose other steps are all guarded away."""
    match s, new:
        case If(), If():
            return np.array_equal(_holds(s, points), _holds(new, points))
        case EachWarpgroup(), EachWarpgroup():
            everywhere = _turns(points, s.group, ())
            return np.array_equal(*(_holds(If(t.bounds, ()), everywhere) for t in (s, new)))
        case For(), For():
            once, again = _reached((s,), points), _reached((new,), points)
            return once is not None and once == again
    return False


def _reached(body: tuple[Stmt, ...], points: Points) -> int | None:
    """How often the guarded statements of a body are reached, if it is loops around names and guards; else None."""
    total = 0
    for s in body:
        match s:
            case Let(name, value):
                points = points | {name: np.broadcast_to(evaluate(value, points), len(points["thread"]))}
            case Declare(init=None) | Comment():
                pass
            case If():
                total += int(_holds(s, points).sum())
            case For(body=inner):
                inside = _reached(inner, _looped(s, points))
                if inside is None:
                    return None
                total += inside
            case _:
                return None
    return total


def _holds(s: If, points: Points) -> np.ndarray:
    """Where the condition of a branch holds."""
    size = len(points["thread"])
    holds = np.ones(size, bool)
    for b in s.bounds:
        value = np.broadcast_to(evaluate(b.index, points), size)
        holds = holds & (value >= b.low) & (value < b.high)
    return holds


def _looped(s: For, points: Points) -> Points:
    """The points inside a loop."""
    size = len(points["thread"])
    starts, stops = (np.broadcast_to(evaluate(e, points), size) for e in (s.start, s.stop))
    counts = np.maximum(-((starts - stops) // s.step), 0)
    which = np.repeat(np.arange(size), counts)
    step = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    return {name: values[which] for name, values in points.items()} | {s.var: starts[which] + step * s.step}


def mutants(kernel: Kernel) -> Iterator[tuple[str, Kernel]]:
    """Kernels with one fault each."""
    block, thread = np.divmod(np.arange(kernel.launch.num_blocks * kernel.launch.num_threads), kernel.launch.num_threads)
    points = {"thread": thread, "block": block, "rank": block % kernel.launch.cluster}
    for fault, body in _rewrites(kernel.body, "body", points):
        yield fault, replace(kernel, body=body)
    shared = [b for b in kernel.buffers if b.space == "shared"]
    for b in shared:
        for other in shared:
            if b.name != other.name and b.offset_bytes != other.offset_bytes:
                moved = tuple(replace(x, offset_bytes=other.offset_bytes) if x is b else x for x in kernel.buffers)
                yield f"{b.name} at the place of {other.name}", replace(kernel, buffers=moved)
    for n, m in enumerate(kernel.maps):
        for fault, changed in _faulty_maps(m):
            yield f"{m.name}: {fault}", replace(kernel, maps=(*kernel.maps[:n], changed, *kernel.maps[n + 1:]))
    launch = kernel.launch
    if launch.num_blocks > launch.cluster:
        yield "a cluster too few", replace(kernel, launch=Launch(launch.num_blocks - launch.cluster, *_rest(launch)))


def _faulty_maps(m: TensorMap) -> Iterator[tuple[str, TensorMap]]:
    """Maps with one fault each, which the driver would encode all the same."""
    for d, extent in enumerate(m.extents):
        yield f"extent {d} one more", replace(m, extents=(*m.extents[:d], extent + 1, *m.extents[d + 1:]))
        yield f"extent {d} one less", replace(m, extents=(*m.extents[:d], extent - 1, *m.extents[d + 1:]))
    if m.rank > 1:
        farther = m.strides[0] + 16 // m.dtype.itemsize
        yield "rows too far apart", replace(m, strides=(farther, *m.strides[1:]))
    yield "begins too late", replace(m, first=m.first + 16 // m.dtype.itemsize)


def _rest(launch: Launch) -> tuple[int, int, int]:
    return launch.num_threads, launch.cluster, launch.shared_bytes


def silent_faults(kernel: Kernel, shows: Callable[[Callable[..., int], Kernel], bool], folder: Path) -> tuple[list[str], int]:
    """(faults that nothing gives away, how many were planted). `shows` runs one kernel and says whether it was found out.

    Raises: AssertionError when the unchanged kernel is found out.
    """
    found = [("nothing", kernel), *mutants(kernel)]
    library = build_together([(changed, True) for _, changed in found], folder, SHORT_CHECKED_FLAGS)
    silent = [fault for n, (fault, changed) in enumerate(found) if not shows(getattr(library, f"{kernel.name}_{n}"), changed)]
    assert silent[:1] == ["nothing"], "the unchanged kernel is found out"
    return silent[1:], len(found) - 1
