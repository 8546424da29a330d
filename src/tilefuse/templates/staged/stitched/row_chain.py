"""Rows of a product that the warps which computed them reduce: a softmax on the sums, in registers.

    product (m16n8 tiles, f32)  ->  maximum, exp, sum, division along the rows  ->  left fragments of the next product

A row of sums lies in four lanes, which exchange what they reduced. Nothing passes through shared memory and nobody waits, where each warp
has whole rows. Source: FusionStitching 5.1, warp composition; PTX ISA, accumulators of mma.m16n8k16 and m16n8k8.
"""
from __future__ import annotations

from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.contraction import whole_rows
from tilefuse.domain.regions import Span
from tilefuse.ir.affine import number
from tilefuse.target.warpgroup import ROW_LANES
from tilefuse.templates.staged.stitched.plan import Stage, StitchPlan


def keep_rows(plan: StitchPlan, warps: int) -> None:
    """Lets the stages of products reduce their own rows where the next stage does nothing else; brings what later stages copy first."""
    stages: list[Stage] = []
    for stage in plan.stages:
        joined = _joined(plan, stages[-1], stage, warps) if stages else None
        if joined is None:
            stages.append(stage)
        else:
            stages[-1] = joined
    if len(stages) == len(plan.stages):
        return
    plan.stages = stages
    first = next(n for n, s in enumerate(stages) if s.kind == "product" and s.columns)
    later = [s for s in stages[first:] if s.kind == "copy"]
    plan.stages = [*stages[:first], *later, *(s for s in stages[first:] if s.kind != "copy")]
    home = {k: n for n, s in enumerate(plan.stages) for k in (*s.pieces, *s.products)}
    read = {(source, home[k]) for k in home for source in plan.sources[k]}
    for n, stage in enumerate(plan.stages):
        for k in stage.pieces if stage.columns and stage.kind == "product" else ():
            piece = plan.pieces[k]
            plan.pieces[k] = piece.but(stored=piece.stored and any(source == k and user != n for source, user in read))


def _joined(plan: StitchPlan, product: Stage, rows: Stage, warps: int) -> Stage | None:
    """Both stages as one, if each warp computes whole rows and what is reduced is all its own."""
    if product.kind != "product" or product.columns or rows.kind != "rows" or not rows.own_rows or product.tiling is None:
        return None
    region = plan.pieces[product.pieces[0]].region
    reduced = next(plan.pieces[k] for k in rows.pieces if plan.pieces[k].kind == "reduce")
    if product.tiling.unit != "mma" or region != (*reduced.region, Span(number(0), rows.columns)):
        return None
    if plan.graph.type_of(plan.pieces[product.pieces[0]].value).shape[:-1] != plan.graph.type_of(reduced.value).shape:
        return None  # one reaches beyond its value where the other does not
    tiling = whole_rows(tuple(s.extent for s in region), product.tiling, len(product.products), warps, SEARCH.domain.warp_row_instructions)
    if tiling is None:
        return None
    vector = 2 if rows.columns % 2 == 0 else 1
    return product.but(pieces=(*product.pieces, *rows.pieces), tiling=tiling, lanes=ROW_LANES, columns=rows.columns, vector=vector)


def first_lane_pieces(plan: StitchPlan, stage: Stage) -> frozenset[int]:
    """The pieces of a "rows" stage that its first lane computes alone: one value a row each, which the row's elements do not need.

        s = sum of the row   n = p - rate * s          every lane has s; n is stored by one lane, so that one alone reads p and computes n
    """
    rows = next(plan.pieces[k].region for k in stage.pieces if plan.pieces[k].kind == "reduce")
    alone: set[int] = set()
    for key in reversed(stage.pieces):
        piece = plan.pieces[key]
        if piece.kind == "map" and piece.region == rows and all(k in alone for k in stage.pieces if key in plan.sources[k]):
            alone.add(key)
    return frozenset(alone)
