"""Shared-memory planning: the offset of each value of a kernel on chip. Values with disjoint live ranges share memory.

    a: stages 0-1   |aaaa|
    b: stages 1-2        |bb|            ->   offsets a 0, b 4, c 0: 6 of 10 requested
    c: stages 2-3   |cccc|

The smaller plan of two planners is used: sharing along the dominance tree of the data flow (FusionStitching 5.4, algorithm 4), and best fit
of live ranges. Stages state when a value is first written and last read. A barrier separates consecutive stages.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import InternalError
from tilefuse.target.memory import ACCESS_BYTES


@dataclass(frozen=True, slots=True)
class Request:
    """A value that needs shared memory from stage `first` to stage `last`, both inclusive. Units: bytes.

    overwrites: operands that this value may overwrite in place in its first stage: the same thread reads and writes each element. Other
    values that are live in the same stage never share memory. value: the stored value in the graph, as refusals name it; default: `name`
    """

    name: str
    num_bytes: int
    first: int
    last: int
    overwrites: tuple[str, ...] = ()
    value: str = ""


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """Offsets of all requests. Units: bytes. `method`: planner of this plan; `live_bytes`: lower bound on every plan's size."""

    offset_by_name: Mapping[str, int]
    allocated_bytes: int
    requested_bytes: int
    live_bytes: int
    method: str

    def __str__(self) -> str:
        return f"{self.allocated_bytes} of {self.requested_bytes} bytes requested ({self.method}, at least {self.live_bytes})"


def plan_shared(requests: Sequence[Request], operands: Mapping[str, Sequence[str]],
                limit_bytes: int | None = None) -> SharedPlan | Rejected:
    """Offsets of all requests, or the reason why they do not fit `limit_bytes`.

    operands: for every node of the kernel's data flow, in topological order, the nodes that it reads; every request is a key.
    Raises: InternalError for a request outside the data flow, a repeated one, or one that ends before it begins.
    Cost: quadratic in the requests.
    Source: FusionStitching 5.4, algorithm 4; Welder 4.2 for best fit.
    """
    _check(requests, operands)
    sized = [Request(r.name, aligned(r.num_bytes), r.first, r.last, r.overwrites, r.value) for r in requests]
    live = max((sum(r.num_bytes for r in sized if r.first <= stage <= r.last and not _given_up(r, sized, stage))
                for stage in {r.first for r in sized}), default=0)
    plan = best_fit(sized)
    total = _extent(plan[1], sized)
    if total > live:
        plan = min((plan, share_by_dominance(sized, operands)), key=lambda pair: _extent(pair[1], sized))
        total = _extent(plan[1], sized)
    if limit_bytes is not None and total > limit_bytes:
        largest = sorted(sized, key=lambda r: -r.num_bytes)[:3]
        return Rejected(Reason.SHARED_MEMORY, f"{total} bytes of shared memory, at most {limit_bytes}: " +
                        ", ".join(f"%{r.value or r.name} {r.num_bytes}" for r in largest) + "; a smaller tile needs less")
    return SharedPlan(plan[1], total, sum(r.num_bytes for r in sized), live, plan[0])


def aligned(num_bytes: int) -> int:
    """`num_bytes` rounded up to the alignment of vector accesses. Units: bytes."""
    return -(-num_bytes // ACCESS_BYTES) * ACCESS_BYTES


def conflict(a: Request, b: Request) -> bool:
    """Whether two requests must not share a byte."""
    if a.first > b.first:
        a, b = b, a
    if a.last < b.first:
        return False
    return not (a.last == b.first and a.first < b.first and a.name in b.overwrites)


def best_fit(requests: Sequence[Request]) -> tuple[str, dict[str, int]]:
    """(method, offsets): the largest request first, each in the tightest gap between those that are live with it. Units: bytes."""
    placed: list[tuple[Request, int]] = []
    for request in sorted(requests, key=lambda r: (-r.num_bytes, r.first, r.name)):
        beside = sorted((at, at + r.num_bytes) for r, at in placed if conflict(r, request))
        best: tuple[int, int] | None = None
        end = 0
        for low, high in beside:
            if low - end >= request.num_bytes and (best is None or low - end < best[0]):
                best = (low - end, end)
            end = max(end, high)
        placed.append((request, best[1] if best is not None else end))
    return "best fit of live ranges", {r.name: at for r, at in placed}


@dataclass
class _Slot:
    """A range of shared memory and all requests that use it. Units: bytes."""

    num_bytes: int = 0
    members: list[Request] = field(default_factory=list)

    def takes(self, request: Request) -> bool:
        """Whether the request conflicts with no member of the slot."""
        return not any(conflict(m, request) for m in self.members)

    def add(self, request: Request) -> None:
        """Adds a member; the slot grows to its size."""
        self.num_bytes = max(self.num_bytes, request.num_bytes)
        self.members.append(request)


def share_by_dominance(requests: Sequence[Request], operands: Mapping[str, Sequence[str]]) -> tuple[str, dict[str, int]]:
    """(method, offsets) of algorithm 4: a node may reuse the memory of a value whose every path to the kernel's end leads through the node.

    Allocations propagate along the edges. Dominated memory that a node does not reuse is reclaimed for later nodes. Units: bytes.
    """
    request_by_name = {r.name: r for r in requests}
    above = _dominators(operands) if len(requests) > 1 else {}
    slots: list[_Slot] = []
    slot_of: dict[str, _Slot] = {}
    reclaimed: list[_Slot] = []
    allocations: dict[str, dict[str, None]] = {}
    for name, reads in operands.items():
        before = {value: None for operand in reads for value in allocations.get(operand, ())}
        request = request_by_name.get(name)
        if request is None:
            allocations[name] = before
            continue
        kept: dict[str, None] = {}
        taken: _Slot | None = None
        for previous in before:
            if name not in above[previous]:
                kept[previous] = None
            elif taken is None and slot_of[previous].takes(request):
                taken = slot_of[previous]
            else:
                reclaimed.append(slot_of[previous])
        if taken is None:
            free = [s for s in reclaimed if s.takes(request)]
            taken = min(free, key=lambda s: (abs(s.num_bytes - request.num_bytes), slots.index(s))) if free else _Slot()
            if free:
                reclaimed.remove(taken)
            else:
                slots.append(taken)
        taken.add(request)
        slot_of[name] = taken
        allocations[name] = {**kept, name: None}
    offsets: dict[str, int] = {}
    end = 0
    for slot in slots:
        offsets.update((m.name, end) for m in slot.members)
        end += slot.num_bytes
    return "dominance tree", offsets


def _dominators(operands: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
    """Post-dominators of every node: the nodes on all paths from it to the kernel's end."""
    # A value that overwrites another has the name of both, so a user may precede its definition. Such a read is of the overwritten value,
    # whose live range protects the memory.
    users: dict[str, list[str]] = {}
    for name, reads in operands.items():
        for r in reads:
            if r in users:
                users[r].append(name)
        users[name] = []
    above: dict[str, set[str]] = {}
    for name in reversed(list(operands)):
        above[name] = set.intersection(*({u, *above[u]} for u in users[name])) if users[name] else set()
    return above


def _given_up(request: Request, requests: Sequence[Request], stage: int) -> bool:
    """Whether another request overwrites this one's memory in its last stage, as `overwrites` allows."""
    return request.last == stage > request.first and any(r.first == stage and request.name in r.overwrites for r in requests)


def _extent(offsets: Mapping[str, int], requests: Sequence[Request]) -> int:
    return max((offsets[r.name] + r.num_bytes for r in requests), default=0)


def _check(requests: Sequence[Request], operands: Mapping[str, Sequence[str]]) -> None:
    seen: set[str] = set()
    for r in requests:
        if r.name not in operands or r.name in seen or r.last < r.first or r.num_bytes < 0:
            raise InternalError(f"shared-memory request {r} is outside the data flow, repeated, or ends before it begins")
        seen.add(r.name)
