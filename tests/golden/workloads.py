"""The workloads whose tile programs and sources are kept: patterns at the sizes that models have, one folder each."""
from __future__ import annotations

from tests.unit.templates.packed_graphs import side_by_side, total, update
from tests.unit.templates.pattern_graphs import (
    Pattern,
    batch_norm,
    bias_gelu,
    channels_last,
    checked_embedding,
    column_sum,
    concatenation,
    cross_entropy,
    embedding,
    embedding_sum,
    full_sum,
    integers,
    layer_norm,
    max_pool,
    middle_statistics,
    norm_backward,
    row_extremes,
    row_sum,
    running_sum,
    running_sum_behind_zero,
    scaled_columns,
    scatter_add,
    softmax,
    softmax_down,
    transpose,
)
from tests.unit.templates.stitched_graphs import attention, clamped_layers, lstm_cell, product_softmax
from tilefuse.base.candidate import Rejected
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import F16
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.compose import compose
from tilefuse.templates.pattern import schedule_graph, schedule_pattern

WORKLOADS: dict[str, Pattern] = {
    "softmax-short-rows": softmax(65536, 128, "f16"),
    "softmax": softmax(4096, 4096, "bf16"),
    "softmax-cluster": softmax(512, 131072, "f16"),
    "softmax-down": softmax_down(1024, 4096),
    "layer-norm": layer_norm(8192, 768, "f16"),
    "layer-norm-long": layer_norm(1024, 32768),
    "batch-norm": batch_norm(64, 256, 28, 28, "f16"),
    "bias-gelu": bias_gelu(8192, 3072, "f16"),
    "scaled-columns": scaled_columns(1 << 16, 256, "bf16"),
    "norm-backward": norm_backward(16384, 1024, 132, "f16"),
    "cross-entropy": cross_entropy(4096, 50304, "bf16"),
    "embedding-sum": embedding_sum(30522, 768, 8192),
    "column-sum": column_sum(8192, 4096),
    "full-sum": full_sum(4096, 4096),
    "middle-axis-between-vectors": middle_statistics(64, 512, 4095),
    "row-extremes": row_extremes(2048, 32000, "f16"),
    "running-sum": running_sum(1024, 8192),
    "running-sum-between-vectors": running_sum_behind_zero(8192, 4096),
    "transpose": transpose(4096, 8192, "f16"),
    "images-channels-last": channels_last(64, 3, 224, 224),
    "concatenation": concatenation(4096, 1024, 512, "f16"),
    "max-pool": max_pool(32, 64, 112, 112),
    "embedding": embedding(30522, 768, 8192),
    "embedding-checked": checked_embedding(30522, 768, 8192),
    "scatter-add": scatter_add(30522, 768, 8192),
    "product-chain": Pattern(clamped_layers(65536, (64, 64, 64, 64), F16), integers),
    "packed-updates": side_by_side([update(1024, 1024), update(4096), update(4096, 1024), update(1003)] * 3, shared=("rate",)),
    "packed-kinds": side_by_side([row_sum(64, 2048), update(3000), column_sum(512, 256), transpose(256, 256), total(5000), update(512)]),
    "stitched-gates": Pattern(lstm_cell(32, 256), integers),
    "stitched-layers": Pattern(clamped_layers(2048, (64, 64, 64, 64), F16), integers),
    "stitched-softmax": Pattern(product_softmax(98304, 64, 128), integers),
    "walked-attention": Pattern(attention(64, 4096, 64, F16, causal=True), integers),
}

# Workloads with matrix products, whose stages are stitched through shared memory, or that walk an axis.
STITCHED = ("stitched-gates", "stitched-layers", "stitched-softmax", "walked-attention")
# Workloads of independent parts that become one packed kernel.
PACKED = ("packed-updates", "packed-kinds")


def tile_program(name: str, device: DeviceSpec) -> TileProgram | Rejected:
    """The tile program that a workload gets on a device, or why it gets none."""
    graph = WORKLOADS[name].graph
    if name in PACKED:
        return schedule_pattern(graph, [n.name for n in graph.nodes], {}, device, packing=True)
    if name in STITCHED:
        return schedule_pattern(graph, [n.name for n in graph.nodes], {}, device)
    return schedule_graph(graph, {}, device)


def cuda_source(program: TileProgram, device: DeviceSpec) -> str:
    """The whole source of a tile program."""
    return print_cuda(compose(program, device), device)


def kernel_text(source: str) -> str:
    """The head of a source and its kernel, without the support code between them."""
    head = [line for line in source.split("\n\n", 1)[0].splitlines() if line.startswith("//")]
    return "\n".join(head) + "\n" + source[source.index('extern "C" __global__'):]
