"""Levels of the edges between stages (Welder 3.1, SetConnect): where each map inside lies until its readers take it.

    h = gelu(x)    SHARED    a stage computes its tile once, and stages read it there       bytes of shared memory, written and read
                   REGISTER  every reader computes the elements that it needs               operands read again, operations again

The scheduler gives maps a level by their operations (`pattern.py`). Here every other level is tried with the same tiles: kernels that
fit shared memory are ranked by their price, which holds the traffic of each level. A written template gives levels too.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilefuse.base.candidate import Rejected
from tilefuse.domain.tile import Level
from tilefuse.ir.graph import Graph
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.stitched.choose import choose_stitch
from tilefuse.templates.staged.stitched.cut import Stitcher
from tilefuse.templates.staged.stitched.record import Stitched


@dataclass(frozen=True, slots=True)
class Connection:
    """A map at another level than in a kernel, and the kernel then: its price, its bytes at each level, its shared memory.

    Units: microseconds; bytes.
    """

    value: str
    level: Level
    choice: Stitched
    us: float
    l2_bytes: int
    shared_bytes: int
    allocated_bytes: int


def connections(graph: Graph, device: DeviceSpec, base: Stitched) -> tuple[Connection, ...]:
    """Every map of a pattern at its other level, where that fits, the cheapest kernel first. base: a choice for the pattern."""
    ranked: list[Connection] = []
    for value, level in _others(graph, device, base):
        choice = with_levels(graph, device, base, {**dict(base.levels), value: level})
        priced = choose_stitch(graph, device, choice)
        if not isinstance(priced, Rejected):
            work = priced.plan.work
            ranked.append(Connection(value, level, choice, priced.us, work.l2_bytes, work.shared_bytes, priced.plan.shared_bytes))
    return tuple(sorted(ranked, key=lambda c: (c.us, c.l2_bytes + c.shared_bytes, c.value)))


def with_levels(graph: Graph, device: DeviceSpec, base: Stitched, levels: dict[str, Level]) -> Stitched:
    """The choice with these levels; those that stages give by themselves are left out."""
    kept = _analysed(graph, device, ()).kept
    return replace(base, levels=tuple(sorted(((v, level) for v, level in levels.items() if (level is Level.SHARED) != (v in kept)),
                                             key=lambda row: row[0])))


def may_be_given(graph: Graph, device: DeviceSpec) -> frozenset[str]:
    """Maps of a pattern whose level may be chosen."""
    return frozenset(n.name for n in graph.nodes) - _analysed(graph, device, ()).values_with_stages


def _others(graph: Graph, device: DeviceSpec, base: Stitched) -> Iterator[tuple[str, Level]]:
    """Each map whose level may be chosen, with the level that it does not have in a kernel."""
    stitcher = _analysed(graph, device, base.levels)
    for node in graph.nodes:
        if node.name not in stitcher.values_with_stages:
            yield node.name, Level.REGISTER if node.name in stitcher.kept else Level.SHARED


def _analysed(graph: Graph, device: DeviceSpec, levels: tuple[tuple[str, Level], ...]) -> Stitcher:
    stitcher = Stitcher(graph, device.fitted.stitch, levels)
    refusal = stitcher.analyse()
    assert refusal is None, "a kernel of the pattern exists"
    return stitcher
