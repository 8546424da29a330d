"""Depthwise convolutions in plain f32 and row-major order: sums over windows in kernels instead of library calls.

    y = convolution(x, w), groups = channels      ->      y[n, c, i, j] = sum_(p, q) x[n, c / m, i + p, j + q] w[c, 0, p, q]

Memory traffic bounds such a convolution, and operators behind it share its kernel. The call is slower: torch has a kernel of its own for
row-major f32, whose threads compute each subscript anew.
Source: H200, f32, in us as a call, as a kernel of shifted sums, and the time of its bytes: 3 x 3 over [16, 64, 512, 512] 2552, 763, 502;
3 x 1 over [64, 8, 512, 512] 1453, 276, 251; 3 x 3 with padding over [64, 144, 112, 112] 1093, 459, 217.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilefuse.ir.affine import Affine, axis
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import IMAGE_RANKS, SIGNAL_RANK, Layouts, is_channels_last
from tilefuse.ir.names import free_name
from tilefuse.ir.scalar import Bound, Expr, Guard, Read, call, const
from tilefuse.passes.manager import DevicePass, PassContext, Properties, Property, register_pass
from tilefuse.target.device import DeviceSpec


@register_pass
@dataclass(frozen=True)
class SumChannelWindows(DevicePass):
    """Write depthwise row-major f32 convolutions as sums over windows, which share kernels with other operators.

    Exact: no; sums are associated differently.
    """

    name: ClassVar[str] = "sum-channel-windows"
    preserves: ClassVar[Properties] = frozenset({
        Property.PRIMITIVE_OPS_ONLY, Property.UPDATES_SEPARATE, Property.FILLS_SEPARATE, Property.NO_DEAD_NODES})
    exact: ClassVar[bool] = False
    for_fusion: ClassVar[bool] = True
    depends: ClassVar[tuple[str, ...]] = ("layouts",)

    def rewrite(self, graph: Graph, device: DeviceSpec, ctx: PassContext) -> Graph:
        """The graph with sums over windows; `graph` itself where there is no such convolution."""
        return sum_channel_windows(graph, ctx.layouts.strides)


def sum_channel_windows(graph: Graph, layouts: Layouts) -> Graph:
    """The graph with depthwise convolutions as sums over windows; the same object if there is none.

    layouts: strides of values that are not row-major. Convolutions with a channels-last image or result stay calls: cuDNN has fast kernels
    for them.
    """
    windows = {n.name for n in graph.nodes if is_channel_window(graph, n, layouts)}
    if not windows:
        return graph
    names_in_use = set(graph.type_by_name)
    parts = (_summed(graph, n, names_in_use) if n.name in windows else (n,) for n in graph.nodes)
    return replace(graph, nodes=tuple(node for nodes in parts for node in nodes))


def is_channel_window(graph: Graph, node: Node, layouts: Layouts) -> bool:
    """Whether a node is a depthwise convolution in f32 with row-major image and result."""
    if node.kind != "library.convolution" or node.attribute("transposed", False) or node.type.dtype.name != "f32":
        return False
    x, w = (graph.type_of(v) for v in node.operands[:2])
    ranks = (SIGNAL_RANK, *IMAGE_RANKS)
    if node.attribute("groups", 1) != x.shape[1] or w.shape[1] != 1 or len(x.shape) not in ranks or not node.type.num_elements:
        return False
    return not any(is_channels_last(layouts.get(v), graph.type_of(v).shape) for v in (node.name, node.operands[0]))


def _summed(graph: Graph, node: Node, names_in_use: set[str]) -> tuple[Node, ...]:
    """The sum over the window of each result, and then the bias where the call has one."""
    x, w = node.operands[:2]
    image, weight = graph.type_of(x), graph.type_of(w)
    rank = len(weight.shape) - 2
    axes = axis_names(rank + 2)
    taps = tuple(f"{a}_tap" for a in axes[2:])
    index, bounds = [], []
    for d in range(rank):
        low, high = _pairs(node, "padding", rank)[d]
        at = axis(axes[d + 2]) * node.integers("stride")[d] + axis(taps[d]) * node.integers("dilation")[d] - low
        index.append(at)
        if low or high:
            bounds.append(Bound(at, 0, image.shape[d + 2]))
    per_group = weight.shape[0] // image.shape[1]
    channel = axis(axes[1]) if per_group == 1 else axis(axes[1]) // per_group
    product: Expr = call("mul", Read(x, (axis(axes[0]), channel, *index)), Read(w, (axis(axes[1]), Affine(), *map(axis, taps))))
    body = Guard(tuple(bounds), product, const(0.0, node.type.dtype)) if bounds else product
    over = tuple(zip(taps, weight.shape[2:], strict=True))
    if not node.attribute("has_bias", False):
        return (Node(node.name, node.type, "reduce.sum", axes, over=over, body=body),)
    total = free_name(f"{node.name}_sum", names_in_use)
    names_in_use.add(total)
    added = call("add", Read(total, tuple(map(axis, axes))), Read(node.operands[2], (axis(axes[1]),)))
    return (Node(total, node.type, "reduce.sum", axes, over=over, body=body), Node(node.name, node.type, "map", axes, body=added))


def _pairs(node: Node, name: str, rank: int) -> tuple[tuple[int, int], ...]:
    padding = node.attribute(name, ())
    assert isinstance(padding, tuple) and len(padding) == rank
    pairs = []
    for pair in padding:
        assert isinstance(pair, tuple)
        low, high = pair
        assert isinstance(low, int) and isinstance(high, int)
        pairs.append((low, high))
    return tuple(pairs)
