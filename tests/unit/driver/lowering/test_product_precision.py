"""The option `float32_products` and torch's own setting decide the precision that products of f32 carry."""
from __future__ import annotations

import pytest

from tilefuse.domain.contraction import contraction_of, matrix_arithmetic
from tilefuse.driver.lowering.product_precision import framework_products, with_precision
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F16, F32, DType
from tilefuse.ir.graph import Graph


def product(dtype: DType = F32, precision: str = "default") -> Graph:
    b = TensorBuilder("product")
    return b.finish([b.matmul(b.input("x", dtype, (16, 8)), b.input("w", dtype, (8, 24)), precision=precision)])


@pytest.mark.parametrize(("option", "arithmetic"), [("split", "split"), ("threads", None), ("tf32", "tf32"), ("auto", "split")])
def test_option_decides_the_arithmetic(option: str, arithmetic: str | None) -> None:
    graph = with_precision(product(), option)
    found = contraction_of(graph.nodes[0], graph)
    assert found is not None and matrix_arithmetic(found, F32, F32) == arithmetic


def test_only_products_of_f32_without_a_precision_of_their_own_change() -> None:
    for graph in (product(F16), product(precision="tf32"), product(precision="f32")):
        assert with_precision(graph, "threads") is graph
    graph = product()
    assert with_precision(graph, "split") is graph


def test_auto_follows_torch() -> None:
    torch = pytest.importorskip("torch")
    assert framework_products() == "split"
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert framework_products() == "tf32"
        assert with_precision(product(), "auto").nodes[0].attribute("precision") == "tf32"
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert framework_products() == "split"
