"""The plan of a pipelined walk: places of its operands in shared memory, turns of its tiles, registers."""
from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tilefuse.base.construction import quickly_built, replace
from tilefuse.domain.work import Work
from tilefuse.ir.layouts import Layouts
from tilefuse.kernel.pipeline import (
    SWIZZLE_LINE_BYTES,
    TILE_ALIGNMENT_BYTES,
    WARPGROUP,
    WARPGROUP_INNER_BYTES,
    WARPGROUP_ROWS,
    panel_width,
)
from tilefuse.kernel.tensor_map import why_no_map
from tilefuse.target.capabilities import MMA_COLUMNS
from tilefuse.target.device import DeviceSpec
from tilefuse.target.warpgroup import NEIGHBOURS
from tilefuse.templates.staged.chain.plan import ITEM_BYTES, slot_lines
from tilefuse.templates.staged.online.plan import OnlinePlan, padded
from tilefuse.templates.staged.online.record import Online
from tilefuse.templates.staged.pipelined.plan import OperandMap, OperandTile, map_of_tile, why_no_map_of
from tilefuse.templates.staged.walked.draws import GROUPS_A_WORD, Draw, draws_of
from tilefuse.templates.staged.walked.form import WalkForm
from tilefuse.templates.staged.walked.operand import WalkOperand
from tilefuse.templates.staged.walked.paged.pages import map_of_pages
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.split.groups import map_of_heads
from tilefuse.templates.staged.walked.split.parts import PartSums
from tilefuse.templates.staged.walked.stage import StagedResult, staged_results
from tilefuse.templates.staged.walked.tiled import TiledWalk

LEFT, KEYS, VALUES = "left", "keys", "values"
# Elements of a panel along its contiguous axis, and of one instruction along the inner axis.
PANEL = panel_width(SWIZZLE_LINE_BYTES, ITEM_BYTES)
INSTRUCTION_INNER = WARPGROUP_INNER_BYTES // ITEM_BYTES


@quickly_built
@dataclass(frozen=True)
class WalkPlan(TiledWalk):
    """One kernel. biases: tiles of the form's, where rings bring them. sums: numbers that blocks leave each other, where the walked axis is
    in parts. `work` and `flops`: as of `Work` and `TileProgram`."""

    form: WalkForm
    choice: PipelinedWalk
    left: OperandTile
    keys: OperandTile
    values: OperandTile
    shared_bytes: int
    staged: tuple[StagedResult, ...] = ()
    biases: tuple[OperandTile, ...] = ()
    sums: PartSums | None = None
    work: Work = Work()
    flops: int = 0

    @property
    def tiles(self) -> tuple[OperandTile, ...]:
        """One slot's tile of each operand."""
        return self.left, self.keys, self.values, *self.biases

    def slots(self, tile: OperandTile) -> int:
        """Slots of an operand's ring."""
        if tile in self.biases:
            return self.choice.bias_slots
        return self.choice.left_slots if tile.key == LEFT else self.choice.slots

    def map_of(self, of: WalkOperand, tile: OperandTile) -> OperandMap:
        """The tensor map of an operand."""
        if of.pages is not None:
            return map_of_pages(of.sizes, tile, of.pages, self.choice.columns)
        return map_of_heads(of, tile, self.form.heads) if tile.key == LEFT else map_of_tile(of.sizes, tile)

    def why_no_map(self, of: WalkOperand, tile: OperandTile) -> str:
        """Why no tensor copies bring the tiles of an operand; "" where they do."""
        wrong = why_no_map_of(of.sizes, tile)
        if wrong or of.pages is None and (tile.key != LEFT or self.form.heads == 1):
            return wrong
        m = self.map_of(of, tile)
        return why_no_map(of.operand.dtype, m.extents, m.strides, m.box, SWIZZLE_LINE_BYTES, of.operand.first)

    def is_loaded(self, tile: OperandTile) -> bool:
        """Whether producing threads load a bias: no tensor map describes it."""
        return tile in self.biases and bool(why_no_map_of(self.form.biases[self.biases.index(tile)].of.sizes, tile))

    @property
    def loads(self) -> bool:
        """Whether producing threads load something."""
        return any(self.is_loaded(t) for t in self.biases)

    @property
    def brought(self) -> tuple[WalkOperand, ...]:
        """The operand of each tile."""
        return *self.form.operands, *(b.of for b in self.form.biases[:len(self.biases)])

    @cached_property
    def draws(self) -> tuple[Draw, ...]:
        """Comparisons of random numbers that lanes draw for each other."""
        return draws_of(self.form.online)

    @property
    def draw_words(self) -> int:
        """Registers with outcomes of a turn's comparisons, for both rows of a thread."""
        return NEIGHBOURS * -(-self.choice.columns // MMA_COLUMNS // GROUPS_A_WORD) * len(self.draws)

    @property
    def of(self) -> WalkForm:
        """The form."""
        return self.form

    @property
    def tiling(self) -> PipelinedWalk:
        """The tiles."""
        return self.choice

    @property
    def parts(self) -> int:
        """Parts of a tile."""
        return self.choice.parts

    @property
    def heads(self) -> int:
        """Heads whose rows are those of one tile."""
        return self.form.heads

    @property
    def inner(self) -> int:
        """Inner extent of the scores in whole instructions; operands are zeros beyond their end."""
        return padded(self.form.inner, INSTRUCTION_INNER)

    @property
    def width(self) -> int:
        """Columns of the weighted product in whole instructions."""
        return padded(self.form.width, MMA_COLUMNS)

    @property
    def registers(self) -> int:
        """Registers of a consumer thread for scores, powers and sums: 64 rows of each."""
        elements = WARPGROUP_ROWS // 2 * self.choice.columns + WARPGROUP_ROWS * (self.choice.columns + self.width)
        return elements // WARPGROUP

    @property
    def walk(self) -> OnlinePlan:
        """The plan that the statements of a turn are written from: each warp has whole rows of 16, as on the smaller instructions."""
        choice = Online(self.choice.rows, self.choice.columns, self.choice.consumer_threads)
        return OnlinePlan(self.form.online, choice, "mma", 1, 1, (), self.shared_bytes)


def placed(form: WalkForm, choice: PipelinedWalk, layouts: Layouts) -> WalkPlan:
    """The plan with its rings and the stages of results one after the other in shared memory."""
    end, tiles = 0, []
    depth, width = padded(form.inner, PANEL), form.width
    for key, of, lines, inner, slots in ((LEFT, form.left, choice.rows, depth, choice.left_slots),
                                         (KEYS, form.keys, choice.columns, depth, choice.slots),
                                         (VALUES, form.values, width, choice.columns, choice.slots)):
        tiles.append(OperandTile(key, of.operand, slot_lines(of.operand, lines), inner, end))
        end = padded(end + tiles[-1].slot_bytes * slots, TILE_ALIGNMENT_BYTES)
    left, keys, values = tiles
    biases: list[OperandTile] = []
    for n, bias in enumerate(form.biases if choice.bias_slots else ()):
        operand = bias.of.operand
        panel = panel_width(SWIZZLE_LINE_BYTES, operand.dtype.itemsize)
        biases.append(tile := OperandTile(f"bias{n}", operand, choice.rows, padded(choice.columns, panel), end))
        end = padded(end + tile.slot_bytes * choice.bias_slots, TILE_ALIGNMENT_BYTES)
    # Rows of several heads lie at no one distance in a result.
    staged = staged_results(form.online, form.values, layouts, choice.rows, end) if form.heads == 1 else ()
    end = staged[-1].end_bytes if staged else end
    plan = WalkPlan(form, choice, left, keys, values, end, staged, tuple(biases))
    if choice.parts == 1:
        return plan
    sums = PartSums(choice.parts, min(choice.rows, form.online.num_rows), plan.width, padded(end, TILE_ALIGNMENT_BYTES))
    return replace(plan, sums=sums, shared_bytes=sums.end_bytes)


def consumer_registers(plan: WalkPlan, device: DeviceSpec) -> tuple[int, int]:
    """Registers of producers, and of consumers: the rest of those that the block starts with. Units: registers a thread."""
    loads = plan.loads or any(of.pages is not None for of in plan.form.operands)
    producing = device.fitted.walks.loading_registers if loads else device.fitted.pipelined.copying_registers
    return plan.choice.registers_of_roles(producing, device)
