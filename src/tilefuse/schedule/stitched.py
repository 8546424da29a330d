"""schedule_stitched: the tile program of a pattern that only stages can hold (products, reductions of different shapes)."""
from __future__ import annotations

from math import prod

from tilefuse.base.candidate import Rejected
from tilefuse.ir.graph import Graph
from tilefuse.schedule.choose_stitch import Estimate, choose_stitch
from tilefuse.schedule.stitch import Piece, Stage, StitchPlan
from tilefuse.schedule.template import Stitched
from tilefuse.schedule.tile import EdgeLevel, Layouts, Level, TileProgram
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch


def schedule_stitched(graph: Graph, layouts: Layouts, device: DeviceSpec, wanted: Stitched | None = None) -> TileProgram | Rejected:
    """The stitched tile program of a pattern given as a graph of its own, or why there is none. `wanted`: tiles made by hand.

    Units: bytes_read counts every boundary value once, however many blocks read it (the second-level cache serves the others).
    """
    found = choose_stitch(graph, device, wanted)
    if isinstance(found, Rejected):
        return found
    choice, plan = found.choice, found.plan
    own = {v: layouts[v] for v in graph.type_by_name if v in layouts}
    stem = "".join(c if c.isascii() and c.isalnum() else "_" for c in "_".join(graph.results[:2]))[:48]
    return TileProgram(
        name=f"k_{stem}", graph=graph, template="stitched", notation=_notation(found), layouts=own,
        parameters=(("allocated_bytes", plan.shared_bytes), ("groups", choice.groups), ("requested_bytes", plan.requested_bytes),
                    ("threads", choice.threads), ("tiles", choice.tiles)),
        levels=_levels(graph, plan), launch=Launch(choice.groups or prod(n for _, n in plan.grid), choice.threads, 1, plan.shared_bytes),
        bytes_read=sum(v.type.num_bytes for v in graph.inputs), bytes_written=sum(graph.type_of(r).num_bytes for r in graph.results),
        flops=plan.flops, work_us=found.us, choice=choice, internal=plan)


def _notation(found: Estimate) -> str:
    """One schedule a stage in the template notation of FusionStitching 5.2; S where the result goes to shared memory."""
    return " ".join(_schedule(found.plan.pieces[key], stage, found.choice.threads) for stage in found.plan.stages for key in stage.pieces)


def _schedule(piece: Piece, stage: Stage, threads: int) -> str:
    spread = [f"GRID_{s.extent}" if s.offset.terms else "CTA" for s in piece.region] or ["CTA"]
    if stage.kind == "reduce":
        spread.append("THREAD" if stage.lanes == 1 else "WARP")
    elif stage.tiling is not None:
        spread.append("WARP" if stage.tiling.unit == "mma" or stage.tiling.split > 1 else "THREAD")
    return f"{piece.value} [{','.join(spread)}]{'S' if piece.stored else ''};"


def _levels(graph: Graph, plan: StitchPlan) -> tuple[EdgeLevel, ...]:
    """Shared memory for what has a tile there, registers for the rest."""
    stored = {p.value for p in plan.pieces if p.stored}
    inside = {n.name for n in graph.nodes}
    level = {v: Level.SHARED if v in stored else Level.REGISTER for v in inside}
    return tuple(EdgeLevel(v, n.name, level[v]) for n in graph.nodes for v in n.reads() if v in inside)
