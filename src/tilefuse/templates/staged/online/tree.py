"""The tree of stages of a walk between products: left operands, then a loop along the walked axis, then values known at its end."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilefuse.domain.tile import Level
from tilefuse.target.capabilities import WARP
from tilefuse.templates.explained import LevelTile
from tilefuse.templates.notation import Attr, Step, Worker
from tilefuse.templates.stage_tree import Body, StageTree, TreeLoop, TreeStage, TreeValue, moved_bytes
from tilefuse.templates.staged.online.plan import OnChip, OnlinePlan
from tilefuse.templates.staged.online.products import LEAD, ROW, WALK, WIDTH, OnlineForm

WALKED_AXIS = "walked"

# How the axes of a value are spread, as of `TreeValue.spread`.
Spread = tuple[tuple[str, Attr], ...]
# (offset, size) in shared memory of results on their way to global memory. Units: bytes.
Places = Mapping[str, tuple[int, int]]
NO_PLACES: Places = {}


def online_tree(plan: OnlinePlan) -> StageTree:
    """The tree of a plan: scores and running reductions of each turn, products along the walked axis added up over all turns."""
    form, choice = plan.form, plan.choice
    unit = "matrix instructions" if plan.unit == "mma" else "threads"
    rows = (Step(Worker.GRID), Step(Worker.CTA, choice.rows)) if form.num_rows > choice.rows else (Step(Worker.CTA, choice.rows),)
    loop = Step(Worker.LOOP, choice.columns)
    shared = {t.number: t for t in plan.tiles if t.role == "powers"}
    powers = tuple(shared.get(n) for n in range(len(form.weighted)))
    turn = (*(_copy(plan, t) for t in plan.tiles if t.role in ("right", "weight")),
            *turn_stages(form, (choice.rows, choice.columns), spread_of(form, rows), (loop, Step(Worker.WARP)), (loop,), unit, powers))
    width = max((w.width for w in form.weighted), default=1)
    body: Body = (*(_copy(plan, t) for t in plan.tiles if t.role == "left"),
                  TreeLoop(WALKED_AXIS, choice.columns, -(-form.length // choice.columns), turn), *ends(form, turn, choice.rows, width))
    columns = ("walked axis, a turn", choice.columns)
    workers = (LevelTile("grid", ((LEAD, form.num_leads), (ROW, form.num_rows))), LevelTile("block", ((ROW, choice.rows), columns)),
               LevelTile("warp", ((ROW, -(-choice.rows // -(-choice.threads // WARP))), columns)))
    return StageTree(((ROW, choice.rows),), plan.num_blocks, plan.num_blocks, body, moved=moved_bytes(plan.work), workers=workers)


def spread_of(form: OnlineForm, rows: Attr) -> Spread:
    """How lead places and rows of the scores are spread."""
    return (*(((LEAD, (Step(Worker.GRID),)),) if form.num_leads > 1 else ()), (ROW, rows))


def turn_stages(form: OnlineForm, scores: tuple[int, int], rows: Spread, turns: Attr, inner: Attr, unit: str,
                powers: tuple[OnChip | None, ...], places: Places = NO_PLACES) -> tuple[TreeStage, ...]:
    """The stages of one turn behind its copies: scores, reductions along the walked axis, powers, products along it.

    scores: the tile of one turn; rows: how its rows are spread. turns, inner: the same of the walked axis, where columns are kept, and
    where products add it up. powers: tiles of powers in shared memory, None where they take the registers of scores. places: of results.
    """
    results, known = set(form.graph.results), {s.value for s in form.scores} | {t.value for t in form.totals}
    along = (*rows, (WALK, turns))
    stages = [TreeStage("product", (TreeValue(s.value, Level.REGISTER, scores, spread=along),), unit) for s in form.scores]
    stages += [TreeStage("reduce", (TreeValue(t.value, Level.WARP, scores[:1], written=t.value in results, spread=along),))
               for t in form.totals]
    sums: list[TreeStage] = []
    for n, (w, tile) in enumerate(zip(form.weighted, powers, strict=True)):
        own = () if w.total.value in known or w.total.value not in form.graph.node_by_name else along
        known.add(w.total.value)
        if w.total.value not in {other.total.value for other in form.weighted[:n]}:
            stages.append(TreeStage("map", (TreeValue(w.total.value, Level.REGISTER, scores, spread=own) if tile is None else TreeValue(
                w.total.value, Level.SHARED, (tile.rows, tile.columns), tile.num_bytes, offset_bytes=tile.offset_bytes, spread=own),)))
        product = result_value(w.value, (scores[0], w.width), places, w.value in results)
        spread = (*rows, (WIDTH, (Step(Worker.WARP),)), (WALK, inner))
        sums.append(TreeStage("product", (replace(product, spread=spread),), unit))
    return (*stages, *sums)


def result_value(value: str, tile: tuple[int, ...], places: Places, written: bool = True) -> TreeValue:
    """A value in registers; a result may leave through a place in shared memory."""
    offset_bytes, num_bytes = places.get(value, (0, 0))
    return TreeValue(value, Level.REGISTER, tile, num_bytes, written=written, offset_bytes=offset_bytes)


def ends(form: OnlineForm, turn: tuple[TreeStage, ...], rows: int, width: int, places: Places = NO_PLACES) -> tuple[TreeStage, ...]:
    """Results that are known behind the walk. turn: its stages."""
    known = {v.value for s in turn for v in s.values}
    written = (*((name, (rows,)) for name, _ in form.row_results), *((name, (rows, width)) for name, _ in form.width_results))
    return tuple(TreeStage("map", (result_value(name, tile, places),)) for name, tile in written if name not in known)


def _copy(plan: OnlinePlan, tile: OnChip) -> TreeStage:
    assert tile.operand is not None, "tiles of powers are computed"
    by = "asynchronous copies" if tile.stages > 1 else "threads"
    value = TreeValue(tile.operand.value, Level.SHARED, (tile.rows, tile.columns), tile.num_bytes, tile.stages,
                      offset_bytes=tile.offset_bytes)
    return TreeStage("copy", (value,), by)
