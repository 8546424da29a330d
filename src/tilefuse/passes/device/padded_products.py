"""Products on the matrix unit whose operands do not lie in whole 16 bytes: copied, with rows padded with zeros to the next multiple.

    w[i, j] = sum_(k < 197) a[i, k] b[k, j]  (j < 197)    ->    p = a' b'  with  a'[i, k] = a[i, k] if k < 197 else 0  (k < 200)
                                                                w[i, j] = p[i, j]                                    (j < 197)

The library's fast kernels and tensor copies need lines of whole 16 bytes that begin at multiples of 16 bytes. The kernel that computes an
operand stores it padded; constants are padded once; any other operand is copied, windows at odd places and operands without neighbours in
memory as well. Readers of the result read a window of it. A product is padded where the library or a kernel of ours gains more than the
copies cost, together with others that read the same matrix (`padding_prices.py`). It is left alone where one of our kernels holds it with
another product, and where it has few rows.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Expr, Index, Lookup, Read, call, const, transform
from tilefuse.passes.choosing import ChoosingPass
from tilefuse.passes.device.computed_constants import constants_at_hand, with_computed_constants
from tilefuse.passes.device.long_products import without_unused
from tilefuse.passes.device.operand_memory import behind_views
from tilefuse.passes.device.padding import (
    PADDED,
    Copies,
    padded_product,
    padded_sizes,
    product_operands,
    product_sizes,
    takes_inner_first,
)
from tilefuse.passes.device.padding_prices import Padding, PaddingPrices, views_behind
from tilefuse.passes.facts import Prices
from tilefuse.passes.manager import PassContext, Properties, Property, register_pass
from tilefuse.target.device import DeviceSpec


@register_pass
@dataclass(frozen=True)
class PadProducts(ChoosingPass):
    """Pad products on the matrix unit with zeros where their operands in memory are no lines of whole 16 bytes.

    Exact: sums take zeros in; a library may associate them differently.
    """

    name: ClassVar[str] = "pad-products"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY, Property.UPDATES_SEPARATE, Property.FILLS_SEPARATE})
    exact: ClassVar[bool] = False
    for_fusion: ClassVar[bool] = True
    asks_prices: ClassVar[bool] = True

    def rewrite(self, graph: Graph, device: DeviceSpec, ctx: PassContext) -> Graph:
        """The graph with padded products; `graph` itself where none gains by it."""
        assert ctx.prices is not None
        at_hand = constants_at_hand(graph, ctx)
        choices = planned_paddings(graph, paddings(graph, device, ctx.prices, ctx.caller.given(graph), at_hand), ctx)
        self.keep(choices, ctx)
        ctx.count("padded", sum(c.is_taken for c in choices))
        padded = with_padded(graph, choices, ctx.caller.given(graph))
        return with_computed_constants(padded, graph, at_hand, ctx)


def paddings(graph: Graph, device: DeviceSpec, prices: Prices, input_strides: Layouts,
             at_hand: frozenset[str] = frozenset()) -> list[Padding]:
    """The choice for every product on the matrix unit that does not lie in whole 16 bytes. Units: elements.

    at_hand: constants that are padded before any call.
    """
    names = [n.name for n in graph.nodes if _may_be_padded(graph, n, device, input_strides)]
    walked = prices.held_products(graph, set(names)) if names else set()
    return PaddingPrices(graph, device, prices, input_strides, at_hand).choices([graph.node_by_name[n] for n in names if n not in walked])


def planned_paddings(graph: Graph, choices: list[Padding], ctx: PassContext) -> list[Padding]:
    """The choices, where those that a plan must decide are decided together, by the kernels of a plan without them.

    A kernel that holds a product together with its neighbours, or packed beside others, is no candidate for the product alone. Where a
    kernel may hold a product as it lies, the graph is planned greedily without these paddings. With them, each kernel that holds such
    products is cut at them.
    Cost: one greedy plan, for graphs with such products alone.
    """
    assert ctx.prices is not None
    in_question = ctx.prices.may_be_held(graph, {c.product for c in choices if c.is_taken})
    if not in_question:
        return choices
    strides = ctx.caller.given(graph)
    lying = with_padded(graph, [replace(c, is_taken=False) if c.product in in_question else c for c in choices], strides)
    reads = {p: [behind_views(graph, v) for v in graph.node_by_name[p].operands] for p in in_question}
    in_kernels, us, padded_us = ctx.prices.cut_us(lying, reads, strides, ctx.options)
    us += sum(c.us for c in choices if c.product in in_question - in_kernels)
    padded_us += sum(c.padded_us for c in choices if c.product in in_question)
    return [replace(c, is_taken=padded_us < us, planned_us=(us, padded_us)) if c.product in in_question else c for c in choices]


def with_padded(graph: Graph, choices: list[Padding], input_strides: Layouts) -> Graph:
    """The graph with the products padded that gain by it; the same object if there is none."""
    padded = {c.product: c.way for c in choices if c.is_taken}
    if not padded:
        return graph
    copies = Copies(graph, input_strides)
    nodes: list[Node] = []
    windows: dict[str, str] = {}
    views: dict[str, None] = {}
    for node in graph.nodes:
        if node.name in padded:
            product = padded_product(copies, node, padded[node.name])
            nodes.extend(product.nodes)
            if product.window is not None:
                windows[node.name] = product.product.name
            views.update(dict.fromkeys(views_behind(graph, node)))
        else:
            nodes.append(_reading(graph, node, windows))
    rewritten = without_unused(replace(graph, nodes=tuple(nodes)), set(windows))
    # A view of a view has no user once that one is gone.
    for view in reversed(views):
        rewritten = without_unused(rewritten, {view})
    return rewritten


def _reading(graph: Graph, node: Node, windows: Mapping[str, str]) -> Node:
    """The node with its reads and lookups of windows turned to the padded products, so that no kernel stores a window.

    Exact: a lookup beyond a window's end still gives the element at that end.
    """
    if node.body is None or node.category not in ("map", "reduce", "scan", "gather") or not windows.keys() & set(node.reads()):
        return node

    def inside(subscript: Expr, extent: int) -> Expr:
        dtype = dtype_of(subscript, lambda v: graph.type_of(v).dtype)
        return subscript if isinstance(subscript, Index) else call("minimum", subscript, const(extent - 1, dtype))

    def taken(e: Expr) -> Expr:
        match e:
            case Read(value, index) if value in windows:
                return Read(windows[value], index)
            case Lookup(value, subscripts) if value in windows:
                return Lookup(windows[value], tuple(inside(s, n) for s, n in zip(subscripts, graph.type_of(value).shape)))
        return e

    return replace(node, body=transform(node.body, taken))


def _may_be_padded(graph: Graph, node: Node, device: DeviceSpec, input_strides: Layouts) -> bool:
    """Whether a product of matrices with more than few rows is one for the matrix unit, and its operands do not lie as that takes them."""
    if node.kind != "library.matmul" or len(node.operands) != 2 or not node.type.num_elements or node.attribute(PADDED):
        return False
    types = [graph.type_of(v) for v in node.operands]
    if len(node.type.shape) < 2 or any(len(t.shape) < 2 or not t.num_elements for t in types):
        return False
    if node.type.shape[-2] <= device.fitted.products.few_rows:
        return False
    on_matrix_unit = (node.type.dtype.name in ("f16", "bf16") or node.attribute("precision", "default") == "tf32"
                      or device.capabilities.warpgroup_products and takes_inner_first(graph, node))
    operands = product_operands(graph, node, input_strides)
    return on_matrix_unit and (not all(o.is_aligned for o in operands) or product_sizes(graph, node) != padded_sizes(graph, node, operands))
