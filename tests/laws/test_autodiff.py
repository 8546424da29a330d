"""Autodiff against central differences in f64: scalar functions, monoids, scans, scatters, gathers, layouts, random graphs.

Random graphs use smooth functions and sums, so that almost every point has a derivative.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.differences import agree_with_differences, by_differences
from tests.laws.random_graphs import random_graph, random_inputs
from tilefuse.base.errors import NameLookupError, ShapeError, TypeMismatchError, UserError
from tilefuse.base.source import Span
from tilefuse.ir.affine import axis
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, F32, F64, I64
from tilefuse.ir.graph import SCAN_MONOIDS, Graph, Input, Type
from tilefuse.ir.interpret import interpret
from tilefuse.ir.ops import SCALAR_OPS
from tilefuse.ir.scalar import NUMPY_DTYPES, Bound, Guard, Index, Lookup, Read, call, const, walk
from tilefuse.ir.verify import check
from tilefuse.passes.autodiff.autodiff import gradient_graph

DOMAINS = {"acosh": (1.2, 3.0), "asin": (-0.9, 0.9), "acos": (-0.9, 0.9), "atanh": (-0.9, 0.9), "erfinv": (-0.9, 0.9),
           "log": (0.2, 3), "log2": (0.2, 3), "log10": (0.2, 3), "log1p": (-0.5, 3), "sqrt": (0.2, 3), "rsqrt": (0.2, 3), "cbrt": (0.2, 3),
           "pow": (0.3, 2.5), "lgamma": (0.3, 4), "reciprocal": (0.3, 3), "div": (0.3, 3), "hypot": (0.3, 3), "tan": (-1, 1),
           "mod": (0.3, 3), "fmod": (0.3, 3), "digamma": (0.3, 4)}
FLAT = {"floor", "ceil", "round", "trunc", "sign", "floordiv"}
# Functions with an operand that is no real number, or only its neighbour.
DIFFERENTIABLE = [op.name for op in SCALAR_OPS.values()
                  if "f64" in op.dtypes and op.result == "same" and op.name not in ("select", "nextafter", "polygamma")]


def weighted(b: TensorBuilder, y: str, seed: int = 5) -> str:
    """A scalar that depends on every element of `y` with another weight."""
    count = int(np.prod(b.shape_of(y)))
    weights = b.reshape(b.iota([max(count, 1)], 0, F64, 0.3 + seed * 0.01, 0.37), b.shape_of(y)) if count else y
    return b.reduce(b.elementwise("mul", b.cast(y, F64), b.elementwise("sin", weights)), "sum")


def drawn(shape: tuple[int, ...], seed: int = 0, low: float = -1.5, high: float = 1.5) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_scalar_functions(name: str) -> None:
    """Each function as the root of a body (its value is read again) and inside one (it is computed again)."""
    op = SCALAR_OPS[name]
    low, high = DOMAINS.get(name, (-2.0, 2.0))
    for inside in (False, True):
        b = TensorBuilder("one")
        xs = [b.input(f"x{n}", F64, (6,)) for n in range(op.arity)]
        e = call(name, *(Read(x, (axis("i"),)) for x in xs))
        y = b.map("y", F64, (6,), ("i",), call("mul", e, const(3, F64)) if inside else e)
        graph = b.finish([weighted(b, y)])
        inputs = {x: drawn((6,), n + 1, low, high) for n, x in enumerate(xs)}
        agree_with_differences(graph, xs, inputs, 1e-5)


@pytest.mark.parametrize("monoid", ["sum", "max", "min", "prod", "m2"])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), None])
def test_reductions(monoid: str, axes: tuple[int, ...] | None) -> None:
    b = TensorBuilder("reduction")
    x = b.input("x", F64, (3, 4, 2))
    graph = b.finish([weighted(b, b.reduce(x if monoid == "prod" else b.elementwise("mul", x, x), monoid, axes))])
    agree_with_differences(graph, [x], {x: drawn((3, 4, 2), 3, 0.5, 1.5)})


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_a_product_with_zeros(zeros: int) -> None:
    """One zero: only its own place has a gradient; two: none has."""
    for scan in (False, True):
        b = TensorBuilder("product")
        x = b.input("x", F64, (5,))
        graph = b.finish([weighted(b, b.scan(x, "prod", 0) if scan else b.reduce(x, "prod"))])
        data = drawn((5,), 2, 0.5, 1.5)
        data[1 : 1 + zeros] = 0.0
        agree_with_differences(graph, [x], {x: data})


@pytest.mark.parametrize("monoid", SCAN_MONOIDS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_scans(monoid: str, reverse: bool, exclusive: bool) -> None:
    b = TensorBuilder("scan")
    x = b.input("x", F64, (3, 5))
    y = b.scan(x, monoid, 1, exclusive=exclusive, reverse=reverse)
    if exclusive and monoid in ("max", "min", "logaddexp"):
        y = b.clamp(y, -100.0, 100.0)
    agree_with_differences(b.finish([weighted(b, y)]), [x], {x: drawn((3, 5), 4, 0.4, 2.0)})


@pytest.mark.parametrize("monoid", ["sum", "set", "max", "min", "prod"])
def test_scatters(monoid: str) -> None:
    """Some places are written twice (except by set), some never, and some targets lie outside."""
    b = TensorBuilder("scatter")
    base, values = b.input("base", F64, (6,)), b.input("values", F64, (4,))
    at = b.input("at", I64, (4,))
    y = b.scatter(base, at, values, 0, monoid, wrap=False)
    places = np.array([4, 1, 9, 0] if monoid == "set" else [4, 1, 4, 9])
    inputs = {base: drawn((6,), 1, 0.5, 2.0), values: drawn((4,), 2, 0.5, 2.0), at: places}
    agree_with_differences(b.finish([weighted(b, y)]), [base, values], inputs)


def test_gathers_add_at_clamped_places() -> None:
    b = TensorBuilder("gather")
    table, at = b.input("table", F64, (4, 3)), b.input("at", I64, (5,))
    picked = b.take(table, at, 0)
    graph = b.finish([weighted(b, b.elementwise("tanh", picked))])
    agree_with_differences(graph, [table], {table: drawn((4, 3)), at: np.array([1, 3, 3, -2, 7])})


LAYOUTS: dict[str, Callable[[TensorBuilder, str], str]] = {
    "reshape": lambda b, x: b.reshape(x, (6, 4)),
    "coprime-reshape": lambda b, x: b.reshape(x, (3, 8)),
    "permute": lambda b, x: b.permute(x, (2, 0, 1)),
    "slice": lambda b, x: b.slice(x, (0, 1, 0), (2, 3, 4), (1, 1, 2)),
    "negative-step": lambda b, x: b.slice(x, (1, 2, 3), (0, -9, -9), (-1, -2, -3)),
    "pad": lambda b, x: b.pad(x, ((1, 0), (0, 2), (1, 1))),
    "concatenate": lambda b, x: b.concatenate([x, b.flip(x, 1), b.slice(x, (0,), (1,))], 0),
    "roll": lambda b, x: b.roll(x, (1, 2), (1, 2)),
    "tile": lambda b, x: b.tile(x, (2, 1, 3)),
    "repeat": lambda b, x: b.repeat_interleave(x, 3, 1),
    "diagonal": lambda b, x: b.diagonal(x, 1, 1, 2),
    "windows": lambda b, x: b.windows(x, 2, 2, 1),
    "unfold": lambda b, x: b.unfold(b.reshape(x, (1, 2, 3, 4)), (2, 2), (1, 2), ((1, 0), (0, 1)), (1, 2)),
    "broadcast": lambda b, x: b.elementwise("mul", b.broadcast_to(b.select(x, 0, 1), (5, 3, 4)), b.select(x, 0, 0)),
    "triangle": lambda b, x: b.triu(x),
    "pieces": lambda b, x: b.concatenate([b.elementwise("mul", b.select(x, 2, n), float(n + 1)) for n in range(4)], 0),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_transposed_without_scatters(name: str) -> None:
    """Every layout operator's gradient is a gather, exactly and without atomics; a nonlinear function makes places tell."""
    b = TensorBuilder("layout")
    x = b.input("x", F64, (2, 3, 4))
    graph = b.finish([weighted(b, b.elementwise("sin", LAYOUTS[name](b, x)))])
    made = agree_with_differences(graph, [x], {x: drawn((2, 3, 4))})
    assert not any(n.category == "scatter" for n in made.nodes)


POOLS = [("max", 2, 2, 0, 1), ("max", 3, 2, 1, 1), ("mean", 3, 2, 1, 1), ("sum", 3, 1, 1, 2), ("min", 2, 3, 0, 1), ("max", 3, 1, 1, 1)]


@pytest.mark.parametrize(("monoid", "size", "stride", "padding", "dilation"), POOLS)
def test_pools_gather_from_the_windows_that_cover_an_element(monoid: str, size: int, stride: int, padding: int, dilation: int) -> None:
    b = TensorBuilder("pool")
    x = b.input("x", F64, (1, 2, 6, 7))
    y, _ = b.pool(x, monoid, (size, size), (stride, stride), ((padding, padding),) * 2, (dilation, dilation))
    made = agree_with_differences(b.finish([weighted(b, y)]), [x], {x: drawn((1, 2, 6, 7))})
    assert not any(n.category == "scatter" for n in made.nodes)


def test_adaptive_pools() -> None:
    for outputs in ((3, 2), (4, 5)):
        b = TensorBuilder("pool")
        x = b.input("x", F64, (2, 6, 7))
        y, _ = b.adaptive_pool(x, "mean", outputs)
        agree_with_differences(b.finish([weighted(b, y)]), [x], {x: drawn((2, 6, 7))})


COMPOSITES: dict[str, Callable[[TensorBuilder, str, str], str]] = {
    "softmax": lambda b, x, w: b.softmax(x, 1),
    "log_softmax": lambda b, x, w: b.log_softmax(x, -1),
    "logsumexp": lambda b, x, w: b.logsumexp(x, (0, 2)),
    "mean": lambda b, x, w: b.elementwise("sin", b.mean(x, (1,), True)),
    "variance": lambda b, x, w: b.variance(x, (0, 2)),
    "deviation": lambda b, x, w: b.standard_deviation(x, (2,), 0, True),
    "layer_norm": lambda b, x, w: b.layer_norm(x, (2,), w, w)[0],
    "layer_norm_statistics": lambda b, x, w: b.elementwise("mul", b.layer_norm(x, (1, 2))[1], b.layer_norm(x, (1, 2))[2]),
    "rms_norm": lambda b, x, w: b.rms_norm(x, (2,), w)[0],
    "group_norm": lambda b, x, w: b.group_norm(b.permute(x, (0, 2, 1)), 2, w, w)[0],
    "matmul": lambda b, x, w: b.matmul(x, b.reshape(w, (4, 1))),
    "batched": lambda b, x, w: b.matmul(x, x, transpose_b=True),
    "vector": lambda b, x, w: b.matmul(x, w),
    "attention": lambda b, x, w: b.attention(x, b.elementwise("sin", x), x, causal=True),
    "norm": lambda b, x, w: b.norm(x, 2.0, (1,)),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_composites_and_products(name: str) -> None:
    b = TensorBuilder("composite")
    x, w = b.input("x", F64, (2, 3, 4)), b.input("w", F64, (4,))
    graph = b.finish([weighted(b, b.elementwise("tanh", COMPOSITES[name](b, x, w)))])
    agree_with_differences(graph, [x, w], {x: drawn((2, 3, 4)), w: drawn((4,), 9)}, 1e-5)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize(
    "shapes", [((3, 2), (2, 4)), ((2, 3, 2), (2, 4)), ((2, 3, 2), (2, 2, 4)), ((3, 2), (2, 2, 4)), ((2, 1, 3, 2), (3, 2, 4))]
)
def test_matrix_products(transpose_a: bool, transpose_b: bool, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    left, right = ((*s[:-2], s[-1], s[-2]) if flip else s for s, flip in zip(shapes, (transpose_a, transpose_b), strict=True))
    b = TensorBuilder("product")
    x, y = b.input("x", F64, left), b.input("y", F64, right)
    graph = b.finish([weighted(b, b.elementwise("sin", b.matmul(x, y, transpose_a, transpose_b)))])
    agree_with_differences(graph, [x, y], {x: drawn(left), y: drawn(right, 1)})


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("groups", "stride", "padding", "dilation"), [(1, 1, 0, 1), (1, 2, 1, 1), (2, 1, 1, 2)])
def test_convolutions(transposed: bool, groups: int, stride: int, padding: int, dilation: int) -> None:
    b = TensorBuilder("convolution")
    x, weight, bias = b.input("x", F64, (1, 2, 5)), b.input("weight", F64, (2, 2 // groups, 2)), b.input("bias", F64, (2,))
    make = b.convolution_transpose if transposed else b.convolution
    y = make(x, weight, bias, (stride,), ((padding, padding),), (dilation,), groups)
    graph = b.finish([weighted(b, b.elementwise("sin", y))])
    inputs = {x: drawn((1, 2, 5)), weight: drawn((2, 2 // groups, 2), 1), bias: drawn((2,), 2)}
    agree_with_differences(graph, [x, weight, bias], inputs)


SECOND: dict[str, Callable[[TensorBuilder, str, str], str]] = {
    **{name: COMPOSITES[name] for name in ("softmax", "log_softmax", "logsumexp", "variance", "layer_norm", "rms_norm", "group_norm",
                                           "batched", "attention")},
    "convolution": lambda b, x, w: b.convolution(b.reshape(x, (6, 1, 4)), b.reshape(w, (2, 1, 2)), padding=((1, 1),)),
    "pool": lambda b, x, w: b.pool(b.elementwise("mul", x, x), "max", (2, 2), (1, 1))[0],
    "scan": lambda b, x, w: b.scan(x, "prod", 1),
    "product": lambda b, x, w: b.reduce(x, "prod", (1,)),
    "exp": lambda b, x, w: b.elementwise("exp", b.elementwise("mul", x, w)),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives(name: str) -> None:
    """The gradient of a weighted sum of gradients, against differences of the first gradient."""
    b = TensorBuilder("second")
    x, w = b.input("x", F64, (2, 3, 4)), b.input("w", F64, (4,))
    graph = b.finish([weighted(b, b.elementwise("tanh", SECOND[name](b, x, w)))])
    first = gradient_graph(graph, graph.results[0], [x, w])
    again = TensorBuilder("again")
    again.inputs, again.nodes, again.types = list(first.inputs), list(first.nodes), dict(first.type_by_name)
    parts = [weighted(again, r, n) for n, r in enumerate(first.results)]
    scalar = again.finish([again.elementwise("add", *parts)])
    agree_with_differences(scalar, [x, w], {x: drawn((2, 3, 4), 1, 0.3, 1.2), w: drawn((4,), 9, 0.3, 1.2)}, 1e-5)


def test_a_third_derivative() -> None:
    b = TensorBuilder("cube")
    x = b.input("x", F64, ())
    graph = b.finish([b.elementwise("pow", x, 3.0)])
    for _ in range(3):
        graph = gradient_graph(graph, graph.results[0], ["x"])
    assert interpret(graph, {"x": np.array(0.7)})[0] == pytest.approx(6.0)


def smooth_graph(random: Random) -> tuple[Graph, list[str]]:
    """A chain of layouts, smooth functions, products and sums that ends in a scalar."""
    b = TensorBuilder("random")
    shapes = [tuple(random.choice((1, 2, 3)) for _ in range(random.randint(1, 3))) for _ in range(random.randint(1, 3))]
    inputs = [b.input(f"x{n}", F64, shape) for n, shape in enumerate(shapes)]
    values = list(inputs)
    for _ in range(random.randint(2, 8)):
        x = random.choice(values)
        shape = b.shape_of(x)
        match random.randrange(9):
            case 0:
                made = b.elementwise(random.choice(("sin", "tanh", "sigmoid", "exp")), b.elementwise("tanh", x))
            case 1:
                made = b.permute(x, random.sample(range(len(shape)), len(shape)))
            case 2:
                made = b.reshape(x, (-1,))
            case 3:
                small = len(shape) < 4 and np.prod(shape) < 40
                made = b.pad(x, [(random.randint(0, 2), random.randint(0, 1)) for _ in shape]) if small else x
            case 4 if shape:
                monoid = random.choice(("sum", "prod", "m2"))
                made = b.reduce(b.elementwise("tanh", x), monoid, random.randrange(len(shape)), keepdims=random.random() < 0.5)
            case 5 if shape:
                made = b.scan(b.elementwise("tanh", x), "sum", random.randrange(len(shape)), reverse=random.random() < 0.5)
            case 6 if shape:
                made = b.flip(x, random.randrange(len(shape)))
            case 7 if shape and shape[-1] > 1:
                made = b.windows(x, len(shape) - 1, 2, random.choice((1, 2))) if np.prod(shape) < 40 else x
            case _:
                other = random.choice(values)
                made = b.elementwise("mul", b.reduce(x, "sum"), other) if len(b.shape_of(other)) else b.elementwise("add", x, other)
        values.append(made)
    loss = weighted(b, values[-1])
    for v in values[len(inputs) : -1]:
        loss = b.elementwise("add", loss, weighted(b, v)) if random.random() < 0.3 else loss
    return b.finish([loss]), inputs


@given(st.randoms(use_true_random=False))
def test_random_graphs(random: Random) -> None:
    graph, inputs = smooth_graph(random)
    generator = np.random.default_rng(random.randrange(1 << 30))
    agree_with_differences(graph, inputs, {x: generator.uniform(-0.8, 0.8, graph.type_of(x).shape) for x in inputs}, 2e-5)


def test_guards_and_lookups_inside_one_body() -> None:
    """Reads under guards of a body, both branches, and a lookup whose subscript depends on the position."""
    b = TensorBuilder("body")
    x, y = b.input("x", F64, (5,)), b.input("y", F64, (3,))
    low = Guard((Bound(axis("i") - 1, 0, 5),), call("mul", Read(x, (axis("i") - 1,)), Read(x, (axis("i") - 1,))), const(2, F64))
    turn = Lookup(y, (call("mod", Index(axis("i")), const(3, I64)),))
    made = b.map("z", F64, (7,), ("i",), Guard((Bound(axis("i"), 0, 6),), call("mul", low, turn), turn))
    agree_with_differences(b.finish([weighted(b, made)]), [x, y], {x: drawn((5,)), y: drawn((3,), 1)})


def test_internal_values_have_gradients_too() -> None:
    """With respect to a value inside, the gradient is the whole of what arrives there."""
    b = TensorBuilder("inside")
    x = b.input("x", F64, (3,))
    h = b.elementwise("tanh", x)
    graph = b.finish([weighted(b, b.elementwise("mul", h, h))])
    made = gradient_graph(graph, graph.results[0], [h, x])
    data = drawn((3,))
    inner, outer = interpret(made, {x: data})
    np.testing.assert_allclose(outer, inner * (1 - np.tanh(data) ** 2), rtol=1e-12)
    np.testing.assert_allclose(outer, by_differences(graph, 0, x, {x: data}), rtol=1e-6)


@pytest.mark.parametrize("seed", [*range(30), 124, 166, 198, 535, 537])
def test_gradients_of_all_kinds_of_nodes_verify(seed: int) -> None:
    """Whatever a graph holds (gathers in sums, guarded reads, storage types), its gradient graph keeps the rules, and its values their
    types; and so does the gradient of that."""
    graph = random_graph(Random(seed), num_nodes=5, exact=False)
    given_inputs = [i.name for i in graph.inputs if i.type.dtype.is_float]
    for order in range(2):
        of = [r for r in dict.fromkeys(graph.results) if graph.type_of(r).dtype.is_float]
        seeds = {r: f"seed{order}_{n}" for n, r in enumerate(of)}
        seeded = replace(graph, inputs=(*graph.inputs, *(Input(seeds[r], graph.type_of(r)) for r in of)))
        graph = gradient_graph(seeded, of, given_inputs, seeds)
        check(graph, "gradient_graph")
        assert [graph.type_of(r) for r in graph.results] == [graph.type_of(x) for x in given_inputs]
        with np.errstate(all="ignore"):
            interpret(graph, random_inputs(graph, 3))


def test_contributions_to_a_narrow_value_are_rounded_once() -> None:
    """1 + 2^-9 + 2^-9 as a sum of three gradients in bf16: rounded term by term it would stay 1."""
    b = TensorBuilder("narrow")
    x = b.input("x", BF16, (1,))
    parts = [b.expression(lambda v, f=f: call("mul", v, const(f, F32)), x, dtype=F32) for f in (1.0, 2.0**-8, 2.0**-8)]
    total = b.elementwise("add", b.elementwise("add", parts[0], parts[1]), parts[2])
    graph = b.finish([b.reduce(total, "sum")])
    made = gradient_graph(graph, graph.results[0], [x])
    found = interpret(made, {x: np.zeros(1, dtype=NUMPY_DTYPES["bf16"])})[0]
    assert float(found[0]) == 1.0 + 2.0**-7


def test_wrong_names_and_seeds() -> None:
    b = TensorBuilder("wrong")
    x, n = b.input("x", F64, (3,)), b.input("n", I64, (3,))
    y = b.elementwise("mul", x, x)
    graph = b.finish([y, b.reduce(y, "sum")])
    with pytest.raises(NameLookupError, match="no value %z"):
        gradient_graph(graph, graph.results[1], ["z"])
    with pytest.raises(TypeMismatchError, match="only floats have a gradient"):
        gradient_graph(graph, graph.results[1], [n])
    with pytest.raises(ShapeError, match="needs a seed"):
        gradient_graph(graph, y, [x])
    with pytest.raises(ShapeError, match="does not fit"):
        gradient_graph(graph, y, [x], {y: graph.results[1]})
    with pytest.raises(TypeMismatchError, match="not a float"):
        gradient_graph(graph, y, [x], {y: n})


def test_an_operator_without_a_rule_is_named() -> None:
    b = TensorBuilder("foreign")
    x = b.input("x", F64, (3,))
    b.span = Span("model.py", 7, 1)
    y = b.library("y", "aten.fft_fft.default", Type(F64, (3,)), (x,), {"args": (), "kwargs": ()})
    graph = b.finish([b.reduce(y, "sum")])
    with pytest.raises(UserError, match=r"no gradient is defined for the operator aten.fft_fft.default \(%y\)(\n.*)*model.py:7"):
        gradient_graph(graph, graph.results[0], [x])
    made = gradient_graph(graph, graph.results[0], [y])  # the way does not lead through it
    assert made.results


def test_forward_nodes_keep_their_names_and_come_first() -> None:
    graph, inputs = smooth_graph(Random(3))
    made = gradient_graph(graph, graph.results[0], inputs, with_values=True)
    assert made.nodes[: len(graph.nodes)] == graph.nodes
    assert made.results[0] == graph.results[0]
    assert made == gradient_graph(graph, graph.results[0], inputs, with_values=True)


def normalised_relu(slope: float = 0.0) -> tuple[Graph, list[str]]:
    """relu((x - mean) * scale + shift) of a convolution's result, in the form that networks have."""
    b = TensorBuilder("normalised")
    x, weight = b.input("x", F64, (2, 1, 6)), b.input("weight", F64, (2, 1, 3))
    scale, shift = b.input("scale", F64, (1, 2, 1)), b.input("shift", F64, (1, 2, 1))
    h = b.convolution(x, weight, padding=((1, 1),))
    mean = b.mean(h, (0, 2), True)
    y = b.expression(lambda v, m, s, t: call("add", call("mul", call("sub", v, m), s), t), h, mean, scale, shift, dtype=F64, name="normal")
    low = (lambda v: call("mul", const(slope, F64), v)) if slope else (lambda v: const(0, F64))
    r = b.expression(lambda v: call("select", call("le", v, const(0, F64)), low(v), v), y, dtype=F64, name="relu")
    out = b.convolution(r, b.reshape(weight, (1, 2, 3)))
    return b.finish([weighted(b, b.elementwise("sin", out))]), [x, weight, scale, shift]


@pytest.mark.parametrize("slope", [0.0, 0.1])
def test_a_mask_of_a_normalised_value_is_computed_again(slope: float) -> None:
    """Nothing of the backward pass but the weight's gradient reads relu's result, and the masked gradient is no value of its own."""
    graph, inputs = normalised_relu(slope)
    made = agree_with_differences(graph, inputs, {x: drawn(graph.type_of(x).shape, n) for n, x in enumerate(inputs)})
    readers = [n for n in made.nodes[len(graph.nodes) :] if "relu" in n.reads()]
    assert readers and all(n.category == "library" for n in readers)
    assert not any(n.name == "d_normal" for n in made.nodes)


def test_narrow_masks_are_computed_again_without_rounding() -> None:
    """The same network part in bf16 around f32 arithmetic: forms as in f64, and gradients within what bf16 resolves."""
    wide, inputs = normalised_relu()
    b = TensorBuilder("narrow")
    for item in wide.inputs:
        b.input(item.name, BF16, item.type.shape)
    x, weight, scale, shift = (i.name for i in wide.inputs)
    h = b.convolution(x, weight, padding=((1, 1),))
    mean = b.cast(b.mean(b.cast(h, F32), (0, 2), True), F32)
    y = b.expression(lambda v, m, s, t: call("add", call("mul", call("sub", v, m), s), t), h, mean, scale, shift, dtype=BF16, name="normal")
    r = b.expression(lambda v: call("select", call("le", v, const(0, F32)), const(0, F32), v), y, dtype=BF16, name="relu")
    out = b.convolution(r, b.reshape(weight, (1, 2, 3)))
    made = gradient_graph(b.finish([weighted(b, b.elementwise("sin", out))]), "reduce_sum", inputs)
    assert not any(n.name == "d_normal" for n in made.nodes)
    data = {i.name: drawn(i.type.shape, n).astype(NUMPY_DTYPES["bf16"]) for n, i in enumerate(wide.inputs)}
    exact = interpret(gradient_graph(wide, wide.results[0], inputs), {k: v.astype(np.float64) for k, v in data.items()})
    for have, want in zip(interpret(made, data), exact, strict=True):
        np.testing.assert_allclose(have.astype(np.float64), want, rtol=0.1, atol=0.1 * float(np.abs(want).max()))


def test_a_narrow_mask_before_a_pool_is_computed_again() -> None:
    """A pool's gradient in bf16 is a sum in f32 that is rounded: it is kept for its users as one in f32 is, the masked one is not."""
    b = TensorBuilder("narrow")
    x, weight, scale = b.input("x", BF16, (2, 1, 6)), b.input("weight", BF16, (2, 1, 3)), b.input("scale", F32, (1, 2, 1))
    h = b.convolution(x, weight, padding=((1, 1),))
    y = b.expression(lambda v, s: call("mul", v, s), h, scale, dtype=BF16, name="normal")
    r = b.expression(lambda v: call("select", call("le", v, const(0, F32)), const(0, F32), v), y, dtype=BF16, name="relu")
    out, _ = b.pool(r, "max", (3,), (2,), ((1, 1),))
    graph = b.finish([weighted(b, out)])
    made = gradient_graph(graph, graph.results[0], [x, weight, scale])
    check(made, "gradient_graph")
    assert any(n.name == "d_relu" for n in made.nodes) and not any(n.name == "d_normal" for n in made.nodes)


def test_a_value_with_very_many_users() -> None:
    """Its gradient is a sum of 600 terms; no body grows beyond what walks over expressions can take."""
    b = TensorBuilder("many")
    x = b.input("x", F64, (2,))
    total = b.elementwise("mul", x, 1.0)
    for n in range(600):
        total = b.elementwise("add", total, b.elementwise("sin", b.elementwise("mul", x, 0.001 * n)))
    graph = b.finish([b.reduce(total, "sum")])
    made = gradient_graph(graph, graph.results[0], [x])
    data = drawn((2,))
    scale = 0.001 * np.arange(600)
    np.testing.assert_allclose(interpret(made, {x: data})[0], 1 + (np.cos(np.outer(data, scale)) * scale).sum(1), rtol=1e-10)
    assert max(sum(1 for _ in walk(n.body)) for n in made.nodes if n.body is not None) < 400
