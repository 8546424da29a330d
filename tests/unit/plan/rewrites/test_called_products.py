"""Sums of products as library products: where it pays, where the definition forbids it, and which views and copies it takes."""
from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.passes.device.rewriting import rewritten
from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.driver.pipeline import context_of
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.text import parse_graph
from tilefuse.ir.verify import verify
from tilefuse.passes.facts import CHOICES
from tilefuse.passes.manager import PassContext
from tilefuse.plan.price.predictions import Predictions
from tilefuse.plan.rewrites.called_products import CallProducts, product_choices
from tilefuse.target.catalog import A100, host_device
from tilefuse.target.device import H200, DeviceSpec


def summed(dtype: str, rows: int, columns: int, inner: int) -> Graph:
    """A broadcast product summed over its middle axis, as torch writes it; products of 16 bits are rounded before they are added."""
    narrow = dtype != "f32"
    product = f"{dtype}(mul(f32(%a[i, k]), f32(%b[k, j])))" if narrow else "mul(%a[i, k], %b[k, j])"
    element = "f32(%m[i, k, j])" if narrow else "%m[i, k, j]"
    return parse_graph(f"""graph @g(%a: {dtype}[{rows}, {inner}], %b: {dtype}[{inner}, {columns}]) -> ({dtype}[{rows}, {columns}]) {{
      %m: {dtype}[{rows}, {inner}, {columns}] = map [i, k, j] {{ {product} }}
      %s: f32[{rows}, {columns}] = reduce.sum [i, j] over [k < {inner}] {{ {element} }}
      %y: {dtype}[{rows}, {columns}] = map [i, j] {{ {f"{dtype}(%s[i, j])" if narrow else "neg(%s[i, j])"} }}
      return %y
    }}""")


def call_of(graph: Graph) -> Node:
    """The only library product of a graph."""
    (call,) = (n for n in graph.nodes if n.kind == "library.matmul")
    return call


@pytest.mark.parametrize("device", [H200, A100, host_device()], ids=lambda d: d.name)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_large_sum_becomes_a_call(device: DeviceSpec, dtype: str) -> None:
    called = rewritten(CallProducts(), summed(dtype, 2048, 2048, 2048), device)
    assert not verify(called) and not any(n.kind == "reduce.sum" for n in called.nodes)
    assert "m" not in called.node_by_name, "the product of all elements is never stored"


@pytest.mark.parametrize("device", [H200, host_device()], ids=lambda d: d.name)
def test_a_small_sum_stays_a_kernel(device: DeviceSpec) -> None:
    graph = summed("f32", 16, 16, 16)
    assert rewritten(CallProducts(), graph, device) is graph


def test_16_bit_operands_are_multiplied_as_they_lie_on_the_matrix_unit_and_widened_on_a_host() -> None:
    """A host without instructions for 16 bits computes their products one by one."""
    graph = summed("bf16", 1024, 1024, 1024)
    on_device, on_host = (rewritten(CallProducts(), graph, d) for d in (H200, host_device()))
    assert call_of(on_device).operands == ("a", "b") and call_of(on_device).name == "y"
    assert call_of(on_host).type.dtype.name == "f32"


def test_rounded_products_stay_a_sum_where_every_rounding_is_kept() -> None:
    graph = summed("bf16", 2048, 2048, 2048)
    (choice,) = product_choices(graph, Predictions(H200), eager_rounding=True)
    assert choice.call is None and "rounds products to bf16" in choice.text()


def test_rounded_products_that_another_node_reads_stay_a_sum() -> None:
    graph = replace(summed("bf16", 512, 512, 2048), results=("y", "m"))
    (choice,) = product_choices(graph, Predictions(H200))
    assert choice.call is None and "rounds products to bf16" in choice.text()


def test_without_a_device_nothing_changes() -> None:
    graph = summed("f32", 2048, 2048, 2048)
    assert CallProducts().run(graph, PassContext()) is graph


@pytest.mark.parametrize(("left", "right", "turned"), [
    ("%a[i, k]", "%b[k, j]", (False, False)), ("%a[k, i]", "%b[k, j]", (True, False)),
    ("%a[i, k]", "%b[j, k]", (False, True)), ("%a[k, i]", "%b[j, k]", (True, True)),
])
def test_operands_are_read_as_they_lie(left: str, right: str, turned: tuple[bool, bool]) -> None:
    graph = parse_graph(f"""graph @g(%a: f32[2048, 2048], %b: f32[2048, 2048]) -> (f32[2048, 2048]) {{
      %y: f32[2048, 2048] = reduce.sum [i, j] over [k < 2048] {{ mul({left}, {right}) }}
      return %y
    }}""")
    (call,) = rewritten(CallProducts(), graph, H200).nodes
    assert call.operands == ("a", "b") and (call.attribute("transpose_a"), call.attribute("transpose_b")) == turned


def test_several_inner_axes_are_flattened_in_the_order_that_copies_nothing() -> None:
    graph = parse_graph("""graph @g(%a: f32[2048, 64, 32], %b: f32[64, 32, 2048]) -> (f32[2048, 2048]) {
      %y: f32[2048, 2048] = reduce.sum [i, j] over [l < 32, k < 64] { mul(%a[i, k, l], %b[k, l, j]) }
      return %y
    }""")
    (choice,) = product_choices(graph, Predictions(H200))
    assert choice.call is not None and not choice.call.num_copies
    called = rewritten(CallProducts(), graph, H200)
    assert [called.type_of(v).shape for v in call_of(called).operands] == [(2048, 2048), (2048, 2048)]


def test_readers_of_a_permuted_result_read_the_product() -> None:
    graph = parse_graph("""graph @g(%a: f32[16, 1024, 512], %b: f32[16, 512, 1024]) -> (f32[1024, 16, 1024]) {
      %s: f32[1024, 16, 1024] = reduce.sum [i, n, j] over [k < 512] { mul(%a[n, i, k], %b[n, k, j]) }
      %y: f32[1024, 16, 1024] = map [i, n, j] { neg(%s[i, n, j]) }
      return %y
    }""")
    called = rewritten(CallProducts(), graph, H200)
    assert called.node_by_name["y"].reads() == (call_of(called).name,) and "s" not in called.node_by_name
    assert call_of(called).type.shape == (16, 1024, 1024)


def test_a_product_with_another_user_is_still_a_product() -> None:
    """The elements are stored for the other user; the sum does not read them again."""
    graph = summed("f32", 512, 512, 2048)
    graph = replace(graph, results=("y", "m"))
    called = rewritten(CallProducts(), graph, H200)
    assert "m" in called.node_by_name and call_of(called).operands == ("a", "b")


def test_conditions_on_products_are_refused_with_words() -> None:
    """Outside a condition a product is zero, even where a factor is infinite."""
    graph = parse_graph("""graph @g(%a: f32[2048, 2048], %b: f32[2048, 2048]) -> (f32[2048, 2048]) {
      %y: f32[2048, 2048] = reduce.sum [i, j] over [k < 2048] { guard(0 <= i + -1*k < 5000 ? mul(%a[i, k], %b[k, j]) : 0.0:f32) }
      return %y
    }""")
    (choice,) = product_choices(graph, Predictions(H200))
    assert choice.call is None and "only where conditions hold" in choice.text()


def test_attention_written_as_sums_has_no_calls() -> None:
    """Its products are planned with the softmax between them, as those of a call of attention are; the last one may be a kernel of its own,
    as high and low parts of f32."""
    graph = parse_graph("""graph @g(%q: f16[16, 512, 64], %k: f16[16, 512, 64], %v: f16[16, 512, 64]) -> (f16[16, 512, 64]) {
      %t: f32[16, 512, 512] = reduce.sum [n, i, j] over [d < 64] { mul(f32(%q[n, i, d]), f32(%k[n, j, d])) }
      %s: f16[16, 512, 512] = map [n, i, j] { f16(%t[n, i, j]) }
      %p: f16[16, 512, 512] = library.softmax (%s) {axis = 2}
      %u: f32[16, 512, 64] = reduce.sum [n, i, d] over [j < 512] { mul(f32(%p[n, i, j]), f32(%v[n, j, d])) }
      %y: f16[16, 512, 64] = map [n, i, d] { f16(%u[n, i, d]) }
      return %y
    }""")
    plan = generate(graph, constants={}, device=H200, options=Options()).plan
    assert len(plan.kernels) <= 2 and not plan.library_calls and len(plan.notes) == 2


def test_choices_are_noted_with_sizes_and_prices() -> None:
    context = context_of(H200, Options(verify=2))
    CallProducts().run(summed("f32", 2048, 1024, 512), context)
    (line,) = context.attributes[CHOICES]
    assert "product of 2048 rows, 1024 columns, 512 inner, planned as a library product" in line and "as a kernel" in line
