"""Windows whose taps are vectors: what is computed for several results side by side is what one at a time would give."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from tilefuse.base.options import Options
from tilefuse.driver.compile import compile_graph, generate
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.layouts import channels_last_strides
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200

# The gradient of pooling 3 x 3 with stride 2 and padding 1 as a sum over the windows that cover a position, 7 x 9 from 4 x 5.
BACK = """graph @back(%place: i8[2, C, 4, 5], %g: f32[2, C, 4, 5]) -> (f32[2, C, 7, 9]) {
  %d: f32[2, C, 7, 9] = reduce.sum [i, j, k, l] over [r < 2, s < 2] { guard(0 <= -1*r + ((k + 1) // 2) < 4, 0 <= -1*s + ((l + 1) // 2) < 5, 0 <= 2*r + ((k + 1) % 2) < 3, 0 <= 2*s + ((l + 1) % 2) < 3 ? select(eq(i32(%place[i, j, -1*r + ((k + 1) // 2), -1*s + ((l + 1) // 2)]), i32(index(6*r + 2*s + 3*((k + 1) % 2) + ((l + 1) % 2)))), %g[i, j, -1*r + ((k + 1) // 2), -1*s + ((l + 1) // 2)], 0.0:f32) : 0.0:f32) }
  return %d
}"""  # noqa: E501

# Forward, of something computed at each tap, with its maximum and where that stands.
THERE = """graph @there(%x: f32[2, C, 7, 9], %b: f32[C]) -> (f32[2, C, 4, 5], i64[2, C, 4, 5]) {
  %y: f32[2, C, 7, 9] = map [i, j, k, l] { mul(%x[i, j, k, l], %b[j]) }
  %m: f32[2, C, 4, 5] = reduce.max [i, j, k, l] over [r < 3, s < 3] { guard(0 <= 2*k + r + -1 < 7, 0 <= 2*l + s + -1 < 9 ? %y[i, j, 2*k + r + -1, 2*l + s + -1] : -inf:f32) }
  %a: i64[2, C, 4, 5] = reduce.argmax [i, j, k, l] over [r < 3, s < 3] { guard(0 <= 2*k + r + -1 < 7, 0 <= 2*l + s + -1 < 9 ? %y[i, j, 2*k + r + -1, 2*l + s + -1] : -inf:f32) }
  return %m, %a
}"""  # noqa: E501

# The same of what a normalisation and a rectifier give at each tap: the factor is a value of the channel alone.
SCALED = THERE.replace("{ mul(%x[i, j, k, l], %b[j]) }", "{ maximum(add(mul(%x[i, j, k, l], %k[j]), %b[j]), 0.0:f32) }").replace(
    "{\n  %y", "{\n  %k: f32[C] = map [i] { mul(%b[i], %b[i]) }\n  %y").replace("@there", "@scaled")


def layouts(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Channels last for everything that has channels and places."""
    values = {**{i.name: i.type for i in graph.inputs}, **{n.name: n.type for n in graph.nodes}}
    return {v: channels_last_strides(t.shape) for v, t in values.items() if len(t.shape) == 4}


def given(graph: Graph) -> list[np.ndarray]:
    """Inputs: positions within a window, and numbers among which ties are common."""
    draws = np.random.default_rng(3)
    return [draws.integers(0, 9, i.type.shape).astype(np.int8) if i.type.dtype.name == "i8" else
            draws.integers(-3, 4, i.type.shape).astype(np.float32) for i in graph.inputs]


@pytest.mark.parametrize("text", [BACK, THERE, SCALED], ids=["back", "there", "scaled"])
@pytest.mark.parametrize("channels", [8, 6, 5])
@pytest.mark.parametrize("check", [False, True])
def test_results_side_by_side_are_those_of_the_interpreter(text: str, channels: int, check: bool) -> None:
    """Integers in f32: bit by bit. Channels that are no multiple of a vector get narrower ones."""
    graph = parse_graph(text.replace("C", str(channels)))
    strides = layouts(graph)
    inputs = given(graph)
    wanted = interpret(graph, dict(zip((i.name for i in graph.inputs), inputs, strict=True)))
    program = compile_graph(graph, constants={}, device="host", options=Options(check=check),
                            input_layouts={i.name: strides[i.name] for i in graph.inputs if i.name in strides},
                            result_layouts={r: strides[r] for r in graph.results})
    laid_out = []
    for data in inputs:
        tensor = torch.from_numpy(data)
        laid_out.append(tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor)
    for found, expected in zip(program(*laid_out), wanted, strict=True):
        assert np.array_equal(found.numpy(), np.asarray(expected))


@pytest.mark.parametrize(("text", "width"), [(BACK, 4), (THERE, 4)], ids=["back", "there"])
def test_taps_are_read_as_vectors_on_the_device(text: str, width: int) -> None:
    graph = parse_graph(text.replace("C", "8"))
    strides = layouts(graph)
    made = generate(graph, constants={}, device=H200, options=Options(), input_layouts={i.name: strides[i.name] for i in graph.inputs
                                                                                        if i.name in strides},
                    result_layouts={r: strides[r] for r in graph.results})
    assert f"tf_vector_load<{width}>" in made.spec.kernels[0].source


def test_what_all_taps_share_is_loaded_and_computed_once() -> None:
    graph = parse_graph(SCALED.replace("C", "8"))
    strides = layouts(graph)
    source = generate(graph, constants={}, device=H200, options=Options(), input_layouts={"x": strides["x"]},
                      result_layouts={r: strides[r] for r in graph.results}).spec.kernels[0].source
    assert source.count("tf_vector_load<4>(b_v, b") == 1 and source.count("(b_v[v] * b_v[v])") == 1


def test_rows_of_images_are_no_vectors_of_taps() -> None:
    """Row-major, neighbouring windows lie two apart: one result a thread, as before."""
    graph = parse_graph(THERE.replace("C", "8"))
    source = generate(graph, constants={}, device=H200, options=Options()).spec.kernels[0].source
    assert "tf_vector_load" not in source


def test_a_sum_that_a_vector_shares_is_reduced_once() -> None:
    """It fits a window as well: an element for all of a vector at each tap."""
    graph = parse_graph("""graph @shared(%x: f32[64, 512, 128], %q: f32[64, 4]) -> (f32[64, 512, 128]) {
  %s: f32[64] = reduce.sum [n] over [k < 4] { %q[n, k] }
  %y: f32[64, 512, 128] = map [n, p, c] { add(%x[n, p, c], %s[n]) }
  return %y
}""")
    (kernel,) = generate(graph, constants={}, device=H200, options=Options()).spec.kernels
    assert kernel.source.count("reduce.sum by one thread") == 1 and "tf_vector_load" in kernel.source
