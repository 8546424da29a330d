"""Donated buffers: memory of arguments that results may take over, and what the arguments are afterwards.

A donated array has no data any more. Reading it is an error that names the call it was donated to, not another array's numbers.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tilefuse.base.errors import UserError
from tilefuse.frontends.array_nodes import ArrayNode, Place, user_span


class Donated:
    """What stands in place of a donated array's data. Whatever is asked of it is a UserError."""

    __slots__ = ("_to",)

    def __init__(self, to: str) -> None:
        object.__setattr__(self, "_to", to)

    def __getattr__(self, name: str) -> Any:
        raise UserError(f"this array's data was donated to {object.__getattribute__(self, '_to')} and is overwritten", where=user_span(),
                        hint="use the call's results, or leave the argument out of donate=")

    def __getitem__(self, key: Any) -> Any:
        return self.data


def mark_donated(nodes: Iterable[ArrayNode], function: str, place: Place) -> None:
    """Takes their data from donated nodes; also what was built on them and not computed yet cannot be any more."""
    gone = Donated(f"{function}, called at {place[0]}:{place[1]},")
    for node in nodes:
        node.buffer = gone


def own_buffer(node: ArrayNode, strides: tuple[int, ...] | None, others: Sequence[Any]) -> Any:
    """The buffer of a donated node, which nothing else uses: itself, or a copy where memory is shared or lies with other strides.

    others: the buffers of the other arguments of the call.
    """
    buffer = node.buffer
    if type(buffer) is Donated:
        return buffer.data  # raises
    if strides is not None and tuple(buffer.stride()) != strides:
        return torch.empty_strided(tuple(buffer.shape), strides, dtype=buffer.dtype, device=buffer.device).copy_(buffer)
    # One for the tensor, one for the storage object of this very question.
    shared = torch._C._storage_Use_Count(buffer.untyped_storage()._cdata) > 2 or sum(o is buffer for o in others) > 1
    return buffer.clone() if shared else buffer
