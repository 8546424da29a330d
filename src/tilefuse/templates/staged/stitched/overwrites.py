"""Updates in place by stitched kernels: a block overwrites only elements that no other block reads, and that it has read itself."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilefuse.domain.regions import Region, Span, holds, region_of, whole
from tilefuse.ir.affine import axis, number
from tilefuse.ir.scalar import Guard, walk
from tilefuse.templates.staged.stitched.pattern import StitchPattern
from tilefuse.templates.staged.stitched.plan import Piece, Stage, StitchPlan
from tilefuse.templates.staged.stitched.row_chain import first_lane_pieces


def computed_by_several(plan: StitchPlan) -> frozenset[str]:
    """Results that several blocks compute, of which one writes."""
    return frozenset(p.value for p in plan.pieces if p.written and p.grid_axes != {name for name, _ in plan.grid})


def stage_reads_end_before_writes(plan: StitchPlan, value: str, target: str) -> bool:
    """Whether a stitched kernel reads of `target` only what the same block overwrites: at the same element in the loop that does, or
    before a barrier in front of that loop.

    Blocks have no element of the value in common: every axis of the grid leads to other elements of it. A value that several blocks
    compute, each from the old contents, is not overwritten.
    """
    stitcher = StitchPattern(plan.graph, plan.kept)
    if not target or stitcher.analyse() is not None:
        return False
    home = {k: n for n, s in enumerate(plan.stages) for k in (*s.pieces, *s.products)}
    written = [p for p in plan.pieces if p.value == value]
    if len(written) != 1 or written[0].kind != "map" or written[0].grid_axes != {name for name, _ in plan.grid}:
        return False
    own, at = written[0], home[written[0].key]
    computed = [p for p in plan.pieces if p.kind != "copy" and p.value != target]
    beside = [p for p in computed if _reads_own_element(stitcher, p, home[p.key] == at, target)]
    for regions, users in _other_reads(plan, stitcher, home, target, {p.key for p in beside}):
        if not all(holds(own.region, r) for r in regions):
            return False
        if any(home[k] >= at or not any(s.barrier for s in plan.stages[home[k] + 1:at + 1]) for k in users):
            return False
    return _read_once(plan, plan.stages[at], own, beside)


def _reads_own_element(stitcher: StitchPattern, piece: Piece, in_loop: bool, target: str) -> bool:
    """Whether a piece of the loop that overwrites `target` reads it, and only at the element that it computes."""
    places = [index for v, index in stitcher.touches(piece.value) if v == target]
    here = tuple(map(axis, stitcher.axes(piece.value)))
    return in_loop and bool(places) and target not in stitcher.looked_up(piece.value) and all(index == here for index in places)


def _other_reads(plan: StitchPlan, stitcher: StitchPattern, home: Mapping[int, int], target: str,
                 left_out: set[int]) -> Iterator[tuple[list[Region], list[int]]]:
    """(regions of `target` that a piece reads, keys of the pieces in whose stages it does), but for the pieces `left_out`."""
    shape = plan.graph.type_of(target).shape
    for p in plan.pieces:
        if p.value == target:
            # The products that use a copy which no stage brings on chip read it where it lies.
            yield [p.region], [p.key] if p.key in home else [k for k, s in plan.sources.items() if p.key in s]
        elif p.kind != "copy" and p.key not in left_out:
            spans = dict(zip(stitcher.axes(p.value), p.region, strict=True)) | {a: Span(number(0), e) for a, e in stitcher.over(p.value)}
            looked_up = [whole(shape)] if target in stitcher.looked_up(p.value) else []
            places = [index for v, index in stitcher.touches(p.value) if v == target]
            regions = [*looked_up, *(region_of(index, spans, shape, dict(plan.grid)) for index in places)]
            yield regions, [p.key] if regions else []


def _read_once(plan: StitchPlan, stage: Stage, own: Piece, beside: Sequence[Piece]) -> bool:
    """Whether the pieces of a loop that read the old element do so in the thread that overwrites it, and do not read it again then.

    A second piece finds the element in a register, unless it reads it under a guard; rows are walked once for each piece.
    """
    if stage.kind == "rows":
        one_lane = first_lane_pieces(plan, stage)
        whole_rows = len(own.region) > min(len(plan.pieces[k].region) for k in stage.pieces)
        return all(p is own for p in beside) and (whole_rows or stage.lanes == 1 or own.key in one_lane)
    guarded = any(isinstance(e, Guard) for n in plan.graph.nodes if n.body is not None for e in walk(n.body))
    return stage.kind in ("map", "product") and all(p.region == own.region for p in beside) and (len(beside) < 2 or not guarded)
