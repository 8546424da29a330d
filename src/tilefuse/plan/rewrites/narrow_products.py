"""Products of 16-bit values that the graph converts to f32 first: they multiply the 16-bit values, and have f32 results.

    y = f32(a) @ f32(b)        ->        y = a @ b, summed and kept in f32
    y = (f32(a) * c) @ f32(b)  ->        y = (a @ b) * c

Routers, last layers and reference code multiply so. The product of two 16-bit floats is exact in f32, and both forms add in f32; the second
reads half of the bytes, and its instructions multiply six times as many elements as the three products of halves that f32 takes.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite, prod
from typing import ClassVar

from tilefuse.domain.contraction import RESULT_DTYPE
from tilefuse.ir.affine import axis
from tilefuse.ir.dtype import F32, DType
from tilefuse.ir.graph import Graph, Input, Node, Type
from tilefuse.ir.names import free_name
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Call, Const, Expr, Read, call, const, substitute_axes
from tilefuse.passes.analyses import without_newly_dead
from tilefuse.passes.facts import Prices
from tilefuse.passes.manager import DevicePass, PassContext, Properties, Property, register_pass
from tilefuse.plan.walks import find_walks
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.online.products import NARROW


@register_pass
@dataclass(frozen=True)
class NarrowProducts(DevicePass):
    """Multiply 16-bit values as they are, where both operands of an f32 product are conversions of such.

    Exact: no; products are as exact as in f32, and sums are associated differently. Products stay that state precision f32, that no kernel
    computes from 16 bits faster than the call and kernels that convert do, and those of walks whose other products have f32 operands.
    """

    name: ClassVar[str] = "narrow-products"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY, Property.UPDATES_SEPARATE, Property.FILLS_SEPARATE})
    exact: ClassVar[bool] = False
    asks_prices: ClassVar[bool] = True

    def rewrite(self, graph: Graph, device: DeviceSpec, ctx: PassContext) -> Graph:
        """The graph with narrow operands; `graph` itself where there are none."""
        assert ctx.prices is not None
        if not device.capabilities.warpgroup_products:
            return graph
        names, narrowed = set(graph.type_by_name), dict[str, tuple[Node, ...]]()
        products = [n for n in graph.nodes if _may_be_narrow(graph, n)]
        walks = find_walks(graph, device) if products else ()
        for node in products:
            operands = [_narrow(graph, v) for v in node.operands[:2]]
            types = {o.elements.type.dtype for o in operands if o is not None}
            if len(types) > 1 or None in operands or not all(_takes(graph, walk, node, *types) for walk in walks if node.name in walk):
                continue
            factor = prod(o.factor for o in operands if o is not None)
            new = [replace(o.elements, name=free_name(f"{v}_narrow", names)) for v, o in zip(node.operands, operands) if o is not None]
            attributes = tuple(sorted((dict(node.attributes) | {RESULT_DTYPE: F32.name, "precision": "default"}).items()))
            product = replace(node, operands=(*(o.name for o in new), *node.operands[2:]), attributes=attributes)
            if factor != 1.0 and len(node.operands) > 2 or not _gains(graph, node, product, new, ctx.prices):
                continue
            narrowed[node.name] = (*new, product) if factor == 1.0 else (*new, *_scaled(product, factor, names))
        if not narrowed:
            return graph
        ctx.count("narrowed", len(narrowed))
        changed = replace(graph, nodes=tuple(new for n in graph.nodes for new in narrowed.get(n.name, (n,))))
        return without_newly_dead(changed, graph)


@dataclass(frozen=True, slots=True)
class _Narrow:
    """Values that are conversions of 16-bit elements to f32, times a factor. elements: their map, under the name of the values."""

    elements: Node
    factor: float


def _scaled(product: Node, factor: float, names: set[str]) -> tuple[Node, Node]:
    """A product times a factor, which has the product's name."""
    sums = replace(product, name=free_name(f"{product.name}_sums", names))
    axes = tuple(f"i{n}" for n in range(len(product.type.shape)))
    body = call("mul", Read(sums.name, tuple(map(axis, axes))), const(factor, F32))
    return sums, Node(product.name, product.type, "map", axes, body=body, span=product.span)


def _takes(graph: Graph, walk: tuple[str, ...], node: Node, dtype: DType) -> bool:
    """Whether a walk may begin with the product of such values: its other products have operands of the same type."""
    others = (graph.node_by_name[n] for n in walk if n != node.name)
    return all(graph.type_of(v).dtype == dtype for n in others if n.kind == node.kind for v in n.operands[:2])


def _gains(graph: Graph, node: Node, product: Node, operands: Sequence[Node], prices: Prices) -> bool:
    """Whether a kernel for the narrow product is predicted faster than the product in f32: a call, or a kernel that converts operands on
    the way."""
    inputs = (*(Input(o.name, o.type) for o in operands), *(Input(v, graph.type_of(v)) for v in product.operands[2:]))
    own_us = prices.own_product_us(Graph("narrow", inputs, (product,), (product.name,)), (product.name,), {})
    conversions = {v: replace(o, name=v, type=graph.type_of(v), body=_converted(o)) for v, o in zip(node.operands, operands)}
    wide = Graph("wide", inputs, (*conversions.values(), node), (node.name,))
    wide_us = prices.own_product_us(wide, tuple(n.name for n in wide.nodes), {})
    called_us = prices.product_us(node, graph)
    return own_us is not None and own_us < (called_us if wide_us is None else min(called_us, wide_us))


def _converted(operand: Node) -> Expr:
    """An element of a narrow operand, as an input, in f32."""
    return Call(F32.name, (Read(operand.name, tuple(map(axis, operand.axes))),))


def _may_be_narrow(graph: Graph, node: Node) -> bool:
    """Whether a node is a product of f32 matrices that tensor cores may compute."""
    if node.kind != "library.matmul" or node.type.dtype != F32 or node.attribute(RESULT_DTYPE) or node.attribute("precision") == "f32":
        return False
    types = [graph.type_of(v) for v in node.operands]
    return all(t.dtype == F32 for t in types) and all(len(t.shape) >= 2 for t in (node.type, *types[:2]))


def _narrow(graph: Graph, value: str) -> _Narrow | None:
    """The 16-bit elements whose conversions a value has, and the factor of all; None for other values."""
    node = graph.node_by_name.get(value)
    if node is None or node.kind != "map" or node.body is None:
        return None
    body, factor = node.body, 1.0
    while True:
        match body:
            case Call("f32", (inner,)) if (dtype := dtype_of(inner, lambda v: graph.type_of(v).dtype)).name in NARROW:
                return _Narrow(replace(node, type=Type(dtype, node.type.shape), body=inner), factor)
            case Call("mul", (x, Const() as c)) | Call("mul", (Const() as c, x)) if isfinite(float(c.value)):
                body, factor = x, factor * float(c.value)
            case Read(of, index) if (maker := graph.node_by_name.get(of)) is not None and maker.kind == "map" and maker.body is not None:
                body = substitute_axes(maker.body, dict(zip(maker.axes, index, strict=True)), node.extents)
            case _:
                return None
