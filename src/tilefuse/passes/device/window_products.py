"""Convolutions whose windows share no element become products: of their windows as a matrix, and of the weight.

    y = convolution(%x, %w), 16 x 16 by 16      ->      %x_windows: map [i, j]        row i: the elements of window i, one copy of the image
                                                        %y_product = library.matmul (%x_windows, %w_matrix)
                                                        %y: map                       the product, channels last

Patches of images are such a convolution, and windows of one place. Gradients and transposed convolutions follow from the same
matrices (`disjoint_windows.py`). A product is planned like any other: a kernel of ours may hold it with the bias and the maps behind it.
The pass compares the predicted times of the calls and of the products with their copies.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from tilefuse.base.candidate import Rejected
from tilefuse.ir.affine import axis
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor_elementwise import converted
from tilefuse.ir.dtype import F32, compute_dtype
from tilefuse.ir.graph import Graph, Input, Node, Type, library_call_key
from tilefuse.ir.names import free_name
from tilefuse.ir.scalar import Expr, Read, call, cast, const
from tilefuse.passes.choosing import ChoosingPass
from tilefuse.passes.device.convolution_biases import with_bias_apart
from tilefuse.passes.device.convolution_layouts import WEIGHT_OPERAND
from tilefuse.passes.device.disjoint_windows import (
    BIAS,
    COLUMN,
    NARROW,
    ROW,
    WEIGHT,
    WIDE,
    DisjointWindows,
    computed_tensor,
    disjoint_windows,
)
from tilefuse.passes.device.image_memory import ImageMemory
from tilefuse.passes.device.long_products import without_unused
from tilefuse.passes.device.packed_weights import allows_channels_last
from tilefuse.passes.facts import CallerLayouts, Prices
from tilefuse.passes.manager import PassContext, Properties, Property, register_pass
from tilefuse.target.device import DeviceSpec

# Types that the library multiplies.
PRODUCT_DTYPES = ("f16", "bf16", "f32", "f64")


@register_pass
@dataclass(frozen=True)
class MultiplyWindows(ChoosingPass):
    """Turn convolutions whose windows share no element into products where these are predicted faster with their copies.

    channels_last  layouts around convolutions, as of `PackConvolutionWeights`: images that will lie so need no copy
    Exact: no; sums are associated differently. A product of f32 is as exact as the convolution: tf32 where that may use it.
    """

    name: ClassVar[str] = "multiply-windows"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY, Property.UPDATES_SEPARATE, Property.FILLS_SEPARATE})
    exact: ClassVar[bool] = False
    asks_prices: ClassVar[bool] = True
    channels_last: str = "auto"

    def rewrite(self, graph: Graph, device: DeviceSpec, ctx: PassContext) -> Graph:
        """The graph with products; `graph` itself where none is faster."""
        assert ctx.prices is not None
        choices = window_choices(graph, device, ctx.prices, ctx.caller, self.channels_last)
        self.keep(choices, ctx)
        taken = [c for c in choices if c.is_taken]
        ctx.count("multiplied", len(taken))
        return with_products(graph, taken)


@dataclass(frozen=True, slots=True)
class WindowChoice:
    """A convolution, or the gradients that one call computes.

    windows     None: it stays a call, for the reason `why`
    call_us     of the library's convolution with its copies; product_us of the products with theirs

    Units: microseconds.
    """

    nodes: tuple[Node, ...]
    windows: DisjointWindows | None
    call_us: float = 0.0
    product_us: float = 0.0
    why: str = ""

    @property
    def is_taken(self) -> bool:
        """Whether products replace the call."""
        return self.windows is not None and self.product_us < self.call_us

    def text(self) -> str:
        """The choice in a line."""
        names = ", ".join(f"%{n.name}" for n in self.nodes)
        if self.windows is None:
            return f"{names}: a convolution by the library; {self.why}"
        taken = "planned as products" if self.is_taken else "a convolution by the library"
        return (f"{names}: {taken}; predicted {self.product_us:.1f} us as products of {self.windows.rows} windows, "
                f"{self.windows.inner} elements each, by {self.windows.features} features, {self.call_us:.1f} us as a call")


def window_choices(graph: Graph, device: DeviceSpec, prices: Prices, caller: CallerLayouts, channels_last: str = "auto"
                   ) -> list[WindowChoice]:
    """The choice for every convolution and for the gradients of every call, in graph order.

    channels_last: as of `PackConvolutionWeights`.
    """
    calls: dict[object, list[Node]] = {}
    for node in graph.nodes:
        if node.kind in WEIGHT_OPERAND:
            calls.setdefault(library_call_key(node), []).append(node)
    if not calls:
        return []
    turned = allows_channels_last(graph, device, channels_last, caller.given(graph), caller.wanted(graph), caller.free_values(graph))
    return [_choice(graph, tuple(nodes), prices, ImageMemory(graph, caller, turned)) for nodes in calls.values()]


def with_products(graph: Graph, taken: Sequence[WindowChoice]) -> Graph:
    """The graph with some convolutions as products; the same object if there is none."""
    choice_by_node = {n.name: c for c in taken for n in c.nodes}
    if not choice_by_node:
        return graph
    products = _Products(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        choice = choice_by_node.get(node.name)
        if choice is None:
            nodes.append(node)
            continue
        assert choice.windows is not None
        nodes += products.of(node, choice.windows)
    return without_unused(replace(graph, nodes=tuple(nodes)), {v for n in choice_by_node for v in graph.node_by_name[n].operands})


# -- price -------------------------------------------------------------------------------------------------------------------


def _choice(graph: Graph, nodes: tuple[Node, ...], prices: Prices, memory: ImageMemory) -> WindowChoice:
    first = nodes[0]
    if first.type.dtype.name not in PRODUCT_DTYPES:
        return WindowChoice(nodes, None, why=f"the library has no product of {first.type.dtype}")
    windows = disjoint_windows(first, graph)
    if isinstance(windows, Rejected):
        return WindowChoice(nodes, None, why=windows.detail)
    copied: dict[str, int] = {}
    product_us = 0.0
    products = _Products(graph)
    for node in nodes:
        parts = products.of(node, windows)
        types = {n.name: n.type for n in parts}
        for part in parts:
            if part.kind == "library.matmul":
                inputs = tuple(Input(v, types.get(v) or products.types[v]) for v in dict.fromkeys(part.operands))
                product_us += prices.product_us(part, Graph(part.name, inputs, (part,), (part.name,)))
        copied |= _copies(node, windows, memory)
    # The call reads channels last where the graph is turned, and copies as much; its own price counts copies of row-major images.
    product_us += prices.copy_us(sum(copied.values()), len(copied)) if copied else 0.0
    return WindowChoice(nodes, windows, prices.convolution_us(nodes, graph), product_us)


def _copies(node: Node, windows: DisjointWindows, memory: ImageMemory) -> dict[str, int]:
    """Bytes that copies around a node's product read and write, by the value copied."""
    graph, tensor = memory.graph, computed_tensor(node)
    values = _values(node)
    copied: dict[str, int] = {}
    for part, value in values.items():
        plain = part == WEIGHT or (part == NARROW or windows.is_pointwise) and memory.is_channels_last(value)
        if part != tensor and not plain and tensor != BIAS:
            copied[value] = 2 * graph.type_of(value).num_bytes
    if tensor == NARROW and memory.is_copied_out(node.name) or tensor == WIDE and (
            not windows.is_pointwise or memory.is_copied_out(node.name)):
        copied[node.name] = 2 * node.type.num_bytes
    return copied


# -- nodes -------------------------------------------------------------------------------------------------------------------


def _values(node: Node) -> dict[str, str]:
    """The operands of a convolution or of its gradient by the tensor that they are."""
    transposed = bool(node.attribute("transposed", False))
    near, far = (NARROW, WIDE) if transposed else (WIDE, NARROW)
    if node.kind == "library.convolution":
        return {near: node.operands[0], WEIGHT: node.operands[1]}
    return {far: node.operands[0], near: node.operands[1], WEIGHT: node.operands[2]}


@dataclass(slots=True)
class _Products:
    """Nodes of products. Those that read the same matrix share its map."""

    graph: Graph
    names_in_use: set[str] = field(init=False)
    types: dict[str, Type] = field(default_factory=dict)
    name_by_matrix: dict[tuple[Expr, tuple[int, ...]], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names_in_use = set(self.graph.type_by_name)

    def of(self, node: Node, windows: DisjointWindows) -> list[Node]:
        """The nodes that compute a convolution or its gradient; the last one has its name."""
        tensor, values, biased = computed_tensor(node), _values(node), bool(node.attribute("has_bias", False))
        if biased and tensor != NARROW:
            unbiased, added = with_bias_apart(node, self.names_in_use)
            return [*self.of(unbiased, windows), added]
        if tensor == BIAS:
            return self._bias(node)
        nodes: list[Node] = []
        zero = const(0.0, node.type.dtype)

        def matrix(part: str) -> str:
            value = values[part]
            body, shape = {
                WIDE: lambda: (windows.windows_matrix(value, zero), (windows.rows, windows.inner)),
                NARROW: lambda: (windows.narrow_matrix(value), (windows.rows, windows.features)),
                WEIGHT: lambda: (windows.weight_matrix(value), (windows.features, windows.inner)),
            }[part]()
            if part == WIDE and isinstance(body, Read) and not windows.is_pointwise:
                # A plain read would be a view. A conversion to the same type is a copy like any other kernel's.
                body = cast(body, node.type.dtype)
            return self._matrix(value, Type(node.type.dtype, shape), body, nodes)

        left, right, turned, shape = {
            NARROW: (WIDE, WEIGHT, (False, True), (windows.rows, windows.features)),
            WIDE: (NARROW, WEIGHT, (False, False), (windows.rows, windows.inner)),
            WEIGHT: (NARROW, WIDE, (True, False), (windows.features, windows.inner)),
        }[tensor]
        attributes = (("precision", _precision(node)), ("transpose_a", turned[0]), ("transpose_b", turned[1]))
        product = Node(self._name(f"{node.name}_product"), Type(node.type.dtype, shape), "library.matmul",
                       operands=(matrix(left), matrix(right)), attributes=attributes, span=node.span)
        nodes.append(product)
        if biased:
            nodes.append(self._with_bias(product, node.operands[2]))
        axes, value = axis_names(len(node.type.shape)), nodes[-1].name
        body = {NARROW: lambda: windows.narrow_from(value, axes), WIDE: lambda: windows.wide_from(value, axes, zero),
                WEIGHT: lambda: windows.weight_from(value, axes)}[tensor]()
        return [*nodes, Node(node.name, node.type, "map", axes, body=body, span=node.span)]

    def _with_bias(self, product: Node, bias: str) -> Node:
        """The product with a bias for each column: a map of the matrix, so that a kernel holds both and the result stays a view."""
        dtype = product.type.dtype
        wide = compute_dtype(dtype)
        parts = (Read(product.name, (axis(ROW), axis(COLUMN))), Read(bias, (axis(COLUMN),)))
        return Node(self._name(f"{product.name}_biased"), product.type, "map", (ROW, COLUMN),
                    body=converted(call("add", *(converted(part, dtype, wide) for part in parts)), wide, dtype), span=product.span)

    def _matrix(self, value: str, type_: Type, body: Expr, nodes: list[Node]) -> str:
        key = (body, type_.shape)
        name = self.name_by_matrix.get(key)
        if name is None:
            name = self.name_by_matrix[key] = self._name(f"{value}_matrix")
            self.types[name] = type_
            nodes.append(Node(name, type_, "map", (ROW, COLUMN), body=body))
        return name

    def _bias(self, node: Node) -> list[Node]:
        """The sum of a gradient over its batch and its places."""
        value = node.operands[0]
        shape = self.graph.type_of(value).shape
        axes = axis_names(len(shape))
        wide = compute_dtype(node.type.dtype)
        total = self._name(f"{node.name}_sum")
        over = tuple((a, n) for d, (a, n) in enumerate(zip(axes, shape, strict=True)) if d != 1)
        return [Node(total, Type(wide, node.type.shape), "reduce.sum", (axes[1],), over=over,
                     body=converted(Read(value, tuple(map(axis, axes))), node.type.dtype, wide)),
                Node(node.name, node.type, "map", (axes[1],), body=converted(Read(total, (axis(axes[1]),)), wide, node.type.dtype))]

    def _name(self, preferred: str) -> str:
        name = free_name(preferred, self.names_in_use)
        self.names_in_use.add(name)
        return name


def _precision(node: Node) -> str:
    """Precision of a product as exact as the convolution: torch computes f32 in tf32 unless it is told not to."""
    precision = str(node.attribute("precision", "default"))
    return "tf32" if node.type.dtype == F32 and precision == "default" else precision
