"""schedule_stitched: the tile program of a pattern that only stages can hold (products, reductions of different shapes)."""
from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import groupby
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.parts import structure_but_starts
from tilefuse.domain.tile import Level, TileProgram, kernel_name
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.explained import SharedPlace, StageFacts, StagePiece, Staging, numbered
from tilefuse.templates.notation import Attr, Schedule, Setting, Step, Template, Worker, print_template
from tilefuse.templates.stage_tree import StageKind, StageTree, TreeLoop, TreeStage, TreeValue, edge_levels, moved_bytes
from tilefuse.templates.staged.stitched.choose import choose_stitch
from tilefuse.templates.staged.stitched.plan import Piece, Stage, StitchPlan
from tilefuse.templates.staged.stitched.record import Stitched

# Tiles by structure, in one search for a plan.
Tiles = dict[Hashable, Stitched]


KIND_BY_PIECE: dict[str, StageKind] = {"copy": "copy", "map": "map", "reduce": "reduce", "product": "product"}
TILES_AXIS = "tile"



def schedule_stitched(graph: Graph, layouts: Layouts, device: DeviceSpec, by_hand: Stitched | None = None) -> TileProgram | Rejected:
    """The stitched tile program of a pattern given as a graph of its own, or why there is none. `by_hand`: tiles made by hand.

    Units: bytes_read counts every boundary value once, however many blocks read it (the second-level cache serves the others).
    """
    if device.kind != "cuda" and by_hand is None:
        return Rejected(Reason.LIBRARY_CALL, "the host's library multiplies matrices faster")
    candidate = choose_stitch(graph, device, by_hand)
    if isinstance(candidate, Rejected):
        return candidate
    choice, plan = candidate.choice, candidate.plan
    own = {v: layouts[v] for v in graph.type_by_name if v in layouts}
    launch, work = plan.work.grid, plan.work
    assert launch is not None, "stitched kernels have a grid"
    return TileProgram(
        name=kernel_name(graph), graph=graph, choice=choice, notation=print_template(template_of_stages(choice, plan, launch)), layouts=own,
        parameters=(("allocated_bytes", plan.shared_bytes), ("groups", choice.groups), ("requested_bytes", plan.requested_bytes),
                    ("threads", choice.threads), ("tiles", choice.tiles)),
        levels=edge_levels(graph, stitch_tree(plan, choice)), launch=launch,
        bytes_read=work.read_bytes, bytes_written=work.global_bytes - work.read_bytes, flops=plan.flops, internal=plan)


def fits_one_block(graph: Graph, device: DeviceSpec) -> bool:
    """Whether a pattern with reductions is so small that one launch less is worth one block that computes its stages in turn."""
    steps = sum(n.type.num_elements * prod(e for _, e in n.over) for n in graph.nodes)
    return steps <= device.fitted.stitch.one_block_steps and any(n.category == "reduce" for n in graph.nodes)


def schedule_like(known: Tiles, graph: Graph, layouts: Layouts, device: DeviceSpec) -> TileProgram | Rejected:
    """As `schedule_stitched`; a pattern that differs from one in `known` in where it begins to read takes that one's tiles."""
    form = structure_but_starts(graph, {v: layouts[v] for v in graph.type_by_name if v in layouts})
    again = schedule_stitched(graph, layouts, device, known[form]) if form in known else None
    if isinstance(again, TileProgram):
        return again
    program = schedule_stitched(graph, layouts, device)
    if isinstance(program, TileProgram) and isinstance(program.choice, Stitched):
        known[form] = program.choice
    return program


def template_of_stages(choice: Stitched, plan: StitchPlan, launch: Launch) -> Template:
    """One schedule a stage; the tile of the largest result, the blocks that walk several tiles, and the launch are settings."""
    schedules = tuple(_schedule(plan.pieces[key], stage, plan, launch) for stage in plan.stages for key in stage.pieces)
    tiles = tuple(Setting(f"tile_{n}", extent) for n, extent in enumerate(choice.tiles))
    groups = (Setting("groups", choice.groups),) if choice.groups else ()
    return Template(schedules, (*tiles, *groups, Setting("cta_num", launch.num_blocks), Setting("cta_size", launch.num_threads)))


def _schedule(piece: Piece, stage: Stage, plan: StitchPlan, launch: Launch) -> Schedule:
    attrs: list[Attr] = []
    for span in piece.region:
        inside = (Step(Worker.CTA, span.extent),) if span.extent > 1 else ()
        attrs.append((Step(Worker.GRID), *inside) if span.offset.terms else inside or (Step(Worker.THREAD),))
    if stage.kind == "reduce":
        attrs.append((Step(Worker.THREAD if stage.lanes == 1 else Worker.WARP),))
    elif stage.tiling is not None:
        attrs.append((Step(Worker.WARP if stage.tiling.unit == "mma" or stage.tiling.split > 1 else Worker.THREAD),))
    keep = (Level.SHARED,) if piece.stored else ()
    return Schedule(piece.value, tuple(attrs) or ((Step(Worker.THREAD),),), (*keep, Level.GLOBAL) if keep and piece.written else keep)


# -- explanations ----------------------------------------------------------------------------------------------------------------


def stitch_tree(plan: StitchPlan, choice: Stitched) -> StageTree:
    """The stages of a plan. Copies that are the same for every tile stand in front of the loop over tiles."""
    num_tiles = prod(count for _, count in plan.grid)
    blocks = min(choice.groups, num_tiles) if choice.groups else num_tiles
    once = tuple(s for s in plan.stages if choice.groups and plan.is_once(s))
    of_tile = tuple(part for s in plan.stages if s not in once for part in _parts(plan, s))
    turns = -(-num_tiles // max(blocks, 1))
    body = (TreeLoop(TILES_AXIS, 1, turns, of_tile),) if choice.groups else of_tile
    return StageTree(numbered(choice.tiles), blocks, num_tiles, (*(part for s in once for part in _parts(plan, s)), *body),
                     moved=moved_bytes(plan.work))


def _parts(plan: StitchPlan, stage: Stage) -> Iterator[TreeStage]:
    """The stages of the tree: neighbouring pieces of one kind, products that stay in registers first."""
    pieces = [plan.pieces[k] for k in dict.fromkeys((*stage.products, *stage.pieces))]
    barrier = stage.barrier
    for kind, together in groupby(pieces, key=lambda p: p.kind):
        yield TreeStage(KIND_BY_PIECE[kind], tuple(_value(p, stage) for p in together), _by(stage, kind), barrier)
        barrier = False


def _by(stage: Stage, kind: str) -> str:
    """The unit that multiplies, or the lanes that share a row."""
    if kind == "product" and stage.tiling is not None:
        return "matrix instructions" if stage.tiling.unit == "mma" else "threads"
    return f"{stage.lanes} lanes a row" if kind == "reduce" and stage.lanes > 1 else ""


def _value(piece: Piece, stage: Stage) -> TreeValue:
    """A piece with its level: results of rows that several lanes reduce reach all of them by shuffles."""
    by_lanes = piece.kind == "reduce" and stage.lanes > 1
    level = Level.SHARED if piece.stored else Level.WARP if by_lanes else Level.REGISTER
    return TreeValue(piece.value, level, tuple(s.extent for s in piece.region), piece.num_bytes, piece.buffers, "", piece.written)


def staging_of(plan: StitchPlan) -> Staging:
    """The stages in order and the place of each stored piece, as explanations show them."""
    return Staging(tuple(_stage_facts(plan, s) for s in plan.stages), _places(plan), plan.requested_bytes, plan.shared_bytes)


def _stage_facts(plan: StitchPlan, stage: Stage) -> StageFacts:
    pieces = (plan.pieces[k] for k in (*stage.products, *stage.pieces))
    return StageFacts(stage.kind, stage.barrier, tuple(
        StagePiece(p.value, p.kind, tuple(s.extent for s in p.region), p.stored, p.written) for p in pieces))


def _places(plan: StitchPlan) -> tuple[SharedPlace, ...]:
    """Place of every stored piece, and the stages from its first write to its last read."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, stage in enumerate(plan.stages):
        for key in (*stage.products, *stage.pieces):
            first.setdefault(key, number)
            last[key] = max(last.get(key, number), number)
            for source in plan.sources.get(key, ()):
                last[source] = max(last.get(source, number), number)
    end = len(plan.stages) - 1
    return tuple(SharedPlace(p.value, p.offset_bytes, p.num_bytes, first.get(p.key, 0), last.get(p.key, end))
                 for p in plan.pieces if p.stored)
