"""Results of a CUDA graph for the caller: lent in the graph's own memory until the next call, or copied."""
from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Sequence
from operator import itemgetter

import torch

from tilefuse.runtime.calls.call_plan import storage_span
from tilefuse.runtime.calls.strided import empty_maker

Maker = Callable[[], torch.Tensor]


class LentResults:
    """Results in the graph's memory. The next replay overwrites them, so it must not run while a caller still references one."""

    def __init__(self, results: Sequence[torch.Tensor]) -> None:
        self._results = [(t, tuple(t.shape), tuple(t.stride())) for t in results]
        self._storages = _Storages(results)
        self.are_held: Callable[[], bool] = self._storages.are_held

    def give(self) -> list[torch.Tensor]:
        """New tensors over the memory."""
        window = torch._C._dynamo.guards._reinterpret_tensor
        return [window(t, shape, strides, 0) for t, shape, strides in self._results]


class SavedResults:
    """Lent results that only autograd receives, from a forward part for its backward part: every call returns the same tensors.

    Creating a tensor costs more than the rest of a replay's work for it. A tensor for a caller must be new, because callers set attributes
    on it. Requires: `shows_holders()`.
    """

    def __init__(self, results: Sequence[torch.Tensor]) -> None:
        self._tensors = LentResults(results).give()
        self._storages = _Storages([*results, *self._tensors])
        self._holders = list(map(sys.getrefcount, self._tensors))

    def are_held(self) -> bool:
        """Whether a caller still references one of the tensors, or another tensor over the memory."""
        return list(map(sys.getrefcount, self._tensors)) != self._holders or self._storages.are_held()

    def give(self) -> list[torch.Tensor]:
        """The tensors."""
        return list(self._tensors)


class _Storages:
    """The storages of some tensors, with the number of known tensors in each."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._kept = list({t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors if t.numel()}.values())
        self._places = [s._cdata for s in self._kept]
        self._counts = list(map(torch._C._storage_Use_Count, self._places))

    def are_held(self) -> bool:
        """Whether another tensor lies in the memory."""
        return list(map(torch._C._storage_Use_Count, self._places)) != self._counts


@functools.cache
def shows_holders() -> bool:
    """Whether the reference count of a tensor rises while torch's C++ code holds it, as autograd does."""
    with torch.inference_mode(False), torch.enable_grad():
        factor, saved = torch.ones(1, requires_grad=True), torch.ones(1)
        before = sys.getrefcount(saved)
        product = factor * saved
        return sys.getrefcount(saved) > before and product.requires_grad


class CopiedResults:
    """Results that each call copies into the caller's own memory, by one launch per dtype."""

    def __init__(self, results: Sequence[torch.Tensor]) -> None:
        window = torch._C._dynamo.guards._reinterpret_tensor
        self._makers: list[Maker] = []
        self._shapes: list[tuple[tuple[int, ...], tuple[int, ...]] | None] = []
        groups: dict[torch.dtype, tuple[list[int], list[torch.Tensor]]] = {}
        for n, tensor in enumerate(results):
            shape, strides = tuple(tensor.shape), tuple(tensor.stride())
            span = storage_span(shape, strides)
            is_dense = span == tensor.numel() and not any(s == 0 and n > 1 for n, s in zip(shape, strides))
            # A layout with gaps or repeated elements is copied as the contiguous memory range that contains it.
            source = tensor if is_dense else window(tensor, (span,), (1,), 0)
            self._makers.append(empty_maker(tuple(source.shape), tuple(source.stride()), source.dtype, source.device))
            self._shapes.append(None if is_dense else (shape, strides))
            if source.numel():
                numbers, sources = groups.setdefault(tensor.dtype, ([], []))
                numbers.append(n)
                sources.append(source)
        self._groups = list(groups.values())
        self._has_gaps = any(s is not None for s in self._shapes)

    def are_held(self) -> bool:
        """False: only the graph uses this memory."""
        return False

    def give(self) -> list[torch.Tensor]:
        """Copies of the results, on the current stream."""
        copies = [make() for make in self._makers]
        for numbers, sources in self._groups:
            torch._foreach_copy_([copies[n] for n in numbers], sources)
        if not self._has_gaps:
            return copies
        window = torch._C._dynamo.guards._reinterpret_tensor
        return [t if s is None else window(t, s[0], s[1], 0) for t, s in zip(copies, self._shapes)]


class MixedResults:
    """Results of which some are lent (`lent`: their numbers, `are_saved`: to autograd alone) and the others copied."""

    def __init__(self, results: Sequence[torch.Tensor], lent: Collection[int], are_saved: bool) -> None:
        numbers = [n for n in range(len(results)) if n in lent]
        own = [n for n in range(len(results)) if n not in lent]
        self._lent = (SavedResults if are_saved else LentResults)([results[n] for n in numbers])
        self._own = CopiedResults([results[n] for n in own])
        place = {n: i for i, n in enumerate([*numbers, *own])}
        self._in_order = itemgetter(*(place[n] for n in range(len(results))))
        self.are_held: Callable[[], bool] = self._lent.are_held

    def give(self) -> list[torch.Tensor]:
        """All results in order."""
        return list(self._in_order([*self._lent.give(), *self._own.give()]))


Results = LentResults | SavedResults | CopiedResults | MixedResults


def given_results(results: Sequence[torch.Tensor], lent: Collection[int], are_saved: bool = False) -> Results:
    """These results for a caller; those with the numbers `lent` may be lent.

    are_saved: only autograd sees the lent results.
    """
    are_saved = are_saved and shows_holders()
    if len(lent) == len(results):
        return SavedResults(results) if are_saved else LentResults(results)
    return MixedResults(results, lent, are_saved) if lent else CopiedResults(results)
