"""Walks over kernel IR: nested statements, names used, buffers read and written, and where the threads of a block must meet.

Pure questions about a kernel; both printers ask them. Nothing here prints.
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
from tilefuse.kernel.writer import identifier


def statements(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """All statements, those inside loops and branches too, in order."""
    for s in body:
        yield s
        for inner in bodies(s):
            yield from statements(inner)


def bodies(s: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """The statement lists directly inside `s`."""
    match s:
        case For(body=inner) | IfValue(body=inner) | Group(body=inner):
            return (inner,)
        case If(body=inner, otherwise=other):
            return (inner, other)
    return ()


def parts(x: object) -> Sequence[object]:
    """The records that `x` (a statement, an expression, a tuple of such) is made of, itself included; index expressions whole.

    Cost: linear; nothing where it is what was asked for last, for printing one kernel asks several times.
    """
    global _last
    asked, known = _last
    if asked is x:
        return known
    found: list[object] = []
    waiting: list[Any] = [x]
    while waiting:
        part = waiting.pop()
        if type(part) is tuple:
            waiting.extend(part[::-1])
            continue
        inner = _inner_fields(type(part))
        if inner is not None:
            found.append(part)
            waiting.extend([getattr(part, name) for name in inner])
    _last = (x, found)
    return found


_last: tuple[object, Sequence[object]] = (None, ())
# Field names by type: records are asked again and again.
_FIELDS: dict[type, tuple[str, ...] | None] = {Affine: ()}


def _inner_fields(kind: type) -> tuple[str, ...] | None:
    """Fields of a kind of record of kernel IR, the last one first; none of an index expression; None for what is no record."""
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(f.name for f in reversed(fields(kind))) if is_dataclass(kind) else None
    return _FIELDS[kind]


def index_names(x: object) -> frozenset[str]:
    """Names that occur in index expressions anywhere in `x`."""
    found: set[str] = set()
    for part in parts(x):
        if isinstance(part, Affine):
            found |= part.axes()
    return frozenset(found)


def register_names(x: object) -> frozenset[str]:
    """Names of registers and register arrays that `x` declares, reads or writes."""
    found: set[str] = set()
    for part in parts(x):
        match part:
            case Reg(name=name) | Declare(name=name) | VectorLoad(array=name) | VectorStore(array=name) | Renew(array=name):
                found.add(name)
            case MatrixProduct(accumulator=name, left=left):
                found.update((name, left) if part.left_registers else (name,))
    return frozenset(found)


def value_identifiers(kernel: Kernel) -> tuple[str, ...]:
    """Identifiers of buffers, registers and index names in the kernel's text, sorted: the names that mean nothing to a compiler."""
    found = {b.name for b in kernel.addressed.values()} | {b.name for b in kernel.parameters}
    found |= register_names(kernel.body) | index_names(kernel.body)
    for s in statements(kernel.body):
        match s:
            case For(var=name) | Let(name=name):
                found.add(name)
    return tuple(sorted(identifier(name) for name in found - {"thread", "block", "rank"}))


def written_buffers(kernel: Kernel) -> frozenset[str]:
    """Names of the buffers that some statement of the kernel writes; of a group's slots, and of the parameters that stand for them."""
    found: set[str] = set()
    for s in statements(kernel.body):
        match s:
            case VectorStore(buffer=name) | Store(buffer=name) | Atomic(buffer=name) | ClusterStore(buffer=name):
                found.add(name)
            case LastBlock(counter=name) | BulkCopy(shared=name) | AsyncCopy(shared=name):
                found.add(name)
            case RoutineCall():
                found |= {t.target for t in s.touched if t.writes and not t.register}
    return _with_arguments(kernel, found)


def _with_arguments(kernel: Kernel, slots: set[str]) -> frozenset[str]:
    """Names of slots and of the parameters that stand for them."""
    return frozenset(slots).union(a for g in kernel.groups for m in g.members for s, a in zip(g.slots, m.arguments, strict=True)
                                  if s.name in slots)


def read_buffers(kernel: Kernel) -> frozenset[str]:
    """Names of the buffers that some statement of the kernel reads (an atomic update reads too); slots and parameters as above."""
    found: set[str] = set()
    for part in parts(kernel.body):
        match part:
            case (Load(buffer=name) | VectorLoad(buffer=name) | Atomic(buffer=name) | ClusterLoad(buffer=name) | BulkCopy(buffer=name)
                  | AsyncCopy(buffer=name)):
                found.add(name)
            case LastBlock(counter=name):
                found.add(name)
            case RoutineCall():
                found |= {t.target for t in part.touched if not t.writes and not t.register}
    return _with_arguments(kernel, found)


def may_alias_itself(kernel: Kernel) -> frozenset[str]:
    """Buffers both read and written, under one name or two: other blocks may change them under way, so no compiler may move their loads
    over a barrier."""
    in_place = {name for g in kernel.groups for name in g.shared}
    return read_buffers(kernel) & written_buffers(kernel) | in_place


# How widely threads must meet at a statement.
NOWHERE, BLOCK, CLUSTER = 0, 1, 2


def meeting(s: Stmt, cluster: int) -> int:
    """NOWHERE if every thread may run `s` on its own, BLOCK or CLUSTER if all threads of that scope must arrive at it together.

    Distributed shared-memory accesses need no meeting themselves: cluster barriers order them.
    """
    match s:
        case Barrier(scope):
            return CLUSTER if scope == "cluster" and cluster > 1 else BLOCK
        case Shuffle() | LastBlock() | BulkCopy() | BulkWait():
            return BLOCK
        case MatrixProduct():
            return BLOCK if s.left_registers else NOWHERE
        case For() | If() | IfValue():
            return max((meeting(inner, cluster) for body in bodies(s) for inner in body), default=NOWHERE)
    return NOWHERE
