"""Convolutions with row-major operands: kernels, and not the library, copy them to channels last.

The pass plan-layouts plans the layouts themselves; it makes these copies channels last.
"""
from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import ClassVar

from tilefuse.ir.affine import axis
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.layouts import Layouts, has_channels_last, is_channels_last
from tilefuse.ir.names import free_name
from tilefuse.ir.scalar import Read, cast
from tilefuse.passes.device.convolution_layouts import WEIGHT_OPERAND, gains_by_packed_weights, has_tensor_cores, is_faster_channels_last
from tilefuse.passes.manager import DevicePass, PassContext, Properties, Property, register_pass
from tilefuse.target.device import DeviceSpec


@register_pass
@dataclass(frozen=True)
class PackConvolutionWeights(DevicePass):
    """Copy row-major weights, images and results of convolutions where the library is faster channels last.

    channels_last  "auto" (where it is faster on the device), "always" or "never"
    Exact: bit for bit; a library may associate the sums of a convolution differently in another layout.
    """

    name: ClassVar[str] = "pack-convolution-weights"
    preserves: ClassVar[Properties] = frozenset({
        Property.NO_DEAD_NODES, Property.PRIMITIVE_OPS_ONLY, Property.UPDATES_SEPARATE, Property.FILLS_SEPARATE})
    kinds: ClassVar[frozenset[str]] = frozenset({"cuda", "host"})
    channels_last: str = "auto"

    def rewrite(self, graph: Graph, device: DeviceSpec, ctx: PassContext) -> Graph:
        """The graph with copies around its convolutions; `graph` itself where none is worth one."""
        caller = ctx.caller
        return with_packed_weights(graph, caller.given(graph), device, self.channels_last, caller.free_values(graph), caller.wanted(graph))


def allows_channels_last(graph: Graph, device: DeviceSpec, option: str, given: Layouts | None = None, wanted: Layouts | None = None,
                         free: Set[str] = frozenset()) -> bool:
    """Whether layouts may be changed for convolutions.

    option: "always", "never", or "auto": where the library's convolutions gain more by it than kernels take to copy the caller's tensors.
    given: strides of inputs; wanted: strides of results; free: results whose strides the compiler chooses.
    """
    if option != "auto":
        return option == "always"
    if device.kind != "cuda":
        return gains_by_packed_weights(graph, device)
    return is_faster_channels_last(graph, device, _turned_alone(graph, device, given or {}, wanted or {}, free))


def _turned_alone(graph: Graph, device: DeviceSpec, input_layouts: Layouts, result_layouts: Layouts, free: Set[str]) -> list[str]:
    """Images that only copy kernels would change: row-major ones that calls read from the caller or return to it."""
    inputs = {i.name for i in graph.inputs if not i.constant} & _images_of_calls(graph, device)
    calls = {n.name for n in graph.nodes if n.kind == "library.convolution" and packing_pays(graph, n, device)}
    results = {v for v in calls & graph.escaping - free if has_channels_last(graph.type_of(v).shape)}
    return [*sorted(v for v in inputs if v not in input_layouts or not is_channels_last(input_layouts[v], graph.type_of(v).shape)),
            *sorted(v for v in results if not is_channels_last(result_layouts.get(v), graph.type_of(v).shape))]


def with_packed_weights(graph: Graph, given: Layouts, device: DeviceSpec, option: str, free: Set[str] = frozenset(),
                        wanted: Layouts | None = None) -> Graph:
    """The graph with a copy of each convolution weight that is an argument or a view, packed where the convolution gains by it.

        conv(%x, %w)           ->   %w_packed = map { %w }   conv(%x, %w_packed)             (%w_packed: channels last)
        %d = conv_backward()   ->   %d_packed = conv_backward()   %d = map { %d_packed }     (%d: a result, row-major)

    Images that are arguments are packed as well: torch's strided copy takes twice as long as our kernel, and each of several calls would
    turn them. Results of convolutions and of their gradients that the caller wants row-major are unpacked by a kernel: cuDNN would turn
    them in a kernel of its own.
    Source: H200, f32 images [128, 64, 256, 256] turned by torch 2261 us, by a kernel 1026; [64, 64, 56, 56] through a 3x3 convolution with
    both turned by cuDNN 134 us, by kernels 119.

    Constants are packed when the program is built. The kernel that computes a weight stores it packed; for a reshaped weight it makes the
    copy. Gradients that torch wants row-major are unpacked by a kernel: torch's own strided copy takes several times as long.
    free: results whose layout is ours to choose; wanted: strides of results.
    """
    if not allows_channels_last(graph, device, option, given, wanted, free):
        return graph
    inputs = {i.name for i in graph.inputs if not i.constant and i.name not in given}
    fixed = graph.escaping - free
    turned = inputs | {n.name for n in graph.nodes if not is_computed(n)}
    images = inputs & _images_of_calls(graph, device)
    packed: dict[str, str] = {}
    nodes: list[Node] = []
    names_in_use = set(graph.type_by_name)
    for node in graph.nodes:
        place = WEIGHT_OPERAND.get(node.kind)
        if place is None or not packing_pays(graph, node, device):
            nodes.append(node)
            continue
        for value in node.operands[place - 1:place + 1]:
            if value in (turned if value == node.operands[place] else images) and value not in packed:
                packed[value] = free_name(f"{value}_packed", names_in_use)
                nodes.append(_copy(packed[value], value, graph.type_of(value)))
        node = replace(node, operands=tuple(packed.get(v, v) for v in node.operands))
        unpacked = not is_channels_last((wanted or {}).get(node.name), node.type.shape) and has_channels_last(node.type.shape)
        if node.name in fixed and unpacked:
            name = free_name(f"{node.name}_packed", names_in_use)
            nodes += [replace(node, name=name), _copy(node.name, name, node.type)]
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes)) if len(nodes) > len(graph.nodes) else graph


def _images_of_calls(graph: Graph, device: DeviceSpec) -> set[str]:
    """Images that calls read together with a channels-last weight."""
    read = {n.operands[WEIGHT_OPERAND[n.kind] - 1] for n in graph.nodes if n.kind in WEIGHT_OPERAND and packing_pays(graph, n, device)}
    return {v for v in read if has_channels_last(graph.type_of(v).shape)}


def _copy(name: str, value: str, type_: Type) -> Node:
    axes = axis_names(len(type_.shape))
    # A plain read would be a view. A conversion to the same type is a copy like any other kernel's.
    body = cast(Read(value, tuple(map(axis, axes))), type_.dtype)
    return Node(name, type_, "map", axes, body=body)


def packing_pays(graph: Graph, node: Node, device: DeviceSpec) -> bool:
    """Whether a convolution whose weight must be packed at every call is faster channels last: always on tensor cores.

    Source: on an H200 cuDNN's tensor-core kernels read channels last only; a row-major fp16 call converts operand, weight and result
    itself, so that packing the weight moves the same bytes (ResNet-50, batch 1: 54 such conversions took 154 of 565 us).
    """
    return has_tensor_cores(node, device) and has_channels_last(graph.type_of(node.operands[WEIGHT_OPERAND[node.kind]]).shape)


def is_computed(node: Node) -> bool:
    """Whether a kernel computes the value: a map that is no view."""
    return node.category == "map" and not isinstance(node.body, Read)
