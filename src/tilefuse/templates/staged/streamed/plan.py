"""The plan of a streamed product: its form, its tiles, and the places of rows, rings and sums in shared memory."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.domain.online import KERNEL_MONOIDS
from tilefuse.domain.work import Work
from tilefuse.ir.dtype import DType
from tilefuse.ir.graph import Node
from tilefuse.ir.ops import dtype_of
from tilefuse.target.capabilities import MMA_COLUMNS, WARP
from tilefuse.target.memory import ACCESS_BYTES
from tilefuse.templates.staged.streamed.form import Stream, StreamForm
from tilefuse.templates.staged.streamed.lanes import Lanes
from tilefuse.templates.staged.streamed.record import Streamed

SUM_BYTES = 4


@dataclass(frozen=True)
class StreamPlan:
    """One kernel. `work` and `flops`: as of `Work` and `TileProgram`.

        shared memory    | results of reductions | rows of the left operand | rings of weights |
        after the loop   |        as before      | sums of the warps | sums of the block  ...
    """

    form: StreamForm
    choice: Streamed
    work: Work = Work()
    flops: int = 0

    @property
    def lanes(self) -> Lanes:
        """A warp's tile of a step."""
        stream = self.form.streams[0]
        return Lanes(self.form.unit, stream.along, stream.elements, self.choice.wide)

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return self.lanes.columns * self.choice.across

    @property
    def column_tiles(self) -> int:
        """Tiles along the columns."""
        return -(-self.form.columns // self.columns)

    @property
    def num_blocks(self) -> int:
        """Blocks of all lead places."""
        return self.form.num_leads * self.column_tiles * self.choice.cluster

    @property
    def step(self) -> int:
        """Inner elements of all warps of a block in one step."""
        return self.lanes.depth * self.choice.along

    @property
    def steps(self) -> int:
        """Steps of a block."""
        return -(-self.form.inner // (self.step * self.choice.cluster))

    @property
    def share(self) -> int:
        """Inner elements of a block, those beyond the end included."""
        return self.steps * self.step

    # -- the left operand ------------------------------------------------------------------------------------------------------

    @property
    def held_rows(self) -> int:
        """Rows in shared memory: matrix instructions take eight, or one for all of their columns."""
        rows = self.form.rows
        return rows if rows == 1 or self.form.unit == "fma" else -(-rows // MMA_COLUMNS) * MMA_COLUMNS

    @property
    def row_elements(self) -> int:
        """Elements from one row to the next in shared memory: the rows of one access begin in different banks."""
        return self.share + ACCESS_BYTES // self.form.left_dtype.itemsize

    @property
    def tiles_n(self) -> int:
        """Matrix instructions along the rows of the left operand."""
        return -(-self.held_rows // MMA_COLUMNS)

    @property
    def sums(self) -> int:
        """Sums of a thread for one product."""
        if self.form.unit == "mma":
            return 4 * self.lanes.tiles * self.tiles_n
        return self.form.rows * (self.choice.wide * (self.lanes.elements if self.lanes.along != "inner" else 1))

    # -- reductions ------------------------------------------------------------------------------------------------------------

    @property
    def team(self) -> int:
        """Threads that share a row of a reduction: whole warps."""
        rows = 1
        while rows < self.form.rows:
            rows *= 2
        return max(self.choice.num_threads // rows // WARP, 1) * WARP

    def body_dtype(self, node: Node) -> DType:
        """Type of the elements that a reduction combines."""
        assert node.body is not None
        return dtype_of(node.body, lambda v: self.form.graph.type_of(v).dtype)

    def parts(self, node: Node) -> tuple[DType, ...]:
        """Types of the components of a reduction's partial results."""
        return KERNEL_MONOIDS[node.detail].components(self.body_dtype(node))

    # -- places in shared memory -----------------------------------------------------------------------------------------------

    @property
    def reductions(self) -> tuple[Node, ...]:
        """Reductions of the left operand's rows."""
        return tuple(self.form.graph.node_by_name[n] for n in self.form.reductions)

    def result_bytes(self, node: Node) -> int:
        """Results of a reduction for all rows."""
        return _aligned(self.form.rows * node.type.dtype.itemsize)

    def partial_bytes(self, node: Node) -> int:
        """Partial results of a reduction's warps: one component."""
        return _aligned(self.form.rows * self.team // WARP * max(t.itemsize for t in self.parts(node)))

    @property
    def reduction_bytes(self) -> int:
        """All results and partial results of reductions."""
        return sum(self.result_bytes(n) + len(self.parts(n)) * self.partial_bytes(n) for n in self.reductions)

    @property
    def left_bytes(self) -> int:
        """The left operand's rows."""
        return _aligned(self.held_rows * self.row_elements * self.form.left_dtype.itemsize)

    def ring_bytes(self, stream: Stream) -> int:
        """The ring of one product's weights: an access has a place of a power of two of bytes."""
        return self.choice.slots * self.lanes.accesses * self.choice.num_threads * stream.words * stream.dtype.itemsize

    @property
    def warp_sum_bytes(self) -> int:
        """Sums of all warps for one product."""
        return _aligned(self.choice.along * self.form.rows * self.columns * SUM_BYTES)

    @property
    def block_sum_bytes(self) -> int:
        """Sums of the block for one product, which other blocks of the cluster read."""
        return _aligned(self.form.rows * self.columns * SUM_BYTES) if self.choice.cluster > 1 else 0

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block. Units: bytes."""
        streams = self.form.streams
        during = self.left_bytes + sum(_aligned(self.ring_bytes(s)) for s in streams)
        return self.reduction_bytes + max(during, len(streams) * (self.warp_sum_bytes + self.block_sum_bytes))


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ACCESS_BYTES) * ACCESS_BYTES
