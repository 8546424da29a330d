"""Proof of task programs with very many tasks, in bundles: tasks of one member, which wait for the same counters and publish the same ones.

    bundle "group 7 of products"     36 tasks     awaits counter 7 = 16     publishes counter 107     reads ring slot 7 % 4

All tasks of a bundle are behind the same tasks, so that the proof keeps one set a bundle. Of all accesses to an element only those since
the last write are looked at: a task behind that write is behind everything before it. The rules are those of `proof.py`.
"""
from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from tilefuse.kernel.tasks.program import Need, Touch
from tilefuse.kernel.tasks.proof import MOST_FINDINGS, Finding


@dataclass(frozen=True, slots=True)
class Bundle:
    """Tasks of one member. places: their places in the order, ascending; touches: of each task, shared by bundles that touch the same."""

    name: str
    needs: tuple[Need, ...]
    publishes: tuple[int, ...]
    places: tuple[int, ...]
    touches: tuple[tuple[Touch, ...], ...]


def prove_bundles(bundles: Sequence[Bundle]) -> list[Finding]:
    """Broken rules of a task program; empty: all its waits end, and every pair of accesses of which one writes is ordered.

    Cost: linear in bundles and distinct touches, times a word for every 64 bundles.
    """
    findings: list[Finding] = []
    ordered = sorted(bundles, key=lambda b: b.places[0])
    behind = _behind(ordered, findings)
    _check_inside(ordered, findings)
    _check_between(ordered, behind, findings)
    return findings[:MOST_FINDINGS]


def _behind(bundles: Sequence[Bundle], findings: list[Finding]) -> list[int]:
    """For each bundle the set of bundles whose tasks are all done before one of its own begins, one bit a bundle."""
    publishers: dict[int, list[int]] = {}
    for number, bundle in enumerate(bundles):
        for counter in bundle.publishes:
            publishers.setdefault(counter, []).append(number)
    behind: list[int] = []
    for number, bundle in enumerate(bundles):
        before = 0
        for need in bundle.needs:
            own = publishers.get(need.counter, [])
            reached = sum(bisect_left(bundles[p].places, bundle.places[0]) for p in own)
            if need.value > reached:
                findings.append(Finding("endless wait", bundle.name, f"needs {need.value} of counter {need.counter}, which tasks before it "
                                                                     f"bring to {reached}"))
            elif need.value > 0 and need.value == sum(len(bundles[p].places) for p in own):
                for p in own:
                    before |= behind[p] | 1 << p if p < number else 0
        behind.append(before)
    return behind


def _check_inside(bundles: Sequence[Bundle], findings: list[Finding]) -> None:
    """Adds a finding for each bundle whose own tasks touch an element that one of them writes: nothing orders them."""
    known: set[int] = set()
    for bundle in bundles:
        if id(bundle.touches) in known:
            continue
        known.add(id(bundle.touches))
        touches = sorted((t.value, t.first, t.last, n, t.writes) for n, task in enumerate(bundle.touches) for t in task)
        # The touches that reach furthest, of any kind and writing, of two different tasks each.
        far: dict[bool, list[tuple[int, int]]] = {}
        value = None
        for name, first, last, task, writes in touches:
            if name != value:
                value, far = name, {True: [], False: []}
            others = far[True] if not writes else [*far[True], *far[False]]
            if any(end > first and other != task for end, other in others):
                findings.append(Finding("unordered", bundle.name, f"two of its tasks touch %{name}[{first} .. {last - 1}], and one writes"))
                break
            far[writes] = _furthest(far[writes], last, task)


def _furthest(far: list[tuple[int, int]], last: int, task: int) -> list[tuple[int, int]]:
    """The two furthest ends by different tasks."""
    ends = {other: end for end, other in far}
    ends[task] = max(ends.get(task, 0), last)
    return sorted(((end, other) for other, end in ends.items()), reverse=True)[:2]


@dataclass(slots=True)
class _Piece:
    """Elements that all runs contain whole or not at all: bundles that wrote them last, and those that have read them since."""

    writer: int | None = None
    readers: int = 0


def _check_between(bundles: Sequence[Bundle], behind: Sequence[int], findings: list[Finding]) -> None:
    """Adds a finding for each bundle that touches elements of another bundle's write, or writes elements that it touches, unless it is
    behind that bundle."""
    runs_of: dict[int, list[tuple[str, bool, int, int]]] = {}
    edges: dict[str, set[int]] = {}
    for bundle in bundles:
        if id(bundle.touches) not in runs_of:
            runs_of[id(bundle.touches)] = runs = _runs(bundle)
            for value, _, first, last in runs:
                edges.setdefault(value, set()).update((first, last))
    cuts = {value: sorted(places) for value, places in edges.items()}
    pieces = {value: [_Piece() for _ in places] for value, places in cuts.items()}
    for number, bundle in enumerate(bundles):
        for value, writes, first, last in runs_of[id(bundle.touches)]:
            for n in range(bisect_left(cuts[value], first), bisect_left(cuts[value], last)):
                piece = pieces[value][n]
                before = (0 if piece.writer is None else 1 << piece.writer) | (piece.readers if writes else 0)
                loose = before & ~behind[number] & ~(1 << number)
                if loose:
                    findings.append(_unordered(bundle, value, writes, cuts[value][n], bundles[loose.bit_length() - 1]))
                    break
                if writes:
                    piece.writer, piece.readers = number, 0
                else:
                    piece.readers |= 1 << number
        if len(findings) >= MOST_FINDINGS:
            return


def _runs(bundle: Bundle) -> list[tuple[str, bool, int, int]]:
    """(value, whether it writes, first, last + 1) of the elements that a bundle's tasks touch, reads first."""
    runs: list[tuple[str, bool, int, int]] = []
    for value, writes, first, last in sorted({(t.value, t.writes, t.first, t.last) for task in bundle.touches for t in task}):
        if first >= last:
            continue
        if runs and runs[-1][:2] == (value, writes) and first <= runs[-1][3]:
            runs[-1] = (value, writes, runs[-1][2], max(last, runs[-1][3]))
        else:
            runs.append((value, writes, first, last))
    return runs


def _unordered(bundle: Bundle, value: str, writes: bool, first: int, other: Bundle) -> Finding:
    how = "writes" if writes else "reads"
    return Finding("unordered", bundle.name, f"{how} %{value} from element {first} on, which {other.name} touches, and no counter orders "
                                             "the two")
