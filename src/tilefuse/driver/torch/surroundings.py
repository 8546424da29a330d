"""Facts that torch provides about a graph while it traces: arguments with fixed addresses, results that the caller sees, saved values that
share no memory with the caller's tensors. They are read at the compile and kept for compiles that happen later.
"""
from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Facts that torch provides, during a trace, about the graph to compile.

    static: numbers of arguments with fixed addresses: parameters and buffers. num_seen: number of results that the caller sees; the others
    are only saved for the backward graph, and the compiler chooses their layout. None: all are seen.
    donated: placeholders of a backward graph that hold values saved by its forward part and share memory with no tensor of the caller's.
    """

    static: tuple[int, ...] = ()
    num_seen: int | None = None
    donated: tuple[str, ...] = ()

    @classmethod
    def now(cls, gm: torch.fx.GraphModule | None = None) -> Surroundings:
        """The facts of the graph that torch traces now; defaults outside of a trace. gm: the graph, if it is a backward graph."""
        context = torch._guards.TracingContext.try_get()
        metadata = None if context is None else context.fw_metadata
        first = getattr(metadata, "num_forward", None)
        are_free = isinstance(first, int) and not getattr(metadata, "tokens", None) and context.output_strides is not None
        donated = () if gm is None else _unshared(gm, getattr(metadata, "bw_donated_idxs", None) or ())
        return cls(tuple(getattr(metadata, "static_input_indices", None) or ()), first if are_free else None, donated)


def _unshared(gm: torch.fx.GraphModule, numbers: Collection[int]) -> tuple[str, ...]:
    """Those of a graph's placeholders, given by their numbers, that share memory with no other one."""
    from torch.multiprocessing.reductions import StorageWeakRef

    storages = [StorageWeakRef(v.untyped_storage()).cdata if isinstance(v := n.meta.get("val"), torch.Tensor) else None
                for n in gm.graph.find_nodes(op="placeholder")]
    names = [n.name for n in gm.graph.find_nodes(op="placeholder")]
    return tuple(names[n] for n in numbers if storages[n] is not None and storages.count(storages[n]) == 1)
