"""The plan of a walk between several products: places of operands, vectors and results in shared memory, registers."""
from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from tilefuse.domain.contraction import INNER
from tilefuse.domain.work import Work
from tilefuse.ir.affine import Affine, bounds, linearise, row_major_strides, substitute
from tilefuse.ir.dtype import DType
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.ops import RANDOM_NUMBERS_A_CALL
from tilefuse.ir.scalar import Read
from tilefuse.kernel.pipeline import TILE_ALIGNMENT_BYTES, WARPGROUP, WARPGROUP_INNER_BYTES, WARPGROUP_ROWS
from tilefuse.kernel.tensor_map import why_no_map
from tilefuse.target.capabilities import MMA_COLUMNS, MMA_ROWS, WARP
from tilefuse.target.tensor_map import BOX_ALIGNMENT_BYTES
from tilefuse.target.warpgroup import NEIGHBOURS
from tilefuse.templates.staged.chain.plan import ITEM_BYTES, slot_lines
from tilefuse.templates.staged.online.plan import OnlinePlan, padded
from tilefuse.templates.staged.online.products import LEAD, ROW, WALK
from tilefuse.templates.staged.online.record import Online
from tilefuse.templates.staged.online.turn_work import loads_of
from tilefuse.templates.staged.pipelined.plan import OperandTile
from tilefuse.templates.staged.recomputed.biases import BiasTile, placed_biases
from tilefuse.templates.staged.recomputed.form import BackForm
from tilefuse.templates.staged.recomputed.record import WalkedBack
from tilefuse.templates.staged.walked.draws import GROUPS_A_WORD, Draw, draws_of
from tilefuse.templates.staged.walked.operand import WalkOperand
from tilefuse.templates.staged.walked.plan import PANEL
from tilefuse.templates.staged.walked.stage import StagedResult, staged_results
from tilefuse.templates.staged.walked.tiled import TiledWalk

KEPT, WALKED = "kept", "walked"
# Elements of one instruction along the inner axis.
INSTRUCTION_INNER = WARPGROUP_INNER_BYTES // ITEM_BYTES


@dataclass(frozen=True)
class VectorTile:
    """A stretch of a boundary vector beside the walked operands, one element for each column of a turn.

    lead              place along the first axis of its tensor map, a function of the lead place; None where the walked axis is alone
    extents, strides  of its tensor map

    Units: elements; bytes.
    """

    read: Read
    dtype: DType
    lead: Affine | None
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    first: int
    columns: int
    offset_bytes: int = 0

    @property
    def box(self) -> tuple[int, ...]:
        """Extents of one copy."""
        return (*(1 for _ in self.extents[:-1]), self.columns)

    @property
    def slot_bytes(self) -> int:
        """Shared memory of one slot: copies begin at whole lines."""
        return padded(self.columns * self.dtype.itemsize, BOX_ALIGNMENT_BYTES)

    @property
    def elements(self) -> int:
        """Elements of one slot."""
        return self.slot_bytes // self.dtype.itemsize


@dataclass(frozen=True)
class BackPlan(TiledWalk):
    """One kernel. vectors, biases: those that copies bring; threads load others. `work` and `flops`: as of `Work` and `TileProgram`."""

    form: BackForm
    choice: WalkedBack
    own: tuple[OperandTile, ...]
    walked: tuple[OperandTile, ...]
    vectors: tuple[VectorTile, ...]
    shared_bytes: int
    staged: tuple[StagedResult, ...] = ()
    biases: tuple[BiasTile, ...] = ()
    work: Work = Work()
    flops: int = 0

    @property
    def of(self) -> BackForm:
        """The form."""
        return self.form

    @property
    def tiling(self) -> WalkedBack:
        """The tiles."""
        return self.choice

    @property
    def segments(self) -> int:
        """As of the form."""
        return self.form.segments

    @property
    def tiles(self) -> tuple[OperandTile, ...]:
        """One slot's tile of each operand."""
        return *self.own, *self.walked, *(b.tile for b in self.biases)

    @property
    def brought(self) -> tuple[WalkOperand, ...]:
        """The operand of each tile."""
        return *self.form.own, *self.form.walked, *(b.bias.of for b in self.biases)

    @cached_property
    def loads(self) -> int:
        """Values with rows and columns that threads load for each score."""
        return loads_of(self.form.online, {b.bias.read for b in self.biases})

    def slots(self, tile: OperandTile) -> int:
        """Slots of an operand's ring."""
        return self.choice.kept_slots if tile in self.own else self.choice.slots

    def inner(self, score: int) -> int:
        """Inner extent of a score in whole instructions; operands are zeros beyond their end."""
        return padded(self.form.online.scores[score].inner, INSTRUCTION_INNER)

    def width(self, weighted: int) -> int:
        """Columns of a weighted product in whole instructions."""
        return padded(self.form.online.weighted[weighted].width, MMA_COLUMNS)

    @cached_property
    def draws(self) -> tuple[Draw, ...]:
        """Comparisons of random numbers that lanes draw for each other."""
        return draws_of(self.form.online, (WALK, ROW))

    @property
    def filling_bytes(self) -> int:
        """Bytes that a turn brings."""
        return self.operand_bytes + sum(b.tile.slot_bytes for b in self.biases)

    @property
    def operand_bytes(self) -> int:
        """Bytes of these that are no biases'."""
        return sum(t.slot_bytes for t in self.walked) + sum(v.slot_bytes for v in self.vectors)

    @property
    def registers(self) -> int:
        """Registers of a consumer thread for scores and for sums of the weighted products, for the elements of one of these as a left
        operand (the assembler puts those of the others where scores were), and for random outcomes."""
        form, columns = self.form.online, self.choice.columns
        sums = sum(self.width(n) for n in range(len(form.weighted)))
        arrays = max(len(form.scores), len(self.form.elements))
        of_rows = len(form.totals) * MMA_ROWS // (WARP // 4) + self.draw_words
        return WARPGROUP_ROWS * (arrays * columns + sums) // WARPGROUP + WARPGROUP_ROWS // 2 * columns // WARPGROUP + of_rows

    @property
    def draw_words(self) -> int:
        """Registers with outcomes of a turn's comparisons: for each row of a thread, and for both columns where scores are turned."""
        words = -(-self.choice.columns // MMA_COLUMNS // GROUPS_A_WORD)
        return sum(words * (RANDOM_NUMBERS_A_CALL if draw.along == ROW else NEIGHBOURS) for draw in self.draws)

    @property
    def walk(self) -> OnlinePlan:
        """The plan that the statements of a turn are written from: each warp has whole rows of 16, as on the smaller instructions."""
        choice = Online(self.choice.rows, self.choice.columns, self.choice.consumer_threads)
        return OnlinePlan(self.form.online, choice, "mma", 1, 1, (), self.shared_bytes)


def placed(form: BackForm, choice: WalkedBack, layouts: Layouts) -> BackPlan:
    """The plan with its rings and the stages of results one after the other in shared memory."""
    end, own, walked = 0, list[OperandTile](), list[OperandTile]()
    for key, operands, lines, slots, tiles in ((KEPT, form.own, choice.rows, choice.kept_slots, own),
                                               (WALKED, form.walked, choice.columns, choice.slots, walked)):
        for n, of in enumerate(operands):
            tile = OperandTile(f"{key}{n}", of.operand, slot_lines(of.operand, lines), padded(of.sizes[INNER], PANEL), end)
            tiles.append(tile)
            end = padded(end + tile.slot_bytes * slots, TILE_ALIGNMENT_BYTES)
    vectors: list[VectorTile] = []
    for read in form.of_columns:
        vector = _vector(form, read, layouts, choice.columns)
        if vector is not None:
            vectors.append(replace(vector, offset_bytes=end))
            end += vector.slot_bytes * choice.slots
    end = padded(end, TILE_ALIGNMENT_BYTES)
    biases = placed_biases(form.biases, choice.rows, choice.columns, choice.slots, end) if choice.bias_ring else ()
    end += sum(b.tile.slot_bytes for b in biases) * choice.slots
    staged = staged_results(form.online, form.staged_by, layouts, choice.rows, padded(end, TILE_ALIGNMENT_BYTES))
    return BackPlan(form, choice, tuple(own), tuple(walked), tuple(vectors), staged[-1].end_bytes if staged else end, staged,
                    biases)


def _vector(form: BackForm, read: Read, layouts: Layouts, columns: int) -> VectorTile | None:
    """A vector as a tensor over lead places and the walked axis; None where no tensor map describes it."""
    kind, online = form.online.graph.type_of(read.value), form.online
    offset = linearise(read.index, tuple(layouts.get(read.value) or row_major_strides(kind.shape)))
    offset = substitute(offset, {}, {LEAD: online.num_leads, WALK: online.length})
    others = [(Affine(((atom, 1),)), stride) for atom, stride in offset.terms if atom != WALK]
    if read.value in online.graph.node_by_name or offset.coefficient(WALK) != 1 or len(others) > 1:
        return None
    lead: Affine | None = None
    extents: tuple[int, ...] = (online.length,)
    strides: tuple[int, ...] = (1,)
    for place, stride in others:
        span = bounds(place, {LEAD: online.num_leads}) if place.axes() == {LEAD} else None
        if span is None or span[0] < 0 or stride < 0:
            return None
        lead, extents, strides = place, (span[1] + 1, online.length), (stride, 1)
    vector = VectorTile(read, kind.dtype, lead, extents, strides, offset.const, columns)
    return None if why_no_map(kind.dtype, extents, strides, vector.box, 0, vector.first) else vector
