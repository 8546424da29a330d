"""Predicted times of the library's attention and of its gradients."""
from __future__ import annotations

from math import prod

from tilefuse.domain.work import Operations, Work
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.library.attention_call import attention_call
from tilefuse.ir.library.attention_gradient_call import AttentionGradientCall
from tilefuse.target.device import DeviceSpec


def attention_work(node: Node, graph: Graph, device: DeviceSpec) -> Work | None:
    """Work of the library's call; None where a node is no attention of a type that its kernels multiply on tensor cores.

    Tiles of rows and columns are whole ones. Half of the products of a causal mask are left out. Source: `AttentionFigures`.
    """
    call = attention_call(node, graph)
    if call is None or device.kind != "cuda":
        return None
    fitted, types = device.fitted.attention, [graph.type_of(v) for v in dict.fromkeys(node.operands)]
    if types[0].dtype.bits != fitted.bits:
        return None
    *lead, rows, inner = graph.type_of(call.query).shape
    columns, width = graph.type_of(call.value).shape[-2:]
    # Of the kernels that the framework chooses from, the fast ones take no mask.
    library = "efficient" if call.mask and call.library == "any" else call.library
    share = next(share for most, share in dict(fitted.rate_shares)[library] if width <= most)
    flops = _flops(prod(lead), rows, columns, (inner, width), call.causal, device)
    tall = -(-rows // fitted.tile_side)
    return Work(global_bytes=sum(t.num_bytes for t in (*types, node.type)),
                operations=(Operations(flops, types[0].dtype.name, share),),
                serial_us=fitted.start_us + prod(lead) * tall / device.num_multiprocessors * fitted.tile_us)


def attention_gradient_work(call: AttentionGradientCall, graph: Graph, device: DeviceSpec) -> Work | None:
    """Work of the library's call for the gradients; None where nothing predicts it: other types than its kernels multiply on tensor cores,
    or kernels of another device.

    Five products, however many gradients are read. Source: `AttentionFigures`.
    """
    fitted, values = device.fitted.attention, list(call.operands.values())
    query, value = graph.type_of(call.query), graph.type_of(call.value)
    share = dict(fitted.gradient_rate_shares).get(call.library)
    if share is None or device.kind != "cuda" or query.dtype.bits != fitted.bits:
        return None
    *lead, rows, inner = query.shape
    columns, width = value.shape[-2:]
    flops = _flops(prod(lead), rows, columns, (inner, inner, inner, width, width), call.causal, device)
    num_bytes = sum(graph.type_of(v).num_bytes for v in (*dict.fromkeys(values), *(n for n in call.gradients if n)))
    return Work(operations=(Operations(flops, query.dtype.name, share),), serial_us=dict(fitted.gradient_start_us)[call.library],
                serial_bytes=int(num_bytes * dict(fitted.gradient_passes)[call.library]))


def _flops(heads: int, rows: int, columns: int, widths: tuple[int, ...], causal: bool, device: DeviceSpec) -> int:
    """Operations of products of rows and columns, one of each width: in whole tiles, of which a causal mask leaves out half."""
    fitted = device.fitted.attention
    tall, wide = (-(-n // fitted.tile_side) for n in (rows, columns))
    deep = sum(-(-n // fitted.width_step) * fitted.width_step for n in widths)
    flops = 2 * heads * tall * wide * fitted.tile_side ** 2 * deep
    return flops * (wide + 1) // (2 * wide) if causal else flops
