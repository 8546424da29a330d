"""Products on the matrix unit that hand a tile on in registers: the sums of one are, rounded, the left operand of the next.

    sum (m16n8 tiles, f32)  ->  bias, maximum, 16 bits  ->  left fragments (m16k16) of the next product

Two neighbouring tiles of sums lie in the lanes of a warp just as one left fragment of 16 bits does; of f32 one tile does, once the inner
axis is numbered otherwise. So where each warp computes whole rows nothing passes through shared memory and nobody waits. Between two
products may also lie what reduces these rows (`row_chain.py`). Source: PTX ISA, fragments of mma.m16n8k16 and m16n8k8.
"""
from __future__ import annotations

from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.contraction import INNER, ROW, Tiling, whole_rows
from tilefuse.domain.regions import Span
from tilefuse.ir.affine import axis, number
from tilefuse.target.capabilities import WARP
from tilefuse.templates.staged.stitched.plan import Stage, StitchPlan
from tilefuse.templates.staged.stitched.row_chain import keep_rows


def keep_chains(plan: StitchPlan, threads: int) -> None:
    """Keeps in registers every piece that only products take, as their left operand, and whose rows each warp computes whole."""
    keep_rows(plan, threads // WARP)
    links: dict[int, set[int]] = {}
    for n, stage in enumerate(plan.stages):
        for key in stage.pieces if _on_matrix_unit(stage) else ():
            readers = _readers(plan, n, key)
            if readers:
                links[key] = {n, *readers}
    while links:
        key, together = links.popitem()
        keys = {key}
        while more := [k for k, other in links.items() if other & together]:
            for k in more:
                together |= links.pop(k)
                keys.add(k)
        tilings = {n: _whole_rows(plan, plan.stages[n], threads // WARP) for n in together}
        if any(t is None for t in tilings.values()):
            continue
        for n, tiling in tilings.items():
            plan.stages[n] = plan.stages[n].but(tiling=tiling)
        for k in keys:
            plan.pieces[k] = plan.pieces[k].but(stored=False)
        plan.held |= keys


def _on_matrix_unit(stage: Stage) -> bool:
    return stage.tiling is not None and stage.tiling.unit == "mma"


def _readers(plan: StitchPlan, home: int, key: int) -> set[int]:
    """The stages that read a piece of stage `home`, if all of them multiply its rows from the left; else none."""
    piece = plan.pieces[key]
    if piece.written or not piece.stored or piece.dtype.name not in ("f16", "bf16", "f32"):
        return set()
    readers: set[int] = set()
    for n, stage in enumerate(plan.stages):
        for user in (*stage.pieces, *stage.products) if n != home else ():
            if key not in plan.sources[user]:
                continue
            if user not in stage.products or not _on_matrix_unit(stage):
                return set()
            product = plan.pieces[user]
            contraction = plan.contractions[product.value]
            rows = tuple(axis(a) for a in (*contraction.axes[:-2], ROW, INNER))
            if contraction.left != piece.value or contraction.left_index != rows or piece.value in (contraction.right, contraction.bias):
                return set()
            if piece.region != (*product.region[:-1], Span(number(0), contraction.inner)):
                return set()
            readers.add(n)
    return readers


def _whole_rows(plan: StitchPlan, stage: Stage, warps: int) -> Tiling | None:
    """The tiling that gives each warp equally many whole rows, in one turn, if there is one."""
    assert stage.tiling is not None
    extents = tuple(s.extent for s in plan.pieces[stage.products[0]].region)
    most = SEARCH.domain.warp_row_instructions if stage.columns else SEARCH.domain.warp_instructions
    return whole_rows(extents, stage.tiling, len(stage.products), warps, most)
