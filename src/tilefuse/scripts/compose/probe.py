"""Statements of probes: numbers into an element, and a use of an element that compilers cannot remove."""
from __future__ import annotations

from collections.abc import Iterable

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import BOOL
from tilefuse.ir.scalar import Call, Index, const
from tilefuse.kernel.ir import Assign, Barrier, Buffer, Declare, IfValue, KExpr, Load, Reg, Stmt, Store
from tilefuse.scripts.compose.writer import RoutineWriter
from tilefuse.scripts.schedule.elements import Element

# Sums that no probe reaches.
UNREACHED, UNREACHED_INTEGER = 1.5e30, 123456789
KEPT = "kept"


def fill(w: RoutineWriter, e: Element, again: bool) -> tuple[Stmt, ...]:
    """Every word becomes a number; `again`: one more than before."""

    def value(old: KExpr, place: Affine) -> KExpr:
        return Call("add", (old, const(1, e.unit))) if again else Call(e.unit.name, (Index(place),))

    if e.in_registers:
        words = (Reg(f"{e.name}_l", e.unit, number(n)) for n in range(e.held * e.units))
        return tuple(Assign(r, value(r, axis("thread") + n)) for n, r in enumerate(words))

    def one(word: Affine) -> Iterable[Stmt]:
        return (Store(f"{e.name}_l", word, value(Load(f"{e.name}_l", e.unit, word), word)),)

    instances = 1 if w.fused.grid.nested else w.fused.decision.instances
    return (*([Barrier()] if again else []), *w.spread_over_threads(e.shared_words * instances, one), Barrier())


def keep(w: RoutineWriter, e: Element) -> tuple[Stmt, ...]:
    """Adds up the words, and stores the sum if it has a value that it never has."""
    total = Reg(f"{e.name}_kept", e.unit)
    statements: list[Stmt] = [Declare(total.name, e.unit, None, const(0, e.unit))]
    if e.in_registers:
        words: list[KExpr] = [Reg(f"{e.name}_l", e.unit, number(n)) for n in range(e.held * e.units)]
    else:
        words = [Load(f"{e.name}_l", e.unit, axis("thread") % (e.words * e.units))]
    statements += [Assign(total, Call("add", (total, word))) for word in words]
    name = f"{KEPT}_{e.unit.name}"
    if all(b.name != name for b in w.scratch):
        w.scratch.append(Buffer(name, e.unit, 1, "global", "workspace"))
    unreached: KExpr = Call("eq", (total, const(UNREACHED if e.unit.is_float else UNREACHED_INTEGER, e.unit)))
    hit = f"{e.name}_hit"
    statements += [Declare(hit, BOOL, None, unreached), IfValue(Reg(hit, BOOL), (Store(name, number(0), total),))]
    return tuple(statements)
