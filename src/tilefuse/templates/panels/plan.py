"""Which products are multiplied by panels, in which tiles, and their work.

    left  [rows, inner]      panel k      slot k mod 3      copied two panels ahead
    right [inner, columns]   panel k      slot k mod 3      each warp adds the products of a panel to its sums
"""
from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.contraction import Contraction, Tiling, contraction_of, f32_pad, matrix_arithmetic, product_cycles
from tilefuse.domain.roofline import blocks_at_once, price_work
from tilefuse.domain.work import BlockWork, StageWork, Work
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts
from tilefuse.kernel.early import PAST_CACHE_BYTES
from tilefuse.target.capabilities import MMA_COLUMNS, MMA_INNER_F32, MMA_ROWS
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.levels import boundary_work
from tilefuse.templates.panels.record import Panels

# Elements of one asynchronous copy of 16 bytes.
COPIED = PAST_CACHE_BYTES // F32.itemsize


@dataclass(frozen=True, slots=True)
class PanelProduct:
    """The product of a pattern: its node, its subscripts, its arithmetic on the matrix unit."""

    node: Node
    contraction: Contraction
    arithmetic: str

    @property
    def lead(self) -> int:
        """Places of the lead axes together."""
        return prod(self.node.type.shape[:-2])

    def num_tiles(self, choice: Panels) -> int:
        """Tiles of the result."""
        return self.lead * (self.node.type.shape[-2] // choice.rows) * (self.node.type.shape[-1] // choice.columns)

    def num_blocks(self, choice: Panels) -> int:
        """Blocks, each with as many tiles."""
        return self.num_tiles(choice) // choice.turns

    def left_row(self, choice: Panels) -> int:
        """Elements of a row of a left panel in shared memory, padding included."""
        return choice.depth + f32_pad(choice.depth, True)

    def right_shape(self, choice: Panels) -> tuple[int, int]:
        """Rows of a right panel in shared memory, and elements of one, padding included: along the inner axis where that comes last."""
        if self.contraction.inner_last_right:
            return choice.columns, choice.depth + f32_pad(choice.depth, True)
        return choice.depth, choice.columns + f32_pad(choice.columns, False)

    def slot_elements(self, choice: Panels) -> tuple[int, int]:
        """Elements of a slot for a left panel, and for a right one."""
        rows, row = self.right_shape(choice)
        return choice.rows * self.left_row(choice), rows * row

    def shared_bytes(self, choice: Panels) -> int:
        """Bytes of all slots."""
        return choice.slots * sum(self.slot_elements(choice)) * F32.itemsize


def product_of(graph: Graph, layouts: Layouts, device: DeviceSpec) -> PanelProduct | Rejected:
    """The pattern's only product, of f32 operands that lie densely; or why there is none."""
    node = graph.nodes[-1]
    contraction = contraction_of(node, graph) if len(graph.nodes) == 1 else None
    if contraction is None or contraction.bias or not device.has_matrix_unit:
        return Rejected(Reason.OTHER_TEMPLATE, "no product alone on a matrix unit")
    types = [graph.type_of(v).dtype for v in (contraction.left, contraction.right)]
    arithmetic = matrix_arithmetic(contraction, *types) if node.type.dtype == F32 else None
    if not arithmetic or not contraction.inner_last_left or any(v in layouts for v in graph.type_by_name):
        return Rejected(Reason.OTHER_TEMPLATE, f"%{node.name} is no product of dense f32 operands whose left one ends with the inner axis")
    return PanelProduct(node, contraction, arithmetic)


def why_not(product: PanelProduct, choice: Panels, device: DeviceSpec) -> Rejected | None:
    """Why a product has no such tiles; None where it has."""
    rows, columns = product.node.type.shape[-2:]
    if rows % choice.rows or columns % choice.columns or product.contraction.inner % choice.depth:
        return Rejected(Reason.DOMAIN_MISMATCH, f"tiles of {choice.rows} x {choice.columns} x {choice.depth} do not cover the product")
    if product.num_tiles(choice) % choice.turns:
        return Rejected(Reason.DOMAIN_MISMATCH, f"{product.num_tiles(choice)} tiles are no multiple of {choice.turns}")
    m, n = choice.instructions
    whole = m * MMA_ROWS * choice.down == choice.rows and n * MMA_COLUMNS * choice.across == choice.columns
    if not whole or min(m, n) < 1 or choice.depth % MMA_INNER_F32 or (choice.columns % COPIED and not product.contraction.inner_last_right):
        return Rejected(Reason.DOMAIN_MISMATCH, f"{choice.down} x {choice.across} warps divide no tile of {choice.rows} x {choice.columns}")
    if product.shared_bytes(choice) > device.shared_bytes_per_block:
        return Rejected(Reason.SHARED_MEMORY, f"{product.shared_bytes(choice)} bytes, {device.shared_bytes_per_block} at most")
    if registers_of(choice, device) > device.max_registers_per_thread or choice.num_threads > device.max_threads_per_block:
        return Rejected(Reason.REGISTERS, f"{choice.sums} sums a thread")
    return None


def registers_of(choice: Panels, device: DeviceSpec) -> int:
    """Estimated registers of a thread: sums, those of the panel at hand, fragments of operands with their low parts."""
    fitted = device.fitted.stitch
    m, _ = choice.instructions
    return fitted.base_registers + 2 * choice.sums + fitted.left_fragment_registers * m + fitted.right_fragment_registers


def candidates(product: PanelProduct, device: DeviceSpec) -> Iterator[Panels]:
    """Tiles of blocks and warps, depths and slots that fit the product and the device."""
    limits = SEARCH.tasks
    for rows, columns, down, across, (depth, slots), turns in itertools.product(
            limits.panel_rows, limits.panel_columns, (1, 2, 4, 8), (1, 2, 4), limits.panel_slots, limits.panel_turns):
        choice = Panels(rows, columns, down, across, depth, slots, turns)
        if choice.num_threads in limits.panel_threads and why_not(product, choice, device) is None:
            yield choice


def choose_panels(product: PanelProduct, graph: Graph, device: DeviceSpec) -> Panels | Rejected:
    """The tiles with the least predicted time, or why there are none."""
    boundary = boundary_work(graph)
    priced = [(price_work(panels_work(product, choice, boundary, device), device).us, n, choice)
              for n, choice in enumerate(candidates(product, device))]
    if not priced:
        return Rejected(Reason.DOMAIN_MISMATCH, f"no tiles of panels cover %{product.node.name}")
    return min(priced)[2]


def panels_work(product: PanelProduct, choice: Panels, boundary: Work, device: DeviceSpec) -> Work:
    """The kernel's work: copies beside products, then the stores of a block. boundary: the work of its boundary values.

    Source: `StitchFigures`, `MultiplyFigures`.
    """
    fitted, rate = device.fitted.stitch, device.fitted.traffic.l2_bytes_per_cycle
    m, n = choice.instructions
    tiling = Tiling("mma", m, n, step=MMA_INNER_F32, arithmetic=product.arithmetic)
    inner, itemsize = product.contraction.inner, F32.itemsize
    busy, wait = product_cycles(fitted.multiply, tiling, choice.rows, choice.columns, inner, choice.num_threads)
    copied = (choice.rows + choice.columns) * inner * itemsize
    stored = choice.rows * choice.columns * itemsize
    steps = inner // choice.depth
    main = StageWork(((("l2", (copied + stored) / rate),), (("tensor", busy),)), wait + steps * fitted.barrier_cycles)
    blocks, tiles = product.num_blocks(choice), product.num_tiles(choice)
    resident = max(1, blocks_at_once(choice.num_threads, registers_of(choice, device), product.shared_bytes(choice), device))
    once = StageWork(wait_cycles=fitted.global_cycles + fitted.stage_cycles)
    work = BlockWork(blocks, choice.num_threads, resident, choice.turns, (main,), (once,), device.fitted.online.overlap)
    return Work(1, None, boundary.read_bytes, boundary.global_bytes, tiles * (copied + stored), 2 * tiles * copied, blocks=(work,))
