"""Walks that summaries of data bound, to be run: variants of attention, tiles made by hand, data of several kinds."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tests.unit.templates.staged.walked.variants import Variant, variates
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import BF16
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.plan.pattern import Pattern
from tilefuse.plan.rewrites.mask_summaries import clauses_of, with_bounds
from tilefuse.target.device import H200
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.template import schedule_walk

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def documents(number: int) -> Draw:
    """Documents one after another, of uneven lengths that differ in every batch."""
    return lambda random, shape: np.sort(random.integers(0, number, shape), axis=-1)


def scattered(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Names in no order."""
    return random.integers(-3, 4, shape)


def runs(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Few documents whose parts lie between those of others."""
    return np.arange(shape[-1]) // 96 % 3 + np.zeros(shape, dtype=np.int64)


def one(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """One document."""
    return np.full(shape, 7)


def each(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A document for every place."""
    return np.arange(shape[-1]) + np.zeros(shape, dtype=np.int64)


def blocks(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A mask of blocks: some are full, some empty, some neither."""
    whole = np.kron(random.random((*shape[:-2], -(-shape[-2] // 50), -(-shape[-1] // 70))) < 0.4, np.ones((50, 70), dtype=bool))
    kept = np.asarray(whole[..., :shape[-2], :shape[-1]], dtype=bool)
    kept[:, :, 3] = False
    return kept


@dataclass(frozen=True)
class Bounded:
    """A variant of attention, its tiles, and its data."""

    variant: Variant
    wanted: PipelinedWalk | None
    data: Draw = documents(4)

    @cached_property
    def graphs(self) -> tuple[Graph, Graph, Graph]:
        """The definition, the summaries, and the walk that reads them."""
        graph = self.variant.graph()
        hides = "other" in self.variant.scores
        bounded, summaries = with_bounds(graph, [n.name for n in graph.nodes if clauses_of(n, graph)], hides)
        rest = tuple(n.name for n in bounded.nodes if n.name not in summaries)
        return graph, Pattern(summaries, summaries).graph(bounded), Pattern(rest, graph.results).graph(bounded)

    def program(self) -> TileProgram:
        """The tile program of the walk."""
        made = schedule_walk(self.graphs[2], {}, H200, self.wanted)
        assert isinstance(made, TileProgram), made
        return made

    def values(self) -> dict[str, np.ndarray]:
        """Seeded inputs."""
        random, drawn = np.random.default_rng(5), {}
        for v in self.graphs[0].inputs:
            shape = v.type.shape
            if v.name.startswith("documents"):
                lines = max(shape[-2:])
                x = self.data(random, (shape[0], lines)).reshape(shape)
            else:
                x = self.data(random, shape) if v.name == "kept" else variates(random, v.name, shape)
            drawn[v.name] = np.asarray(x).astype(NUMPY_DTYPES[v.type.dtype.name])
        return drawn


SMALL = PipelinedWalk(32, 1, 1, 2, 1, 3)
BOUNDED_CASES = {
    "documents, later keys hidden": Bounded(Variant(("documents",), batch=3, rows=300, keys=300), SMALL),
    "two warpgroups": Bounded(Variant(("documents",), batch=2, heads=1, rows=330, keys=330, dtype=BF16), PipelinedWalk(64, 2, 2, 2, 1, 3)),
    "documents alone": Bounded(Variant(("same",), batch=2, rows=200, keys=310, safe=True), SMALL),
    "hidden rows are NaN": Bounded(Variant(("same",), batch=2, rows=200, keys=310), SMALL, scattered),
    "rows of documents that no column has": Bounded(Variant(("same",), batch=2, rows=150, keys=310, safe=True), SMALL, documents(40)),
    "no order": Bounded(Variant(("same",), rows=200, keys=200, safe=True), SMALL, scattered),
    "parts between others": Bounded(Variant(("same", "causal"), rows=400, keys=400), SMALL, runs),
    "one document": Bounded(Variant(("documents",), rows=300, keys=300), SMALL, one),
    "a document a row": Bounded(Variant(("same",), rows=300, keys=300), PipelinedWalk(48, 1, 1, 2, 1, 2), each),
    "a document a row, three warpgroups": Bounded(Variant(("same",), heads=1, rows=450, keys=450), PipelinedWalk(64, 3, 1, 2, 1, 1), each),
    "written as hidden": Bounded(Variant(("other", "causal"), rows=300, keys=300), SMALL),
    "a window of documents": Bounded(Variant(("documents", "window"), batch=2, rows=300, keys=300, window=100), SMALL),
    "documents up to the own one": Bounded(Variant(("not_later",), batch=2, rows=200, keys=330, safe=True), SMALL),
    "in parts": Bounded(Variant(("documents",), batch=2, rows=200, keys=330, safe=True), replace(SMALL, parts=3)),
    "groups of heads, a cap": Bounded(Variant(("cap", "documents"), heads=4, group=2, rows=130, keys=300), SMALL),
    "a mask of blocks": Bounded(Variant(("hidden",), batch=2, rows=330, keys=420, safe=True), SMALL, blocks),
    "a mask of blocks through a ring": Bounded(Variant(("hidden",), batch=2, rows=330, keys=416), replace(SMALL, bias_slots=2), blocks),
}


def summarised(case: Bounded) -> dict[str, np.ndarray]:
    """The inputs and the summaries of a case."""
    _, summaries, _ = case.graphs
    values = case.values()
    return values | dict(zip(summaries.results, map(np.asarray, interpret(summaries, values)), strict=True))
