"""Layout building blocks of `TensorBuilder`: every one is a map whose body is a read at other subscripts.

Subscripts are in range by construction (padding and concatenation guard them), so the passes fold such maps into their
users and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tilefuse.base.errors import ShapeError
from tilefuse.ir.affine import Affine, axis, delinearise, floordiv, linearise, mod, number, row_major_strides, simplify
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor_elementwise import ElementwiseBuilder, normal_axes, normal_axis
from tilefuse.ir.scalar import Bound, Expr, Guard, Read, const


class LayoutBuilder(ElementwiseBuilder):
    """View, permute, slice, pad, concatenate, windows."""

    def view(self, name: str, x: str, shape: Sequence[int], subscripts: Callable[[tuple[Affine, ...]], Sequence[Affine]]) -> str:
        """A map of `x` read at `subscripts` of the result's axes; `x` itself where that changes nothing."""
        shape = tuple(shape)
        axes = axis_names(len(shape))
        extents = dict(zip(axes, shape, strict=True))
        index = tuple(simplify(e, extents) for e in subscripts(tuple(axis(a) for a in axes)))
        if shape == self.shape_of(x) and index == tuple(simplify(axis(a), extents) for a in axes):
            return x
        return self.make_map(name, self.dtype_of(x), shape, axes, Read(x, index))

    def broadcast_to(self, x: str, shape: Sequence[int]) -> str:
        """`x` repeated along dimensions of extent 1 and new leading ones; an extent of -1 keeps that of `x`.

        Raises: ShapeError when an extent is neither 1 nor the requested one.
        """
        have = self.shape_of(x)
        lead = len(shape) - len(have)
        extents = tuple(have[d - lead] if s == -1 and d >= lead else s for d, s in enumerate(shape))
        if lead < 0 or any(h not in (1, s) for h, s in zip(have, extents[lead:], strict=False)):
            raise ShapeError(f"{self.types[x]} does not broadcast to {tuple(shape)}")
        return self.view("expand", x, extents, lambda i: [number(0) if h == 1 else e for h, e in zip(have, i[lead:], strict=True)])

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """The elements of `x` in row-major order under another shape; one extent may be -1.

        Raises: ShapeError when the numbers of elements differ.
        """
        have = self.shape_of(x)
        full_shape = list(shape)
        if -1 in full_shape:
            rest = prod(s for s in full_shape if s != -1)
            full_shape[full_shape.index(-1)] = prod(have) // rest if rest else 0
        if prod(full_shape) != prod(have) or any(s < 0 for s in full_shape):
            raise ShapeError(f"{self.types[x]} with {prod(have)} elements cannot take the shape {tuple(shape)}")
        extents = dict(zip(axis_names(len(full_shape)), full_shape, strict=True))
        strides = row_major_strides(tuple(full_shape))

        def subscripts(i: tuple[Affine, ...]) -> Sequence[Affine]:
            return delinearise(simplify(linearise(i, strides), extents), have, extents)

        return self.view("reshape", x, full_shape, subscripts)

    def permute(self, x: str, order: Sequence[int]) -> str:
        """Dimension d of the result is dimension order[d] of `x`.

        Raises: ShapeError when `order` is not a permutation.
        """
        have = self.shape_of(x)
        order = [normal_axis(d, len(have)) for d in order]
        if sorted(order) != list(range(len(have))):
            raise ShapeError(f"{tuple(order)} is not a permutation of the {len(have)} dimensions of {self.types[x]}")
        where = {d: n for n, d in enumerate(order)}
        return self.view("permute", x, [have[d] for d in order], lambda i: [i[where[d]] for d in range(len(have))])

    def transpose(self, x: str, axis_a: int, axis_b: int) -> str:
        """`x` with two dimensions exchanged."""
        rank = self.rank_of(x)
        if rank == 0:
            return x
        order = list(range(rank))
        a, b = normal_axis(axis_a, rank), normal_axis(axis_b, rank)
        order[a], order[b] = b, a
        return self.permute(x, order)

    def expand_dims(self, x: str, axes: Sequence[int] | int) -> str:
        """`x` with dimensions of extent 1 inserted; `axes` are positions in the result."""
        listed = (axes,) if isinstance(axes, int) else tuple(axes)
        have = self.shape_of(x)
        rank = len(have) + len(listed)
        new = {normal_axis(a, rank) for a in listed}
        rest = iter(have)
        shape = [1 if d in new else next(rest) for d in range(rank)]
        return self.view("expand_dims", x, shape, lambda i: [e for d, e in enumerate(i) if d not in new])

    def squeeze(self, x: str, axes: Sequence[int] | int | None = None) -> str:
        """`x` without the given dimensions that have extent 1 (all such where None); others stay."""
        have = self.shape_of(x)
        dropped = {d for d in normal_axes(axes, len(have)) if have[d] == 1}
        shape = [s for d, s in enumerate(have) if d not in dropped]

        def subscripts(i: tuple[Affine, ...]) -> Sequence[Affine]:
            rest = iter(i)
            return [number(0) if d in dropped else next(rest) for d in range(len(have))]

        return self.view("squeeze", x, shape, subscripts)

    def slice(
        self, x: str, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int] | None = None, axes: Sequence[int] | None = None
    ) -> str:
        """x[start:stop:step] on the given axes (all in order where None), by Python's rules for negative and out-of-range bounds.

        Raises: ShapeError when a step is 0.
        """
        have = self.shape_of(x)
        ranges = [range(s) for s in have]
        at = range(len(starts)) if axes is None else [normal_axis(a, len(have)) for a in axes]
        for n, d in enumerate(at):
            step = 1 if steps is None else steps[n]
            if step == 0:
                raise ShapeError(f"slice of {self.types[x]}: the step of dimension {d} is 0")
            ranges[d] = ranges[d][starts[n] : _stop(stops[n], have[d], step) : step]
        return self.view("slice", x, [len(r) for r in ranges], lambda i: [e * r.step + r.start for e, r in zip(i, ranges, strict=True)])

    def select(self, x: str, axis_at: int, index: int) -> str:
        """`x` at one position of one axis, which disappears. Raises: ShapeError when the position is out of range."""
        have = self.shape_of(x)
        d = normal_axis(axis_at, len(have))
        if not -have[d] <= index < have[d]:
            raise ShapeError(f"position {index} is outside dimension {d} of {self.types[x]}")
        shape = (*have[:d], *have[d + 1 :])
        return self.view("select", x, shape, lambda i: [*i[:d], number(index % have[d]), *i[d:]])

    def flip(self, x: str, axes: Sequence[int] | int) -> str:
        """`x` in reverse order along the given axes."""
        have = self.shape_of(x)
        turned = set(normal_axes(axes, len(have)))
        return self.view(
            "flip", x, have, lambda i: [(s - 1) - e if d in turned else e for d, (e, s) in enumerate(zip(i, have, strict=True))]
        )

    def roll(self, x: str, shifts: Sequence[int], axes: Sequence[int]) -> str:
        """`x` moved along each axis by its shift; elements that leave at one end come back at the other."""
        have = self.shape_of(x)
        by: dict[int, int] = {}
        for shift, at in zip(shifts, axes, strict=True):
            d = normal_axis(at, len(have))
            by[d] = by.get(d, 0) + shift
        extents = dict(zip(axis_names(len(have)), have, strict=True))

        def one(e: Affine, d: int) -> Affine:
            shift = by.get(d, 0) % max(have[d], 1)
            return mod(e + (have[d] - shift), have[d], extents) if shift else e

        return self.view("roll", x, have, lambda i: [one(e, d) for d, e in enumerate(i)])

    def tile(self, x: str, repeats: Sequence[int]) -> str:
        """`x` laid side by side `repeats` times a dimension (missing dimensions and counts are 1 in front)."""
        rank = max(len(repeats), self.rank_of(x))
        have = (1,) * (rank - self.rank_of(x)) + self.shape_of(x)
        counts = (1,) * (rank - len(repeats)) + tuple(repeats)
        shape = [s * c for s, c in zip(have, counts, strict=True)]
        extents = dict(zip(axis_names(rank), shape, strict=True))
        skip = rank - self.rank_of(x)
        return self.view("tile", x, shape, lambda i: [mod(e, max(s, 1), extents) for e, s in zip(i, have, strict=True)][skip:])

    def repeat_interleave(self, x: str, count: int, axis_at: int) -> str:
        """Every element along the axis `count` times in a row."""
        have = self.shape_of(x)
        d = normal_axis(axis_at, len(have))
        shape = [s * count if n == d else s for n, s in enumerate(have)]
        extents = dict(zip(axis_names(len(have)), shape, strict=True))
        return self.view("repeat", x, shape, lambda i: [floordiv(e, max(count, 1), extents) if n == d else e for n, e in enumerate(i)])

    def diagonal(self, x: str, offset: int = 0, axis_a: int = 0, axis_b: int = 1) -> str:
        """The elements with position in axis_b - position in axis_a = offset, as a new last axis in place of the two."""
        have = self.shape_of(x)
        a, b = normal_axis(axis_a, len(have)), normal_axis(axis_b, len(have))
        length = max(min(have[a] + min(offset, 0), have[b] - max(offset, 0)), 0)
        if offset < 0:
            length = max(min(have[a] + offset, have[b]), 0)
        kept_extents = [s for d, s in enumerate(have) if d not in (a, b)]

        def subscripts(i: tuple[Affine, ...]) -> Sequence[Affine]:
            rest = iter(i[:-1])
            return [i[-1] + max(-offset, 0) if d == a else i[-1] + max(offset, 0) if d == b else next(rest) for d in range(len(have))]

        return self.view("diagonal", x, [*kept_extents, length], subscripts)

    def windows(self, x: str, axis_at: int, size: int, step: int) -> str:
        """All windows of `size` elements, `step` apart, along the axis; the position inside the window is a new last axis.

        Raises: ShapeError when the window is longer than the axis.
        """
        have = self.shape_of(x)
        d = normal_axis(axis_at, len(have))
        extent = have[d] if have else 1
        if size > extent or step < 1:
            raise ShapeError(f"windows of {size} elements, {step} apart, over dimension {d} of {self.types[x]}")
        count = (extent - size) // step + 1
        shape = [*(count if n == d else s for n, s in enumerate(have)), size]
        return self.view("windows", x, shape, lambda i: [e * step + i[-1] if n == d else e for n, e in enumerate(i[:-1])])

    def unfold(
        self, x: str, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[tuple[int, int]], dilation: Sequence[int]
    ) -> str:
        """Windows of a padded image as columns.

        Shapes: x: [N, C, *spatial] -> [N, C * prod(kernel), number of windows]
        """
        lead, spatial = self.shape_of(x)[:2], self.shape_of(x)[2:]
        count = [
            (s + p[0] + p[1] - d * (k - 1) - 1) // t + 1 for s, k, t, p, d in zip(spatial, kernel, stride, padding, dilation, strict=True)
        ]
        padded = self.pad(x, [(0, 0), (0, 0), *padding])
        dims = len(kernel)
        shape = [*lead, *kernel, *count]

        def subscripts(i: tuple[Affine, ...]) -> Sequence[Affine]:
            return [*i[:2], *(i[2 + dims + n] * stride[n] + i[2 + n] * dilation[n] for n in range(dims))]

        return self.reshape(self.view("unfold", padded, shape, subscripts), [lead[0], lead[1] * prod(kernel), prod(count)])

    def pixel_shuffle(self, x: str, factor: int) -> str:
        """Channels moved into the image. Shapes: [..., C * factor * factor, H, W] -> [..., C, H * factor, W * factor]."""
        *lead, channels, height, width = self.shape_of(x)
        split = self.reshape(x, [*lead, channels // factor**2, factor, factor, height, width])
        n = len(lead)
        moved = self.permute(split, [*range(n), n, n + 3, n + 1, n + 4, n + 2])
        return self.reshape(moved, [*lead, channels // factor**2, height * factor, width * factor])

    def pixel_unshuffle(self, x: str, factor: int) -> str:
        """The inverse of `pixel_shuffle`. Shapes: [..., C, H, W] -> [..., C * factor * factor, H / factor, W / factor]."""
        *lead, channels, height, width = self.shape_of(x)
        split = self.reshape(x, [*lead, channels, height // factor, factor, width // factor, factor])
        n = len(lead)
        moved = self.permute(split, [*range(n), n, n + 2, n + 4, n + 1, n + 3])
        return self.reshape(moved, [*lead, channels * factor**2, height // factor, width // factor])

    # Guarded reads

    def pad(self, x: str, pairs: Sequence[tuple[int, int]], mode: str = "constant", value: int | float | bool = 0) -> str:
        """`x` with (before, after) elements added a dimension; negative numbers cut off.

        mode: "constant" (`value`), "reflect" (mirrored, the edge element not repeated), "edge" (the edge element), "wrap".
        Raises: ShapeError when an extent becomes negative, or there is nothing to mirror or repeat.
        """
        have = self.shape_of(x)
        if all(p == (0, 0) for p in map(tuple, pairs)):
            return x
        shape = [s + p[0] + p[1] for s, p in zip(have, pairs, strict=True)]
        if any(s < 0 for s in shape):
            raise ShapeError(f"padding {list(pairs)} leaves {self.types[x]} with the shape {tuple(shape)}")
        if mode == "constant":
            return self._pad_constant(x, pairs, shape, value)
        for d, (before, after) in enumerate(pairs):
            if (before, after) != (0, 0):
                x = self._pad_axis(x, d, before, after, mode)
        return x

    def _pad_constant(self, x: str, pairs: Sequence[tuple[int, int]], shape: Sequence[int], value: int | float | bool) -> str:
        have, dtype = self.shape_of(x), self.dtype_of(x)
        if prod(have) == 0:
            return self.full(shape, value, dtype)
        axes = axis_names(len(shape))
        extents = dict(zip(axes, shape, strict=True))
        index = tuple(simplify(axis(a) - p[0], extents) for a, p in zip(axes, pairs, strict=True))
        bounds = tuple(Bound(e, 0, s) for e, s, p in zip(index, have, pairs, strict=True) if p[0] > 0 or p[1] > 0)
        body: Expr = Read(x, index)
        if bounds:
            body = Guard(bounds, body, const(value, dtype))
        return self.make_map("pad", dtype, shape, axes, body)

    def _pad_axis(self, x: str, d: int, before: int, after: int, mode: str) -> str:
        have = self.shape_of(x)
        extent = have[d]
        shape: tuple[int, ...] = tuple(s + before + after if n == d else s for n, s in enumerate(have))
        if extent == 0 and 0 not in shape:
            raise ShapeError(f"pad {mode}: dimension {d} of {self.types[x]} is empty, there is nothing to repeat")
        axes = axis_names(len(shape))
        extents = dict(zip(axes, shape, strict=True))
        at = axis(axes[d]) - before

        def element(e: Affine) -> Read:
            return Read(x, tuple(simplify(e if n == d else axis(a), extents) for n, a in enumerate(axes)))

        if mode == "wrap" or extent == 1:
            body: Expr = element(mod(at, max(extent, 1), extents))
        elif mode == "edge":
            body = Guard(
                (Bound(at, 0, extent),), element(at), Guard((Bound(at, -before, 0),), element(number(0)), element(number(extent - 1)))
            )
        elif mode == "reflect":
            period = 2 * (extent - 1)
            turn = mod(at, period, extents)
            back = period - turn
            body = Guard(
                (Bound(turn, 0, extent),), element(turn), Guard((Bound(back, 0, extent),), element(back), const(0, self.dtype_of(x)))
            )
        else:
            raise ShapeError(f"pad: unknown mode {mode!r}", hint="known: constant, reflect, edge, wrap")
        return self.make_map("pad", self.dtype_of(x), shape, axes, body)

    def concatenate(self, xs: Sequence[str], axis_at: int) -> str:
        """The tensors one after another along the axis.

        Raises: ShapeError when they differ in another dimension, or there is none.
        """
        if not xs:
            raise ShapeError("concatenate needs at least one tensor")
        full = [x for x in xs if self.shape_of(x) != (0,)] or [xs[0]]
        first = self.shape_of(full[0])
        d = normal_axis(axis_at, len(first))
        for x in full:
            other = self.shape_of(x)
            if len(other) != len(first) or any(a != b for n, (a, b) in enumerate(zip(other, first, strict=True)) if n != d):
                raise ShapeError(f"concatenate along {d}: {self.types[full[0]]} and {self.types[x]} differ in another dimension")
        parts = [x for x in full if self.shape_of(x)[d]] or full[:1]
        if len(parts) == 1:
            return parts[0]
        shape = tuple(sum(self.shape_of(x)[d] for x in parts) if n == d else s for n, s in enumerate(first))
        axes = axis_names(len(shape))
        return self.make_map(
            "concatenate", self.dtype_of(parts[0]), shape, axes, self._choose_part(parts, d, 0, axes, dict(zip(axes, shape, strict=True)))
        )

    def _choose_part(self, parts: Sequence[str], d: int, start: int, axes: Sequence[str], extents: dict[str, int]) -> Expr:
        """A balanced tree of guards: the part that covers the position, with positions below `start` already excluded."""
        if len(parts) == 1:
            index = tuple(simplify(axis(a) - start if n == d else axis(a), extents) for n, a in enumerate(axes))
            return Read(parts[0], index)
        half = (len(parts) + 1) // 2
        middle = start + sum(self.shape_of(x)[d] for x in parts[:half])
        first_half = self._choose_part(parts[:half], d, start, axes, extents)
        return Guard((Bound(axis(axes[d]), start, middle),), first_half, self._choose_part(parts[half:], d, middle, axes, extents))

    def stack(self, xs: Sequence[str], axis_at: int) -> str:
        """The tensors one after another along a new axis."""
        d = normal_axis(axis_at, self.rank_of(xs[0]) + 1)
        return self.concatenate([self.expand_dims(x, d) for x in xs], d)

    def split(self, x: str, sizes: Sequence[int], axis_at: int) -> list[str]:
        """Consecutive pieces of the given sizes along the axis. Raises: ShapeError when they do not add up."""
        d = normal_axis(axis_at, self.rank_of(x))
        if sum(sizes) != self.shape_of(x)[d]:
            raise ShapeError(f"split: sizes {list(sizes)} do not add up to dimension {d} of {self.types[x]}")
        pieces, start = [], 0
        for size in sizes:
            pieces.append(self.slice(x, [start], [start + size], axes=[d]))
            start += size
        return pieces

    def triu(self, x: str, diagonal: int = 0) -> str:
        """The last two dimensions with zeros below the diagonal (column - row < diagonal)."""
        return self._triangle(x, "triu", diagonal, self.shape_of(x)[-1] + 1 + abs(diagonal))

    def tril(self, x: str, diagonal: int = 0) -> str:
        """The last two dimensions with zeros above the diagonal (column - row > diagonal)."""
        return self._triangle(x, "tril", -self.shape_of(x)[-2] - abs(diagonal), diagonal + 1)

    def _triangle(self, x: str, name: str, low: int, high: int) -> str:
        shape = self.shape_of(x)
        axes = axis_names(len(shape))
        bound = Bound(axis(axes[-1]) - axis(axes[-2]), low, high)
        return self.make_map(name, self.dtype_of(x), shape, axes, Guard((bound,), self.read(x, shape, axes), const(0, self.dtype_of(x))))

    def slice_scatter(self, base: str, source: str, axis_at: int, start: int, stop: int, step: int = 1) -> str:
        """`base` with base[start:stop:step] along the axis replaced by `source`."""
        shape = self.shape_of(base)
        d = normal_axis(axis_at, len(shape))
        taken = range(shape[d])[start:stop:step]
        if not taken or not prod(shape):
            return base
        axes = axis_names(len(shape))
        extents = dict(zip(axes, shape, strict=True))
        shifted = axis(axes[d]) - taken.start
        place = simplify(floordiv(shifted, step, extents), extents)
        bounds = [Bound(simplify(axis(axes[d]), extents), taken.start, taken[-1] + 1)]
        if step > 1:
            bounds.append(Bound(mod(shifted, step, extents), 0, 1))
        index = tuple(place if n == d else simplify(axis(a), extents) for n, a in enumerate(axes))
        if self.shape_of(source)[d] == 1:
            index = tuple(number(0) if n == d else e for n, e in enumerate(index))
        body = Guard(tuple(bounds), Read(source, index), self.read(base, shape, axes))
        return self.make_map("slice_scatter", self.dtype_of(base), shape, axes, body)

    def select_scatter(self, base: str, source: str, axis_at: int, index: int) -> str:
        """`base` with the position `index` of the axis replaced by `source` (which lacks that axis)."""
        d = normal_axis(axis_at, self.rank_of(base))
        at = index % self.shape_of(base)[d]
        return self.slice_scatter(base, self.expand_dims(source, d), d, at, at + 1)


def _stop(stop: int, extent: int, step: int) -> int | None:
    """Frontends write "down to the first element" as a very negative stop; Python writes it as None."""
    return None if step < 0 and stop < -extent else stop
