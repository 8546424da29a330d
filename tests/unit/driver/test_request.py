"""Settings of its process that a compile changes while it runs, and leaves as they were."""
from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tilefuse.driver.request import COLLECT_AFTER, rarely_collected


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """The garbage collector as it is in a new process. The runner of all tests freezes the objects that its processes begin with."""
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.unfreeze()
    yield
    gc.set_threshold(*thresholds)
    if frozen:
        gc.freeze()


def test_garbage_is_looked_for_rarely_inside_and_as_before_afterwards() -> None:
    gc.set_threshold(700, 9, 8)
    with rarely_collected():
        assert gc.get_threshold() == (COLLECT_AFTER, 9, 8)
        with rarely_collected():
            assert gc.get_threshold() == (COLLECT_AFTER, 9, 8)
        assert gc.get_threshold() == (COLLECT_AFTER, 9, 8)
    assert gc.get_threshold() == (700, 9, 8)


def test_an_error_restores_it_too() -> None:
    gc.set_threshold(700, 10, 10)
    with pytest.raises(ValueError, match="inside"), rarely_collected():
        raise ValueError("inside")
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("chosen", [0, COLLECT_AFTER + 1])
def test_what_the_user_chose_stays(chosen: int) -> None:
    """0 is never; a process that looks more rarely still is left alone."""
    gc.set_threshold(chosen, 10, 10)
    with rarely_collected():
        assert gc.get_threshold()[0] == chosen
    assert gc.get_threshold()[0] == chosen


def test_the_end_of_a_compile_searches_no_old_objects() -> None:
    """Where many objects have grown old since the last whole search, the next new ones would start another."""
    searched: list[int] = []

    def note(phase: str, facts: dict[str, int]) -> None:
        if phase == "start":
            searched.append(facts["generation"])

    thresholds = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    try:
        gc.collect()
        gc.disable()
        # The next whole search begins where a quarter of the old objects have joined since the last one.
        joining, kept = len(gc.get_objects()) // 30, list[list[list[int]]]()
        for _ in range(12):
            kept.append([[n] for n in range(joining)])
            gc.collect(1)
        gc.callbacks.append(note)
        with rarely_collected():
            # Enabled before, the next object of the test itself would start the search.
            gc.enable()
            kept.append([[n] for n in range(2_000)])
        kept.append([[n] for n in range(2_000)])
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(note)
    assert searched and 2 not in searched and not gc.get_freeze_count()


def test_frozen_objects_stay_frozen() -> None:
    """Those of an application that has frozen its own."""
    gc.freeze()
    try:
        with rarely_collected():
            pass
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
