"""Projections of a pipeline's tree: the statements that its producers run, those of its consumers, and those of absent consumers.

    For k:                    For k:              For k:
      Let row                   Let row             Consume(ab)
      Produce(ab, row)   ->     Produce(ab, row)
      Consume(ab)
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilefuse.kernel.ir import For, If, IfValue, Let, Stmt
from tilefuse.kernel.pipeline import Consume, EachWarpgroup, Pipeline, Produce, SkipSlots
from tilefuse.kernel.visit import index_names, statements


def producer_tree(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """The `Produce` statements with the loops, branches and index names that they need."""
    tree: list[Stmt] = []
    names: set[str] = set()
    for s in reversed(body):
        match s:
            case Let(name, value):
                if name not in names:
                    continue
                names |= value.axes()
            case Produce():
                names |= index_names(s)
            case For() | If() | EachWarpgroup():
                if not _produces(s):
                    continue
                s = replace(s, body=producer_tree(s.body))
                if isinstance(s, If):
                    s = replace(s, otherwise=producer_tree(s.otherwise))
                elif isinstance(s, EachWarpgroup):
                    s = replace(s, after=())
                names |= index_names(s)
            case _:
                continue
        tree.append(s)
    return tuple(reversed(tree))


def consumer_tree(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """All statements but the `Produce` statements, and without the loops and branches that held nothing else."""
    tree: list[Stmt] = []
    for s in body:
        if isinstance(s, Produce):
            continue
        if not _produces(s):
            tree.append(s)
            continue
        match s:
            case For(body=inner) | IfValue(body=inner) | Consume(body=inner):
                rest = consumer_tree(inner)
                if rest:
                    tree.append(replace(s, body=rest))
            case If(body=inner, otherwise=other):
                rest, otherwise = consumer_tree(inner), consumer_tree(other)
                if rest or otherwise:
                    tree.append(replace(s, body=rest, otherwise=otherwise))
            case EachWarpgroup(body=inner):
                tree.append(replace(s, body=consumer_tree(inner)))
    return tuple(tree)


def absent_tree(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """The uses of slots by other warpgroups, which a warpgroup passes over, with the loops, branches and index names around them.

        For k < 16:  Produce(ab), Consume(ab)                 ->    SkipSlots(ab, 16)
        For k < 16:  .., Consume(a), inside of it Consume(b)  ->    SkipSlots(b, 16), SkipSlots(a, 16)
    """
    tree: list[Stmt] = []
    names: set[str] = set()
    for s in reversed(body):
        match s:
            case Let(name, value) if name in names:
                names |= value.axes()
                tree.append(s)
            case Consume(ring):
                # Slots of other rings that are used inside, as operands that come another way.
                tree += [SkipSlots(ring, 1), *reversed(absent_tree(s.body))]
            case For(start=start, stop=stop, step=step) if _uses(s):
                inner = absent_tree(s.body)
                trips = stop - start
                if trips.is_const and isinstance(step, int) and all(isinstance(i, SkipSlots) for i in inner):
                    count = max(-(-trips.const // step), 0)
                    tree += [replace(i, count=i.count * count) for i in reversed(inner) if isinstance(i, SkipSlots)]
                else:
                    tree.append(replace(s, body=inner))
                    names |= index_names(tree[-1])
            case If() if _uses(s):
                tree.append(replace(s, body=absent_tree(s.body), otherwise=absent_tree(s.otherwise)))
                names |= index_names(tree[-1])
    return tuple(reversed(tree))


def without_roles(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """The statements outside `Produce` and `EachWarpgroup`: those in which "thread" counts the threads of all consumers."""
    tree: list[Stmt] = []
    for s in body:
        match s:
            case Produce() | EachWarpgroup():
                continue
            case For(body=inner) | IfValue(body=inner) | Consume(body=inner) | Pipeline(body=inner):
                s = replace(s, body=without_roles(inner))
            case If(body=inner, otherwise=other):
                s = replace(s, body=without_roles(inner), otherwise=without_roles(other))
        tree.append(s)
    return tuple(tree)


def _uses(s: Stmt) -> bool:
    return any(isinstance(inner, Consume) for inner in statements((s,)))


def _produces(s: Stmt) -> bool:
    return any(isinstance(inner, Produce) for inner in statements((s,)))
