"""Work of threads in a pipelined product: operations of maps on the sums, and the cycles of producers that load or compute operands."""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph
from tilefuse.ir.ops import flops_of
from tilefuse.ir.scalar import Expr, reads
from tilefuse.ir.short_forms import short_flops
from tilefuse.kernel.pipeline import SWIZZLE_CHUNK_BYTES, WARPGROUP
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.pipelined.form import ProductForm
from tilefuse.templates.staged.pipelined.operands import chunks_together, fillings_of
from tilefuse.templates.staged.pipelined.plan import OperandTile, ProductPlan


def result_operations(form: ProductForm, device: DeviceSpec) -> int:
    """Operations that maps and reductions of rows do on one element of the sums, in all passes over these."""
    narrow = form.left.dtype != F32
    if not form.reduced.stages:
        return operations(bodies(form.graph, form.graph.results), narrow)
    passes = [p for s in form.reduced.stages for p in s.passes]
    reduced = [form.graph.node_by_name[v].body for names in (*(p.computed for p in passes), form.reduced.computed) for v in names]
    combined = sum(device.fitted.pipelined.combined_operations * len(p.reductions) for p in passes)
    return combined + operations([body for body in reduced if body is not None], narrow)


def values_of_results(form: ProductForm) -> frozenset[str]:
    """Values that maps on the sums read, and the biases of products."""
    values = {v for body in bodies(form.graph, form.graph.results) for v in reads(body)}
    return frozenset(values | {p.contraction.bias for p in form.products if p.contraction.bias})


def producer_wait_cycles(plan: ProductPlan, device: DeviceSpec) -> float:
    """Cycles that consumers wait for producers which load by themselves: the latency of each group of loads, all groups of a tile."""
    groups = sum(t.elements * t.operand.dtype.itemsize // SWIZZLE_CHUNK_BYTES // WARPGROUP // chunks_together(plan.form, t, device)
                 for t in _loaded(plan))
    return plan.fillings * groups * device.fitted.pipelined.load_cycles


def computing_cycles(plan: ProductPlan, device: DeviceSpec) -> float:
    """Cycles in which producing threads compute the elements of a tile's operands."""
    graph = plan.form.graph
    instructions = 0.0
    for tile in _loaded(plan):
        element = tile.operand.element
        if element is not None:
            own = operations([element, *bodies(graph, reads(element))], tile.operand.dtype != F32)
            instructions += tile.elements * (device.fitted.pipelined.computed_instructions + own)
    return plan.fillings * instructions / device.fitted.pipelined.issued_per_cycle


def _loaded(plan: ProductPlan) -> tuple[OperandTile, ...]:
    """Operands that producing threads load or compute."""
    return tuple(t for way in fillings_of(plan) if way.threads > 1 for t in way.tiles)


def bodies(graph: Graph, values: Iterable[str]) -> list[Expr]:
    """Bodies of the maps that values are computed from, down to products and boundary values, each once."""
    body_by_name: dict[str, Expr] = {}
    stack = list(values)
    while stack:
        node = graph.node_by_name.get(stack.pop())
        if node is not None and node.body is not None and node.name not in body_by_name:
            body_by_name[node.name] = node.body
            stack.extend(node.reads())
    return list(body_by_name.values())


def operations(expressions: Sequence[Expr], narrow: bool) -> int:
    """Operations of some expressions. narrow: their results have 16 bits."""
    return sum(short_flops(e) if narrow else flops_of(e) for e in expressions)
