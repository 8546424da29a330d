"""Legality of flat walks: warps that stand across two axes."""
from __future__ import annotations

from tilefuse.base.candidate import Rejected
from tilefuse.domain.resolved import Domain
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.flat.side_by_side import last_axis
from tilefuse.templates.walk_legality import first_refusal, widest_whole


def flat_refusal(choice: Pointwise, domain: Domain) -> Rejected | None:
    """Why a pattern has no flat walk of this choice; None where it has one."""
    if choice.side == 1:
        return None
    if not choice.across:
        return first_refusal((False, "nothing that it touches runs along another axis than the others", "side=1"))
    length = domain.extents[last_axis(choice.order, domain.extents)]
    return first_refusal(
        (choice.side <= 32 and choice.side & (choice.side - 1) == 0, f"side={choice.side} lanes are no part of a warp",
         "2 to 32, a power of two"),
        (length % choice.vector == 0, f"warps across two axes take whole vectors, and {length} elements are none of {choice.vector}",
         f"vector={widest_whole(length)}, or side=1"))
