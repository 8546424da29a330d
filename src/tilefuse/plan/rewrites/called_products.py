"""Sums of products that the library computes faster than a kernel of ours: they become library products.

    %m = map [i, k, j] { mul(%a[i, k], %b[k, j]) }          ->      %y = library.matmul (%a, %b)
    %y = reduce.sum [i, j] over [k < 4096] { %m[i, k, j] }

A kernel that walks such a sum reads two elements for each multiply-add; the library keeps tiles of both operands on chip. The pass compares
the price of the best kernel for the sum with that of the call and its copies. A product that became a call is then planned like any other:
a kernel of stages may still hold it.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from tilefuse.base.candidate import Rejected
from tilefuse.domain.sum_of_products import SumOfProducts, sum_of_products
from tilefuse.ir.graph import Graph, Input, Node, Type
from tilefuse.ir.scalar import Expr, Read, substitute_axes, transform
from tilefuse.ir.verify import verify_node
from tilefuse.passes.analyses import without_newly_dead
from tilefuse.passes.choosing import ChoosingPass
from tilefuse.passes.facts import Prices
from tilefuse.passes.manager import PassContext, Properties, Property, register_pass
from tilefuse.plan.rewrites.library_product import LibraryProduct, library_products
from tilefuse.target.device import DeviceSpec


@register_pass
@dataclass(frozen=True)
class CallProducts(ChoosingPass):
    """Turn sums of products into library products where the call and its copies are predicted faster than a kernel for the sum.

    Exact: no; sums are associated differently. Products that the graph rounds to 16 bits are added unrounded, as kernels add them too,
    except with `eager_rounding`.
    Cost: one schedule for each sum of products that is no product with a vector.
    """

    name: ClassVar[str] = "call-products"
    kinds: ClassVar[frozenset[str]] = frozenset({"cuda", "host"})
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY, Property.UPDATES_SEPARATE, Property.FILLS_SEPARATE})
    exact: ClassVar[bool] = False
    asks_prices: ClassVar[bool] = True

    def rewrite(self, graph: Graph, device: DeviceSpec, ctx: PassContext) -> Graph:
        """The graph with library products; `graph` itself where none is faster."""
        assert ctx.prices is not None
        choices = product_choices(graph, ctx.prices, ctx.eager_rounding)
        # A later run sees the sums that stayed once more.
        self.keep(choices, ctx)
        called = {c.contraction.node: c.call for c in choices if c.call is not None}
        if not called:
            return graph
        ctx.count("called", len(called))
        return with_calls(graph, called)


@dataclass(frozen=True, slots=True)
class ProductChoice:
    """The implementation of one sum of products.

    call      the library's product where it is taken; None: the sum stays a node of kernels
    kernel_us lower bound on the time of a kernel for the sum; call_us of the call, its copies, and the kernels around it that a kernel for
              the sum would contain; None where there is no call
    why       the reason where there is no call

    Units: microseconds.
    """

    contraction: SumOfProducts
    call: LibraryProduct | None
    kernel_us: float
    call_us: float | None
    why: str = ""

    def text(self) -> str:
        """The choice in a line."""
        if self.call_us is None:
            return f"%{self.contraction.node} is a {self.contraction.words()}, summed by a kernel: {self.why}"
        taken = "planned as a library product" if self.call is not None else "summed by a kernel"
        return (f"%{self.contraction.node} is a {self.contraction.words()}, {taken}: predicted {self.call_us:.1f} us as a call with its "
                f"copies, at least {self.kernel_us:.1f} us as a kernel")


def product_choices(graph: Graph, prices: Prices, eager_rounding: bool = False) -> list[ProductChoice]:
    """The choice for every sum of products that is no product with a vector, in graph order."""
    contractions: dict[str, SumOfProducts] = {}
    for node in graph.nodes:
        if node.category not in ("reduce", "map"):
            continue
        contraction = sum_of_products(node, graph)
        if isinstance(contraction, Rejected) or contraction.is_vector:
            continue
        for name in contraction.nodes:
            contractions.pop(name, None)
        contractions[node.name] = contraction
    return [_choice(c, graph, prices, eager_rounding) for c in contractions.values()]


def _choice(contraction: SumOfProducts, graph: Graph, prices: Prices, eager_rounding: bool) -> ProductChoice:
    kernel_us = _kernel_us(contraction, graph, prices, eager_rounding)
    ways = library_products(contraction, graph, eager_rounding)
    if isinstance(ways, Rejected):
        return ProductChoice(contraction, None, kernel_us, None, ways.detail)
    call_us, _, way = min((_call_us(contraction, way, graph, prices), n, way) for n, way in enumerate(ways))
    return ProductChoice(contraction, way if call_us < kernel_us else None, kernel_us, call_us)


def _kernel_us(contraction: SumOfProducts, graph: Graph, prices: Prices, eager_rounding: bool) -> float:
    """Lower bound on the time of a kernel for the sum and the maps that serve nothing else.

    Units: microseconds. Every multiply-add reads an element of the factor that the lanes of a warp do not share.
    """
    names = set(contraction.nodes)
    while outside := {n for n in names - {contraction.node} if n in graph.escaping or not names.issuperset(graph.users_by_name[n])}:
        names -= outside
    near_bytes = 0
    if names.issuperset(contraction.nodes):
        itemsize = min(contraction.arithmetic.left.itemsize, contraction.arithmetic.right.itemsize)
        near_bytes = prod(contraction.sizes) * itemsize
    return prices.kernel_us(graph, tuple(n.name for n in graph.in_order(names)), eager_rounding, near_bytes)


def _call_us(contraction: SumOfProducts, way: LibraryProduct, graph: Graph, prices: Prices) -> float:
    """Time of the call, its copies, and the maps before and behind it that a kernel for the sum would contain.

    Units: microseconds.
    """
    product, types = way.product, {n.name: n.type for n in way.nodes}
    inputs = tuple(Input(v, types[v] if v in types else graph.type_of(v)) for v in dict.fromkeys(product.operands))
    alone = Graph(product.name, inputs, (product,), (product.name,))
    copied_bytes, copies = way.copied_bytes, way.num_copies
    users = [graph.node_by_name[u] for u in graph.users_by_name[contraction.node]]
    if users and contraction.node not in graph.escaping and all(u.category == "map" for u in users):
        copied_bytes, copies = copied_bytes + 2 * graph.type_of(contraction.node).num_bytes, copies + 1
    inside = set(contraction.nodes)
    for factor in (contraction.left, contraction.right):
        value = factor.read.value if factor.read is not None else ""
        maker = graph.node_by_name.get(value)
        if maker is not None and maker.category == "map" and value not in graph.escaping and inside.issuperset(graph.users_by_name[value]):
            copied_bytes, copies = copied_bytes + 2 * maker.type.num_bytes, copies + 1
    return prices.product_us(product, alone) + (prices.copy_us(copied_bytes, copies) if copies else 0.0)


def with_calls(graph: Graph, called: Mapping[str, LibraryProduct]) -> Graph:
    """The graph with some nodes replaced; their maps that nothing needs any more are gone, and kernels read through views of results."""
    views: dict[str, Node] = {}
    nodes: list[Node] = []
    types = dict(graph.type_by_name)
    for node in graph.nodes:
        way = called.get(node.name)
        for one in (_reading(node, views, types),) if way is None else way.nodes:
            nodes.append(one)
            types[one.name] = one.type
        if way is not None and isinstance(nodes[-1].body, Read):
            views[node.name] = nodes[-1]
    return without_newly_dead(replace(graph, nodes=tuple(nodes)), graph)


def _reading(node: Node, views: Mapping[str, Node], types: dict[str, Type]) -> Node:
    """The node with its reads of views replaced by reads of the viewed products, so that no kernel stores a view."""
    if node.body is None or views.keys().isdisjoint(node.reads()):
        return node

    def through(e: Expr) -> Expr:
        if isinstance(e, Read) and e.value in views:
            view = views[e.value]
            assert view.body is not None
            return substitute_axes(view.body, dict(zip(view.axes, e.index, strict=True)), node.extents)
        return e

    new = replace(node, body=transform(node.body, through))
    return node if any(verify_node(new, types)) else new
