"""Placement of intermediates: nothing overlaps, alignment holds, known cases are tight."""
from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tilefuse.runtime.calls.arena import ALIGNMENT_BYTES, Extent, aligned, live_peak_bytes, place


def test_chain_needs_two_places() -> None:
    """Each value dies when the next but one is written, so ten values share two places."""
    chain = [Extent(f"v{i}", 1000, i, i + 1) for i in range(10)]
    assert place(chain).num_bytes == 2 * aligned(1000) == live_peak_bytes(chain)


def test_best_gap_is_taken() -> None:
    """Between long-lived values lie gaps of 1024 and 512 bytes; a value of 512 goes into the second."""
    extents = [Extent("a", 8192, 0, 9), Extent("gap1", 1024, 0, 1), Extent("b", 4096, 0, 9), Extent("late", 512, 5, 6)]
    found = place(extents)
    assert found.num_bytes == live_peak_bytes(extents)


def test_nothing_takes_nothing() -> None:
    assert place([]).num_bytes == 0 == live_peak_bytes([])


extents_drawn = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 20), st.integers(0, 8)), max_size=25)


@settings(max_examples=200, deadline=None)
@given(extents_drawn)
def test_storage_never_overlaps(drawn: list[tuple[int, int, int]]) -> None:
    """Two extents with a common step have disjoint bytes; the arena is at least the live peak and at most the sum."""
    extents = [Extent(f"v{i}", num_bytes, first, first + length) for i, (num_bytes, first, length) in enumerate(drawn)]
    found = place(extents)
    for i, a in enumerate(extents):
        start = found.offset_by_name[a.name]
        assert start % ALIGNMENT_BYTES == 0 and start + a.num_bytes <= found.num_bytes
        for b in extents[:i]:
            if a.first <= b.last and b.first <= a.last and a.num_bytes and b.num_bytes:
                other = found.offset_by_name[b.name]
                assert start + a.num_bytes <= other or other + b.num_bytes <= start
    assert live_peak_bytes(extents) <= found.num_bytes <= sum(aligned(e.num_bytes) for e in extents)
