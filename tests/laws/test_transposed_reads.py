"""The transposition of reads against brute force: every point that reads an element is found, once, and no other."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilefuse.ir.affine import Affine, axis, bounds, delinearise, evaluate, linearise, mod, number, row_major_strides, simplify
from tilefuse.passes.autodiff.transpose import Inverse, inverse

NAMES = "abcdef"
# For every element of a value the points of the domain that read it.
Readers = dict[tuple[int, ...], list[tuple[int, ...]]]


def readers(index: Sequence[Affine], extents: dict[str, int], shape: Sequence[int]) -> Readers:
    """By brute force; points that read outside count nowhere."""
    found: Readers = {at: [] for at in product(*map(range, shape))}
    for point in product(*map(range, extents.values())):
        values = dict(zip(extents, point, strict=True))
        element = tuple(int(evaluate(e, values)) for e in index)
        if element in found:
            found[element].append(point)
    return found


def readers_by(back: Inverse, extents: dict[str, int], axes: Sequence[str], shape: Sequence[int]) -> Readers:
    """The same by the inverse."""
    found: Readers = {}
    for at in product(*map(range, shape)):
        found[at] = []
        for rest in product(*(range(s) for _, s in back.free)):
            values = dict(zip(axes, at, strict=True)) | dict(zip((n for n, _ in back.free), rest, strict=True))
            if all(b.low <= evaluate(b.index, values) < b.high for b in back.bounds):
                found[at].append(tuple(int(evaluate(back.solution[name], values)) for name in extents))
        found[at].sort()
    return found


def agree(index: Sequence[Affine], extents: dict[str, int], shape: Sequence[int]) -> Inverse | None:
    """Checks one map; gives its inverse, None where the solver declines."""
    axes = tuple(f"z{n}" for n in range(len(shape)))
    back = inverse(index, extents, axes, shape)
    if back is not None:
        text = f"{[str(e) for e in index]} over {extents} of {shape}"
        assert readers_by(back, extents, axes, shape) == readers(index, extents, shape), text
    return back


def subscript(random: Random, extents: dict[str, int]) -> Affine:
    """One subscript of a form that frontends make, or a sum of such."""
    name, other = random.choice(list(extents)), random.choice(list(extents))
    step, back = random.randint(1, 3), random.randint(0, 3)
    forms = [
        number(random.randint(0, 2)),
        axis(name),
        axis(name) * step - back,
        (extents[name] - 1) - axis(name),
        axis(name) * step + axis(other) * random.randint(1, 2) - back,
        axis(name) // random.randint(2, 3),
        axis(name) % random.randint(2, 4),
        mod(axis(name) + back, extents[name], extents),
        axis(name) * extents[other] + axis(other),
        (axis(name) * step + axis(other)) // random.randint(2, 3),
        (axis(name) * step + axis(other) * 2 + 1) % random.randint(2, 4),
        (axis(name) * 5) // 3,
    ]
    return simplify(random.choice(forms), extents)


@given(st.randoms(use_true_random=False))
def test_every_reader_is_found_once(random: Random) -> None:
    """Random subscripts over random domains: the inverse lists exactly the points that brute force lists."""
    extents = {name: random.randint(1, 5) for name in NAMES[: random.randint(1, 3)]}
    rank = random.randint(1, 3)
    index = [subscript(random, extents) for _ in range(rank)]
    shape = []
    for e in index:
        span = bounds(e, extents)
        assert span is not None
        shape.append(max(span[1] + 1 - random.choice((0, 0, 1)), 1))
    agree(index, extents, shape)


@given(st.randoms(use_true_random=False))
def test_reshapes_need_no_sum(random: Random) -> None:
    """The transposition of a reshape reads one element: no axis is left to sum over."""
    total = random.choice((12, 24, 30, 36))

    def shape() -> tuple[int, ...]:
        left, out = total, []
        while left > 1 and len(out) < 3:
            out.append(random.choice([d for d in range(1, left + 1) if left % d == 0]))
            left //= out[-1]
        return (*out, left)

    have, wanted = shape(), shape()
    extents = dict(zip(NAMES, wanted))
    flat = simplify(linearise(tuple(axis(a) for a in extents), row_major_strides(wanted)), extents)
    index = [simplify(e, extents) for e in delinearise(flat, have, extents)]
    back = agree(index, extents, have)
    assert back is not None and prod(s for _, s in back.free) == 1, f"{have} -> {wanted}: {back}"


@pytest.mark.parametrize(
    ("extent", "taps", "stride", "padding", "dilation", "expected"),
    [
        (8, 2, 2, 0, 1, 1), (9, 3, 2, 1, 1, 2), (7, 3, 1, 1, 1, 3), (9, 2, 3, 0, 1, 1), (12, 3, 2, 2, 2, 3), (10, 3, 3, 1, 1, 1),
        (11, 5, 2, 2, 1, 3),
    ],
)
def test_windows_sum_over_those_that_cover_an_element(
    extent: int, taps: int, stride: int, padding: int, dilation: int, expected: int
) -> None:
    """Windows of pooling and convolution: the sum has as many terms as windows that can cover one element."""
    outputs = (extent + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
    extents = {"i": outputs, "k": taps}
    back = agree([axis("i") * stride + axis("k") * dilation - padding], extents, [extent])
    assert back is not None
    assert prod(s for _, s in back.free) == expected


def test_two_dimensional_windows_and_channels() -> None:
    """All four kinds of axis at once."""
    extents = {"n": 2, "c": 3, "h": 3, "w": 2, "kh": 3, "kw": 2}
    index = [axis("n"), axis("c"), axis("h") * 2 + axis("kh") - 1, axis("w") * 2 + axis("kw")]
    back = agree(index, extents, [2, 3, 6, 4])
    assert back is not None and [s for _, s in back.free] == [2]


def test_what_is_too_irregular_is_declined() -> None:
    """Quotients of one index by numbers that do not divide each other."""
    assert inverse([axis("a") // 2, axis("a") // 3], {"a": 12}, ("i", "j"), (6, 4)) is None
