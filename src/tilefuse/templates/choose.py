"""The kernel of a pattern: every template is asked, those of one priority are compared by the price of their work.

Templates that search among many tiles are asked last: they leave out tiles that cost more than a program which another template has.

    priority 1   one walk over a domain             a flat walk or tiles turned in shared memory, by price; rows; columns
    priority 2   stages of one block                takes patterns with products, and small ones that no walk holds
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.roofline import price_candidate
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.scalar import Call, Const, Expr, Index, walk
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.registry import kernel_template, kernel_templates
from tilefuse.templates.request import Price, Request
from tilefuse.templates.template import KernelTemplate


def choose_program(request: Request) -> TileProgram | Rejected:
    """The tile program of a pattern, or why no template has one.

    The first priority whose templates take the pattern decides. Of several programs the one whose work has the least price is taken,
    then the one whose template was registered first. Of several refusals the first is returned that is no mere
    `Reason.OTHER_TEMPLATE`.
    """
    crowded = _map_of_many_formulas(request) if request.has_products and len(request.graph.nodes) > 1 else None
    if crowded is not None:
        return crowded
    asked = sorted((t for t in kernel_templates() if t.packs == request.packing), key=attrgetter("priority"))
    refusals: list[Rejected] = []
    for _, templates in groupby(asked, key=attrgetter("priority")):
        programs, refused = _proposals(list(templates), request)
        if programs:
            return programs[0] if len(programs) == 1 else min(programs, key=lambda p: _price(p, request.device))
        refusals += refused
    return next((r for r in refusals if r.reason is not Reason.OTHER_TEMPLATE), refusals[0])


def as_part(program: TileProgram, device: DeviceSpec) -> TileProgram:
    """The program; another one of its pattern and template where its own blocks need a launch for themselves, as persistent ones do."""
    if kernel_template(program.choice).part_refusal(program) is None:
        return program
    other = kernel_template(program.choice).propose(Request(program.graph, program.layouts, device, is_part=True))
    same = isinstance(other, TileProgram) and [n.name for n in other.graph.nodes] == [n.name for n in program.graph.nodes]
    return replace(other, name=program.name) if isinstance(other, TileProgram) and same else program


def _map_of_many_formulas(request: Request) -> Rejected | None:
    """The refusal of a pattern with a map that no kernel holds beside a product; None where there is none."""
    most = SEARCH.stages.formulas
    for node in request.graph.nodes:
        if node.category == "map" and node.body is not None:
            formulas = 1 + sum(_chooses_by_position(e) for e in walk(node.body))
            if formulas > most:
                return Rejected(Reason.RECOMPUTATION, f"%{node.name} chooses from {formulas} formulas by position; beside a product, at "
                                                      f"most {most} are computed")
    return None


def _chooses_by_position(e: Expr) -> bool:
    match e:
        case Call("select", (Call("eq", (Index(), Const())), _, _)):
            return True
    return False


def _proposals(templates: Sequence[KernelTemplate[Any]], request: Request) -> tuple[list[TileProgram], list[Rejected]]:
    """Answers of templates of one priority, in the order in which they were registered. Those that try the most tiles are asked last."""
    request.rivals.clear()
    most = max(t.tries_many for t in templates)
    answers: dict[int, TileProgram | Rejected] = {}
    for n in sorted(range(len(templates)), key=lambda n: templates[n].tries_many):
        answer = answers[n] = templates[n].propose(request)
        if most and isinstance(answer, TileProgram):
            request.rivals.append(_price(answer, request.device))
    ordered = [answers[n] for n in range(len(templates))]
    return [a for a in ordered if isinstance(a, TileProgram)], [a for a in ordered if isinstance(a, Rejected)]


def _price(program: TileProgram, device: DeviceSpec) -> Price:
    """The price by which a program is compared with others. Units: microseconds. Source: `domain/roofline.py`."""
    parts = price_candidate(kernel_template(program.choice).work(program, device), device)
    return parts.us, parts.arithmetic_us
