"""Work of threads in a pipelined product: operations of maps on the sums, and the cycles of producers that load or compute operands."""
from __future__ import annotations

import math
from collections.abc import Sequence

from tilefuse.ir.dtype import F32
from tilefuse.ir.ops import NARROW_FLOPS
from tilefuse.ir.scalar import Call, Expr, walk
from tilefuse.kernel.pipeline import SWIZZLE_CHUNK_BYTES, WARPGROUP
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.pipelined.bodies import bodies, operations
from tilefuse.templates.staged.pipelined.columns.sums import instructions_an_element
from tilefuse.templates.staged.pipelined.form import ProductForm
from tilefuse.templates.staged.pipelined.operands import access_bytes, chunks_together, fillings_of
from tilefuse.templates.staged.pipelined.plan import OperandTile, ProductPlan


def result_operations(form: ProductForm, device: DeviceSpec) -> int:
    """Operations that maps and reductions of rows do on one element of the sums, in all passes over these."""
    added = math.ceil(instructions_an_element() * len(form.down.points))
    if not form.reduced.stages:
        return _operations(bodies(form.graph, form.graph.results), form) + added
    passes = [p for s in form.reduced.stages for p in s.passes]
    reduced = [form.graph.node_by_name[v].body for names in (*(p.computed for p in passes), form.reduced.computed) for v in names]
    combined = sum(device.fitted.pipelined.combined_operations * len(p.reductions) for p in passes)
    return combined + added + _operations([body for body in reduced if body is not None], form)


def _operations(expressions: Sequence[Expr], form: ProductForm) -> int:
    """Operations of some expressions behind the sums. Results of more bits have their functions in full."""
    short = form.narrow or not any(isinstance(e, Call) and e.fn in NARROW_FLOPS for body in expressions for e in walk(body))
    return operations(expressions, form.left.dtype != F32 and short)


def producing_cycles(plan: ProductPlan, device: DeviceSpec) -> float:
    """Cycles of producing threads that load or compute one filling: for each group of chunks the latency of its loads, then its elements.

        thread 0    loads of 2 chunks ...... 16 elements |  loads of 2 chunks ...... 16 elements |

    A tile with fewer chunks than there are threads takes as long as one with a chunk for each.
    """
    return sum(loading_cycles(plan.form, tile, device) for tile in _loaded(plan))


def loading_cycles(form: ProductForm, tile: OperandTile, device: DeviceSpec) -> float:
    """The same of one operand's tile."""
    return _group_waits(form, tile, device) + _element_cycles(form, tile, device)


def _group_waits(form: ProductForm, tile: OperandTile, device: DeviceSpec) -> float:
    """Latency of all groups of a thread's loads. A place that data give is loaded before the element at it."""
    one_after_another = 1 if tile.operand.element is None else form.producing_by_operand[tile.operand.value].loads_in_a_row
    groups = _chunks_of_thread(tile) // chunks_together(form, tile, device)
    return groups * one_after_another * device.fitted.pipelined.load_cycles


def _element_cycles(form: ProductForm, tile: OperandTile, device: DeviceSpec) -> float:
    """Cycles in which a warp, alone on its scheduler, loads or computes the elements of all chunks of its threads."""
    element, fitted = tile.operand.element, device.fitted.pipelined
    if element is None:
        loads = _chunks_of_thread(tile) * (SWIZZLE_CHUNK_BYTES // access_bytes(form, tile.operand))
        return loads * fitted.computed_instructions * WARPGROUP / fitted.computing_per_cycle
    own = form.producing_by_operand[tile.operand.value].operations
    elements = _chunks_of_thread(tile) * (SWIZZLE_CHUNK_BYTES // tile.operand.dtype.itemsize)
    return elements * (fitted.computed_instructions + own) * WARPGROUP / fitted.computing_per_cycle


def _chunks_of_thread(tile: OperandTile) -> int:
    """Chunks that a producing thread brings for a filling, at most."""
    chunks = tile.elements * tile.operand.dtype.itemsize // SWIZZLE_CHUNK_BYTES
    return -(-chunks // WARPGROUP)


def _loaded(plan: ProductPlan) -> tuple[OperandTile, ...]:
    """Operands that producing threads load or compute."""
    return tuple(t for way in fillings_of(plan) if way.threads > 1 for t in way.tiles)
