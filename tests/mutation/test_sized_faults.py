"""Plants faults in programs whose sizes are arguments: launches that are told too little, quotients for remainders, tiles one too early."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.scripts.sized_runs import HostProgram, check_at, made
from tests.unit.templates.host_build import compiler
from tilefuse.ir.counts import Count, Operand
from tilefuse.kernel.ir import For, If, Kernel, Let, OfTwo, Stmt
from tilefuse.scripts.sized_programs import SizedProgram

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
SCRIPT = "matrix A; vector x; input A, x; s = sgemtv(A, x); return s;"
SIZES = ({"A": (300, 1025), "x": (300,)}, {"A": (33, 513), "x": (33,)}, {"A": (64, 512), "x": (64,)})


def fewer(c: Operand) -> Operand:
    """A count in which every division is by one more."""
    if not isinstance(c, Count):
        return c
    if c.function == "ceil" and isinstance(c.right, int):
        return Count("ceil", fewer(c.left), c.right + 1)
    return Count(c.function, fewer(c.left), fewer(c.right))


def told_less(name: str) -> Callable[[Kernel], Kernel]:
    """A launch that tells a smaller number."""
    return lambda k: replace(k, sizes=tuple(replace(s, count=fewer(s.count)) if s.name == name else s for s in k.sizes))


def changed(body: tuple[Stmt, ...], change: Callable[[Let], Let]) -> tuple[Stmt, ...]:
    """Statements with their names of products and quotients changed."""
    found: list[Stmt] = []
    for s in body:
        match s:
            case Let(value=OfTwo()):
                found.append(change(s))
            case For():
                found.append(replace(s, body=changed(s.body, change)))
            case If():
                found.append(replace(s, body=changed(s.body, change), otherwise=changed(s.otherwise, change)))
            case _:
                found.append(s)
    return tuple(found)


def swapped(let: Let) -> Let:
    """Quotient and remainder in each other's place."""
    assert isinstance(let.value, OfTwo)
    other = {"quotient": "remainder", "remainder": "quotient"}.get(let.value.function, let.value.function)
    return replace(let, value=replace(let.value, function=other))


FAULTS: dict[str, Callable[[Kernel], Kernel]] = {
    "fewer blocks": lambda k: replace(k, blocks=fewer(k.blocks or 0)), "fewer tiles across": told_less("tiles_x"),
    "block numbers the wrong way round": lambda k: replace(k, body=changed(k.body, swapped))}


def planted(program: SizedProgram, fault: Callable[[Kernel], Kernel]) -> SizedProgram:
    """The program with a fault in every kernel."""
    return replace(program, steps=tuple(replace(s, kernels=tuple(map(fault, s.kernels))) for s in program.steps))


@pytest.mark.parametrize("name", FAULTS)
def test_every_planted_fault_shows(name: str, tmp_path: Path) -> None:
    program, search = made(SCRIPT, {"A": (300, 400), "x": (300,)}, cases=slice(1, 2))
    faulty = planted(program, FAULTS[name])
    assert faulty != program
    with pytest.raises(AssertionError):
        check_at(HostProgram(faulty, search, tmp_path), SCRIPT, SIZES)
