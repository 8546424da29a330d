"""Exchanges of a row's partial results between the blocks of a cluster: the parts that are sent, and where they arrive.

    block 0    columns 0 .. 255       sum, squares of each row     ->  every block's shared memory, place [row, 0]
    block 1    columns 256 .. 511                                  ->  place [row, 1]

Every block then combines the parts of all blocks in the order of their columns, so that all of them find the same results. Each warpgroup
exchanges the parts of its own rows with the warpgroup of the same number in the other blocks, through slots and barriers of its own.

The blocks of a scattered cluster share one copy of the slots in global memory, and meet at a counter for each slot.
"""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.domain.online import KERNEL_MONOIDS
from tilefuse.ir.dtype import F32, I32, DType
from tilefuse.ir.graph import Graph
from tilefuse.ir.ops import dtype_of
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.rows.form import RowForm, RowStage


@dataclass(frozen=True)
class Part:
    """A component of a partial result. dtype: its own type; sent: the type in which blocks exchange it, which holds all its values."""

    name: str
    dtype: DType
    sent: DType


@dataclass(frozen=True)
class Exchange:
    """The parts of one stage; slots of `rows` x `blocks` elements for each of them, each warpgroup and each copy, one part after another.

    rows    of a warpgroup
    groups  warpgroups, which exchange apart from each other
    clusters  that have slots of their own in one memory: all of a scattered launch, else one
    copies  that tiles use in turn. A block that has received everything of one exchange may send for the next one while another block
            still reads. Two stages of a tile have slots of their own; a single one has two copies.
    """

    parts: tuple[Part, ...]
    offset_bytes: int
    rows: int
    blocks: int
    groups: int
    copies: int
    clusters: int = 1
    in_memory: bool = False

    @property
    def slot_elements(self) -> int:
        """Elements of one part in one copy of a warpgroup."""
        return self.rows * self.blocks

    @property
    def num_slots(self) -> int:
        """Slots of each part, and transaction barriers: one for each copy of each warpgroup."""
        return self.groups * self.copies

    @property
    def phase_bytes(self) -> int:
        """Bytes that reach a warpgroup in one exchange."""
        return self.slot_elements * sum(p.sent.itemsize for p in self.parts)

    @property
    def num_bytes(self) -> int:
        """Shared memory of a block; 0 where the slots lie in global memory."""
        return 0 if self.in_memory else self.phase_bytes * self.num_slots

    @property
    def part_elements(self) -> int:
        """Elements of one part in all slots of one memory."""
        return self.slot_elements * self.num_slots * self.clusters

    def part_offset_bytes(self, part: Part) -> int:
        """Where the slots of a part begin."""
        before = self.parts[:self.parts.index(part)]
        return self.offset_bytes + self.slot_elements * self.num_slots * sum(p.sent.itemsize for p in before)


@dataclass(frozen=True)
class ReceivedSums:
    """Sums that the blocks of a cluster send each other, where each has a part of a tile's inner axis.

        block 0    columns 0 .. 127 of its part      ->  block 0    columns 0 .. 63 of parts 0 and 1
        block 1    columns 0 .. 127 of its part      ->  block 1    columns 64 .. 127 of parts 0 and 1

    elements  of every part, those of the block itself too, that a block adds up for one tile, over all products
    parts     of the cluster
    copies    that tiles use in turn: a block that has received all parts may send those of its next tile while another still reads
    """

    offset_bytes: int
    elements: int
    parts: int
    copies: int

    @property
    def phase_bytes(self) -> int:
        """Bytes that the other blocks send to a block for one tile."""
        return self.elements * F32.itemsize // self.parts * (self.parts - 1)

    @property
    def num_bytes(self) -> int:
        """Shared memory of a block."""
        return self.elements * F32.itemsize * self.copies


def parts_of(graph: Graph, stage: RowStage) -> tuple[Part, ...]:
    """The parts of a stage's reductions, the widest types first."""
    parts = [p for r in stage.reductions for p in reduction_parts(graph, stage, r)]
    return tuple(sorted(parts, key=lambda p: -p.sent.itemsize))


def reduction_parts(graph: Graph, stage: RowStage, reduction: str) -> tuple[Part, ...]:
    """The components of one reduction: of squares their own sum, unless the stage has it, and the squared deviations."""
    node = graph.node_by_name[reduction]
    assert node.body is not None
    dtype = dtype_of(node.body, lambda v: graph.type_of(v).dtype)
    if is_by_squares(stage, reduction):
        total = () if reduction in stage.totals else (Part(f"{reduction}_total", dtype, dtype),)
        return (*total, Part(reduction, dtype, dtype))
    kinds = KERNEL_MONOIDS[node.detail].components(dtype)
    return tuple(Part(f"{reduction}_{n}" if n else reduction, t, _sent(t)) for n, t in enumerate(kinds))


def is_by_squares(stage: RowStage, reduction: str) -> bool:
    """Whether a reduction adds up squared deviations from a mean that is known."""
    return any(p.squares and reduction in p.reductions for p in stage.passes)


def _sent(dtype: DType) -> DType:
    """The type of a signalled store, which has 32 or 64 bits, for values of a type. Source: PTX ISA, st.async."""
    if dtype.bits >= F32.bits:
        return dtype
    return F32 if dtype.is_float else I32


def exchanges_of(graph: Graph, rows: RowForm, choice: Pipelined, offset_bytes: int) -> tuple[Exchange, ...]:
    """The exchanges of a tile, one after another in shared memory or each in global memory; none without a cluster."""
    exchanges: list[Exchange] = []
    copies = 2 if len(rows.stages) == 1 else 1
    for stage in rows.stages if choice.cluster_columns > 1 else ():
        clusters = choice.num_clusters if choice.scattered else 1
        exchanges.append(Exchange(parts_of(graph, stage), offset_bytes, choice.warpgroup_rows, choice.cluster, choice.warpgroups, copies,
                                  clusters, choice.scattered))
        offset_bytes += exchanges[-1].num_bytes
    return tuple(exchanges)
