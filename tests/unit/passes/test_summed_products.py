"""Sums of products that become one product: which terms are joined, and that the sum stays the same."""
from __future__ import annotations

import numpy as np
import pytest

from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph, print_graph
from tilefuse.passes import PassContext, Pipeline

STEPS = 4


def graph_text(extra: str = "", last: str = "%s3", results: str = "") -> str:
    """The sum of STEPS products a_n^T @ b_n, the second operand of the last one given turned."""
    inputs = ", ".join(f"%a{n}: f32[3, 5], %b{n}: f32[{'7, 3' if n == STEPS - 1 else '3, 7'}]" for n in range(STEPS))
    lines = [f"graph @g({inputs}, %z: f32[5, 7]) -> (f32[5, 7]{results}) {{"]
    for n in range(STEPS):
        turned = "true" if n == STEPS - 1 else "false"
        lines.append(f"  %m{n}: f32[5, 7] = library.matmul (%a{n}, %b{n}) "
                     f'{{precision = "default", transpose_a = true, transpose_b = {turned}}}')
    lines += [f"  %s{n}: f32[5, 7] = map [i, j] {{ add(%{'m0' if n == 1 else f's{n - 1}'}[i, j], %m{n}[i, j]) }}" for n in range(1, STEPS)]
    return "\n".join([*lines, *([extra] if extra else []), f"  return {last}", "}"]) + "\n"


def joined(text: str) -> str:
    """The graph after the pass, tidied up."""
    pipeline = Pipeline.parse("merge-summed-products,inline-views,simplify-index,remove-dead-nodes")
    return print_graph(pipeline.run(parse_graph(text), PassContext()))


def values(text: str) -> list[np.ndarray]:
    """Results on integers, so that every order of summing gives the same."""
    graph = parse_graph(text)
    draw = np.random.default_rng(5)
    given = {i.name: draw.integers(-4, 5, i.type.shape).astype(np.float32) for i in graph.inputs}
    return [np.asarray(r) for r in interpret(graph, given)]


PLUS_OTHER = graph_text("  %t: f32[5, 7] = map [i, j] { add(%s3[i, j], %z[i, j]) }", "%t")
USED_INSIDE = graph_text(last="%s3, %s1", results=", f32[5, 7]")
TERM_USED = graph_text("  %u: f32[5, 7] = map [i, j] { exp(%m1[i, j]) }", "%s3, %u", ", f32[5, 7]")


@pytest.mark.parametrize(("text", "products"), [
    (graph_text(), 1),            # all four are one
    (PLUS_OTHER, 1),              # and the fifth term is added
    (USED_INSIDE, 4),             # a partial sum that is a result: two and two are left, too few
    (TERM_USED, 2),               # a term that somebody else reads stays, three are joined
], ids=["all", "plus-other", "used-inside", "term-used"])
def test_terms_that_are_joined(text: str, products: int) -> None:
    """The number of products left, and the same values."""
    after = joined(text)
    assert after.count("library.matmul") == products
    for new, old in zip(values(after), values(text), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6)


def test_large_or_few_terms_stay() -> None:
    """The same object comes back where nothing is to be joined."""
    graph = parse_graph(graph_text())
    assert Pipeline.parse("merge-summed-products{max_bytes=100}").run(graph, PassContext()) is graph
    assert Pipeline.parse("merge-summed-products{min_terms=5}").run(graph, PassContext()) is graph


def with_row_sums(last: str, results: str = "f32[7]") -> str:
    """The products' sum beside sums over the rows of their right operands; the last of these is given turned, and read so."""
    lines = [f"  %r{n}: f32[7] = reduce.sum [j] over [i < 3] {{ %b{n}[{'j, i' if n == STEPS - 1 else 'i, j'}] }}" for n in range(STEPS)]
    lines += [f"  %t{n}: f32[7] = map [j] {{ add(%{'r0' if n == 1 else f't{n - 1}'}[j], %r{n}[j]) }}" for n in range(1, STEPS)]
    return graph_text("\n".join([*lines, last]), "%s3, %v", f", {results}")


def test_row_sums_of_what_lies_end_to_end_are_one_sum() -> None:
    """One reduction instead of four, of the product's own operand, and the same values."""
    text = with_row_sums("  %v: f32[7] = map [j] { mul(%t3[j], 2.0:f32) }")
    after = joined(text)
    assert after.count("reduce.sum") == 1 and "%s3_concatenate_1[" in after
    for new, old in zip(values(after), values(text), strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize("last", [
    "  %v: f32[7] = map [j] { mul(%t2[j], %t3[j]) }",      # a partial sum that somebody reads
    "  %v: f32[7] = map [j] { mul(%r3[j], %t3[j]) }",      # a term that somebody reads
])
def test_row_sums_that_others_see_stay(last: str) -> None:
    text = with_row_sums(last)
    assert joined(text).count("reduce.sum") == STEPS
    for new, old in zip(values(joined(text)), values(text), strict=True):
        np.testing.assert_array_equal(new, old)
