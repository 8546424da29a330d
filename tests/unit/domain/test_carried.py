"""Sums carried down the columns of a row kernel: recognised and right whether or not the groups fit the extents of the rows."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.host_build import compiler, run
from tests.unit.templates.pattern_graphs import wide
from tilefuse.base.options import Options
from tilefuse.domain.carried import carried_groups, num_groups, row_threads, written_rows
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph
from tilefuse.passes import DEFAULT_PIPELINE
from tilefuse.passes.manager import PassContext, Pipeline
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.rewrites.cross import split_cross_reductions
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose
from tilefuse.templates.rows.modes import Rows

CARRIED = H200.fitted.rows.carried


def centred(batch: int, length: int) -> str:
    """Rows less their mean, and the sum of their squares down the columns."""
    shape = f"f32[{batch}, {length}, 768]"
    return f"""graph @centred(%x: {shape}) -> ({shape}, f32[768]) {{
  %s: f32[{batch}, {length}] = reduce.sum [b, l] over [k < 768] {{ %x[b, l, k] }}
  %y: {shape} = map [b, l, j] {{ sub(%x[b, l, j], mul(%s[b, l], 0.0013020833721384406:f32)) }}
  %c: f32[768] = reduce.sum [j] over [b < {batch}, l < {length}] {{ mul(%y[b, l, j], %x[b, l, j]) }}
  return %y, %c
}}"""


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize(("batch", "length"), [(64, 128), (67, 127)])
def test_a_column_sum_is_carried_by_the_row_kernel(batch: int, length: int, tmp_path: Path) -> None:
    graph = split_cross_reductions(parse_graph(centred(batch, length)), H200)
    assert any(carried_groups(n) for n in graph.nodes if n.category == "reduce")
    plan = plan_graph(graph, {}, H200, Options())
    first = plan.kernels[0]
    assert {"s", "y", "c_partial"} <= set(first.pattern.nodes)
    x = np.random.default_rng(1).standard_normal((batch, length, 768)).astype(np.float32)
    kernel = compose(first.program, H200)
    made, status, report = run(kernel, {b.name: x for b in kernel.parameters if b.origin == "x"}, tmp_path)
    assert status == 0, report
    y, c = interpret(graph, {"x": x})
    by_origin = {b.origin: made[b.name] for b in kernel.parameters}
    np.testing.assert_allclose(by_origin["y"].reshape(x.shape), y, atol=1e-5)
    partial = by_origin["c_partial"].reshape(graph.type_of("c_partial").shape)
    np.testing.assert_allclose(partial.sum(0), c, rtol=1e-4)


def norm_gradients(batch: int, length: int, dtype: str) -> str:
    """Gradients of a norm over sequences, and two sums down the columns: of the operands' product, and of the gradients seen as a matrix,
    as the bias of the linear layer before has it."""
    x, g, shape, rows = wide("%x[b, l, k]", dtype), wide("%g[b, l, k]", dtype), f"[{batch}, {length}, 768]", batch * length
    return f"""graph @gradients(%x: {dtype}{shape}, %g: {dtype}{shape}) -> ({dtype}{shape}, f32[768], f32[768]) {{
  %s: f32[{batch}, {length}] = reduce.sum [b, l] over [k < 768] {{ mul({x}, {g}) }}
  %y: {dtype}{shape} = map [b, l, k] {{ {dtype}(sub({g}, mul({x}, mul(%s[b, l], 0.001:f32)))) }}
  %v: {dtype}[{rows}, 768] = map [i, k] {{ %y[(i // {length}), (i % {length}), k] }}
  %c: f32[768] = reduce.sum [k] over [b < {batch}, l < {length}] {{ mul({x}, {g}) }}
  %d: f32[768] = reduce.sum [k] over [i < {rows}] {{ f32(%v[i, k]) }}
  return %y, %c, %d
}}"""


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize(("batch", "length", "dtype"), [(64, 128, "f16"), (67, 127, "f16")])
def test_sums_through_views_are_carried_beside_others(batch: int, length: int, dtype: str, tmp_path: Path) -> None:
    """All partial sums of one row kernel have the same groups, which fit the extents of no value's rows."""
    graph = Pipeline.parse(DEFAULT_PIPELINE).run(parse_graph(norm_gradients(batch, length, dtype)), PassContext())
    graph = split_cross_reductions(graph, H200)
    first = plan_graph(graph, {}, H200, Options()).kernels[0]
    assert {"s", "y", "c_partial", "d_partial"} <= set(first.pattern.nodes)
    random = np.random.default_rng(1)
    inputs = {n: random.standard_normal((batch, length, 768)).astype(np.float16) for n in ("x", "g")}
    kernel = compose(first.program, H200)
    made, status, report = run(kernel, {b.name: inputs[b.origin] for b in kernel.parameters if b.origin in inputs}, tmp_path)
    assert status == 0, report
    by_origin = {b.origin: made[b.name].astype(np.float64) for b in kernel.parameters}
    x, g = (inputs[n].astype(np.float64) for n in ("x", "g"))
    y = g - x * ((x * g).sum(-1, keepdims=True) * 0.001)
    np.testing.assert_allclose(by_origin["y"].reshape(y.shape), y, rtol=2e-3, atol=2e-3)
    for name, wanted in (("c_partial", (x * g).sum((0, 1))), ("d_partial", by_origin["y"].reshape(y.shape).sum((0, 1)))):
        partial = by_origin[name].reshape(graph.type_of(name).shape)
        np.testing.assert_allclose(partial.sum(0), wanted, rtol=1e-3, atol=0.05)


@pytest.mark.parametrize("length", [1, 2, 16, 33, 64, 119, 127, 128, 131, 132, 264, 1024])
@pytest.mark.parametrize("batch", [1, 7, 64, 128, 132, 1000])
def test_groups_are_recognised_whatever_extents_the_rows_have(batch: int, length: int) -> None:
    """The subscripts of a partial sum tell its groups in every form that quotients and remainders take; others are never taken for one."""
    split = split_cross_reductions(parse_graph(centred(batch, length)), H200)
    for node in split.nodes:
        if node.category == "reduce":
            assert carried_groups(node) == (node.type.shape[0] if node.name == "c_partial" else 0), node


@pytest.mark.parametrize("length", [64, 1000, 8192, 16384, 65536])
def test_rows_of_f64_are_shared_as_rows_of_twice_as_many_f32(length: int) -> None:
    """An f64 sum and an f64 element take two registers each: counted as one, long rows spilled."""
    assert row_threads(CARRIED, length, 8) == row_threads(CARRIED, 2 * length, 4)
    assert row_threads(CARRIED, length, 2) == row_threads(CARRIED, length, 4)


def transposed_products(size: int, dtype: str, operands: int) -> str:
    """y = A'(A x), where A is the product, element by element, of as many matrices."""
    names = [f"a{n}" for n in range(operands)]
    matrix, vector = f"{dtype}[{size}, {size}]", f"{dtype}[{size}]"

    def element(row: str, column: str) -> str:
        read = [f"%{n}[{row}, {column}]" for n in names]
        return read[0] if len(read) == 1 else f"mul({', '.join(read)})"

    return f"""graph @atax({', '.join(f'%{n}: {matrix}' for n in names)}, %x: {vector}) -> ({vector}) {{
  %t: {vector} = reduce.sum [i] over [k < {size}] {{ mul({element('i', 'k')}, %x[k]) }}
  %y: {vector} = reduce.sum [j] over [i < {size}] {{ mul({element('i', 'j')}, %t[i]) }}
  return %y
}}"""


@pytest.mark.parametrize(("size", "dtype", "operands", "queued"), [
    (2048, "f32", 1, True), (4096, "f32", 1, True), (8192, "f32", 1, True), (2048, "f64", 1, True), (4096, "f64", 1, True),
    (16384, "f32", 1, False), (4096, "f32", 2, False), (2048, "f64", 2, False)])
def test_rows_wait_in_a_queue_where_a_group_loads_little_at_once(size: int, dtype: str, operands: int, queued: bool) -> None:
    """Without a queue A'(A x) of 8192 x 8192 took 90 us and not 67: while sums went round a block, nothing was on its way."""
    graph = split_cross_reductions(parse_graph(transposed_products(size, dtype, operands)), H200)
    choice = plan_graph(graph, {}, H200, Options()).kernels[0].program.choice
    assert isinstance(choice, Rows) and choice.groups
    assert (choice.slots >= 2) == queued


def weighted(rows: int, length: int, dtype: str, *, elements: bool) -> str:
    """Rows times their own sum, if wanted, and their sum down the columns weighted by it: one sum that a row kernel carries."""
    x, matrix = wide("%x[i, j]", dtype), f"[{rows}, {length}]"
    y = f"  %y: f32{matrix} = map [i, j] {{ mul({x}, %s[i]) }}\n" if elements else ""
    return f"""graph @weighted(%x: {dtype}{matrix}) -> ({f'f32{matrix}, ' if elements else ''}f32[{length}]) {{
  %s: f32[{rows}] = reduce.sum [i] over [j < {length}] {{ {x} }}
{y}  %c: f32[{length}] = reduce.sum [j] over [i < {rows}] {{ mul({x}, %s[i]) }}
  return {'%y, ' if elements else ''}%c
}}"""


def centred_gradients(rows: int, length: int, dtype: str) -> str:
    """Gradients of rows less their weighted mean: elements of two operands, and a sum of their product down the columns."""
    x, g, matrix = wide("%x[i, j]", dtype), wide("%g[i, j]", dtype), f"{dtype}[{rows}, {length}]"
    return f"""graph @gradients(%x: {matrix}, %g: {matrix}) -> (f32[{rows}, {length}], f32[{length}], f32[{length}]) {{
  %s: f32[{rows}] = reduce.sum [i] over [j < {length}] {{ mul({x}, {g}) }}
  %y: f32[{rows}, {length}] = map [i, j] {{ sub({g}, mul({x}, %s[i])) }}
  %c: f32[{length}] = reduce.sum [j] over [i < {rows}] {{ mul({x}, {g}) }}
  %d: f32[{length}] = reduce.sum [j] over [i < {rows}] {{ {g} }}
  return %y, %c, %d
}}"""


@pytest.mark.parametrize(("dtype", "length", "elements", "fewer"), [
    ("f16", 4096, True, True), ("bf16", 8192, True, True), ("f16", 4096, False, False), ("f32", 4096, True, False),
    ("f16", 1024, True, False)])
def test_blocks_that_do_little_beside_loading_leave_multiprocessors_idle(dtype: str, length: int, elements: bool, fewer: bool) -> None:
    """One sum over long 16-bit rows whose elements are written: all multiprocessors ask for more than memory gives in order."""
    split = split_cross_reductions(parse_graph(weighted((1 << 26) // length, length, dtype, elements=elements)), H200)
    (groups,) = (carried_groups(n) for n in split.nodes if n.category == "reduce" and carried_groups(n))
    assert (groups <= 0.85 * H200.num_multiprocessors) is fewer


@pytest.mark.parametrize(("length", "dtype", "shape"), [
    (256, "f32", (32, 16, 1, 2)), (1024, "f32", (128, 4, 1, 2)), (8192, "f32", (512, 1, 2, 2)), (65536, "f32", (512, 1, 16, 2)),
    (768, "f32", (64, 8, 1, 3)), (8200, "f32", (288, 1, 1, 8)), (8192, "f16", (512, 1, 1, 2)), (32768, "f16", (256, 1, 8, 2)),
    (65536, "f16", (256, 1, 16, 2)), (65600, "f16", (288, 1, 8, 4))])
def test_threads_hold_few_elements_of_wide_rows(length: int, dtype: str, shape: tuple[int, int, int, int]) -> None:
    """Gradients of layer norm over 32768 f32 took 74.4 us by 16 elements a thread and take 70.7 by 8 in clusters twice as long; f16 took
    75.1 by blocks of 512 threads and take 73.5 by twice as many of 256."""
    split = split_cross_reductions(parse_graph(centred_gradients((1 << 25) // length, length, dtype)), H200)
    first = plan_graph(split, {}, H200, Options()).kernels[0]
    choice = first.program.choice
    assert {"y", "c_partial", "d_partial"} <= set(first.pattern.nodes)
    assert isinstance(choice, Rows) and choice.groups
    assert (choice.threads, choice.rows, choice.cluster, choice.chunks) == shape


@pytest.mark.parametrize(("length", "shape"), [(4096, (256, 2, 1)), (8192, (512, 1, 2)), (32768, (512, 1, 8)), (65536, (512, 1, 16))])
def test_rows_with_one_sum_take_few_elements_a_thread_in_clusters_only(length: int, shape: tuple[int, int, int]) -> None:
    """Gradients of RMS norm took 70.9 us by 16 elements a thread and 72.9 by 8 over 4096 f32, which one block holds; 72.7 and 71.4 over
    8192."""
    assert row_threads(CARRIED, length, 4, written_rows([4, 4], several=False)) == shape
    assert row_threads(CARRIED, length, 4, written_rows([4, 2], several=False)) == row_threads(CARRIED, length)


@pytest.mark.parametrize(("length", "dtype", "groups"), [
    (32768, "f32", 14), (65536, "f32", 7), (262144, "f32", 6), (8192, "f32", 66), (32768, "f16", 30)])
def test_long_clusters_of_f32_leave_multiprocessors_idle(length: int, dtype: str, groups: int) -> None:
    """Gradients of layer norm over 262144 f32 took 83.8 us by all seven clusters that fit, and take 79.2 by six."""
    size = 4 if dtype == "f32" else 2
    rows_written = written_rows([size, size], several=True)
    assert num_groups(groups * 1000, length, H200, written=rows_written) == groups
