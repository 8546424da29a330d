"""Updates by kernels of several stages: in place where every block reads only what it overwrites, and right when they are."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tilefuse.base.candidate import Rejected
from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.driver.lowering.in_place import alias_buffers
from tilefuse.driver.lowering.in_place_walks import Walks
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.ir.text import parse_graph
from tilefuse.plan.pattern import Cost, Pattern, PlannedKernel
from tilefuse.runtime.spec import CopyStep, KernelStep
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose
from tilefuse.templates.pattern import schedule_pattern
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.staged.stitched.record import Stitched
from tilefuse.templates.staged.stitched.template import schedule_stitched

# A gradient's product and the update of the weight, with two slots.
PRODUCT = """graph @product(%g: f32[20, 12], %x: f32[20, 17], %w: f32[12, 17], %m: f32[12, 17], %v: f32[12, 17]) -> () {
  %d: f32[12, 17] = library.matmul(%g, %x) {transpose_a=true, transpose_b=false, precision="ieee"}
  %m1: f32[12, 17] = map [i, j] { add(mul(%m[i, j], 2.0:f32), %d[i, j]) }
  %v1: f32[12, 17] = map [i, j] { add(%v[i, j], mul(%d[i, j], %d[i, j])) }
  %w1: f32[12, 17] = map [i, j] { sub(%w[i, j], mul(%m1[i, j], add(%v1[i, j], 1.0:f32))) }
  update %w = %w1
  update %m = %m1
  update %v = %v1
  return
}"""
# Its bias: a sum over rows that one lane finishes.
BIAS = """graph @bias(%g: f32[20, 5], %u: f32[5, 12], %b: f32[12], %m: f32[12]) -> (f32[20, 12]) {
  %d: f32[20, 12] = library.matmul(%g, %u) {transpose_a=false, transpose_b=false, precision="ieee"}
  %e: f32[20, 12] = map [i, j] { maximum(%d[i, j], 0.0:f32) }
  %s: f32[12] = reduce.sum [j] over [i < 20] { %e[i, j] }
  %m1: f32[12] = map [j] { add(mul(%m[j], 2.0:f32), %s[j]) }
  %b1: f32[12] = map [j] { sub(%b[j], %m1[j]) }
  update %b = %b1
  update %m = %m1
  return %e
}"""
# The old weight is an operand, of which each block reads the rows that it overwrites.
OWN_ROWS = """graph @own(%x: f32[9, 16], %w: f32[24, 16]) -> (f32[9, 24]) {
  %y: f32[9, 24] = library.matmul(%x, %w) {transpose_a=false, transpose_b=true, precision="ieee"}
  %z: f32[9, 24] = map [i, j] { maximum(%y[i, j], 0.0:f32) }
  %d: f32[24, 16] = library.matmul(%z, %x) {transpose_a=true, transpose_b=false, precision="ieee"}
  %w1: f32[24, 16] = map [i, j] { sub(%w[i, j], %d[i, j]) }
  update %w = %w1
  return %z
}"""
# The same with rows that all blocks read.
ALL_ROWS = """graph @all(%x: f32[16, 24], %g: f32[16, 8], %w: f32[24, 8]) -> (f32[24, 24]) {
  %d: f32[24, 8] = library.matmul(%x, %g) {transpose_a=true, transpose_b=false, precision="ieee"}
  %w1: f32[24, 8] = map [i, j] { sub(%w[i, j], %d[i, j]) }
  %q: f32[24, 24] = library.matmul(%w1, %w) {transpose_a=false, transpose_b=true, precision="ieee"}
  update %w = %w1
  return %q
}"""
# A loss and its gradient: sums of rows, of columns and of everything; the old bias is looked up before it is overwritten.
LOSS = """graph @loss(%x: f32[20, 7], %b: f32[7], %t: i64[20]) -> (f32[], f32[20, 7]) {
  %y: f32[20, 7] = map [i, j] { add(%x[i, j], %b[j]) }
  %m: f32[20] = reduce.max [i] over [j < 7] { %y[i, j] }
  %p: f32[20] = gather [i] { sub(add(lookup(%x, index(i), %t[i]), lookup(%b, %t[i])), %m[i]) }
  %s: f32[] = reduce.sum [] over [i < 20] { %p[i] }
  %g: f32[20, 7] = map [i, j] { sub(%y[i, j], add(%m[i], %s[])) }
  %c: f32[7] = reduce.sum [j] over [i < 20] { %g[i, j] }
  %b1: f32[7] = map [j] { sub(%b[j], %c[j]) }
  update %b = %b1
  return %s, %g
}"""
CASES: dict[str, tuple[str, Stitched | None]] = {
    "loss": (LOSS, None),
    "product": (PRODUCT, Stitched((4, 17), 64)),
    "product, odd tiles": (PRODUCT, Stitched((5, 8), 64)),
    "bias": (BIAS, Stitched((20, 4), 64)),
    "own rows": (OWN_ROWS, Stitched((8, 16), 64)),
}


def kernel_of(graph: Graph, choice: Stitched | None) -> PlannedKernel:
    """One kernel that holds the whole graph, and writes its results and updates. `choice`: None for the scheduler's own."""
    written = (*graph.results, *(v for _, v in graph.updates))
    pattern = Pattern(tuple(n.name for n in graph.nodes), written)
    if choice is None:
        program = schedule_pattern(pattern.graph(graph), pattern.nodes, {}, H200)
    else:
        program = schedule_stitched(pattern.graph(graph), {}, H200, choice)
    assert not isinstance(program, Rejected), program
    names = (*(i.name for i in graph.inputs), *written)
    return PlannedKernel("k0", pattern, program, tuple((v, v) for v in names), "text", Cost(0.0, "launch"), 0.0)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", list(CASES))
def test_a_stitched_update_in_place_is_right_and_free_of_races(name: str, tmp_path: Path, seed: int = 5) -> None:
    """Whole numbers, so that sums are exact; the checking mode finds elements that are read when others have overwritten them."""
    text, choice = CASES[name]
    graph = parse_graph(text)
    planned = kernel_of(graph, choice)
    for target, value in graph.updates:
        assert Walks(graph).may_overwrite(planned, value, target), value
    kernel = compose(planned.program, H200)
    buffer_of = {b.origin: b.name for b in kernel.parameters if b.origin}
    kernel = alias_buffers(kernel, {buffer_of[value]: buffer_of[target] for target, value in graph.updates})
    draw = np.random.default_rng(seed)
    given = {i.name: draw.integers(0, 3, i.type.shape).astype(NUMPY_DTYPES[i.type.dtype.name]) for i in graph.inputs}
    lies_in = {value: target for target, value in graph.updates}
    wanted = dict(zip(planned.pattern.written, interpret(planned.pattern.graph(graph), given), strict=True))
    library = build_together([(kernel, True)], tmp_path, CHECKED_FLAGS)
    memory, status, report = call(getattr(library, f"{kernel.name}_0"), kernel, {buffer_of[n]: a.ravel().copy() for n, a in given.items()})
    assert status == 0, report
    for value, expected in wanted.items():
        found = memory[buffer_of[lies_in.get(value, value)]].reshape(expected.shape)
        assert np.array_equal(found, expected), f"{name} %{value}, seed {seed}"


def test_small_reductions_of_every_shape_are_one_block() -> None:
    """Without a product too: three launches cost more than one block that waits between its stages."""
    made = generate(parse_graph(LOSS), constants={}, device=H200, options=Options())
    (kernel,) = made.plan.kernels
    assert kernel.program.template == "stitched" and kernel.program.launch.num_blocks == 1
    assert [type(s) for s in made.spec.steps] == [KernelStep]
    large = LOSS.replace("20, 7", "20000, 7").replace("[20]", "[20000]").replace("i < 20", "i < 20000")
    assert len(generate(parse_graph(large), constants={}, device=H200, options=Options()).plan.kernels) > 1


def test_rows_that_other_blocks_read_are_not_overwritten() -> None:
    graph = parse_graph(ALL_ROWS)
    assert not Walks(graph).may_overwrite(kernel_of(graph, Stitched((8, 24), 64)), "w1", "w")


# A state and a product of the new one, which every block of columns needs.
STATE = """graph @state(%h: f16[8, 512], %x: f16[8, 512], %w: f16[512, 512]) -> (f16[8, 512]) {
  %s: f16[8, 512] = map [i, j] { f16(tanh(add(f32(%h[i, j]), f32(%x[i, j])))) }
  %y: f16[8, 512] = library.matmul(%s, %w) {transpose_a=false, transpose_b=false, precision="ieee"}
  %z: f16[8, 512] = map [i, j] { f16(maximum(f32(%y[i, j]), 0.0:f32)) }
  update %h = %s
  return %z
}"""


def test_what_several_blocks_compute_is_not_written_over_what_they_read() -> None:
    """Blocks of whole rows may; and the planner makes two kernels of it rather than one and a copy."""
    graph = parse_graph(STATE)
    assert Walks(graph).may_overwrite(kernel_of(graph, Stitched((4, 512), 64)), "s", "h")
    assert not Walks(graph).may_overwrite(kernel_of(graph, Stitched((4, 64), 64)), "s", "h")
    made = generate(graph, constants={}, device=H200, options=Options())
    assert [type(s) for s in made.spec.steps] == [KernelStep, KernelStep]
    apart = parse_graph(STATE.replace("  update %h = %s\n", "").replace("-> (f16[8, 512])", "-> (f16[8, 512], f16[8, 512])")
                        .replace("return %z", "return %s, %z"))
    (kernel,) = generate(apart, constants={}, device=H200, options=Options()).plan.kernels
    assert kernel_template(kernel.program.choice).computed_by_several(kernel.program) == {"s"}


def test_an_element_that_is_read_elsewhere_is_not_overwritten() -> None:
    graph = parse_graph(PRODUCT.replace("%w[i, j]", "%w[i, -1*j + 16]"))
    planned = kernel_of(graph, Stitched((4, 17), 64))
    assert not Walks(graph).may_overwrite(planned, "w1", "w") and Walks(graph).may_overwrite(planned, "v1", "v")


COLUMNS = """graph @columns(%g: f32[300, 40], %b: f32[40]) -> () {
  %s: f32[40] = reduce.sum [j] over [i < 300] { %g[i, j] }
  %b1: f32[40] = map [j] { sub(%b[j], %s[j]) }
  update %b = %b1
  return
}"""


def test_sums_down_columns_update_in_place() -> None:
    """Rows too: one thread of a row stores what it has computed alone."""
    for text in (COLUMNS, COLUMNS.replace("f32[300, 40]", "f32[40, 300]").replace("%g[i, j]", "%g[j, i]")):
        graph = parse_graph(text)
        program = schedule_pattern(graph, ["s", "b1"], {}, H200)
        assert not isinstance(program, Rejected) and program.template in ("columns", "rows")
        spec = generate(graph, constants={}, device=H200, options=Options()).spec
        assert not any(isinstance(s, CopyStep) for s in spec.steps)


def test_what_is_read_later_is_updated_last() -> None:
    """The kernel of the update stands behind the product that reads the old weight, which does not depend on it."""
    text = """graph @later(%x: f32[4096, 1024], %g: f32[4096, 1024], %w: f32[1024, 1024]) -> (f32[4096, 1024]) {
      %d: f32[1024, 1024] = library.matmul(%g, %x) {transpose_a=true, transpose_b=false, precision="ieee"}
      %w1: f32[1024, 1024] = map [i, j] { sub(%w[i, j], %d[i, j]) }
      %h: f32[4096, 1024] = library.matmul(%g, %w) {transpose_a=false, transpose_b=false, precision="ieee"}
      update %w = %w1
      return %h
    }"""
    made = generate(parse_graph(text), constants={}, device=H200, options=Options())
    assert not any(isinstance(s, CopyStep) for s in made.spec.steps)
    assert [type(s).__name__ for s in made.plan.steps] == ["LibraryCall", "LibraryCall", "PlannedKernel"]
