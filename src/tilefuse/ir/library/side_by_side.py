"""A value whose parts are written where they lie in it: nothing is computed, and nothing is copied.

    %y = library.side_by_side (%q, %k, %v) {windows = ((offset, strides), ...)}      y's memory is that of its parts

Each part is a window onto the value, with an offset and strides in the dense row-major value; together they cover every element once.
Kernels write the parts there. A concatenation that only calls and kernels of its own read needs no kernel then.
"""
from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from tilefuse.ir.affine import Affine, evaluate, row_major_strides
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.scalar import Bound, Expr, Guard, Read

KIND = "library.side_by_side"
OPERATOR = "side_by_side"


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a value. Units: elements."""

    part: str
    offset: int
    strides: tuple[int, ...]


def windows_of(node: Node) -> tuple[Window, ...]:
    """The parts of a node of this kind."""
    listed = node.attribute("windows")
    assert isinstance(listed, tuple)
    windows: list[Window] = []
    for part, pair in zip(node.operands, listed, strict=True):
        assert isinstance(pair, tuple) and isinstance(pair[0], int) and isinstance(pair[1], tuple)
        windows.append(Window(part, pair[0], tuple(s for s in pair[1] if isinstance(s, int))))
    return tuple(windows)


def side_by_side(node: Node, graph: Graph) -> Node | None:
    """A map that puts whole values side by side, as a node of this kind; None for any other map, and where parts overlap or leave gaps.

    Requires: each subscript and each bound of the map depends on one axis alone. Cost: linear in the extents, not in the elements.
    """
    if node.kind != "map" or not isinstance(node.body, Guard):
        return None
    leaves = list(_leaves(node.body, ()))
    reads = [e for e, _ in leaves if isinstance(e, Read)]
    parts = [e.value for e in reads]
    types = [graph.type_of(v) for v in parts]
    whole = sum(t.num_elements for t in types) == node.type.num_elements and len(set(parts)) == len(leaves)
    if not whole or any(t.dtype != node.type.dtype for t in types):
        return None
    windows = [_window(read, path, node, graph) for read, (_, path) in zip(reads, leaves, strict=True)]
    if any(w is None for w in windows):
        return None
    listed = tuple((w.offset, w.strides) for w in windows if w is not None)
    return Node(node.name, node.type, KIND, operands=tuple(parts), attributes=(("windows", listed),), span=node.span)


Path = tuple[tuple[Bound, ...], bool]


def _leaves(e: Expr, path: tuple[Path, ...]) -> list[tuple[Expr, tuple[Path, ...]]]:
    if isinstance(e, Guard):
        return [*_leaves(e.then, (*path, (e.bounds, True))), *_leaves(e.otherwise, (*path, (e.bounds, False)))]
    return [(e, path)]


def _window(read: Read, path: tuple[Path, ...], node: Node, graph: Graph) -> Window | None:
    """The window in which a map reads a whole value, each element once; None where it reads it in another way."""
    shape, place = graph.type_of(read.value).shape, dict(zip(node.axes, row_major_strides(node.type.shape), strict=True))
    offset, strides = 0, [0] * len(shape)
    for a, extent in zip(node.axes, node.type.shape, strict=True):
        allowed = _allowed(path, a, extent)
        own = [d for d, e in enumerate(read.index) if e.axes() == {a}]
        if allowed is None or not len(allowed) or any(a in e.axes() and e.axes() != {a} for e in read.index):
            return None
        at = np.array([_at(read.index[d], a, allowed) for d in own], np.int64).reshape(len(own), len(allowed))
        # Positions in the order of the part's elements: as many as there are, each subscript within its extent.
        sizes = tuple(shape[d] for d in own)
        if prod(sizes) != len(allowed) or any((row < 0).any() or (row >= n).any() for row, n in zip(at, sizes, strict=True)):
            return None
        positions = np.full(sizes, -1, np.int64)
        positions[tuple(at)] = allowed
        first = int(positions[(0,) * len(sizes)])
        steps = [int(positions[tuple(int(n == m) for n in range(len(sizes)))]) - first if size > 1 else 0 for m, size in enumerate(sizes)]
        linear = first + sum((np.arange(n).reshape([-1 if k == m else 1 for k in range(len(sizes))]) * s
                              for m, (n, s) in enumerate(zip(sizes, steps, strict=True))), np.zeros(sizes, np.int64))
        if (positions < 0).any() or not np.array_equal(positions, linear) or any(s < 0 for s in steps):
            return None
        offset += first * place[a]
        for d, s in zip(own, steps, strict=True):
            strides[d] = s * place[a]
    if any(e.axes() - set(node.axes) for e in read.index):
        return None
    return Window(read.value, offset, tuple(s if n > 1 else 1 for s, n in zip(strides, shape, strict=True)))


def _allowed(path: tuple[Path, ...], name: str, extent: int) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    """Places along an axis at which every guard of a path takes the path's side; None where a guard looks at several axes at once."""
    places = np.arange(extent)
    keep = np.ones(extent, np.bool_)
    for bounds, side in path:
        axes = frozenset[str]().union(*(b.index.axes() for b in bounds))
        if len(axes) > 1:
            return None
        if axes == {name}:
            inside = np.ones(extent, np.bool_)
            for b in bounds:
                value = _at(b.index, name, places)
                inside &= (b.low <= value) & (value < b.high)
            keep &= inside == side
        elif not axes:
            return None
    return places[keep]


def _at(index: Affine, name: str, places: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    value: np.ndarray[tuple[int], np.dtype[np.int64]] = np.broadcast_to(evaluate(index, {name: places}), places.shape)
    return value
