"""Queries about kernel IR: nested statements, names used, buffers read and written, and statements at which threads synchronise.

Both printers use them. Nothing here prints or changes a kernel.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from tilefuse.ir.affine import Affine
from tilefuse.kernel.asynchronous import AsyncCopy, BulkCopy, BulkWait
from tilefuse.kernel.ir import (
    Atomic,
    Barrier,
    ClusterLoad,
    ClusterStore,
    Declare,
    For,
    Group,
    If,
    IfValue,
    Kernel,
    LastBlock,
    Let,
    Load,
    MatrixProduct,
    Reg,
    Renew,
    RoutineCall,
    Shuffle,
    Stmt,
    Store,
    VectorLoad,
    VectorStore,
)
from tilefuse.kernel.pipeline import Consume, EachWarpgroup, InTurn, Pipeline, Produce, ReleaseSlots, WarpgroupProduct
from tilefuse.kernel.tasks.statements import Await, Publish
from tilefuse.kernel.tensor_map import TensorCopy, TensorStore, TensorStoreWait
from tilefuse.kernel.writer import identifier


def statements(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """All statements in order, including those inside loops and branches."""
    for s in body:
        yield s
        for inner in bodies(s):
            yield from statements(inner)


def bodies(s: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """The statement lists directly inside `s`."""
    match s:
        case (For(body=inner) | IfValue(body=inner) | Group(body=inner) | Pipeline(body=inner) | Produce(body=inner)
              | Consume(body=inner) | InTurn(body=inner)):
            return (inner,)
        case If(body=inner, otherwise=other) | EachWarpgroup(body=inner, after=other):
            return (inner, other)
    return ()


def parts(x: object) -> Sequence[object]:
    """All records inside `x` (a statement, an expression, or a tuple of them), `x` included. Index expressions are not taken apart.

    Cost: linear. The last answer is kept, because printing one kernel asks several times.
    """
    global _last
    asked, known = _last
    if asked is x:
        return known
    records: list[object] = []
    waiting: list[Any] = [x]
    while waiting:
        part = waiting.pop()
        if type(part) is tuple:
            waiting.extend(part[::-1])
            continue
        inner = _inner_fields(type(part))
        if inner is not None:
            records.append(part)
            waiting.extend([getattr(part, name) for name in inner])
    _last = (x, records)
    return records


_last: tuple[object, Sequence[object]] = (None, ())
# Field names by record type, kept because `parts` needs them for every record.
_FIELDS: dict[type, tuple[str, ...] | None] = {Affine: ()}


def _inner_fields(kind: type) -> tuple[str, ...] | None:
    """Field names of a record type of kernel IR, last first; () for an index expression; None for a type that is no record."""
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(f.name for f in reversed(fields(kind))) if is_dataclass(kind) else None
    return _FIELDS[kind]


def index_names(x: object) -> frozenset[str]:
    """Names that occur in index expressions anywhere in `x`."""
    names: set[str] = set()
    for part in parts(x):
        if isinstance(part, Affine):
            names |= part.axes()
    return frozenset(names)


def register_names(x: object) -> frozenset[str]:
    """Names of registers and register arrays that `x` declares, reads or writes."""
    names: set[str] = set()
    for part in parts(x):
        match part:
            case Reg(name=name) | Declare(name=name) | VectorLoad(array=name) | VectorStore(array=name) | Renew(array=name):
                names.add(name)
            case MatrixProduct(accumulator=name, left=left) | WarpgroupProduct(accumulator=name, left=left):
                names.update((name, left) if part.left_registers else (name,))
    return frozenset(names)


def value_identifiers(kernel: Kernel) -> tuple[str, ...]:
    """Identifiers of buffers, registers and index names in the kernel's text, sorted: all names that the kernel itself declares."""
    names = {b.name for b in kernel.addressed.values()} | {b.name for b in kernel.parameters} | {m.name for m in kernel.maps}
    names |= register_names(kernel.body) | index_names(kernel.body)
    for s in statements(kernel.body):
        match s:
            case For(var=name) | Let(name=name) | Produce(slot=name) | Consume(slot=name) | EachWarpgroup(group=name):
                names.add(name)
    return tuple(sorted(identifier(name) for name in names - {"thread", "block", "rank", "cluster", "tf_task"}))


def written_buffers(kernel: Kernel) -> frozenset[str]:
    """Names of the buffers that some statement writes: buffers, slots of groups, and the parameters bound to those slots."""
    buffers: set[str] = set()
    for s in statements(kernel.body):
        match s:
            case VectorStore(buffer=name) | Store(buffer=name) | Atomic(buffer=name) | ClusterStore(buffer=name):
                buffers.add(name)
            case Await(counter=name) | Publish(counter=name):
                buffers.add(name)
            case LastBlock(counter=name) | BulkCopy(shared=name) | AsyncCopy(shared=name) | TensorCopy(buffer=name):
                buffers.add(name)
            case Barrier(counter=name) if name:
                buffers.add(name)
            case TensorStore(map=name):
                buffers.add(kernel.map_named(name).buffer)
            case RoutineCall():
                buffers |= {t.target for t in s.touched if t.writes and not t.register}
    return _with_arguments(kernel, buffers)


def _with_arguments(kernel: Kernel, slots: set[str]) -> frozenset[str]:
    """`slots` and the parameters that members bind to them."""
    return frozenset(slots).union(a for g in kernel.groups for m in g.members for s, a in zip(g.slots, m.arguments, strict=True)
                                  if s.name in slots)


def read_buffers(kernel: Kernel) -> frozenset[str]:
    """Names of the buffers that some statement reads, atomic updates included; slots and parameters as in `written_buffers`."""
    buffers: set[str] = set()
    for part in parts(kernel.body):
        match part:
            case (Load(buffer=name) | VectorLoad(buffer=name) | Atomic(buffer=name) | ClusterLoad(buffer=name) | BulkCopy(buffer=name)
                  | AsyncCopy(buffer=name) | TensorStore(buffer=name)):
                buffers.add(name)
            case TensorCopy(map=name):
                buffers.add(kernel.map_named(name).buffer)
            case LastBlock(counter=name) | Await(counter=name) | Publish(counter=name):
                buffers.add(name)
            case Barrier(counter=name) if name:
                buffers.add(name)
            case RoutineCall():
                buffers |= {t.target for t in part.touched if not t.writes and not t.register}
    return _with_arguments(kernel, buffers)


def may_alias_itself(kernel: Kernel) -> frozenset[str]:
    """Buffers both read and written, under one name or two. Other blocks may write them during the kernel, so the compiler must not move
    their loads across a barrier."""
    in_place = {name for g in kernel.groups for name in g.shared}
    return read_buffers(kernel) & written_buffers(kernel) | in_place


# Scope in which threads synchronise at a statement.
NOWHERE, BLOCK, CLUSTER = 0, 1, 2


def meeting(s: Stmt, cluster: int) -> int:
    """Scope in which threads synchronise at `s`: NOWHERE if each thread may run it alone, else BLOCK or CLUSTER.

    Accesses to distributed shared memory do not synchronise: cluster barriers order them.
    """
    match s:
        case Barrier(scope):
            return CLUSTER if scope == "cluster" and cluster > 1 else BLOCK
        case TensorCopy(barrier=barrier, multicast=mask):
            # Blocks of a cluster copy to each other, so the host runs the statement for all of them before any goes on.
            return CLUSTER if mask and cluster > 1 else NOWHERE if barrier is None else BLOCK
        case Shuffle() | LastBlock() | BulkCopy() | BulkWait() | TensorStore() | TensorStoreWait() | ReleaseSlots() | Await() | Publish():
            return BLOCK
        case MatrixProduct() | WarpgroupProduct():
            return BLOCK if s.left_registers else NOWHERE
        case Pipeline() | Produce() | Consume() | EachWarpgroup() | InTurn():
            return max((meeting(inner, cluster) for body in bodies(s) for inner in body), default=BLOCK) or BLOCK
        case For() | If() | IfValue():
            return max((meeting(inner, cluster) for body in bodies(s) for inner in body), default=NOWHERE)
    return NOWHERE
