"""Work of a task before its wait: loads of weights with which a body begins, parted from those of values that other tasks write."""
from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from tests.unit.templates.tasks.task_runs import MODELS, task_case
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Bound, call, const
from tilefuse.kernel.asynchronous import Prefetch
from tilefuse.kernel.ir import (
    Assign,
    Barrier,
    Buffer,
    Comment,
    Declare,
    For,
    Group,
    If,
    Let,
    Load,
    Member,
    Reg,
    Stmt,
    Store,
    VectorLoad,
)
from tilefuse.kernel.tasks.extract import TASK, accesses, value
from tilefuse.kernel.tasks.statements import Await
from tilefuse.kernel.tasks.tables import changed_slots
from tilefuse.templates.tasks.ahead import TILE, fetches_of, loads_first, touched_slots

WEIGHTS, STATE = Declare("w_v", F32, 8), Declare("h_v", F32, 8)


CHUNK = axis("chunk") * 4


def load(slot: str, array: str, at: Affine = CHUNK) -> VectorLoad:
    """Four elements of a slot."""
    return VectorLoad(array, at, slot, at, 4)


def chunks(*body: Stmt) -> For:
    """A loop over the vectors of a row."""
    return For("chunk", number(0), number(2), 1, body, unroll=True)


USE = Store("y", axis("thread"), call("add", Reg("w_v", F32, number(0)), Reg("h_v", F32, number(0))))


def test_a_loop_is_parted() -> None:
    """Weights come first with the names that they need; what is said of the loads stays beside them, everything else behind."""
    place = Let("place", axis("thread") + 1, 33)
    body = (Comment("%w, %h"), place, WEIGHTS, STATE, chunks(load("w", "w_v"), load("h", "h_v")), Declare("sum", F32), USE)
    early, late = loads_first(body, {"w"})
    assert early == (place, WEIGHTS, STATE, Comment("%w, %h"), chunks(load("w", "w_v")))
    assert late == (Comment("%w, %h"), chunks(load("h", "h_v")), Declare("sum", F32), USE)


@pytest.mark.parametrize("body", [
    (STATE, chunks(load("h", "h_v")), USE),                                                    # no weights
    (WEIGHTS, Barrier(), chunks(load("w", "w_v")), USE),                                       # behind a barrier
    (WEIGHTS, chunks(load("h", "w_v")), chunks(load("w", "w_v")), USE),                        # the same registers, in an order
    (chunks(Declare("w_v", F32, 4), load("w", "w_v", number(0)), USE),),                       # a part of a loop that uses it at once
    (WEIGHTS, If((Bound(axis("thread"), 0, 4),), (load("w", "w_v", number(0)),), (Barrier(),)), USE),  # a choice
])
def test_bodies_that_stay(body: tuple[Stmt, ...]) -> None:
    """No statement moves where its value, or the order of its writes, could change."""
    assert loads_first(body, {"w"}) == ((), body)


def test_single_elements_and_guards() -> None:
    """A guarded element of a bias is loaded early; one of another task's value is not, though its register is set before."""
    mine = (Bound(axis("thread"), 0, 1),)
    zero = [Declare(name, F32, init=const(0, F32)) for name in ("bias", "rest")]
    bias, rest = (If(mine, (Assign(Reg(name, F32), Load(name, F32, axis("block"))),)) for name in ("bias", "rest"))
    early, late = loads_first((*zero, bias, rest, USE), {"bias"})
    assert early == (*zero, bias) and late == (rest, USE)


@pytest.mark.parametrize("name", MODELS)
def test_models_load_weights_early(name: str) -> None:
    """Every model has bodies that load weights before the wait, and none that touches there what another task writes."""
    kernel = task_case(name).kernels[0]
    changed, loaded = changed_slots(kernel), set()
    for group in kernel.groups:
        waits = [n for n, s in enumerate(group.body) if isinstance(s, Await)]
        if waits:
            before = group.body[:waits[0]]
            assert touched_slots(before).isdisjoint(changed)
            loaded |= {a.slot for a in accesses(before)}
    assert any("weight" in slot for slot in loaded), loaded


def fetched(body: Iterable[Stmt], env: dict[str, int]) -> Iterator[tuple[str, int]]:
    """(slot, element) of each line that statements fetch."""
    for s in body:
        match s:
            case For(var, start, stop, step, inner):
                assert isinstance(step, int)
                for n in range(value(start, env), value(stop, env), step):
                    yield from fetched(inner, env | {var: n})
            case If(bounds, inner):
                if all(b.low <= value(b.index, env) < b.high for b in bounds):
                    yield from fetched(inner, env)
            case Prefetch(slot, index):
                yield slot, value(index, env)


@pytest.mark.parametrize(("tasks", "tiles", "row", "most_bytes", "ahead"), [
    (5, 6, 96, 5 * 2 * 96 * 4, 2), (5, 6, 96, 0, 1), (3, 4, 256, 1 << 30, 4), (7, 3, 40, 7 * 40 * 4, 1)])
def test_tiles_are_fetched_some_ahead(tasks: int, tiles: int, row: int, most_bytes: int, ahead: int) -> None:
    """Every line once, none beyond the buffer whose last task has fewer tiles, and each tile `ahead` tiles before it is read."""
    threads, size = 32, (tasks * tiles - 1) * row
    rows = axis(TASK) * (tiles * row) + axis(TILE) * row
    element = VectorLoad("w_v", axis("thread"), "w", rows + axis("thread") + axis("step") * threads, 1)
    inside = (Bound(rows, 0, size), Bound(axis("thread") + axis("step") * threads, 0, row))
    work = For(TILE, number(0), number(tiles), 1, (For("step", number(0), number(-(-row // threads)), 1, (If(inside, (element,)),)),))
    group = Group(0, (Buffer("w", F32, size, "global", "in"),), (Member(("w",), tasks),), (work,))
    fetches = fetches_of(group, threads, tiles, {"w"}, most_bytes)
    first = {at for task in range(tasks) for thread in range(threads) for _, at in fetched(fetches.before, {TASK: task, "thread": thread})}
    later = [[at for task in range(tasks) for thread in range(threads)
              for _, at in fetched(fetches.in_tile, {TASK: task, "thread": thread, TILE: tile})] for tile in range(tiles)]
    assert all(0 <= at < size for at in (*first, *(at for of_tile in later for at in of_tile)))
    assert {at // row % tiles for at in first} == set(range(ahead))
    for tile, of_tile in enumerate(later):
        expected = {tile + ahead} if tile + ahead < tiles else set()
        assert len(set(of_tile)) == len(of_tile) and {at // row % tiles for at in of_tile} == expected
    starts = first.union(*later)
    assert starts and {element for at in starts for element in range(at, min(at + 32, size))} == set(range(size))
