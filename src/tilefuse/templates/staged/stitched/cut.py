"""Stitching: a pattern cut into stages that pass tiles through shared memory, each with a loop of its own (block composition).

    product(x, w)  ->  softmax over columns  ->  product(p, v)

One block computes one tile of the results. From it the regions of all values inside follow (`regions.py`); a value whose region lies in
shared memory is a piece with a stage, everything else is evaluated where it is used. Reductions of different shapes, products and
unrelated maps so share a kernel. Source: FusionStitching 5.1 (block composition) and 5.3; Welder 3.2 (propagation).
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.contraction import (
    COLUMN,
    INNER,
    ROW,
    Tiling,
    least_wait,
    matrix_arithmetic,
    mma_fits,
    product_cycles,
    shared_inner,
    tile_fma,
    tile_mma,
)
from tilefuse.domain.regions import Region, Span, Subscript, holds, inside, joined, num_elements, region_at, subscripts_of
from tilefuse.domain.tile import Level
from tilefuse.ir.affine import axis, number, substitute
from tilefuse.ir.dtype import DType
from tilefuse.ir.graph import Graph
from tilefuse.ir.scalar import Guard, walk
from tilefuse.target.capabilities import WARP
from tilefuse.target.fitted.stages import StitchFigures
from tilefuse.target.memory import ACCESS_BYTES
from tilefuse.templates.staged.stitched.pattern import StitchPattern
from tilefuse.templates.staged.stitched.plan import Piece, Regions, Stage, StitchPlan, Tiled, ValueRegion


@dataclass(frozen=True, slots=True)
class Stop:
    """A kept value on the way of regions from results to operands: what it is, its axes, and (value, subscripts) of its reads."""

    value: str
    kind: str
    dtype: DType
    written: bool
    axes: tuple[str, ...]
    over: Mapping[str, Span]
    reads: tuple[tuple[str, tuple[Subscript, ...]], ...]


class Stitcher(StitchPattern):
    """Cuts one pattern for given tiles of its largest result. `tiles`: one extent a dimension of that result."""

    def __init__(self, graph: Graph, fitted: StitchFigures, levels: tuple[tuple[str, Level], ...] = ()) -> None:
        """levels: as of `Stitched`."""
        super().__init__(graph, frozenset())
        self.fitted, self.levels = fitted, levels
        self._regions: dict[tuple[int, ...], Regions | Rejected] = {}
        self._tiled: dict[tuple[int, ...], Tiled | Rejected] = {}
        self._arithmetic: dict[str, str | None] = {}
        self._elsewhere: dict[tuple[str, int, str], frozenset[str]] = {}

    def values_kept(self) -> frozenset[str]:
        """Nodes worth a stage of their own; a map that several read is one where its operations cost more than the accesses to its tile."""
        kept = self.values_worth_keeping(self.fitted.tile_access_cycles, self.fitted.fewer_elements)
        free = {v: level for v, level in self.levels if v in self.inside and v not in self.values_with_stages}
        return frozenset(v for v in (*kept, *free) if free.get(v, Level.SHARED) is Level.SHARED)

    def cut(self, tiles: tuple[int, ...], threads: int, matrix_unit: bool) -> StitchPlan | Rejected:
        """The stages for tiles of the anchor, without storage. Requires: `analyse` found nothing."""
        tiled = self.tiled(tiles)
        return tiled if isinstance(tiled, Rejected) else self._stages(tiled, threads, matrix_unit)

    def tiled(self, tiles: tuple[int, ...]) -> Tiled | Rejected:
        """Tile of every value that follows from tiles of the anchor. Requires: `analyse` found nothing."""
        if tiles not in self._tiled:
            regions = self.regions(tiles)
            self._tiled[tiles] = regions if isinstance(regions, Rejected) else self._linked(regions)
        return self._tiled[tiles]

    def regions(self, tiles: tuple[int, ...]) -> Regions | Rejected:
        """Regions of all values, which bounds are taken of. Requires: `analyse` found nothing."""
        if tiles not in self._regions:
            self._regions[tiles] = self._regions_of(tiles)
        return self._regions[tiles]

    def _regions_of(self, tiles: tuple[int, ...]) -> Regions | Rejected:
        """Regions of all values, from results to operands."""
        shape = self.graph.type_of(self.anchor).shape
        grid = [(f"tile{d}", -(-extent // tile)) for d, (tile, extent) in enumerate(zip(tiles, shape, strict=True)) if tile < extent]
        extents = dict(grid)
        requests: dict[str, list[Region]] = {}
        for result, region in self.result_regions(tiles):
            used = frozenset().union(*[s.offset.axes() for s in region])
            if used != extents.keys() and not self.graph.users_by_name[result]:
                return Rejected(Reason.NEEDS_GRID_SYNC, f"every block would compute all of %{result}, and none needs it")
            requests[result] = [region]
        values: list[ValueRegion] = []
        reads = self._propagate(requests, extents, values)
        return reads if isinstance(reads, Rejected) else Regions(tuple(grid), values, reads)

    def result_regions(self, tiles: tuple[int, ...]) -> list[tuple[str, Region]]:
        """The region of every result, as the kernel's results request it."""
        shape = self.graph.type_of(self.anchor).shape
        span_of = {root: Span(axis(f"tile{d}") * tile, tile)
                   for d, (tile, extent, root) in enumerate(zip(tiles, shape, self.anchor_roots, strict=True)) if tile < extent}
        return [(result, tuple([span_of.get(root, whole) for root, whole in dimensions])) for result, dimensions in self.result_dimensions]

    def _linked(self, regions: Regions) -> Tiled | Rejected:
        """Regions with who reads which."""
        pieces = tuple([Piece(key, v.value, v.region, v.kind, v.dtype, True, v.written) for key, v in enumerate(regions.values)])
        sources = self._sources(pieces, regions.reads)
        if isinstance(sources, Rejected):
            return sources
        users: dict[int, list[int]] = {p.key: [] for p in pieces}
        for key, needed in sources.items():
            for other in needed:
                users[other].append(key)
        return Tiled(regions.grid, pieces, sources, users, self._register_products(pieces, users))

    @cached_property
    def anchor_roots(self) -> list[tuple[str, int]]:
        """For each dimension of the anchor: the dimension that stands for all that have its tiles."""
        return [self._root((self.anchor, d)) for d in range(len(self.graph.type_of(self.anchor).shape))]

    @cached_property
    def result_dimensions(self) -> list[tuple[str, list[tuple[tuple[str, int], Span]]]]:
        """Every result with its dimensions: those that have the same tiles have one root; and the whole dimension."""
        return [(result, [(self._root((result, d)), Span(number(0), e)) for d, e in enumerate(self.graph.type_of(result).shape)])
                for result in self.graph.results]

    def _propagate(self, requests: dict[str, list[Region]], extents: dict[str, int],
                   values: list[ValueRegion]) -> list[list[tuple[str, Region]]] | Rejected:
        """Regions of everything kept, from results to operands: fills `values`, gives what each of them reads."""
        reads: list[list[tuple[str, Region]]] = []
        for stop in self.stops:
            requested = requests.get(stop.value)
            if not requested:
                continue
            for number_, region in enumerate(self._merged(requested, stop.kind)):
                if len(values) >= SEARCH.stages.pieces:
                    return Rejected(Reason.RECOMPUTATION, f"more than {SEARCH.stages.pieces} tiles a block")
                values.append(ValueRegion(stop.value, region, stop.kind, stop.dtype, stop.written and number_ == 0))
                spans = dict(zip(stop.axes, region, strict=True))
                spans.update(stop.over)
                reads.append([(value, region_at(subscripts, spans, extents)) for value, subscripts in stop.reads])
                for value, wanted_there in reads[-1]:
                    requests.setdefault(value, []).append(wanted_there)
        for source in self.graph.inputs:
            for region in dict.fromkeys(requests.get(source.name, ())):
                values.append(ValueRegion(source.name, region, "copy", source.type.dtype, False))
                reads.append([])
        return reads

    @cached_property
    def stops(self) -> list[Stop]:
        """All kept values, from results to operands."""
        stops: list[Stop] = []
        for node in reversed(self.graph.nodes):
            if node.name in self.kept:
                kind = "product" if node.name in self.contractions else node.category if node.category == "reduce" else "map"
                reads = tuple((value, subscripts_of(index, self.graph.type_of(value).shape)) for value, index in self.touches(node.name)
                              if value in self.inside or kind == "product")
                stops.append(Stop(node.name, kind, node.type.dtype, node.name in self.graph.results, self.axes(node.name),
                                   {a: Span(number(0), e) for a, e in self.over(node.name)}, reads))
        return stops

    def _sources(self, pieces: Sequence[Piece], reads: list[list[tuple[str, Region]]]) -> dict[int, list[int]] | Rejected:
        """The pieces that hold what each piece reads."""
        by_value: dict[str, list[Piece]] = {}
        for p in pieces:
            by_value.setdefault(p.value, []).append(p)
        sources: dict[int, list[int]] = {}
        for p in pieces:
            needed: dict[int, None] = {}
            for value, region in reads[p.key]:
                holder = next((q for q in by_value[value] if holds(q.region, region)), None)
                if holder is None:
                    return Rejected(Reason.DOMAIN_MISMATCH, f"%{p.value} reads %{value} in a way no tile holds")
                needed[holder.key] = None
            sources[p.key] = list(needed)
        return sources

    def _merged(self, requested: list[Region], kind: str) -> list[Region]:
        """Requested regions as few pieces; products keep regions apart that are read apart."""
        if len(requested) == 1:
            return requested
        merged: list[Region] = []
        for region in requested:
            if region in merged:
                continue
            if kind != "product":
                for n, other in enumerate(merged):
                    both = joined(other, region)
                    if both is not None and num_elements(both) <= num_elements(other) + num_elements(region):
                        merged[n] = both
                        break
                else:
                    merged.append(region)
            else:
                merged.append(region)
        # The region of a result comes first and stays whole: it is the one that is written.
        return merged

    # -- bounds -----------------------------------------------------------------------------------------------------------

    def best_rate(self, product: str) -> float:
        """Multiplications a cycle that no tiling of a product exceeds on one multiprocessor."""
        return self.fitted.multiply.rate(self.arithmetic(product))

    def arithmetic(self, product: str) -> str | None:
        """`matrix_arithmetic` of a product."""
        if product not in self._arithmetic:
            contraction = self.contractions[product]
            types = (self.graph.type_of(v).dtype for v in (contraction.left, contraction.right))
            self._arithmetic[product] = matrix_arithmetic(contraction, *types)
        return self._arithmetic[product]

    @cached_property
    def least_wait(self) -> float:
        """Least time that the longest chain of products waits: each is a stage, and lanes of threads share at most a warp's inner axis.

        Maps and reductions that a chain begins with are a stage before its first product; behind products they may share a stage.
        Units: cycles."""
        longest: dict[str, float] = {}
        computed: set[str] = set()  # from products
        for node in self.graph.nodes:
            if node.name not in self.kept:
                continue
            read = [v for v, _ in self.touches(node.name)]
            before = max([longest.get(v, 0.0) for v in read], default=0.0)
            if node.name in self.contractions:
                wait = least_wait(self.fitted.multiply, self.contractions[node.name].inner, self.arithmetic(node.name))
                longest[node.name] = before + self.fitted.stage_cycles + wait
                computed.add(node.name)
            elif computed.isdisjoint(read):
                outside = min(self.fitted.cached_cycles, self.fitted.global_cycles) if self.outside_reads(node.name) else 0.0
                longest[node.name] = max(before, self.fitted.stage_cycles, outside)
            else:
                longest[node.name] = before
                computed.add(node.name)
        return max(longest.values(), default=0.0)

    # -- stages -----------------------------------------------------------------------------------------------------------

    def _stages(self, tiled: Tiled, threads: int, matrix_unit: bool) -> StitchPlan | Rejected:
        pieces, sources, in_registers = list(tiled.pieces), tiled.sources, tiled.in_registers
        plan = StitchPlan(self.graph, tiled.grid, pieces, [], self.contractions, self.kept, sources=sources)
        position = self.graph.position_by_name
        order = sorted((p for p in pieces if p.kind != "copy"), key=lambda p: (position[p.value], p.key))
        copied: set[int] = set()
        for p in order:
            if p.key in in_registers:
                continue
            products = tuple(k for k in sources[p.key] if k in in_registers) if p.kind == "map" else (p.key,) if p.kind == "product" else ()
            for k in products or (p.key,):
                for source in sources[k]:
                    if pieces[source].kind == "copy" and source not in copied:
                        copied.add(source)
                        plan.stages.append(Stage("copy", (source,)))
            if products:
                tiling = self._tiling(pieces, plan, products, threads, matrix_unit)
                if isinstance(tiling, Rejected):
                    return tiling
                product_stage = Stage("product", (p.key,), products, tiling)
                if not self._add_to_product(plan, p, product_stage, threads):
                    plan.stages.append(product_stage)
            elif not self._add_to_rows(plan, p):
                if p.kind == "reduce":
                    self._add_reduction(plan, p, threads)
                else:
                    self._add_map(plan, p)
        self._mark_stored(plan, tiled.users, in_registers)
        for n, (before, stage) in enumerate(zip(plan.stages, plan.stages[1:]), 1):
            if stage.kind == "rows" and before.kind == "product":
                together = stage.but(pieces=(*before.pieces, *stage.pieces))
                own = all(self._row_read(plan, together, plan.pieces[k]) for k in stage.pieces)
                plan.stages[n] = stage.but(own_rows=own)
        return plan

    def _add_to_product(self, plan: StitchPlan, p: Piece, stage: Stage, threads: int) -> bool:
        """Puts a piece and its products into the stage of products before it, where they share the loop over the tile and the registers."""
        place = next((n for n in range(len(plan.stages) - 1, -1, -1) if plan.stages[n].kind != "copy"), -1)
        last = plan.stages[place] if place >= 0 else stage
        if last is stage or last.kind != "product" or last.tiling != stage.tiling or p.key in stage.products:
            return False
        shapes = {(self.contractions[q.value].inner, tuple(s.extent for s in q.region))
                  for q in (plan.pieces[k] for k in (*last.products, *stage.products))}
        reads_sums = any(k in plan.sources[s] for k in last.pieces for s in stage.products)
        if len(shapes) > 1 or reads_sums or not self._joins(plan, last, p):
            return False
        products = (*last.products, *stage.products)
        assert last.tiling is not None
        fitted = self.fitted
        most = min(fitted.block_sums // threads, fitted.matrix_sums if last.tiling.unit == "mma" else fitted.thread_sums)
        if last.tiling.sums * len(products) > most:
            return False
        joined = last.but(pieces=(*last.pieces, p.key), products=products)
        plan.stages[place:] = [*plan.stages[place + 1:], joined]
        return True

    def _register_products(self, pieces: Sequence[Piece], users: dict[int, list[int]]) -> set[int]:
        """Products that one map alone reads, element for element: their sums stay in the registers of that map's stage."""
        in_registers: set[int] = set()
        for p in pieces:
            if p.kind != "product" or p.written or len(users[p.key]) != 1:
                continue
            user = pieces[users[p.key][0]]
            if user.kind == "map" and self._one_to_one(p, user):
                in_registers.add(p.key)
        # All products of a stage share its loop over the tile: lead dimensions and shape must agree.
        for p in pieces:
            mine = [q for q in in_registers if users[q][0] == p.key]
            if len({(self.contractions[pieces[q].value].inner, tuple(s.extent for s in pieces[q].region)) for q in mine}) > 1:
                in_registers -= set(mine[1:])
        return in_registers

    def _one_to_one(self, p: Piece, user: Piece) -> bool:
        """Whether each element of `user` reads the element of `p` at its own place, shifted by constants."""
        axes = self.axes(user.value)
        if len(p.region) != len(user.region) or any(a.extent != b.extent for a, b in zip(p.region, user.region, strict=True)):
            return False
        for value, index in self.touches(user.value):
            places = zip(index, axes, p.region, strict=True) if value == p.value else ()
            if any(e - e.const != axis(a) and not (s.extent == 1 and not e.terms) for e, a, s in places):
                return False
        return not any(isinstance(x, Guard) for n in self._on_the_way(user.value) if n.body is not None for x in walk(n.body))

    def _tiling(self, pieces: list[Piece], plan: StitchPlan, products: tuple[int, ...], threads: int,
                matrix_unit: bool) -> Tiling | Rejected:
        first = pieces[products[0]]
        contraction = self.contractions[first.value]
        rows, columns = first.region[-2].extent, first.region[-1].extent
        contractions = [self.contractions[pieces[k].value] for k in products]
        types = [(self.graph.type_of(c.left).dtype, self.graph.type_of(c.right).dtype) for c in contractions]
        arithmetic = matrix_arithmetic(contraction, *types[0])
        if matrix_unit and len(set(types)) == 1 and mma_fits(rows, columns, contraction.inner, arithmetic) and all(
                self._plain_rows(plan, k, not arithmetic) for k in products):
            fitted = self.fitted.multiply
            places = num_elements(first.region[:-1])
            warps = tile_mma(fitted, rows, columns, threads // WARP, arithmetic or "")
            warps = shared_inner(fitted, warps, places, columns, contraction.inner, threads)
            if not arithmetic:
                return warps
            each = self._threads(pieces, products, threads)
            mma, fma = (sum(product_cycles(fitted, t, places, columns, contraction.inner, threads)) for t in (warps, each))
            return warps if mma < fma else each
        for left, right in types:
            if left.name not in ("f16", "bf16", "f32", "f64") or right != left:
                return Rejected(Reason.UNSUPPORTED_OP, f"a product of {left} and {right}")
        return self._threads(pieces, products, threads)

    def _threads(self, pieces: list[Piece], products: tuple[int, ...], threads: int) -> Tiling:
        """The tile of a thread; right operands too long to hold are read where they lie (`StitchFigures.direct_bytes`)."""
        first = pieces[products[0]]
        contraction = self.contractions[first.value]
        rows, columns = first.region[-2].extent, first.region[-1].extent
        itemsize = self.graph.type_of(contraction.right).dtype.itemsize
        is_direct = (contraction.right not in self.inside and not contraction.inner_last_right
                     and contraction.inner * columns * itemsize > self.fitted.direct_bytes)
        direct = ACCESS_BYTES // itemsize if is_direct else 0
        return tile_fma(self.fitted.multiply, rows, columns, contraction.inner, threads, contraction.inner_last_right, direct,
                        narrow=itemsize == 2)

    def _plain_rows(self, plan: StitchPlan, product: int, vectors: bool) -> bool:
        """Whether the rows of both operands' tiles are runs of elements: of whole 16-byte ones if `vectors`."""
        p = plan.pieces[product]
        contraction = self.contractions[p.value]
        starts = {a: s.offset for a, s in zip(contraction.axes, p.region, strict=True)} | {INNER: number(0)}
        for value, index, last in ((contraction.left, contraction.left_index, INNER if contraction.inner_last_left else ROW),
                                   (contraction.right, contraction.right_index, INNER if contraction.inner_last_right else COLUMN)):
            unit = 16 // self.graph.type_of(value).dtype.itemsize if vectors else 1
            run = index[-1]
            if not all(e.is_linear for e in index) or run.coefficient(last) != 1 or any(c % unit for a, c in run.terms if a != last):
                return False
            if any(e.coefficient(last) for e in index[:-1]):
                return False
            for tile in (plan.pieces[k] for k in plan.sources[product] if plan.pieces[k].value == value):
                start = substitute(run, starts) - tile.region[-1].offset
                if tile.region[-1].extent % unit or start.const % unit or any(c % unit for _, c in start.terms):
                    return False
        return True

    # Rows: maps and reductions that a warp composes

    def _add_to_rows(self, plan: StitchPlan, p: Piece) -> bool:
        """Puts a piece into the rows stage before it, or makes one of a reduction (and the map before it, if that runs over its rows)."""
        last = plan.stages[-1] if plan.stages else None
        if last is not None and last.kind == "rows" and self._fits_rows(plan, last, p):
            plan.stages[-1] = last.but(pieces=(*last.pieces, p.key))
            return True
        over = self.over(p.value)
        if p.kind != "reduce" or len(over) != 1 or not p.region:
            return False
        columns = over[0][1]
        vector = next(v for v in (4, 2, 1) if columns % v == 0)
        lanes = 32
        while lanes > 1 and lanes * vector * 2 > 2 * columns:
            lanes //= 2
        if -(-columns // (lanes * vector)) * vector > self.fitted.row_elements or columns < 8:
            return False
        stage = Stage("rows", (p.key,), lanes=lanes, columns=columns, vector=vector)
        if not self._row_read(plan, stage, p):
            return False
        if last is not None and last.kind == "map" and all(self._fits_rows(plan, stage, plan.pieces[k]) for k in last.pieces) and any(
                k in plan.sources[p.key] for k in last.pieces):
            stage = stage.but(pieces=(*last.pieces, p.key))
            if self._fits_rows(plan, stage, p):
                plan.stages[-1] = stage
                return True
            stage = stage.but(pieces=(p.key,))
        plan.stages.append(stage)
        return True

    def _fits_rows(self, plan: StitchPlan, stage: Stage, p: Piece) -> bool:
        """Whether a piece runs over the rows of a stage and reads what the stage computes at its own row and place only."""
        reduction = next(plan.pieces[k] for k in stage.pieces if plan.pieces[k].kind == "reduce")
        rows = reduction.region
        if len(p.region) < len(rows) or not self._ends_with(plan, p, reduction):
            return False
        if p.kind == "reduce":
            if p.region != rows or [e for _, e in self.over(p.value)] != [stage.columns]:
                return False
        elif p.kind != "map" or not (p.region == rows or self._full_row(p, rows, stage.columns)):
            return False
        return self._row_read(plan, stage, p)

    def _full_row(self, p: Piece, rows: Region, columns: int) -> bool:
        return len(p.region) == len(rows) + 1 and p.region[:-1] == rows and p.region[-1] == Span(number(0), columns)

    def _row_read(self, plan: StitchPlan, stage: Stage, p: Piece) -> bool:
        """Whether every read of a value of the stage is at the row, and at the place in the row, where the piece is computed."""
        here = {plan.pieces[k].value for k in stage.pieces if k != p.key}
        rows = len(p.region) - (0 if p.kind == "reduce" or len(p.region) == len(plan.pieces[next(
            k for k in stage.pieces if plan.pieces[k].kind == "reduce")].region) else 1)
        return here.isdisjoint(self._read_elsewhere(p.value, rows, p.kind))

    def _read_elsewhere(self, name: str, rows: int, kind: str) -> frozenset[str]:
        """Values that a piece reads at another row, or at another place in the row, than where it is computed."""
        key = name, rows, kind
        if key not in self._elsewhere:
            axes = self.axes(name)
            place = (*axes[:rows], *((self.over(name)[0][0],) if kind == "reduce" else axes[rows:]))
            extent = dict(zip(axes, self.graph.type_of(name).shape, strict=True)) | dict(self.over(name))
            self._elsewhere[key] = frozenset(value for value, index in self.touches(name) if len(index) > len(place) or any(
                e != axis(a) and (e != number(0) or extent[a] > 1) for e, a in zip(index, place)))
        return self._elsewhere[key]

    def _add_reduction(self, plan: StitchPlan, p: Piece, threads: int) -> None:
        """A stage of its own, or a place beside a reduction over the same region that it does not depend on."""
        length = prod(e for _, e in self.over(p.value))
        rows = num_elements(p.region)
        lanes = 1
        while lanes < 32 and lanes * 2 <= max(length // 2, 1) and rows * lanes < threads:
            lanes *= 2
        if lanes > 1:
            while lanes < 32 and lanes * 4 <= length:
                lanes *= 2
        last = plan.stages[-1] if plan.stages else None
        if last is not None and last.kind == "reduce":
            other = plan.pieces[last.pieces[0]]
            same = other.region == p.region and [e for _, e in self.over(other.value)] == [e for _, e in self.over(p.value)]
            if same and self._ends_with(plan, p, other) and not set(last.pieces) & set(plan.sources[p.key]):
                plan.stages[-1] = last.but(pieces=(*last.pieces, p.key))
                return
        plan.stages.append(Stage("reduce", (p.key,), lanes=lanes))

    def _add_map(self, plan: StitchPlan, p: Piece) -> None:
        """A stage of its own, or a place in the loop of the stage before where both run over the same region."""
        last = plan.stages[-1] if plan.stages else None
        if last is not None and last.kind in ("map", "product") and self._joins(plan, last, p):
            plan.stages[-1] = last.but(pieces=(*last.pieces, p.key))
            return
        plan.stages.append(Stage("map", (p.key,)))

    def _joins(self, plan: StitchPlan, stage: Stage, p: Piece) -> bool:
        first = plan.pieces[stage.pieces[0]]
        if [s.extent for s in first.region] != [s.extent for s in p.region] or len(first.region) != len(p.region):
            return False
        here = {plan.pieces[k].value: k for k in stage.pieces}
        if not p.region or any(a.offset != b.offset for a, b in zip(first.region, p.region, strict=True)):
            return False
        if not self._ends_with(plan, p, first):
            return False
        axes = self.axes(p.value)
        for value, index in self.touches(p.value):
            if value not in here:
                continue
            if plan.pieces[here[value]].region != p.region or any(e != axis(a) for e, a in zip(index, axes, strict=True)):
                return False
        return True

    def _ends_with(self, plan: StitchPlan, p: Piece, first: Piece) -> bool:
        """Whether a piece reaches beyond its value where the first piece of a stage does, whose bounds hold for all of the stage.

            first: rows tile0 of 3   piece: rows tile0 of 9 (a concatenation)   ->   blocks 3 to 8 compute the piece alone
        """
        mine, other = (self.graph.type_of(x.value).shape[:len(first.region)] for x in (p, first))
        if mine == other:
            return True
        points = tuple(axis(str(d)) for d in range(len(first.region)))
        grid = dict(plan.grid)
        return inside(p.region[:len(points)], points, mine, grid) == inside(first.region, points, other, grid)

    def _mark_stored(self, plan: StitchPlan, users: dict[int, list[int]], in_registers: set[int]) -> None:
        """Pieces read by later stages are stored; the others pass through registers."""
        home = {k: n for n, s in enumerate(plan.stages) for k in (*s.pieces, *s.products)}
        for p in list(plan.pieces):
            if p.kind == "copy" and p.key not in home:
                plan.pieces[p.key] = p.but(stored=False)
                continue
            stored = p.key not in in_registers and any(home[u] != home[p.key] for u in users[p.key] if u in home)
            if stored is not p.stored:
                plan.pieces[p.key] = p.but(stored=stored)
