"""Sizes of a script that calls give: their names, what a kernel knows of them, and what follows from them.

    matrix A; vector p, r;  q = sgemv(A, p); s = sgemtv(A, r);        A [m, n], p [n], r [m], q [m], s [n]

Extents that functions of the script set equal have one name. Two that are equal by accident at the sizes that are expected have two: no
kernel may rely on it. A kernel is composed for one `Case`: how large sizes may be, and whether rows of matrices begin at 16 bytes.
"""
from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.counts import Operand, ceil, most, plus, times
from tilefuse.scripts.language.elementary import CallGraph, Variable
from tilefuse.scripts.schedule.grid import Grid
from tilefuse.scripts.schedule.names import BEHIND, OWN


@dataclass(frozen=True)
class Case:
    """Sizes that a kernel may rely on. Units: words.

    most_extent    of every size that calls give
    most_indexed   of the sum over a matrix's dimensions of what routines compute: (extent + tile) * stride
    most_handed    of the partial values of one output in the workspace
    aligned        whether words from row to row of every matrix are a multiple of 16 bytes
    """

    name: str
    most_extent: int
    most_indexed: int
    most_handed: int
    aligned: bool


# In the first two every index has 32 bits: what is added to a size (a tile, a copy in flight, a row of the workspace) is no larger.
CASES = (Case("aligned", 1 << 28, (1 << 31) - 1, 1 << 28, True), Case("any", 1 << 28, (1 << 31) - 1, 1 << 28, False),
         Case("aligned_wide", 1 << 40, 1 << 44, 1 << 44, True), Case("any_wide", 1 << 40, 1 << 44, 1 << 44, False))


@dataclass(frozen=True)
class GivenSizes:
    """The sizes of one fused kernel. `walks_all`: one block takes all tiles of the walk, however many; else each `iterations` of them."""

    walks_all: bool
    case: Case = CASES[-1]


def with_named_sizes(graph: CallGraph, leading: Collection[str] = ()) -> CallGraph:
    """The graph with names for its extents, which its shapes are then only examples of. `leading`: matrices with a leading dimension.

    Names are those of the first function that reads an extent (m, n), with numbers where several extents would have one name.
    """
    parent: dict[object, object] = {}

    def root(x: object) -> object:
        while parent.setdefault(x, x) != x:
            x = parent[x]
        return x

    for c, call in enumerate(graph.calls):
        if call.function.triangle:
            for size in call.function.sizes:
                parent[root((c, size))] = root((c, call.function.sizes[0]))
        for _, variable, sizes in call.operands:
            for d, size in enumerate(sizes):
                parent[root((variable, d))] = root((c, size))
    called: dict[object, str] = {}
    taken = set(graph.variables)

    def belongs(name: str) -> bool:
        return any(name.startswith(f"{v}_") and BEHIND.match(name[len(v) + 1:]) for v in graph.variables)

    def free(stem: str) -> str:
        name, count = stem, 1
        while name in taken or OWN.match(name) or belongs(name):
            count += 1
            name = f"{stem}{count}"
        taken.add(name)
        return name

    for c, call in enumerate(graph.calls):
        # The sibling for transposed matrices has the names of the script's function the other way round.
        turned = any(graph.variables[v].turned for _, v, _ in call.operands)
        stems = call.grid_sizes[::-1] if turned else call.grid_sizes
        for size, stem in zip(call.grid_sizes, stems, strict=True):
            if root((c, size)) not in called:
                called[root((c, size))] = free(stem)
    read_by = {(v, d): True for call in graph.calls for _, v, sizes in call.operands for d in range(len(sizes))}
    for v in graph.variables.values():
        for d in range(len(v.shape)):
            if (v.name, d) not in read_by:
                called[root((v.name, d))] = free(f"{v.name}_extent")
    variables = {n: replace(v, sizes=tuple(called[root((n, d))] for d in range(len(v.shape))),
                            leading=free(f"leading_{n}") if n in leading else "", strides=v.strides if n in leading else ())
                 for n, v in graph.variables.items()}
    calls = (replace(call, named={size: called[root((c, size))] for size in call.function.sizes}) for c, call in enumerate(graph.calls))
    return replace(graph, variables=variables, calls=tuple(calls))


def size_names(graph: CallGraph) -> tuple[str, ...]:
    """Names of the sizes that a call gives, in the order in which the inputs (and then other variables) have them."""
    order = [*graph.inputs, *graph.variables]
    names = dict.fromkeys(s for n in order for s in _by_memory(graph.variables[n]))
    return tuple(names)


def expected_sizes(graph: CallGraph) -> dict[str, int]:
    """Sizes by name as they are expected: those that programs are chosen for."""
    sizes: dict[str, int] = {}
    for v in graph.variables.values():
        sizes |= dict(zip(v.sizes, v.shape, strict=False))
        if v.leading:
            sizes[v.leading] = max(v.word_strides)
    return sizes


def _by_memory(v: Variable) -> tuple[str, ...]:
    """Size names of a variable as the script has them, and its leading dimension."""
    return (*(v.sizes[::-1] if v.turned else v.sizes), *((v.leading,) if v.leading else ()))


def strides_of(v: Variable) -> tuple[Affine, ...]:
    """Words from one index to the next: numbers, or names of sizes."""
    if not v.sizes:
        return tuple(map(number, v.word_strides))
    return tuple(number(s) if isinstance(s, int) else axis(s) for s in v.named_strides)


def words_of(v: Variable) -> Operand:
    """Words from the first to the last of a variable in memory, and up to a row of gaps behind it."""
    if not v.sizes:
        return 1
    if len(v.sizes) == 1:
        return v.sizes[0]
    rows, stride = (v.sizes[0], v.named_strides[0]) if v.named_strides[1] == 1 else (v.sizes[1], v.named_strides[1])
    return times(rows, stride)


def indexed_words(v: Variable, tiles: Mapping[str, int]) -> Operand:
    """Largest offset that routines compute for a word of a matrix: (extent + tile) * stride over its dimensions. tiles: size -> words."""
    total: Operand = 0
    for size, stride in zip(v.sizes, v.named_strides, strict=True):
        total = plus(total, times(plus(size, tiles.get(size, 0)), stride))
    return total


def num_tiles(grid: Grid, tiles: Mapping[str, int], direction: str) -> Operand:
    """Tiles along a direction; one where there are no words."""
    return most(ceil(grid.named.get(direction, grid.extents[direction]), tiles[direction]), 1)
