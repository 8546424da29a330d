"""Grouped products as graphs, offsets that tell them apart, and the cases of tests."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.unit.templates.stitched_graphs import normal
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, F16, F32, I8, I32, I64, DType
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.scalar import NUMPY_DTYPES, call
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import schedule_product


def experts(groups: int, rows: int, columns: int, inner: int, dtype: DType = F16, turned: bool = True, offsets: DType = I32,
            precision: str = "default") -> Graph:
    """The product alone."""
    b = TensorBuilder("experts")
    x, w = b.input("x", dtype, (rows, inner)), b.input("w", dtype, (groups, columns, inner) if turned else (groups, inner, columns))
    return normal(b, [b.grouped_matmul(x, w, b.input("offsets", offsets, (groups,)), turned, precision)])


def gated_experts(groups: int, rows: int, columns: int, inner: int, dtype: DType = BF16, joined: bool = False) -> Graph:
    """silu(x gate) * (x up) of two matrices a group, or of the halves of one."""
    b = TensorBuilder("gated_experts")
    x, offsets = b.input("x", dtype, (rows, inner)), b.input("offsets", I32, (groups,))
    if joined:
        whole = b.grouped_matmul(x, b.input("w", dtype, (groups, inner, 2 * columns)), offsets)
        gate, up = b.split(whole, [columns, columns], 1)
    else:
        gate, up = (b.grouped_matmul(x, b.input(n, dtype, (groups, columns, inner)), offsets, True) for n in ("gate", "up"))
    return normal(b, [b.elementwise("mul", b.elementwise("mul", gate, b.elementwise("sigmoid", gate)), up)])


def weighted_experts(groups: int, rows: int, columns: int, inner: int, dtype: DType = BF16) -> Graph:
    """A bias of each row's group, looked up by the number that the router gave it, then the router's weight, then a residual."""
    b = TensorBuilder("weighted_experts")
    x, offsets = b.input("x", dtype, (rows, inner)), b.input("offsets", I32, (groups,))
    y = b.grouped_matmul(x, b.input("w", dtype, (groups, inner, columns)), offsets)
    bias = b.take(b.input("bias", dtype, (groups, columns)), b.input("expert", I64, (rows,)), 0)
    y = b.elementwise("mul", b.elementwise("add", y, bias), b.input("weight", dtype, (rows, 1)))
    return normal(b, [b.elementwise("add", y, b.input("residual", dtype, (rows, columns)))])


def gathered_experts(groups: int, rows: int, columns: int, inner: int, dtype: DType = BF16) -> Graph:
    """Rows that a table gives: each token's row is read by each of its experts."""
    b = TensorBuilder("gathered_experts")
    x = b.take(b.input("tokens", dtype, (rows // 2, inner)), b.input("token", I64, (rows,)), 0)
    return normal(b, [b.grouped_matmul(x, b.input("w", dtype, (groups, columns, inner)), b.input("offsets", I32, (groups,)), True)])


def widened_experts(groups: int, rows: int, columns: int, inner: int, dtype: DType = F16) -> Graph:
    """Weights of int8 with a scale for each column of each group."""
    b = TensorBuilder("widened_experts")
    q, s = b.input("q", I8, (groups, columns, inner)), b.input("s", dtype, (groups, columns, 1))
    w = b.expression(lambda v, t: call("mul", v, t), b.cast(q, dtype), s, dtype=dtype, name="w")
    return normal(b, [b.grouped_matmul(b.input("x", dtype, (rows, inner)), w, b.input("offsets", I32, (groups,)), True)])


def computed_offsets(groups: int, rows: int, columns: int, inner: int) -> Graph:
    """Offsets that a map of the same kernel computes."""
    b = TensorBuilder("computed_offsets")
    offsets = b.elementwise("add", b.input("counts", I32, (groups,)), b.input("more", I32, (groups,)))
    return normal(b, [b.grouped_matmul(b.input("x", F16, (rows, inner)), b.input("w", F16, (groups, inner, columns)), offsets)])


def summed_rows(groups: int, rows: int, columns: int, inner: int) -> Graph:
    """The sum of each row of the product."""
    b = TensorBuilder("summed_rows")
    y = b.grouped_matmul(b.input("x", F16, (rows, inner)), b.input("w", F16, (groups, inner, columns)), b.input("offsets", I32, (groups,)))
    return normal(b, [b.reduce(y, "sum", (1,))])


@dataclass(frozen=True)
class GroupedCase:
    """A pattern, its offsets, tiles made by hand (None: chosen), and strides of values."""

    graph: Callable[[], Graph]
    offsets: tuple[int, ...]
    wanted: Pipelined | None = None
    layouts: Layouts = field(default_factory=dict)

    def program(self) -> TileProgram:
        """The tile program."""
        made = schedule_product(self.graph(), self.layouts, H200, self.wanted)
        assert isinstance(made, TileProgram), made
        return made


UNEVEN = (0, 70, 70, 71, 200)
GROUPED_CASES = {
    "unlike groups": GroupedCase(lambda: experts(5, 200, 136, 72), UNEVEN, Pipelined(64, 64, 64, 2, 1, 3, 4)),
    "chosen": GroupedCase(lambda: experts(5, 200, 136, 72), UNEVEN),
    "columns contiguous, two warpgroups": GroupedCase(lambda: experts(5, 200, 136, 72, BF16, False), UNEVEN,
                                                      Pipelined(128, 128, 64, 2, 2, 2, 3)),
    "tiles in turn": GroupedCase(lambda: experts(5, 200, 136, 136), UNEVEN, Pipelined(64, 64, 64, 3, 2, 4, 3, pingpong=True)),
    "rows behind the last group": GroupedCase(lambda: experts(3, 140, 72, 72), (10, 10, 75), Pipelined(64, 64, 64, 2, 1, 2, 2)),
    "no rows in any group": GroupedCase(lambda: experts(3, 70, 72, 72, BF16, False), (0, 0, 0), Pipelined(64, 64, 64, 2, 1, 2, 2)),
    "offsets that fall and reach too far": GroupedCase(lambda: experts(4, 140, 72, 72, offsets=I64), (90, -3, 60, 1000),
                                                       Pipelined(64, 64, 64, 2, 1, 1, 5)),
    "one row a group": GroupedCase(lambda: experts(9, 9, 72, 72), tuple(range(1, 10))),
    "one group": GroupedCase(lambda: experts(1, 70, 72, 72), (70,)),
    "one row": GroupedCase(lambda: experts(3, 1, 72, 72), (0, 1, 1)),
    "more groups than threads": GroupedCase(lambda: experts(300, 60, 64, 64), (*range(1, 30), *(30 for _ in range(270)), 60),
                                            Pipelined(64, 64, 64, 2, 1, 1, 20)),
    "odd sizes": GroupedCase(lambda: experts(4, 131, 67, 71), (3, 64, 70, 131)),
    "odd columns by copies": GroupedCase(lambda: experts(4, 131, 67, 72), (3, 64, 70, 131)),
    "f32 as parts": GroupedCase(lambda: experts(4, 131, 72, 72, F32), (3, 64, 70, 131)),
    "tf32": GroupedCase(lambda: experts(4, 131, 72, 72, F32, precision="tf32"), (3, 64, 70, 131)),
    "a gated pair": GroupedCase(lambda: gated_experts(4, 140, 72, 136), (3, 64, 70, 140)),
    "halves of one matrix": GroupedCase(lambda: gated_experts(4, 140, 72, 136, joined=True), (3, 64, 70, 140)),
    "bias by group, weight, residual": GroupedCase(lambda: weighted_experts(4, 200, 136, 72), (3, 64, 70, 200),
                                                   Pipelined(64, 128, 64, 2, 1, 2, 3)),
    "the same in turn": GroupedCase(lambda: weighted_experts(4, 200, 136, 72), (3, 64, 70, 180),
                                    Pipelined(64, 64, 64, 2, 2, 2, 3, pingpong=True)),
    "two row instructions a warpgroup": GroupedCase(lambda: weighted_experts(4, 280, 72, 72), (3, 140, 140, 280),
                                                    Pipelined(128, 64, 64, 2, 1, 2, 3)),
    "rows of a table": GroupedCase(lambda: gathered_experts(4, 140, 72, 72), (3, 64, 70, 140)),
    "weights of int8": GroupedCase(lambda: widened_experts(4, 140, 72, 136), (3, 64, 70, 140)),
    "rows far apart": GroupedCase(lambda: experts(4, 140, 72, 72), (3, 64, 70, 140), layouts={"x": (80, 1), "w": (8000, 104, 1)}),
}


def grouped_inputs(case: GroupedCase, graph: Graph) -> dict[str, np.ndarray]:
    """Seeded inputs in the inputs' types; numbers of groups and of tokens are of their tables."""
    random = np.random.default_rng(7)
    values: dict[str, np.ndarray] = {}
    for v in graph.inputs:
        kind = NUMPY_DTYPES[v.type.dtype.name]
        if v.name == "offsets":
            values[v.name] = np.array(case.offsets).astype(kind)
        elif v.name in ("expert", "token"):
            most = len(case.offsets) if v.name == "expert" else graph.type_of("tokens").shape[0]
            values[v.name] = random.integers(0, most, v.type.shape).astype(kind)
        elif v.type.dtype.is_integer:
            values[v.name] = random.integers(-100, 100, v.type.shape).astype(kind)
        else:
            values[v.name] = random.standard_normal(v.type.shape).astype(kind)
    return values
