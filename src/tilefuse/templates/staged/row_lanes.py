"""Which values of a stitched kernel's rows one lane computes: those with one value a row that the row's elements do not need.

    s = sum of the row   n = p - rate * s          every lane has s; n is stored by one lane, so that one alone reads p and computes n
"""
from __future__ import annotations

from tilefuse.templates.staged.stitch_plan import Stage, StitchPlan


def first_lane_pieces(plan: StitchPlan, stage: Stage) -> frozenset[int]:
    """The pieces of a "rows" stage that its first lane computes alone."""
    rows = next(plan.pieces[k].region for k in stage.pieces if plan.pieces[k].kind == "reduce")
    found: set[int] = set()
    for key in reversed(stage.pieces):
        piece = plan.pieces[key]
        if piece.kind == "map" and piece.region == rows and all(k in found for k in stage.pieces if key in plan.sources[k]):
            found.add(key)
    return frozenset(found)
