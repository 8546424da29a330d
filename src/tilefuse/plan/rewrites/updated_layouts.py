"""Layouts of inputs that a program overwrites. The owner of their memory may change their layout once, so that no call has to copy them.

    %w row-major   %w_packed = map { %w }   conv(%x, %w_packed)   %w' = map { %w - %m' }        each call turns the weight and its gradient
    %w, %m channels last                    conv(%x, %w)          %w' = map { %w - %m' }        neither is turned

A convolution's weight should be channels last, and so should the values that follow it element by element: the slots of an optimiser.
"""
from __future__ import annotations

from collections.abc import Iterable

from tilefuse.base.options import Options
from tilefuse.ir.affine import axis, number
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import channels_last_strides
from tilefuse.ir.scalar import Read, walk
from tilefuse.passes.device.convolution_layouts import WEIGHT_OPERAND
from tilefuse.passes.device.packed_weights import allows_channels_last, packing_pays
from tilefuse.target.device import DeviceSpec


def layouts_of_updated(graph: Graph, device: DeviceSpec, options: Options) -> dict[str, tuple[int, ...]]:
    """Strides of updated inputs that should not be row-major. Units: elements.

    Cost: linear in the elementwise nodes between updates and the weights of convolutions.
    """
    if not allows_channels_last(graph, device, options.channels_last):
        return {}
    targets = [t for t, _ in graph.updates]
    weights: dict[str, None] = {}
    gradients: set[str] = set()
    for node in graph.nodes:
        place = WEIGHT_OPERAND.get(node.kind)
        if place is not None and packing_pays(graph, node, device):
            weights[node.operands[place]] = None
            if node.kind == "library.convolution_backward" and node.attribute("result", 0) == 1:
                gradients.add(node.name)
    packed = {v for w in weights for v in _element_by_element(graph, w)} | gradients
    channels_last: dict[str, None] = {t: None for t in targets if t in packed}
    for _, value in graph.updates:
        met = _element_by_element(graph, value)
        if not packed.isdisjoint(met):
            channels_last.update(dict.fromkeys(t for t in targets if t in met))
    return {t: channels_last_strides(graph.type_of(t).shape) for t in targets if t in channels_last}


def _element_by_element(graph: Graph, value: str) -> set[str]:
    """The value, and all values of its shape from which maps of that shape compute it element by element."""
    shape = graph.type_of(value).shape
    met: set[str] = set()
    stack = [value]
    while stack:
        name = stack.pop()
        if name in met or graph.type_of(name).shape != shape:
            continue
        met.add(name)
        node = graph.node_by_name.get(name)
        if node is not None and node.kind == "map":
            stack.extend(_read_here(node))
    return met


def _read_here(node: Node) -> Iterable[str]:
    """Values that a map reads only at its own element."""
    assert node.body is not None
    here = tuple(axis(a) if s > 1 else number(0) for a, s in zip(node.axes, node.type.shape, strict=True))
    plain = tuple(map(axis, node.axes))
    return (e.value for e in walk(node.body) if isinstance(e, Read) and e.index in (here, plain))
