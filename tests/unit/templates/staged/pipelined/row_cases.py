"""Pipelined products with reductions over rows, to be run: patterns, tiles, inputs."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.unit.templates.staged.pipelined.row_graphs import (
    activated_norm,
    gated_norm,
    in_groups,
    in_sequences,
    norm_gradient,
    residual_norm,
    scores,
    soft,
    spread,
    stored_groups,
    weighted,
)
from tests.unit.templates.stitched_cases import in_double
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import BF16, F16, F32
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import schedule_product

# Roundings of the product's type (of tf32 for f32), relative to one or the largest element.
ROUNDOFF = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-11}


@dataclass(frozen=True)
class RowCase:
    """A pattern and its tiles (None: chosen). amplified: roundings on the longest way, times the slopes behind them. exact: small whole
    numbers, of which every sum is exact. special: rows with NaN, infinities of both signs, and zeros."""

    graph: Callable[[], Graph]
    wanted: Pipelined | None = None
    amplified: float = 8
    exact: bool = False
    special: bool = False

    def program(self, device: DeviceSpec = H200) -> TileProgram:
        """The tile program."""
        made = schedule_product(self.graph(), {}, device, self.wanted)
        assert isinstance(made, TileProgram), made
        return made

    def inputs(self, graph: Graph) -> dict[str, np.ndarray]:
        """Seeded inputs in the inputs' types."""
        random = np.random.default_rng(7)
        values = {}
        for v in graph.inputs:
            scale = 0.5 if v.name == "w" else 1.0
            whole = self.exact or not v.type.dtype.is_float
            drawn = random.integers(-2, 3, v.type.shape) if whole else random.standard_normal(v.type.shape) * scale
            if not v.type.dtype.is_float:
                # Places of columns, some of which no column has.
                drawn = random.integers(-1, 300, v.type.shape)
            if self.special and v.name == "x":
                drawn = drawn.astype(np.float64)
                drawn[1, 0], drawn[2, 0], drawn[3], drawn[4, :2] = np.nan, np.inf, 0.0, (np.inf, -np.inf)
            values[v.name] = drawn.astype(NUMPY_DTYPES[v.type.dtype.name])
        return values

    def check(self, graph: Graph, inputs: dict[str, np.ndarray], results: list[np.ndarray]) -> None:
        """Raises: AssertionError where a result is not that of the definition in f64."""
        with np.errstate(all="ignore"):
            wanted = interpret(in_double(graph), {n: v if v.dtype.kind == "i" else v.astype(np.float64) for n, v in inputs.items()})
        unit = ROUNDOFF[graph.type_of("x").dtype.name]
        for name, got, value in zip(graph.results, results, wanted, strict=True):
            value = np.asarray(value).ravel()
            if not graph.type_of(name).dtype.is_float:
                assert (got == value).all(), name
                continue
            is_nan, is_infinite = np.isnan(value), np.isinf(value)
            assert (np.isnan(got) == is_nan).all() and (got[is_infinite] == value[is_infinite]).all(), name
            finite = ~is_nan & ~is_infinite
            error = np.abs(got[finite].astype(np.float64) - value[finite])
            assert (error <= self.amplified * unit * max(np.abs(value[finite]).max(), 1.0)).all(), (name, error.max())


# Two clusters of 2 blocks take three tiles of rows, the last of which hangs over the end; columns end inside the second block's tile.
IN_CLUSTERS = Pipelined(64, 128, 64, 2, 1, 1, 4, cluster=2)
ROW_CASES: dict[str, RowCase] = {
    "layer norm in two warpgroups": RowCase(lambda: residual_norm(200, 72, 40), Pipelined(128, 128, 64, 2, 2, 1, 1), amplified=16),
    "layer norm in clusters": RowCase(lambda: residual_norm(140, 136, 72), Pipelined(64, 128, 64, 2, 1, 1, 2, cluster=2), amplified=16),
    "layer norm of odd columns in clusters": RowCase(lambda: residual_norm(67, 187, 16), IN_CLUSTERS, amplified=16),
    "layer norm of bf16 in a batch": RowCase(lambda: residual_norm(66, 72, 40, BF16, (2,)), Pipelined(64, 64, 64, 2, 1, 1, 4, cluster=2),
                                             amplified=16),
    "layer norm of special rows": RowCase(lambda: residual_norm(70, 140, 8), IN_CLUSTERS, amplified=16, special=True),
    "RMS norm in clusters of four": RowCase(lambda: activated_norm(70, 250, 16), Pipelined(64, 64, 64, 2, 1, 1, 4, cluster=4),
                                            amplified=16),
    "layer norm in turn in clusters": RowCase(lambda: residual_norm(400, 136, 72), Pipelined(64, 64, 64, 2, 2, 1, 3, True, 3),
                                              amplified=16),
    "layer norm in turn in two clusters": RowCase(lambda: residual_norm(500, 250, 40), Pipelined(64, 128, 64, 3, 2, 1, 4, True, 2),
                                                  amplified=16),
    "layer norm of shared left tiles": RowCase(
        lambda: residual_norm(300, 136, 72), Pipelined(192, 64, 64, 3, 3, 1, 3, cluster=3, multicast=True), amplified=16),
    "softmax in turn of shared left tiles": RowCase(lambda: soft(704, 250, 72, BF16, (True, True)),
                                                    Pipelined(128, 64, 64, 2, 2, 1, 4, True, 4, multicast=True)),
    "layer norm in turn in scattered clusters": RowCase(
        lambda: residual_norm(400, 136, 72), Pipelined(64, 64, 64, 2, 2, 1, 6, True, 3, scattered=True), amplified=16),
    "layer norm of odd columns in scattered clusters": RowCase(
        lambda: residual_norm(270, 187, 16), Pipelined(128, 64, 64, 2, 2, 1, 3, cluster=3, scattered=True), amplified=16),
    "softmax in turn in scattered clusters": RowCase(
        lambda: soft(700, 1100, 16, BF16), Pipelined(64, 64, 64, 2, 2, 1, 36, True, 18, scattered=True)),
    "argmax in turn in scattered clusters": RowCase(
        lambda: scores(270, 300, 16), Pipelined(64, 64, 64, 2, 2, 1, 5, True, 5, scattered=True), exact=True),
    "groups of columns in scattered clusters": RowCase(
        lambda: in_groups(200, 330, 16, 128, F16, (2,)), Pipelined(64, 64, 64, 2, 2, 2, 4, True, 2, scattered=True)),
    "softmax in turn in clusters": RowCase(lambda: soft(330, 130, 16), Pipelined(64, 128, 64, 2, 2, 1, 2, True, 2)),
    "argmax in turn in clusters of five": RowCase(lambda: scores(270, 300, 16), Pipelined(64, 64, 64, 2, 2, 1, 5, True, 5), exact=True),
    "RMS norm in turn": RowCase(lambda: activated_norm(200, 72, 16), Pipelined(64, 128, 64, 2, 2, 1, 1, True), amplified=16),
    "RMS norm of a gated pair in clusters": RowCase(lambda: gated_norm(70, 72, 16), Pipelined(64, 64, 64, 2, 1, 1, 2, cluster=2),
                                                    amplified=32),
    "RMS norm of two rows of instructions": RowCase(lambda: activated_norm(130, 64, 16), Pipelined(128, 64, 64, 2, 1, 1, 2)),
    "softmax in a block": RowCase(lambda: soft(67, 33, 16)),
    "softmax in clusters": RowCase(lambda: soft(140, 130, 16), Pipelined(64, 128, 64, 2, 1, 1, 2, cluster=2)),
    "softmax of columns contiguous": RowCase(lambda: soft(70, 72, 72, BF16, (False, False))),
    "softmax of tf32": RowCase(lambda: soft(70, 100, 40, F32), Pipelined(64, 64, 32, 2, 1, 1, 2, cluster=2)),
    "softmax of special rows": RowCase(lambda: soft(70, 200, 8), IN_CLUSTERS, special=True),
    "scores in clusters": RowCase(lambda: scores(67, 100, 40, lead=(2,)), Pipelined(64, 64, 64, 2, 1, 1, 2, cluster=2)),
    "argmax of whole numbers in clusters": RowCase(lambda: scores(67, 220, 16), IN_CLUSTERS, exact=True),
    "a weight a row in clusters": RowCase(lambda: weighted(70, 136, 16, BF16), IN_CLUSTERS, amplified=64),
    "variance and any": RowCase(lambda: spread(67, 190, 16), IN_CLUSTERS, exact=True, amplified=2),
    "groups of columns": RowCase(lambda: in_groups(140, 256, 40, 64), Pipelined(64, 64, 64, 2, 2, 1, 2, True)),
    "groups of columns in two warpgroups": RowCase(lambda: in_groups(140, 300, 40, 128, BF16), Pipelined(128, 128, 64, 2, 2, 1, 3)),
    "groups of columns in clusters": RowCase(lambda: in_groups(200, 330, 16, 128, F16, (2,)), Pipelined(64, 64, 64, 2, 2, 2, 4, True, 2)),
    "groups of columns of special rows": RowCase(lambda: in_groups(70, 200, 8, 64), special=True),
    "groups of columns of stored scores": RowCase(lambda: stored_groups(140, 256, 40, 64), Pipelined(64, 64, 64, 2, 2, 1, 2, True)),
    "groups of columns of padded scores in two warpgroups": RowCase(lambda: stored_groups(140, 299, 40, 128, BF16, 304),
                                                                    Pipelined(128, 128, 64, 2, 2, 1, 3)),
    "groups of columns of padded scores in clusters": RowCase(lambda: stored_groups(200, 325, 16, 128, F16, 328),
                                                              Pipelined(64, 64, 64, 2, 2, 2, 4, True, 2)),
    "norm's gradient with sums down columns": RowCase(lambda: norm_gradient(144, 72, 40), Pipelined(64, 128, 64, 2, 1, 1, 2), amplified=32),
    "norm's gradient with sums down columns in turn in scattered clusters": RowCase(
        lambda: norm_gradient(400, 136, 72, BF16), Pipelined(64, 64, 64, 2, 2, 1, 6, True, 3, scattered=True), amplified=32),
    "norm's gradient with sums down odd columns in clusters": RowCase(lambda: norm_gradient(80, 187, 16), IN_CLUSTERS, amplified=32),
    "sequences": RowCase(lambda: in_sequences(3, 30, 72, 40)),
    "blocks without columns": RowCase(lambda: residual_norm(70, 72, 16), Pipelined(64, 64, 64, 2, 1, 1, 4, cluster=4), amplified=16),
    "one column": RowCase(lambda: soft(67, 1, 16)),
    "one element": RowCase(lambda: residual_norm(1, 1, 1), amplified=64),
}
