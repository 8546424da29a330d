"""The kernel of a pattern: every template is asked, those of one priority are compared by their predicted time.

    priority 0   tiles turned in shared memory      takes patterns whose large reads run across their writes
    priority 1   one walk over a domain             a flat walk, rows or columns: at most one of them takes a pattern
    priority 2   stages of one block                takes patterns with products, and small ones that no walk holds
"""
from __future__ import annotations

from itertools import groupby
from operator import attrgetter

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.tile import TileProgram
from tilefuse.templates.registry import kernel_templates
from tilefuse.templates.request import Request


def choose_program(request: Request) -> TileProgram | Rejected:
    """The tile program of a pattern, or why no template has one.

    The first priority whose templates take the pattern decides. Of several programs the one with the least predicted time besides memory
    traffic is taken, then the one whose template was registered first. Of several refusals the first is returned that is no mere
    `Reason.OTHER_TEMPLATE`.
    """
    asked = sorted((t for t in kernel_templates() if t.packs == request.packing), key=attrgetter("priority"))
    refusals: list[Rejected] = []
    for _, templates in groupby(asked, key=attrgetter("priority")):
        proposals = [t.propose(request) for t in templates]
        programs = [p for p in proposals if isinstance(p, TileProgram)]
        if programs:
            return min(programs, key=attrgetter("work_us"))
        refusals += [p for p in proposals if isinstance(p, Rejected)]
    return next((r for r in refusals if r.reason is not Reason.OTHER_TEMPLATE), refusals[0])
