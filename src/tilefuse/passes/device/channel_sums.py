"""Reductions over groups of channels that are neighbours in memory: by channel first, then over the channels of a group.

    s[n, g] = sum_(c, p) x[n, 8 g + c, p]      ->      p[n, g, c] = sum_p x[n, 8 g + c, p]      s[n, g] = sum_c p[n, g, c]

    memory of a place p:   | g = 0: 8 channels | g = 1: 8 channels | ...

A reduction over one group reads a few neighbouring elements of each place and steps over the rest, so that a warp touches many lines for
few bytes of each. Sums by channel are column sums of a matrix of places by channels, whose rows are read whole; then one value per channel
is left to combine. Squared deviations are combined from each channel's deviations about its own mean.
Source: H200, f32, statistics and norm of convolutions' results, in us by group and by channel: 8 channels a group of [167, 64, 54, 54] 221
and 139; 32 of [167, 256, 26, 26] 204 and 133; 8 of [128, 64, 258, 258] 2370 and 2110; f16, 10 of [8, 320, 64, 64] 59 and 35.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from tilefuse.ir.affine import axis
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.layouts import Layouts, strides_of
from tilefuse.ir.names import free_name
from tilefuse.ir.scalar import Expr, Read, call, const, walk
from tilefuse.passes.manager import DevicePass, PassContext, Properties, Property, register_pass
from tilefuse.target.device import DeviceSpec
from tilefuse.target.memory import LINE_BYTES

Over = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ChannelAxes:
    """The axes of a reduction over groups of channels: those of a group's channels, and those of an image's places."""

    channels: Over
    places: Over


@register_pass
@dataclass(frozen=True)
class SplitChannelSums(DevicePass):
    """Sum groups of channels that are neighbours in memory by channel first, then over the channels of a group.

    Exact: no; sums are associated differently.
    """

    name: ClassVar[str] = "split-channel-sums"
    preserves: ClassVar[Properties] = frozenset({
        Property.PRIMITIVE_OPS_ONLY, Property.UPDATES_SEPARATE, Property.FILLS_SEPARATE, Property.NO_DEAD_NODES})
    exact: ClassVar[bool] = False
    for_fusion: ClassVar[bool] = True
    depends: ClassVar[tuple[str, ...]] = ("layouts",)

    def rewrite(self, graph: Graph, device: DeviceSpec, ctx: PassContext) -> Graph:
        """The graph with sums by channel; `graph` itself where there is no such group."""
        return split_channel_sums(graph, ctx.layouts.strides)


def split_channel_sums(graph: Graph, layouts: Layouts) -> Graph:
    """The graph with such sums and sums of squared deviations taken by channel first; the same object if there is none.

    layouts: strides of values that are not row-major.
    """
    split = {n.name: axes for n in graph.nodes if (axes := channel_axes(graph, n, layouts)) is not None}
    if not split:
        return graph
    names_in_use = set(graph.type_by_name)
    sums: dict[tuple[tuple[str, ...], Over, Expr], str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += _by_channel(node, split[node.name], sums, names_in_use) if node.name in split else [node]
    return replace(graph, nodes=tuple(nodes))


def channel_axes(graph: Graph, node: Node, layouts: Layouts) -> ChannelAxes | None:
    """The axes of a reduction over some neighbouring channels at every place; None for any other node.

    Where a group's channels at one place fill more than a cache line, they are read like a row, by whole lines.
    """
    if node.kind not in ("reduce.sum", "reduce.m2") or not node.type.dtype.is_float or not node.type.num_elements or node.body is None:
        return None
    result_axes, over = set(node.axes), {a for a, n in node.over if n > 1}
    channels: set[str] = set()
    for e in walk(node.body):
        if not isinstance(e, Read):
            continue
        strides = strides_of(graph, layouts, e.value)
        groups = [d for d, i in enumerate(e.index) if strides[d] == 1 and i.axes() & result_axes and i.axes() & over]
        elsewhere = {a for d, i in enumerate(e.index) if d not in groups for a in i.axes() & over}
        if groups and elsewhere:
            channels |= e.index[groups[0]].axes() & over
            if channels & elsewhere:
                return None
    channel_axes_of_sum = ChannelAxes(tuple(o for o in node.over if o[0] in channels), tuple(o for o in node.over if o[0] not in channels))
    count = prod(n for _, n in channel_axes_of_sum.channels)
    return channel_axes_of_sum if count > 1 and count * _itemsize(graph, node) <= LINE_BYTES else None


def _itemsize(graph: Graph, node: Node) -> int:
    """Bytes of an element of the largest value that a node reads."""
    return max((t.num_bytes, t.dtype.itemsize) for t in map(graph.type_of, node.reads()))[1]


def _by_channel(node: Node, axes: ChannelAxes, sums: dict[tuple[tuple[str, ...], Over, Expr], str], names_in_use: set[str]) -> list[Node]:
    """The nodes that stand for a reduction: by channel, then over the channels under the node's own name.

    sums: names of the existing sums by channel, by kept axes, reduced axes and body.
    """
    assert node.body is not None
    channels = tuple(a for a, _ in axes.channels)
    partial_axes = (*node.axes, *channels)
    type_ = Type(node.type.dtype, (*node.type.shape, *(n for _, n in axes.channels)))
    at = tuple(map(axis, partial_axes))
    partial_sums: list[Node] = []
    key = (node.axes, node.over, node.body)
    total = sums.get(key)
    if total is None:
        total = sums[key] = _named(f"{node.name}_of_channels", names_in_use)
        partial_sums.append(replace(node, name=total, kind="reduce.sum", type=type_, axes=partial_axes, over=axes.places))
    if node.kind == "reduce.sum":
        return [*partial_sums, replace(node, over=axes.channels, body=Read(total, at))]
    count = prod(n for _, n in axes.places)
    size = const(float(count), node.type.dtype)
    squares, within, between = (_named(f"{node.name}_{part}", names_in_use) for part in ("of_channels", "within", "between"))
    here = tuple(map(axis, node.axes))
    return [
        *partial_sums, replace(node, name=squares, type=type_, axes=partial_axes, over=axes.places),
        replace(node, name=within, kind="reduce.sum", over=axes.channels, body=Read(squares, at)),
        replace(node, name=between, over=axes.channels, body=call("div", Read(total, at), size)),
        replace(node, kind="map", over=(), body=call("add", Read(within, here), call("mul", Read(between, here), size)))]


def _named(base_name: str, names_in_use: set[str]) -> str:
    name = free_name(base_name, names_in_use)
    names_in_use.add(name)
    return name
