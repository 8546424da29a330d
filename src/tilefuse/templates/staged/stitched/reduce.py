"""Reductions of a stitched kernel: rows of a tile by a few lanes each, whose partial results meet by shuffles."""
from __future__ import annotations

from math import prod

from tilefuse.domain.online import KERNEL_MONOIDS
from tilefuse.domain.regions import inside, num_elements
from tilefuse.ir.affine import Affine, number
from tilefuse.ir.dtype import DType
from tilefuse.ir.graph import Node
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Bound, Index, const
from tilefuse.kernel.ir import Declare, If, Reg, Shuffle, Store
from tilefuse.templates.staged.stitched.items import Items
from tilefuse.templates.staged.stitched.plan import Stage
from tilefuse.templates.staged.stitched.points import point_of_item, store
from tilefuse.templates.staged.stitched.values import Point, StitchValues


def emit_reductions(w: StitchValues, stage: Stage) -> None:
    """The rows of a tile, each reduced by `stage.lanes` lanes; several reductions of one shape share one loop."""
    pieces = [w.plan.pieces[k] for k in stage.pieces]
    nodes = [w.nodes[p.value] for p in pieces]
    rows, lanes = num_elements(pieces[0].region), stage.lanes
    extents = [e for _, e in nodes[0].over]
    length = prod(extents)
    with Items(w, rows, lanes) as row:
        lane = w.lane
        local = point_of_item(w, pieces[0], row, 1, pieces[0].region[-1].extent if pieces[0].region else 1)
        at = w.start(pieces[0].region, local, number(0))
        parts = [identities(w, n) for n in nodes]
        needed = tuple(b for b in inside(pieces[0].region, at, nodes[0].type.shape, dict(w.plan.grid)) if not w.always(b))
        # The operand elements of a row beyond the value's end may lie beyond the end of the operands.
        with w.when((*w.active, *needed)), w.loop("c", -(-length // lanes)) as c:
            position = w.let("k", w.simplified(c * lanes + lane), -(-length // lanes) * lanes) if lanes > 1 else c
            with w.when([Bound(position, 0, length)]):
                w.narrow_to(position, length)
                for node, part in zip(nodes, parts, strict=True):
                    accumulate(w, node, part, at, position)
        amount = lanes // 2
        while amount:
            for node, part in zip(nodes, parts, strict=True):
                others = []
                for reg in part:
                    other = Reg(w.fresh(reg.name + "_other"), reg.dtype)
                    w.emit(Declare(other.name, other.dtype), Shuffle(other, reg, "xor", amount))
                    others.append(other)
                w.combine(node.detail, part, others, body_dtype(w, node))
            amount //= 2
        first = (*w.active, Bound(lane, 0, 1)) if lanes > 1 else w.active
        with w.when(first):
            with w.nested() as inner:
                for p, node, part in zip(pieces, nodes, parts, strict=True):
                    result = KERNEL_MONOIDS[node.detail].finish(tuple(part), body_dtype(w, node))
                    store(w, p, at, w.register(result, p.dtype, p.value))
            with w.nested() as other_:
                for p in pieces:
                    if p.stored and needed:
                        w.emit(Store(w.shared[p.key].name, w.tile_offset(p, at), const(0, p.dtype)))
            w.emit(*([If(needed, tuple(inner.statements), tuple(other_.statements))] if needed else inner.statements))


def body_dtype(w: StitchValues, node: Node) -> DType:
    """Data type of a node's body."""
    return dtype_of(node.body, lambda v: w.graph.type_of(v).dtype)


def identities(w: StitchValues, node: Node) -> list[Reg]:
    """Registers for the partial results of a reduction, each with the monoid's identity."""
    parts = []
    for n, start in enumerate(KERNEL_MONOIDS[node.detail].identity(body_dtype(w, node))):
        name = w.fresh(f"{node.name}_{n}" if n else node.name)
        w.emit(Declare(name, start.dtype, None, start))
        parts.append(Reg(name, start.dtype))
    return parts


def accumulate(w: StitchValues, node: Node, parts: list[Reg], at: Point, position: Affine) -> None:
    """Adds the body's value at `position` of the reduced domain, in row-major order, to partial results."""
    over: dict[str, Affine] = {}
    rest = position
    for n, (name, extent) in reversed(list(enumerate(node.over))):
        over[name] = w.simplified(rest % extent) if n else w.simplified(rest)
        rest = rest // extent
    dtype = body_dtype(w, node)
    value = w.register(w.body(node, at, False, over), dtype, node.name + "_x")
    monoid = KERNEL_MONOIDS[node.detail]
    w.combine(node.detail, parts, monoid.lift(value, Index(position), dtype), dtype)
