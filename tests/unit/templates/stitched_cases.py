"""Stitched kernels to be run: patterns with tiles made by hand, so that blocks, tails and walks occur at sizes that run in a moment."""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.unit.templates.pattern_graphs import ROUNDOFF, Arrays
from tests.unit.templates.stitched_graphs import (
    attention,
    batched,
    beside_itself,
    clamped_layers,
    gram,
    heads,
    joined_operand,
    lstm_cell,
    many_reductions,
    masked_sum,
    norm_before_product,
    normed_chain,
    pre_norm_layers,
    product_softmax,
    row_sums_and_product,
    siblings,
    slice_of_a_tile,
    turned_product,
    two_results,
    two_tiles,
)
from tilefuse.base.candidate import Rejected
from tilefuse.domain.tile import Level, TileProgram
from tilefuse.ir.dtype import BF16, F16, F32, F64
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.ir.text import parse_graph, print_graph
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.templates.compose import compose
from tilefuse.templates.pattern import schedule_pattern
from tilefuse.templates.staged.online.record import Online
from tilefuse.templates.staged.online.template import schedule_online
from tilefuse.templates.staged.stitched.record import Stitched
from tilefuse.templates.staged.stitched.template import schedule_stitched


def small_numbers(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Whole numbers from -2 to 2."""
    return rng.integers(-2, 3, shape)


def smooth(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Normal variates of deviation one half."""
    return rng.standard_normal(shape) * 0.5


def with_specials(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Normal variates; queries 1, 2 and 3 give scores that are NaN, infinite of both signs, and nothing but minus infinity."""
    x = np.abs(rng.standard_normal(shape)) + 0.1
    if name == "q":
        x[:, 1, 0], x[:, 2], x[:, 3] = np.nan, np.inf, -np.inf
    return x


@dataclass(frozen=True)
class StitchedCase:
    """A kernel: its pattern, its tiles (None: chosen), its inputs, and what errors it may have.

    amplified   None: equal bits. Else how many roundoffs of the coarsest type inside, of the larger of one and the result, are allowed:
                the roundings on the longest way through the pattern, times the slopes of the functions behind them
    """

    name: str
    graph: Graph
    choice: Stitched | Online | None = None
    amplified: int | None = None
    fill: Callable[[np.random.Generator, str, tuple[int, ...]], np.ndarray] = small_numbers
    device: DeviceSpec = H200

    def program(self) -> TileProgram:
        """The tile program."""
        if self.choice is None:
            made = schedule_pattern(self.graph, [n.name for n in self.graph.nodes], {}, self.device)
        elif isinstance(self.choice, Online):
            made = schedule_online(self.graph, {}, self.device, self.choice)
        else:
            made = schedule_stitched(self.graph, {}, self.device, self.choice)
        assert not isinstance(made, Rejected), made
        return made

    def kernel(self) -> Kernel:
        """The kernel IR."""
        return compose(self.program(), self.device)

    def inputs(self, rng: np.random.Generator) -> Arrays:
        """Input arrays in the inputs' dtypes."""
        return {i.name: self.fill(rng, i.name, i.type.shape).astype(NUMPY_DTYPES[i.type.dtype.name]) for i in self.graph.inputs}

    def wanted(self, inputs: Arrays) -> list[tuple[np.ndarray, np.ndarray | None]]:
        """(value, bound on the error) of every result; smooth patterns are computed in f64."""
        with np.errstate(all="ignore"):
            if self.amplified is None:
                return [(value, None) for value in interpret(self.graph, inputs)]
            found = interpret(in_double(self.graph), {n: a if a.dtype == bool else a.astype(np.float64) for n, a in inputs.items()})
        unit = max(ROUNDOFF[v.type.dtype.name] for v in (*self.graph.inputs, *self.graph.nodes) if v.type.dtype.is_float)
        return [(value, self.amplified * unit * np.maximum(np.abs(value), 1.0)) for value in found]


def in_double(graph: Graph) -> Graph:
    """The graph with every float in f64."""
    return parse_graph(re.sub(r"\b(f32|f16|bf16)\b", "f64", print_graph(graph)))


def tiles(*extents: int, threads: int = 64, groups: int = 0) -> Stitched:
    """Tiles made by hand."""
    return Stitched(extents, threads, groups)


TURNED = [(a, b) for a in (False, True) for b in (False, True)]
CASES: tuple[StitchedCase, ...] = (
    # Softmax between two products; 20 is no multiple of 8 rows, 13 keys are odd.
    StitchedCase("attention", attention(2, 20, 8), tiles(1, 8, 8), 64, smooth),
    StitchedCase("attention keeps the softmax", attention(2, 13, 5, probabilities=True), tiles(1, 4, 13), 64, smooth),
    StitchedCase("causal attention", attention(1, 14, 8, causal=True), tiles(1, 4, 8), 64, smooth),
    StitchedCase("masked rows and infinities", attention(1, 6, 4, keys=9), tiles(1, 4, 4), 64, with_specials),
    StitchedCase("attention in f16", attention(1, 32, 16, F16, probabilities=True), tiles(1, 16, 32), 16, smooth),
    StitchedCase("attention in f64", attention(2, 7, 3, F64), tiles(1, 3, 3), 64, smooth),
    # Layers: matrix unit, threads, sizes that no instruction covers.
    StitchedCase("layers on the matrix unit", clamped_layers(40, (32, 16, 16), F16), tiles(16, 16)),
    StitchedCase("layers of bf16", clamped_layers(48, (16, 32, 16), BF16, turned=False), tiles(16, 16, threads=128)),
    StitchedCase("layers walked by few blocks", clamped_layers(100, (16, 16, 16), F16), tiles(16, 16, groups=3)),
    StitchedCase("layers of f32", clamped_layers(21, (7, 12, 5), F32), tiles(4, 5)),
    StitchedCase("layers of f32 walked", clamped_layers(21, (8, 8, 8), F32), tiles(2, 8, groups=4)),
    StitchedCase("layers of odd f16", clamped_layers(10, (5, 3, 7), F16), tiles(3, 7)),
    StitchedCase("chain with norms", normed_chain(6, 24), tiles(4, 24), 2000, smooth),
    # Each sum lies where the one before it did, several times over.
    StitchedCase("sums in the place of sums", pre_norm_layers(3, 4, 8, 12), tiles(4, 8), 4000, smooth),
    StitchedCase("gates", lstm_cell(5, 8), tiles(2, 8), 64, smooth),
    # Maps at another level than stages give them.
    StitchedCase("gates, one map with a stage", lstm_cell(5, 8), Stitched((2, 8), 64, 0, (("add", Level.SHARED),)), 64, smooth),
    StitchedCase("powers that readers compute", product_softmax(9, 6, 11), Stitched((4, 11), 64, 0, (("softmax_exp", Level.REGISTER),)),
                 64, smooth),
    StitchedCase("gates by columns", lstm_cell(6, 16), tiles(3, 8), 64, smooth),
    # One product, many shapes.
    StitchedCase("two results", two_results(9, 5, 11), tiles(4, 11)),
    StitchedCase("two results of the matrix unit", two_results(24, 16, 16, F16), tiles(16, 8)),
    *(StitchedCase(f"{'xX'[a]} {'wW'[b]}", turned_product(10, 6, 9, (a, b)), tiles(4, 3)) for a, b in TURNED),
    *(StitchedCase(f"{'xX'[a]} {'wW'[b]} f16", turned_product(32, 32, 24, (a, b), F16), tiles(16, 24)) for a, b in TURNED),
    *(StitchedCase(f"split {'xX'[a]} {'wW'[b]}", turned_product(3, 64, 4, (a, b)), tiles(1, 4)) for a, b in TURNED),
    StitchedCase("batched", batched((3, 5, 7), (3, 7, 4)), tiles(1, 2, 4)),
    StitchedCase("broadcast left", batched((1, 5, 4), (3, 4, 6)), tiles(2, 5, 6)),
    StitchedCase("broadcast right", batched((2, 3, 5, 4), (3, 4, 6)), tiles(1, 2, 3, 6)),
    StitchedCase("one column", turned_product(9, 5, 1, (False, False)), tiles(4, 1)),
    StitchedCase("one row", turned_product(1, 12, 30, (False, True)), tiles(1, 6)),
    StitchedCase("inner of one", turned_product(5, 1, 6, (True, False)), tiles(2, 3)),
    StitchedCase("f64", turned_product(6, 5, 7, (False, False), F64), tiles(4, 7)),
    StitchedCase("reductions of several shapes", many_reductions(6, 5, 16), tiles(6, 16)),
    StitchedCase("sums over other blocks' rows", many_reductions(6, 5, 16), tiles(4, 16)),
    StitchedCase("masked sums", masked_sum(9, 3, 9), tiles(4, 1)),
    StitchedCase("two products", siblings(7, 6, 10), tiles(3, 5)),
    StitchedCase("softmax of a product", product_softmax(5, 6, 40), tiles(2, 40), 64, smooth),
    StitchedCase("softmax of f16", product_softmax(40, 16, 48, F16), tiles(16, 48), 16, smooth),
    # One value as both operands, and beside its own product: two tiles of it, and elements that lie in neither.
    StitchedCase("gram matrix", gram(9, 5), tiles(4, 9)),
    StitchedCase("gram matrix of f16", gram(32, 16, F16), tiles(16, 32)),
    StitchedCase("operand beside its product", beside_itself(9), tiles(4, 9)),
    StitchedCase("operand beside its product in squares", beside_itself(10), tiles(3, 4)),
    # Results that several blocks need, and compute: the first of them writes.
    StitchedCase("gram matrix in squares", gram(9, 5), tiles(4, 4)),
    StitchedCase("norm before a product", norm_before_product(7, 24, 10), tiles(4, 4), 400, smooth),
    StitchedCase("norm before a product, walked", norm_before_product(7, 24, 10), tiles(2, 4, groups=3), 400, smooth),
    StitchedCase("norm before a product of odd rows", norm_before_product(7, 19, 12), tiles(4, 4), 400, smooth),
    StitchedCase("norm before a product of f16", norm_before_product(24, 32, 32, F16), tiles(16, 8), 64, smooth),
    StitchedCase("softmax before a product", attention(2, 20, 24, keys=9, probabilities=True), tiles(1, 8, 8), 64, smooth),
    StitchedCase("softmax before a product in registers", attention(2, 20, 24, keys=9, probabilities=True), tiles(1, 16, 8, threads=32), 64,
                 smooth),
    # Tiles that reach beyond the last row and column: neighbours in one thread of which some are elements, reductions of what is
    # outside, operands long enough to be read where they lie.
    StitchedCase("columns cut anywhere", turned_product(16, 5, 16, (False, False)), tiles(10, 9)),
    StitchedCase("columns of the matrix unit cut anywhere", turned_product(20, 16, 13, (False, False), F16), tiles(16, 8)),
    StitchedCase("sums of rows beyond the end", row_sums_and_product(7, 5, 3), tiles(6, 3)),
    StitchedCase("five columns a thread", clamped_layers(20, (256, 10), F32), tiles(2, 10, threads=128)),
    StitchedCase("long operand", turned_product(3, 1000, 20, (False, False)), tiles(2, 20, threads=32)),
    StitchedCase("long operand cut anywhere", turned_product(3, 1000, 20, (False, False)), tiles(2, 13, threads=32)),
    # Operands of the matrix unit whose rows lie apart, and parts of tiles that are no whole vectors.
    StitchedCase("heads between rows and columns", heads(16, 2, 16), tiles(1, 2, 16, 16)),
    StitchedCase("a part of a tile", slice_of_a_tile(16, 3, 16), tiles(16, 35)),
    # f32 on the matrix unit: whole instructions, columns and inner axis that they reach beyond, every way operands lie.
    StitchedCase("f32 layers on the matrix unit", clamped_layers(40, (32, 16, 16), F32), tiles(16, 16)),
    StitchedCase("f32 layers in a warp's registers", clamped_layers(40, (32, 16, 16), F32), tiles(16, 16, threads=32)),
    StitchedCase("f32 layers of odd widths in registers", clamped_layers(36, (13, 7, 5), F32), tiles(16, 5, threads=32)),
    *(StitchedCase(f"{'xX'[a]} {'wW'[b]} f32", turned_product(32, 72, 24, (a, b), F32), tiles(32, 24)) for a, b in TURNED),
    *(StitchedCase(f"odd {'xX'[a]} {'wW'[b]} f32", turned_product(32, 43, 21, (a, b), F32), tiles(16, 21, threads=32)) for a, b in TURNED),
    StitchedCase("operand beside its f32 product", beside_itself(36), tiles(16, 36, threads=32)),
    StitchedCase("operand beside its odd f32 product", beside_itself(37), tiles(16, 37, threads=32)),
    # Fewer tiles than warps: several warps share the inner axis of a tile.
    *(StitchedCase(f"shared inner axis {'xX'[a]} {'wW'[b]} f16", turned_product(40, 512, 24, (a, b), F16), tiles(16, 8, threads=256))
      for a, b in TURNED),
    *(StitchedCase(f"shared inner axis {'xX'[a]} {'wW'[b]} f32", turned_product(36, 256, 21, (a, b), F32), tiles(16, 21, threads=128))
      for a, b in TURNED),
    StitchedCase("shared inner axis, two warps of eight idle", batched((3, 16, 256), (3, 256, 8)), tiles(3, 16, 8, threads=256)),
    StitchedCase("shared inner axis of several instructions", turned_product(32, 512, 16, (False, True), F16), tiles(32, 16, threads=512)),
    StitchedCase("shared inner axis, walked", two_results(100, 512, 16, F16), tiles(16, 8, threads=128, groups=3)),
    StitchedCase("shared inner axes of layers", clamped_layers(40, (256, 16, 512, 16), F16), tiles(16, 16, threads=256)),
    StitchedCase("shared inner axes of f32 layers", clamped_layers(40, (256, 12, 128, 5), F32), tiles(16, 5, threads=256)),
    StitchedCase("gates of a shared inner axis", lstm_cell(32, 128), tiles(16, 8, threads=256), 64, smooth),
    # Rows reduced by the warps that multiplied, in registers.
    StitchedCase("rows of sums", product_softmax(40, 200, 48), tiles(16, 48, threads=32), 64, smooth),
    StitchedCase("odd rows of sums", product_softmax(20, 7, 13), tiles(16, 13, threads=32), 64, smooth),
    StitchedCase("two tiles of rows a warp", product_softmax(40, 200, 24), tiles(32, 24, threads=32), 64, smooth),
    StitchedCase("rows of sums of f16", product_softmax(40, 16, 48, F16), tiles(16, 48, threads=32), 16, smooth),
    StitchedCase("attention in registers", attention(2, 20, 8), tiles(1, 16, 8, threads=32), 64, smooth),
    StitchedCase("odd attention in registers", attention(2, 21, 5, probabilities=True), tiles(1, 16, 21, threads=32), 64, smooth),
    StitchedCase("causal attention in registers", attention(1, 34, 8, causal=True), tiles(1, 32, 8, threads=64), 64, smooth),
    StitchedCase("attention of f16 in registers", attention(1, 32, 16, F16), tiles(1, 16, 16, threads=32), 16, smooth),
    StitchedCase("infinities in registers", attention(1, 20, 24, keys=9), tiles(1, 16, 24, threads=32), 64, with_specials),
    # Two tiles of one value, and reads of which not every thread's lies in the value, or in the tile that holds all that are made.
    StitchedCase("guarded reads beyond a tile", two_tiles(
        "%y: f32[4] = map [i] { add(add(%s[i], %s[i + 60]), guard(0 <= i + -2 < 4 ? %s[i + -2] : 1.0:f32)) }", (4,)), tiles(4)),
    StitchedCase("reads of threads without a row", two_tiles(
        """%r: f32[6] = reduce.sum [i] over [k < 8] { add(%s[-1*i + 45], %s[k + 5]) }
           %y: f32[6] = map [i] { mul(%r[i], 2.0:f32) }""", (6,)), tiles(6)),
    StitchedCase("reads by the number of the block", two_tiles(
        """%m: f32[8] = map [i] { mul(%s[(i // 4) + 3], 2.0:f32) }
           %y: f32[4, 16] = map [i, j] { add(%m[i], %s[i + 20]) }""", (4, 16)), tiles(1, 16)),
    # As schedules choose them.
    StitchedCase("joined operand", joined_operand(12, (8, 16, 8), 16), tiles(4, 8, threads=32)),
    StitchedCase("operand joined within vectors", joined_operand(12, (6, 16, 10), 16), tiles(4, 8, threads=32)),
    StitchedCase("odd joined operand", joined_operand(7, (5, 4), 9), tiles(3, 9, threads=32)),
    StitchedCase("chosen attention", attention(2, 20, 8), None, 64, smooth),
    StitchedCase("chosen layers", clamped_layers(70, (16, 16, 16), F16)),
    StitchedCase("chosen gates", lstm_cell(5, 8), None, 64, smooth),
)
