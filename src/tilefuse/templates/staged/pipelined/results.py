"""The end of a tile: results computed from the sums, each lane two neighbours of a row at a time.

    staged     64 rows x 64 columns of a warpgroup in shared memory  ->  tensor stores, which go on while the next stage is written
    by rows    such a stage  ->  each warp stores its own rows, where no tensor map describes the result (`row_stores.py`)
    direct     each lane stores its neighbours, where these do not lie in one row of memory
    fetched    boundary values of the same elements come through such stages, while the products are computed
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from tilefuse.emit.vectors import vector_parts
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.scalar import Bound, const
from tilefuse.kernel.asynchronous import BulkWait
from tilefuse.kernel.ir import Assign, Barrier, Comment, Declare, If, Load, Reg, Store, VectorLoad, VectorStore
from tilefuse.kernel.pipeline import SWIZZLE_CHUNK_BYTES, WARPGROUP, WARPGROUP_ROWS
from tilefuse.kernel.tensor_map import ProxyFence, TensorCopy, TensorMap, TensorStore, TensorStoreWait
from tilefuse.target.capabilities import MMA_COLUMNS, MMA_ROWS, WARP
from tilefuse.target.warpgroup import HALF_ROWS, NEIGHBOURS
from tilefuse.templates.staged.pipelined.columns.sums import ColumnSums
from tilefuse.templates.staged.pipelined.places import whole_or_cut
from tilefuse.templates.staged.pipelined.row_stores import store_rows
from tilefuse.templates.staged.pipelined.stages import STAGE_COLUMNS, StagedTile
from tilefuse.templates.staged.pipelined.state import ProductState


@dataclass(frozen=True)
class StagePlace:
    """A stage of a tile: 64 rows x 64 columns of a warpgroup. a, step: its number along the rows and along the columns."""

    group: Affine
    number_of: Affine
    a: int
    step: int
    row: Affine
    column: Affine

    def first(self, tile: StagedTile) -> Affine:
        """Its first element in the stages of a tensor."""
        return (self.group * tile.count + self.number_of % tile.count) * tile.stage_elements


@dataclass(frozen=True)
class Place:
    """Neighbouring elements of a lane: of the whole product, and inside the stage that holds them.

    sum  place of the first one's sums among those of a product
    """

    sum: Affine
    row: Affine
    column: Affine
    stage: StagePlace
    stage_row: Affine
    stage_column: Affine

    def within(self, tile: StagedTile) -> Affine:
        """The first one's element in the stages of a tensor."""
        return _element(tile, self.stage, self.stage_row, self.stage_column)


def fetch_values(w: ProductState, group: Affine, first_row: Affine, first_column: Affine) -> None:
    """Starts the copies of the boundary values that the warpgroup's results of a tile read; its stores have read the stages."""
    places = _places_of_stages(w, group, first_row, first_column)
    copies: list[TensorCopy] = []
    for f in w.plan.fetched:
        name = _map_name(w, f.source)
        for place in places:
            for at, start in _boxes(w, f.source, f.tile, place):
                copies.append(TensorCopy(name, at, w.stages[f.tile.name].name, start, group, False, team=WARPGROUP))
    if copies:
        w.emit(Comment(", ".join(f"%{f.source.name}" for f in w.plan.fetched) + ": beside the sums"),
               *copies[:-1], replace(copies[-1], arrive=True))


def _places_of_stages(w: ProductState, group: Affine, first_row: Affine, first_column: Affine) -> list[StagePlace]:
    """The stages of a tile in the order of their computation: rows first, so that the bias of a column stays in registers."""
    choice = w.plan.choice
    height = choice.warpgroup_rows // WARPGROUP_ROWS
    steps = choice.result_columns // STAGE_COLUMNS if choice.result_columns % STAGE_COLUMNS == 0 else 1
    width = choice.result_columns // steps
    return [StagePlace(group, number(step * height + a), a, step, first_row + a * WARPGROUP_ROWS, first_column + step * width)
            for step in range(steps) for a in range(height)]


def await_values(w: ProductState, group: Affine) -> None:
    """Waits for the values that `fetch_values` copies."""
    if w.plan.fetched:
        w.emit(BulkWait(group, w.simplified(w.turn % 2), WARPGROUP))


def store_results(w: ProductState, group: Affine, first_row: Affine, first_column: Affine) -> None:
    """Results of a warpgroup's rows, which begin at `first_row`. group: the warpgroup's number."""
    thread = axis("thread")
    w.emit(Comment(f"{', '.join('%' + r for r in w.form.tile_results)}: from the sums"))
    own_row = w.let("own_row", thread % WARPGROUP // WARP * MMA_ROWS + thread % WARP // 4, WARPGROUP_ROWS - HALF_ROWS)
    pair = w.let("pair", thread % 4, 4)
    sums = ColumnSums(w) if w.form.down.points else None
    for at in _places_of_stages(w, group, first_row, first_column):
        _meet_before(w, at.number_of.const)
        if sums is not None:
            sums.begin()
        whole_or_cut(w, partial(_elements_of_stage, w, at, own_row, pair, sums))
        _store_stages(w, at)
        if sums is not None:
            sums.finish(at.row, at.column)
    if w.plan.copied_results:
        # The next tile writes the stages again, and the block must not end before its stores.
        w.emit(TensorStoreWait(team=WARPGROUP), Barrier(team=WARPGROUP))


def _elements_of_stage(w: ProductState, at: StagePlace, own_row: Affine, pair: Affine, sums: ColumnSums | None) -> None:
    """The elements that a thread computes of a stage. own_row, pair: its first row, and its pair of columns among those of every 8."""
    tile_columns = w.plan.choice.result_columns
    columns = min(tile_columns, STAGE_COLUMNS) if tile_columns % STAGE_COLUMNS == 0 else tile_columns
    with w.loop("half", 2, unroll=w.unroll) as half:
        stage_row = own_row + half * HALF_ROWS
        row = w.simplified(at.row + stage_row)
        w.row_slot = half + at.a * 2
        with w.when(w.beyond_rows(row)), w.loop("b", columns // MMA_COLUMNS, unroll=w.unroll) as b:
            stage_column = pair * NEIGHBOURS + b * MMA_COLUMNS
            place = (at.a * (tile_columns // MMA_COLUMNS) + at.step * (columns // MMA_COLUMNS) + b) * 4 + half * 2
            _neighbours(w, Place(place, row, w.simplified(at.column + stage_column), at, stage_row, stage_column), sums, b)


# -- stages ------------------------------------------------------------------------------------------------------------------


def _meet_before(w: ProductState, number_of: int) -> None:
    """Waits until the stores of the stages to come have read them; the first ones of a tile are free."""
    staged = w.plan.copied_results
    again = [t.count for t in staged if number_of >= t.count]
    if again:
        w.emit(TensorStoreWait((min(again) - 1) * sum(t.num_panels for t in staged), team=WARPGROUP), Barrier(team=WARPGROUP))


def _map_name(w: ProductState, t: StagedTile) -> str:
    """The tensor map of a tensor that passes through stages; the first statement that needs it makes it."""
    if t.name not in w.maps:
        w.maps[t.name] = TensorMap(w.fresh(f"{t.name}_map"), w.buffers[t.name].name, t.dtype, t.map.extents, t.map.strides, t.box,
                                   t.swizzle)
    return w.maps[t.name].name


def _boxes(w: ProductState, tensor: StagedTile, tile: StagedTile, place: StagePlace) -> Iterator[tuple[tuple[Affine, ...], Affine]]:
    """(coordinates, first element in the stages of `tile`) of the boxes of a stage."""
    for panel in range(tensor.num_panels):
        with w.at(**w.place(place.row, place.column + panel * tensor.width)):
            at = tuple(w.simplified(w.index(e)) for e in tensor.map.places)
        yield at, w.simplified(place.first(tile) + panel * (WARPGROUP_ROWS * tensor.width))


def _store_stages(w: ProductState, place: StagePlace) -> None:
    """One thread of a warpgroup stores the stage that its threads have written; boxes end where the result does.

    A box that reaches into the rows of another group would overwrite these: where a tile hangs over its group's end, threads store rows.
    """
    if any(r.by_rows for r in w.plan.staged):
        w.emit(Barrier(team=WARP))
        for r in w.plan.staged:
            if r.by_rows:
                store_rows(w, r, place.row, place.column, place.first(r))
        # The warp writes the stage again.
        w.emit(Barrier(team=WARP))
    if not w.plan.copied_results:
        return
    w.emit(ProxyFence(), Barrier(team=WARPGROUP))
    with w.nested() as whole:
        for r in w.plan.copied_results:
            name = _map_name(w, r)
            for at, start in _boxes(w, r, r, place):
                # Also where the panel lies outside the result as a whole: waits count stores.
                w.emit(TensorStore(name, at, w.stages[r.name].name, start, team=WARPGROUP))
    if w.group_tile is None:
        w.emit(*whole.statements)
        return
    with w.nested() as rows:
        for r in w.plan.copied_results:
            _store_rows(w, r, place)
    # The same for all warpgroups of a block: a condition of one would keep the others from their stores.
    left = w.simplified(w.group_tile.end - w.group_tile.first_row)
    w.emit(If((Bound(left, w.plan.choice.rows, w.form.rows + 1),), tuple(whole.statements), tuple(rows.statements)))


def _store_rows(w: ProductState, r: StagedTile, place: StagePlace) -> None:
    """The threads of a warpgroup store the rows of a stage that belong to the tile's group, in chunks that lie together in the stage."""
    each = SWIZZLE_CHUNK_BYTES // r.dtype.itemsize
    per_row = STAGE_COLUMNS // each
    with w.loop("turn", r.stage_elements // each // WARPGROUP) as turn:
        chunk = w.let("chunk", turn * WARPGROUP + axis("thread") % WARPGROUP, r.stage_elements // each)
        stage_row, stage_column = w.let("stage_row", chunk // per_row, WARPGROUP_ROWS), chunk % per_row * each
        row, column = w.simplified(place.row + stage_row), w.simplified(place.column + stage_column)
        lane = w.fresh("v")
        w.frame.extents[lane] = each
        with w.when([*w.beyond_rows(row), *w.beyond(column, w.form.columns)]):
            array = w.fresh(f"{r.name}_row")
            w.emit(Declare(array, r.dtype, each),
                   VectorLoad(array, number(0), w.stages[r.name].name, w.simplified(_element(r, place, stage_row, stage_column)), each))
            with w.at(**w.place(row, column + axis(lane))):
                offset = w.result_offset(r.name)
            whole = w.form.columns % each == 0
            for start, width in vector_parts(offset, lane, each, r.dtype) if whole else [(v, 1) for v in range(each)]:
                at = substitute(offset, {lane: number(start)}, w.extents)
                with w.when(() if whole else w.beyond(column + start, w.form.columns)):
                    w.emit(VectorStore(w.buffers[r.name].name, at, array, number(start), width))


def _element(tile: StagedTile, stage: StagePlace, row: Affine, column: Affine) -> Affine:
    """An element of a stage among the stages of a tensor."""
    panel, within = column // tile.width, column % tile.width
    return stage.first(tile) + panel * (WARPGROUP_ROWS * tile.pitch) + row * tile.pitch + within


# -- elements ----------------------------------------------------------------------------------------------------------------


def _neighbours(w: ProductState, place: Place, sums: ColumnSums | None, pair: Affine) -> None:
    """Two neighbouring elements of every result, where both exist or the first does. sums: to which they are added, as pair `pair`."""
    form, columns = w.form, w.form.columns
    together = columns % NEIGHBOURS == 0
    arrays = {r: w.fresh(f"{r}_out") for r in form.tile_results}
    staged, dtypes = {r.name for r in w.plan.staged}, {r: form.graph.type_of(r).dtype for r in form.tile_results}
    outside = w.beyond(place.column, columns)
    # Nothing of the stages beyond the columns is stored.
    if outside and together and sums is None and staged.issuperset(arrays) and not reads_columns(w, place, lambda: _evaluate(w)):
        outside = ()
    with w.when(outside):
        for name, array in arrays.items():
            w.emit(Declare(array, dtypes[name], NEIGHBOURS))
        if together:
            load_neighbours(w, place.sum, place.row, place.column, lambda: _evaluate(w), place)
        for v in range(NEIGHBOURS):
            w.loads.clear()
            w.lookups.clear()
            with w.nested() as one, w.at(**w.place(place.row, place.column + v)):
                w.sum = place.sum + v
                for name, array in arrays.items():
                    dtype = dtypes[name]
                    w.emit(Assign(Reg(array, dtype, number(v)), w.element(name)))
                    if not together and name not in staged:
                        w.emit(Store(w.buffers[name].name, w.result_offset(name), Reg(array, dtype, number(v))))
                if sums is not None:
                    sums.add(pair, v)
            # Beyond the last column there is an element of the stage, but none of other values.
            exists = together or not v or staged.issuperset(arrays) and not (w.loads or w.lookups)
            if not exists:
                w.emit(*(Assign(Reg(array, dtypes[name], number(v)), const(0, dtypes[name])) for name, array in arrays.items()
                         if name in staged))
            with w.when(() if exists else w.beyond(place.column + v, columns)):
                w.emit(*one.statements)
        _store_neighbours(w, arrays if together else {r: a for r, a in arrays.items() if r in staged}, place)


def _evaluate(w: ProductState) -> None:
    """Everything that is computed of an element."""
    for name in w.form.tile_results:
        w.element(name)
    for name in w.form.down.points:
        w.here.body(name)


def reads_columns(w: ProductState, place: Place, evaluate: Callable[[], object]) -> bool:
    """Whether `evaluate` loads an element of the column at hand, which does not exist where the column does not."""
    loads, looks_up = _loads_of(w, place, evaluate)
    return looks_up or any(offset.axes() & place.column.axes() for _, offset in loads)


def load_once(w: ProductState, place: Place, evaluate: Callable[[], object]) -> None:
    """Loads the elements that `evaluate` reads for every column of the row at `place`, as its label, before the loop over columns."""
    for value, offset in _loads_of(w, place, evaluate)[0]:
        buffer = w.buffers[value]
        if offset.axes().isdisjoint(place.column.axes()):
            w.hold((value, offset), w.register(Load(buffer.name, buffer.dtype, offset), buffer.dtype, value))


def _loads_of(w: ProductState, place: Place, evaluate: Callable[[], object]) -> tuple[tuple[tuple[str, Affine], ...], bool]:
    """Boundary values and offsets that `evaluate` loads at a place whether or not guards hold; whether it loads at subscripts from data."""
    w.loads.clear()
    w.lookups.clear()
    with w.nested(), w.at(**w.form.place(place.row, place.column)):
        w.sum = place.sum
        evaluate()
    found = tuple(w.loads), bool(w.lookups)
    w.loads.clear()
    w.lookups.clear()
    return found


def load_neighbours(w: ProductState, first_sum: Affine, row: Affine, column: Affine, evaluate: Callable[[], object],
                    place: Place | None = None) -> None:
    """Boundary elements that both neighbours read next to each other, by one access each.

    evaluate: writes all that reads them. place: the neighbours' place in the stages.
    """
    lane = w.fresh("v")
    w.loads.clear()
    with w.nested() as tried, w.at(**w.place(row, column + axis(lane))):
        tried.extents[lane] = NEIGHBOURS
        w.sum = first_sum + axis(lane)
        evaluate()
    first_by_value = {f.source.name: (f.tile, place.within(f.tile)) for f in w.plan.fetched} if place is not None else {}
    for value, offset in tuple(w.loads):
        buffer, tile = w.buffers[value], first_by_value.get(value)
        if tile is None and len(vector_parts(offset, lane, NEIGHBOURS, buffer.dtype)) > 1:
            continue
        array = w.fresh(f"{value}_neighbours")
        places = [w.simplified(substitute(offset, {lane: number(v)}, w.extents)) for v in range(NEIGHBOURS)]
        memory, first = (buffer.name, places[0]) if tile is None else (w.stages[tile[0].name].name, w.simplified(tile[1]))
        w.emit(Declare(array, buffer.dtype, NEIGHBOURS), VectorLoad(array, number(0), memory, first, NEIGHBOURS))
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
            w.emit(VectorStore(w.stages[name].name, w.simplified(place.within(r)), array, number(0), NEIGHBOURS))
            continue
        with w.at(**w.place(place.row, place.column + axis(lane))):
            offset = w.result_offset(name)
        for start_lane, width in vector_parts(offset, lane, NEIGHBOURS, w.form.graph.type_of(name).dtype):
            at = substitute(offset, {lane: number(start_lane)}, w.extents)
            w.emit(VectorStore(w.buffers[name].name, at, array, number(start_lane), width))
