"""Traffic of a kernel at each memory level: what blocks move through L2 and shared memory beyond what the boundary tensors hold.

    row kernel, y[i, j] = x[i, j] * w[j]:   global  x + w + y once each        L2  x + y once, w once for every tile of rows
    row kernel, y[j, i] = x[i, j] * w[j]:   as above, and every element of y is a store to a sector of its own
"""
from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tilefuse.domain.access import Access, accesses, num_places, stride_of
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Work
from tilefuse.ir.affine import Affine, axis, bounds, evaluate
from tilefuse.ir.graph import Graph
from tilefuse.ir.scalar import Index, Lookup, Read, index_maps, indexed_axes, walk
from tilefuse.target.device import DeviceSpec
from tilefuse.target.fitted.walks import TrafficFigures
from tilefuse.target.memory import LINE_BYTES, SECTOR_BYTES

UNLIMITED = sys.maxsize


@dataclass(frozen=True, slots=True)
class LevelTraffic:
    """Bytes between L2 and the multiprocessors, and bytes written to and read from shared memory. Units: bytes.

    `partial_sectors`: sectors of 32 bytes of which a store of a warp writes a part.
    """

    l2_bytes: int
    shared_bytes: int
    partial_sectors: int = 0


def boundary_work(graph: Graph) -> Work:
    """Work of a kernel that reads a graph's inputs and writes its results, each once; of values that are looked up alone, the elements that
    are looked up, at most all of them."""
    looked_up = _looked_up_elements(graph)
    read_bytes = sum(min(v.type.num_bytes, looked_up.get(v.name, v.type.num_elements) * v.type.dtype.itemsize) for v in graph.inputs)
    return Work(read_bytes=read_bytes, global_bytes=read_bytes + sum(graph.type_of(r).num_bytes for r in graph.results))


def _looked_up_elements(graph: Graph) -> dict[str, int]:
    """Elements of each value that is only looked up, as rows of a table or pages of a cache: the places that subscripts may tell apart."""
    counts: dict[str, int] = {}
    plain = {v for n in graph.nodes for v in n.operands}
    for node in graph.nodes:
        for e in () if node.body is None else walk(node.body):
            if isinstance(e, Lookup):
                counts[e.value] = counts.get(e.value, 0) + _places(e, node.extents)
            elif isinstance(e, Read):
                plain.add(e.value)
    return {v: n for v, n in counts.items() if v not in plain}


def _places(e: Lookup, extents: Mapping[str, int]) -> int:
    """Places that the subscripts of an element tell apart, at most those of all axes on which they depend."""
    atoms = {atom for x in walk(e) for i in index_maps(x) for atom, _ in i.terms}
    points = prod(extents[a] for a in indexed_axes(e))
    spans = [s for s in (bounds(Affine(((atom, 1),)), extents) for atom in atoms) if s is not None]
    return min(points, prod(high - low + 1 for low, high in spans)) if len(spans) == len(atoms) else points


def scattered_adds(program: TileProgram) -> int:
    """Elements that a program combines with what lies at places that data give; each is an atomic operation of its own."""
    return sum(prod(e for _, e in n.over) for n in program.graph.nodes if n.category == "scatter" and n.detail != "set")


def line_adds(program: TileProgram, fastest: str) -> tuple[int, int]:
    """Of these elements, those that meet in one line of L2 if they spread evenly over the result, and the requests in which they come.

    fastest: the axis along which neighbouring lanes stand. Where their elements lie side by side, those of a line are one request.
    Requires: the program scatters.
    """
    assert program.domain.scatter is not None
    name, _, target = program.domain.scatter
    result = program.graph.type_of(name)
    adds = scattered_adds(program) // max(result.num_bytes // LINE_BYTES, 1)
    side_by_side = any(stride == 1 and isinstance(s, Index) and s.affine == axis(fastest) for s, _, stride in target)
    lanes = min(program.domain.extents[fastest], LINE_BYTES // result.dtype.itemsize) if side_by_side else 1
    return adds, adds // lanes


def run_of(order: tuple[str, ...], points: int, domain: Domain) -> list[tuple[str, int]]:
    """(axis, steps along it) of `points` places that follow each other."""
    loops: list[tuple[str, int]] = []
    for a in reversed(order):
        steps = min(points, domain.extents[a])
        if steps > 1:
            loops.append((a, steps))
            points = -(-points // domain.extents[a])
    return loops


def with_sectors(traffic: LevelTraffic, domain: Domain, fitted: TrafficFigures, stored: list[tuple[str, int]],
                 read: list[tuple[str, int]], near_bytes: int = UNLIMITED) -> LevelTraffic:
    """The traffic with what is touched by sectors that hold more than is wanted of them.

    stored, read: (axis, steps) of the elements that a warp stores, and that it reads before it goes on, fastest first.
    Units: a sector is 32 bytes. Accesses at places that data give are taken for dense.
    """
    l2_bytes, partial = traffic.l2_bytes, 0
    for access in accesses(domain):
        strides = {a: _step_of(access, a) for a, _ in (stored if access.written else read)}
        warp = stored if access.written else _until_lost(read, strides, access.itemsize, near_bytes)
        if access.dynamic or not any(strides[a] > 1 for a, _ in warp):
            continue
        run, apart, needed = 1, 1, 1
        for a, steps in sorted(warp, key=lambda w: strides[w[0]]):
            needed *= steps if strides[a] else 1
            if strides[a] <= run or strides[a] * access.itemsize < SECTOR_BYTES:
                run += (steps - 1) * strides[a]
            else:
                apart *= steps
        sectors = apart * -(-run * access.itemsize // SECTOR_BYTES)
        if sectors * SECTOR_BYTES < needed * access.itemsize * fitted.scattered_waste:
            continue
        touched = sectors * max(access.elements // needed, 1)
        if access.written:
            partial += touched
        else:
            l2_bytes += touched * SECTOR_BYTES - access.elements * access.itemsize
    return LevelTraffic(l2_bytes, traffic.shared_bytes, partial)


def _step_of(access: Access, name: str) -> int:
    """Elements moved by the first step along an axis, also where it stands inside a division: channel j of image j // 64 is j % 64."""
    stride = stride_of(access.offset, name)
    if stride is not None:
        return abs(stride)
    places = dict.fromkeys(access.offset.axes(), 0)
    return abs(int(evaluate(access.offset, {**places, name: 1})) - int(evaluate(access.offset, places)))


def _until_lost(walk: list[tuple[str, int]], strides: Mapping[str, int], itemsize: int, near_bytes: int) -> list[tuple[str, int]]:
    """The part of a walk whose sectors the first-level cache still has when the walk comes back to them.

        8 channels of 258 x 258 places, channels last, channel by channel       each channel takes the same 66564 sectors: 2.1 MB
        place by place                                                           8 channels of a place are one sector
    """
    loops, held_bytes = [], itemsize
    for a, steps in walk:
        step_bytes = strides[a] * itemsize
        if 0 < step_bytes < SECTOR_BYTES and held_bytes > near_bytes:
            continue
        loops.append((a, steps))
        if step_bytes >= SECTOR_BYTES:
            held_bytes = max(held_bytes, SECTOR_BYTES) * steps
        else:
            held_bytes += step_bytes * (steps - 1)
    return loops


def repeated_bytes(access: Access, order: tuple[str, ...], points: int, tiles: int, domain: Domain) -> int:
    """Bytes of an access where each of `tiles` tiles of `points` places, which follow each other in `order`, reads its elements once.

        32 x 12 places (w, h), one a tile       x[h, r] is read for each w: 32 times         w[r] for each of both: 384 times
    """
    size = access.elements * access.itemsize
    along = access.offset.axes()
    if access.written:
        return size
    apart = prod(domain.extents[a] for a in order if a in along)
    inside, left = 1, points
    for a in reversed(order):
        inside *= min(left, domain.extents[a]) if a in along else 1
        left = -(-left // max(domain.extents[a], 1))
    # A tile that comes again finds the elements that its windows share in the first-level cache.
    again = max(inside * tiles - apart, 0) * num_places(access, domain) * access.itemsize // max(apart, 1)
    return size + again


def flat_bytes(access: Access, order: tuple[str, ...], points: int, domain: Domain, size_bytes: int) -> int:
    """Bytes of an access in a flat walk: a tile of `points` touches each of its elements once, and tiles do not share.

    size_bytes: of the value; what is read where a condition holds (a part of a concatenation) is read about once.
    """
    total = prod(domain.extents[a] for a in order)
    tiles = -(-total // points) if points else 1
    inner = 1
    along = access.offset.axes()
    left = points
    for a in reversed(order):
        if left <= 1:
            break
        step = min(left, domain.extents[a])
        if a in along:
            inner *= step
        left = -(-left // max(domain.extents[a], 1))
    moved = max(access.elements, inner * tiles if not access.written else 0) * access.itemsize
    # Windows share their elements, which neighbouring threads find in the first-level cache.
    once = access.guarded or not access.written and not along <= set(order)
    return min(moved, size_bytes) if once and not access.dynamic else moved


def pending_bytes(device: DeviceSpec) -> float:
    """Share of L2 that operands may take which are prefetched while the kernel ahead runs. Units: bytes."""
    return device.l2_bytes * device.fitted.traffic.pending_l2_share
