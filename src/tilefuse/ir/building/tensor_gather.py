"""Data-dependent subscripts: gathers (lookups that clamp) and scatters (writes that skip indices out of range).

With `checked`, a subscript out of range is the caller's error instead: the executors raise for it (`in_range` of the operator table).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilefuse.base.errors import ShapeError
from tilefuse.ir.affine import axis, number
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor_elementwise import broadcast_shapes, converted, normal_axis
from tilefuse.ir.building.tensor_reduce import ReduceBuilder
from tilefuse.ir.dtype import BOOL, I32, I64, DType, compute_dtype
from tilefuse.ir.scalar import Expr, Index, Lookup, call, const, in_range

Axes = Sequence[str]


def wrapped(e: Expr, extent: int) -> Expr:
    """A subscript whose negative values count from the end."""
    return call("select", call("lt", e, const(0, I64)), call("add", e, const(extent, I64)), e)


def subscript(e: Expr, extent: int, wrap: bool, checked: bool) -> Expr:
    """An i64 index as a subscript of an axis. `wrap`: negative ones count from the end; `checked`: one out of range is an error."""
    index = wrapped(e, extent) if wrap else e
    return in_range(index, extent, I64) if checked and extent else index


def position(name: str, extent: int) -> Index:
    """The value of an axis (0 where its extent is 1)."""
    return Index(number(0) if extent == 1 else axis(name))


class GatherBuilder(ReduceBuilder):
    """take, gather, index, and the scatters."""

    def _subscript(self, indices: str, shape: Sequence[int], axes: Axes, extent: int, wrap: bool, checked: bool) -> Expr:
        return subscript(self.read_as(indices, I64, shape, axes), extent, wrap, checked)

    def take(self, x: str, indices: str, axis_at: int, wrap: bool = False, checked: bool = False) -> str:
        """Slices of `x` at data-dependent positions of one axis. `wrap`: negative indices count from the end.

        Shapes: x: [*A, n, *B], indices: [*I] -> [*A, *I, *B]
        """
        have, chosen = self.shape_of(x), self.shape_of(indices)
        d = normal_axis(axis_at, len(have))
        shape = (*have[:d], *chosen, *have[d + 1 :])
        axes = axis_names(len(shape))
        middle = axes[d : d + len(chosen)]
        place = self._subscript(indices, chosen, middle, have[d], wrap, checked)
        around_axes = [*axes[:d], *axes[d + len(chosen) :]]
        around = iter(position(a, s) for a, s in zip(around_axes, (*have[:d], *have[d + 1 :]), strict=True))
        body = Lookup(x, tuple(place if n == d else next(around) for n in range(len(have))))
        return self.make_map("take", self.dtype_of(x), shape, axes, body)

    def embedding(self, weight: str, indices: str, checked: bool = False) -> str:
        """Rows of `weight`. Shapes: weight: [V, *E], indices: [*I] -> [*I, *E]"""
        return self.take(weight, indices, 0, checked=checked)

    def gather_elements(self, x: str, indices: str, axis_at: int, wrap: bool = False, checked: bool = False) -> str:
        """result[.., i, ..] = x[.., indices[.., i, ..], ..] along the axis; the result has the shape of `indices`."""
        have, shape = self.shape_of(x), self.shape_of(indices)
        d = normal_axis(axis_at, len(have))
        axes = axis_names(len(shape))
        place = self._subscript(indices, shape, axes, have[d] if have else 1, wrap, checked)
        body = Lookup(x, tuple(place if n == d else position(a, s) for n, (a, s) in enumerate(zip(axes, shape, strict=True))))
        return self.make_map("gather", self.dtype_of(x), shape, axes, body)

    def gather_nd(self, x: str, indices: str, batch_dims: int = 0, wrap: bool = True, checked: bool = False) -> str:
        """Slices of `x` at subscript tuples.

        Shapes: x: [*B, *X], indices: [*B, *I, k] -> [*B, *I, *X[k:]]
        """
        have, chosen = self.shape_of(x), self.shape_of(indices)
        depth = chosen[-1]
        if batch_dims + depth > len(have):
            raise ShapeError(f"gather_nd: {depth} subscripts after {batch_dims} batch dimensions do not fit {self.types[x]}")
        shape = (*chosen[:-1], *have[batch_dims + depth :])
        axes = axis_names(len(shape))
        lead = len(chosen) - 1
        subscripts: list[Expr] = [position(a, s) for a, s in zip(axes[:batch_dims], have, strict=False)]
        subscripts += [self._component(indices, axes[:lead], n, have[batch_dims + n], wrap, checked) for n in range(depth)]
        subscripts += [position(a, s) for a, s in zip(axes[lead:], have[batch_dims + depth :], strict=True)]
        return self.make_map("gather_nd", self.dtype_of(x), shape, axes, Lookup(x, tuple(subscripts)))

    def _component(self, indices: str, axes: Axes, n: int, extent: int, wrap: bool, checked: bool) -> Expr:
        """Component `n` of the subscript tuple at `axes`."""
        shape = self.shape_of(indices)
        read = self.read(indices, shape, (*axes, ""))
        component = converted(type(read)(indices, (*read.index[:-1], number(n))), self.dtype_of(indices), I64)
        return subscript(component, extent, wrap, checked)

    def index(self, x: str, indices: Sequence[str | None], wrap: bool = True, checked: bool = False) -> str:
        """x[indices] with index tensors broadcast together (None: the whole dimension), as in numpy.

        The broadcast dimensions stand at the first index's place if the indexed dimensions are adjacent, else in front.
        """
        have = self.shape_of(x)
        full: list[str | None] = [*indices, *[None] * (len(have) - len(indices))]
        at = [d for d, i in enumerate(full) if i is not None]
        if not at:
            return x
        shape, axes, middle, around_axes = self._indexed_domain(have, at, [self.shape_of(i) for i in full if i is not None])
        chosen = [shape[axes.index(a)] for a in middle]
        subscripts: list[Expr] = []
        rest = iter(around_axes)
        for d, i in enumerate(full):
            at_i = position(next(rest), have[d]) if i is None else self._subscript(i, chosen, middle, have[d], wrap, checked)
            subscripts.append(at_i)
        return self.make_map("index", self.dtype_of(x), shape, axes, Lookup(x, tuple(subscripts)))

    def _indexed_domain(
        self, have: Sequence[int], at: Sequence[int], shapes: Sequence[Sequence[int]]
    ) -> tuple[tuple[int, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Shape and axes of an indexed result, the axes of the index tensors, and those of the whole dimensions."""
        chosen = broadcast_shapes(*shapes)
        adjacent = list(at) == list(range(at[0], at[0] + len(at)))
        whole = [s for d, s in enumerate(have) if d not in at]
        lead = at[0] if adjacent else 0
        shape = (*whole[:lead], *chosen, *whole[lead:])
        axes = axis_names(len(shape))
        return shape, axes, axes[lead : lead + len(chosen)], (*axes[:lead], *axes[lead + len(chosen) :])

    # Scatters

    def _scattered(
        self, monoid: str, base: str, over: Sequence[tuple[str, int]], target: Sequence[Expr], body: Expr, body_dtype: DType
    ) -> str:
        """A scatter whose arithmetic is done in the compute dtype of `base`; "set" copies elements as they are."""
        have = self.dtype_of(base)
        work = have if monoid == "set" else I32 if have == BOOL else compute_dtype(have)
        scattered = self.scatter_node(monoid, self.cast(base, work), over, target, converted(body, body_dtype, work))
        return self.cast(scattered, have)

    def scatter_node(self, monoid: str, base: str, over: Sequence[tuple[str, int]], target: Sequence[Expr], body: Expr) -> str:
        """The plain scatter node of the graph: `body` over the domain `over` into a copy of `base` (`base` itself if that is empty)."""
        if any(extent == 0 for _, extent in over) or 0 in self.shape_of(base):
            return base
        return super().add_scatter(self.hint or f"scatter_{monoid}", monoid, base, over, target, body)

    def scatter(
        self, base: str, indices: str, updates: str, axis_at: int, monoid: str = "set", wrap: bool = False, checked: bool = False
    ) -> str:
        """`base` with base[.., indices[.., i, ..], ..] combined with updates[.., i, ..] along the axis.

        monoid: "set", "sum", "max", "min" or "prod". Indices out of range write nothing. Several writes of "set" to one
        place: one of them wins. f16 and bf16 are combined in f32 and rounded once.
        Shapes: indices: no longer than `updates` in any dimension
        """
        have, shape = self.shape_of(base), self.shape_of(indices)
        if not have:
            have, shape = (1,), (1,)
            lone = [self.reshape(v, [1]) for v in (base, indices, updates)]
            one = self.scatter(lone[0], lone[1], lone[2], 0, monoid, wrap, checked)
            return self.reshape(one, [])
        d = normal_axis(axis_at, len(have))
        axes = axis_names(len(shape))
        place = self._subscript(indices, shape, axes, have[d], wrap, checked)
        target = [place if n == d else position(a, s) for n, (a, s) in enumerate(zip(axes, shape, strict=True))]
        body = self.read(updates, shape, axes)
        return self._scattered(monoid, base, list(zip(axes, shape, strict=True)), target, body, self.dtype_of(updates))

    def scatter_nd(self, base: str, indices: str, updates: str, monoid: str = "set", wrap: bool = True, checked: bool = False) -> str:
        """`base` with slices at subscript tuples combined with `updates`.

        Shapes: base: [*X], indices: [*I, k], updates: [*I, *X[k:]]
        """
        have, chosen = self.shape_of(base), self.shape_of(indices)
        depth, lead = chosen[-1], len(chosen) - 1
        shape = (*chosen[:-1], *have[depth:])
        axes = axis_names(len(shape))
        target = [self._component(indices, axes[:lead], n, have[n], wrap, checked) for n in range(depth)]
        target += [position(a, s) for a, s in zip(axes[lead:], have[depth:], strict=True)]
        return self._scattered(
            monoid, base, list(zip(axes, shape, strict=True)), target, self.read(updates, shape, axes), self.dtype_of(updates)
        )

    def index_put(
        self, base: str, indices: Sequence[str | None], values: str, accumulate: bool = False, wrap: bool = True, checked: bool = False
    ) -> str:
        """`base` with base[indices] set to `values` (broadcast), or `values` added there."""
        have = self.shape_of(base)
        full: list[str | None] = [*indices, *[None] * (len(have) - len(indices))]
        at = [d for d, i in enumerate(full) if i is not None]
        if not at:
            return self.elementwise("add", base, values) if accumulate else self.broadcast_to(values, have)
        shape, axes, middle, around_axes = self._indexed_domain(have, at, [self.shape_of(i) for i in full if i is not None])
        chosen = [shape[axes.index(a)] for a in middle]
        target: list[Expr] = []
        rest = iter(around_axes)
        for d, i in enumerate(full):
            at_i = position(next(rest), have[d]) if i is None else self._subscript(i, chosen, middle, have[d], wrap, checked)
            target.append(at_i)
        body = self.read(self._front_trimmed(values, len(shape)), shape, axes)
        return self._scattered(
            "sum" if accumulate else "set", base, list(zip(axes, shape, strict=True)), target, body, self.dtype_of(values)
        )

    def _front_trimmed(self, values: str, rank: int) -> str:
        """`values` without leading dimensions of extent 1 beyond `rank`."""
        extra = self.rank_of(values) - rank
        return self.squeeze(values, list(range(extra))) if extra > 0 else values

    def index_add(self, base: str, axis_at: int, indices: str, source: str, monoid: str = "sum", wrap: bool = False,
                  checked: bool = False) -> str:
        """`base` with slices of `source` combined at the positions `indices` of one axis. `wrap`: negative ones count from the end.

        Shapes: base: [*A, n, *B], indices: [m], source: [*A, m, *B]
        """
        d = normal_axis(axis_at, self.rank_of(base))
        shape = self.shape_of(source)
        axes = axis_names(len(shape))
        place = self._subscript(indices, (shape[d],), (axes[d],), self.shape_of(base)[d], wrap, checked)
        target = [place if n == d else position(a, s) for n, (a, s) in enumerate(zip(axes, shape, strict=True))]
        return self._scattered(
            monoid, base, list(zip(axes, shape, strict=True)), target, self.read(source, shape, axes), self.dtype_of(source)
        )
