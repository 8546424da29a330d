"""A mapping that keeps the newest entries: what programs, recordings and gradients are remembered in.

Threads may look up and store at the same time. Looking up takes no lock.
"""
from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Bounded(Generic[K, V]):
    """At most `most` entries; storing another one forgets the oldest."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._entries: dict[K, V] = {}
        self._guard = threading.Lock()
        self.get = self._entries.get

    def put(self, key: K, value: V) -> V:
        """Stores `value`, unless another thread stored one meanwhile; gives what is stored."""
        with self._guard:
            entries = self._entries
            while len(entries) >= self.most and key not in entries:
                del entries[next(iter(entries))]
            return entries.setdefault(key, value)

    def values(self) -> Iterator[V]:
        """Stored values, oldest first."""
        with self._guard:
            return iter(list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def clear(self) -> None:
        """Forgets everything."""
        with self._guard:
            self._entries.clear()
