"""Products of slices that become one product: which are joined, what becomes of sums with other products, and that values stay."""
from __future__ import annotations

import numpy as np
import pytest

from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph, print_graph
from tilefuse.passes import PassContext, Pipeline
from tilefuse.passes.sliced_products import MergeSlicedProducts

PLAIN = '{precision = "default", transpose_a = false, transpose_b = false}'


def recurrence(steps: int, slices: int = 0, dtype: str = "f32", extra: str = "", results: str = "", turned: bool = False) -> str:
    """h <- maximum(x[t] @ w + h @ u, 0), the steps written out, the last one first in x."""
    w = "7, 5" if turned else "5, 7"
    matrix = PLAIN.replace("transpose_b = false", "transpose_b = true") if turned else PLAIN
    lines = [f"graph @g(%x: {dtype}[{slices or steps}, 3, 5], %h0: {dtype}[3, 7], %w: {dtype}[{w}], %u: {dtype}[7, 7])"
             f" -> ({dtype}[3, 7]{', ' + dtype + '[3, 7]' if results else ''}) {{"]
    for t in range(steps):
        lines += [f"  %x{t}: {dtype}[3, 5] = map [i, j] {{ %x[{steps - 1 - t}, i, j] }}",
                  f"  %p{t}: {dtype}[3, 7] = library.matmul (%x{t}, %w) {matrix}",
                  f"  %q{t}: {dtype}[3, 7] = library.matmul (%h{t}, %u) {PLAIN}",
                  f"  %s{t}: {dtype}[3, 7] = map [i, j] {{ add(%p{t}[i, j], %q{t}[i, j]) }}",
                  f"  %h{t + 1}: {dtype}[3, 7] = map [i, j] {{ maximum(%s{t}[i, j], 0:{dtype}) }}"]
    return "\n".join([*lines, *([f"  {extra}"] if extra else []), f"  return %h{steps}{results}", "}"]) + "\n"


def joined(text: str) -> str:
    """The graph after the pass, tidied up."""
    pipeline = Pipeline.parse("merge-sliced-products,inline-views,simplify-index,remove-dead-nodes")
    return print_graph(pipeline.run(parse_graph(text), PassContext()))


def values(text: str) -> list[np.ndarray]:
    """Results on integers, so that every order of summing gives the same."""
    graph = parse_graph(text)
    draw = np.random.default_rng(5)
    given = {i.name: draw.integers(-2, 3, i.type.shape).astype({"f64": np.float64, "f16": np.float16}.get(i.type.dtype.name, np.float32))
             for i in graph.inputs}
    return [np.asarray(r) for r in interpret(graph, given)]


READ_TWICE = recurrence(5, extra="%y: f32[3, 7] = map [i, j] { exp(%p1[i, j]) }", results=", %y")
STATE_READ = recurrence(5, extra="%y: f32[3, 7] = map [i, j] { exp(%q1[i, j]) }", results=", %y")

# Both products are rounded before they are added.
F16 = recurrence(4, dtype="f16").replace("maximum(", "f16(maximum(f32(").replace("], 0:f16) }", "]), 0:f32)) }").replace(
    "add(%p", "f16(add(f32(%p").replace("[i, j], %q", "[i, j]), f32(%q").replace("[i, j]) }\n  %h", "[i, j]))) }\n  %h")


@pytest.mark.parametrize(("text", "products", "biases"), [
    (recurrence(4), 5, 4),                   # the products of the input are one, those of the state have biases
    (recurrence(5, turned=True), 6, 5),
    (recurrence(4, slices=7), 5, 4),         # most slices are multiplied
    (recurrence(4, dtype="f64"), 5, 4),
    (READ_TWICE, 7, 4),                      # a product that somebody else reads is no bias
    (STATE_READ, 7, 4),                      # nor is one added to a product that somebody else reads
], ids=["f32", "turned", "some-left", "f64", "read-twice", "state-read"])
def test_products_of_slices_are_one(text: str, products: int, biases: int) -> None:
    """The number of products left and of biases among them, and the same values."""
    after = joined(text)
    assert after.count("library.matmul") == products and after.count("has_bias = true") == biases
    for new, old in zip(values(after), values(text), strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize(("text", "options"), [
    (recurrence(3), {}), (recurrence(4, slices=8), {}), (recurrence(4), {"max_bytes": 300}),
    (recurrence(4).replace("%x[0, i, j]", "%x[i, i, j]"), {}), (recurrence(4).replace("return %h4", "return %p1"), {}), (F16, {}),
], ids=["few", "half", "large", "diagonal", "a-result", "rounded"])
def test_others_stay(text: str, options: dict[str, int]) -> None:
    """The same object comes back where nothing is to be joined."""
    graph = parse_graph(text)
    assert MergeSlicedProducts(**options).run(graph, PassContext()) is graph
