"""Random small graphs over all node kinds, and inputs for them. Every graph verifies.

`random_graph(random.Random(seed))` is a plain seeded generator; `graphs()` is the hypothesis strategy, which shrinks.
Exact graphs hold small integers and use functions without rounding, and clamp every node, so that any order of combination
gives the same bits. Other graphs add smooth functions in f32 and f64; there executors may differ by rounding.
"""
from __future__ import annotations

from collections.abc import Mapping
from math import prod
from random import Random

import numpy as np
from hypothesis import strategies as st

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.building.build import GraphBuilder, axis_names
from tilefuse.ir.dtype import BOOL, DTYPES, F32, I64, DType, compute_dtype
from tilefuse.ir.graph import REDUCE_MONOIDS, SCAN_MONOIDS, Graph
from tilefuse.ir.monoids import MONOIDS
from tilefuse.ir.ops import OPERAND_CLASSES
from tilefuse.ir.scalar import NUMPY_DTYPES, Bound, Expr, Guard, Index, Lookup, Read, call, cast, const

STORED = ("f32", "f32", "f16", "bf16", "f64", "i32", "i64", "u8", "i8", "bool")
COMPUTED = ("f32", "f32", "f64", "i32", "i64", "bool")
KINDS = ("map", "map", "map", "reduce", "reduce", "scan", "gather", "scatter")
LIMIT = 6  # magnitude of every value in an exact graph: sums and products of a few stay exact even in bf16 after clamping
NUMBER_FUNCTIONS = ("add", "sub", "minimum", "maximum", "fmin", "fmax")
INT_FUNCTIONS = ("floordiv", "truncdiv", "mod", "fmod", "bit_and", "bit_or", "bit_xor")
SMOOTH_FUNCTIONS = ("tanh", "sigmoid", "sin", "cos", "erf", "atan")


class _Maker:
    """One graph in the making. `exact` names the values that hold exactly representable small integers."""

    def __init__(self, random: Random, exact: bool) -> None:
        self.random = random
        self.smooth_allowed = not exact
        self.build = GraphBuilder("random")
        self.exact: set[str] = set()

    # -- subscripts

    def subscript(self, extents: Mapping[str, int], limit: int) -> Affine | None:
        """An index expression in 0 .. limit - 1 on the whole domain; None where no shape of it fits."""
        choices = [number(self.random.randrange(limit))]
        for name, extent in extents.items():
            last = extent - 1
            if last < limit:
                room = limit - 1 - last
                choices += [axis(name) + self.random.randint(0, room)] * 3
                choices.append(last - axis(name) + self.random.randint(0, room))
            if 2 * last < limit:
                choices.append(axis(name) * 2)
            choices.append(axis(name) // self.random.randint(1, 4) if last < limit else axis(name) % limit)
        pairs = [(a, b) for a in extents for b in extents if a != b and extents[a] * extents[b] <= limit]
        if pairs:
            a, b = self.random.choice(pairs)
            choices += [axis(a) * extents[b] + axis(b)] * 4
        return self.random.choice(choices)

    def read(self, value: str, extents: Mapping[str, int]) -> Expr:
        """A read in range, or now and then one guarded by its own range."""
        shape = self.build.type_of(value).shape
        index = [self.subscript(extents, extent) for extent in shape]
        if not shape or not extents or self.random.random() < 0.8:
            return Read(value, tuple(index))
        d = self.random.randrange(len(shape))
        name = self.random.choice(list(extents))
        index[d] = axis(name) * self.random.choice((1, 1, 2)) + self.random.randint(-3, 3)
        outside = const(self.random.randint(0, 3), self.build.type_of(value).dtype)
        return Guard((Bound(index[d], 0, shape[d]),), Read(value, tuple(index)), outside)

    # -- expressions

    def leaf(self, dtype: DType, extents: Mapping[str, int], exact: bool) -> Expr:
        values = [v for v, t in self.build.types.items() if 0 not in t.shape and (not exact or v in self.exact)]
        if values and self.random.random() < 0.8:
            value = self.random.choice(values)
            stored = self.build.type_of(value).dtype
            if value in self.exact or dtype.is_float:
                read = self.read(value, extents)
                return read if stored == dtype else cast(read, dtype)
        if extents and self.random.random() < 0.4:
            return cast(Index(axis(self.random.choice(list(extents)))), dtype) if dtype != I64 else Index(axis(next(iter(extents))))
        return const(self.random.randint(-3, 3), dtype) if dtype != BOOL else const(self.random.random() < 0.5, dtype)

    def expr(self, dtype: DType, extents: Mapping[str, int], depth: int, exact: bool) -> Expr:
        """An expression of an arithmetic dtype. `exact`: only of exact values and functions."""
        random = self.random
        if depth == 0:
            return self.leaf(dtype, extents, exact)
        if dtype == BOOL:
            kind = random.choice(("compare", "compare", "logic", "not"))
            if kind == "compare":
                of = DTYPES[random.choice(("f32", "i64", "i32"))]
                sides = [self.expr(of, extents, depth - 1, True) for _ in range(2)]
                return call(random.choice(("eq", "ne", "lt", "le", "gt", "ge")), *sides)
            if kind == "not":
                return call("logical_not", self.expr(BOOL, extents, depth - 1, True))
            logic = random.choice(("logical_and", "logical_or", "logical_xor"))
            return call(logic, *(self.expr(BOOL, extents, depth - 1, True) for _ in "ab"))
        pick = random.random()
        if pick < 0.15:
            condition = self.expr(BOOL, extents, depth - 1, True)
            return call("select", condition, self.expr(dtype, extents, depth - 1, exact), self.expr(dtype, extents, depth - 1, exact))
        if pick < 0.25 and extents:
            tested = axis(random.choice(list(extents)))
            bound = Bound(tested, random.randint(0, 2), random.randint(1, 4))
            return Guard((bound,), self.expr(dtype, extents, depth - 1, exact), self.expr(dtype, extents, depth - 1, exact))
        if pick < 0.4:
            return call(random.choice(("neg", "abs", "sign")), self.expr(dtype, extents, depth - 1, exact))
        if pick < 0.55:
            return call("mul", self.expr(dtype, extents, 0, exact), self.expr(dtype, extents, depth - 1, exact))
        if pick < 0.7 and dtype.is_integer:
            return call(random.choice(INT_FUNCTIONS), *(self.expr(dtype, extents, depth - 1, exact) for _ in "ab"))
        if pick < 0.8 and dtype.is_float and not exact and self.smooth_allowed:
            return call(random.choice(SMOOTH_FUNCTIONS), self.expr(dtype, extents, depth - 1, exact))
        return call(random.choice(NUMBER_FUNCTIONS), *(self.expr(dtype, extents, depth - 1, exact) for _ in "ab"))

    def clamped(self, e: Expr, dtype: DType, limit: int = LIMIT) -> Expr:
        """Keeps a node's values small, so that exact graphs stay exact and no sum overflows."""
        if dtype == BOOL:
            return e
        return call("minimum", call("maximum", e, const(-limit, dtype)), const(limit, dtype))

    # -- nodes

    def shape(self, max_rank: int = 3) -> tuple[int, ...]:
        return tuple(self.random.choice((1, 2, 3, 4, 5, 6)) for _ in range(self.random.randint(0, max_rank)))

    def body(self, extents: Mapping[str, int], limit: int = LIMIT, dtypes: tuple[str, ...] = COMPUTED) -> tuple[Expr, DType, bool]:
        """A clamped body, its dtype, and whether it is exact."""
        dtype = DTYPES[self.random.choice(dtypes)]
        exact = not dtype.is_float or not self.smooth_allowed or self.random.random() < 0.5
        return self.clamped(self.expr(dtype, extents, self.random.randint(1, 3), exact), dtype, limit), dtype, exact

    def stored(self, e: Expr, dtype: DType, exact: bool) -> tuple[Expr, DType]:
        """Now and then narrowed to a storage type of the same kind; inexact values stay wide, where a unit in the last place is small."""
        to = DTYPES[self.random.choice(STORED)]
        if to == dtype or to.kind != dtype.kind or not exact or compute_dtype(to) != dtype:
            return e, dtype
        return cast(e, to), to

    def map(self, gather: bool) -> tuple[str, bool]:
        shape = self.shape()
        axes = axis_names(len(shape))
        extents = dict(zip(axes, shape, strict=True))
        e, dtype, exact = self.body(extents)
        if gather:
            value = self.random.choice([v for v in self.build.types if v in self.exact])
            at = tuple(self.expr(I64, extents, 1, True) for _ in self.build.type_of(value).shape)
            found = Lookup(value, at) if self.build.type_of(value).dtype == dtype else cast(Lookup(value, at), dtype)
            e = self.clamped(call("add", e, found), dtype) if dtype != BOOL else found
        e, dtype = self.stored(e, dtype, exact)
        return self.build.map("y", dtype, shape, axes, e), exact

    def reduce(self) -> tuple[str, bool]:
        shape = self.shape(2)
        axes = axis_names(len(shape))
        over = tuple((f"r{n}", self.random.choice((1, 2, 3, 4, 5, 7))) for n in range(self.random.randint(1, 2)))
        monoid = self.random.choice([m for m in REDUCE_MONOIDS if m != "m2" or self.smooth_allowed])
        if monoid == "prod" and prod(extent for _, extent in over) > 7:
            monoid = "sum"
        names = tuple(t for t in COMPUTED if t in OPERAND_CLASSES[MONOIDS[monoid].operands])
        e, dtype, exact = self.body(dict(zip(axes, shape, strict=True)) | dict(over), 3 if monoid == "prod" else LIMIT, names)
        if monoid.startswith("arg") and not exact:
            monoid = "max"
        result = MONOIDS[monoid].result(dtype)
        name = self.build.add_reduction("s", monoid, result, shape, axes, over, e)
        return name, exact and monoid != "m2"

    def scan(self) -> tuple[str, bool]:
        shape = self.shape() or (4,)
        axes = axis_names(len(shape))
        monoid = self.random.choice([m for m in SCAN_MONOIDS if m != "logaddexp" or self.smooth_allowed])
        limit, names = (3 if monoid == "prod" else LIMIT), ("f32", "f64") if monoid == "logaddexp" else ("f32", "f64", "i32", "i64")
        e, dtype, exact = self.body(dict(zip(axes, shape, strict=True)), limit, names)
        return self.build.add_scan("c", monoid, dtype, shape, axes, self.random.choice(axes), e), exact and monoid != "logaddexp"

    def scatter(self) -> tuple[str, bool] | None:
        """Combining scatters hit any place; `set` goes to distinct places only, since their order is not defined."""
        bases = [v for v, t in self.build.types.items() if t.shape and v in self.exact and t.dtype.is_arithmetic and t.dtype != BOOL]
        if not bases:
            return None
        base = self.random.choice(bases)
        kind = self.build.type_of(base)
        monoid = self.random.choice(("set", "sum", "sum", "max", "min"))
        if monoid == "set":
            over = tuple(zip(axis_names(len(kind.shape)), kind.shape, strict=True))
            target: tuple[Expr, ...] = tuple(Index(axis(name) + self.random.randint(-1, 1)) for name, _ in over)
        else:
            shape = self.shape() or (5,)
            over = tuple(zip(axis_names(len(shape)), shape, strict=True))
            target = tuple(self.expr(I64, dict(over), 1, True) for _ in kind.shape)
        e = self.clamped(self.expr(kind.dtype, dict(over), 2, True), kind.dtype)
        return self.build.add_scatter("t", monoid, base, over, target, e), True


def random_graph(random: Random, *, num_nodes: int = 6, exact: bool = True, kinds: tuple[str, ...] = KINDS) -> Graph:
    """A verified graph of up to `num_nodes` nodes; results are the values nothing uses, and a few others."""
    maker = _Maker(random, exact)
    for n in range(random.randint(1, 3)):
        dtype = DTYPES[random.choice(STORED)] if n else F32
        maker.exact.add(maker.build.input(f"x{n}", dtype, maker.shape() or (4,)))
    for _ in range(random.randint(1, num_nodes)):
        kind = random.choice(kinds)
        if kind in ("map", "gather"):
            made = maker.map(kind == "gather")
        else:
            made = maker.reduce() if kind == "reduce" else maker.scan() if kind == "scan" else maker.scatter()
        if made is None:
            continue
        name, is_exact = made
        if is_exact:
            maker.exact.add(_small(maker, name))
    graph = maker.build.finish([])
    results = [n.name for n in graph.nodes if not graph.users_by_name[n.name] or random.random() < 0.2]
    return maker.build.finish(results)


def _small(maker: _Maker, name: str) -> str:
    """A clamped copy of a value that may have grown (sums, scans, scatters); the value itself where its kind clamps."""
    made = maker.build.type_of(name)
    if name.startswith("y") or made.dtype == BOOL:
        return name
    axes = axis_names(len(made.shape))
    read = Read(name, tuple(axis(a) for a in axes))
    return maker.build.map("y", made.dtype, made.shape, axes, maker.clamped(read, made.dtype))


def random_inputs(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Small integers for every input, in its dtype. Exact in all of them."""
    generator = np.random.default_rng(seed)
    drawn = {}
    for item in graph.inputs:
        low = 0 if item.type.dtype.kind in ("uint", "bool") else -3
        high = 1 if item.type.dtype == BOOL else 3
        drawn[item.name] = generator.integers(low, high, item.type.shape, endpoint=True).astype(NUMPY_DTYPES[item.type.dtype.name])
    return drawn


@st.composite
def graphs(draw: st.DrawFn, num_nodes: int = 6, exact: bool = True, kinds: tuple[str, ...] = KINDS) -> Graph:
    """Strategy: verified random graphs that shrink toward few nodes and small shapes."""
    return random_graph(draw(st.randoms(use_true_random=False)), num_nodes=num_nodes, exact=exact, kinds=kinds)
