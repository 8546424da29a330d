"""Carried reductions: sums down the columns that a row kernel accumulates in registers while it walks its rows.

    p[g, j] = sum_(t < L) f(t*G + g, j)     group g of every G-th row is one block (one cluster); a thread keeps a sum for each
                                            of its columns and adds to it row by row; the block writes p[g] at its end

All blocks together read neighbouring rows at any time, as a copy does (measured on H200: 8 % faster than L consecutive rows a
block, which are as many places in memory as there are blocks).
"""
from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

from tilefuse.ir.affine import Affine, FloorDiv, Mod, axis
from tilefuse.ir.graph import Node
from tilefuse.ir.scalar import Guard, Index, Read, walk
from tilefuse.target.device import DeviceSpec

# (elements of a row that one thread holds, most threads a block): its raw vectors, and an f32 accumulator an element and carried
# sum. Longer rows take more elements, and clusters.
# Measured on H200: 16 elements and 512 threads beat 8 and 1024, 16 and 2 x 512 (which spills), and 32 and 256.
SHAPES = ((16, 512), (32, 512))
# Elements that a thread holds of rows of several f32 operands which are also written, where it pays: half as much is on its way through a
# turn, and clusters of twice as many blocks write half as many partial sums (measured on H200 by 16 and by 8, gradients of layer norm over
# 256 f32 73.4 and 70.4 us, 1024 70.6 and 69.2, 4096 72.4 and 70.7, 8192 74.1 and 71.4, 32768 74.4 and 70.7, 65536 74.3 and 71.9; of RMS
# norm over 8192 72.7 and 71.4, 32768 72.9 and 70.2, 65536 74.1 and 71.7, but by single blocks over 1024 69.8 and 71.6, 4096 70.9 and 72.9).
FEW_ELEMENTS, FEW_ELEMENTS_THREADS = 8, 512
# Threads of a block of a cluster whose rows carry several sums of 16-bit elements: two blocks share a multiprocessor, and one works while
# the other waits (measured on H200, gradients of layer norm f16 over 32768: 74.3 and 75.1 us by 4 blocks of 512 threads, 73.0 and 73.5 by 8
# of 256; over 65536: 75.1 and 76.2 by 8 of 512, 74.3 and 75.1 by 16 of 256).
NARROW_THREADS = 256
# Threads that share a multiprocessor: as many as 100 registers a thread allow.
RESIDENT_THREADS = 640
# Blocks that do little beside loading ask for more than memory gives in order: of so long rows, this part of the multiprocessors is faster
# than all (measured on H200, gradients of RMS norm by 112 blocks and by 131: 4096 elements f16 70.3 and 75.2 us, bf16 71.6 and 76.5, 8192
# elements f16 71.5 and 74.2; with the two sums of layer norm 75.3 and 73.4, f32 71.7 and 71.4).
LIGHT_LENGTH, LIGHT_SHARE = 4096, 0.85
# Long clusters whose blocks bring so many bytes of an f32 row at a time keep memory busy by this part of the multiprocessors, and more are
# slower (measured on H200, gradients of layer norm over 32768 f32 by 14 and 15 clusters of 8: 69.7 and 70.4 us, of RMS norm 68.5 and 69.6,
# layer norm over 65536 68.5 and 69.2; over 262144, by 6 and 7 clusters of 16: 79.2 and 83.8, 76.1 and 78.4, 73.3 and 75.2, residual and
# layer norm 77.0 and 78.7. Not clusters of 2, nor 16-bit elements: 72.5 us by 28 and 71.6 by 30 clusters).
LONG_CLUSTER, LONG_CLUSTER_SHARES = 8, ((64 << 10, 0.73), (32 << 10, 0.85))
# With fewer turns the partial sums are no small part of the traffic.
MIN_TURNS = 4


@dataclass(frozen=True, slots=True)
class Written:
    """Facts about rows of several operands whose elements are written beside the sums that they carry.

    several: whether there is more than one sum. narrow: whether all operands are of 16 bits or less; none is where this does not hold.
    Units: row_bytes of all operands' elements at one place of a row.
    """

    several: bool
    narrow: bool
    row_bytes: int


def written_rows(itemsizes: Collection[int], *, several: bool) -> Written | None:
    """Facts about rows of operands of these sizes whose elements are written; None where nothing is known of them. Units: bytes."""
    narrow = max(itemsizes, default=0) < 4
    return Written(several, narrow, sum(itemsizes)) if len(itemsizes) > 1 and (narrow or min(itemsizes) >= 4) else None


def row_threads(length: int, sum_bytes: int = 4, written: Written | None = None) -> tuple[int, int, int] | None:
    """(threads a row and block, rows a block, blocks a cluster) of a row kernel with carried sums; None for rows too long.

    Units: sum_bytes of one accumulator. Elements of f64 take two registers each, as two of f32 do.
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
    """As `row_threads`: blocks of the threads that share whole rows evenly, or clusters of them that share one; None for others."""
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
    """Clusters that walk norms' rows at once. Units: wide_bytes of the operands that a block takes of a row of f32; 0 for others."""
    found = device.clusters_at_once(cluster)
    shares = [part for least, part in LONG_CLUSTER_SHARES if wide_bytes >= least]
    if cluster < LONG_CLUSTER or not shares:
        return found
    return max(1, min(found, int(device.num_multiprocessors * shares[0]) // cluster))


def num_groups(count: int, length: int, device: DeviceSpec, sum_bytes: int = 4, light: bool = False,
               written: Written | None = None) -> int:
    """Groups of rows for `count` rows of `length` elements; 0 where carrying does not pay or does not fit.

    light: one sum over 16-bit rows, whose blocks do little beside loading.
    """
    shape = row_threads(length, sum_bytes, written)
    if shape is None or length < 32:
        return 0
    threads, rows, cluster = shape
    # A cluster too many would walk all its rows after the others.
    wide_bytes = written.row_bytes * length // cluster if written is not None and not written.narrow else 0
    groups = clusters_in_turn(device, cluster, wide_bytes) * blocks_per_multiprocessor(threads * rows)
    if light and cluster == 1 and length >= LIGHT_LENGTH:
        groups = int(groups * LIGHT_SHARE)
    turns = -(-count // (groups * rows))
    if turns < MIN_TURNS:
        return 0
    return -(-count // (turns * rows))


def carried_groups(node: Node) -> int:
    """G of a node of the form p[g, ...] = reduce over t of something read at t*G + g; 0 if it is not one."""
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
    """Whether `e` is, or holds, groups*step + group as a quotient or remainder of the rows' extents leaves it."""
    if groups > 1 and e.coefficient(group) == 1:
        # Where G divides the extent that the rows were split at, the step itself is split: g + G*(t % 2) of (G*t + g) % (2*G).
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
    """Rows that a carried node sums in all (the last group may have fewer). Units: rows."""
    assert node.body is not None
    if isinstance(node.body, Guard) and len(node.body.bounds) == 1:
        return node.body.bounds[0].high
    return node.type.shape[0] * prod(e for _, e in node.over)
