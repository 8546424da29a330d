"""Memory layout of every value, decided before patterns are formed.

Convolutions on tensor cores are faster channels last. Their constant weights are packed once, and their results lie channels last. The
elementwise operators, poolings and residual sums behind them store their results in the layout of their operands. So a layout copy occurs
only at a fixed layout: an argument, a result, a library call that wants another one. The pass stands in this room because views of a plan
(`views.py`) answer which operands need no copy.

    x NCHW -> conv -> relu -> pool -> conv -> y           x NCHW -> conv* -> relu* -> pool* -> conv* -> y NCHW       (* channels last)
"""
from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import ClassVar

from tilefuse.ir.affine import Affine, axis, linearise, row_major_strides
from tilefuse.ir.graph import Graph, Node, library_call_key
from tilefuse.ir.layouts import IMAGE_RANKS, Layouts, channels_last_strides, has_channels_last, is_channels_last, strides_of
from tilefuse.ir.library.side_by_side import KIND as SIDE_BY_SIDE
from tilefuse.ir.library.side_by_side import windows_of
from tilefuse.ir.scalar import Read, walk
from tilefuse.passes.device.convolution_layouts import TENSOR_CORE_DTYPES, WEIGHT_OPERAND
from tilefuse.passes.device.packed_weights import allows_channels_last, is_computed
from tilefuse.passes.device.transformed_tiles import TRANSFORMED
from tilefuse.passes.facts import LibraryLayout, PlannedLayouts
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass
from tilefuse.plan.rewrites.views import as_view
from tilefuse.target.catalog import host_device
from tilefuse.target.device import DeviceSpec


@register_pass
@dataclass(frozen=True)
class PlanLayouts(Pass):
    """Decide the memory layout of every value; the graph stays unchanged. Later passes read the attribute `layouts`.

    channels_last  layouts around convolutions: "auto" (the faster one on the device), "always" or "never"
    Exact: bit for bit.
    """

    name: ClassVar[str] = "plan-layouts"
    preserves: ClassVar[Properties] = frozenset(Property)
    provides: ClassVar[tuple[str, ...]] = ("layouts",)
    channels_last: str = "auto"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        """The graph itself. Its layouts are planned unless they were for this graph. Without a device no convolution becomes channels
        last."""
        known = ctx.attributes.get("layouts")
        if known is None or known.graph is not graph:
            device, caller = ctx.device or host_device(), ctx.caller
            option = self.channels_last if ctx.device is not None else "never"
            strides = plan_layouts(graph, caller.given(graph), caller.wanted(graph), device, option, ctx.call_layout,
                                   caller.free_values(graph))
            ctx.attributes["layouts"] = PlannedLayouts(graph, strides)
        return graph


def plan_layouts(graph: Graph, given: Layouts, wanted: Layouts, device: DeviceSpec, channels_last: str = "auto",
                 library_layout: LibraryLayout | None = None, free: Set[str] = frozenset()) -> dict[str, tuple[int, ...]]:
    """Strides of all values that are not dense row-major.

    given: strides of inputs; wanted: strides of results (a missing result is dense row-major); free: results whose strides the compiler
    chooses: as wanted, unless convolutions make them channels last.
    Units: elements.
    """
    layouts: dict[str, tuple[int, ...]] = {v: s for v, s in given.items() if s != row_major_strides(graph.type_of(v).shape)}
    fixed = _fixed(graph, given, wanted, layouts, free) - (free - {v for _, v in graph.updates} - set(given))
    turns = allows_channels_last(graph, device, channels_last, given, wanted, free)
    for node in graph.nodes:
        if node.kind == SIDE_BY_SIDE:
            layouts |= {w.part: w.strides for w in windows_of(node)}
            fixed |= set(node.operands)
    if turns:
        _pack_weights(graph, fixed, layouts)
    images, pulled = (_images(graph, layouts), _pulled(graph)) if turns else (set(), {})
    convolves = turns and any(n.kind in WEIGHT_OPERAND or n.attribute(TRANSFORMED) for n in graph.nodes)
    for node in graph.nodes:
        if node.name in fixed:
            continue
        if node.category == "library":
            strides = _of_library(graph, node, ChainMap(_operand_views(graph, node, layouts), layouts), library_layout)
        else:
            strides = _followed(graph, node, layouts, convolves)
        if node.name in pulled:
            # torch copies a gradient whose layout differs from that of the call's own operands.
            last = any(is_channels_last(layouts.get(v), graph.type_of(v).shape) for v in pulled[node.name])
            strides = channels_last_strides(node.type.shape) if last and has_channels_last(node.type.shape) else None
        if strides is None and node.category == "gather" and device.kind == "cuda":
            strides = _as_read(graph, node)
        if strides is None and node.name in images:
            strides = channels_last_strides(node.type.shape)
        if strides is None and node.name in free:
            strides = wanted.get(node.name)
        if strides is not None and strides != row_major_strides(node.type.shape):
            layouts[node.name] = strides
    return layouts


def _fixed(graph: Graph, input_layouts: Layouts, result_layouts: Layouts, layouts: dict[str, tuple[int, ...]], free: Set[str]) -> set[str]:
    """Values whose layout is fixed; those that are not dense row-major are entered into `layouts`."""
    fixed = {i.name for i in graph.inputs if not i.constant} | set(input_layouts)
    for result in graph.results:
        if result not in fixed:
            fixed.add(result)
            if result not in free and result in result_layouts and result_layouts[result] != row_major_strides(graph.type_of(result).shape):
                layouts[result] = result_layouts[result]
    for target, value in graph.updates:
        if value not in fixed:
            # An update in its input's layout can be written there in place.
            fixed.add(value)
            if target in layouts:
                layouts[value] = layouts[target]
    return fixed


def _pack_weights(graph: Graph, fixed: set[str], layouts: dict[str, tuple[int, ...]]) -> None:
    """Enters the layout of convolution weights that are constants or come from a kernel of their own (a conversion, a packing)."""
    for node in graph.nodes:
        place = WEIGHT_OPERAND.get(node.kind)
        if place is None or node.name in fixed and not is_channels_last(layouts.get(node.name), node.type.shape):
            continue
        weight = node.operands[place]
        shape = graph.type_of(weight).shape
        maker = graph.node_by_name.get(weight)
        computed = maker is not None and is_computed(maker)
        free = weight not in fixed and (maker is None or computed)
        if node.type.dtype.name in TENSOR_CORE_DTYPES and free and weight not in layouts and has_channels_last(shape):
            layouts[weight] = channels_last_strides(shape)
            fixed.add(weight)


def _images(graph: Graph, layouts: Mapping[str, tuple[int, ...]]) -> set[str]:
    """Values that kernels compute only for convolutions with channels-last weights. Row-major, each call would copy them.

    A reduction over windows counts only where several calls read it: it reads row-major operands slowly in another order.
    """
    images: set[str] = set()
    for node in graph.nodes:
        place = WEIGHT_OPERAND.get(node.kind)
        if place is None or not is_channels_last(layouts.get(node.operands[place]), graph.type_of(node.operands[place]).shape):
            continue
        maker = graph.node_by_name.get(node.operands[place - 1])
        if maker is not None and (is_computed(maker) or maker.category == "reduce") and has_channels_last(maker.type.shape):
            images.add(maker.name)

    def is_for_calls(value: str) -> bool:
        users = [graph.node_by_name[u] for u in graph.users_by_name[value]]
        several = len({library_call_key(u) for u in users}) > 1 or graph.node_by_name[value].category == "map"
        return several and all(u.kind in WEIGHT_OPERAND for u in users)

    return {v for v in images if is_for_calls(v)}


def _pulled(graph: Graph) -> dict[str, tuple[str, str]]:
    """Gradients that kernels compute only for one gradient call of a convolution, each with that call's operand and weight."""
    call_by_gradient: dict[str, tuple[str, str]] = {}
    for node in graph.nodes:
        if node.kind == "library.convolution_backward" and len(node.type.shape) in IMAGE_RANKS:
            grad, x, weight = node.operands[:3]
            maker = graph.node_by_name.get(grad)
            users = [graph.node_by_name[u] for u in graph.users_by_name[grad]]
            if maker is not None and is_computed(maker) and len({library_call_key(u) for u in users if u.category == "library"}) == 1:
                call_by_gradient[grad] = x, weight
    return call_by_gradient


def _of_library(graph: Graph, node: Node, layouts: Mapping[str, tuple[int, ...]],
                library_layout: LibraryLayout | None) -> tuple[int, ...] | None:
    if node.detail == "convolution":
        # torch returns channels last where the tensor or the weight is channels last; a 1x1 weight is both, then the tensor decides.
        if any(is_channels_last(layouts.get(v), graph.type_of(v).shape) for v in node.operands[:2]):
            return channels_last_strides(node.type.shape)
        return None
    if node.detail == "convolution_backward":
        # The same for gradients of operand and weight, for any layout of the incoming gradient (torch copies that one).
        _, x, weight = node.operands[:3]
        if len(node.type.shape) in IMAGE_RANKS and any(is_channels_last(layouts.get(v), graph.type_of(v).shape) for v in (x, weight)):
            return channels_last_strides(node.type.shape)
        return None
    if library_layout is None:
        return None
    types = tuple(graph.type_of(v) for v in node.operands)
    return library_layout(node, types, tuple(strides_of(graph, layouts, v) for v in node.operands))


def _operand_views(graph: Graph, node: Node, layouts: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Strides of operands that will be views: the library reads those, and returns a matching layout."""
    strides_by_operand: dict[str, tuple[int, ...]] = {}
    for value in node.operands:
        maker = graph.node_by_name.get(value)
        if maker is not None and isinstance(maker.body, Read) and value not in layouts:
            view = as_view(graph, maker, strides_of(graph, layouts, maker.body.value))
            if view is not None:
                strides_by_operand[value] = view.strides
    return strides_by_operand


def _followed(graph: Graph, node: Node, layouts: Mapping[str, tuple[int, ...]], convolves: bool) -> tuple[int, ...] | None:
    """Channels last where at least half of the bytes that the node reads dimension by dimension are channels last.

    convolves: besides convolutions, channels-last values that are no images (tokens) count too.
    """
    rank = len(node.type.shape)
    if node.body is None or rank not in IMAGE_RANKS or node.category not in ("map", "reduce"):
        return None
    lies: dict[str, bool] = {}
    for e in walk(node.body):
        if isinstance(e, Read) and graph.type_of(e.value).num_elements > 1:
            if _aligned(e.index, node.axes):
                lies[e.value] = is_channels_last(layouts.get(e.value), graph.type_of(e.value).shape)
            elif convolves and _is_turned(linearise(e.index, strides_of(graph, layouts, e.value)), node):
                lies.setdefault(e.value, True)
    votes = {last: sum(graph.type_of(v).num_bytes for v, is_last in lies.items() if is_last is last) for last in (True, False)}
    # A value without a layout of its own (a gradient spread over an image) is row-major: a tie goes to the layout that convolutions prefer.
    return channels_last_strides(node.type.shape) if votes[True] and votes[True] >= votes[False] else None


def _as_read(graph: Graph, node: Node) -> tuple[int, ...] | None:
    """Strides of a gathered value in the one order of axes in which all maps read it, each element several times; None for others. A bias
    that is gathered as [rows, columns, heads] lies head by head.
    """
    orders: set[tuple[int, ...]] = set()
    for name in graph.users_by_name[node.name]:
        user = graph.node_by_name[name]
        reads = [] if user.body is None or user.category != "map" else [e for e in walk(user.body) if isinstance(e, Read) and
                                                                        e.value == node.name]
        if not reads or user.type.num_elements <= node.type.num_elements:
            return None
        for e in reads:
            places = [next((n for n, a in enumerate(user.axes) if i == axis(a)), None) for i in e.index]
            if None in places or len(set(places)) != len(places):
                return None
            orders.add(tuple(sorted(range(len(places)), key=lambda d: places[d] or 0)))
    if len(orders) != 1:
        return None
    strides, stride = [0] * len(node.type.shape), 1
    for dimension in reversed(orders.pop()):
        strides[dimension], stride = stride, stride * node.type.shape[dimension]
    return tuple(strides)


def _is_turned(offset: Affine, node: Node) -> bool:
    """Whether a value read at `offset` has the layout of a channels-last result: tokens that are read as an image."""
    strides = tuple(offset.coefficient(a) for a in node.axes)
    return offset.is_linear and not offset.const and is_channels_last(strides, node.type.shape)


def _aligned(index: tuple[Affine, ...], axes: tuple[str, ...]) -> bool:
    """Whether dimension d of the operand follows dimension d of the result (windows and steps included), as in poolings."""
    if len(index) != len(axes):
        return False
    result_axes = set(axes)
    return all(e.axes() & result_axes <= {a} for e, a in zip(index, axes, strict=True)) and any(e.axes() & result_axes for e in index)

