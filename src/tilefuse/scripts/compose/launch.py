"""Sizes of a fused kernel as index expressions: constants, or names of the sizes that each launch gives.

    extent m (words along y)      tiles_y = max(ceil(m / 128), 1)      whole_y = m // 128      chunks: blocks along the walk

Affine expressions of sizes stay index expressions. A product or quotient of two sizes gets a name of its own (`Let` of `OfTwo`), unless one
of them is a constant.
"""
from __future__ import annotations

from dataclasses import replace
from math import prod

from tilefuse.ir.affine import Affine, axis, bounds, number
from tilefuse.ir.counts import Operand, ceil, least, most, times
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import Kernel, Let, OfTwo, Size, Stmt
from tilefuse.kernel.visit import index_names
from tilefuse.kernel.widths import MOST_BLOCKS
from tilefuse.scripts.schedule.routines import FusedRoutines, extent_in_memory
from tilefuse.scripts.schedule.sizes import num_tiles, words_of


class LaunchSizes:
    """Sizes that launches of one fused kernel give, and index expressions of them. `sizes` is empty where all sizes are constants."""

    def __init__(self, fused: FusedRoutines) -> None:
        self.fused = fused
        self.sizes: dict[str, Size] = {}
        self.extents: dict[str, int] = {}
        self.num_named = 0
        if fused.sized is None:
            return
        graph, grid, longest = fused.graph, fused.grid, fused.sized.case.most_extent
        for v in graph.variables.values():
            for name in (*v.sizes, *((v.leading,) if v.leading else ())):
                self.sizes[name] = Size(name, longest, name)
        for d in grid.extents:
            self.sizes[f"tiles_{d}"] = Size(f"tiles_{d}", -(-longest // fused.tiles[d]), num_tiles(grid, fused.tiles, d))
        walk_tiles = self.sizes[f"tiles_{fused.walk}"]
        self.sizes["chunks"] = Size("chunks", walk_tiles.most, self._chunks(walk_tiles.count))
        self.sizes["all_blocks"] = Size("all_blocks", MOST_BLOCKS, self.num_blocks)
        self.extents = {name: size.most + 1 for name, size in self.sizes.items()}

    def _chunks(self, walk_tiles: Operand) -> Operand:
        """Blocks along a walk of `walk_tiles` tiles. Each takes at most `iterations` of them.

        Sizes below the expected ones have as many blocks as these, and blocks then take fewer tiles.
        """
        fused = self.fused
        across = times(*(num_tiles(fused.grid, fused.tiles, d) for d in fused.grid.extents if d != fused.walk))
        if fused.decision.iterations == 1:
            return walk_tiles
        return least(walk_tiles, most(ceil(walk_tiles, fused.decision.iterations), ceil(fused.num_blocks, across)))

    # -- arguments of launches

    def arguments(self, kernel: Kernel) -> tuple[Size, ...]:
        """The sizes that a kernel's text names."""
        used = index_names(kernel.body)
        return tuple(size for name, size in self.sizes.items() if name in used)

    def with_arguments(self, kernel: Kernel, blocks: Operand) -> Kernel:
        """The kernel with `blocks` blocks and the sizes that its text names as arguments."""
        if not self.sizes:
            return kernel
        launch = replace(kernel.launch, num_blocks=min(kernel.launch.num_blocks, MOST_BLOCKS))
        return replace(kernel, sizes=self.arguments(kernel), blocks=blocks, launch=launch)

    @property
    def most_blocks(self) -> int:
        """Most blocks of the fused kernel."""
        return prod(self.most(self.chunks if d == self.fused.walk else self.tiles(d)) for d in self.fused.grid.extents)

    @property
    def num_blocks(self) -> Operand:
        """Blocks of the fused kernel."""
        grid, walk = self.fused.grid, self.fused.walk
        chunks: Operand = 1 if self._walks_all else self.sizes["chunks"].count if self.sizes else self.fused.chunks
        return times(chunks, *(num_tiles(grid, self.fused.tiles, d) for d in grid.extents if d != walk))

    def count(self, e: Affine) -> Operand:
        """The count of an expression that is a constant, or one size of the launch times a constant."""
        if e.is_const:
            return e.const
        ((name, factor),) = e.terms
        assert isinstance(name, str) and not e.const
        return times(self.sizes[name].count, factor)

    def words(self, variable: str) -> tuple[int, Operand | None]:
        """(most words, count of words) of a variable in memory."""
        v = self.fused.graph.variables[variable]
        if self.fused.sized is None or not v.sizes:
            return extent_in_memory(self.fused.graph, variable), None
        return self.fused.sized.case.most_indexed, words_of(v)

    # -- index expressions

    @property
    def _walks_all(self) -> bool:
        return self.fused.sized is not None and self.fused.sized.walks_all

    @property
    def chunks(self) -> Affine:
        """Blocks along the walk."""
        if self._walks_all:
            return number(1)
        return axis("chunks") if self.sizes else number(self.fused.chunks)

    def extent(self, direction: str) -> Affine:
        """Words along a direction."""
        named = self.fused.grid.named.get(direction)
        return number(self.fused.grid.extents[direction]) if named is None else axis(named)

    def tiles(self, direction: str) -> Affine:
        """Tiles along a direction, the last of which may be partial."""
        return axis(f"tiles_{direction}") if self.sizes else number(self.fused.num_tiles[direction])

    def whole(self, direction: str) -> Affine:
        """Tiles along a direction that lie inside the data."""
        e = self.extent(direction)
        return number(e.const // self.fused.tiles[direction]) if e.is_const else e // self.fused.tiles[direction]

    def partials(self, variable: str) -> Affine:
        """Blocks that hold partial values of one word of an output."""
        reduction = self.fused.reductions[variable]
        if not self.sizes:
            return number(reduction.partials)
        if len(reduction.over) == len(self.fused.grid.extents):
            return axis("all_blocks")
        (d,) = reduction.over
        return self.chunks if d == self.fused.walk else self.tiles(d)

    def most(self, e: Affine) -> int:
        """The largest value of an expression in the launch's sizes and in named products and quotients of them."""
        span = bounds(e, self.extents)
        assert span is not None
        return span[1]

    @property
    def most_handed(self) -> int:
        """Most partial values of one output in the workspace."""
        assert self.fused.sized is not None
        return self.fused.sized.case.most_handed

    # -- bounds, products and quotients

    def below(self, e: Affine, end: Affine) -> Bound:
        """e < end, for an expression that is never negative."""
        return Bound(e, 0, end.const) if end.is_const else Bound(end - e, 1, self.most(end) + 1)

    def inside(self, e: Affine, direction: str) -> Bound:
        """The bound that holds for words inside the data along a direction."""
        return self.below(e, self.extent(direction))

    def equal(self, e: Affine, other: Affine) -> Bound:
        """e == other."""
        return Bound(e, other.const, other.const + 1) if other.is_const else Bound(e - other, 0, 1)

    def named(self, name: str, value: Affine | OfTwo, extent: int) -> tuple[tuple[Stmt, ...], Affine]:
        """(statements that name a value, its name). Names end in a number, because one scope may hold several."""
        self.num_named += 1
        own = f"{name}_{self.num_named}"
        self.extents[own] = extent
        return (Let(own, value, extent),), axis(own)

    def product(self, name: str, a: Affine, b: Affine, most: int) -> tuple[tuple[Stmt, ...], Affine]:
        """a * b, at most `most`: under a name if neither is a constant."""
        if b.is_const:
            return (), a * b.const
        if a.is_const:
            return (), b * a.const
        return self.named(name, OfTwo("product", a, b), most + 1)

    def quotient(self, name: str, a: Affine, b: Affine, most: int) -> tuple[tuple[Stmt, ...], Affine]:
        """a // b, at most `most`: under a name if b is no constant."""
        return ((), a // b.const) if b.is_const else self.named(name, OfTwo("quotient", a, b), most + 1)

    def remainder(self, name: str, a: Affine, b: Affine, most: int) -> tuple[tuple[Stmt, ...], Affine]:
        """a % b, at most `most`: under a name if b is no constant."""
        return ((), a % b.const) if b.is_const else self.named(name, OfTwo("remainder", a, b), most + 1)
