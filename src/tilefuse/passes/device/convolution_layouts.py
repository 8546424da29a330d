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
from tilefuse.target.device import DeviceSpec

# Number of the operand of a convolution and of its gradient that is the weight.
WEIGHT_OPERAND = {"library.convolution": 1, "library.convolution_backward": 2}

# Element types for which cuDNN has tensor-core convolutions (f32 as tf32, which torch allows for convolutions by default).
# Source: H200, 3x3 convolutions of batch 64: fp16 channels-last 2 to 13 times faster than fp32 row-major, tf32 3.5 to 9 times.
TENSOR_CORE_DTYPES = frozenset({"f16", "bf16", "f32"})

# Time that channels last saves, in units of the time of the operand's and the result's bytes: (convolution, its two gradients).
# Windows of several places of 16-bit types on tensor cores; windows of one place of f32 and of 16-bit types.
WINDOWS_16, PLACES_F32, PLACES_16 = (5.0, 9.0), (0.1, 0.8), (0.0, 0.6)
# Windows of f32 as tf32, by the most channels of the image: for few channels cuDNN pads channels last. Source: one H200,
# torch 2.11, row-major and channels last in us: 64 channels to 64, 3x3 over [167, 56, 56] 340, 191; 256 to 256 over [167, 28, 28] 532, 391;
# 64 to 128 over [128, 128, 128] 1878, 874; 8 to 32 over [128, 256, 256] 1953, 1514; 16 to 32, 5x5 over [32, 128, 128] 234, 195; 3 to 64,
# 7x7 by 2 over [128, 224, 224] 1226, 808; 3 to 16, 3x3 over [64, 128, 128] 155, 87; transposed, 64 to 64 over [32, 256, 256] 1265, 660.
WINDOWS_F32 = ((4, (3.6, 4.0)), (16, (1.5, 4.0)), (1 << 62, (2.4, 4.0)))
# A kernel that turns an image reads and writes it.
TURNED_BY_KERNEL = 2.0
# f32 without tf32: windows of several places, and of one.
EXACT_WINDOWS, EXACT_PLACES = (-4.0, -5.0), (-2.4, 3.0)
# Depthwise convolutions: for each place of the window; and where the runtime's call turns the tensors, because cuDNN's kernels of
# windows that are not square, and of the gradients of f32 in large windows, take 3 and 2.4 times as long as torch's row-major ones.
CHANNEL_TAP, TURNED = (0.15, 0.5), (-2.5, -4.0)
LARGE_WINDOW = 25
# On a host, in units of the time of the bytes: weights that torch reorders into blocks at every call; operand and result of windows of one
# place, for which torch has an older implementation; an image turned between row-major and channels last. Source: one core with AVX-512, in
# microseconds, torch row-major and packed: 512 channels, 3x3 windows, 7 x 7 places 4153, 2089; 256, 14 x 14 2405, 1986; 64, 56 x 56 2207,
# 2035; one place, 64 to 256, 56 x 56 1241, 979; 256 to 64 1233, 935; 512 to 128, 28 x 28 1136, 952. One convolution and a relu, 64
# channels, 56 x 56, batches of 1 and 4, with both turns 590 and 1977 longer.
REORDERED_WEIGHT, PLACES_ON_HOST, TURNED_IMAGE = 4.0, 1.3, 6.5
# Gain or loss of a call at least, however little data it has. Units: microseconds.
LEAST_US = 6.0


def is_faster_channels_last(graph: Graph, device: DeviceSpec, turned: Iterable[str] = ()) -> bool:
    """Whether channels last saves at least the time of the kernels that only turn images.

    turned: values that such kernels would turn.
    """
    calls = {library_call_key(n): n for n in graph.nodes if n.kind in WEIGHT_OPERAND and len(n.type.shape) in (4, 5)}
    turned_bytes = sum(graph.type_of(v).num_bytes for v in turned)
    turned_us = TURNED_BY_KERNEL * turned_bytes / device.global_bytes_per_s * 1e6
    return sum(spared_us(graph, n, device) for n in calls.values()) >= turned_us


def gains_by_packed_weights(graph: Graph, device: DeviceSpec) -> bool:
    """Whether packed weights (`runtime.calls.packed_weights`) save more on a host than turning the caller's images costs."""
    constants = {i.name for i in graph.inputs if i.constant}
    calls = [n for n in graph.nodes if n.kind in WEIGHT_OPERAND]
    if device.kind != "host" or not all(_is_packed(graph, n, constants) for n in calls):
        return False
    outside = {*(i.name for i in graph.inputs if not i.constant), *graph.results}
    images = [t for t in map(graph.type_of, outside) if len(t.shape) == 4]
    return sum(_spared_bytes(graph, n) for n in calls) > TURNED_IMAGE * sum(t.num_bytes for t in images)


def _spared_bytes(graph: Graph, node: Node) -> float:
    """Time that packed weights save one call on a host, as bytes at the memory's bandwidth. Units: bytes."""
    image, weight = map(graph.type_of, node.operands[:2])
    moved = image.num_bytes + node.type.num_bytes
    return REORDERED_WEIGHT * weight.num_bytes + (PLACES_ON_HOST * moved if prod(weight.shape[2:]) == 1 else 0.0)


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
    first = graph.type_of(node.operands[0])
    moved = (first, graph.type_of(node.operands[1]) if is_gradient else node.type)
    if weight.dtype.name not in TENSOR_CORE_DTYPES or not weight.num_elements:
        return 0.0
    factor = _factor(weight.shape, node, weight.dtype.name == "f32", has_tensor_cores(node, device))[is_gradient]
    spared = factor * sum(t.num_bytes for t in moved) / device.global_bytes_per_s * 1e6
    has_window = prod(weight.shape[2:]) > 1
    return copysign(max(abs(spared), LEAST_US), spared) if has_window and spared else spared


def _factor(weight: tuple[int, ...], node: Node, is_f32: bool, on_tensor_cores: bool) -> tuple[float, float]:
    window = weight[2:]
    taps = prod(window)
    groups = node.attribute("groups", 1)
    assert isinstance(groups, int)
    if groups > 1 and weight[1] == 1:
        if len(set(window)) > 1:
            return TURNED
        return CHANNEL_TAP[0] * taps, TURNED[1] if is_f32 and taps > LARGE_WINDOW else CHANNEL_TAP[1] * taps
    if not on_tensor_cores:
        return (EXACT_WINDOWS if taps > 1 else EXACT_PLACES) if is_f32 else (0.0, 0.0)
    if taps > 1:
        channels = weight[0] if node.attribute("transposed", False) else weight[1] * groups
        return next(factors for most, factors in WINDOWS_F32 if channels <= most) if is_f32 else WINDOWS_16
    return PLACES_F32 if is_f32 else PLACES_16
