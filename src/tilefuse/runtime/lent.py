"""Results of a graph as a caller gets them: the graph's own memory, lent until the next call, or copies of it."""
from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch

from tilefuse.runtime.call_plan import storage_span
from tilefuse.runtime.strided import empty_maker

Maker = Callable[[], torch.Tensor]


class LentResults:
    """Results in the graph's memory. The next replay overwrites them, so it must not run while a caller still has one."""

    def __init__(self, results: Sequence[torch.Tensor]) -> None:
        self._results = [(t, tuple(t.shape), tuple(t.stride())) for t in results]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in results if t.numel()}
        self._storages = list(storages.values())
        self._counts = [(s._cdata, torch._C._storage_Use_Count(s._cdata)) for s in self._storages]

    def are_held(self) -> bool:
        """Whether somebody still has a tensor over this memory."""
        count = torch._C._storage_Use_Count
        return any(count(address) > own for address, own in self._counts)

    def give(self) -> list[torch.Tensor]:
        """New tensors over the memory."""
        window = torch._C._dynamo.guards._reinterpret_tensor
        return [window(t, shape, strides, 0) for t, shape, strides in self._results]


class CopiedResults:
    """Results that each call copies into memory of the caller's own, by one launch a dtype."""

    def __init__(self, results: Sequence[torch.Tensor]) -> None:
        window = torch._C._dynamo.guards._reinterpret_tensor
        self._makers: list[Maker] = []
        self._shapes: list[tuple[tuple[int, ...], tuple[int, ...]] | None] = []
        groups: dict[torch.dtype, tuple[list[int], list[torch.Tensor]]] = {}
        for n, tensor in enumerate(results):
            shape, strides = tuple(tensor.shape), tuple(tensor.stride())
            span = storage_span(shape, strides)
            is_dense = span == tensor.numel() and not any(s == 0 and n > 1 for n, s in zip(shape, strides))
            # A layout with gaps or repeated elements is copied whole, as the stretch of memory that it lies in.
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
        """False: nobody but the graph has this memory."""
        return False

    def give(self) -> list[torch.Tensor]:
        """Copies, made on the current stream."""
        made = [make() for make in self._makers]
        for numbers, sources in self._groups:
            torch._foreach_copy_([made[n] for n in numbers], sources)
        if not self._has_gaps:
            return made
        window = torch._C._dynamo.guards._reinterpret_tensor
        return [t if s is None else window(t, s[0], s[1], 0) for t, s in zip(made, self._shapes)]


class MixedResults:
    """Results of which some are lent (`lent`: their numbers) and the others copied."""

    def __init__(self, results: Sequence[torch.Tensor], lent: Collection[int]) -> None:
        self._lent_numbers = [n for n in range(len(results)) if n in lent]
        self._own_numbers = [n for n in range(len(results)) if n not in lent]
        self._lent = LentResults([results[n] for n in self._lent_numbers])
        self._own = CopiedResults([results[n] for n in self._own_numbers])
        self.are_held = self._lent.are_held

    def give(self) -> list[torch.Tensor]:
        """All results in order."""
        numbered = [*zip(self._lent_numbers, self._lent.give()), *zip(self._own_numbers, self._own.give())]
        return [t for _, t in sorted(numbered, key=_first)]


def _first(pair: tuple[int, torch.Tensor]) -> int:
    return pair[0]


def given_results(results: Sequence[torch.Tensor], lent: Collection[int]) -> LentResults | CopiedResults | MixedResults:
    """These results as a caller gets them, of which those with the numbers `lent` may be lent."""
    if len(lent) == len(results):
        return LentResults(results)
    return MixedResults(results, lent) if lent else CopiedResults(results)
