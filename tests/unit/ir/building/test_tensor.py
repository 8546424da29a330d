"""TensorBuilder: every operator's graph verifies and computes what numpy or torch computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tilefuse.base.errors import CompilerError, ShapeError, TypeMismatchError
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, BOOL, F16, F32, F64, I32, I64, U8
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import print_graph
from tilefuse.ir.verify import check
from tilefuse.passes import DEFAULT_PIPELINE, PassContext, Pipeline

SEED = 3
NAMES = {
    np.dtype(np.float32): F32,
    np.dtype(np.float64): F64,
    np.dtype(np.int64): I64,
    np.dtype(np.int32): I32,
    np.dtype(np.bool_): BOOL,
    np.dtype(np.float16): F16,
    np.dtype(np.uint8): U8,
}
Build = Callable[..., str | Sequence[str | None]]


def evaluate(build: Build, *arrays: np.ndarray) -> list[np.ndarray]:
    """Values of what `build(b, *values)` makes; computed plainly and after the default passes, which must agree."""
    b = TensorBuilder("case")
    values = [b.input(f"x{n}", NAMES[a.dtype], a.shape) for n, a in enumerate(arrays)]
    made = build(b, *values)
    results = [made] if isinstance(made, str) else [m for m in made if m is not None]
    graph = b.finish(results)
    check(graph, "TensorBuilder")
    inputs = {f"x{n}": a for n, a in enumerate(arrays)} | b.constant_data
    plain = interpret(graph, inputs)
    context = PassContext(verify=2, eager_rounding=True, constants=dict(b.constant_data))
    after: Graph = Pipeline.parse(DEFAULT_PIPELINE).run(graph, context)
    # Passes may have made constants of their own (values without elements).
    for a, c in zip(plain, interpret(after, inputs | context.constants), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(c, np.float64), rtol=1e-5, atol=1e-6, err_msg=print_graph(after))
    return [np.asarray(r) for r in plain]


def numbers(*shape: int, dtype: type = np.float32) -> np.ndarray:
    draw = np.random.default_rng(SEED)
    return (
        (draw.standard_normal(shape) * 3).astype(dtype) if np.issubdtype(dtype, np.floating) else draw.integers(0, 5, shape).astype(dtype)
    )


X = numbers(4, 6, 5)
LAYOUTS: list[tuple[str, Build, Callable[[np.ndarray], np.ndarray], np.ndarray]] = [
    ("reshape", lambda b, x: b.reshape(x, (3, -1, 2)), lambda x: x.reshape(3, -1, 2), X),
    ("reshape-splits", lambda b, x: b.reshape(x, (2, 2, 2, 3, 5, 1)), lambda x: x.reshape(2, 2, 2, 3, 5, 1), X),
    ("reshape-scalar", lambda b, x: b.reshape(x, ()), lambda x: x.reshape(()), numbers(1, 1)),
    ("permute", lambda b, x: b.permute(x, (2, 0, -2)), lambda x: x.transpose(2, 0, 1), X),
    ("transpose", lambda b, x: b.transpose(x, 0, -1), lambda x: x.swapaxes(0, -1), X),
    ("broadcast", lambda b, x: b.broadcast_to(x, (2, 4, -1, 5)), lambda x: np.broadcast_to(x, (2, 4, 6, 5)), numbers(4, 6, 1)),
    ("expand_dims", lambda b, x: b.expand_dims(x, (0, -1)), lambda x: x[None, ..., None], X),
    ("squeeze", lambda b, x: b.squeeze(x), lambda x: x.squeeze(), numbers(1, 3, 1, 2)),
    ("slice", lambda b, x: b.slice(x, (1, -3), (4, 100), (2, 1), (0, 1)), lambda x: x[1:4:2, -3:], X),
    ("slice-backward", lambda b, x: b.slice(x, (-1,), (-1000,), (-2,), (1,)), lambda x: x[:, ::-2], X),
    ("slice-empty", lambda b, x: b.slice(x, (3,), (2,), None, (1,)), lambda x: x[:, 3:2], X),
    ("select", lambda b, x: b.select(x, 1, -2), lambda x: x[:, -2], X),
    ("flip", lambda b, x: b.flip(x, (0, 2)), lambda x: np.flip(x, (0, 2)), X),
    ("roll", lambda b, x: b.roll(x, (2, -1), (1, 2)), lambda x: np.roll(x, (2, -1), (1, 2)), X),
    ("tile", lambda b, x: b.tile(x, (2, 1, 3, 2)), lambda x: np.tile(x, (2, 1, 3, 2)), X),
    ("repeat", lambda b, x: b.repeat_interleave(x, 3, 1), lambda x: x.repeat(3, 1), X),
    ("diagonal", lambda b, x: b.diagonal(x, 0, 1, 2), lambda x: x.diagonal(0, 1, 2), X),
    ("diagonal-above", lambda b, x: b.diagonal(x, 2, 0, 1), lambda x: x.diagonal(2, 0, 1), X),
    ("diagonal-below", lambda b, x: b.diagonal(x, -1, 1, 0), lambda x: x.diagonal(-1, 1, 0), X),
    ("windows", lambda b, x: b.windows(x, 1, 3, 2), lambda x: torch.tensor(x).unfold(1, 3, 2).numpy(), X),
    (
        "pad",
        lambda b, x: b.pad(x, ((1, 2), (0, 0), (-1, 1)), value=7.5),
        lambda x: F.pad(torch.tensor(x), (-1, 1, 0, 0, 1, 2), value=7.5).numpy(),
        X,
    ),
    (
        "pad-reflect",
        lambda b, x: b.pad(x, ((0, 0), (3, 2), (1, 4)), "reflect"),
        lambda x: np.pad(x, ((0, 0), (3, 2), (1, 4)), "reflect"),
        X,
    ),
    ("pad-reflect-far", lambda b, x: b.pad(x, ((7, 9),), "reflect"), lambda x: np.pad(x, ((7, 9),), "reflect"), numbers(4)),
    ("pad-edge", lambda b, x: b.pad(x, ((2, 0), (0, 3), (1, 1)), "edge"), lambda x: np.pad(x, ((2, 0), (0, 3), (1, 1)), "edge"), X),
    ("pad-wrap", lambda b, x: b.pad(x, ((2, 0), (0, 3), (1, 1)), "wrap"), lambda x: np.pad(x, ((2, 0), (0, 3), (1, 1)), "wrap"), X),
    (
        "concatenate",
        lambda b, x: b.concatenate([x, x, b.slice(x, (0,), (1,), None, (1,)), x, x], 1),
        lambda x: np.concatenate([x, x, x[:, :1], x, x], 1),
        X,
    ),
    ("concatenate-slice", lambda b, x: b.slice(b.concatenate([x, x], 0), (4,), (8,)), lambda x: x, X),
    ("stack", lambda b, x: b.stack([x, x, x], -1), lambda x: np.stack([x] * 3, -1), X),
    ("split", lambda b, x: b.split(x, [1, 2, 3], 1)[2], lambda x: x[:, 3:], X),
    ("triu", lambda b, x: b.triu(x, 1), lambda x: np.triu(x, 1), X),
    ("tril", lambda b, x: b.tril(x, -1), lambda x: np.tril(x, -1), X),
    ("triu-all", lambda b, x: b.triu(x, -9), lambda x: np.triu(x, -9), X),
    ("pixel_shuffle", lambda b, x: b.pixel_shuffle(x, 2), lambda x: F.pixel_shuffle(torch.tensor(x), 2).numpy(), numbers(2, 8, 3, 5)),
    ("pixel_unshuffle", lambda b, x: b.pixel_unshuffle(x, 2), lambda x: F.pixel_unshuffle(torch.tensor(x), 2).numpy(), numbers(2, 3, 4, 6)),
    (
        "unfold",
        lambda b, x: b.unfold(x, (2, 3), (2, 1), ((1, 1), (0, 0)), (1, 2)),
        lambda x: F.unfold(torch.tensor(x), (2, 3), (1, 2), (1, 0), (2, 1)).numpy(),
        numbers(2, 3, 6, 8),
    ),
]


@pytest.mark.parametrize("build, expected, x", [case[1:] for case in LAYOUTS], ids=[case[0] for case in LAYOUTS])
def test_layout_operators_move_elements_exactly(build: Build, expected: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> None:
    (found,) = evaluate(build, x)
    np.testing.assert_array_equal(found, expected(x))


def test_slice_scatter_replaces_only_the_slice() -> None:
    base, source = X.copy(), numbers(4, 2, 5) + 100
    (found,) = evaluate(lambda b, x, y: b.slice_scatter(x, y, 1, 1, 5, 2), base, source)
    base[:, 1:5:2] = source
    np.testing.assert_array_equal(found, base)


def test_select_scatter_replaces_one_position() -> None:
    base, source = X.copy(), numbers(4, 5) + 100
    (found,) = evaluate(lambda b, x, y: b.select_scatter(x, y, 1, -1), base, source)
    base[:, -1] = source
    np.testing.assert_array_equal(found, base)


@pytest.mark.parametrize(
    "values", [[3, 3, 3], [5, 3, 1], [1, 1, 7, 7, 7, 2], [0.5, -0.0, float("nan")], [True, False, False, True], list(range(100))]
)
def test_constant_arrays_hold_their_values(values: list[float]) -> None:
    data = np.asarray(values)
    (found,) = evaluate(lambda b, x: b.where(b.full(data.shape, True, BOOL), b.constant_array(data), b.constant_array(data)), X)
    np.testing.assert_array_equal(found, data)


def test_iota_counts_along_its_axis() -> None:
    (whole, half) = evaluate(lambda b, x: (b.iota((2, 3), 1, I32, 5, -2), b.iota((4,), 0, F32, 0.5, 0.25)), X)
    np.testing.assert_array_equal(whole, [[5, 3, 1]] * 2)
    np.testing.assert_array_equal(half, [0.5, 0.75, 1.0, 1.25])


def test_arithmetic_on_bool_is_logic() -> None:
    a, c = np.array([True, True, False, False]), np.array([True, False, True, False])
    total, product, same, less = evaluate(
        lambda b, x, y: [b.elementwise("add", x, y), b.elementwise("mul", x, y), b.elementwise("eq", x, y), b.elementwise("lt", x, y)], a, c
    )
    np.testing.assert_array_equal(total, a | c)
    np.testing.assert_array_equal(product, a & c)
    np.testing.assert_array_equal(same, a == c)
    np.testing.assert_array_equal(less, a < c)


def test_narrow_integers_wrap() -> None:
    (found,) = evaluate(lambda b, x: b.elementwise("mul", x, 100), np.array([3, 200], np.uint8))
    np.testing.assert_array_equal(found, np.array([300 % 256, 20000 % 256], np.uint8))


def test_half_sums_accumulate_in_single() -> None:
    x = np.full(4096, 1.0, np.float16)
    (found,) = evaluate(lambda b, v: b.reduce(v, "sum"), x)
    assert found == 4096 and found.dtype == np.float16


@pytest.mark.parametrize("axes, keepdims", [(None, False), ((1,), True), ((0, -1), False), (0, True)])
@pytest.mark.parametrize("monoid, function", [("sum", np.sum), ("max", np.max), ("min", np.min), ("prod", np.prod)])
def test_reductions(monoid: str, function: Callable[..., np.ndarray], axes: Sequence[int] | None, keepdims: bool) -> None:
    (found,) = evaluate(lambda b, x: b.reduce(x, monoid, axes, keepdims), X)
    expected = function(X.astype(np.float64), axis=tuple(np.atleast_1d(axes)) if axes is not None else None, keepdims=keepdims)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_argument_reductions_give_positions_and_any_all_truth() -> None:
    flat, rows, some, every = evaluate(
        lambda b, x: (
            b.reduce(x, "argmax"),
            b.reduce(x, "argmin", 1, True),
            b.reduce(b.elementwise("gt", x, 4), "any", 1),
            b.reduce(x, "all", 1),
        ),
        X,
    )
    assert flat == X.argmax()
    np.testing.assert_array_equal(rows, X.argmin(1, keepdims=True))
    np.testing.assert_array_equal(some, (X > 4).any(1))
    np.testing.assert_array_equal(every, (X != 0).all(1))


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_scans(exclusive: bool, reverse: bool) -> None:
    (found,) = evaluate(lambda b, x: b.scan(x, "sum", 1, exclusive, reverse), X)
    source = X[:, ::-1] if reverse else X
    expected = np.cumsum(source.astype(np.float64), 1)
    if exclusive:
        expected = expected - source
    np.testing.assert_allclose(found, expected[:, ::-1] if reverse else expected, atol=1e-4)


COMPOSITES: list[tuple[str, Build, Callable[[torch.Tensor], Sequence[torch.Tensor]]]] = [
    ("softmax", lambda b, x: b.softmax(x, 1), lambda x: [x.softmax(1)]),
    ("log_softmax", lambda b, x: b.log_softmax(x, -1), lambda x: [x.log_softmax(-1)]),
    ("logsumexp", lambda b, x: b.logsumexp(x, (0, 2), True), lambda x: [x.logsumexp((0, 2), True)]),
    ("mean", lambda b, x: b.mean(x, (0, 2)), lambda x: [x.mean((0, 2))]),
    ("variance", lambda b, x: b.variance(x, 1, 0, True), lambda x: [x.var(1, correction=0, keepdim=True)]),
    ("deviation", lambda b, x: b.standard_deviation(x), lambda x: [x.std()]),
    ("norm-2", lambda b, x: b.norm(x, 2, 1), lambda x: [torch.linalg.vector_norm(x, 2, 1)]),
    ("norm-inf", lambda b, x: b.norm(x, float("inf"), 1, True), lambda x: [torch.linalg.vector_norm(x, float("inf"), 1, True)]),
    ("norm-0", lambda b, x: b.norm(x, 0), lambda x: [torch.linalg.vector_norm(x, 0)]),
    ("norm-3", lambda b, x: b.norm(x, 3, 2), lambda x: [torch.linalg.vector_norm(x, 3, 2)]),
    ("layer_norm", lambda b, x: b.layer_norm(x, (1, 2), eps=1e-4)[0], lambda x: [F.layer_norm(x, x.shape[1:], eps=1e-4)]),
    ("rms_norm", lambda b, x: b.rms_norm(x, (2,), eps=1e-4)[0], lambda x: [F.rms_norm(x, x.shape[2:], eps=1e-4)]),
    ("group_norm", lambda b, x: b.group_norm(x, 3)[0], lambda x: [F.group_norm(x, 3)]),
]


@pytest.mark.parametrize("build, expected", [case[1:] for case in COMPOSITES], ids=[case[0] for case in COMPOSITES])
def test_composites_agree_with_torch(build: Build, expected: Callable[[torch.Tensor], Sequence[torch.Tensor]]) -> None:
    for found, wanted in zip(evaluate(build, X), expected(torch.tensor(X, dtype=torch.float64)), strict=True):
        np.testing.assert_allclose(found, wanted.numpy(), rtol=2e-5, atol=2e-5)


POOLS: list[dict[str, object]] = [
    {"kernel": (3, 2)},
    {"kernel": (3, 3), "stride": (2, 1), "padding": ((1, 1), (1, 1))},
    {"kernel": (2, 3), "stride": (2, 2), "padding": ((1, 1), (0, 0)), "ceil_mode": True},
    {"kernel": (2, 2), "stride": (1, 2), "dilation": (2, 3)},
]


@pytest.mark.parametrize("options", POOLS)
def test_max_pooling_and_its_indices_agree_with_torch(options: dict[str, object]) -> None:
    x = numbers(2, 3, 9, 8)
    found, places = evaluate(lambda b, v: b.pool(v, "max", with_indices=True, **options), x)
    wanted, indices = F.max_pool2d(
        torch.tensor(x),
        options["kernel"],
        options.get("stride"),
        _begin(options),
        options.get("dilation", 1),
        bool(options.get("ceil_mode")),
        True,
    )
    np.testing.assert_array_equal(found, wanted.numpy())
    np.testing.assert_array_equal(places, indices.numpy())


@pytest.mark.parametrize("count_include_pad", [False, True])
@pytest.mark.parametrize("options", POOLS[:3])
def test_mean_pooling_agrees_with_torch(options: dict[str, object], count_include_pad: bool) -> None:
    x = numbers(2, 3, 9, 8)
    (found,) = evaluate(lambda b, v: b.pool(v, "mean", count_include_pad=count_include_pad, **options), x)
    wanted = F.avg_pool2d(
        torch.tensor(x), options["kernel"], options.get("stride"), _begin(options), bool(options.get("ceil_mode")), count_include_pad
    )
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5, atol=1e-6)


def _begin(options: dict[str, object]) -> tuple[int, ...]:
    return tuple(p[0] for p in options.get("padding", ((0, 0), (0, 0))))  # type: ignore[attr-defined]


def test_padding_never_wins_a_maximum_and_its_index_stays_inside() -> None:
    x = np.full((1, 1, 3, 3), -np.inf, np.float32)
    found, places = evaluate(lambda b, v: b.pool(v, "max", (3, 3), (1, 1), ((1, 1), (1, 1)), with_indices=True), x)
    assert (found == -np.inf).all() and (places >= 0).all() and (places < 9).all()


@pytest.mark.parametrize("size", [(1, 1), (3, 4), (4, 3), (9, 8), (5, 7)])
def test_adaptive_pooling_agrees_with_torch(size: tuple[int, int]) -> None:
    x = numbers(2, 3, 9, 8)
    mean, top, places = evaluate(lambda b, v: (b.adaptive_pool(v, "mean", size)[0], *b.adaptive_pool(v, "max", size, True)), x)
    wanted, indices = F.adaptive_max_pool2d(torch.tensor(x), size, True)
    np.testing.assert_allclose(mean, F.adaptive_avg_pool2d(torch.tensor(x), size).numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(top, wanted.numpy())
    np.testing.assert_array_equal(places, indices.numpy())


INDEX = np.array([[3, 0], [-1, 2]])


def test_take_and_embedding() -> None:
    middle, rows = evaluate(lambda b, x, i: (b.take(x, i, 1, wrap=True), b.embedding(x, b.elementwise("abs", i))), X, INDEX)
    np.testing.assert_array_equal(middle, X.take(INDEX, 1))
    np.testing.assert_array_equal(rows, X[np.abs(INDEX)])


def test_lookups_clamp_what_is_out_of_range() -> None:
    (found,) = evaluate(lambda b, x, i: b.take(x, i, 0), np.arange(4.0), np.array([-5, 9, 1]))
    np.testing.assert_array_equal(found, [0, 3, 1])


def test_gather_elements() -> None:
    index = np.random.default_rng(SEED).integers(0, 6, (4, 3, 5))
    (found,) = evaluate(lambda b, x, i: b.gather_elements(x, i, 1), X, index)
    np.testing.assert_array_equal(found, np.take_along_axis(X, index, 1))


def test_gather_nd() -> None:
    pairs = np.array([[[0, 1], [3, -1]], [[2, 2], [1, 0]]])
    (plain,) = evaluate(lambda b, x, i: b.gather_nd(x, i), X, pairs)
    np.testing.assert_array_equal(plain, X[pairs[..., 0], pairs[..., 1]])
    single = np.array([[1], [0], [5], [2]])
    (batched,) = evaluate(lambda b, x, i: b.gather_nd(x, i, 1), X, single)
    np.testing.assert_array_equal(batched, X[np.arange(4), single[:, 0]])


@pytest.mark.parametrize("positions", [(0,), (1, 2), (0, 2), (2,)])
def test_advanced_indexing_places_its_dimensions_as_numpy_does(positions: tuple[int, ...]) -> None:
    (found,) = evaluate(lambda b, x, i: b.index(x, [i if d in positions else None for d in range(3)]), X, INDEX)
    np.testing.assert_array_equal(found, X[tuple(INDEX if d in positions else slice(None) for d in range(3))])


@pytest.mark.parametrize("monoid, reduce", [("set", None), ("sum", "add"), ("prod", "multiply"), ("max", "maximum"), ("min", "minimum")])
def test_scatter_elements(monoid: str, reduce: str | None) -> None:
    index = np.array([[1, 3, 0], [2, 2, 5]] if reduce else [[1, 3, 0], [2, 4, 5]])
    base, updates = numbers(2, 6), numbers(2, 3) + 1
    (found,) = evaluate(lambda b, x, i, u: b.scatter(x, i, u, 1, monoid), base, index, updates)
    expected = base.copy()
    if reduce:
        getattr(np, reduce).at(expected, (np.arange(2)[:, None], index), updates)
    else:
        np.put_along_axis(expected, index, updates, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_scatter_skips_what_is_out_of_range() -> None:
    (found,) = evaluate(
        lambda b, x, i, u: b.scatter(x, i, u, 0, "sum"), np.zeros(3, np.float32), np.array([-1, 1, 7]), np.ones(3, np.float32)
    )
    np.testing.assert_array_equal(found, [0, 1, 0])


def test_scatter_nd_and_index_put() -> None:
    base = X.copy()
    tuples, rows = np.array([[0, 1], [3, -1]]), numbers(2, 5)
    (found,) = evaluate(lambda b, x, i, u: b.scatter_nd(x, i, u), base, tuples, rows)
    expected = base.copy()
    expected[tuples[:, 0], tuples[:, 1]] = rows
    np.testing.assert_array_equal(found, expected)
    (found,) = evaluate(lambda b, x, i, u: b.index_put(x, [None, i], u, True), base, np.array([1, 1, -1]), numbers(5))
    expected = base.copy()
    np.add.at(expected, (slice(None), np.array([1, 1, -1])), numbers(5))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_half_scatter_adds_in_single() -> None:
    (found,) = evaluate(
        lambda b, x, i, u: b.scatter(x, i, u, 0, "sum"), np.zeros(1, np.float16), np.zeros(4096, np.int64), np.ones(4096, np.float16)
    )
    assert found == 4096


def test_one_hot() -> None:
    (found,) = evaluate(lambda b, i: b.one_hot(i, 4, 0, F32, 2.0, -1.0, wrap=True), np.array([3, 0, -2]))
    np.testing.assert_array_equal(found, np.where(np.arange(4)[:, None] == np.array([3, 0, 2]), 2.0, -1.0))


def test_random_numbers_depend_on_seed_and_position_only() -> None:
    seed = np.array([12345])
    uniform, again, normal = evaluate(
        lambda b, s: (b.random_uniform((64, 64), s), b.reshape(b.random_uniform((4096,), s), (64, 64)), b.random_normal((4096,), s, F64)),
        seed,
    )
    np.testing.assert_array_equal(uniform, again)
    assert 0 <= uniform.min() < uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.02
    assert abs(normal.mean()) < 0.06 and abs(normal.std() - 1) < 0.05


def test_dropout_keeps_about_one_minus_p_and_scales() -> None:
    y, kept = evaluate(lambda b, x, s: b.dropout(x, 0.25, s), np.ones(4096, np.float32), np.array([7]))
    assert abs(kept.mean() - 0.75) < 0.03
    np.testing.assert_allclose(y, kept / 0.75)


def test_products_and_convolutions_have_the_shapes_of_their_results() -> None:
    b = TensorBuilder("shapes")
    x, w = b.input("x", BF16, (2, 6, 9, 9)), b.input("w", BF16, (4, 3, 3, 3))
    assert b.shape_of(b.convolution(x, w, stride=(2, 2), padding=((1, 1), (1, 1)), groups=2)) == (2, 4, 5, 5)
    t = b.input("t", BF16, (6, 2, 3, 3))
    assert b.shape_of(b.convolution_transpose(x, t, stride=(2, 2), groups=3, output_padding=(1, 1))) == (2, 6, 20, 20)
    p, q = b.input("p", F32, (5, 1, 7, 3)), b.input("q", F32, (4, 8, 3))
    assert b.shape_of(b.matmul(p, q, transpose_b=True)) == (5, 4, 7, 8)
    v = b.input("v", F32, (3,))
    assert b.shape_of(b.matmul(v, v)) == ()
    assert b.shape_of(b.matmul(p, v)) == (5, 1, 7)
    check(b.finish([]), "TensorBuilder")


def _inputs(b: TensorBuilder) -> tuple[str, str, str]:
    return b.input("x", F32, (2, 3)), b.input("y", F32, (4, 3)), b.input("h", F16, (2, 3))


@pytest.mark.parametrize(
    "wrong, error",
    [
        (lambda b, x, y, h: b.elementwise("add", x, y), ShapeError),
        (lambda b, x, y, h: b.elementwise("add", x, h), TypeMismatchError),
        (lambda b, x, y, h: b.elementwise("logical_and", x, x), TypeMismatchError),
        (lambda b, x, y, h: b.reshape(x, (4, 2)), ShapeError),
        (lambda b, x, y, h: b.permute(x, (0, 0)), ShapeError),
        (lambda b, x, y, h: b.broadcast_to(x, (3, 2)), ShapeError),
        (lambda b, x, y, h: b.concatenate([x, b.reshape(x, (6,))], 0), ShapeError),
        (lambda b, x, y, h: b.matmul(x, y), ShapeError),
        (lambda b, x, y, h: b.reduce(x, "sum", 2), ShapeError),
        (lambda b, x, y, h: b.reduce(x, "median"), TypeMismatchError),
        (lambda b, x, y, h: b.slice(x, (0,), (1,), (0,)), ShapeError),
        (lambda b, x, y, h: b.pad(x, ((-2, -1), (0, 0))), ShapeError),
        (lambda b, x, y, h: b.pool(x, "max", (5,)), ShapeError),
    ],
)
def test_wrong_use_is_an_error_that_names_the_types(wrong: Build, error: type[CompilerError]) -> None:
    b = TensorBuilder("wrong")
    with pytest.raises(error):
        wrong(b, *_inputs(b))
