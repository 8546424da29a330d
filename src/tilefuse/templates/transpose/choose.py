"""Tiles of transpositions in shared memory, for patterns whose large reads run along another axis than their writes."""
from __future__ import annotations

from math import prod

from tilefuse.domain.access import Access, by_memory_order, stride_of
from tilefuse.domain.resolved import Domain
from tilefuse.target.device import DeviceSpec
from tilefuse.target.memory import ACCESS_BYTES
from tilefuse.templates.transpose.record import Transpose


def choose_transpose(domain: Domain, device: DeviceSpec, accessed: list[Access]) -> Transpose | None:
    """A tile transposition where the large reads run along another axis than the writes; None for other patterns and on the host."""
    if device.kind != "cuda" or domain.scatter is not None or any(i.serial for i in domain.instances):
        return None
    order = by_memory_order(domain.kept + domain.reduced, accessed, domain.extents)
    total = prod(domain.extents[a] for a in order)
    if total < device.fitted.flat.turned_elements:
        return None
    write_axes = {a for access in accessed if access.written for a in order if domain.extents[a] > 1 and stride_of(access.offset, a) == 1}
    if len(write_axes) != 1:
        return None
    write_axis = next(iter(write_axes))
    turned: dict[str, int] = {}
    for access in accessed:
        if access.written or access.dynamic or access.guarded or access.elements * 2 < total:
            continue
        fast = [a for a in order if domain.extents[a] > 1 and stride_of(access.offset, a) == 1]
        if len(fast) == 1 and fast[0] != write_axis and (stride_of(access.offset, write_axis) or 0) > 1:
            turned[fast[0]] = max(turned.get(fast[0], 0), access.itemsize)
    if len(turned) != 1:
        return None
    read_axis, itemsize = next(iter(turned.items()))
    return _transpose_tile(domain, device, accessed, order, read_axis, write_axis, itemsize)


def _transpose_tile(domain: Domain, device: DeviceSpec, accessed: list[Access], order: tuple[str, ...], read_axis: str, write_axis: str,
                    itemsize: int) -> Transpose | None:
    """Tiles with two lines of 128 bytes a side, where the extents fill them; half as wide for several operands that are turned."""
    largest, fitted = max(a.itemsize for a in accessed), device.fitted.flat

    def width(axis: str, itemsize: int, written: bool) -> int:
        best = max(1, min(8, 16 // itemsize))
        for a in accessed:
            if a.dynamic or a.guarded or stride_of(a.offset, axis) != 1 or (a.written != written and not written):
                continue
            while best > 1 and (domain.extents[axis] % best or a.offset.const % best
                                or any(c % best for atom, c in a.offset.terms if atom != axis)):
                best //= 2
        return best

    read_vector, write_vector = width(read_axis, itemsize, False), width(write_axis, largest, True)
    turned = sum(not a.written and stride_of(a.offset, read_axis) == 1 and (stride_of(a.offset, write_axis) or 0) > 1 for a in accessed)
    run = _one_run(domain, device, accessed, order, read_axis, write_axis, itemsize, write_vector) if turned == 1 else None
    if run is None:
        run = _written_run(domain, device, accessed, order, read_axis, write_axis, read_vector, turned * largest)
    reads, writes = domain.extents[read_axis], domain.extents[write_axis]
    if run is not None or min(reads, writes) < fitted.shortest_side:
        return run
    # A side that its axis does not fill leaves its part of the tile to the other: as many bytes are under way a block.
    side = fitted.narrow_side if itemsize <= 2 else fitted.wide_side
    across, along = (side if turned == 1 else side // 2), (side if turned <= 2 else side // 2)
    rows = min(across * max(1, along // _power_above(reads, 1)), _power_above(writes, fitted.shortest_side))
    columns = min(along * max(1, across // _power_above(writes, 1)), _power_above(reads, fitted.shortest_side))
    # A few whole vectors' bytes a thread, in as many loads as their places allow.
    threads = max(64, min(1024, rows * columns * itemsize // (fitted.vectors_a_thread * ACCESS_BYTES)))
    depth = max(1, min(2, rows * columns // (threads * read_vector)))
    while domain.extents[write_axis] % depth:
        depth //= 2
    return Transpose(order, read_axis, write_axis, rows, columns, threads, read_vector, write_vector, depth)


def _one_run(domain: Domain, device: DeviceSpec, accessed: list[Access], order: tuple[str, ...], read_axis: str, write_axis: str,
             itemsize: int, write_vector: int) -> Transpose | None:
    """Tiles that are one run of memory, where the read axis is short and all of it lies between two neighbours of the write axis
    (a convolution's weights): vectors that the short axis would not allow, and enough of them a block."""
    reads, writes = domain.extents[read_axis], domain.extents[write_axis]
    vector = min(8, 16 // itemsize)
    access = next(a for a in accessed
                  if not a.written and stride_of(a.offset, read_axis) == 1 and (stride_of(a.offset, write_axis) or 0) > 1)
    apart = any(c % vector for atom, c in access.offset.terms if atom not in (read_axis, write_axis)) or access.offset.const % vector
    short = reads <= device.fitted.flat.short_axis_elements and stride_of(access.offset, write_axis) == reads
    if not short or reads % vector == 0 or reads * writes % vector or apart:
        return None
    rows = _power_above(writes)
    while rows > 16 and rows * reads * itemsize > device.fitted.flat.short_axis_tile_bytes:
        rows //= 2
    threads = max(64, min(1024, 32 * -(-rows * reads // (2 * vector * 32))))
    return Transpose(order, read_axis, write_axis, rows, reads, threads, vector, write_vector, 0)


def _written_run(domain: Domain, device: DeviceSpec, accessed: list[Access], order: tuple[str, ...], read_axis: str, write_axis: str,
                 read_vector: int, point_bytes: int) -> Transpose | None:
    """Tiles that are one run of the written memory, where the write axis is short and all of it lies between two neighbours of the read
    axis (images of three channels that are laid channels last): vectors that the short axis would not allow, and enough of them a block.

    Units: `point_bytes` of all turned operands at a point. Cost: without it each thread stores one element, after two divisions; 99 us
    on an H200 where the bytes take 20 (the images of a ResNet-18 training step).
    """
    reads, writes = domain.extents[read_axis], domain.extents[write_axis]
    vector, fitted = min(8, 16 // max(a.itemsize for a in accessed)), device.fitted.flat
    if writes > fitted.short_axis_elements or writes % vector == 0 or reads * writes % vector:
        return None
    for a in accessed:
        if a.written and (stride_of(a.offset, write_axis) != 1 or stride_of(a.offset, read_axis) != writes or a.offset.const % vector
                          or any(c % vector for atom, c in a.offset.terms if atom not in (read_axis, write_axis))):
            return None
    columns, batch = _power_above(reads), prod(domain.extents[a] for a in order if a not in (read_axis, write_axis))

    def too_few(columns: int) -> bool:
        blocks = batch * -(-reads // columns)
        return blocks < fitted.short_axis_blocks * device.num_multiprocessors and columns * writes > fitted.short_axis_tile_elements

    while columns > 16 and (columns * writes * point_bytes > fitted.short_axis_tile_bytes or too_few(columns)):
        columns //= 2
    threads = max(64, min(1024, 32 * -(-writes * columns // (2 * vector * 32))))
    return Transpose(order, read_axis, write_axis, writes, columns, threads, read_vector, vector, 1, True)


def _power_above(extent: int, least: int = 16) -> int:
    """The smallest power of two that is not below `extent`, at least `least`."""
    return max(least, 1 << (extent - 1).bit_length())
