"""Maps, gathers and scatters: a flat walk, or tiles turned in shared memory where reads and writes run along different axes."""
from __future__ import annotations

from math import lcm, prod

from tilefuse.domain.access import Access, by_memory_order, stride_of, vector_limit, widest_vector
from tilefuse.domain.resolved import Domain
from tilefuse.domain.windows import sums_fit, windows_fit
from tilefuse.ir.affine import row_major_strides
from tilefuse.target.device import DeviceSpec
from tilefuse.target.memory import ACCESS_BYTES
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.flat.side_by_side import lanes_across, last_axis
from tilefuse.templates.transpose.record import Transpose

# Vectors a thread may take where blocks are too many to be started in time.
STEPS = (1, 2, 4, 8)


def choose_pointwise(domain: Domain, device: DeviceSpec, found: list[Access]) -> Pointwise | Transpose:
    """A tile transposition where a large read runs across the writes, else a flat walk in memory order."""
    names = domain.kept + domain.reduced
    order = by_memory_order(names, found, domain.extents)
    total = prod(domain.extents[a] for a in names)
    if device.kind == "cuda" and domain.scatter is None:
        turned = _transpose(domain, device, found, order)
        if turned is not None:
            return turned
    limit = vector_limit(found, device)
    last = [a for a in order if domain.extents[a] > 1][-1:]
    width = widest_vector(found, tuple(last), total if len(last) == 0 else max(total, 1), limit)
    if domain.scatter is not None or any(i.serial for i in domain.instances):
        along = last[0] if domain.scatter is None and last and last == list(order[-1:]) else ""
        if device.kind != "cuda":
            width = min(width, 4)
        elif not along:
            width = 1
        elif not sums_fit(domain, along, width):
            width = min(width, 4) if windows_fit(domain, along, min(width, 4)) else 1
    if device.kind == "host":
        vectors = max(total // width, 1)
        return Pointwise(order, width, 1, max(1, min(vectors, 4096 // width + 1)), False)
    if width < limit <= total and _is_one_run(domain, found, order):
        width = limit
    rows = _rows_at_a_place(domain, device, found, order, width)
    if rows is not None:
        return rows
    across, side = lanes_across(domain, device, found, order, width)
    return Pointwise(order, width, device.fitted.flat.threads, _steps(domain, device, found, width), True, across, side)


def _steps(domain: Domain, device: DeviceSpec, found: list[Access], width: int) -> int:
    """Vectors a thread of a flat walk takes: the fewest with which the device starts the blocks as fast as their bytes move.

        results that no vector takes (odd rows), one a thread         1.0 KB a block, 4.2 million blocks: 2.5 ms
        four a thread                                                 4.1 KB a block, 1.0 million blocks: 1.4 ms

    Source: H200, averages of 8 f32 side by side over 128 x 64 rows of 65537: the figures above; the bytes take 1.0 ms.
    """
    if not device.blocks_per_s or domain.scatter is not None:
        return 1
    num_bytes = sum(_num_places(a, domain) * a.itemsize for a in found)
    threads = device.fitted.flat.threads
    blocks = prod(domain.extents[a] for a in domain.kept + domain.reduced) // (width * threads)
    # The first wave finds an empty device.
    wave = device.num_multiprocessors * (device.max_threads_per_multiprocessor // threads)
    moved_s = num_bytes / device.global_bytes_per_s
    return next((s for s in STEPS if blocks / s - wave <= moved_s * device.blocks_per_s), STEPS[-1])


def _num_places(access: Access, domain: Domain) -> int:
    """Upper bound on the elements that an access touches: neighbouring windows share theirs."""
    if access.dynamic or not access.offset.is_linear:
        return access.elements
    reach = sum(abs(access.offset.coefficient(a)) * (domain.extents[a] - 1) for a in access.offset.axes())
    return min(access.elements, reach + 1)


def _is_one_run(domain: Domain, found: list[Access], order: tuple[str, ...]) -> bool:
    """Whether all that is large lies at the position in the walk itself, so that vectors may run on from one row to the next.

        y[r, c] = x[r, c] + b[c]  (c < 771)      ->      vectors of x and y of any rows, elements of b

    Source: H200, 16 x 14 x 14 places with 771 channels of f16: 24 us by one element a thread, where the bytes take 4.
    """
    if domain.scatter is not None or any(i.serial for i in domain.instances):
        return False
    shape = tuple(domain.extents[a] for a in order)
    strides = dict(zip(order, row_major_strides(shape), strict=True))
    large = [a for a in found if a.elements * 2 >= prod(shape)]
    return bool(large) and all(
        not a.dynamic and not a.guarded and a.offset.is_linear and not a.offset.const
        and all(stride_of(a.offset, name) == stride for name, stride in strides.items() if domain.extents[name] > 1) for a in large)


def _rows_at_a_place(domain: Domain, device: DeviceSpec, found: list[Access], order: tuple[str, ...], width: int) -> Pointwise | None:
    """A walk whose threads take several rows each, at the same place of every row, where rows share as much as they stream (channels'
    weights and statistics over channels last); None where they do not.

        one row a thread      x[i, c]  y[i, c]                     mean[c] variance[c] weight[c] bias[c]
        four                  x[i .. i + 3, c]  y[i .. i + 3, c]     mean[c] variance[c] weight[c] bias[c]

    Cost: f32 weights of a vector in 16 bits are twice its bytes, and a thread waits for them as for the vector itself.
    Source: `FlatFigures`.
    """
    if domain.scatter is not None or any(i.serial for i in domain.instances):
        return None
    fitted = device.fitted.flat
    total = prod(domain.extents[a] for a in order)
    place = {a: n for n, a in enumerate(order)}
    last = last_axis(order, domain.extents)
    period, shared, streamed = 1, 0, 0
    large: set[str] = set()
    for access in found:
        along = [a for a in access.offset.axes() if domain.extents[a] > 1]
        if access.dynamic or access.guarded or not access.written and last in along and stride_of(access.offset, last) != 1:
            return None
        # A row of what depends on the last axes only begins again after so many points.
        own = prod(domain.extents[a] for a in order[min((place[a] for a in along), default=len(order)):])
        if access.written or own * 2 > total:
            streamed += access.itemsize
            large |= set() if access.written else {access.value}
        elif last in along:
            shared += access.itemsize
            period = max(period, own)
    if not large or period % width or shared < streamed * (1 if len(large) == 1 else fitted.several_tensor_share):
        return None
    each = lcm(period // width, 32)
    threads = each * max(1, 128 // each)
    blocks = -(-total // (width * threads))
    counts = fitted.single_tensor_rows if len(large) == 1 else fitted.several_tensor_rows
    steps = next((s for s in counts if blocks // s >= fitted.row_blocks * device.num_multiprocessors), 1)
    return Pointwise(order, width, threads, steps, True) if steps > 1 and threads <= fitted.row_threads else None


def _transpose(domain: Domain, device: DeviceSpec, found: list[Access], order: tuple[str, ...]) -> Transpose | None:
    """A tile transpose where the large reads run along another axis than the writes."""
    if any(i.serial for i in domain.instances):
        return None
    total = prod(domain.extents[a] for a in order)
    if total < device.fitted.flat.turned_elements:
        return None
    write_axes = {a for access in found if access.written for a in order if domain.extents[a] > 1 and stride_of(access.offset, a) == 1}
    if len(write_axes) != 1:
        return None
    write_axis = next(iter(write_axes))
    turned: dict[str, int] = {}
    for access in found:
        if access.written or access.dynamic or access.guarded or access.elements * 2 < total:
            continue
        fast = [a for a in order if domain.extents[a] > 1 and stride_of(access.offset, a) == 1]
        if len(fast) == 1 and fast[0] != write_axis and (stride_of(access.offset, write_axis) or 0) > 1:
            turned[fast[0]] = max(turned.get(fast[0], 0), access.itemsize)
    if len(turned) != 1:
        return None
    read_axis, itemsize = next(iter(turned.items()))
    return _transpose_tile(domain, device, found, order, read_axis, write_axis, itemsize)


def _transpose_tile(domain: Domain, device: DeviceSpec, found: list[Access], order: tuple[str, ...], read_axis: str, write_axis: str,
                    itemsize: int) -> Transpose | None:
    """Tiles with two lines of 128 bytes a side, where the extents fill them; half as wide for several operands that are turned."""
    largest, fitted = max(a.itemsize for a in found), device.fitted.flat

    def width(axis: str, itemsize: int, written: bool) -> int:
        best = max(1, min(8, 16 // itemsize))
        for a in found:
            if a.dynamic or a.guarded or stride_of(a.offset, axis) != 1 or (a.written != written and not written):
                continue
            while best > 1 and (domain.extents[axis] % best or a.offset.const % best
                                or any(c % best for atom, c in a.offset.terms if atom != axis)):
                best //= 2
        return best

    read_vector, write_vector = width(read_axis, itemsize, False), width(write_axis, largest, True)
    turned = sum(not a.written and stride_of(a.offset, read_axis) == 1 and (stride_of(a.offset, write_axis) or 0) > 1 for a in found)
    run = _one_run(domain, device, found, order, read_axis, write_axis, itemsize, write_vector) if turned == 1 else None
    if run is None:
        run = _written_run(domain, device, found, order, read_axis, write_axis, read_vector, turned * largest)
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


def _one_run(domain: Domain, device: DeviceSpec, found: list[Access], order: tuple[str, ...], read_axis: str, write_axis: str,
             itemsize: int, write_vector: int) -> Transpose | None:
    """Tiles that are one run of memory, where the read axis is short and all of it lies between two neighbours of the write axis
    (a convolution's weights): vectors that the short axis would not allow, and enough of them a block."""
    reads, writes = domain.extents[read_axis], domain.extents[write_axis]
    vector = min(8, 16 // itemsize)
    access = next(a for a in found if not a.written and stride_of(a.offset, read_axis) == 1 and (stride_of(a.offset, write_axis) or 0) > 1)
    apart = any(c % vector for atom, c in access.offset.terms if atom not in (read_axis, write_axis)) or access.offset.const % vector
    short = reads <= device.fitted.flat.short_axis_elements and stride_of(access.offset, write_axis) == reads
    if not short or reads % vector == 0 or reads * writes % vector or apart:
        return None
    rows = _power_above(writes)
    while rows > 16 and rows * reads * itemsize > device.fitted.flat.short_axis_tile_bytes:
        rows //= 2
    threads = max(64, min(1024, 32 * -(-rows * reads // (2 * vector * 32))))
    return Transpose(order, read_axis, write_axis, rows, reads, threads, vector, write_vector, 0)


def _written_run(domain: Domain, device: DeviceSpec, found: list[Access], order: tuple[str, ...], read_axis: str, write_axis: str,
                 read_vector: int, point_bytes: int) -> Transpose | None:
    """Tiles that are one run of the written memory, where the write axis is short and all of it lies between two neighbours of the read
    axis (images of three channels that are laid channels last): vectors that the short axis would not allow, and enough of them a block.

    Units: `point_bytes` of all turned operands at a point. Cost: without it each thread stores one element, after two divisions; 99 us
    on an H200 where the bytes take 20 (the images of a ResNet-18 training step).
    """
    reads, writes = domain.extents[read_axis], domain.extents[write_axis]
    vector, fitted = min(8, 16 // max(a.itemsize for a in found)), device.fitted.flat
    if writes > fitted.short_axis_elements or writes % vector == 0 or reads * writes % vector:
        return None
    for a in found:
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
