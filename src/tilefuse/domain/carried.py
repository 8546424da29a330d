"""Carried reductions: sums down the columns that a row kernel accumulates in registers while it walks its rows.

    p[g, j] = sum_(t < L) f(t*G + g, j)     group g of every G-th row is one block (one cluster); a thread keeps a sum for each
                                            of its columns and adds to it row by row; the block writes p[g] at its end

At any time the blocks together read adjacent rows, as a copy does. H200: 8 % faster than L consecutive rows per block, which access as many
distant places in memory as there are blocks.
"""
from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

from tilefuse.ir.affine import Affine, FloorDiv, Mod, axis
from tilefuse.ir.graph import Node
from tilefuse.ir.scalar import Guard, Index, Read, walk
from tilefuse.target.device import DeviceSpec

# (row elements per thread, most threads per block). A thread holds its raw vectors and an f32 accumulator per element and carried sum.
# Longer rows take more elements per thread, and clusters.
# H200: 16 elements and 512 threads are faster than 8 and 1024, than 16 and 2 x 512 (which spills), and than 32 and 256.
SHAPES = ((16, 512), (32, 512))
# Row elements per thread, and threads, for rows of several f32 operands whose elements are also written. An iteration has half as many
# bytes in flight, and clusters of twice as many blocks write half as many partial sums.
# H200, gradients of layer norm, f32, us with 16 and with 8 elements: rows of 256 73.4, 70.4; 1024 70.6, 69.2; 4096 72.4, 70.7; 8192 74.1,
# 71.4; 32768 74.4, 70.7; 65536 74.3, 71.9.
# H200, gradients of RMS norm, f32, likewise: 8192 72.7, 71.4; 32768 72.9, 70.2; 65536 74.1, 71.7; by single blocks (not used) 1024 69.8,
# 71.6; 4096 70.9, 72.9.
FEW_ELEMENTS, FEW_ELEMENTS_THREADS = 8, 512
# Threads per block of a cluster whose rows carry several sums of 16-bit elements. Two blocks share a multiprocessor and hide each other's
# latency.
# H200, gradients of layer norm, f16, two runs: rows of 32768: 4 blocks of 512 threads 74.3, 75.1 us; 8 of 256 73.0, 73.5 us; rows of 65536:
# 8 of 512 75.1, 76.2 us; 16 of 256 74.3, 75.1 us.
NARROW_THREADS = 256
# Resident threads per multiprocessor: the number that 100 registers per thread allow.
RESIDENT_THREADS = 640
# Share of multiprocessors to use for long rows with little arithmetic. More blocks spread the accesses and lower DRAM efficiency.
# H200, gradients of RMS norm, us with 112 and with 131 blocks: 4096 f16 70.3, 75.2; 4096 bf16 71.6, 76.5; 8192 f16 71.5, 74.2. All
# multiprocessors are better with the two sums of layer norm (75.3, 73.4) and with f32 (71.7, 71.4).
LIGHT_LENGTH, LIGHT_SHARE = 4096, 0.85
# Least blocks of a long cluster; then (least bytes of an f32 row per block, share of multiprocessors that saturates DRAM). More clusters
# are slower.
# H200, gradients, f32, us with 14 and with 15 clusters of 8: layer norm of 32768 69.7, 70.4; RMS norm of 32768 68.5, 69.6; layer norm of
# 65536 68.5, 69.2.
# H200, gradients of 262144, f32, us with 6 and with 7 clusters of 16: 79.2, 83.8; 76.1, 78.4; 73.3, 75.2; residual and layer norm 77.0,
# 78.7.
# H200, clusters of 2 or 16-bit elements (not limited): 72.5 us with 28 clusters, 71.6 us with 30.
LONG_CLUSTER, LONG_CLUSTER_SHARES = 8, ((64 << 10, 0.73), (32 << 10, 0.85))
# Least iterations of a block over its group's rows. With fewer, the partial sums are a large part of the traffic.
MIN_TURNS = 4


@dataclass(frozen=True, slots=True)
class Written:
    """Rows of several operands that carry sums and whose elements are also written.

    several: whether there are several carried sums. narrow: whether all operands have 16 bits or fewer; if False, none has.
    Units: row_bytes is the sum of the operands' bytes per row element.
    """

    several: bool
    narrow: bool
    row_bytes: int


def written_rows(itemsizes: Collection[int], *, several: bool) -> Written | None:
    """`Written` for operands of these item sizes; None for a single operand and for a mix of wide and narrow ones. Units: bytes."""
    narrow = max(itemsizes, default=0) < 4
    return Written(several, narrow, sum(itemsizes)) if len(itemsizes) > 1 and (narrow or min(itemsizes) >= 4) else None


def row_threads(length: int, sum_bytes: int = 4, written: Written | None = None) -> tuple[int, int, int] | None:
    """(threads per row in one block, rows per block, blocks per cluster) of a row kernel with carried sums; None for rows too long.

    Units: sum_bytes of one accumulator. An f64 element takes two registers, like two f32 elements.
    """
    shape = _of_few_elements(length, written) if written and not written.narrow and sum_bytes == 4 else None
    if shape is not None:
        return shape
    length *= max(sum_bytes // 4, 1)
    lanes = 1
    while lanes < 32 and lanes * SHAPES[0][0] < length:
        lanes *= 2
    if lanes * SHAPES[0][0] >= length:
        return lanes, max(1, 256 // lanes), 1
    for most_cluster in (1, 8, 16):
        for elements, most_threads in SHAPES:
            cluster = 1
            while cluster <= most_cluster:
                threads = 32 * -(-length // (elements * cluster * 32))
                if threads <= most_threads:
                    few = elements == SHAPES[0][0] and threads == 2 * NARROW_THREADS
                    if written and written.several and written.narrow and 1 < cluster < 16 and few:
                        return NARROW_THREADS, 1, 2 * cluster
                    return threads, max(1, 512 // threads) if cluster == 1 else 1, cluster
                cluster *= 2
    return None


def _of_few_elements(length: int, written: Written) -> tuple[int, int, int] | None:
    """As `row_threads`, with `FEW_ELEMENTS` per thread; None for rows that blocks or clusters cannot share evenly."""
    lanes, rest = divmod(length, FEW_ELEMENTS)
    if rest or lanes % 32 or lanes & (lanes - 1):
        return None
    threads, cluster = min(lanes, FEW_ELEMENTS_THREADS), -(-lanes // FEW_ELEMENTS_THREADS)
    if not (1 if written.several else 2) <= cluster <= 16:
        return None
    return threads, FEW_ELEMENTS_THREADS // threads, cluster


def blocks_per_multiprocessor(threads: int) -> int:
    """Blocks of `threads` threads that share a multiprocessor in a kernel with carried sums."""
    return max(1, RESIDENT_THREADS // threads)


def clusters_in_turn(device: DeviceSpec, cluster: int, wide_bytes: int) -> int:
    """Clusters that walk rows of norms concurrently. Units: wide_bytes is the f32 bytes of a row per block; 0 for other types."""
    resident = device.clusters_at_once(cluster)
    shares = [part for least, part in LONG_CLUSTER_SHARES if wide_bytes >= least]
    if cluster < LONG_CLUSTER or not shares:
        return resident
    return max(1, min(resident, int(device.num_multiprocessors * shares[0]) // cluster))


def num_groups(count: int, length: int, device: DeviceSpec, sum_bytes: int = 4, light: bool = False,
               written: Written | None = None) -> int:
    """Number of row groups for `count` rows of `length` elements; 0 if carrying does not pay or does not fit.

    light: one sum over 16-bit rows, with little arithmetic.
    """
    shape = row_threads(length, sum_bytes, written)
    if shape is None or length < 32:
        return 0
    threads, rows, cluster = shape
    # A cluster that is not resident with the others would walk all its rows after them.
    wide_bytes = written.row_bytes * length // cluster if written is not None and not written.narrow else 0
    groups = clusters_in_turn(device, cluster, wide_bytes) * blocks_per_multiprocessor(threads * rows)
    if light and cluster == 1 and length >= LIGHT_LENGTH:
        groups = int(groups * LIGHT_SHARE)
    turns = -(-count // (groups * rows))
    if turns < MIN_TURNS:
        return 0
    return -(-count // (turns * rows))


def carried_groups(node: Node) -> int:
    """G of a node of the form p[g, ...] = reduce over t of an operand read at t*G + g; 0 for other nodes."""
    if node.category != "reduce" or node.detail not in ("sum", "max", "min") or len(node.over) != 1 or len(node.axes) < 2:
        return 0
    (step, _), group, groups = node.over[0], node.axes[0], node.type.shape[0]
    assert node.body is not None
    for x in walk(node.body):
        match x:
            case Read(_, index):
                subscripts: tuple[Affine, ...] = index
            case Index(affine):
                subscripts = (affine,)
            case Guard(bounds, _, _):
                subscripts = tuple(b.index for b in bounds)
            case _:
                continue
        if any(_walks_groups(e, group, step, groups) for e in subscripts):
            return groups
    return 0


def _walks_groups(e: Affine, group: str, step: str, groups: int) -> bool:
    """Whether `e` is or contains groups*step + group, possibly simplified by a quotient or remainder of the rows' extents."""
    if groups > 1 and e.coefficient(group) == 1:
        # If G divides the extent at which the rows were split, the step itself is split: (G*t + g) % (2*G) becomes g + G*(t % 2).
        halves = (c for atom, c in e.terms if isinstance(atom, Mod) and atom.of == axis(step))
        if e.coefficient(step) == groups or groups in halves:
            return True
    for atom, c in e.terms:
        match atom:
            case Mod(of, by) if of.coefficient(group) == 1 and of.coefficient(step) and (of.coefficient(step) - groups) % by == 0:
                return True
            case FloorDiv(of, by) if c == 1 and of == axis(group) and by > 1 and e.coefficient(step) * by == groups:
                return True
            case FloorDiv(of, _) | Mod(of, _) if _walks_groups(of, group, step, groups):
                return True
            case _:
                continue
    return False


def num_rows(node: Node) -> int:
    """Total number of rows that a carried node sums. The last step may be incomplete."""
    assert node.body is not None
    if isinstance(node.body, Guard) and len(node.body.bounds) == 1:
        return node.body.bounds[0].high
    return node.type.shape[0] * prod(e for _, e in node.over)
