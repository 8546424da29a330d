"""Predicted time of the library's attention."""
from __future__ import annotations

from math import prod

from tilefuse.domain.work import Operations, Work
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.library.attention_call import attention_call
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
    tall, wide = (-(-n // fitted.tile_side) for n in (rows, columns))
    deep = sum(-(-n // fitted.width_step) * fitted.width_step for n in (inner, width))
    flops = 2 * prod(lead) * tall * wide * fitted.tile_side ** 2 * deep
    if call.causal:
        flops = flops * (wide + 1) // (2 * wide)
    return Work(global_bytes=sum(t.num_bytes for t in (*types, node.type)),
                operations=(Operations(flops, types[0].dtype.name, share),),
                serial_us=fitted.start_us + prod(lead) * tall / device.num_multiprocessors * fitted.tile_us)
