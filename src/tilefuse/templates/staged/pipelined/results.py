"""The end of a tile: results computed from the sums, each lane two neighbours of a row at a time.

    staged     64 rows x 64 columns of a warpgroup in shared memory  ->  tensor stores, which go on while the next stage is written
    direct     each lane stores its neighbours, where no tensor map describes the result
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilefuse.domain.contraction import COLUMN, ROW
from tilefuse.emit.vectors import vector_parts
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.kernel.ir import Assign, Barrier, Comment, Declare, Reg, Store, VectorLoad, VectorStore
from tilefuse.kernel.pipeline import WARPGROUP, WARPGROUP_ROWS
from tilefuse.kernel.tensor_map import ProxyFence, TensorMap, TensorStore, TensorStoreWait
from tilefuse.target.capabilities import MMA_COLUMNS, MMA_ROWS, WARP
from tilefuse.templates.staged.pipelined.plan import STAGE_COLUMNS, SWIZZLE, StagedResult
from tilefuse.templates.staged.pipelined.row_tile import HALF_ROWS, NEIGHBOURS
from tilefuse.templates.staged.pipelined.state import ProductState


@dataclass(frozen=True)
class Place:
    """Neighbouring elements of a lane: of the whole product, and inside the stage that holds them.

    sum  place of the first one's sums among those of a product; stage: number of the stage (an index expression) in the staged results
    """

    sum: Affine
    row: Affine
    column: Affine
    stage: Affine
    stage_row: Affine
    stage_column: Affine


def store_results(w: ProductState, group: Affine, first_row: Affine, first_column: Affine) -> None:
    """Results of a warpgroup's rows, which begin at `first_row`, 64 rows and 64 columns after the other, but those with one element a row.

    group: the warpgroup's number.
    """
    choice = w.plan.choice
    thread = axis("thread")
    w.emit(Comment(f"{', '.join('%' + r for r in w.form.tile_results)}: from the sums"))
    own_row = w.let("own_row", thread % WARPGROUP // WARP * MMA_ROWS + thread % WARP // 4, WARPGROUP_ROWS - HALF_ROWS)
    pair = w.let("pair", thread % 4, 4)
    steps = choice.columns // STAGE_COLUMNS if choice.columns % STAGE_COLUMNS == 0 else 1
    columns = choice.columns // steps
    for a in range(choice.warpgroup_rows // WARPGROUP_ROWS):
        for step in range(steps):
            number_of = a * steps + step
            stage = group * w.plan.stages + number_of % w.plan.stages
            _meet_before(w, number_of)
            with w.loop("half", 2, unroll=w.unroll) as half:
                stage_row = own_row + half * HALF_ROWS
                row = w.simplified(first_row + a * WARPGROUP_ROWS + stage_row)
                w.row_slot = half + a * 2
                with w.when(w.beyond(row, w.form.rows)), w.loop("b", columns // MMA_COLUMNS, unroll=w.unroll) as b:
                    stage_column = pair * NEIGHBOURS + b * MMA_COLUMNS
                    column = w.simplified(first_column + step * columns + stage_column)
                    place = (a * (choice.columns // MMA_COLUMNS) + step * (columns // MMA_COLUMNS) + b) * 4 + half * 2
                    _neighbours(w, Place(place, row, column, stage, stage_row, stage_column))
            _store_stages(w, first_row + a * WARPGROUP_ROWS, first_column + step * columns, stage)
    if w.plan.staged:
        # The next tile writes both stages again, and the block must not end before its stores.
        w.emit(TensorStoreWait(team=WARPGROUP), Barrier(team=WARPGROUP))


# -- stages ------------------------------------------------------------------------------------------------------------------


def _meet_before(w: ProductState, number_of: int) -> None:
    """Waits until the stores of the stage to come have read it; the first stages of a tile are free."""
    staged, stages = w.plan.staged, w.plan.stages
    if staged and number_of >= stages:
        w.emit(TensorStoreWait((stages - 1) * sum(_panels(r) for r in staged), team=WARPGROUP), Barrier(team=WARPGROUP))


def _panels(r: StagedResult) -> int:
    return STAGE_COLUMNS // r.width


def _store_stages(w: ProductState, row: Affine, column: Affine, stage: Affine) -> None:
    """One thread of a warpgroup stores the stage that its threads have written; boxes end where the result does."""
    staged = w.plan.staged
    if not staged:
        return
    w.emit(ProxyFence(), Barrier(team=WARPGROUP))
    for r in staged:
        if r.name not in w.maps:
            w.maps[r.name] = TensorMap(w.fresh(f"{r.name}_map"), w.buffers[r.name].name, r.dtype, r.map.extents, r.map.strides, r.box,
                                       SWIZZLE)
        for panel in range(_panels(r)):
            with w.at(**{ROW: row, COLUMN: column + panel * r.width}):
                at = tuple(w.index(e) for e in r.map.places)
            start = stage * r.stage_elements + panel * (WARPGROUP_ROWS * r.width)
            # Also where the panel lies outside the result as a whole: waits count stores.
            w.emit(TensorStore(w.maps[r.name].name, tuple(map(w.simplified, at)), w.stages[r.name].name, w.simplified(start),
                               team=WARPGROUP))


# -- elements ----------------------------------------------------------------------------------------------------------------


def _neighbours(w: ProductState, place: Place) -> None:
    """Two neighbouring elements of every result, where both exist or the first does."""
    form, columns = w.form, w.form.columns
    together = columns % NEIGHBOURS == 0
    arrays = {r: w.fresh(f"{r}_out") for r in form.tile_results}
    with w.when(w.beyond(place.column, columns)):
        for name, array in arrays.items():
            w.emit(Declare(array, form.graph.type_of(name).dtype, NEIGHBOURS))
        if together:
            load_neighbours(w, place.sum, place.row, place.column, lambda: [w.element(r) for r in form.tile_results])
        for v in range(NEIGHBOURS):
            with w.nested() as one, w.at(**{ROW: place.row, COLUMN: place.column + v}):
                w.sum = place.sum + v
                for name, array in arrays.items():
                    dtype = form.graph.type_of(name).dtype
                    w.emit(Assign(Reg(array, dtype, number(v)), w.element(name)))
                    if not together:
                        w.emit(Store(w.buffers[name].name, w.result_offset(name), Reg(array, dtype, number(v))))
            with w.when(() if together or not v else w.beyond(place.column + v, columns)):
                w.emit(*one.statements)
        if together:
            _store_neighbours(w, arrays, place)


def load_neighbours(w: ProductState, first_sum: Affine, row: Affine, column: Affine, evaluate: Callable[[], object]) -> None:
    """Boundary elements that both neighbours read next to each other, by one access each. evaluate: writes all that reads them."""
    lane = w.fresh("v")
    w.loads.clear()
    with w.nested() as tried, w.at(**{ROW: row, COLUMN: column + axis(lane)}):
        tried.extents[lane] = NEIGHBOURS
        w.sum = first_sum + axis(lane)
        evaluate()
    for value, offset in tuple(w.loads):
        buffer = w.buffers[value]
        if len(vector_parts(offset, lane, NEIGHBOURS, buffer.dtype)) > 1:
            continue
        array = w.fresh(f"{value}_neighbours")
        places = [w.simplified(substitute(offset, {lane: number(v)}, w.extents)) for v in range(NEIGHBOURS)]
        w.emit(Declare(array, buffer.dtype, NEIGHBOURS), VectorLoad(array, number(0), buffer.name, places[0], NEIGHBOURS))
        for v, at in enumerate(places):
            w.hold((value, at), Reg(array, buffer.dtype, number(v)))


def _store_neighbours(w: ProductState, arrays: dict[str, str], place: Place) -> None:
    """Both neighbours of each result: to its stage, or to global memory where it has none."""
    staged = {r.name: r for r in w.plan.staged}
    lane = w.fresh("v")
    w.frame.extents[lane] = NEIGHBOURS
    for name, array in arrays.items():
        r = staged.get(name)
        if r is not None:
            panel, within = place.stage_column // r.width, place.stage_column % r.width
            start = place.stage * r.stage_elements + panel * (WARPGROUP_ROWS * r.width) + place.stage_row * r.width + within
            w.emit(VectorStore(w.stages[name].name, w.simplified(start), array, number(0), NEIGHBOURS))
            continue
        with w.at(**{ROW: place.row, COLUMN: place.column + axis(lane)}):
            offset = w.result_offset(name)
        for start_lane, width in vector_parts(offset, lane, NEIGHBOURS, w.form.graph.type_of(name).dtype):
            at = substitute(offset, {lane: number(start_lane)}, w.extents)
            w.emit(VectorStore(w.buffers[name].name, at, array, number(start_lane), width))
