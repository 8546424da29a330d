"""Sizes of a script that calls give: their names, the limits that a kernel relies on, and counts of words and tiles.

    matrix A; vector p, r;  q = sgemv(A, p); s = sgemtv(A, r);        A [m, n], p [n], r [m], q [m], s [n]

Extents that functions of the script require to be equal have one name. Extents that are equal only at the expected sizes have several
names: no kernel may rely on their equality. A kernel is composed for one `Case`: limits of the sizes, and whether rows of matrices begin at
16 bytes.
"""
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.counts import Operand, ceil, most, plus, times
from tilefuse.scripts.language.elementary import CallGraph, Variable
from tilefuse.scripts.schedule.grid import Grid
from tilefuse.scripts.schedule.names import KERNEL_NAMES, VARIABLE_SUFFIXES


@dataclass(frozen=True)
class Case:
    """Limits of sizes that a kernel relies on. Units: words.

    most_extent    largest size that calls give
    most_indexed   largest offset that routines compute for a matrix: (extent + tile) * stride, summed over its dimensions
    most_handed    most partial values of one output in the workspace
    aligned        the stride between rows of every matrix is a multiple of 16 bytes
    """

    name: str
    most_extent: int
    most_indexed: int
    most_handed: int
    aligned: bool


# In the first two cases every index fits 32 bits: terms added to a size (a tile, a copy in flight, a row of the workspace) are smaller.
CASES = (Case("aligned", 1 << 28, (1 << 31) - 1, 1 << 28, True), Case("any", 1 << 28, (1 << 31) - 1, 1 << 28, False),
         Case("aligned_wide", 1 << 40, 1 << 44, 1 << 44, True), Case("any_wide", 1 << 40, 1 << 44, 1 << 44, False))


@dataclass(frozen=True)
class GivenSizes:
    """The sizes of one fused kernel. `walks_all`: one block takes all tiles of the walk; else each takes at most `iterations` of them."""

    walks_all: bool
    case: Case = CASES[-1]


def with_named_sizes(graph: CallGraph, leading: Collection[str] = ()) -> CallGraph:
    """The graph with names for its extents; its shapes are then the expected ones. `leading`: matrices with a leading dimension.

    Names are those of the first function that reads an extent (m, n), with a number appended where several extents have one name.
    """
    root = _equal_extents(graph)
    names = _ExtentNames(graph)
    for c, call in enumerate(graph.calls):
        # The sibling for transposed matrices has the names of the script's function in the opposite order.
        transposed = any(graph.variables[v].is_transposed for _, v, _ in call.operands)
        stems = call.grid_sizes[::-1] if transposed else call.grid_sizes
        for size, stem in zip(call.grid_sizes, stems, strict=True):
            names.name_extent(root((c, size)), stem)
    for v in graph.variables.values():
        for d in range(len(v.shape)):
            if not any(v.name == name and d < len(sizes) for call in graph.calls for _, name, sizes in call.operands):
                names.name_extent(root((v.name, d)), f"{v.name}_extent")
    variables = {n: replace(v, sizes=tuple(names.name_of[root((n, d))] for d in range(len(v.shape))),
                            leading=names.free(f"leading_{n}") if n in leading else "", strides=v.strides if n in leading else ())
                 for n, v in graph.variables.items()}
    calls = (replace(call, named={size: names.name_of[root((c, size))] for size in call.function.sizes})
             for c, call in enumerate(graph.calls))
    return replace(graph, variables=variables, calls=tuple(calls))


def _equal_extents(graph: CallGraph) -> Callable[[object], object]:
    """The function from an extent, (call, size) or (variable, dimension), to the representative of all extents equal to it."""
    parent: dict[object, object] = {}

    def root(extent: object) -> object:
        while parent.setdefault(extent, extent) != extent:
            extent = parent[extent]
        return extent

    for c, call in enumerate(graph.calls):
        if call.function.triangle:
            for size in call.function.sizes:
                parent[root((c, size))] = root((c, call.function.sizes[0]))
        for _, variable, sizes in call.operands:
            for d, size in enumerate(sizes):
                parent[root((variable, d))] = root((c, size))
    return root


class _ExtentNames:
    """Names of a graph's extents, none of which is a variable's, a kernel's own or an element's name."""

    def __init__(self, graph: CallGraph) -> None:
        self.variables = tuple(graph.variables)
        self.taken = set(graph.variables)
        self.name_of: dict[object, str] = {}

    def name_extent(self, extent: object, stem: str) -> None:
        """Names an extent, unless it has a name."""
        if extent not in self.name_of:
            self.name_of[extent] = self.free(stem)

    def free(self, stem: str) -> str:
        """A new name: the stem, with a number appended where it is taken."""
        name, count = stem, 1
        while name in self.taken or KERNEL_NAMES.match(name) or self._is_of_a_variable(name):
            count += 1
            name = f"{stem}{count}"
        self.taken.add(name)
        return name

    def _is_of_a_variable(self, name: str) -> bool:
        return any(name.startswith(f"{v}_") and VARIABLE_SUFFIXES.match(name[len(v) + 1:]) for v in self.variables)


def size_names(graph: CallGraph) -> tuple[str, ...]:
    """Names of the sizes that a call gives, in the order in which the inputs (and then other variables) have them."""
    order = [*graph.inputs, *graph.variables]
    names = dict.fromkeys(s for n in order for s in _by_memory(graph.variables[n]))
    return tuple(names)


def expected_sizes(graph: CallGraph) -> dict[str, int]:
    """Expected sizes by name: programs are chosen for them."""
    sizes: dict[str, int] = {}
    for v in graph.variables.values():
        sizes |= dict(zip(v.sizes, v.shape, strict=False))
        if v.leading:
            sizes[v.leading] = max(v.word_strides)
    return sizes


def _by_memory(v: Variable) -> tuple[str, ...]:
    """Size names of a variable as the script has them, and its leading dimension."""
    return (*(v.sizes[::-1] if v.is_transposed else v.sizes), *((v.leading,) if v.leading else ()))


def strides_of(v: Variable) -> tuple[Affine, ...]:
    """Words from one index to the next: numbers, or names of sizes."""
    if not v.sizes:
        return tuple(map(number, v.word_strides))
    return tuple(number(s) if isinstance(s, int) else axis(s) for s in v.named_strides)


def words_of(v: Variable) -> Operand:
    """Words from the first to the last of a variable in memory, and up to a row of gaps after it."""
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
