"""The two projections of a pipeline's tree: the statements that its producers run, and those of its consumers.

    For k:                    For k:              For k:
      Let row                   Let row             Consume(ab)
      Produce(ab, row)   ->     Produce(ab, row)
      Consume(ab)
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilefuse.kernel.ir import For, If, IfValue, Let, Stmt
from tilefuse.kernel.pipeline import Consume, Produce
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
            case For() | If():
                if not _produces(s):
                    continue
                s = replace(s, body=producer_tree(s.body))
                if isinstance(s, If):
                    s = replace(s, otherwise=producer_tree(s.otherwise))
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
    return tuple(tree)


def _produces(s: Stmt) -> bool:
    return any(isinstance(inner, Produce) for inner in statements((s,)))
