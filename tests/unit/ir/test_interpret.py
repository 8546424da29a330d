"""The reference interpreter against numpy and torch, written independently."""
from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.laws.random_graphs import random_graph, random_inputs
from tilefuse.base.errors import InternalError, NameLookupError, ShapeError, TypeMismatchError, UnsupportedOpError
from tilefuse.ir import interpret as interpreter
from tilefuse.ir.building.build import GraphBuilder
from tilefuse.ir.dtype import F16, F32, F64
from tilefuse.ir.graph import Attribute, Type
from tilefuse.ir.interpret import interpret, row_major_blocks
from tilefuse.ir.text import parse_graph

RNG = np.random.default_rng(11)
X = RNG.normal(size=(4, 6)).astype(np.float32)
IDS = np.array([3, -1, 0, 7])
HEAD = "graph @g(%x: f32[4, 6], %ids: i64[4]) -> (f32[4]) {\n"


def run(node: str) -> np.ndarray:
    graph = parse_graph(f"{HEAD}{node}\nreturn %y }}", check=False)
    return interpret(graph, {"x": X, "ids": IDS})[0]


@pytest.mark.parametrize(("node", "expected"), [
    ("%y: f32[6, 4] = map [i, j] { %x[j, i] }", X.T),
    ("%y: f32[4, 6] = map [i, j] { %x[-1*i + 3, j] }", X[::-1]),
    ("%y: f32[2, 3] = map [i, j] { %x[2*i + 1, 2*j] }", X[1::2, ::2]),
    ("%y: f32[24] = map [k] { %x[(k // 6), (k % 6)] }", X.reshape(24)),
    ("%y: f32[4] = map [i] { %x[i, i] }", X.diagonal()),
    ("%y: f32[3, 4] = map [n, i] { %x[i, 5] }", np.broadcast_to(X[:, 5], (3, 4))),
    ("%y: f32[6, 6] = map [i, j] { guard(0 <= i + -1 < 4 ? %x[i + -1, j] : 2.0:f32) }", np.pad(X, ((1, 1), (0, 0)), constant_values=2)),
    ("%y: f32[4, 12] = map [i, j] { guard(0 <= j < 6 ? %x[i, j] : %x[i, j + -6]) }", np.concatenate([X, X], 1)),
    ("%y: f32[4] = reduce.sum [i] over [k < 6] { %x[i, k] }", X.astype(np.float64).sum(1).astype(np.float32)),
    ("%y: f32[] = reduce.max [] over [i < 4, k < 6] { %x[i, k] }", X.max()),
    ("%y: i64[] = reduce.argmin [] over [i < 4, k < 6] { %x[i, k] }", X.argmin()),
    ("%y: i64[6] = reduce.argmax [j] over [i < 4] { %x[i, j] }", X.argmax(0)),
    ("%y: f32[4] = reduce.m2 [i] over [k < 6] { %x[i, k] }", (X.astype(np.float64).var(1) * 6).astype(np.float32)),
    ("%y: f32[4] = reduce.prod [i] over [k < 6] { %x[i, k] }", X.astype(np.float64).prod(1).astype(np.float32)),
    ("%y: bool[4] = reduce.any [i] over [k < 6] { gt(%x[i, k], 1.0:f32) }", (X > 1).any(1)),
    ("%y: bool[4] = reduce.all [i] over [k < 6] { gt(%x[i, k], -1.0:f32) }", (X > -1).all(1)),
    ("%y: f32[4] = reduce.sum [i] over [k < 0] { %x[i, k] }", np.zeros(4)),
    ("%y: f32[4] = reduce.max [i] over [k < 0] { %x[i, k] }", np.full(4, -np.inf)),
    ("%y: f32[4, 6] = scan.sum [i, j] along j { %x[i, j] }", X.astype(np.float64).cumsum(1).astype(np.float32)),
    ("%y: f32[4, 6] = scan.max [i, j] along i { %x[i, j] }", np.maximum.accumulate(X, 0)),
    ("%y: f32[4, 6] = gather [i, j] { lookup(%x, %ids[i], index(j)) }", X[[3, 0, 0, 3]]),
    ("%y: f32[0, 6] = map [i, j] { %x[i, j] }", X[:0]),
])
def test_node_kinds(node: str, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(run(node), np.asarray(expected))


def test_scatter_skips_targets_out_of_range() -> None:
    expected = X.copy()
    for i, at in enumerate(IDS):
        if 0 <= at < 4:
            expected[at] += X[i]
    found = run("%y: f32[4, 6] = scatter.sum over [i < 4, j < 6] into %x at [%ids[i], index(j)] { %x[i, j] }")
    np.testing.assert_array_equal(found, expected)
    last = run("%y: f32[4, 6] = scatter.set over [i < 4, j < 6] into %x at [0:i64, index(j)] { %x[i, j] }")
    np.testing.assert_array_equal(last[0], X[3])


def test_updates_are_given_by_input_name() -> None:
    graph = parse_graph(HEAD + "%y: f32[4, 6] = map [i, j] { neg(%x[i, j]) }\nupdate %x = %y\nreturn }", check=False)
    found = interpret(graph, {"x": X, "ids": IDS})
    assert list(found) == []
    np.testing.assert_array_equal(found.updates["x"], -X)


def test_a_read_out_of_range_is_reported_only_where_it_is_used() -> None:
    with pytest.raises(InternalError, match="out of range"):
        run("%y: f32[4] = map [i] { %x[i + 1, 0] }")
    with pytest.raises(InternalError, match="out of range"):
        run("%y: f32[4] = map [i] { guard(0 <= i < 4 ? %x[i + 1, 0] : 0.0:f32) }")
    np.testing.assert_array_equal(run("%y: f32[4] = map [i] { guard(0 <= i < 3 ? %x[i + 1, 0] : 0.0:f32) }"), [*X[1:, 0], 0])


@pytest.mark.parametrize("limit", [1, 5, 64])
def test_small_blocks_change_nothing(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks bound the memory; exact graphs have the same bits however they are cut."""
    for seed in range(12):
        graph = random_graph(Random(seed))
        inputs = random_inputs(graph, seed)
        whole = interpret(graph, inputs)
        with monkeypatch.context() as patch:
            patch.setattr(interpreter, "BLOCK_ELEMENTS", limit)
            cut = interpret(graph, inputs)
        for a, b in zip(whole, cut, strict=True):
            np.testing.assert_array_equal(a.astype(np.float64), b.astype(np.float64), err_msg=f"seed {seed}")


def test_blocks_cover_the_domain_in_order() -> None:
    seen = []
    for (a, b), (c, d), (e, f) in row_major_blocks((3, 4, 5), 7):
        assert (b - a) * (d - c) * (f - e) <= 7
        seen += [(i, j, k) for i in range(a, b) for j in range(c, d) for k in range(e, f)]
    assert seen == [(i, j, k) for i in range(3) for j in range(4) for k in range(5)]


def test_inputs_are_checked() -> None:
    graph = parse_graph("graph @g(%x: f32[2]) -> (f32[2]) { return %x }")
    with pytest.raises(NameLookupError, match="did you mean"):
        interpret(graph, {"X": np.zeros(2, np.float32), "x1": np.zeros(2, np.float32)})
    with pytest.raises(ShapeError):
        interpret(graph, {"x": np.zeros(3, np.float32)})
    with pytest.raises(TypeMismatchError):
        interpret(graph, {"x": np.zeros(2)})


def test_library_nodes_go_to_the_callback() -> None:
    graph = parse_graph("""graph @g(%x: f32[2]) -> (f32[2], f32[2]) {
      %a: f32[2] = library.aten.pair.default (%x) {result = 0}
      %b: f32[2] = library.aten.pair.default (%x) {result = 1}
      return %a, %b
    }""")
    x = np.array([1, 2], np.float32)
    with pytest.raises(UnsupportedOpError):
        interpret(graph, {"x": x})
    found = interpret(graph, {"x": x}, lambda node, operands: [operands[0] + 1, operands[0] * 10])
    np.testing.assert_array_equal(found, [[2, 3], [10, 20]])


# ---------------------------------------------------------------- library operators with a plain meaning

def library(operator: str, operands: list[torch.Tensor], shape: tuple[int, ...], **attributes: Attribute) -> torch.Tensor:
    build = GraphBuilder("g")
    names = [build.input(f"x{n}", F16 if t.dtype == torch.float16 else F64, tuple(t.shape)) for n, t in enumerate(operands)]
    y = build.library("y", operator, Type(F16 if operands[0].dtype == torch.float16 else F64, shape), names, attributes)
    found = interpret(build.finish([y]), {n: t.detach().numpy() for n, t in zip(names, operands, strict=True)})[0]
    return torch.from_numpy(found)


def normal(*shape: int) -> torch.Tensor:
    return torch.from_numpy(RNG.normal(size=shape))


CASES = {
    "softmax": lambda x: (library("softmax", [x], (3, 4, 5), axis=1), F.softmax(x, 1)),
    "log_softmax": lambda x: (library("log_softmax", [x], (3, 4, 5), axis=2), F.log_softmax(x, 2)),
    "logsumexp": lambda x: (library("logsumexp", [x], (4,), axes=(0, 2), keepdims=False), torch.logsumexp(x, (0, 2))),
    "mean": lambda x: (library("mean", [x], (3, 1, 1), axes=(1, 2), keepdims=True), x.mean((1, 2), keepdim=True)),
    "variance": lambda x: (library("variance", [x], (3, 5), axes=(1,), correction=1, keepdims=False), x.var(1)),
    "standard_deviation": lambda x: (
        library("standard_deviation", [x], (3, 5), axes=(1,), correction=0, keepdims=False), x.std(1, correction=0)),
    "rms_norm": lambda x: (
        library("rms_norm", [x, x[0, 0]], (3, 4, 5), axes=(2,), eps=1e-6, has_weight=True), F.rms_norm(x, (5,), x[0, 0], 1e-6)),
    "layer_norm": lambda x: (
        library("layer_norm", [x, x[0], x[1]], (3, 4, 5), axes=(1, 2), eps=1e-5, has_weight=True, has_bias=True),
        F.layer_norm(x, (4, 5), x[0], x[1], 1e-5)),
    "group_norm": lambda x: (
        library("group_norm", [x, x[0, :, 0], x[1, :, 0]], (3, 4, 5), groups=2, eps=1e-5, has_weight=True, has_bias=True),
        F.group_norm(x, 2, x[0, :, 0], x[1, :, 0], 1e-5)),
    "matmul": lambda x: (library("matmul", [x, x[0]], (3, 5, 5), transpose_a=True, transpose_b=False), x.mT @ x[0]),
    "attention": lambda x: (library("attention", [x, x, x], (3, 4, 5), scale=0.3, causal=True, has_mask=False),
                            F.scaled_dot_product_attention(x, x, x, is_causal=True, scale=0.3)),
    "attention mask": lambda x: (library("attention", [x, x, x, x[..., :4]], (3, 4, 5), scale=0.3, causal=False, has_mask=True),
                                 F.scaled_dot_product_attention(x, x, x, x[..., :4], scale=0.3)),
}


@pytest.mark.parametrize("name", CASES)
def test_library_meanings_are_torchs(name: str) -> None:
    found, expected = CASES[name](normal(3, 4, 5))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_softmax_family_on_infinities() -> None:
    x = torch.tensor([[1e4, -1e4, 0.0], [-np.inf, 0.0, 1.0], [-np.inf, -np.inf, -np.inf], [np.inf, 0.0, 1.0]], dtype=torch.float64)
    for name, reference in (("softmax", F.softmax), ("log_softmax", F.log_softmax)):
        torch.testing.assert_close(library(name, [x], (4, 3), axis=1), reference(x, 1), equal_nan=True)
    torch.testing.assert_close(library("logsumexp", [x], (4,), axes=(1,), keepdims=False), torch.logsumexp(x, 1), equal_nan=True)


GEOMETRIES = [((1, 1), ((1, 1), (0, 0)), (1, 1), 1), ((2, 1), ((2, 2), (1, 1)), (1, 2), 2), ((3, 2), ((0, 0), (1, 1)), (2, 1), 4)]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("stride", "padding", "dilation", "groups"), GEOMETRIES)
def test_convolution_and_its_gradients(transposed: bool, stride: tuple[int, int], padding: tuple[tuple[int, int], ...],
                                       dilation: tuple[int, int], groups: int) -> None:
    x = normal(2, 8, 9, 10).requires_grad_()
    weight = normal(*((8, 12 // groups) if transposed else (12, 8 // groups)), 3, 2).requires_grad_()
    bias = normal(12).requires_grad_()
    extra = (1, 0) if transposed and stride[0] > 1 else (0, 0)
    pads = [p[0] for p in padding]
    y = (F.conv_transpose2d(x, weight, bias, stride, pads, extra, groups, dilation) if transposed
         else F.conv2d(x, weight, bias, stride, pads, dilation, groups))
    attributes: dict[str, Attribute] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups,
                                        "transposed": transposed, "output_padding": extra, "has_bias": True}
    torch.testing.assert_close(library("convolution", [x, weight, bias], tuple(y.shape), **attributes), y.detach())
    gradient = normal(*y.shape)
    for n, expected in enumerate(torch.autograd.grad(y, [x, weight, bias], gradient)):
        found = library("convolution_backward", [gradient, x, weight], tuple(expected.shape), **attributes, result=n)
        torch.testing.assert_close(found, expected)


def test_asymmetric_padding() -> None:
    x, weight = normal(1, 2, 7), normal(3, 2, 3)
    found = library("convolution", [x, weight], (1, 3, 8), stride=(1,), padding=((0, 3),), dilation=(1,), groups=1, transposed=False,
                    output_padding=(0,), has_bias=False)
    torch.testing.assert_close(found, F.conv1d(F.pad(x, (0, 3)), weight))


def test_narrow_operands_are_rounded_once() -> None:
    x = normal(4, 64).half()
    found = library("softmax", [x], (4, 64), axis=1)
    assert torch.equal(found, F.softmax(x.double(), 1).half())
    assert found.dtype == torch.float16


def test_sums_are_accumulated_in_f64() -> None:
    """And rounded once: the reference for every order of combination."""
    graph = parse_graph("graph @g(%x: f32[100000]) -> (f32[]) { %y: f32[] = reduce.sum [] over [k < 100000] { %x[k] } return %y }")
    x = RNG.normal(size=100000).astype(np.float32)
    assert graph.type_of("y").dtype == F32
    assert interpret(graph, {"x": x})[0] == np.float32(x.astype(np.float64).sum())
