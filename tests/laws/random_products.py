"""Random small graphs with matrix products among maps, views and reductions, and inputs for them: what stitched kernels are drawn from.

All values are small whole numbers and every node but a product is clamped, so that any order of combination gives the same bits.
"""
from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F16, F32, I64
from tilefuse.ir.graph import Graph
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.passes import DEFAULT_PIPELINE
from tilefuse.passes.manager import PassContext, Pipeline
from tilefuse.templates.staged.stitched.record import Stitched

LIMIT = 4
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 16, 24)
FUNCTIONS = ("add", "sub", "mul", "maximum", "minimum")
MOST_BYTES = 4096


class _Maker:
    """One graph in the making; `values` can be read by further nodes."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.dtype = random.choice((F32, F32, F16))
        self.build = TensorBuilder("products")
        self.lead = random.choice(((), (), (2,), (3,)))
        self.values: list[str] = []
        self.num_products = 0

    def input(self, *shape: int) -> str:
        lead = self.lead if self.random.random() < 0.7 else (1,) * len(self.lead)
        return self.build.input(f"a{len(self.build.inputs)}", self.dtype, (*lead, *shape))

    def clamped(self, x: str) -> str:
        ones = (1,) * len(self.build.shape_of(x))
        return self.build.clamp(x, *(self.build.full(ones, float(v), self.dtype) for v in (-LIMIT, LIMIT)))

    def product(self) -> str:
        """Of an earlier value and a new input or another value; the sums stay as they are."""
        b, random = self.build, self.random
        x = random.choice(self.values)
        turned_a, turned_b = random.random() < 0.25, random.random() < 0.5
        inner = b.shape_of(x)[-2 if turned_a else -1]
        others = [y for y in self.values if b.shape_of(y)[-1 if turned_b else -2] == inner]
        if others and random.random() < 0.4:
            y = random.choice(others)
        else:
            columns = random.choice(EXTENTS)
            y = self.input(*((columns, inner) if turned_b else (inner, columns)))
        self.num_products += 1
        product = b.matmul(x, y, transpose_a=turned_a, transpose_b=turned_b)
        if random.random() < 0.7:
            return product
        rows, columns = b.shape_of(product)[-2:]
        bias = random.choice(((), (columns,), (1, columns), (rows, 1), (rows, columns), b.shape_of(product)))
        attributes = {"transpose_a": turned_a, "transpose_b": turned_b, "precision": "default", "has_bias": True}
        operands = x, y, b.input(f"a{len(b.inputs)}", self.dtype, bias)
        return b.library("addmm", "matmul", b.types[product], operands, attributes)

    def map(self, x: str) -> str:
        """Of two values whose shapes can be broadcast, or a value and its own reduction."""
        b, random = self.build, self.random
        same = [y for y in self.values if all(m in (n, 1) for m, n in zip(b.shape_of(y)[-2:], b.shape_of(x)[-2:], strict=True))]
        return b.elementwise(random.choice(FUNCTIONS), x, random.choice(same))

    def reduction(self, x: str) -> str:
        """Over rows, columns or both, dimensions kept."""
        rank = len(self.build.shape_of(x))
        axes = self.random.choice(((rank - 1,), (rank - 1,), (rank - 2,), (rank - 2, rank - 1), tuple(range(rank))))
        return self.build.reduce(x, self.random.choice(("sum", "max", "min")), axes, keepdims=True)

    def view(self, x: str) -> str:
        """A part, a transposed copy, a padded one, a triangle, two values side by side."""
        b, random = self.build, self.random
        shape = b.shape_of(x)
        kind = random.choice(("slice", "transpose", "pad", "triangle", "masked", "concatenation"))
        if kind == "concatenation":
            at = random.choice((len(shape) - 2, len(shape) - 2, len(shape) - 1))
            beside = [y for y in self.values if all(m == n or d == at for d, (m, n) in enumerate(zip(b.shape_of(y), shape, strict=True)))]
            return b.concatenate(random.sample([x, *random.choices(beside, k=random.randint(1, 2))], k=2), at)
        if kind == "slice" and shape[-1] > 1:
            start = random.randrange(shape[-1])
            stop = random.randint(start + 1, shape[-1])
            zeros = [0] * (len(shape) - 1)
            return b.slice(x, [*zeros, start], [*shape[:-1], stop], [1] * len(shape))
        if kind == "transpose":
            return b.transpose(x, len(shape) - 1, len(shape) - 2)
        if kind == "pad":
            return b.pad(x, [(0, 0)] * (len(shape) - 2) + [(random.randint(0, 2), 1), (1, random.randint(0, 3))], "constant", 1.0)
        if kind == "masked":
            ones = (1,) * (len(shape) - 2)
            seen = b.elementwise("ge", *(b.iota((*ones, *shape[-2:]), len(shape) - d, I64) for d in (2, 1)))
            return b.where(seen, x, b.full((1,) * len(shape), 2.0, self.dtype))
        return b.tril(x, random.randint(-1, 1))

    def graph(self) -> Graph:
        """A graph of a few nodes with at least one product."""
        random = self.random
        self.values = [self.input(random.choice(EXTENTS), random.choice(EXTENTS))]
        count = random.randint(2, 7)
        for n in range(count):
            if self.num_products < 3 and (random.random() < 0.4 or not self.num_products):
                made = self.product()
            else:
                x = random.choice(self.values[-2:])
                made = random.choice((self.map, self.map, self.reduction, self.view))(x)
            # Products of 24 terms of 4 * 4 are exact in f16 too; nothing is made of them before they are clamped.
            self.values.append(made if n == count - 1 and random.random() < 0.3 else self.clamped(made))
        results = [self.values[-1], *random.sample(self.values[1:-1], random.randint(0, min(2, len(self.values) - 2)))]
        return Pipeline.parse(DEFAULT_PIPELINE).run(self.build.finish(list(dict.fromkeys(results))), PassContext())


def random_products(random: Random) -> Graph:
    """A random graph with products."""
    return _Maker(random).graph()


def random_layers(random: Random) -> Graph:
    """A residual network of several steps: each subtracts what its rows reduce to, multiplies, and adds to the sum of the steps before.

    The products see rows and columns only, or all leading dimensions as one.
    """
    maker = _Maker(random)
    b, lead = maker.build, random.choice((1, 1, 2, 3))
    rows, width = random.choice((2, 4, 5, 8)), random.choice((4, 5, 8, 12, 16))
    x = b.input("x", maker.dtype, (lead, rows, width))
    for n in range(random.randint(4, 7)):
        reduced = maker.clamped(b.reduce(x, random.choice(("sum", "max", "min")), (2,), keepdims=True))
        y = b.reshape(maker.clamped(b.elementwise("sub", x, reduced)), [lead * rows, width])
        hidden = random.choice((width, width, 8))
        y = maker.clamped(b.matmul(y, b.input(f"w{n}", maker.dtype, (width, hidden))))
        if hidden != width or random.random() < 0.3:
            y = maker.clamped(b.matmul(y, b.input(f"v{n}", maker.dtype, (hidden, width))))
        x = maker.clamped(b.elementwise("add", x, b.reshape(y, [lead, rows, width])))
    last = b.matmul(b.reshape(x, [lead * rows, width]), b.input("u", maker.dtype, (width, random.choice(EXTENTS))))
    return Pipeline.parse(DEFAULT_PIPELINE).run(b.finish([maker.clamped(last)]), PassContext())


def random_wide_layers(random: Random) -> Graph:
    """Layers of rows and widths that matrix instructions cover, with reductions and residuals between them."""
    maker = _Maker(random)
    b, rows = maker.build, random.choice((16, 20, 32, 48))
    x = b.input("x", maker.dtype, (rows, random.choice((32, 64, 128))))
    for n in range(random.randint(2, 4)):
        width, columns = b.shape_of(x)[-1], random.choice((16, 32, 32, 64))
        turned = random.random() < 0.5
        y = b.matmul(x, b.input(f"w{n}", maker.dtype, (columns, width) if turned else (width, columns)), transpose_b=turned)
        if random.random() < 0.4:
            y = b.elementwise("mul", maker.clamped(y), maker.clamped(b.matmul(x, b.input(f"v{n}", maker.dtype, (width, columns)))))
        y = maker.clamped(y)
        if random.random() < 0.4:
            y = maker.clamped(b.elementwise("sub", y, maker.clamped(b.reduce(y, random.choice(("sum", "max")), (1,), keepdims=True))))
        x = maker.clamped(b.elementwise("add", x, y)) if width == columns and random.random() < 0.5 else y
    last = b.input("u", maker.dtype, (b.shape_of(x)[-1], random.choice((5, 8, 16, 24))))
    return Pipeline.parse(DEFAULT_PIPELINE).run(b.finish([maker.clamped(b.matmul(x, last))]), PassContext())


def random_joins(random: Random) -> Graph:
    """Products and reductions of unlike heights one above the other, in any order: no two end at the same block."""
    maker = _Maker(random)
    b = maker.build
    width, columns = random.choice(EXTENTS), random.choice((1, 3, 4, 8))
    made = []
    for n in range(random.randint(2, 4)):
        rows = random.choice((1, 2, 3, 3, 4, 5))
        if random.random() < 0.75:
            x = b.matmul(b.input(f"x{n}", maker.dtype, (rows, width)), b.input(f"w{n}", maker.dtype, (width, columns)))
        else:
            x = b.reduce(b.input(f"x{n}", maker.dtype, (rows, columns, width)), random.choice(("sum", "max")), (2,), keepdims=False)
        made.append(maker.clamped(x) if random.random() < 0.3 else x)
    random.shuffle(made)
    joined = b.concatenate(made, 0)
    results = [joined, *random.sample(made, random.randint(0, 1))]
    if random.random() < 0.3:
        results.append(b.reduce(maker.clamped(joined), "max", (1,), keepdims=True))
    return Pipeline.parse(DEFAULT_PIPELINE).run(b.finish(results), PassContext())


def random_tiles(random: Random, shape: Sequence[int]) -> Stitched:
    """Any tile of a shape: leading dimensions one by one or together, rows and columns whole or cut anywhere."""
    return Stitched(tuple(random.choice((1, n, random.randint(1, n))) for n in shape), random.choice((32, 64, 128)),
                    random.choice((0, 0, 1, 2, 5)))


def product_inputs(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Whole numbers from -2 to 2."""
    draw = np.random.default_rng(seed)
    return {i.name: draw.integers(-2, 3, i.type.shape).astype(NUMPY_DTYPES[i.type.dtype.name]) for i in graph.inputs}
