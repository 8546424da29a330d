"""Whether channels last or row-major is faster for all convolutions of a graph together.

    3x3, f16: row-major 50 us, channels last 25      ->   for channels last
    1x11, depthwise: row-major 40 us, 105            ->   against
    3x3, f32 without tf32: row-major 253 us, 313     ->   against

All convolutions get one layout, because a copy lies between two layouts. The time that a layout saves is estimated in units of the time
that the bytes of operand and result take at the device's bandwidth, which is the fastest kernel's time.
Source of the factors: cuDNN and torch's own kernels on one H200, 2026-11-22; 64 to 512 channels, 14 x 14 to 112 x 112 places, batches of
2 and 32, graph replays of torch 2.11.
"""
from __future__ import annotations

from collections.abc import Iterable
from math import copysign, prod

from tilefuse.ir.graph import Graph, Node, library_call_key
from tilefuse.ir.layouts import IMAGE_RANKS
from tilefuse.target.device import DeviceSpec
from tilefuse.target.fitted.calls import ConvolutionFigures

# Operand number of the weight, for a convolution and for its gradient.
WEIGHT_OPERAND = {"library.convolution": 1, "library.convolution_backward": 2}

# Element types for which cuDNN has tensor-core convolutions (f32 as tf32, which torch allows for convolutions by default).
# Source: H200, 3x3 convolutions of batch 64: fp16 channels-last 2 to 13 times faster than fp32 row-major, tf32 3.5 to 9 times.
TENSOR_CORE_DTYPES = frozenset({"f16", "bf16", "f32"})



def is_faster_channels_last(graph: Graph, device: DeviceSpec, turned: Iterable[str] = ()) -> bool:
    """Whether channels last saves at least the time of the kernels that only change the layout of images.

    turned: values whose layout such kernels would change.
    """
    calls = {library_call_key(n): n for n in graph.nodes if n.kind in WEIGHT_OPERAND and len(n.type.shape) in IMAGE_RANKS}
    turned_bytes = sum(graph.type_of(v).num_bytes for v in turned)
    turned_us = device.fitted.convolutions.turned_by_kernel * turned_bytes / device.global_bytes_per_s * 1e6
    return sum(spared_us(graph, n, device) for n in calls.values()) >= turned_us


def gains_by_packed_weights(graph: Graph, device: DeviceSpec) -> bool:
    """Whether packed weights (`runtime.calls.packed_weights`) save more on a host than changing the layout of the caller's images costs."""
    constants = {i.name for i in graph.inputs if i.constant}
    calls, fitted = [n for n in graph.nodes if n.kind in WEIGHT_OPERAND], device.fitted.convolutions
    if device.kind != "host" or not all(_is_packed(graph, n, constants) for n in calls):
        return False
    outside = {*(i.name for i in graph.inputs if not i.constant), *graph.results}
    images = [t for t in map(graph.type_of, outside) if len(t.shape) == 4]
    return sum(_spared_bytes(graph, n, fitted) for n in calls) > fitted.host_turned_image * sum(t.num_bytes for t in images)


def _spared_bytes(graph: Graph, node: Node, fitted: ConvolutionFigures) -> float:
    """Time that packed weights save one call on a host, as bytes at the memory's bandwidth. Units: bytes."""
    image, weight = map(graph.type_of, node.operands[:2])
    moved = image.num_bytes + node.type.num_bytes
    return fitted.host_reordered_weight * weight.num_bytes + (fitted.host_places * moved if prod(weight.shape[2:]) == 1 else 0.0)


def _is_packed(graph: Graph, node: Node, constants: set[str]) -> bool:
    weight = node.operands[WEIGHT_OPERAND[node.kind]]
    plain = node.kind == "library.convolution" and not node.attribute("transposed", False)
    return plain and weight in constants and len(node.type.shape) == 4 and node.type.dtype.name == "f32"


def has_tensor_cores(node: Node, device: DeviceSpec) -> bool:
    """Whether a convolution or its gradient runs on tensor cores: `driver.lowering.product_precision` marks those that torch runs in
    plain f32.
    """
    name = node.type.dtype.name
    rate = dict(device.matrix_flops_per_s).get("tf32" if name == "f32" else name, 0.0)
    return name in TENSOR_CORE_DTYPES and rate > 0 and node.attribute("precision", "default") != "f32"


def spared_us(graph: Graph, node: Node, device: DeviceSpec) -> float:
    """Time that channels last saves one call; negative where it costs time. Units: microseconds. Source: the factors of this file."""
    weight = graph.type_of(node.operands[WEIGHT_OPERAND[node.kind]])
    is_gradient = node.kind == "library.convolution_backward"
    first, fitted = graph.type_of(node.operands[0]), device.fitted.convolutions
    moved = (first, graph.type_of(node.operands[1]) if is_gradient else node.type)
    if weight.dtype.name not in TENSOR_CORE_DTYPES or not weight.num_elements:
        return 0.0
    factor = _factor(weight.shape, node, weight.dtype.name == "f32", has_tensor_cores(node, device), fitted)[is_gradient]
    spared = factor * sum(t.num_bytes for t in moved) / device.global_bytes_per_s * 1e6
    has_window = prod(weight.shape[2:]) > 1
    return copysign(max(abs(spared), fitted.least_us), spared) if has_window and spared else spared


def _factor(weight: tuple[int, ...], node: Node, is_f32: bool, on_tensor_cores: bool,
            fitted: ConvolutionFigures) -> tuple[float, float]:
    window = weight[2:]
    taps = prod(window)
    groups = node.attribute("groups", 1)
    assert isinstance(groups, int)
    if groups > 1 and weight[1] == 1:
        if len(set(window)) > 1:
            return fitted.turned
        gradients = fitted.turned[1] if is_f32 and taps > fitted.large_window else fitted.channel_tap[1] * taps
        return fitted.channel_tap[0] * taps, gradients
    if not on_tensor_cores:
        return (fitted.exact_windows if taps > 1 else fitted.exact_places) if is_f32 else (0.0, 0.0)
    if taps > 1:
        channels = weight[0] if node.attribute("transposed", False) else weight[1] * groups
        return next(factors for most, factors in fitted.windows_f32 if channels <= most) if is_f32 else fitted.windows_16
    return fitted.places_f32 if is_f32 else fitted.places_16
