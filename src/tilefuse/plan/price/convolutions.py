"""Predicted time of the library's convolutions: of those whose windows share no element, with their gradients, and of other windows.

The library computes the former like any convolution: it pads few channels to whole 16 bytes, and gathers the places of each window by small
accesses. So their time is that of a product of padded channels, times a fitted factor; a window of one place is a plain product.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilefuse.base.candidate import Rejected
from tilefuse.domain.work import Work
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph, Node
from tilefuse.passes.device.convolution_layouts import has_tensor_cores
from tilefuse.passes.device.disjoint_windows import BIAS, NARROW, WEIGHT, WIDE, DisjointWindows, computed_tensor, disjoint_windows
from tilefuse.plan.price.library_tiles import ProductSizes, product_work
from tilefuse.target.device import DeviceSpec
from tilefuse.target.memory import ACCESS_BYTES


def convolution_works(nodes: Sequence[Node], graph: Graph, device: DeviceSpec) -> tuple[Work, ...]:
    """The library's work for a convolution, or for the gradients that one call computes one after another.

    Source: `ConvolutionFigures.gathered` for windows that share no element. A convolution of other windows is taken for a product of as
    many operations whose operands are read as they lie; that is assumed, not timed. Requires: no groups; gradients of windows that share no
    element.
    """
    first = nodes[0]
    if first.kind == "library.convolution" and isinstance(disjoint_windows(first, graph), Rejected):
        return (_shared_work(first, graph, device),)
    works = (_one_work(node, graph, device) for node in nodes)
    return tuple(w for w in works if w is not None)


def _one_work(node: Node, graph: Graph, device: DeviceSpec) -> Work | None:
    """Work of the product of padded channels, which gathered accesses lengthen; None for a bias's gradient."""
    windows = disjoint_windows(node, graph)
    assert not isinstance(windows, Rejected), "asked of windows that share no element"
    tensor = computed_tensor(node)
    if tensor == BIAS:
        return None
    return replace(product_work(_sizes(node, windows, tensor, windows.wide[1]), device), time_factor=_factor(windows, node, device))


def _shared_work(node: Node, graph: Graph, device: DeviceSpec) -> Work:
    """Work of a convolution whose windows share elements: of the product that it is, without copies of its windows."""
    image, weight = (graph.type_of(v) for v in node.operands[:2])
    return product_work(ProductSizes(1, node.type.shape[0] * prod(node.type.shape[2:]), node.type.shape[1], prod(weight.shape[1:]),
                                     _unit(node), node.type.dtype.itemsize, image.num_bytes + weight.num_bytes, node.type.num_bytes),
                        device)


def _unit(node: Node) -> str:
    """The unit of a convolution's products."""
    exact = node.attribute("precision", "default") == "f32"
    return "tf32" if node.type.dtype == F32 and not exact else node.type.dtype.name


def _factor(windows: DisjointWindows, node: Node, device: DeviceSpec) -> float:
    """Time over that of a product of padded channels."""
    if prod(windows.weight[2:]) == 1:
        return 1.0
    fitted = device.fitted.convolutions
    if not has_tensor_cores(node, device):
        return fitted.exact_gathered
    return next(factor for most, factor in fitted.gathered if windows.wide[1] <= most)


def _sizes(node: Node, windows: DisjointWindows, tensor: str, channels: int) -> ProductSizes:
    """Sizes of the product of padded channels."""
    dtype = node.type.dtype
    each = ACCESS_BYTES // dtype.itemsize
    places = prod(windows.weight[2:])
    inner = places * (-(-channels // each) * each if places > 1 else channels)
    rows, columns, depth = {NARROW: (windows.rows, windows.features, inner), WIDE: (windows.rows, inner, windows.features),
                            WEIGHT: (windows.features, inner, windows.rows)}[tensor]
    return ProductSizes(1, rows, columns, depth, _unit(node), dtype.itemsize, (rows + columns) * depth * dtype.itemsize,
                        rows * columns * dtype.itemsize)
