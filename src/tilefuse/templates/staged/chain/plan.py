"""The plan of a chain of products: places of its operands and results in shared memory, the rings that bring them, registers."""
from __future__ import annotations

from dataclasses import dataclass, replace

from tilefuse.domain.work import Work
from tilefuse.kernel.pipeline import SWIZZLE_LINE_BYTES, TILE_ALIGNMENT_BYTES, WARPGROUP, WARPGROUP_INNER_BYTES, panel_width
from tilefuse.target.capabilities import MMA_COLUMNS
from tilefuse.templates.staged.chain.form import ChainForm, Layer
from tilefuse.templates.staged.chain.record import ProductChain
from tilefuse.templates.staged.online.plan import padded
from tilefuse.templates.staged.pipelined.form import ProductForm
from tilefuse.templates.staged.pipelined.operand import Operand
from tilefuse.templates.staged.pipelined.plan import OperandTile, ProductPlan
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.stages import STAGE_COLUMNS, STAGES, StagedTile, Stages

# Ring of the first left operand, and of the right operands where these share one.
LEFT_RING, RIGHT_RING = "left", "right"
# Bytes of a left or right operand's element: 16 bits.
ITEM_BYTES = 2
# Inner elements of a slot, and of one instruction.
DEPTH = panel_width(SWIZZLE_LINE_BYTES, ITEM_BYTES)
INSTRUCTION_INNER = WARPGROUP_INNER_BYTES // ITEM_BYTES


@dataclass(frozen=True)
class PlannedLayer:
    """One product. ahead, results: the layer's forms in tiles; right: its right operand in a slot; ring: which brings it."""

    ahead: ProductPlan | None
    results: ProductPlan | None
    columns: int
    right: OperandTile
    ring: str

    @property
    def plan(self) -> ProductPlan:
        """Either plan: both have the same product."""
        plan = self.ahead or self.results
        assert plan is not None
        return plan

    @property
    def form(self) -> ProductForm:
        """The product's form."""
        return self.plan.form

    @property
    def fillings(self) -> int:
        """Slots that hold the right operand one after another."""
        return -(-self.form.inner // DEPTH)

    def depth(self, filling: int) -> int:
        """Inner elements of a filling that are multiplied, in whole instructions; those beyond the operand's end are zeros."""
        return min(DEPTH, padded(self.form.inner, INSTRUCTION_INNER) - filling * DEPTH)


@dataclass(frozen=True)
class ChainPlan:
    """One kernel. `work` and `flops`: as of `Work` and `TileProgram`."""

    form: ChainForm
    choice: ProductChain
    left: OperandTile
    layers: tuple[PlannedLayer, ...]
    shared_bytes: int
    work: Work = Work()
    flops: int = 0

    @property
    def row_tiles(self) -> int:
        """Tiles along the rows."""
        return -(-self.form.rows // self.choice.rows)

    @property
    def num_tiles(self) -> int:
        """Tiles of all lead places."""
        return self.form.first.num_leads * self.row_tiles

    @property
    def rows(self) -> int:
        """Rows of a warpgroup."""
        return self.choice.rows // self.choice.warpgroups

    @property
    def sums(self) -> int:
        """Accumulators of a consumer thread, which all products share."""
        return self.rows * max(self.choice.columns) // WARPGROUP

    @property
    def registers(self) -> int:
        """Accumulators and left operands of a consumer thread: while sums become the next left operand, or are added to with one."""
        deepest = max(padded(layer.form.inner, INSTRUCTION_INNER) for layer in self.layers[1:])
        return self.sums + self.rows * deepest // WARPGROUP // 2

    @property
    def staged(self) -> tuple[StagedTile, ...]:
        """All results that leave by tensor stores."""
        return tuple(r for layer in self.layers if layer.results is not None for r in layer.results.staged)

    @property
    def stays(self) -> bool:
        """Whether right operands are loaded once."""
        return not self.choice.slots


def slot_lines(operand: Operand, lines: int) -> int:
    """Lines of a slot: whole panels where lines are contiguous, else whole groups of a swizzle's rows."""
    return padded(lines, MMA_COLUMNS if operand.inner_is_contiguous else DEPTH)


def placed(form: ChainForm, choice: ProductChain) -> ChainPlan:
    """The plan with rings and stages one after the other in shared memory."""
    left = OperandTile("left", form.first.left, choice.rows, DEPTH, 0)
    end = left.elements * ITEM_BYTES * choice.left_slots
    lines = [slot_lines(layer.form.products[0].right, columns) for layer, columns in zip(form.layers, choice.columns, strict=True)]
    ring, start = RIGHT_RING, end
    layers: list[PlannedLayer] = []
    for n, (layer, columns) in enumerate(zip(form.layers, choice.columns, strict=True)):
        if not choice.slots:
            ring, start = f"{RIGHT_RING}{n}", end
        right = OperandTile(f"right{n}", layer.form.products[0].right, lines[n] if not choice.slots else max(lines), DEPTH, start)
        slots = choice.slots or -(-layer.form.inner // DEPTH)
        end = start + slots * right.elements * ITEM_BYTES
        layers.append(_planned(layer, choice, columns, left, right, ring))
    layers, end = _with_stages(layers, end)
    return ChainPlan(form, choice, left, tuple(layers), end)


def _planned(layer: Layer, choice: ProductChain, columns: int, left: OperandTile, right: OperandTile, ring: str) -> PlannedLayer:
    tiles = Pipelined(choice.rows, columns, DEPTH, choice.left_slots, choice.warpgroups, 1, choice.blocks)
    ahead, results = (None if f is None else ProductPlan(f, tiles, left, (right,)) for f in (layer.ahead, layer.results))
    return PlannedLayer(ahead, results, columns, right, ring)


def _with_stages(layers: list[PlannedLayer], end: int) -> tuple[list[PlannedLayer], int]:
    """The layers with the stages of their results behind `end`, and the end of these. Units: bytes."""
    staged_layers: list[PlannedLayer] = []
    for layer in layers:
        staged: list[StagedTile] = []
        plan = layer.results
        for name, place in plan.form.maps.items() if plan is not None and layer.columns % STAGE_COLUMNS == 0 else ():
            assert plan is not None
            result = StagedTile(name, plan.form.graph.type_of(name).dtype, place, padded(end, TILE_ALIGNMENT_BYTES), STAGES)
            if result.is_copied:
                staged.append(result)
                end = result.offset_bytes + result.num_bytes(plan.choice.warpgroups)
        staged_layers.append(layer if plan is None else replace(layer, results=replace(plan, beside=Stages(tuple(staged)))))
    return staged_layers, end

