"""Donated buffers: memory of arguments that results may reuse, and the arguments' state afterwards.

A donated array has no data any more. Reading it is an error that names the call it was donated to, not another array's numbers.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch

from tilefuse.arrays.nodes import GIVEN_AWAY, ArrayNode, Place, user_span
from tilefuse.base.errors import UserError


class Donated:
    """Stand-in for a donated array's data. Every use of it is a UserError."""

    __slots__ = ("_to",)

    def __init__(self, to: str) -> None:
        object.__setattr__(self, "_to", to)

    def __getattr__(self, name: str) -> Any:
        raise UserError(f"this array's data was donated to {object.__getattribute__(self, '_to')} and is overwritten", where=user_span(),
                        hint="use the call's results, or leave the argument out of donate=")

    def __getitem__(self, key: Any) -> Any:
        return self.data


GIVEN_AWAY[Donated] = attrgetter("data")


def mark_donated(nodes: Iterable[ArrayNode], function: str, place: Place) -> None:
    """Takes the data of donated nodes; dependent arrays that are not computed yet become uncomputable."""
    donated = Donated(f"{function}, called at {place[0]}:{place[1]},")
    for node in nodes:
        node.buffer = donated


def take_donated(donated: Sequence[int], strides: Sequence[tuple[int, ...]], buffers: list[Any], recorded: Sequence[Any] = ()) -> None:
    """Puts into `buffers`, at the numbers of donated arguments, memory that nothing else uses and that lies with these strides: the
    argument's own, or a copy.

    recorded: real views of complex arguments that earlier recordings of this same call keep. They are no other use.
    Raises: UserError for an argument that was donated before.
    """
    repeated = _repeated(buffers)
    for number, layout in zip(donated, strides):
        buffer = buffers[number]
        if type(buffer) is Donated:
            buffer = buffer.data  # raises
        if buffer.stride() != layout:
            buffers[number] = torch.empty_strided(tuple(buffer.shape), layout, dtype=buffer.dtype, device=buffer.device).copy_(buffer)
        elif id(buffer) in repeated or is_used_elsewhere(storage := buffer.untyped_storage(), _num_on(storage, recorded)):
            buffers[number] = buffer.clone()


_use_count = torch._C._storage_Use_Count


def is_used_elsewhere(storage: Any, num_own_views: int = 0) -> bool:
    """Whether another tensor shares the storage (one use is the tensor's, one this very object's), or its memory is not torch's own:
    a numpy array's, or another framework's. num_own_views: other tensors on it that do not count."""
    return _use_count(storage._cdata) > 2 + num_own_views or not storage.resizable()


def _num_on(storage: Any, views: Sequence[Any]) -> int:
    """Number of views that lie in a storage."""
    return sum(v.untyped_storage()._cdata == storage._cdata for v in views)


def _repeated(buffers: Sequence[Any]) -> set[int]:
    """The tensor objects that occur more than once among the arguments."""
    ids = [id(b) for b in buffers]
    return set() if len(set(ids)) == len(ids) else {i for i in ids if ids.count(i) > 1}
