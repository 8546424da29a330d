"""Settings of its process that a compile changes while it runs, and leaves as they were."""
from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tilefuse.driver.request import COLLECT_AFTER, rarely_collected


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


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
