"""Decompositions at their limits: overflow, infinities, cancellation, empty axes, narrow types; against the composites' meaning."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F16, F32, F64
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.library.meaning import LIBRARY_MEANINGS
from tilefuse.passes import DEFAULT_PIPELINE, PassContext, Pipeline
from tilefuse.passes.decompose import EXPANSIONS

Build = Callable[[TensorBuilder, str], str]
DTYPES = {np.dtype(np.float16): F16, np.dtype(np.float32): F32, np.dtype(np.float64): F64}


def decomposed(build: Build, x: np.ndarray) -> np.ndarray:
    b = TensorBuilder("case")
    graph: Graph = b.finish([build(b, b.input("x", DTYPES[x.dtype], x.shape))])
    context = PassContext(verify=2)
    after = Pipeline.parse(DEFAULT_PIPELINE).run(graph, context)
    assert all(n.category != "library" for n in after.nodes)
    (found,) = interpret(after, {"x": x, **{name: np.asarray(data) for name, data in context.constants.items()}})
    return np.asarray(found)


def test_every_composite_has_a_meaning() -> None:
    assert set(LIBRARY_MEANINGS) >= set(EXPANSIONS)


def test_softmax_does_not_overflow() -> None:
    found = decomposed(lambda b, x: b.softmax(x, 0), np.array([1e4, 1e4, -1e4], np.float32))
    np.testing.assert_allclose(found, [0.5, 0.5, 0.0])


def test_log_softmax_keeps_small_differences_beside_large_values() -> None:
    found = decomposed(lambda b, x: b.log_softmax(x, 0), np.array([1e4, 1e4 - 1, 0.0], np.float32))
    np.testing.assert_allclose(found, [-0.3132617, -1.3132617, -10000.3132617], rtol=1e-6)


@pytest.mark.parametrize("row, wanted", [([-np.inf] * 3, -np.inf), ([np.inf, 0.0, 1.0], np.inf), ([1e4, 1e4, 0.0], 1e4 + np.log(2)),
                                         ([np.nan, 0.0, 1.0], np.nan), ([-np.inf, 2.0, -np.inf], 2.0)])  # fmt: skip
def test_logsumexp_of_special_rows(row: list[float], wanted: float) -> None:
    np.testing.assert_allclose(decomposed(lambda b, x: b.logsumexp(x, 0), np.array(row, np.float32)), wanted, rtol=1e-6)


def test_variance_of_a_large_offset_does_not_cancel() -> None:
    x = (1e4 + np.random.default_rng(0).standard_normal(4096)).astype(np.float32)
    found = decomposed(lambda b, v: b.variance(v, correction=0), x)
    np.testing.assert_allclose(found, x.astype(np.float64).var(), rtol=1e-4)


def test_variance_without_degrees_of_freedom_is_not_a_number() -> None:
    assert np.isnan(decomposed(lambda b, v: b.variance(v), np.array([3.0], np.float32)))


def test_mean_of_nothing_is_not_a_number_and_of_half_does_not_overflow() -> None:
    assert np.isnan(decomposed(lambda b, v: b.mean(v), np.zeros((0,), np.float32)))
    assert decomposed(lambda b, v: b.mean(v), np.full(4096, 60000.0, np.float16)) == np.float16(60000.0)


def test_logsumexp_of_nothing_is_minus_infinity() -> None:
    assert decomposed(lambda b, v: b.logsumexp(v, 1), np.zeros((1, 0), np.float32)) == -np.inf


def test_layer_norm_of_a_constant_row_is_zero() -> None:
    found = decomposed(lambda b, v: b.layer_norm(v, 1)[0], np.full((2, 64), 123.0, np.float16))
    np.testing.assert_array_equal(found, np.zeros((2, 64)))


def test_weights_of_another_type_are_converted() -> None:
    b = TensorBuilder("mixed")
    x, w = b.input("x", F16, (2, 8)), b.input("w", F64, (8,))
    after = Pipeline.parse(DEFAULT_PIPELINE).run(b.finish([b.rms_norm(x, 1, w)[0]]), PassContext(verify=2))
    assert after.type_of(after.results[0]).dtype == F16


def test_results_share_their_reductions_and_keep_their_names() -> None:
    b = TensorBuilder("shared")
    b.hint = "norm"
    y, mean, rstd = b.layer_norm(b.input("x", F32, (4, 8)), 1)
    after = Pipeline.parse(DEFAULT_PIPELINE).run(b.finish([y, mean, rstd]), PassContext(verify=2))
    assert after.results == (y, mean, rstd)
    assert sorted(n.kind for n in after.nodes if n.category == "reduce") == ["reduce.m2", "reduce.sum"]


def test_equal_composites_are_expanded_once() -> None:
    b = TensorBuilder("equal")
    x = b.input("x", F32, (4, 8))
    after = Pipeline.parse(DEFAULT_PIPELINE).run(b.finish([b.elementwise("add", b.softmax(x, 1), b.softmax(x, -1))]))
    assert sum(n.category == "reduce" for n in after.nodes) == 2
