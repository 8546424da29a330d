"""The grid that calls of one kernel share: the direction of each of their sizes.

    q = sgemv(A, p)     m: y, n: x            A is [y, x] for both, so both work on the same tile of it:
    s = sgemtv(A, r)    m: y, n: x            the calls are compatible

Unnested calls have the direction "x" alone, nested ones "y" (rows of the first matrix) and "x". Source: Filipovic et al., 3.2 and 4.3.2.
"""
from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.scripts.language.elementary import CallGraph, FunctionCall

Axes = tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """Directions of a kernel and the size names of its calls along them.

    extents   direction -> words along it (of the data, not padded)
    axis_of   for every call of the kernel, in order: size name -> direction
    triangle  "lower" (x <= y) or "upper" if all calls skip the tiles wholly on the other side of the diagonal; "" if a call needs them
    named     direction -> name of the words along it, where calls of the script give them; `extents` are then the expected ones
    """

    extents: Mapping[str, int]
    axis_of: tuple[Mapping[str, str], ...]
    triangle: str = ""
    named: Mapping[str, str] = field(default_factory=dict)

    @property
    def nested(self) -> bool:
        """Whether there are two directions."""
        return len(self.extents) == 2


def bind_grid(graph: CallGraph, calls: Sequence[int]) -> Grid | Rejected:
    """The grid of some calls, or the reason for which they share none.

    Calls on numbers alone have no sizes and fit every grid: each block runs them. The calls that read a variable computed by one of them
    must have its dimensions along the same directions; for inputs they need not.
    """
    sized = [c for c in calls if graph.calls[c].function.sizes]
    if not sized:
        return Grid({"x": 1}, tuple({} for _ in calls))
    kinds = {graph.calls[c].function.kind.nested for c in sized}
    if len(kinds) > 1:
        return Rejected(Reason.DOMAIN_MISMATCH, "calls of different nesting depth")
    first = graph.calls[sized[0]]
    names = first.grid_sizes
    directions: Axes = ("y", "x") if kinds.pop() else ("x",)
    if len(names) != len(directions):
        return Rejected(Reason.DOMAIN_MISMATCH, f"{first.function.name} has {len(names)} sizes, its kind {len(directions)}")
    extents = {d: first.sizes[n] for d, n in zip(directions, names, strict=True)}
    named = {d: first.named[n] for d, n in zip(directions, names, strict=True) if first.named}
    produced = {r for c in sized for r in graph.calls[c].results}
    bound: list[dict[str, str]] = []
    axes_of: dict[str, list[Axes]] = {}
    for c in sized:
        axis_of = _assignment(graph.calls[c], directions, extents, named, axes_of, produced)
        if axis_of is None:
            return Rejected(Reason.DOMAIN_MISMATCH, f"the grid of {graph.calls[c].function.name} (call {c}) does not fit that of "
                            f"{first.function.name} (call {sized[0]}): {dict(graph.calls[c].named or graph.calls[c].sizes)} against "
                            f"{named or extents}")
        bound.append(axis_of)
        for _, variable, sizes in graph.calls[c].operands:
            axes_of.setdefault(variable, []).append(tuple(axis_of[n] for n in sizes))
    by_call = dict(zip(sized, bound, strict=True))
    triangles = {_triangle(graph.calls[c], by_call[c]) for c in sized}
    return Grid(extents, tuple(by_call.get(c, {}) for c in calls), triangles.pop() if len(triangles) == 1 else "",
                named)


def _triangle(call: FunctionCall, axis_of: Mapping[str, str]) -> str:
    """The triangle of the grid that a call needs: its matrices' triangle, transposed where they are."""
    triangle = call.function.triangle
    if triangle and axis_of[call.grid_sizes[0]] == "x":
        return "upper" if triangle == "lower" else "lower"
    return triangle


def live_tiles(grid: Grid, tiles: Mapping[str, int], num_tiles: Mapping[str, int]) -> int:
    """Tiles of the grid that some call needs. tiles: direction -> words of a tile; num_tiles: direction -> number of tiles.

    Cost: linear in the tiles along one direction, once for each size of tiles.
    """
    if not grid.triangle:
        return prod(num_tiles.values())
    long, short = ("y", "x") if grid.triangle == "lower" else ("x", "y")
    return _live_tiles(grid.extents[long], tiles[long], tiles[short])


@functools.cache
def _live_tiles(extent: int, along: int, across: int) -> int:
    """Tiles of `along` x `across` words that hold words with column <= row, in a square of `extent` rows."""
    return max(sum(-(-min(end, extent) // across) for end in range(along, extent + along, along)), 1)


def _assignment(call: FunctionCall, directions: Axes, extents: Mapping[str, int], named: Mapping[str, str],
                axes_of: Mapping[str, list[Axes]], produced: set[str]) -> dict[str, str] | None:
    """Size name -> direction of a call, such that it shares most operands with the calls before; None if it does not fit the grid."""
    names = call.grid_sizes
    if len(names) != len(directions):
        return None
    best: tuple[int, dict[str, str]] | None = None
    for order in ([directions] if len(directions) == 1 else [directions, directions[::-1]]):
        choice = dict(zip(names, order, strict=True))
        if any(call.sizes[n] != extents[d] or named and call.named[n] != named[d] for n, d in choice.items()):
            continue
        shared, fits = 0, True
        for _, variable, sizes in call.operands:
            axes = tuple(choice[n] for n in sizes)
            earlier = axes_of.get(variable, [])
            fits &= not (earlier and variable in produced and axes not in earlier)
            shared += axes in earlier
        if fits and (best is None or shared > best[0]):
            best = (shared, choice)
    return best[1] if best else None
