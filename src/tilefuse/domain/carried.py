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
from tilefuse.target.fitted.rows import CarriedFigures


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


def row_threads(fitted: CarriedFigures, length: int, sum_bytes: int = 4, written: Written | None = None) -> tuple[int, int, int] | None:
    """(threads per row in one block, rows per block, blocks per cluster) of a row kernel with carried sums; None for rows too long.

    Units: sum_bytes of one accumulator. An f64 element takes two registers, like two f32 elements.
    """
    shape = _of_few_elements(fitted, length, written) if written and not written.narrow and sum_bytes == 4 else None
    if shape is not None:
        return shape
    length *= max(sum_bytes // 4, 1)
    lanes, fewest = 1, fitted.shapes[0][0]
    while lanes < 32 and lanes * fewest < length:
        lanes *= 2
    if lanes * fewest >= length:
        return lanes, max(1, 256 // lanes), 1
    for most_cluster in (1, 8, 16):
        for elements, most_threads in fitted.shapes:
            cluster = 1
            while cluster <= most_cluster:
                threads = 32 * -(-length // (elements * cluster * 32))
                if threads <= most_threads:
                    few = elements == fewest and threads == 2 * fitted.narrow_threads
                    if written and written.several and written.narrow and 1 < cluster < 16 and few:
                        return fitted.narrow_threads, 1, 2 * cluster
                    return threads, max(1, 512 // threads) if cluster == 1 else 1, cluster
                cluster *= 2
    return None


def _of_few_elements(fitted: CarriedFigures, length: int, written: Written) -> tuple[int, int, int] | None:
    """As `row_threads`, with `few_elements` per thread; None for rows that blocks or clusters cannot share evenly."""
    lanes, rest = divmod(length, fitted.few_elements)
    if rest or lanes % 32 or lanes & (lanes - 1):
        return None
    most_threads = fitted.few_elements_threads
    threads, cluster = min(lanes, most_threads), -(-lanes // most_threads)
    if not (1 if written.several else 2) <= cluster <= 16:
        return None
    return threads, most_threads // threads, cluster


def blocks_per_multiprocessor(device: DeviceSpec, threads: int) -> int:
    """Blocks of `threads` threads that share a multiprocessor in a kernel with carried sums."""
    return max(1, device.registers_per_multiprocessor // device.fitted.rows.carried.registers // threads)


def clusters_in_turn(device: DeviceSpec, cluster: int, wide_bytes: int) -> int:
    """Clusters that walk rows of norms concurrently. Units: wide_bytes is the f32 bytes of a row per block; 0 for other types."""
    resident, fitted = device.clusters_at_once(cluster), device.fitted.rows.carried
    shares = [part for least, part in fitted.long_cluster_shares if wide_bytes >= least]
    if cluster < fitted.long_cluster or not shares:
        return resident
    return max(1, min(resident, int(device.num_multiprocessors * shares[0]) // cluster))


def num_groups(count: int, length: int, device: DeviceSpec, sum_bytes: int = 4, light: bool = False,
               written: Written | None = None) -> int:
    """Number of row groups for `count` rows of `length` elements; 0 if carrying does not pay or does not fit.

    light: one sum over 16-bit rows, with little arithmetic.
    """
    fitted = device.fitted.rows.carried
    shape = row_threads(fitted, length, sum_bytes, written)
    if shape is None or length < 32:
        return 0
    threads, rows, cluster = shape
    # A cluster that is not resident with the others would walk all its rows after them.
    wide_bytes = written.row_bytes * length // cluster if written is not None and not written.narrow else 0
    groups = clusters_in_turn(device, cluster, wide_bytes) * blocks_per_multiprocessor(device, threads * rows)
    if light and cluster == 1 and length >= fitted.light_length:
        groups = int(groups * fitted.light_share)
    turns = -(-count // (groups * rows))
    if turns < fitted.least_turns:
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
