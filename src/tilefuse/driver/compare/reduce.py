"""The smallest graph that still fails: nodes are removed at both ends, results dropped and extents reduced while it fails.

    %a -> %b -> %c -> %d      keep what leads to %c     %a -> %b -> %c
                              start from %b's value     %b (an input) -> %c
                              extent 1024 -> 3          the same, smaller

Each candidate is compiled and compared with its definition; a candidate that fails as well is accepted.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilefuse.base.errors import CompilerError
from tilefuse.driver.compare.meaning import Array, Meaning
from tilefuse.ir.graph import Graph, Input, Node, Type
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.ir.verify import verify

# Errors from evaluating an invalid candidate: an index beyond a smaller extent, a call that refuses its operands.
NONSENSE = (CompilerError, ArithmeticError, LookupError, ValueError, RuntimeError)


@dataclass(frozen=True, slots=True)
class Failing:
    """A graph and inputs that fail. `tried`: number of candidates, `spent_s`: their seconds; finished: whether no smaller candidate
    remained."""

    graph: Graph
    inputs: Mapping[str, Array]
    tried: int = 0
    spent_s: float = 0.0
    finished: bool = True


Fails = Callable[[Graph, Mapping[str, Array]], bool]


Values = Callable[[Graph, Mapping[str, Array]], "dict[str, Array] | None"]


def reduced(graph: Graph, inputs: Mapping[str, Array], fails: Fails, seconds: float = 60.0,
            clock: Callable[[], float] = time.perf_counter, values: Values | None = None) -> Failing:
    """A graph that fails while none of its candidates does, or the smallest one within the time. Units: seconds.

    values: of the nodes from which a candidate may start; by default the values by definition.
    Requires: the graph fails, and all its inputs are given.
    Cost: one compile per candidate; their number grows with the logarithm of the nodes as long as halves can be removed.
    """
    started, tried = clock(), 0
    smallest = Failing(graph, inputs)
    progress = True
    while progress:
        progress = False
        for smaller in candidates(smallest.graph, smallest.inputs, values or defined_values):
            if clock() - started > seconds:
                return replace(smallest, tried=tried, spent_s=clock() - started, finished=False)
            tried += 1
            if fails(smaller.graph, smaller.inputs):
                smallest, progress = smaller, True
                break
    return replace(smallest, tried=tried, spent_s=clock() - started)


def candidates(graph: Graph, inputs: Mapping[str, Array], values_of: Values) -> Iterator[Failing]:
    """Smaller graphs with their inputs, the most promising first."""
    if len(graph.results) > 1:
        for result in graph.results:
            yield _with_inputs(leading_to(graph, (result,)), inputs)
    values: dict[str, Array] | None = None
    for position in halving(len(graph.nodes)):
        node = graph.nodes[position]
        if len(graph.results) == 1 and node.name != graph.results[0]:
            yield _with_inputs(leading_to(graph, (node.name,)), inputs)
        if node.name not in graph.results:
            if values is None:
                values = values_of(graph, inputs)
            if values is None:
                return
            cut = _starting_from(graph, node)
            if len(cut.nodes) < len(graph.nodes):
                yield _with_inputs(cut, {**inputs, node.name: values[node.name]})
    yield from _smaller_extents(graph, inputs)


def halving(count: int) -> list[int]:
    """0 .. count - 1, the middle first, then the middles of the halves."""
    order: list[int] = []
    spans = [(0, count)]
    while spans:
        low, high = spans.pop(0)
        if low < high:
            middle = (low + high) // 2
            order.append(middle)
            spans += [(low, middle), (middle + 1, high)]
    return order


def zero_values(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Zeros for every node: a compile that fails does not depend on data."""
    return {n.name: zeros(n.type) for n in graph.nodes}


def zeros(type_: Type) -> Array:
    """Zeros of a type, in the memory of one."""
    return np.broadcast_to(np.zeros((), NUMPY_DTYPES[type_.dtype.name]), type_.shape)


def defined_values(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
    """Every value of the graph by definition; None where the definition rejects these inputs."""
    meaning = Meaning(graph, inputs, wide=False)
    try:
        return {n.name: meaning.value(n.name) for n in graph.nodes}
    except NONSENSE:
        return None


def leading_to(graph: Graph, results: Sequence[str]) -> Graph:
    """The part of the graph that computes these values."""
    needed: set[str] = set()
    stack = list(results)
    while stack:
        name = stack.pop()
        if name not in needed and name in graph.type_by_name:
            needed.add(name)
            stack += graph.node_by_name[name].reads() if name in graph.node_by_name else ()
    return Graph(graph.name, tuple(i for i in graph.inputs if i.name in needed), tuple(n for n in graph.nodes if n.name in needed),
                 tuple(results))


def _starting_from(graph: Graph, node: Node) -> Graph:
    """The graph with a node's value as an input."""
    opened = Graph(graph.name, (*graph.inputs, Input(node.name, node.type)), tuple(n for n in graph.nodes if n.name != node.name),
                   graph.results)
    return leading_to(opened, graph.results)


def _with_inputs(graph: Graph, values: Mapping[str, Array]) -> Failing:
    return Failing(graph, {i.name: values[i.name] for i in graph.inputs})


def _smaller_extents(graph: Graph, inputs: Mapping[str, Array]) -> Iterator[Failing]:
    """The graph with one of its extents reduced everywhere, and the inputs cut to it; only those that satisfy the rules."""
    extents = {e for i in graph.inputs for e in i.type.shape} | {e for n in graph.nodes for e in n.extents.values()}
    for extent in sorted(extents, reverse=True):
        for smaller in sizes_below(extent):
            changed = _resized(graph, extent, smaller)
            if not verify(changed):
                yield Failing(changed, {i.name: np.ascontiguousarray(inputs[i.name][tuple(slice(0, e) for e in i.type.shape)])
                                        .reshape(i.type.shape) for i in changed.inputs})


def sizes_below(extent: int) -> list[int]:
    """Extents to try in place of one: small ones first, then halves, then one less."""
    extents = [1, 2, 3, 4, 8, 16, 32, extent // 8, extent // 2, extent - 1]
    return sorted({e for e in extents if 0 < e < extent})


def _resized(graph: Graph, old: int, new: int) -> Graph:
    def sizes(shape: Iterable[int]) -> tuple[int, ...]:
        return tuple(new if e == old else e for e in shape)

    inputs = tuple(replace(i, type=replace(i.type, shape=sizes(i.type.shape))) for i in graph.inputs)
    nodes = tuple(replace(n, type=replace(n.type, shape=sizes(n.type.shape)), over=tuple((a, new if e == old else e) for a, e in n.over))
                  for n in graph.nodes)
    return replace(graph, inputs=inputs, nodes=nodes)


def as_whole(graph: Graph) -> Graph:
    """The graph with its constants as inputs, so that a file stores their data with the others'."""
    return Graph(graph.name, tuple(replace(i, constant=False) for i in graph.inputs), graph.nodes, graph.results, graph.updates)


def described(failing: Failing) -> dict[str, Any]:
    """A reduction in figures."""
    return {"nodes": len(failing.graph.nodes), "inputs": {i.name: str(i.type) for i in failing.graph.inputs}, "tried": failing.tried,
            "seconds": failing.spent_s, "finished": failing.finished}
