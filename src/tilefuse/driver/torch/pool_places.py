"""Positions of pooling maxima between the parts of a training step: 8 bits relative to the window instead of 64 bits relative to the image.

    p = max_pool(x)[1]                       q = u8(p - place of the window's start), in rows and columns of the window
    dx = max_pool_backward(dy, x, p)   ->    dx = max_pool_near_backward(dy, q)

The cut between forward and backward (`driver/torch/partition.py`) then saves q and not x. Exact. Unchanged are windows of more than 256
positions, positions with other readers, and symbolic extents.
"""
from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.fx import Graph, Node

from tilefuse.frontends.torch.own.near_places import MOST_PLACES, NEAR_BACKWARD, Windows, as_list

_ATEN = torch.ops.aten
_BACKWARD = {getattr(_ATEN, f"max_pool{rank}d_with_indices_backward").default: rank for rank in (2, 3)}


def keep_near_places(graph: Graph) -> None:
    """Rewrites, in a joint graph, the positions that are read only by gradients of the same pooling."""
    for places in graph.find_nodes(op="call_function", target=operator.getitem):
        users = list(places.users)
        if not users or places.args[1] != 1 or any(u.op != "call_function" or u.target not in _BACKWARD for u in users):
            continue
        windows = {windows_of(u) for u in users}
        window = next(iter(windows))
        if len(windows) == 1 and window is not None and prod(window.size) <= MOST_PLACES and all(u.args[-1] is places for u in users):
            _rewrite(graph, places, users, window)


def windows_of(backward: Node) -> Windows | None:
    """Geometry of the pooling that a gradient belongs to; None where an extent is a symbol."""
    rank = _BACKWARD[backward.target]
    _, x, size, stride, padding, dilation, *_ = backward.args
    assert isinstance(x, Node)
    image = tuple(x.meta["val"].shape[-rank:])
    if not all(isinstance(e, int) for e in (*x.meta["val"].shape, *backward.meta["val"].shape)):
        return None
    return Windows(image, as_list(size, rank), as_list(stride or size, rank), as_list(padding, rank), as_list(dilation, rank))


def _rewrite(graph: Graph, places: Node, users: Sequence[Node], windows: Windows) -> None:
    with graph.inserting_before(places.next):
        near = _Code(graph, places, windows).near()
    for user in users:
        geometry = [list(v) for v in (windows.size, windows.stride, windows.padding, windows.dilation)]
        user.args = (user.args[0], near, list(user.args[1].meta["val"].shape), *geometry, user.args[6])
        user.target = NEAR_BACKWARD


@dataclass
class _Code:
    """Arithmetic on positions, emitted at the graph's insertion point. Integers are i32 where the image's positions are."""

    graph: Graph
    places: Node
    windows: Windows

    def near(self) -> Node:
        """Places counted within their windows, as u8."""
        rest = self._call(_ATEN._to_copy.default, self.places, dtype=self.dtype)
        near: Node | None = None
        for dim, (size, dilation) in enumerate(zip(self.windows.size, self.windows.dilation, strict=True)):
            plane = prod(self.windows.image[dim + 1:])
            at = self._quotient(rest, plane)
            if plane > 1:
                rest = self._call(_ATEN.sub.Tensor, rest, self._times(at, plane))
            step = self._quotient(self._call(_ATEN.sub.Tensor, at, self._first(dim)), dilation)
            near = step if near is None else self._call(_ATEN.add.Tensor, self._times(near, size), step)
        return self._call(_ATEN._to_copy.default, near, dtype=torch.uint8)

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the positions and of the values that they are computed from."""
        return torch.int32 if prod(self.windows.image) < 2**31 else torch.int64

    def _first(self, dim: int) -> Node:
        """Start of each window along a dimension, of shape [number of windows, 1, ...]."""
        rank, value = len(self.windows.image), self.places.meta["val"]
        count = value.shape[dim - rank]
        starts = self._call(torch.ops.prims.iota.default, count, start=-self.windows.padding[dim], step=self.windows.stride[dim],
                            dtype=self.dtype, device=value.device, requires_grad=False)
        return self._call(_ATEN.view.default, starts, [count, *(1,) * (rank - dim - 1)])

    def _quotient(self, n: Node, divisor: int) -> Node:
        return n if divisor == 1 else self._call(_ATEN.div.Tensor_mode, n, divisor, rounding_mode="floor")

    def _times(self, n: Node, factor: int) -> Node:
        return n if factor == 1 else self._call(_ATEN.mul.Tensor, n, factor)

    def _call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        call = self.graph.call_function(target, args, kwargs)
        with self.places.meta["val"].fake_mode:
            call.meta["val"] = target(*(a.meta["val"] if isinstance(a, Node) else a for a in args), **kwargs)
        return call
