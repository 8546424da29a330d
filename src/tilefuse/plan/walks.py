"""Walks: sets of nodes from a product to the product that reads its columns, which one online kernel may hold at any length.

    scores = q k'   ->  scale, mask, maximum, exp, sum, divide  ->   y = p v        {scores, ..., y}

No part of such a set is worth a kernel alone: only together do the scores never reach memory. Walks are therefore proposed as a whole, and
only here do large products join a kernel. The scheduler decides whether the set has the right form (`templates/staged/online/products.py`).

Gradients of attention have several products on either side: those that rewritings mark as `COMPUTED_AGAIN`. No kernel for them has been
timed; other graphs of such products are planned as they were.
"""
from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.contraction import RESULT_DTYPE, any_contraction_of
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.scalar import Read
from tilefuse.passes.device.padding import PADDED
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.online.products import NARROW, keeps_sums

# Attribute of products that a kernel computes from operands again instead of reading what an earlier one stored.
COMPUTED_AGAIN = "computed_again"


def find_walks(graph: Graph, device: DeviceSpec) -> tuple[tuple[str, ...], ...]:
    """The walks of a graph, each in graph order. Cost: linear in the nodes, times the number of nodes between products."""
    if device.kind != "cuda":
        return ()
    walks: dict[tuple[str, ...], None] = {}
    for node in graph.nodes:
        if node.attribute(COMPUTED_AGAIN):
            for walk in _of_several(node, graph):
                walks[walk] = None
        elif (_is_product(node) or keeps_sums(node, graph)) and node.type.shape[-1] >= device.fitted.products.walk_columns:
            contraction = any_contraction_of(node, graph)
            if contraction is not None and contraction.inner <= device.fitted.products.walk_depth:
                for walk in _from(node, graph, device.fitted.products.walk_depth):
                    walks[walk] = None
    return tuple(walks)


def _is_product(node: Node) -> bool:
    return node.kind == "library.matmul" and len(node.type.shape) >= 2 and not node.attribute(PADDED) and not node.attribute(RESULT_DTYPE)


def _from(score: Node, graph: Graph, depth: int) -> Iterator[tuple[str, ...]]:
    """Walks that begin with a product; and the same with all other values of one number a row, as the logarithms that a gradient needs.
    depth: limit on the columns of the last product."""
    reached: dict[str, None] = {score.name: None}
    ends: dict[str, None] = {}
    stack = [score.name]
    while stack:
        for name in graph.users_by_name[stack.pop()]:
            user = graph.node_by_name[name]
            if name in reached or name in ends:
                continue
            if _is_product(user):
                if user.operands[0] in reached and user.type.shape[-1] <= depth and name != score.name:
                    ends[name] = None
                continue
            if user.category in ("map", "gather", "reduce") and len(reached) < SEARCH.generators.between:
                reached[name] = None
                stack.append(name)
    if not ends:
        return
    walk = _leading_to(ends, reached, graph)
    if score.name not in walk:
        return
    yield tuple(n.name for n in graph.in_order(walk))
    num_rows = score.type.num_elements // score.type.shape[-1]
    of_rows = [n for n in reached if graph.node_by_name[n].type.num_elements == num_rows]
    whole = _leading_to([*ends, *of_rows], reached, graph)
    if len(whole) > len(walk):
        yield tuple(n.name for n in graph.in_order(whole))


def _leading_to(ends: Iterable[str], reached: Container[str], graph: Graph) -> dict[str, None]:
    """The ends, and the nodes among `reached` that lead to them."""
    inside = dict.fromkeys(ends)
    stack = list(inside)
    while stack:
        for value in graph.node_by_name[stack.pop()].reads():
            if value in reached and value not in inside:
                inside[value] = None
                stack.append(value)
    return inside


def _of_several(score: Node, graph: Graph) -> Iterator[tuple[str, ...]]:
    """The walk of a marked product: others like it whose results the same products read, with the maps between, and all of these; and the
    same without maps that only move operands."""
    scores: dict[str, None] = {score.name: None}
    inside: dict[str, None] = {}
    while True:
        ends = [end for s in scores for end in _ends(s, graph)]
        inside = dict.fromkeys(ends)
        stack, known = list(inside), len(scores)
        while stack:
            for value in graph.node_by_name[stack.pop()].reads():
                node = graph.node_by_name.get(value)
                if node is None or value in inside:
                    continue
                is_score = bool(node.attribute(COMPUTED_AGAIN))
                # Maps of the scores, turned ones among them, and those that only move operands, as where heads share these.
                if node.type.num_elements == score.type.num_elements and (is_score or node.category == "map") or _moves(node):
                    inside[value] = None
                    stack.append(value)
                    if is_score:
                        scores[value] = None
        if len(scores) == known:
            break
    if score.name in inside:
        walk = graph.in_order(inside)
        yield tuple(n.name for n in walk)
        # Where moved operands have no tensor map, a kernel of their own moves them.
        if any(map(_moves, walk)):
            yield tuple(n.name for n in walk if not _moves(n))


def _moves(node: Node) -> bool:
    """Whether a node only moves elements of 16 bits, as operands of products have."""
    return node.category == "map" and isinstance(node.body, Read) and node.type.dtype.name in NARROW


def _ends(score: str, graph: Graph) -> Iterator[str]:
    """Marked products that read the columns of a marked product, through maps."""
    reached, stack = {score}, [score]
    while stack:
        for name in graph.users_by_name[stack.pop()]:
            user = graph.node_by_name[name]
            if user.attribute(COMPUTED_AGAIN) and user.operands[0] in reached:
                yield name
            elif user.category == "map" and name not in reached and len(reached) < SEARCH.generators.between:
                reached.add(name)
                stack.append(name)
