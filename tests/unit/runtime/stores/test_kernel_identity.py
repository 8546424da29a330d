"""Kernels that differ in names alone are compiled once; whatever else differs makes another kernel."""
from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tilefuse.base.options import Options
from tilefuse.driver.compile import compile_graph, generate_sources
from tilefuse.ir.text import parse_graph
from tilefuse.runtime.compilers.binaries import kernel_key
from tilefuse.runtime.spec import KernelCode
from tilefuse.runtime.stores.cache import KernelCache
from tilefuse.runtime.stores.kernel_identity import kernel_identity

GRAPH = """graph @g(%x: f32[16, 300], %b: f32[300]) -> (f32[16, 300]) {
  %a: f32[16, 300] = map [i, j] { exp(add(%x[i, j], %b[j])) }
  %s: f32[16] = reduce.sum [i] over [k < 300] { %a[i, k] }
  %y: f32[16, 300] = map [i, j] { div(%a[i, j], %s[i]) }
  return %y
}"""
NAMES = {"x": "input_3", "b": "step", "a": "scores_17", "s": "total", "y": "out.1"}


def renamed(text: str, names: dict[str, str]) -> str:
    for old, new in names.items():
        text = re.sub(rf"%{old}\b", f"%{new}", text)
    return text


def kernels(text: str, device: str) -> tuple[KernelCode, ...]:
    return generate_sources(parse_graph(text), device=device).spec.kernels


@pytest.mark.parametrize("device", ["h200", "a100", "host"])
def test_names_do_not_count(device: str) -> None:
    one, other = kernels(GRAPH, device), kernels(renamed(GRAPH, NAMES), device)
    assert [k.source for k in one] != [k.source for k in other]
    assert [kernel_key(k).digest for k in one] == [kernel_key(k).digest for k in other]


@pytest.mark.parametrize("old, new", [
    ("exp(add", "exp2(add"), ("add(%x[i, j], %b[j])", "sub(%x[i, j], %b[j])"), ("div(%a[i, j], %s[i])", "div(%s[i], %a[i, j])"),
    ("300", "301"), ("reduce.sum", "reduce.max"),
])
def test_everything_else_does(old: str, new: str) -> None:
    for device in ("h200", "host"):
        one, other = kernels(GRAPH, device), kernels(GRAPH.replace(old, new), device)
        assert {kernel_key(k).digest for k in one}.isdisjoint(kernel_key(k).digest for k in other)


@pytest.mark.parametrize("device", ["h200", "host"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_functions_are_no_values(device: str, dtype: str) -> None:
    """A node is often called like the function it applies, which counts for all that."""
    graph = f"""graph @g(%x: {dtype}[16], %b: {dtype}[16]) -> ({dtype}[16]) {{
      %FN: {dtype}[16] = map [i] {{ FN(%x[i], %b[i]) }}
      return %FN
    }}"""
    names = ("atan2", "copysign", "nextafter", "hypot", "fmod")
    keys = {kernel_key(k).digest for name in names for k in kernels(graph.replace("FN", name), device)}
    assert len(keys) == len(names)


def code(source: str, *names: str) -> KernelCode:
    made, = kernels(GRAPH, "host")
    return replace(made, source=source, entry="k_one", names=names)


def test_only_own_names_are_replaced_and_each_by_its_own_number() -> None:
    text = 'float helper(float x);\nextern "C" int k_one(float* x, float* y) { // x\n  y[0] = helper(x[0]) + threadIdx.x; }'
    assert kernel_identity(code(text, "x", "y")) == (
        'float helper(float x);\nextern "C" int @0(float* @1, float* @2) { \n  @2[0] = helper(@1[0]) + threadIdx.x; }')
    assert kernel_identity(code(text, "x", "y")) != kernel_identity(code(text.replace("y[0] = helper(x", "x[0] = helper(y"), "x", "y"))
    assert kernel_identity(code(text)) == text


def test_a_name_that_an_error_tells_counts() -> None:
    one = code('extern "C" int k_one() { y = tf_in_range(x, "0 <= x < 4"); }', "x", "y")
    other = code('extern "C" int k_one() { b = tf_in_range(a, "0 <= a < 4"); }', "a", "b")
    assert kernel_identity(one) != kernel_identity(other)
    assert kernel_identity(one) == 'extern "C" int @0() { @1 = tf_in_range(@2, "0 <= x < 4"); }'


def test_a_swap_of_operands_is_no_renaming() -> None:
    one = code('extern "C" int k_one() { a = b - c; d = c; }', "a", "b", "c", "d")
    other = code('extern "C" int k_one() { a = c - b; d = c; }', "a", "b", "c", "d")
    assert kernel_identity(one) != kernel_identity(other)


def test_a_subgraph_of_another_model_is_not_compiled_again(tmp_path: Path) -> None:
    options = Options(cache_dir=str(tmp_path), plan_cache=False)
    first = compile_graph(parse_graph(GRAPH), constants={}, device="host", options=options)
    held = len(KernelCache(tmp_path).entries())
    second = compile_graph(parse_graph(renamed(GRAPH, NAMES)), constants={}, device="host", options=options)
    assert len(KernelCache(tmp_path).entries()) == held and second.kernels[0].name != first.kernels[0].name
    draw = np.random.default_rng(0)
    given = [torch.from_numpy(draw.standard_normal(s).astype(np.float32)) for s in ((16, 300), (300,))]
    assert torch.equal(first(*given)[0], second(*given)[0])
    second.save(str(tmp_path / "p.tilefuse"))
    from tilefuse.runtime.load import load_program

    assert torch.equal(load_program(tmp_path / "p.tilefuse")(*given)[0], first(*given)[0])
