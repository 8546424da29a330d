"""Joins products of the slices of one tensor with the same matrix into one product: the input products of a recurrence's steps.

    x[0] @ w,  x[1] @ w,  x[2] @ w        ->        y = x @ w  over the rows of all slices,  y[0],  y[1],  y[2]

One large product runs at the device's rate. As separate steps, each product waits for the one before it and loads the whole matrix again.
The pass joins products that are added to another product, of the state, and become its bias:  h @ u + y[t].  A bias is read as an operand,
so that all steps remain one kernel; slices read by maps would give each step a source text of its own.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from tilefuse.ir.affine import axis, number
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.scalar import Read
from tilefuse.passes.decompose import Rewriter
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass
from tilefuse.passes.summed_products import terms_of


@dataclass(frozen=True, slots=True)
class Slice:
    """A product whose left operand is slice number `place` (of the leading dimensions, in row-major order) of `base`; `sum` adds it to the
    product `state`."""

    product: str
    base: str
    place: int
    sum: str
    state: str


@register_pass
@dataclass(frozen=True)
class MergeSlicedProducts(Pass):
    """Join products of the slices of one tensor with one matrix into one product, whose slices are the products.

    min_slices: fewer slices stay apart, as do those of a tensor with mostly unused slices. max_bytes: larger results stay apart too, since
    they would be in memory all at once. Units: bytes.
    Exact: yes for every order of summing that the products themselves may take.
    Cost: linear in the nodes.
    """

    name: ClassVar[str] = "merge-sliced-products"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY, Property.AFFINE_INDICES_NORMAL})
    exact: ClassVar[bool] = False

    min_slices: int = 4
    max_bytes: int = 64 << 20

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        groups = self._groups(graph)
        if not groups:
            return graph
        group_of = {s.product: (group, s) for group in groups for s in group}
        added = {s.sum: s for group in groups for s in group}
        joined_states = {s.state for s in added.values()}
        b = Rewriter(graph)
        joined: dict[str, str] = {}
        for node in graph.nodes:
            if node.name in added:
                here = added[node.name]
                state = graph.node_by_name[here.state]
                attributes = tuple(sorted((*state.attributes, ("has_bias", True))))
                b.add(replace(state, name=node.name, operands=(*state.operands, here.product), attributes=attributes, span=node.span))
                continue
            if node.name not in group_of:
                if node.name not in joined_states:
                    b.add(node)
                continue
            group, here = group_of[node.name]
            first = group[0].product
            if first not in joined:
                b.prefix, b.span = f"{first}_", node.span
                joined[first] = _product_of_all(b, here.base, node)
                b.prefix = ""
                ctx.count("joined", len(group))
            rows, columns = node.type.shape
            at = (axis("i") if rows > 1 else number(0)) + here.place * rows, axis("j") if columns > 1 else number(0)
            b.add(Node(node.name, node.type, "map", ("i", "j"), body=Read(joined[first], at), span=node.span))
        return replace(graph, nodes=tuple(b.nodes))

    def _groups(self, graph: Graph) -> list[list[Slice]]:
        """Products to join, in graph order."""
        group_by_key: dict[object, list[Slice]] = {}
        for node in graph.nodes:
            here = _slice_of(graph, node)
            if here is not None:
                group_by_key.setdefault((here.base, *node.operands[1:], node.attributes, node.type), []).append(here)
        return [group for group in group_by_key.values() if self._pays(graph, group)]

    def _pays(self, graph: Graph, group: Sequence[Slice]) -> bool:
        product = graph.node_by_name[group[0].product]
        slices = prod(graph.type_of(group[0].base).shape[:-2])
        places = {s.place for s in group}
        return len(places) >= self.min_slices and 2 * len(places) > slices and slices * product.type.num_bytes <= self.max_bytes


def _sum_with_product(graph: Graph, sliced: str) -> tuple[str, str] | None:
    """(sum, product) where the only use of a product is a sum with another product, later in the graph, that has no other user.

    Only for the type in which the sum is computed anyway: a bias is added before the product is rounded.
    """
    users = graph.users_by_name[sliced]
    if len(users) != 1 or sliced in graph.escaping:
        return None
    for other in terms_of(graph.node_by_name[users[0]]):
        node = graph.node_by_name.get(other)
        if other == sliced or node is None or other in graph.escaping or tuple(graph.users_by_name[other]) != tuple(users):
            continue
        plain = node.kind == "library.matmul" and len(node.operands) == 2 and node.type == graph.type_of(sliced)
        # If both are products of slices, neither depends on a step.
        if plain and node.type.dtype.name in ("f32", "f64") and _place_of(graph, node) is None:
            return users[0], other
    return None


def _slice_of(graph: Graph, node: Node) -> Slice | None:
    """A product that may be joined: its operand is a slice, and it is added to another product."""
    place = _place_of(graph, node)
    pair = _sum_with_product(graph, node.name) if place is not None else None
    return Slice(node.name, *place, *pair) if place is not None and pair is not None else None


def _place_of(graph: Graph, node: Node) -> tuple[str, int] | None:
    """(base, place) of a product's left operand, if that is a whole slice of a tensor's last two dimensions; else None."""
    if node.kind != "library.matmul" or node.attribute("transpose_a") or len(node.type.shape) != 2:
        return None
    left, *others = node.operands
    view = graph.node_by_name.get(left)
    if view is None or view.kind != "map" or not isinstance(view.body, Read) or any(len(graph.type_of(v).shape) > 2 for v in others):
        return None
    # A bias with one row for each row of the product has other rows in the joined product.
    if any(len(s := graph.type_of(v).shape) == 2 and s[0] > 1 for v in others[1:]):
        return None
    base, index = view.body.value, view.body.index
    shape = graph.type_of(base).shape
    whole = tuple(axis(a) if e > 1 else number(0) for a, e in zip(view.axes, view.type.shape, strict=True))
    if len(shape) < 3 or len(view.axes) != 2 or shape[-2:] != view.type.shape or index[-2:] != whole:
        return None
    place = 0
    for e, extent in zip(index[:-2], shape, strict=False):
        if e.terms or not 0 <= e.const < extent:
            return None
        place = place * extent + e.const
    return base, place


def _product_of_all(b: Rewriter, base: str, product: Node) -> str:
    """The product of all rows of a tensor's slices, with the other properties of `product`."""
    *lead, rows, inner = b.shape_of(base)
    flat = b.reshape(base, (prod(lead) * rows, inner))
    type_ = replace(product.type, shape=(prod(lead) * rows, product.type.shape[-1]))
    name = b.fresh("of_all")
    b.add(replace(product, name=name, type=type_, operands=(flat, *product.operands[1:])))
    return name
