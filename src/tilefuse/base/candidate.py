"""Rejection is data: why a candidate of a search cannot be used."""
from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from tilefuse.base.construction import quickly_built


class Reason(enum.Enum):
    """Closed list of reasons; `explain` groups rejected candidates by them."""

    NOT_CONVEX = "not-convex"
    NEEDS_GRID_SYNC = "needs-grid-sync"
    DOMAIN_MISMATCH = "domain-mismatch"
    REDUCTION_MISMATCH = "reduction-mismatch"
    SHARED_MEMORY = "shared-memory"
    REGISTERS = "registers"
    RECOMPUTATION = "recomputation"
    UNSUPPORTED_OP = "unsupported-op"
    LIBRARY_CALL = "library-call"
    TOO_MANY_OPERANDS = "too-many-operands"
    TOO_MANY_NODES = "too-many-nodes"
    MEMORY = "memory"
    NOT_TRIED = "not-tried"
    WORSE_THAN_INCUMBENT = "worse-than-incumbent"
    DOES_NOT_COMPILE = "does-not-compile"
    DOES_NOT_RUN = "does-not-run"
    WRONG_RESULT = "wrong-result"
    SLOWER_THAN_PARTS = "slower-than-parts"
    ILLEGAL_TEMPLATE = "illegal-template"
    OTHER_TEMPLATE = "other-template"


@quickly_built
@dataclass(frozen=True, slots=True)
class Rejected:
    """Why a candidate cannot be used; `detail` carries the numbers that decided it, `remedy` what a user who wrote it may write instead."""

    reason: Reason
    detail: str
    remedy: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}"


def group_by_reason(rejected: Iterable[Rejected]) -> dict[Reason, list[Rejected]]:
    """The candidates of each reason, in the order of `Reason`."""
    found: dict[Reason, list[Rejected]] = {reason: [] for reason in Reason}
    for item in rejected:
        found[item.reason].append(item)
    return {reason: items for reason, items in found.items() if items}
