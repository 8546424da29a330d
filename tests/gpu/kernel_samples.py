"""A representative sample of generated kernels at sizes that run in a moment under a checker: every template, its variants made by hand.

Of pipelined kernels every case of the host's tests, but those whose offsets are data.

Nothing here imports torch: under compute-sanitizer that alone would take longer than all kernels together.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from tests.unit.templates.composed_cases import all_cases
from tests.unit.templates.online_cases import ONLINE_CASES
from tests.unit.templates.packed_graphs import side_by_side, total, update
from tests.unit.templates.pattern_graphs import (
    Pattern,
    batch_norm,
    bias_gelu,
    channels_last,
    column_sum,
    concatenation,
    cross_entropy,
    embedding,
    embedding_sum,
    full_sum,
    layer_norm,
    max_pool,
    norm_backward,
    padded,
    row_extremes,
    row_sum,
    running_sum,
    scatter_add,
    softmax,
    softmax_down,
    transpose,
)
from tests.unit.templates.staged.chain.test_product_chain import CASES as CHAIN_CASES
from tests.unit.templates.staged.pipelined.row_cases import ROW_CASES
from tests.unit.templates.staged.pipelined.swapped_cases import SWAPPED_CASES
from tests.unit.templates.staged.pipelined.test_block_scales import SCALED_CASES
from tests.unit.templates.staged.pipelined.test_byte_products import BYTE_CASES
from tests.unit.templates.staged.pipelined.test_operand_parts import PARTS_CASES
from tests.unit.templates.staged.pipelined.test_pipelined import CASES as PRODUCT_CASES
from tests.unit.templates.staged.pipelined.test_shifted import SHIFTED_CASES
from tests.unit.templates.staged.pipelined.test_split import SPLIT_CASES
from tests.unit.templates.staged.walked.dropped_cases import DROPPED
from tests.unit.templates.staged.walked.part_cases import PART_CASES
from tests.unit.templates.staged.walked.walk_cases import CASES as WALK_CASES
from tests.unit.templates.stitched_cases import CASES
from tilefuse.base.candidate import Rejected
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import generate
from tilefuse.driver.measure.lone_kernel import lone_spec
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.runtime.spec import KernelCode
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.templates.pattern import schedule_graph, schedule_pattern

# Odd extents, so that guards and tails run; the long ones are what it takes to get a cluster, a split or a persistent grid.
ALONE: dict[str, Callable[[], Pattern]] = {
    "pointwise": lambda: bias_gelu(37, 250, "f16"),
    "pointwise-pieces": lambda: concatenation(33, 70, 51, "f16"),
    "pointwise-padded": lambda: padded(21, 45, 3, 6),
    "pointwise-windows": lambda: max_pool(2, 5, 23, 17),
    "transpose": lambda: transpose(301, 133, "f16"),
    "transpose-channels": lambda: channels_last(3, 64, 33, 31, "f16"),
    "transpose-images": lambda: channels_last(3, 3, 60, 68, "f32"),
    "rows-warp": lambda: softmax(333, 57, "f16"),
    "rows-registers": lambda: layer_norm(65, 1003, "bf16"),
    "rows-two-blocks": lambda: softmax(9, 20000),
    "rows-cluster": lambda: softmax(3, 131072, "f16"),
    "rows-long": lambda: softmax(2, 300001),
    "rows-persistent": lambda: layer_norm(64, 32768),
    "rows-positions": lambda: row_extremes(7, 3203, "f16"),
    "rows-loss": lambda: cross_entropy(5, 50304, "bf16"),
    "rows-and-columns": lambda: norm_backward(1056, 512, 132, "f16"),
    "rows-split": lambda: row_sum(2, 1 << 20),
    "everything": lambda: full_sum(401, 1003),
    "columns": lambda: column_sum(1003, 131),
    "columns-softmax": lambda: softmax_down(257, 70),
    "columns-batch-norm": lambda: batch_norm(5, 12, 9, 7, "f16"),
    "scan": lambda: running_sum(5, 5003),
    "gather": lambda: embedding(50, 67, 31),
    "gather-sum": lambda: embedding_sum(50, 64, 31),
    "scatter": lambda: scatter_add(50, 67, 31),
}
PACKED: dict[str, Callable[[], Pattern]] = {
    "packed-updates": lambda: side_by_side([update(37, 64), update(4096), update(1003)] * 3, shared=("rate",)),
    "packed-kinds": lambda: side_by_side([row_sum(6, 2048), update(300), column_sum(512, 25), transpose(70, 51), total(5000)]),
}
IN_PLACE = """graph @updated(%t: f32[50, 8], %n: i64[6], %g: f32[6, 8]) -> () {
  %a: f32[50, 8] = scatter.sum over [i < 6, j < 8] into %t at [%n[i], index(j)] { %g[i, j] }
  update %t = %a
  return
}"""

# Products of one row and a norm of the whole row between them.
NORMS = """graph @norms(%x: f32[1, 256], %a: f32[256, 256], %b: f32[256, 131]) -> (f32[1, 131]) {
  %p: f32[1, 256] = library.matmul(%x, %a)
  %s: f32[1] = reduce.sum [i] over [k < 256] { mul(%p[i, k], %p[i, k]) }
  %y: f32[1, 256] = map [i, j] { mul(%p[i, j], rsqrt(add(mul(%s[i], 0.00390625:f32), 0.00001:f32))) }
  %q: f32[1, 131] = library.matmul(%y, %b)
  %z: f32[1, 131] = map [i, j] { tanh(%q[i, j]) }
  return %z
}"""

EARLY = (("f16", 64), ("f32", 64), ("f32", 96))
# Without `merge-sliced-products`: every step brings its own part of the input and both weights.
NOT_JOINED = "decompose,remove-dead-nodes,inline-views,simplify-index,simplify-scalar,remove-dead-nodes"


class _Case(Protocol):
    """A case of the host's tests."""

    def program(self) -> TileProgram:
        """The tile program for an H200."""


PIPELINED: dict[str, Mapping[str, _Case]] = {
    "product": PRODUCT_CASES, "few rows": SWAPPED_CASES, "parts": SPLIT_CASES, "rows": ROW_CASES, "bytes": BYTE_CASES,
    "high and low": PARTS_CASES, "block scales": SCALED_CASES, "walk": WALK_CASES, "walk in parts": PART_CASES,
    "walk with dropout": DROPPED, "chain": CHAIN_CASES, "rows anywhere": SHIFTED_CASES}


def recurrence_text(dtype: str, width: int, steps: int = 3, rows: int = 20) -> str:
    """h <- tanh(x[t] a + h b), the steps written out."""
    state, weight = f"{dtype}[{rows}, {width}]", f"{dtype}[{width}, {width}]"
    lines = [f"graph @steps(%x: {dtype}[{steps}, {rows}, {width}], %h0: {state}, %a: {weight}, %b: {weight}) -> ({state}) {{"]
    for t in range(steps):
        lines += [f"  %x{t}: {state} = map [i, j] {{ %x[{t}, i, j] }}",
                  f"  %p{t}: {state} = library.matmul (%x{t}, %a) {{transpose_a=false, transpose_b=false}}",
                  f"  %q{t}: {state} = library.matmul (%h{t}, %b) {{transpose_a=false, transpose_b=false}}",
                  f"  %h{t + 1}: {state} = map [i, j] {{ {dtype}(tanh(add(f32(%p{t}[i, j]), f32(%q{t}[i, j])))) }}"]
    return "\n".join([*lines, f"  return %h{steps}", "}"])


@dataclass(frozen=True)
class Sample:
    """One kernel; `program` is None where the compiler chose among several."""

    name: str
    code: KernelCode
    program: TileProgram | None


def samples(device: DeviceSpec) -> Iterator[Sample]:
    """Every kernel of the sample for a device; those that the device has no kernel for are left out."""
    for name, make in ALONE.items():
        yield from _lone(name, schedule_graph(make().graph, {}, device), device)
    for name, make in PACKED.items():
        yield from _lone(name, _whole(make().graph, device, packing=True), device)
    for case in (*CASES, *ONLINE_CASES):
        if case.device.arch == device.arch:
            yield from _lone(f"stitched {case.name}", case.program(), device)
    for variant in all_cases():
        if variant.device.arch == device.arch:
            yield from _lone(f"variant {variant.name}", variant.program(), variant.device)
    if device.arch == H200.arch:
        yield from _pipelined(device)
    for code in generate(parse_graph(IN_PLACE), constants={}, device=device, options=Options()).spec.kernels:
        yield Sample("scatter in place", code, None)
    yield from task_samples(device)
    # Kernels that fetch inputs while the one ahead runs: each sample is launched twice in a row, and the second does.
    for dtype, width in EARLY:
        graph, options = parse_graph(recurrence_text(dtype, width)), Options(passes=NOT_JOINED, max_kernel_nodes=4)
        found = generate(graph, constants={}, device=device, options=options).spec.kernels
        yield from (Sample(f"early {dtype} {width} {n}", code, None) for n, code in enumerate(found) if "_early" in code.entry)


def task_samples(device: DeviceSpec) -> Iterator[Sample]:
    """Kernels of tasks: a recurrence with copies of weights ahead of the wait, products with weights in registers ahead of it."""
    for name, text in {"steps": recurrence_text("f16", 64, rows=4), "norms": NORMS}.items():
        options = Options(passes=NOT_JOINED, max_kernel_nodes=4, grid_level="always")
        for n, code in enumerate(generate(parse_graph(text), constants={}, device=device, options=options).spec.kernels):
            yield Sample(f"tasks {name} {n}", code, None)


def _pipelined(device: DeviceSpec) -> Iterator[Sample]:
    """Kernels with rings of slots, tensor copies and warpgroup products."""
    for kind, cases in PIPELINED.items():
        for name, case in cases.items():
            yield from _lone(f"{kind}: {name}", case.program(), device)


def _whole(graph: Graph, device: DeviceSpec, packing: bool) -> TileProgram | Rejected:
    return schedule_pattern(graph, [n.name for n in graph.nodes], {}, device, packing=packing)


def _lone(name: str, program: TileProgram | Rejected, device: DeviceSpec) -> Iterator[Sample]:
    if isinstance(program, Rejected):
        return
    code, = lone_spec(program, device, Options()).kernels
    yield Sample(name, code, program)


def kinds(sample: Sample) -> set[str]:
    """Which templates and variants a sample's kernel has."""
    found = {"in place"} if sample.code.entry.endswith("_in_place") else {"early"} if "_early" in sample.code.entry else set[str]()
    if "tf_take_task" in sample.code.source:
        found.add("tasks")
    if sample.program is None:
        return found
    template, chosen = sample.program.template, dict(sample.program.parameters)
    found.add(template)
    match template:
        case "rows":
            variants = {"in a warp": chosen["threads"] <= 32, "in a block": chosen["threads"] > 32, "in a cluster": chosen["cluster"] > 1,
                        "split": chosen["split"] > 1, "persistent": chosen["stages"] > 0, "with columns": chosen["span"] > 0,
                        "in registers": chosen["on_chip"], "read again": not chosen["on_chip"]}
        case "columns":
            variants = {"split": chosen["split"] > 1, "whole": chosen["split"] == 1}
        case _:
            variants = {}
    return found | {f"{template} {what}" for what, is_used in variants.items() if is_used}
