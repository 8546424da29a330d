"""The search for tiles, one for all kernels of stages: of the choices that fit, the one whose work has the least price.

    lower bounds, least first      1.0   1.2   1.9 | 2.4  3.0  ...       nothing behind the bar can be cheaper than 2.0
    prices of plans that fit       2.6   2.0   2.2

A price is that of `domain/roofline.py`. Kinds of kernels say which choices exist, what none of them can go below, and the plan of each.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol, TypeVar

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.roofline import price_candidate
from tilefuse.domain.work import Work
from tilefuse.target.device import DeviceSpec

# Numbers that plans are compared by, the first one first. Lower bounds are on the leading numbers.
Rank = tuple[float, ...]


class Worked(Protocol):
    """A plan with its work."""

    @property
    def work(self) -> Work:
        """The work of its kernel."""
        ...


C = TypeVar("C")
P = TypeVar("P")
W = TypeVar("W", bound=Worked)


def cheapest(choices: Iterable[C], least: Callable[[C], Rank | Rejected],
             ranked: Callable[[C, Rank, Rank | None], tuple[Rank, P] | Rejected | None], ceiling: Rank | None = None,
             coarse: Callable[[Sequence[C]], Sequence[Rank]] | None = None,
             decisive: Callable[[C], bool] | None = None) -> P | Rejected:
    """The plan of the least rank, of equal ones that of the first choice; or why the first choice without a plan has none.

    least   lower bounds on a choice's rank, on fewer of its numbers; choices whose bounds exceed the best rank are not planned
    ranked  a choice's rank and plan, given its bounds and the best rank so far; None for one that cannot be better. A single choice is
            given no bounds
    ceiling rank of a kernel of another kind, in as many numbers as it has of these: where all choices cost more, there is no plan
    coarse  bounds of all choices that take less time than `least`, which is not asked where they exceed the best rank
    decisive whether the caller has a use for a choice as the result: the search ends with the best plan so far once no such choice can be
            the cheapest
    """
    candidates = list(choices)
    refused: list[tuple[int, Rejected]] = []
    # Bounds of a choice, its number, and whether `least` gave them.
    queue: list[tuple[Rank, int, bool]] = [((), 0, True)]
    if len(candidates) != 1:
        bounds = coarse(candidates) if coarse is not None and candidates else [()] * len(candidates)
        queue = [(bound, n, False) for n, bound in enumerate(bounds)]
        heapify(queue)
    best: tuple[Rank, P] | None = None
    limit = ceiling
    while queue:
        bound, n, is_least = heappop(queue)
        if limit is not None and bound[:len(limit)] > limit[:len(bound)]:
            break
        if not is_least:
            bounded = least(candidates[n])
            if isinstance(bounded, Rejected):
                refused.append((n, bounded))
            else:
                heappush(queue, (bounded, n, True))
            continue
        planned = ranked(candidates[n], bound, limit)
        if isinstance(planned, Rejected):
            refused.append((n, planned))
        elif planned is not None and (best is None or (*planned[0], n) < best[0]):
            rank, plan = planned
            best = (*rank, n), plan
            limit = rank if limit is None or rank[:len(limit)] < limit[:len(rank)] else limit
            if decisive is not None and not any(decisive(candidates[m]) for m in (n, *_within(queue, limit))):
                break
    if best is not None and (ceiling is None or best[0][:len(ceiling)] <= ceiling):
        return best[1]
    if ceiling is not None and (best is not None or len(refused) < len(candidates)):
        return Rejected(Reason.WORSE_THAN_INCUMBENT, f"another kernel takes {ceiling[0]:.2f} us")
    return min(refused, key=lambda r: r[0])[1] if refused else Rejected(Reason.SHARED_MEMORY, "no tile fits")


def _within(queue: Iterable[tuple[Rank, int, bool]], limit: Rank) -> Iterator[int]:
    """Numbers of the choices whose bounds do not exceed a rank."""
    return (n for bound, n, _ in queue if bound[:len(limit)] <= limit[:len(bound)])


def cheapest_plan(choices: Iterable[C], planned: Callable[[C], W | Rejected], device: DeviceSpec) -> W | Rejected:
    """The same where planning a choice costs no more than bounds on it would."""
    def ranked(choice: C, _bound: Rank, _best: Rank | None) -> tuple[Rank, W] | Rejected:
        plan = planned(choice)
        if isinstance(plan, Rejected):
            return plan
        price = price_candidate(plan.work, device)
        return (price.us, price.arithmetic_us), plan

    return cheapest(choices, lambda _: (), ranked)


def broken_rule(rules: Iterable[tuple[bool, str]]) -> Rejected | None:
    """The first of the rules of a choice that does not hold: (whether it holds, the problem otherwise)."""
    return next((Rejected(Reason.ILLEGAL_TEMPLATE, problem) for holds, problem in rules if not holds), None)


def why_too_large(registers: int, most: int, tile: str, shared_bytes: int, device: DeviceSpec) -> Rejected | None:
    """Why a kernel with producing and consuming warpgroups does not fit a multiprocessor; None where it does.

    registers: of a consumer thread, of which `most` are left to it. tile: named in the reason. shared_bytes: without those of barriers.
    """
    if registers > min(most, device.max_registers_per_thread):
        return Rejected(Reason.REGISTERS, f"about {registers} registers a thread for {tile}, and {most} are left")
    if shared_bytes + device.fitted.pipelined.barrier_bytes > device.shared_bytes_per_block:
        return Rejected(Reason.SHARED_MEMORY, f"{shared_bytes} bytes of slots, at most {device.shared_bytes_per_block}")
    return None
