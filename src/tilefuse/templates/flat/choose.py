"""Parameters of flat walks (maps, gathers and scatters): vector width, threads a block, vectors a thread."""
from __future__ import annotations

from math import lcm, prod

from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.access import Access, by_memory_order, num_places, stride_of, vector_limit, widest_vector
from tilefuse.domain.resolved import Domain
from tilefuse.domain.roofline import starts_us, streamed_us
from tilefuse.domain.windows import sums_fit, windows_fit
from tilefuse.ir.affine import row_major_strides
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.flat.side_by_side import lanes_across, last_axis


def choose_pointwise(domain: Domain, device: DeviceSpec, accessed: list[Access]) -> Pointwise:
    """The flat walk of a domain in memory order."""
    names = domain.kept + domain.reduced
    order = by_memory_order(names, accessed, domain.extents)
    total = prod(domain.extents[a] for a in names)
    limit = vector_limit(accessed, device)
    last = [a for a in order if domain.extents[a] > 1][-1:]
    width = widest_vector(accessed, tuple(last), total if len(last) == 0 else max(total, 1), limit)
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
        return Pointwise(order, width, 1, max(1, min(vectors, device.fitted.flat.host_elements // width + 1)), False)
    if width < limit <= total and _is_one_run(domain, accessed, order):
        width = limit
    rows = _rows_at_a_place(domain, device, accessed, order, width)
    if rows is not None:
        return rows
    across, side = lanes_across(domain, device, accessed, order, width)
    return Pointwise(order, width, device.fitted.flat.threads, _steps(domain, device, accessed, width), True, across, side)


def _steps(domain: Domain, device: DeviceSpec, accessed: list[Access], width: int) -> int:
    """Vectors a thread of a flat walk takes: the fewest with which the device starts the blocks as fast as their bytes move.

        results that no vector takes (odd rows), one a thread         1.0 KB a block, 4.2 million blocks: 2.5 ms
        four a thread                                                 4.1 KB a block, 1.0 million blocks: 1.4 ms

    Source: H200, averages of 8 f32 side by side over 128 x 64 rows of 65537: the figures above; the bytes take 1.0 ms.
    """
    if domain.scatter is not None:
        return 1
    num_bytes = sum(num_places(a, domain) * a.itemsize for a in accessed)
    threads = device.fitted.flat.threads
    blocks = prod(domain.extents[a] for a in domain.kept + domain.reduced) // (width * threads)
    moved_us = streamed_us(num_bytes, device)
    started_us = ((s, starts_us(Launch(-(-blocks // s), threads), device)) for s in SEARCH.walks.flat_steps)
    return next((steps for steps, us in started_us if us <= moved_us), SEARCH.walks.flat_steps[-1])


def _is_one_run(domain: Domain, accessed: list[Access], order: tuple[str, ...]) -> bool:
    """Whether all that is large lies at the position in the walk itself, so that vectors may run on from one row to the next.

        y[r, c] = x[r, c] + b[c]  (c < 771)      ->      vectors of x and y of any rows, elements of b

    Source: H200, 16 x 14 x 14 places with 771 channels of f16: 24 us by one element a thread, where the bytes take 4.
    """
    if domain.scatter is not None or any(i.serial for i in domain.instances):
        return False
    shape = tuple(domain.extents[a] for a in order)
    strides = dict(zip(order, row_major_strides(shape), strict=True))
    large = [a for a in accessed if a.elements * 2 >= prod(shape)]
    return bool(large) and all(
        not a.dynamic and not a.guarded and a.offset.is_linear and not a.offset.const
        and all(stride_of(a.offset, name) == stride for name, stride in strides.items() if domain.extents[name] > 1) for a in large)


def _rows_at_a_place(domain: Domain, device: DeviceSpec, accessed: list[Access], order: tuple[str, ...], width: int) -> Pointwise | None:
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
    for access in accessed:
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
