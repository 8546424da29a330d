"""Contractions by structure: forms users write, their axes, index maps and arithmetic, and what is refused. The laws draw random ones."""
from __future__ import annotations

import pytest

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.sum_of_products import SumOfProducts, sum_of_products
from tilefuse.ir.affine import axis
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, F32, F64
from tilefuse.ir.graph import Graph
from tilefuse.ir.scalar import Read
from tilefuse.ir.text import parse_graph


def contraction(text: str) -> SumOfProducts:
    """The contraction of a graph's last node."""
    graph = parse_graph(text)
    known = sum_of_products(graph.nodes[-1], graph)
    assert isinstance(known, SumOfProducts), known
    return known


def rejection(text: str) -> Rejected:
    """Why a graph's last node is no contraction."""
    graph = parse_graph(text)
    known = sum_of_products(graph.nodes[-1], graph)
    assert isinstance(known, Rejected)
    return known


def names(axes: tuple[tuple[str, int], ...]) -> str:
    return "".join(a for a, _ in axes)


def test_a_broadcast_product_summed_over_its_middle_axis() -> None:
    known = contraction("""
        graph @hand(%a: f32[64, 48], %b: f32[48, 80]) -> (f32[64, 80]) {
          %m: f32[64, 48, 80] = map[i, k, j] { mul(%a[i, k], %b[k, j]) }
          %y: f32[64, 80] = reduce.sum[i, j] over[k < 48] { %m[i, k, j] }
          return %y
        }""")
    assert known.sizes == (1, 64, 80, 48) and known.nodes == ("m", "y")
    assert (names(known.rows), names(known.columns), names(known.inner), names(known.batch)) == ("i", "j", "k", "")
    assert known.left.read == Read("a", (axis("i"), axis("k"))) and known.left.is_plain
    assert known.right.strides((80, 1)) == {"j": 1, "k": 80}
    assert not known.arithmetic.rounds_products and not known.is_vector
    assert known.words() == "product of 64 rows, 80 columns, 48 inner"


def test_products_rounded_to_16_bits_are_noted() -> None:
    known = contraction("""
        graph @narrow(%a: bf16[6, 5], %b: bf16[5, 7]) -> (bf16[6, 7]) {
          %m: bf16[6, 5, 7] = map[i, k, j] { bf16(mul(f32(%a[i, k]), f32(%b[k, j]))) }
          %s: f32[6, 7] = reduce.sum[i, j] over[k < 5] { f32(%m[i, k, j]) }
          %y: bf16[6, 7] = map[i, j] { bf16(%s[i, j]) }
          return %y
        }""")
    arithmetic = known.arithmetic
    assert arithmetic.rounds_products and arithmetic.products == BF16 and arithmetic.total == F32 and arithmetic.result == BF16
    assert (arithmetic.left, arithmetic.right) == (BF16, BF16) and known.nodes == ("m", "s", "y") and known.node == "y"


def test_products_added_in_f64_are_rounded_to_f32_first() -> None:
    known = contraction("""
        graph @wide(%a: f32[6, 5], %b: f32[5, 7]) -> (f64[6, 7]) {
          %y: f64[6, 7] = reduce.sum[i, j] over[k < 5] { f64(mul(%a[i, k], %b[k, j])) }
          return %y
        }""")
    assert known.arithmetic.rounds_products and known.arithmetic.products == F32 and known.arithmetic.total == F64


def test_a_convolution_written_as_a_guarded_sum() -> None:
    """Rows are images and places, columns are output channels; the padding is a condition of the products and of the image."""
    known = contraction("""
        graph @conv(%x: f32[2, 3, 8], %w: f32[4, 3, 3]) -> (f32[2, 4, 8]) {
          %y: f32[2, 4, 8] = reduce.sum[n, o, i] over[c < 3, p < 3] {
            guard(0 <= i + p + -1 < 8 ? mul(%x[n, c, i + p + -1], %w[o, c, p]) : 0.0:f32)
          }
          return %y
        }""")
    assert (names(known.rows), names(known.columns), names(known.inner)) == ("ni", "o", "cp")
    assert known.sizes == (1, 16, 4, 9) and len(known.bounds) == 1
    assert known.left.bounds == known.bounds and not known.right.bounds
    assert known.left.strides((24, 8, 1)) == {"n": 24, "i": 1, "c": 8, "p": 1}


def test_a_depthwise_convolution_has_no_columns() -> None:
    known = contraction("""
        graph @depthwise(%x: f32[2, 3, 10], %w: f32[3, 3]) -> (f32[2, 3, 8]) {
          %y: f32[2, 3, 8] = reduce.sum[n, c, i] over[p < 3] { mul(%x[n, c, i + p], %w[c, p]) }
          return %y
        }""")
    assert known.is_vector and names(known.batch) == "c" and known.words().startswith("matrix-vector product")


def test_a_gram_matrix() -> None:
    known = contraction("""
        graph @gram(%a: f32[9, 5]) -> (f32[9, 9]) {
          %y: f32[9, 9] = reduce.sum[i, j] over[k < 5] { mul(%a[i, k], %a[j, k]) }
          return %y
        }""")
    assert (names(known.rows), names(known.columns)) == ("i", "j") and known.left.read != known.right.read


def test_third_factors_join_the_smaller_operand_and_numbers_become_a_scale() -> None:
    known = contraction("""
        graph @scaled(%a: f32[9, 5], %w: f32[5, 7], %s: f32[5], %t: f32[]) -> (f32[9, 7]) {
          %y: f32[9, 7] = reduce.sum[i, j] over[k < 5] { div(mul(mul(%a[i, k], %s[k]), mul(%w[k, j], %t[])), 2.0:f32) }
          return %y
        }""")
    assert names(known.rows) == "i" and known.scale is not None and known.left.read is None and known.right.is_plain


def test_functions_of_two_tensors_and_of_positions_are_factors() -> None:
    """Weights computed from both sides, and a triangle that reads nothing."""
    known = contraction("""
        graph @weights(%x: f32[9], %z: f32[6], %v: f32[6, 4]) -> (f32[9, 4]) {
          %y: f32[9, 4] = reduce.sum[i, d] over[j < 6] { mul(exp(sub(%x[i], %z[j])), %v[j, d]) }
          return %y
        }""")
    assert known.left.read is None and names(known.left.axes) == "ij" and names(known.rows) == "i"
    known = contraction("""
        graph @triangle(%v: f32[6, 4]) -> (f32[9, 4]) {
          %y: f32[9, 4] = reduce.sum[i, d] over[j < 6] { mul(f32(index(i + -1*j)), %v[j, d]) }
          return %y
        }""")
    assert known.left.read is None and names(known.rows) == "i"


def test_library_products_with_broadcast_batches_and_vectors() -> None:
    b = TensorBuilder("calls")
    x, w, v = b.input("x", F32, (3, 5, 4)), b.input("w", F32, (4, 6)), b.input("v", F32, (4,))
    graph = b.finish([b.matmul(x, w), b.matmul(x, v)])
    matrix, vector = (sum_of_products(n, graph) for n in graph.nodes if n.kind == "library.matmul")
    assert isinstance(matrix, SumOfProducts) and matrix.sizes == (1, 15, 6, 4)
    assert isinstance(vector, SumOfProducts) and vector.sizes == (1, 15, 1, 4) and vector.is_vector


def test_the_result_of_einsum() -> None:
    """An importer's product behind permutes and reshapes: the index maps are those of the tensors."""
    from tilefuse.arrays.functions.products import lower_pair

    b = TensorBuilder("einsum")
    x, w = b.input("x", F32, (2, 5, 3, 4)), b.input("w", F32, (4, 2, 6))
    graph = b.finish([lower_pair(b, x, w, "bicr", "rbj", "jbci")])
    (call,) = (n for n in graph.nodes if n.kind == "library.matmul")
    known = sum_of_products(call, graph)
    assert isinstance(known, SumOfProducts) and known.sizes == (2, 15, 6, 4)
    assert known.left.read is not None and known.left.read.value == "x" and known.right.read is not None and known.right.read.value == "w"


ROW_SUMS = {
    "one operand": "%a[i, k]",
    "elementwise": "mul(%a[i, k], %b[i, k])",
    "squares": "mul(%a[i, k], %a[i, k])",
}


@pytest.mark.parametrize("body", ROW_SUMS.values(), ids=ROW_SUMS)
def test_row_reductions_are_refused(body: str) -> None:
    refused = rejection(f"""
        graph @rows(%a: f32[9, 5], %b: f32[9, 5]) -> (f32[9]) {{
          %y: f32[9] = reduce.sum[i] over[k < 5] {{ {body} }}
          return %y
        }}""")
    assert refused.reason is Reason.REDUCTION_MISMATCH and "row reduction" in refused.detail


def test_other_nodes_are_refused() -> None:
    text = """
        graph @greatest(%a: f32[9, 5], %b: f32[5, 7]) -> (f32[9, 7]) {
          %y: f32[9, 7] = reduce.max[i, j] over[k < 5] { mul(%a[i, k], %b[k, j]) }
          return %y
        }"""
    assert "reduce.max" in rejection(text).detail
    separate = text.replace("reduce.max", "reduce.sum").replace("%b[k, j]", "%b[0, j]")
    assert "no summed axis" in rejection(separate).detail


def test_a_conversion_of_a_sum_with_other_users_is_no_part_of_it() -> None:
    graph = parse_graph("""
        graph @kept(%a: f32[6, 5], %b: f32[5, 7]) -> (f64[6, 7], f32[6, 7]) {
          %s: f32[6, 7] = reduce.sum[i, j] over[k < 5] { mul(%a[i, k], %b[k, j]) }
          %y: f64[6, 7] = map[i, j] { f64(%s[i, j]) }
          return %y, %s
        }""")
    refused, known = (sum_of_products(graph.node_by_name[n], graph) for n in ("y", "s"))
    assert isinstance(refused, Rejected) and "other users" in refused.detail and isinstance(known, SumOfProducts)


def test_operands_are_maps_that_verify() -> None:
    graph: Graph = parse_graph("""
        graph @conv(%x: f32[3, 8], %w: f32[4, 3, 3]) -> (f32[4, 8]) {
          %y: f32[4, 8] = reduce.sum[o, i] over[c < 3, p < 3] {
            guard(0 <= i + p + -1 < 8 ? mul(%x[c, i + p + -1], %w[o, c, p]) : 0.0:f32)
          }
          return %y
        }""")
    known = sum_of_products(graph.nodes[-1], graph)
    assert isinstance(known, SumOfProducts)
    assert known.left.node("operand").type.shape == (4, 3, 3) and known.right.node("operand").type.shape == (8, 3, 3)
