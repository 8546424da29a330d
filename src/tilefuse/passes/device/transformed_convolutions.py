"""Convolutions of 3 x 3 windows by minimal filtering, where that is asked for and allowed: transforms, and a product for each place.

    y = convolution(%x, %w), 3 x 3      ->      tiles of %x transformed, filters of %w, 36 or 16 products, results transformed back

Which algorithm is allowed follows from the arithmetic of its products, since transforms enlarge the rounding errors of their operands:

    F(4x4, 3x3)     f32 by products as exact as f32 (multiply-adds, or high and low parts on the matrix unit)
    F(2x2, 3x3)     the same; tf32 where the convolution may use it; f16 and bf16
    none            f64; f32 without tf32 where products of f32 may be tf32; every value rounded as in eager execution

Source: Lavin and Gray 2015 (arXiv:1509.09308); errors of F(4x4) in short types: their section 5.2.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph, Input, Node
from tilefuse.ir.layouts import channels_last_strides
from tilefuse.passes.choosing import ChoosingPass
from tilefuse.passes.device.computed_constants import constants_at_hand, with_computed_constants
from tilefuse.passes.device.image_memory import ImageMemory
from tilefuse.passes.device.long_products import without_unused
from tilefuse.passes.device.minimal_filtering import MinimalFiltering, minimal_filtering
from tilefuse.passes.device.packed_weights import allows_channels_last
from tilefuse.passes.device.transformed_tiles import TransformBuilder, TransformedNodes, Windows, windows_of
from tilefuse.passes.facts import Prices
from tilefuse.passes.manager import PassContext, Properties, Property, register_pass
from tilefuse.target.device import DeviceSpec

SHORT = ("f16", "bf16")


@register_pass
@dataclass(frozen=True)
class TransformConvolutions(ChoosingPass):
    """Compute convolutions of 3 x 3 windows over transformed tiles.

    winograd        "off", "auto" (where that is predicted faster than the library's call), "f32" (the same for f32 on a GPU without tf32),
                    or "always" (wherever it is allowed)
    products        precision of products of f32: "default" (high and low parts), "f32" (multiply-adds) or "tf32" (not used for F(4x4))
    groups          whether plans may take tiles, products and results as tasks of one kernel ("off", "priced", "always")
    channels_last   layouts around convolutions, as of `PackConvolutionWeights`: it decides whether channels or tiles are neighbours
    Exact: no. With u = 2^-24 (2^-11 for tf32 and f16, 2^-8 for bf16), a result is off by at most (C + r) u times
        |A^T| (sum_c |G| |g| |G^T| * |B^T| |d| |B|) |A|, C the channels and r = `roundings(filtering)`.
    """

    name: ClassVar[str] = "transform-convolutions"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY, Property.UPDATES_SEPARATE, Property.FILLS_SEPARATE})
    exact: ClassVar[bool] = False
    kinds: ClassVar[frozenset[str]] = frozenset({"cuda", "host"})
    asks_prices: ClassVar[bool] = True
    winograd: str = "off"
    products: str = "default"
    groups: str = "off"
    channels_last: str = "auto"

    def rewrite(self, graph: Graph, device: DeviceSpec, ctx: PassContext) -> Graph:
        """The graph with transforms; `graph` itself where none is asked for, allowed and faster."""
        assert ctx.prices is not None
        convolutions = [n for n in graph.nodes if n.kind == "library.convolution" and self._is_asked_about(n, device)]
        if not convolutions:
            return graph
        turned = allows_channels_last(graph, device, self.channels_last, ctx.caller.given(graph), ctx.caller.wanted(graph),
                                      ctx.caller.free_values(graph))
        question = _Question(graph, ctx.prices, ImageMemory(graph, ctx.caller, turned), constants_at_hand(graph, ctx),
                             self.products, self.winograd == "always", ctx.eager_rounding, self.groups != "off")
        choices = [question.choice(node) for node in convolutions]
        self.keep(choices, ctx)
        taken = [c for c in choices if c.is_taken]
        ctx.count("transformed", len(taken))
        return with_computed_constants(with_transforms(graph, taken), graph, question.at_hand, ctx) if taken else graph

    def _is_asked_about(self, node: Node, device: DeviceSpec) -> bool:
        """Whether the option leaves a choice for the convolution."""
        if self.winograd == "f32":
            return device.kind == "cuda" and node.type.dtype == F32 and node.attribute("precision", "default") == "f32"
        return self.winograd != "off"


@dataclass(frozen=True, slots=True)
class Transform:
    """One way to compute a convolution. Units: predicted microseconds.

    us: of the filters, the tiles, the products, and the results. grouped_us: of the last three as one kernel, where plans may have it.
    """

    filtering: MinimalFiltering
    windows: Windows
    precision: str
    channels_inner: bool
    us: tuple[float, float, float, float]
    grouped_us: float | None = None

    @property
    def total_us(self) -> float:
        """All steps one after another, or the filters and one kernel for the others. Units: microseconds."""
        filters, *others = self.us
        return filters + min(sum(others), inf if self.grouped_us is None else self.grouped_us)


@dataclass(frozen=True, slots=True)
class TransformChoice:
    """A convolution by transforms or by the library. transform: None where none is allowed, for the reason `why`. Units: microseconds."""

    node: Node
    transform: Transform | None
    call_us: float = 0.0
    is_asked_for: bool = False
    why: str = ""

    @property
    def is_taken(self) -> bool:
        """Whether transforms replace the call."""
        return self.transform is not None and (self.is_asked_for or self.transform.total_us < self.call_us)

    def text(self) -> str:
        """The choice in a line."""
        if self.transform is None:
            return f"%{self.node.name}: a convolution by the library; {self.why}"
        t = self.transform
        steps = " + ".join(f"{us:.1f}" for us in t.us)
        grouped = "" if t.grouped_us is None else f"; the last three in groups of one kernel: {t.grouped_us:.1f}"
        taken = f"planned as {t.filtering.name}" if self.is_taken else "a convolution by the library"
        reason = " (asked for)" if self.is_taken and self.is_asked_for else ""
        return (f"%{self.node.name}: {taken}{reason}; predicted {t.total_us:.1f} us by {t.filtering.name} with {_arithmetic(t, self.node)} "
                f"products (filters, tiles, products, results: {steps}{grouped}), {self.call_us:.1f} us as a call")


def _arithmetic(transform: Transform, node: Node) -> str:
    return node.type.dtype.name if node.type.dtype != F32 or transform.precision != "tf32" else "tf32"


def with_transforms(graph: Graph, taken: Sequence[TransformChoice]) -> Graph:
    """The graph with some convolutions over transformed tiles. Transforms of one image stand before the first convolution that reads it."""
    transform_by_node = {c.node.name: c.transform for c in taken}
    builder = TransformBuilder(graph)
    nodes: dict[str, Node] = {}
    for node in graph.nodes:
        transform = transform_by_node.get(node.name)
        if transform is None:
            nodes[node.name] = node
        else:
            parts = _nodes_of(builder, node, transform)
            nodes |= {n.name: n for n in (*parts.filters, *parts.tiles, parts.product, *parts.outputs)}
    return without_unused(replace(graph, nodes=tuple(nodes.values())), {v for c in taken for v in c.node.operands})


def _nodes_of(builder: TransformBuilder, node: Node, transform: Transform) -> TransformedNodes:
    return builder.of(node, transform.windows, transform.filtering, transform.precision, transform.channels_inner)


# -- which algorithms are allowed, and what they cost ---------------------------------------------------------------------------


def allowed_algorithms(node: Node, products: str, eager_rounding: bool) -> list[tuple[int, str]] | Rejected:
    """(results of a tile, precision of the product) of the algorithms that a convolution's exactness allows; or why there are none.

    products: precision that products of f32 have on this device.
    """
    def refused(why: str) -> Rejected:
        return Rejected(Reason.UNSUPPORTED_OP, why)

    dtype, large, small = node.type.dtype, max(SEARCH.walks.filtered_results), min(SEARCH.walks.filtered_results)
    if eager_rounding:
        return refused("every value is rounded as in eager execution")
    if dtype.name in SHORT:
        return [(small, "default")]
    if dtype != F32:
        return refused(f"transforms of {dtype} are less exact than its sums")
    allows_tf32 = node.attribute("precision", "default") != "f32"
    algorithms = [(large, products), (small, products)] if products != "tf32" else []
    if allows_tf32:
        algorithms.append((small, "tf32"))
    return algorithms or refused("products of f32 may be tf32, and this convolution may not")


@dataclass(frozen=True)
class _Question:
    """Facts that all convolutions of a graph share. at_hand: constants whose filters are computed once, before any call."""

    graph: Graph
    prices: Prices
    memory: ImageMemory
    at_hand: frozenset[str]
    products: str
    always: bool
    eager_rounding: bool
    in_groups: bool

    def choice(self, node: Node) -> TransformChoice:
        """The cheapest allowed algorithm beside the library's call."""
        windows = windows_of(node, self.graph)
        if isinstance(windows, Rejected):
            return TransformChoice(node, None, why=windows.detail)
        algorithms = allowed_algorithms(node, self.products, self.eager_rounding)
        if isinstance(algorithms, Rejected):
            return TransformChoice(node, None, why=algorithms.detail)
        transforms = self._transforms(node, windows, algorithms)
        best = min(transforms, key=lambda t: t.total_us)
        return TransformChoice(node, best, self.prices.convolution_us((node,), self.graph), self.always)

    def _transforms(self, node: Node, windows: Windows, algorithms: Sequence[tuple[int, str]]) -> Iterator[Transform]:
        channels_inner = self.memory.is_channels_last(node.operands[0])
        for results, precision in algorithms:
            filtering = minimal_filtering(results)
            parts = TransformBuilder(self.graph).of(node, windows, filtering, precision, channels_inner)
            filters_us = 0.0 if node.operands[1] in self.at_hand else self._kernel_us(parts.filters)
            us = filters_us, self._kernel_us(parts.tiles), self._product_us(parts), self._kernel_us(parts.outputs[:2], parts.product)
            yield Transform(filtering, windows, precision, channels_inner, us, self._grouped_us(parts) if self.in_groups else None)

    def _kernel_us(self, nodes: Sequence[Node], *operands: Node) -> float:
        """Predicted time of one kernel for the nodes, of values of the graph and of `operands`. Units: microseconds."""
        alone, layouts = self._alone(nodes, operands)
        return self.prices.kernel_us(alone, tuple(n.name for n in nodes), False, 0, layouts)

    def _grouped_us(self, parts: TransformedNodes) -> float | None:
        """Predicted time of tiles, products and results as tasks of one kernel; None where there is none. Units: microseconds."""
        user = parts.outputs[:2]
        alone, layouts = self._alone((*parts.tiles, parts.product, *user), parts.filters)
        names = tuple(n.name for n in parts.tiles), parts.product.name, tuple(n.name for n in user)
        return self.prices.chain_us(alone, names, layouts, self.eager_rounding)

    def _alone(self, nodes: Sequence[Node], operands: Sequence[Node]) -> tuple[Graph, dict[str, tuple[int, ...]]]:
        """The nodes as a graph of their own, which reads values of the graph and `operands`; strides of images that lie channels last."""
        inside = {n.name for n in nodes}
        types = {n.name: n.type for n in operands}
        inputs = tuple(Input(v, types.get(v) or self.graph.type_of(v)) for v in dict.fromkeys(v for n in nodes for v in n.reads())
                       if v not in inside)
        channels_last = {v.name: channels_last_strides(v.type.shape) for v in inputs
                         if len(v.type.shape) == 4 and v.name in self.graph.type_by_name and self.memory.is_channels_last(v.name)}
        return Graph("transform", inputs, tuple(nodes), (nodes[-1].name,)), channels_last

    def _product_us(self, parts: TransformedNodes) -> float:
        """Predicted time of the products, by the library or by a kernel. Units: microseconds."""
        types = {n.name: n.type for n in (*parts.filters, *parts.tiles)}
        alone = Graph("product", tuple(Input(v, types[v]) for v in parts.product.operands), (parts.product,), (parts.product.name,))
        called_us = self.prices.product_us(parts.product, alone)
        own_us = self.prices.own_product_us(alone, (parts.product.name,), {})
        return called_us if own_us is None else min(called_us, own_us)
