"""Random sums of products in all forms that the recogniser knows, and the value of a recognised contraction by numpy's einsum.

All values are small whole numbers, so that every order of adding gives the same bits.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import numpy as np

from tilefuse.domain.sum_of_products import Axes, SumOfProducts
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.building.build import GraphBuilder
from tilefuse.ir.dtype import BF16, F16, F32, F64, I32, compute_dtype
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import Bound, Expr, Guard, Index, Read, call, cast, const
from tilefuse.ir.verify import verify

EXTENTS = (1, 1, 2, 3, 3, 4, 5, 7)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class _Maker:
    """One sum in the making: its axes, and factors over some of them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.build = GraphBuilder("sums")
        zero = (0,) if random.random() < 0.05 else ()
        groups = [[f"{name}{n}" for n in range(random.choice(counts))]
                  for name, counts in (("b", (0, 0, 1, 2)), ("r", (1, 1, 2)), ("c", (1, 1, 2)), ("k", (1, 1, 2)))]
        self.batch, self.rows, self.columns, self.inner = groups
        self.extents = {a: random.choice((*EXTENTS, *zero)) for group in groups for a in group}
        self.axes = [*self.batch, *self.rows, *self.columns]
        random.shuffle(self.axes)
        random.shuffle(self.inner)
        self.stored = random.choice((F32, F32, F64, F16, BF16, I32))
        self.bounds: list[Bound] = []

    def subscript(self, dims: list[str]) -> tuple[Affine, int, tuple[Bound, ...]]:
        """The subscript of one dimension over one or two axes, its extent, and the bounds that keep it in range."""
        random = self.random
        if len(dims) == 2:
            # A window: the place and the tap share a dimension, with padding in front.
            low = random.randint(0, 2)
            e = axis(dims[0]) * random.randint(1, 2) + axis(dims[1]) - low
            extent = random.randint(1, 6)
            return e, extent, (Bound(e, 0, extent),)
        n = self.extents[dims[0]]
        step, offset = random.choice((1, 1, 1, 2)), random.choice((0, 0, 1))
        if random.random() < 0.15 and n > 0:
            return number(n - 1) - axis(dims[0]), n, ()
        return axis(dims[0]) * step + offset, max(n, 1) * step + offset, ()

    def factor(self, axes: list[str], windows: bool) -> tuple[Expr, list[Bound]]:
        """A read over these axes, in any order, possibly through windows, a map, or a function of positions."""
        random, axes = self.random, list(axes)
        random.shuffle(axes)
        groups: list[list[str]] = [[a] for a in axes]
        if windows and len(axes) > 1 and random.random() < 0.5:
            groups = [axes[:2], *([a] for a in axes[2:])]
        subscripts = [self.subscript(g) for g in groups]
        name = self.build.input(f"x{len(self.build.inputs)}", self.stored, tuple(n for _, n, _ in subscripts))
        bounds = [b for _, _, some in subscripts for b in some]
        e: Expr = Read(name, tuple(s for s, _, _ in subscripts))
        work = compute_dtype(self.stored)
        if self.stored != work:
            e = cast(e, work)
        if bounds and random.random() < 0.5:
            e, bounds = Guard(tuple(bounds), e, const(0, work)), []
        elif random.random() < 0.2:
            e = call("abs", e)
        if random.random() < 0.1:
            e = call("mul", e, cast(Index(axis(axes[0])), work))
        return e, bounds

    def product(self) -> Expr:
        """left * right, perhaps with a third factor, a number or a sign, under conditions."""
        random, work = self.random, compute_dtype(self.stored)
        left, own = self.factor([*self.batch, *self.rows, *self.inner], True)
        right, others = self.factor([*self.batch, *self.columns, *self.inner], random.random() < 0.3)
        factors = [left, right]
        if random.random() < 0.2:
            factors.append(self.factor(random.sample(self.inner, 1), False)[0])
        if random.random() < 0.2:
            factors.append(const(random.choice((2, -1, 3)), work))
        random.shuffle(factors)
        e = factors[0]
        for other in factors[1:]:
            e = call("mul", e, other) if random.random() < 0.5 else call("mul", other, e)
        if work.is_float and random.random() < 0.1:
            e = call("div", e, const(2, work))
        e = call("neg", e) if random.random() < 0.1 else e
        bounds = [*own, *others]
        if random.random() < 0.2:
            bounds.append(Bound(axis(self.rows[0]) - axis(self.inner[0]), 0, 1 << 40))
        if not bounds:
            return e
        if len(bounds) == 1 and bounds[0].high > 1 << 30 and random.random() < 0.5:
            e_at = call("ge", Index(axis(self.rows[0])), Index(axis(self.inner[0])))
            return call("select", e_at, e, const(0, work))
        return Guard(tuple(bounds), e, const(0, work))

    def through_map(self, body: Expr) -> Expr:
        """The body as a map's element, stored in the operands' type, as hand-written broadcasting products are."""
        random, work = self.random, compute_dtype(self.stored)
        names = [*self.axes, *self.inner]
        random.shuffle(names)
        stored = cast(body, self.stored) if self.stored != work else body
        product = self.build.map("m", self.stored, [self.extents[a] for a in names], names, stored)
        read: Expr = Read(product, tuple(map(axis, names)))
        return cast(read, work) if self.stored != work else read


def random_sum(random: Random) -> Graph:
    """A graph that ends in a sum of products, perhaps converted and permuted."""
    maker = _Maker(random)
    work, build = compute_dtype(maker.stored), maker.build
    body = maker.product()
    if random.random() < 0.6:
        body = maker.through_map(body)
    over = [(a, maker.extents[a]) for a in maker.inner]
    total = build.add_reduction("s", "sum", work, [maker.extents[a] for a in maker.axes], maker.axes, over, body)
    if maker.stored != work and random.random() < 0.7:
        order = random.sample(maker.axes, len(maker.axes))
        converted = cast(Read(total, tuple(map(axis, maker.axes))), maker.stored)
        total = build.map("y", maker.stored, [maker.extents[a] for a in order], order, converted)
    return build.finish([total])


class _Tree:
    """A sum of an arbitrary expression of a few reads: products in any order, maps, guards and conversions at any depth."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.build = GraphBuilder("trees")
        self.extents = {a: random.choice((1, 2, 3, 4)) for a in "ijkl"[:random.randint(3, 4)]}
        self.names = list(self.extents)
        self.stored = random.choice((F32, F32, BF16, I32))
        self.work = compute_dtype(self.stored)

    def read(self) -> Expr:
        """Of a new input over some of the axes."""
        axes = self.random.sample(self.names, self.random.randint(0, len(self.names)))
        name = self.build.input(f"x{len(self.build.inputs)}", self.stored, [self.extents[a] for a in axes])
        return self.widened(Read(name, tuple(map(axis, axes))))

    def widened(self, e: Expr) -> Expr:
        return cast(e, self.work) if self.stored != self.work else e

    def expression(self, depth: int) -> Expr:
        """A tree of this depth at most."""
        choice = self.random.random() if depth else 1.0
        if choice < 0.55:
            return call("mul", self.expression(depth - 1), self.expression(depth - 1))
        if choice < 0.62:
            return call(self.random.choice(("add", "sub")), self.expression(depth - 1), self.expression(depth - 1))
        if choice < 0.68:
            return call("neg", self.expression(depth - 1))
        if choice < 0.76:
            a, b = self.random.sample(self.names, 2)
            bounds = (Bound(axis(a) - axis(b), self.random.randint(-2, 0), self.random.randint(1, 3)),)
            return Guard(bounds, self.expression(depth - 1), const(self.random.choice((0, 0, 0, 1)), self.work))
        if choice < 0.9:
            return self.in_a_map(self.expression(depth - 1))
        return self.read() if choice < 0.95 or depth == 0 else const(self.random.choice((-1, 2)), self.work)

    def in_a_map(self, e: Expr) -> Expr:
        """The expression as the element of a map, whose axes may have other names."""
        own = self.random.sample(self.names, len(self.names))
        body = cast(e, self.stored) if self.stored != self.work else e
        name = self.build.map("m", self.stored, [self.extents[a] for a in own], own, body)
        return self.widened(Read(name, tuple(map(axis, own))))


def random_tree(random: Random) -> Graph:
    """A graph that ends in the sum of an arbitrary expression over one or two axes; its maps may be results too."""
    tree = _Tree(random)
    body = tree.expression(4)
    over = random.sample(tree.names, random.randint(1, 2))
    axes = [a for a in tree.names if a not in over]
    random.shuffle(axes)
    shape = [tree.extents[a] for a in axes]
    total = tree.build.add_reduction("s", "sum", tree.work, shape, axes, [(a, tree.extents[a]) for a in over], body)
    return tree.build.finish([total, *(n.name for n in tree.build.nodes[:-1] if random.random() < 0.2)])


def value_of(contraction: SumOfProducts, graph: Graph, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The contraction by `numpy.einsum` in f64 over gathered operands, and the same sum of magnitudes."""
    letter = {a: LETTERS[n] for n, a in enumerate(dict.fromkeys([*contraction.axes, *(a for a, _ in contraction.inner)]))}
    extents: dict[str, int] = {}
    for axes in (contraction.batch, contraction.rows, contraction.columns, contraction.repeated, contraction.inner):
        extents |= dict(axes)
    whole: Axes = tuple((a, extents[a]) for a in letter)
    shape = tuple(e for _, e in whole)
    parts = [contraction.left.node("left_"), contraction.right.node("right_"),
             Node("mask_", Type(F64, shape), "map", tuple(letter), body=Guard(contraction.bounds, const(1, F64), const(0, F64)))]
    if contraction.scale is not None:
        parts.append(Node("scale_", Type(contraction.left.dtype, ()), "map", body=contraction.scale))
    if contraction.addend is not None:
        result_shape = tuple(extents[a] for a in contraction.axes)
        parts.append(Node("addend_", Type(contraction.left.dtype, result_shape), "map", contraction.axes, body=contraction.addend))
    wide = replace(graph, nodes=(*graph.nodes, *parts), results=tuple(p.name for p in parts), updates=())
    assert not verify(wide)
    values = {p.name: np.asarray(v).astype(np.float64) for p, v in zip(parts, interpret(wide, inputs), strict=True)}
    spec = ",".join("".join(letter[a] for a in p.axes) for p in parts[:3]) + "->" + "".join(letter[a] for a in contraction.axes)
    scale, addend = values.get("scale_", np.float64(1)), values.get("addend_", np.float64(0))
    factors = [values[p.name] for p in parts[:3]]
    total = np.einsum(spec, *factors) * scale + addend
    return total, np.einsum(spec, *map(np.abs, factors)) * np.abs(scale) + np.abs(addend)
