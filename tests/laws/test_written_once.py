"""Writes of one kernel to a value and to a view of it: every element of both, each once, whatever the view does, at every size.

    r = exp(x);   y = a view of r, plus one, or summed along its last axis        both are results
"""
from __future__ import annotations

from collections.abc import Callable
from math import prod
from random import Random

import numpy as np
import pytest

from tests.unit.templates.stitched_graphs import normal
from tilefuse.base.candidate import Rejected
from tilefuse.domain.domain import find_domain
from tilefuse.domain.resolved import Domain
from tilefuse.ir.affine import evaluate
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph

View = Callable[[TensorBuilder, str], str]
GRAPHS = 150


def halved(b: TensorBuilder, v: str) -> str:
    """The first half of the last axis, each element twice."""
    *lead, n = b.shape_of(v)
    if n % 2:
        return v
    half = b.slice(v, [0] * (len(lead) + 1), [*lead, n // 2], [1] * (len(lead) + 1))
    wide = b.broadcast_to(b.reshape(half, (*lead, n // 2, 1)), (*lead, n // 2, 2))
    return b.reshape(wide, (*lead, n))


def shuffled(random: Random) -> View:
    """The last axis as two, turned."""
    def view(b: TensorBuilder, v: str) -> str:
        *lead, n = b.shape_of(v)
        by = random.choice([k for k in range(1, n + 1) if n % k == 0])
        at = len(lead)
        parts = b.reshape(v, (*lead, by, n // by))
        return b.reshape(b.permute(parts, (*range(at), at + 1, at)), (*lead, n))
    return view


def turned(random: Random) -> View:
    """The axes but the first in another order."""
    def view(b: TensorBuilder, v: str) -> str:
        rank = len(b.shape_of(v))
        return b.permute(v, (0, *random.sample(range(1, rank), rank - 1)))
    return view


def cut(random: Random) -> View:
    """The axes but the first reshaped."""
    def view(b: TensorBuilder, v: str) -> str:
        first, *rest = b.shape_of(v)
        n = prod(rest)
        by = random.choice([k for k in range(1, n + 1) if n % k == 0])
        return b.reshape(v, (first, by, n // by))
    return view


def turned_back(b: TensorBuilder, v: str) -> str:
    """The last axis from its end."""
    return b.flip(v, [len(b.shape_of(v)) - 1])


def graph_of(random: Random, scale: int) -> Graph:
    """A value and a view of it. The first axis is `scale` times as long as drawn; no view touches it."""
    b = TensorBuilder("views")
    shape = (random.choice((1, 3, 4)) * scale, random.choice((1, 2, 5, 6)), random.choice((4, 6, 8, 12)))
    r = b.elementwise("exp", b.input("x", F32, shape))
    v = r
    for _ in range(random.randint(1, 3)):
        v = random.choice((shuffled(random), turned(random), cut(random), turned_back, halved))(b, v)
    last = len(b.shape_of(v)) - 1
    y = b.reduce(v, "sum", (last,)) if random.random() < 0.6 else b.elementwise("add", v, b.full((1,) * (last + 1), 1.0, F32))
    return normal(b, [r, y])


def assert_written_once(domain: Domain, graph: Graph) -> None:
    """Every result's offset takes each of its elements once while the axes that it depends on run."""
    for name, _, offset in domain.outputs:
        axes = sorted(offset.axes())
        grid = np.meshgrid(*(np.arange(domain.extents[a]) for a in axes), indexing="ij", sparse=True)
        shape = [domain.extents[a] for a in axes]
        places = np.ravel(np.broadcast_to(evaluate(offset, dict(zip(axes, grid, strict=True))), shape))
        assert sorted(places.tolist()) == list(range(graph.type_of(name).num_elements)), (name, str(offset))


@pytest.mark.parametrize("part", range(4))
def test_one_kernel_writes_every_element_once(part: int) -> None:
    """Where there is one kernel at all. The verdict is the same for a first axis that is a million times as long."""
    kernels = 0
    for seed in range(part * GRAPHS, (part + 1) * GRAPHS):
        graph, large = (graph_of(Random(seed), scale) for scale in (1, 1 << 20))
        domain = find_domain(graph, {})
        assert isinstance(find_domain(large, {}), Rejected) == isinstance(domain, Rejected), seed
        if isinstance(domain, Domain):
            kernels += 1
            assert_written_once(domain, graph)
    assert GRAPHS // 10 < kernels < GRAPHS
