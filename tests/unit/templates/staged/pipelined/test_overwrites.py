"""Results of pipelined products in the memory of their residuals: where a tile alone reads what it overwrites, and the same bits then."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.pipelined.product_graphs import of_tokens, product
from tests.unit.templates.stitched_graphs import normal
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.lowering.in_place import alias_buffers
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, F16, F32, DType
from tilefuse.ir.graph import Graph
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import schedule_product


def residual(rows: int, columns: int, inner: int, dtype: DType = F16, is_normed: bool = False) -> Graph:
    """A linear layer plus a residual, or the layer norm of that: one result."""
    b = TensorBuilder("residual")
    y = b.elementwise("add", product(b, (), rows, columns, inner, dtype), b.input("bias", dtype, (columns,)))
    y = b.elementwise("add", y, b.input("residual", dtype, (rows, columns)))
    return normal(b, [b.layer_norm(y, (-1,), None, None)[0] if is_normed else y])


@dataclass(frozen=True)
class Case:
    """A pattern, and tiles made by hand (None: chosen)."""

    graph: Callable[[], Graph]
    wanted: Pipelined | None = None

    def program(self) -> TileProgram:
        """The tile program."""
        made = schedule_product(self.graph(), {}, H200, self.wanted)
        assert isinstance(made, TileProgram), made
        return made


CASES = {
    "a residual": Case(lambda: residual(200, 136, 72)),
    "a residual in f32": Case(lambda: residual(72, 136, 72, F32)),
    "tiles in turn": Case(lambda: residual(200, 136, 136, BF16), Pipelined(64, 64, 64, 3, 2, 1, 3, pingpong=True)),
    "parts of the inner axis": Case(lambda: residual(130, 72, 520), Pipelined(64, 64, 64, 3, 1, 1, 4, split=2)),
    "tokens of images": Case(lambda: of_tokens((3, 35), 136, 72)),
    "rows of one block": Case(lambda: residual(136, 128, 72, is_normed=True), Pipelined(64, 128, 64, 3, 1, 1, 3)),
    "rows of a cluster": Case(lambda: residual(136, 256, 72, is_normed=True), Pipelined(64, 128, 64, 3, 1, 1, 2, cluster=2)),
    "rows of blocks anywhere": Case(lambda: residual(136, 256, 72, is_normed=True),
                                    Pipelined(64, 128, 64, 3, 1, 1, 2, cluster=2, scattered=True)),
}


def may_overwrite(program: TileProgram, target: str = "residual") -> bool:
    """Whether the first result may lie in the target's memory."""
    return kernel_template(program.choice).reads_end_before_writes(program, program.graph.results[0], target)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_results_over_their_residuals_have_the_same_bits(tmp_path: Path, seed: int = 3) -> None:
    """Beside the kernel that has memory of its own for them; every access is checked."""
    kernels = []
    for name, case in CASES.items():
        program = case.program()
        assert may_overwrite(program), name
        own = compose_product(program, H200)
        buffer_of = {b.origin: b.name for b in own.parameters if b.origin}
        over = alias_buffers(own, {buffer_of[program.graph.results[0]]: buffer_of["residual"]})
        kernels += [(name, program, own, buffer_of), (name, program, over, buffer_of)]
    library = build_together([(k, True) for _, _, k, _ in kernels], tmp_path, CHECKED_FLAGS)
    results: dict[str, np.ndarray] = {}
    for number, (name, program, kernel, buffer_of) in enumerate(kernels):
        draw = np.random.default_rng(seed)
        given = {i.name: draw.standard_normal(i.type.shape).astype(NUMPY_DTYPES[i.type.dtype.name]) for i in program.graph.inputs}
        if any(i.type.dtype == BF16 for i in program.graph.inputs):
            # bf16 is kept in 16 unsigned bits.
            given = {n: (draw.standard_normal(a.shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
                     for n, a in given.items()}
        memory, status, report = call(getattr(library, f"{kernel.name}_{number}"), kernel,
                                      {buffer_of[n]: a.ravel().copy() for n, a in given.items() if n in buffer_of})
        assert status == 0, f"{name}: {report}"
        found = memory[buffer_of[program.graph.results[0] if number % 2 == 0 else "residual"]]
        if number % 2:
            assert found.tobytes() == results[name].tobytes(), f"{name}, seed {seed}"
        results[name] = found


TEXT = """graph @g(%x: f16[128, 128], %w: f16[128, 128], %r: f16[128, 128], %n: i64[128]) -> (f16[128, 128]) {
  %p: f16[128, 128] = library.matmul (%x, %w) {transpose_a = false, transpose_b = true}
  %y: f16[128, 128] = map [i, j] { f16(add(f32(%p[i, j]), BESIDE)) }
  return %y
}"""


@pytest.mark.parametrize(("beside", "is_safe"), [
    ("f32(%r[i, j])", True),
    ("f32(%r[j, i])", False),  # another tile reads the element
    ("f32(%r[i, (-1*j + 127)])", False),
    ("f32(%r[0, j])", False),
    ("f32(lookup(%r, %n[i], index(j)))", False),
    ("add(f32(%r[i, j]), f32(lookup(%r, %n[i], index(j))))", False),
    ("add(f32(%r[i, j]), f32(%r[j, i]))", False),
])
def test_what_other_tiles_read_is_not_overwritten(beside: str, is_safe: bool) -> None:
    text = TEXT.replace("BESIDE", beside)
    graph = parse_graph(text.replace("= map", "= gather") if "lookup" in beside else text)
    program = schedule_product(graph, {}, H200, Pipelined(64, 64, 64, 3, 1, 1, 4))
    assert isinstance(program, TileProgram), program
    assert may_overwrite(program, "r") == is_safe


def test_operands_and_second_results_are_not_overwritten() -> None:
    """Tiles of an operand are read by every tile of its rows; a second result may be computed behind the stores of the first."""
    own = parse_graph(TEXT.replace("BESIDE", "f32(%x[i, j])"))
    two = parse_graph(TEXT.replace("BESIDE", "f32(%r[i, j])").replace("-> (f16[128, 128])", "-> (f16[128, 128], f16[128, 128])")
                      .replace("return %y", "return %y, %p"))
    for graph, target in ((own, "x"), (two, "r")):
        program = schedule_product(graph, {}, H200, Pipelined(64, 64, 64, 3, 1, 1, 4))
        assert isinstance(program, TileProgram), program
        assert not may_overwrite(program, target)


SUMMED = TEXT.replace("-> (f16[128, 128])", "-> (f16[128, 128], f32[8, 128])").replace(
    "return %y", "%s: f32[8, 128] = reduce.sum [g, c] over [t < 16] { SUMMED }\n  return %y, %s")


@pytest.mark.parametrize(("beside", "summed", "is_safe"), [
    ("f32(%r[i, j])", "f32(%y[16*g + t, c])", True),
    ("f32(%r[i, j])", "mul(f32(%y[16*g + t, c]), f32(%r[16*g + t, c]))", True),
    ("1.0:f32", "mul(f32(%y[16*g + t, c]), f32(%r[16*g + t, c]))", False),
])
def test_sums_of_columns_read_what_elements_have_loaded(beside: str, summed: str, is_safe: bool) -> None:
    """But not what the sums alone read: they do so behind the elements' stores."""
    program = schedule_product(parse_graph(SUMMED.replace("BESIDE", beside).replace("SUMMED", summed)), {}, H200, None)
    assert isinstance(program, TileProgram), program
    assert may_overwrite(program, "r") == is_safe
