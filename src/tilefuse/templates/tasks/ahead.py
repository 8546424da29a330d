"""Work of a task before it waits: loads of memory that no task of the kernel writes, such as weights.

    body    load weights, load h, sum, store      ->      load weights, fetch more weights into L2, await h, load h, sum, store

Three ways, from the nearest to the far: copies to shared memory that a template puts before its own wait, loads into registers with which
a body begins, and fetches into L2 of what it reads later. No multiplication stands before the wait.
"""
from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.scalar import Bound, Const
from tilefuse.kernel.asynchronous import AsyncCopy, AwaitEarlier, LetNextStart, Prefetch
from tilefuse.kernel.ir import Assign, Comment, Declare, For, Group, If, Let, Load, OfTwo, Stmt, VectorLoad
from tilefuse.kernel.tasks.extract import TASK, Stretch, stretches
from tilefuse.kernel.visit import parts
from tilefuse.target.memory import LINE_BYTES

# Number of a task's tile, in the loop over its tiles.
TILE = "tf_tile"


def settled_inputs(names: Sequence[str], operands: Sequence[Sequence[str]], written: Set[str]) -> frozenset[str]:
    """Inputs of a body that no stage of it reads from another task. operands: for each stage, values of the inputs `names`."""
    return frozenset(name for n, name in enumerate(names) if not any(values[n] in written for values in operands))


def begun_early(body: tuple[Stmt, ...], settled: Set[str]) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """Statements of a body that may come before the wait of its task, and those behind it. settled: slots that no task writes."""
    place = next((n for n, s in enumerate(body) if isinstance(s, AwaitEarlier)), 0)
    before, behind = body[:place], tuple(s for s in body[place:] if not isinstance(s, AwaitEarlier | LetNextStart))
    loads, others = loads_first(behind, settled)
    return (*before, *loads), others


def loads_first(body: tuple[Stmt, ...], settled: Set[str]) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """Loads of settled slots with which a body begins, and its other statements; a loop that loads other slots as well is parted.

        for chunk { w_v = w[..]; h_v = h[..] }      ->      for chunk { w_v = w[..] }      and      for chunk { h_v = h[..] }
    """
    first = next((n for n, s in enumerate(body) if _halves(s, settled) is None), len(body))
    end = max((n + 1 for n, s in enumerate(body[:first]) if _arrays((s,))), default=0)
    early: list[Stmt] = []
    late: list[Stmt] = []
    remarks: list[Stmt] = []
    for s in body[:end]:
        before, behind = _halves(s, settled) or ((), ())
        if isinstance(s, Comment):
            remarks.append(s)
        elif isinstance(s, Let | Declare):
            early.append(s)  # declared once, before either half
        else:
            early += (*remarks, *before) if before else ()
            late += (*remarks, *behind) if behind else ()
            remarks = []
    if _arrays(early).isdisjoint(_arrays(late)) and _arrays(early):
        return tuple(early), (*late, *body[end:])
    return (), body


def _halves(s: Stmt, settled: Set[str]) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]] | None:
    """A statement's loads of settled slots, and its other loads; None for one that does anything else."""
    match s:
        case Comment():
            return (), ()
        case Let(value=Affine() | OfTwo()) | Declare(init=None | Const()):
            return (s,), (s,)
        case Assign(value=Load(buffer=buffer, dynamic=())):
            return ((s,), ()) if buffer in settled else ((), (s,))
        case VectorLoad(buffer=buffer):
            return ((s,), ()) if buffer in settled and not s.dynamic else ((), (s,))
        case For(body=inner) | If(body=inner, otherwise=()):
            early: list[Stmt] = []
            late: list[Stmt] = []
            for part in inner:
                halves = _halves(part, settled)
                # An array of one turn has its users in the loop.
                if halves is None or isinstance(part, Declare):
                    return None
                early += halves[0]
                late += halves[1]
            first, second = (((replace(s, body=tuple(half)),) if _arrays(half) else ()) for half in (early, late))
            return first, second
    return None


def _arrays(body: Sequence[Stmt]) -> set[str]:
    """Registers and register arrays that statements load."""
    loaded = parts(tuple(body))
    return ({part.array for part in loaded if isinstance(part, VectorLoad)}
            | {part.target.name for part in loaded if isinstance(part, Assign)})


def touched_slots(body: tuple[Stmt, ...]) -> frozenset[str]:
    """Buffers that statements load, copy or fetch."""
    return frozenset(part.buffer for part in parts(body) if isinstance(part, Load | VectorLoad | AsyncCopy | Prefetch))


@dataclass(frozen=True, slots=True)
class Fetches:
    """Statements that fetch lines of settled slots into L2: before the wait, and in the loop over a task's tiles."""

    before: tuple[Stmt, ...] = ()
    in_tile: tuple[Stmt, ...] = ()


def fetches_of(group: Group, threads: int, tiles: int, settled: Set[str], most_bytes: float) -> Fetches:
    """Fetches of settled slots of which a task reads one run of elements.

        tiles 0, 1, 2 | wait | fetch tile 3, work on tile 0 | fetch tile 4, work on tile 1 | ...

    Weights of a task of several tiles are fetched as many tiles ahead as all tasks of the stage together may have bytes on the way: the
    cache keeps them until they are read.
    tiles: of a task, walked by the loop over `TILE`. Units: `most_bytes` in bytes.
    """
    num_tasks = max(m.num_blocks for m in group.members)
    size = {slot.name: slot.dtype.itemsize for slot in group.slots}
    runs = stretches(group, threads, num_tasks, settled)
    walked = [r for r in runs if tiles > 1 and r.start.coefficient(TASK) == r.length and not r.length % tiles]
    tile_bytes = sum(r.length // tiles * size[r.slot] for r in walked)
    ahead = max(min(tiles, int(most_bytes // max(num_tasks * tile_bytes, 1))), 1)
    before: list[Stmt] = []
    in_tile: list[Stmt] = []
    for n, run in enumerate(runs):
        if run not in walked:
            before += _lines(f"tf_lines_{n}", run, group, threads)
            continue
        tile = run.length // tiles
        before += _lines(f"tf_lines_{n}", replace(run, length=ahead * tile), group, threads)
        in_tile += _lines(f"tf_lines_{n}", replace(run, start=run.start + (axis(TILE) + ahead) * tile, length=tile), group, threads)
    guarded = (If((Bound(axis(TILE), 0, tiles - ahead),), tuple(in_tile)),) if in_tile and ahead < tiles else ()
    return Fetches(tuple(before), guarded)


def _lines(turn: str, run: Stretch, group: Group, threads: int) -> tuple[Stmt, ...]:
    """Fetches of one run, a line a thread at a time. turn: name of the loop's variable, if it takes one."""
    slot = next(s for s in group.slots if s.name == run.slot)
    line = LINE_BYTES // slot.dtype.itemsize
    turns = -(-run.length // (threads * line))
    own = axis("thread") * line + (axis(turn) * (threads * line) if turns > 1 else number(0))
    fetch: tuple[Stmt, ...] = (Prefetch(run.slot, run.start + own),)
    # No loop but over whole turns: the compiler would unroll one of unknown length into hundreds of instructions.
    bounds = (Bound(own, 0, run.length),) if run.length % (threads * line) else ()
    num_tasks = max(m.num_blocks for m in group.members)
    if run.start.coefficient(TASK) * num_tasks > slot.num_elements or run.start.const + run.length > slot.num_elements:
        bounds = (*bounds, Bound(run.start + own, 0, slot.num_elements))
    guarded: tuple[Stmt, ...] = (If(bounds, fetch),) if bounds else fetch
    return (For(turn, number(0), number(turns), 1, guarded, rolled=True),) if turns > 1 else guarded
