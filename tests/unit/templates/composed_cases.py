"""Patterns with the schedules they are composed with: chosen for the device, and set by hand to reach clusters, splits and queues
at sizes that a processor runs in a moment."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.unit.templates.pattern_graphs import (
    Pattern,
    batch_norm,
    bias_gelu,
    channels_last,
    checked_embedding,
    column_deviation,
    column_sum,
    column_sum_of_one_image,
    concatenation,
    cross_entropy,
    embedding,
    embedding_sum,
    full_sum,
    group_norm,
    groups_of_lanes,
    kept_and_turned,
    layer_norm,
    max_pool,
    middle_statistics,
    norm_backward,
    normed_product,
    padded,
    residual_norm,
    row_distances,
    row_extremes,
    row_sum,
    row_sum_of_one_image,
    row_sums,
    running_sum,
    running_sum_behind_zero,
    scaled_columns,
    scaled_row_sum,
    scatter_add,
    softmax,
    softmax_down,
    three_pieces,
    token_embedding,
    transpose,
    transposed_add,
    turned_channels,
    turned_rows,
    turned_sum,
    vector_product,
    weighted_row_sum,
    written_and_scanned,
    written_and_summed,
)
from tilefuse.base.candidate import Rejected
from tilefuse.domain.access import accesses
from tilefuse.domain.domain import find_domain
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Choice, TileProgram
from tilefuse.ir.layouts import Layouts
from tilefuse.kernel.ir import Kernel
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.compose import compose
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.pattern import schedule_graph
from tilefuse.templates.rows.modes import Rows, RowSettings, rows_of
from tilefuse.templates.transpose.choose import choose_transpose
from tilefuse.templates.transpose.record import Transpose


@dataclass(frozen=True)
class Case:
    """One kernel to be run: a pattern, where its values lie, the device it is scheduled for, and a choice made by hand (None: its own)."""

    name: str
    pattern: Pattern
    layouts: Layouts
    device: DeviceSpec
    wanted: Callable[[Domain], Choice] | None = None

    @property
    def checked(self) -> bool:
        """Whether the kernel runs in checking mode, which takes gaps between a result's elements for elements not written."""
        types = {r: self.pattern.graph.type_of(r) for r in self.pattern.graph.results if r in self.layouts}
        gaps = any(1 + sum((e - 1) * s for e, s in zip(t.shape, self.layouts[r], strict=True)) != t.num_elements for r, t in types.items())
        return self.device.kind == "cuda" and not gaps

    @property
    def group(self) -> str:
        """Cases of one pattern are built together."""
        return self.pattern.graph.name

    def program(self) -> TileProgram:
        """The tile program."""
        domain = find_domain(self.pattern.graph, self.layouts)
        assert isinstance(domain, Domain), domain
        made = schedule_graph(self.pattern.graph, self.layouts, self.device, self.wanted(domain) if self.wanted else None)
        assert not isinstance(made, Rejected), made.detail
        return made

    def kernel(self) -> Kernel:
        """The kernel IR."""
        return compose(self.program(), self.device)


def rows(vector: int, threads: int, chunks: int, rows: int = 1, cluster: int = 1, split: int = 1, on_chip: bool = True, lanes: int = 1,
         batch: int = 1, stages: int = 0, groups: int = 0, span: int = 0, ahead: bool = False) -> Callable[[Domain], Choice]:
    """A row schedule with axes in the domain's order."""
    def choice(d: Domain) -> Choice:
        settings = RowSettings(d.kept, d.reduced, vector, threads, rows, chunks, cluster, split, on_chip, lanes, batch, stages, groups,
                               span, ahead=ahead)
        made = rows_of(settings, d.num_reduced)
        assert isinstance(made, Rows), made
        return made

    return choice


def ahead(vector: int, threads: int, chunks: int, stages: int, groups: int, **others: int) -> Callable[[Domain], Choice]:
    """A row schedule whose rows wait in a queue, and are reduced a turn before they are finished."""
    return rows(vector, threads, chunks, stages=stages, groups=groups, on_chip=False, batch=chunks, ahead=True, **others)


def columns(vector: int, threads_x: int, threads_y: int, chunks: int, split: int = 1, on_chip: bool = False,
            batch: int = 1) -> Callable[[Domain], Choice]:
    """A column schedule with axes in the domain's order."""
    return lambda d: Columns(d.kept, d.reduced, vector, threads_x, threads_y, chunks, split, on_chip, batch)


def pointwise(vector: int, threads: int, steps: int, unrolled: bool) -> Callable[[Domain], Choice]:
    """A flat walk in the domain's order."""
    return lambda d: Pointwise(d.kept + d.reduced, vector, threads, steps, unrolled)


def side_by_side(across: int, side: int, vector: int, steps: int = 1, unrolled: bool = True) -> Callable[[Domain], Choice]:
    """A flat walk whose warps stand across the axis at place `across` of the domain's, and the last."""
    def choice(d: Domain) -> Choice:
        order = d.kept + d.reduced
        return Pointwise(order, vector, 64, steps, unrolled, order[across], side)
    return choice


def tiles(read_axis: str, write_axis: str, side: tuple[int, int], threads: int, widths: tuple[int, int]) -> Callable[[Domain], Choice]:
    """A transposition by tiles."""
    return lambda d: Transpose(d.kept + d.reduced, read_axis, write_axis, *side, threads, *widths)


# Patterns at sizes that divide and sizes that do not; each is scheduled for both devices.
CHOSEN: tuple[tuple[str, Pattern, Layouts], ...] = (
    *((f"{r}x{n}-{t}", softmax(r, n, t), {}) for r, n, t in (
        (1, 1, "f32"), (37, 5, "f32"), (6, 100, "bf16"), (5, 1023, "f32"), (5, 4096, "f16"), (6, 333, "f64"), (2, 20000, "f32"))),
    *((f"{r}x{n}-{t}", layer_norm(r, n, t), {}) for r, n, t in (
        (9, 64, "f16"), (5, 768, "f32"), (3, 1001, "bf16"), (2, 65, "f64"), (2, 8192, "f16"))),
    *((f"{n}x{c}x{h}x{w}-{t}", batch_norm(n, c, h, w, t), {}) for n, c, h, w, t in (
        (4, 8, 7, 7, "f32"), (8, 3, 16, 16, "f16"), (1, 5, 7, 1, "f32"))),
    *((f"{n}x{g}x{c}x{p}-{t}", group_norm(n, g, c, p, t), {}) for n, g, c, p, t in (
        (3, 4, 3, 49, "f32"), (2, 2, 8, 900, "f32"), (2, 3, 5, 64, "f16"), (1, 2, 4, 4097, "f32"))),
    ("channels-last", group_norm(3, 4, 6, 40), {"x": (960, 6, 1, 24)}),
    *((f"{r}x{n}-{t}", cross_entropy(r, n, t), {}) for r, n, t in ((6, 9, "f32"), (6, 700, "f16"), (5, 6000, "f32"), (5, 200, "f64"))),
    *((f"{r}x{n}-{t}", row_sum(r, n, t), {}) for r, n, t in ((7, 33, "f32"), (2, 20000, "bf16"), (5, 300, "i64"))),
    # Axes of extent 1, as of an image without a batch axis: rows of whole vectors, rows that begin and end between vectors.
    *((f"{r}x{h}x{n}-{t}", row_sum_of_one_image(r, h, n, t), {}) for r, h, n, t in (
        (5, 5, 6, "f32"), (6, 7, 9, "f16"), (4, 8, 8, "f32"), (33, 3, 5, "bf16"), (3, 50, 101, "f32"), (5, 5, 6, "f64"), (7, 9, 3, "i64"))),
    *((f"{n}x{c}-{t}", column_sum_of_one_image(n, c, t), {}) for n, c, t in ((300, 33, "f32"), (700, 141, "f16"), (64, 64, "f32"))),
    # An operand that elements and results need is loaded by all threads.
    *((f"{r}x{n}", scaled_row_sum(r, n), {}) for r, n in ((5, 70), (4, 3000))),
    *((f"{r}x{n}-{t}-between-vectors", weighted_row_sum(r, n, t), {}) for r, n, t in ((97, 97, "f32"), (40, 131, "f64"), (5, 2051, "f32"))),
    *((f"{r}x{n}-{t}", row_extremes(r, n, t), {}) for r, n, t in ((5, 77, "f32"), (6, 3000, "f16"), (5, 130, "f64"), (3, 40, "i64"))),
    *((f"{n}x{c}-{t}", column_sum(n, c, t), {}) for n, c, t in ((1000, 48, "f32"), (5, 7, "f32"), (700, 33, "f16"), (64, 10, "i64"))),
    *((f"{n}x{c}", column_deviation(n, c), {}) for n, c in ((300, 20), (9, 64), (700, 37))),
    # Columns of rows that begin between vectors: tiles that have a vector in common, images of one tile, rows as long as a few vectors.
    *((f"{i}x{n}x{c}-{t}", middle_statistics(i, n, c, t), {}) for i, n, c, t in (
        (2, 70, 141, "f32"), (3, 40, 33, "f16"), (2, 9, 1027, "bf16"), (5, 33, 7, "f32"), (2, 30, 21, "f64"))),
    *((f"{n}x{c}-{t}", softmax_down(n, c, t), {}) for n, c, t in ((50, 64, "f32"), (300, 33, "f32"), (700, 8, "bf16"))),
    *((f"{r}x{n}-{t}", full_sum(r, n, t), {}) for r, n, t in ((300, 701, "f32"), (3, 5, "f32"), (1, 1, "f64"), (64, 64, "f16"))),
    *((f"{r}x{n}-{t}", written_and_summed(r, n, over, t), {}) for over in ("rows", "all") for r, n, t in (
        (7, 33, "f32"), (1, 3000, "f32"), (300, 96, "f16"), (3, 8200, "f64"), (1, 1, "f32"))),
    *((f"{r}x{n}-{t}", written_and_summed(r, n, "columns", t), {}) for r, n, t in ((70, 33, "f32"), (300, 96, "f16"), (40, 1200, "f64"))),
    *((f"{r}x{n}-{t}", transpose(r, n, t), {}) for r, n, t in ((10, 30, "f32"), (128, 192, "f16"), (200, 137, "f32"), (130, 128, "f64"))),
    *((f"{r}x{n}-{t}", transpose(r, n, t), {}) for r, n, t in ((264, 140, "f16"), (12, 1400, "bf16"), (131, 130, "i8"), (134, 300, "f64"))),
    *((f"{n}x{c}x{h}x{w}-{t}", channels_last(n, c, h, w, t), {}) for n, c, h, w, t in ((2, 96, 14, 14, "f16"), (3, 36, 9, 17, "f32"))),
    # Weights of convolutions: a tile is one run of memory.
    *((f"{n}x{c}x{h}x{w}-{t}", channels_last(n, c, h, w, t), {}) for n, c, h, w, t in ((33, 56, 3, 3, "f16"), (5, 1000, 3, 7, "f32"))),
    *((f"{r}x{n}-{t}", transpose(r, n, t), {}) for r, n, t in ((2040, 9, "bf16"), (1604, 11, "f32"), (1512, 13, "i8"), (820, 21, "f64"))),
    # Images of few channels: a tile is one run of the written memory, or, the other way round, of the one that is read.
    *((f"{n}x{c}x{h}x{w}-{t}", channels_last(n, c, h, w, t), {}) for n, c, h, w, t in (
        (2, 3, 52, 60, "f32"), (3, 5, 40, 44, "bf16"), (1, 7, 50, 50, "f64"), (2, 3, 64, 65, "i8"))),
    # Sides of eight: the other side of a tile is as much longer. Rows that a thread writes in turns, with what their elements share.
    *((f"{n}x{c}x{h}x{w}-{t}", channels_last(n, c, h, w, t), {}) for n, c, h, w, t in (
        (3, 8, 31, 33, "f32"), (2, 9, 31, 33, "f32"), (3, 8, 62, 51, "f16"), (2, 64, 13, 17, "f32"))),
    *((f"{n}x{p}x{c}", turned_channels(n, p, c), {}) for n, p, c in ((3, 201, 32), (2, 1031, 8), (2, 137, 64), (3, 200, 32), (7, 63, 40))),
    *((f"{n}x{p}x{c}", groups_of_lanes(n, p, c), {}) for n, p, c in ((3, 50, 32), (1, 33, 4), (2, 9, 12))),
    *((f"{r}x{n}-{t}", transpose(r, n, t), {}) for r, n, t in ((3, 5600, "f32"), (6004, 3, "f32"), (11, 1600, "f16"), (21, 836, "f64"))),
    ("2x3x3000", transposed_add(2, 3, 3000), {}),
    *((f"{r}x{n}x{m}", turned_sum(r, n, m), {}) for r, n, m in ((160, 136, 2), (130, 140, 3), (3, 6000, 2))),
    ("3x70x96", transposed_add(3, 70, 96), {}),
    # Vectors that run on from one odd row to the next, with and without a rest behind them.
    *((f"{r}x{n}-{t}-run", bias_gelu(r, n, t), {}) for r, n, t in ((32, 33, "f16"), (9, 3, "f32"), (5, 771, "bf16"))),
    # Warps that stand across two axes: ends that fill no warp, axes shorter than one, and axes that hide the turn.
    *((f"{b}x{r}x{n}-{t}", kept_and_turned(b, r, n, t), {}) for b, r, n, t in (
        (2, 20, 24, "f16"), (3, 49, 40, "f32"), (1, 130, 72, "bf16"), (2, 9, 33, "f64"), (2, 36, 16, "i8"))),
    *((f"{b}x{r}x{n}-{t}", turned_rows(b, r, n, t), {}) for b, r, n, t in (
        (2, 20, 24, "f16"), (3, 130, 140, "f32"), (5, 11, 8, "f64"), (1, 40, 19, "bf16"), (4, 65, 80, "i8"))),
    *((f"{r}x{n}", written_and_scanned(r, n), {}) for r, n in ((6, 10), (3, 700))),
    *((f"{r}x{n}-{t}", running_sum(r, n, t), {}) for r, n, t in (
        (5, 100, "f32"), (3, 5000, "f32"), (2, 77, "i64"), (4, 1, "f32"), (3, 640, "f16"))),
    # Rows that begin and end between vectors: whole vectors and parts of them, in what is read and in what is written.
    *((f"{r}x{n}-{t}-between-vectors", running_sum(r, n, t), {}) for r, n, t in ((5, 101, "f32"), (3, 5003, "f32"), (9, 643, "f16"))),
    *((f"{r}x{n}", running_sum_behind_zero(r, n), {}) for r, n in ((6, 24), (3, 4096), (130, 13))),
    *((f"{r}x{n}-{t}", bias_gelu(r, n, t), {}) for r, n, t in ((33, 128, "f16"), (17, 33, "f16"), (5, 24, "f32"), (3, 40, "bf16"))),
    *((f"{r}x{a}+{b}-{t}", concatenation(r, a, b, t), {}) for r, a, b, t in ((7, 8, 24, "f32"), (5, 3, 9, "f16"))),
    *((f"{r}x{w}", three_pieces(r, w, t), {}) for r, w, t in ((5, (16, 32, 8), "f32"), (4, (8, 3, 5), "f32"))),
    *((f"{r}x{b}+{n}+{a}", padded(r, n, b, a), {}) for r, n, b, a in ((7, 40, 8, 16), (7, 24, 3, 5))),
    *((f"{v}x{n}x{k}", embedding_sum(v, n, k), {}) for v, n, k in ((40, 768, 9), (20, 36, 5), (20, 33, 5))),
    ("30x32", token_embedding(30, 32, 3, 7), {}),
    ("2x3x8x8", max_pool(2, 3, 8, 8), {}),
    ("1x2x10x14", max_pool(1, 2, 10, 14), {}),
    ("50x64x33", embedding(50, 64, 33), {}),
    ("checked", checked_embedding(50, 64, 33), {}),
    ("50x7x5-f32", embedding(50, 7, 5, "f32"), {}),
    ("50x64x33", scatter_add(50, 64, 33), {}),
    ("9x5x40", scatter_add(9, 5, 40), {}),
    # Strides: rows with gaps, column-major, one row seen by all, one element seen by all.
    ("gaps", softmax(7, 96), {"x": (112, 1), "y": (100, 1)}),
    ("column-major", softmax(24, 40), {"x": (1, 24)}),
    ("same-row", softmax(6, 64), {"x": (0, 1)}),
    ("one-bias", bias_gelu(9, 48), {"b": (0,), "x": (64, 1)}),
    ("turned-bias", bias_gelu(12, 16), {"x": (1, 12), "t": (1, 12)}),
    ("windows-between-vectors", middle_statistics(2, 30, 42), {"x": (30 * 47 + 1, 47, 1)}),
    ("windows-of-aligned-rows", middle_statistics(2, 30, 42), {"x": (30 * 44, 44, 1)}),
    ("every-second", row_sum(5, 64), {"x": (128, 2)}),
    ("column-major", column_sum(40, 24), {"x": (1, 40)}),
    ("channels-last", batch_norm(3, 8, 4, 4), {"x": (128, 1, 32, 8), "y": (128, 1, 32, 8)}),
    # Windows of rows that begin aligned: vectors and a rest.
    ("window-f16", cross_entropy(3, 6003, "f16"), {"x": (6008, 1)}),
    ("window-f32", cross_entropy(5, 5001), {"x": (5004, 1)}),
    ("window-bf16", row_sum(5, 20001, "bf16"), {"x": (20008, 1)}),
    ("window-f32", row_sum(2, 300003), {"x": (300004, 1)}),
    ("window", row_extremes(4, 3003, "f16"), {"x": (3008, 1)}),
    ("window", written_and_summed(3, 4099, "rows", "f16"), {"x": (4104, 1)}),
    ("gaps", transpose(130, 140), {"x": (144, 1), "y": (133, 1)}),
    ("gaps", running_sum(4, 200), {"x": (256, 1)}),
    ("gaps-between-vectors", running_sum(4, 203), {"x": (257, 1), "y": (206, 1)}),
    ("turned-between-vectors", running_sum(4, 203), {"x": (1, 4)}),
    ("every-second", embedding(20, 16, 12), {"t": (32, 2), "ids": (3,)}),
    ("channels-last", max_pool(2, 4, 6, 6), {"x": (144, 1, 24, 4), "y": (36, 1, 12, 4)}),
)

# Patterns that only a device's kernels hold: sums carried down the columns while a block walks its rows.
CARRIED: tuple[tuple[str, Pattern], ...] = tuple((f"{r}x{n}-{g}-{t}", norm_backward(r, n, g, t)) for r, n, g, t in (
    (24, 64, 4, "f32"), (22, 96, 3, "f16"), (50, 700, 5, "f32"), (9, 2048, 2, "f16"),
    (5, 8192, 2, "f32"), (6, 12288, 2, "f16"), (4, 20480, 2, "f16"), (40, 33, 4, "f32")))

# Schedules made by hand, for the device: what its own choice reaches at larger sizes only, and corners of every parameter.
BY_HAND: tuple[tuple[str, Pattern, Callable[[Domain], Choice]], ...] = (
    ("cluster2", softmax(5, 1000), rows(4, 64, 2, cluster=2, lanes=2)),
    ("half-warps", kept_and_turned(2, 21, 40), side_by_side(1, 2, 4)),
    ("all-lanes-across", kept_and_turned(2, 21, 40, "f16"), side_by_side(1, 32, 8, 3)),
    ("one-step-after-the-other", kept_and_turned(3, 19, 40), side_by_side(1, 8, 2, 4, False)),
    ("across-the-slowest", kept_and_turned(37, 3, 24, "f16"), side_by_side(0, 16, 4, 2)),
    ("cluster4-odd", softmax(6, 1001), rows(1, 64, 4, cluster=4)),
    ("cluster16", softmax(5, 2048, "f16"), rows(8, 32, 1, cluster=16, lanes=2)),
    ("streamed", softmax(5, 1500), rows(4, 64, 6, on_chip=False, lanes=2, batch=4)),
    ("part-warp", softmax(13, 24), rows(2, 4, 3, rows=32)),
    ("rows-of-warps", softmax(5, 512), rows(4, 64, 2, rows=3)),
    ("queue", softmax(7, 256), rows(4, 32, 2, stages=2, groups=3)),
    ("queue-cluster", softmax(11, 1024), rows(4, 32, 4, cluster=2, stages=3, groups=2)),
    ("once-from-shared-memory", softmax(5, 512), rows(4, 32, 2, cluster=2, on_chip=False, lanes=2, batch=2, stages=1, groups=5)),
    # What all rows share is prepared once a block: rows of warps, of two warps, of the block; one turn and several, the last not full.
    ("shared-norm", normed_product(37, 512, "bf16"), rows(8, 32, 2, rows=4, on_chip=False, batch=2, stages=2, groups=3)),
    ("shared-norm-once", normed_product(16, 256, "f16"), rows(8, 32, 1, rows=4, on_chip=False, lanes=2, stages=1, groups=4)),
    ("shared-norm-of-two-warps", normed_product(19, 1024), rows(4, 64, 4, rows=2, on_chip=False, lanes=2, batch=4, stages=2, groups=2)),
    ("shared-norm-of-blocks", normed_product(11, 512, "f64"), rows(2, 64, 4, on_chip=False, batch=4, stages=3, groups=3)),
    ("shared-norm-in-registers", normed_product(11, 512, "f16"), rows(8, 32, 2, rows=2, stages=2, groups=2)),
    ("shared-norm-without-a-queue", normed_product(11, 512, "f16"), rows(8, 32, 2, rows=2, groups=2)),
    ("shared-vector", vector_product(37, 512, "bf16"), rows(8, 32, 2, rows=4, on_chip=False, batch=2, stages=2, groups=3)),
    ("shared-vector-once", vector_product(16, 256, "f16"), rows(8, 32, 1, rows=4, on_chip=False, lanes=2, stages=1, groups=4)),
    ("shared-vector-of-two-warps", vector_product(19, 1024), rows(4, 64, 4, rows=2, on_chip=False, lanes=2, batch=4, stages=2, groups=2)),
    ("shared-vector-of-doubles", vector_product(11, 512, "f64"), rows(2, 64, 4, rows=2, on_chip=False, batch=4, stages=3, groups=2)),
    ("few-rows-a-turn", norm_backward(11, 64, 2), rows(4, 16, 1, rows=2, lanes=2, stages=2, groups=2, span=6)),
    ("written-in-pairs", norm_backward(9, 1024, 2, "f16"), rows(8, 64, 2, lanes=2, stages=2, groups=2, span=5)),
    ("refilled-behind-the-exchange", norm_backward(9, 2048, 2, "f16"), rows(8, 256, 1, lanes=2, stages=2, groups=2, span=5)),
    ("refilled-behind-the-exchange-cluster", norm_backward(7, 4096, 2, "f16"),
     rows(8, 256, 1, cluster=2, lanes=2, stages=3, groups=2, span=4)),
    ("cluster2", norm_backward(9, 256, 2), rows(4, 32, 1, cluster=2, lanes=2, stages=2, groups=2, span=5)),
    ("teams-of-warps", norm_backward(37, 64, 2, "f16"), rows(8, 8, 1, rows=8, lanes=2, stages=2, groups=2, span=19)),
    ("teams-of-two-warps", norm_backward(17, 252, 2), rows(2, 64, 2, rows=2, lanes=2, stages=2, groups=2, span=9)),
    ("teams-from-the-queue", norm_backward(17, 512, 2, "f16"), rows(8, 64, 1, rows=3, on_chip=False, stages=2, groups=2, span=9)),
    ("from-the-queue", norm_backward(13, 192, 2), rows(4, 32, 2, rows=2, on_chip=False, lanes=2, stages=3, groups=2, span=7)),
    ("from-the-queue-cluster", norm_backward(9, 256, 2, "f16"), rows(8, 32, 1, cluster=2, on_chip=False, stages=2, groups=2, span=5)),
    ("from-the-queue", layer_norm(9, 512, "f16"), rows(8, 32, 2, on_chip=False, stages=2, groups=4)),
    ("pieces-from-the-queue", norm_backward(9, 256, 2), rows(4, 32, 2, on_chip=False, lanes=2, stages=3, groups=2, span=5)),
    ("pieces-from-the-queue-cluster", norm_backward(13, 2048, 3, "f16"),
     rows(8, 32, 4, cluster=2, on_chip=False, lanes=2, stages=7, groups=3, span=5)),
    ("pieces-of-rows-without-elements", row_distances(7, 256), rows(4, 16, 4, on_chip=False, stages=5, groups=2)),
    ("pieces-of-rows-without-elements-cluster", row_distances(7, 1024, "f16"),
     rows(8, 32, 2, cluster=2, on_chip=False, stages=3, groups=2)),
    ("whole-rows-from-the-queue", norm_backward(9, 256, 2), rows(4, 32, 2, on_chip=False, batch=2, stages=2, groups=2, span=5)),
    ("read-again", norm_backward(9, 192, 3, "f16"), rows(8, 32, 1, on_chip=False, lanes=2, groups=3, span=3)),
    ("one-at-a-time", norm_backward(9, 192, 3), rows(4, 64, 1, on_chip=False, lanes=2, stages=1, groups=3, span=3)),
    ("held", norm_backward(9, 96, 3), rows(1, 32, 3, rows=2, groups=3, span=3)),
    ("held-two-warps", cross_entropy(5, 204), rows(4, 64, 1)),
    ("held-cluster2", cross_entropy(5, 1020), rows(4, 64, 2, cluster=2)),
    ("held-by-ten-warps", cross_entropy(3, 5000, "f16"), rows(8, 320, 2)),
    ("streamed", cross_entropy(5, 1500), rows(4, 64, 6, on_chip=False, lanes=2, batch=4)),
    ("split3", cross_entropy(6, 1000), rows(4, 32, 3, split=3, on_chip=False, batch=2)),
    ("cluster4", layer_norm(5, 1024), rows(4, 32, 2, cluster=4, lanes=2)),
    ("uneven", layer_norm(5, 1000, "f16"), rows(8, 64, 3, lanes=2)),
    ("uneven-queue-cluster", layer_norm(6, 400), rows(4, 32, 2, cluster=2, stages=2, groups=2)),
    ("uneven-cluster4", layer_norm(3, 1700), rows(4, 64, 2, cluster=4, lanes=2)),
    ("uneven-cluster2", batch_norm(4, 3, 9, 8), rows(4, 64, 1, cluster=2)),
    ("cluster8-odd", layer_norm(3, 777), rows(1, 32, 4, cluster=8)),
    ("streamed", layer_norm(4, 1200, "f16"), rows(8, 32, 5, on_chip=False, lanes=2, batch=4)),
    ("queue", layer_norm(9, 512, "f16"), rows(8, 32, 2, stages=2, groups=4)),
    ("queue-cluster", layer_norm(6, 512), rows(4, 32, 1, cluster=4, stages=4, groups=1)),
    ("sum-held-for-its-operands", residual_norm(5, 1024, "f16"), rows(8, 64, 2)),
    ("sum-held-for-its-operands-cluster", residual_norm(3, 1024, "bf16"), rows(8, 32, 2, cluster=2)),
    ("sum-held-for-its-operands-uneven", residual_norm(3, 1000), rows(4, 64, 4)),
    ("cluster2", batch_norm(4, 3, 8, 8), rows(4, 32, 1, cluster=2)),
    ("ahead", layer_norm(9, 1024, "f16"), ahead(8, 64, 2, 3, 4)),
    ("ahead-uneven-cluster", layer_norm(7, 400), ahead(4, 32, 2, 2, 2, cluster=2)),
    ("ahead-cluster", layer_norm(11, 512, "f16"), ahead(8, 32, 1, 3, 1, cluster=2)),
    ("ahead-one-turn", layer_norm(2, 512, "f16"), ahead(8, 32, 1, 2, 2, cluster=2)),
    ("ahead-pieces-of-memory", batch_norm(4, 5, 8, 4), ahead(4, 32, 1, 3, 2, cluster=2)),
    ("ahead", norm_backward(13, 256, 2, "f16"), ahead(4, 64, 1, 3, 2, span=7)),
    ("ahead-many-warps", norm_backward(11, 1280, 2), ahead(4, 160, 2, 4, 2, span=6)),
    ("ahead-cluster-many-warps", norm_backward(13, 2560, 3, "f16"), ahead(8, 160, 1, 4, 3, span=5, cluster=2)),
    ("ahead-teams", norm_backward(17, 512, 2, "f16"), ahead(8, 64, 1, 3, 2, span=9, rows=3)),
    ("ahead-rows-of-a-block", norm_backward(21, 192, 2), ahead(2, 96, 1, 3, 2, span=11, rows=2)),
    ("ahead", row_sums(9, 512), ahead(4, 64, 2, 3, 4)),
    ("ahead-one-sum-many-warps", row_sum(9, 2560), ahead(4, 160, 2, 3, 2, cluster=2)),
    ("cluster4", group_norm(3, 2, 3, 160), rows(4, 32, 1, cluster=4, lanes=2)),
    ("streamed", group_norm(3, 2, 3, 151), rows(1, 32, 15, on_chip=False, batch=2)),
    ("streamed-vectors", group_norm(3, 2, 3, 164), rows(4, 32, 4, on_chip=False, lanes=2, batch=4)),
    ("streamed-uneven", group_norm(2, 2, 5, 37, "f16"), rows(4, 32, 3, on_chip=False, lanes=2, batch=2)),
    ("queue", group_norm(5, 1, 4, 64), rows(4, 32, 2, stages=2, groups=2)),
    ("once-from-shared-memory", group_norm(2, 2, 4, 64), rows(4, 32, 1, cluster=2, on_chip=False, batch=1, stages=1, groups=4)),
    ("queue-of-pieces", batch_norm(4, 7, 4, 4), rows(4, 32, 1, stages=2, groups=2)),
    ("queue-of-pieces-cluster", batch_norm(4, 5, 8, 4), rows(4, 32, 1, cluster=2, stages=2, groups=2)),
    ("streamed", batch_norm(4, 3, 7, 7), rows(1, 32, 7, on_chip=False, batch=2)),
    ("warps", row_sums(3, 700), rows(4, 64, 3)),
    ("many-warps", row_sums(3, 700), rows(1, 256, 3)),
    ("part-warp", row_sums(9, 40), rows(2, 16, 2, rows=4)),
    ("cluster2", row_sums(3, 520), rows(4, 64, 2, cluster=2)),
    ("cluster2-many-warps", row_sums(3, 520), rows(1, 160, 2, cluster=2)),
    ("cluster4-many-warps", norm_backward(9, 1024, 2), rows(1, 192, 2, cluster=4, on_chip=False, groups=2, span=5)),
    ("cluster16", row_sums(2, 1024), rows(2, 32, 1, cluster=16)),
    ("split3", row_sums(2, 1000), rows(4, 32, 3, split=3, on_chip=False, lanes=4, batch=2)),
    ("split3", row_sum(2, 1000), rows(4, 32, 3, split=3, on_chip=False, lanes=4, batch=2)),
    ("split8-wide", row_sum(1, 4096, "f16"), rows(8, 64, 1, split=8, on_chip=False, lanes=4, batch=4)),
    ("split5", row_extremes(5, 1300), rows(2, 32, 5, split=5, on_chip=False, lanes=2, batch=4)),
    ("two-rows-a-block", row_extremes(5, 1300), rows(2, 32, 21, rows=2, on_chip=False, lanes=2, batch=4)),
    ("cluster4", row_extremes(6, 800), rows(1, 64, 4, cluster=4)),
    ("queue", row_extremes(5, 256), rows(4, 64, 1, stages=2, groups=2)),
    ("split3", written_and_summed(3, 1001, "rows"), rows(1, 32, 11, split=3, on_chip=False, lanes=2, batch=4)),
    ("rows-of-warps", written_and_summed(7, 520, "rows"), rows(4, 32, 5, rows=3, on_chip=False, lanes=4, batch=2)),
    ("cluster2", written_and_summed(3, 1000, "rows"), rows(4, 32, 4, cluster=2, on_chip=False, lanes=2, batch=2)),
    ("split5", written_and_summed(30, 70, "all"), rows(4, 32, 4, split=5, on_chip=False, lanes=4, batch=2)),
    ("split4", written_and_summed(300, 44, "columns"), columns(4, 4, 8, 10, split=4, batch=4)),
    ("streamed", written_and_summed(100, 7, "columns"), columns(1, 4, 4, 25, batch=2)),
    ("split4", column_sum(300, 48), columns(4, 4, 8, 10, split=4, batch=4)),
    ("split3-odd", column_sum(100, 7), columns(1, 4, 4, 9, split=3, batch=2)),
    ("split3-between-vectors", middle_statistics(2, 100, 39), columns(4, 4, 8, 5, split=3, batch=2)),
    ("split10-between-vectors", column_sum(200, 35, "f16"), columns(8, 2, 8, 3, split=10)),
    ("few-threads-down-between-vectors", middle_statistics(2, 30, 70), columns(4, 8, 2, 15, batch=4)),
    ("split4", column_deviation(200, 12), columns(4, 4, 4, 13, split=4, batch=4)),
    ("split3-between-vectors", column_deviation(200, 13), columns(4, 4, 8, 9, split=3, batch=3)),
    ("one-at-a-time-between-vectors", column_deviation(200, 13), columns(4, 4, 4, 50)),
    ("one-thread-down", column_deviation(50, 40), columns(4, 8, 1, 50, batch=4)),
    ("held", softmax_down(60, 40), columns(4, 4, 8, 8, on_chip=True, batch=8)),
    ("streamed", softmax_down(60, 44), columns(2, 8, 4, 15, batch=4)),
    ("split6", full_sum(30, 70), rows(4, 32, 3, split=6, on_chip=False, lanes=4, batch=2)),
    ("small-tiles", transpose(33, 50), tiles("r0", "r1", (16, 8), 32, (1, 1))),
    ("turns-that-no-run-fills", turned_channels(2, 137, 20), tiles("r1", "r2", (80, 8), 64, (1, 1))),
    ("turns-of-vectors", turned_channels(2, 200, 32), tiles("r1", "r2", (160, 8), 64, (4, 4))),
    ("vectors", transpose(40, 48, "f16"), tiles("r0", "r1", (16, 16), 64, (8, 8))),
    ("long-runs", channels_last(2, 3, 52, 60), lambda d: Transpose(d.kept + d.reduced, "r1", "r3", 3, 1024, 384, 4, 4, 1, True)),
    ("cluster2", running_sum(4, 300), rows(4, 32, 2, cluster=2)),
    ("many-warps", running_sum(3, 4000), rows(4, 128, 8)),
    ("many-warps-cluster", running_sum(2, 4100), rows(4, 64, 9, cluster=2)),
    ("cluster4-odd", running_sum(3, 999), rows(1, 64, 4, cluster=4)),
    ("cluster2-between-vectors", running_sum(5, 301), rows(4, 32, 2, cluster=2)),
    ("cluster4-between-vectors", running_sum(3, 1003, "f16"), rows(8, 32, 1, cluster=4)),
    ("many-warps-between-vectors", running_sum(3, 4001), rows(4, 128, 8)),
    ("rows-of-warps-between-vectors", running_sum(7, 61), rows(4, 16, 1, rows=4)),
    ("one-thread-between-vectors", running_sum(7, 13), rows(4, 1, 4, rows=32)),
    ("rows-of-warps", running_sum(7, 64), rows(2, 32, 1, rows=4)),
    ("part-warp", running_sum(9, 24), rows(2, 4, 3, rows=8)),
    ("queue", running_sum(7, 256), rows(4, 32, 2, stages=2, groups=3)),
    ("queue-cluster", running_sum(7, 512), rows(4, 64, 1, cluster=2, stages=3, groups=2)),
    ("steps", bias_gelu(9, 72), pointwise(8, 32, 3, True)),
    ("loop", bias_gelu(9, 71), pointwise(4, 32, 3, False)),
    ("several-rows", scaled_columns(48, 64), pointwise(4, 32, 4, True)),
    ("several-rows-partly", scaled_columns(37, 64, "f16"), pointwise(8, 32, 4, True)),
    ("several-rows-of-three", scaled_columns(29, 24), pointwise(4, 96, 2, True)),
    ("rows-between-threads", scaled_columns(29, 24), pointwise(4, 32, 2, True)),
    ("rows-between-vectors", scaled_columns(9, 33), pointwise(1, 66, 2, True)),
)


def turned_tiles(domain: Domain) -> Transpose:
    """The tiles in which a pattern would be turned, whether or not a flat walk is cheaper."""
    choice = choose_transpose(domain, H200, accesses(domain))
    assert choice is not None, "no large read runs across the writes"
    return choice


def turned_cases() -> list[Case]:
    """The patterns above that can be turned in shared memory and are walked flat, as they are small."""
    cases = []
    for name, pattern, layouts in CHOSEN:
        domain = find_domain(pattern.graph, layouts)
        if not isinstance(domain, Domain) or any(i.shared for i in domain.instances) or not choose_transpose(
                domain, H200, accesses(domain)):
            continue
        if not isinstance(Case(name, pattern, layouts, H200).program().choice, Transpose):
            cases.append(Case(f"{pattern.graph.name}-{name}-tiles", pattern, layouts, H200, turned_tiles))
    return cases


def all_cases() -> tuple[Case, ...]:
    """Every case, those of one pattern together."""
    made = [Case(f"{p.graph.name}-{name}-{device.name}", p, layouts, device)
            for name, p, layouts in CHOSEN for device in (H200, host_device())]
    made += [Case(f"{p.graph.name}-{name}", p, {}, H200) for name, p in CARRIED]
    made += turned_cases()
    made += [Case(f"{p.graph.name}-{name}", p, {}, H200, wanted) for name, p, wanted in BY_HAND]
    # Rows that are more than the second-level cache: sums of two operands are written before they are reduced.
    made += [Case(f"residual_norm-written-early-{cluster}", residual_norm(5, 256 * cluster), {}, replace(H200, l2_bytes=1 << 10),
                  rows(4, 64, 1, cluster=cluster)) for cluster in (1, 2)]
    return tuple(sorted(made, key=lambda c: c.group))
