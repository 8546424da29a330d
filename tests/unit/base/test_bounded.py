"""Mappings that keep the newest entries."""
from __future__ import annotations

import threading

from tilefuse.base.bounded import Bounded


def test_the_oldest_entry_goes() -> None:
    """At most so many stay; an entry that is there is kept as it is."""
    kept: Bounded[int, str] = Bounded(2)
    assert kept.put(1, "one") == "one" and kept.put(1, "another") == "one"
    kept.put(2, "two")
    kept.put(3, "three")
    assert kept.get(1) is None and kept.get(3) == "three" and len(kept) == 2 and list(kept.values()) == ["two", "three"]
    kept.clear()
    assert 3 not in kept


def test_threads_store_at_once() -> None:
    """Two threads that store one key get the same value; none fails while entries come and go."""
    kept: Bounded[int, int] = Bounded(8)
    failed: list[BaseException] = []

    def work(own: int) -> None:
        try:
            for n in range(3000):
                kept.put(n % 20, own)
                kept.get(n % 20)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed and len(kept) == 8
