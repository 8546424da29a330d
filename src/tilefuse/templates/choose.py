"""The kernel of a pattern: every template is asked, those of one priority are compared by the price of their work.

    priority 1   one walk over a domain             a flat walk or tiles turned in shared memory, by price; rows; columns
    priority 2   stages of one block                takes patterns with products, and small ones that no walk holds
"""
from __future__ import annotations

from itertools import groupby
from operator import attrgetter

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.roofline import price_candidate
from tilefuse.domain.tile import TileProgram
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.registry import kernel_template, kernel_templates
from tilefuse.templates.request import Request


def choose_program(request: Request) -> TileProgram | Rejected:
    """The tile program of a pattern, or why no template has one.

    The first priority whose templates take the pattern decides. Of several programs the one whose work has the least price is taken,
    then the one whose template was registered first. Of several refusals the first is returned that is no mere
    `Reason.OTHER_TEMPLATE`.
    """
    asked = sorted((t for t in kernel_templates() if t.packs == request.packing), key=attrgetter("priority"))
    refusals: list[Rejected] = []
    for _, templates in groupby(asked, key=attrgetter("priority")):
        proposals = [t.propose(request) for t in templates]
        programs = [p for p in proposals if isinstance(p, TileProgram)]
        if programs:
            return programs[0] if len(programs) == 1 else min(programs, key=lambda p: _price(p, request.device))
        refusals += [p for p in proposals if isinstance(p, Rejected)]
    return next((r for r in refusals if r.reason is not Reason.OTHER_TEMPLATE), refusals[0])


def _price(program: TileProgram, device: DeviceSpec) -> tuple[float, float]:
    """The price of a program's work, and the part of it that traffic may hide. Units: microseconds. Source: `domain/roofline.py`."""
    parts = price_candidate(kernel_template(program.choice).work(program, device), device)
    return parts.us, parts.arithmetic_us
