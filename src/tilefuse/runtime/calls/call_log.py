"""The log of calls: programs and recordings log their calls while the log `calls` is shown, and cost nothing otherwise.

A wrapper replaces the instance's method while the log is on.
"""
from __future__ import annotations

import itertools
import logging
import threading
import time
import weakref
from typing import Any

from tilefuse.base.logs import is_shown, listen, log_of

_CALLS = log_of("calls")
_watched: weakref.WeakKeyDictionary[Any, tuple[str, str]] = weakref.WeakKeyDictionary()
_guard = threading.Lock()


def watch_calls(owner: Any, method: str, name: str) -> None:
    """Logs the calls of an instance's method while the log is shown. name: the instance's name in the log."""
    with _guard:
        _watched[owner] = method, name
    if is_shown("calls"):
        _put_around(owner, method, name)


def _put_around(owner: Any, method: str, name: str) -> None:
    inner = getattr(type(owner), method)
    numbers = itertools.count(1)
    itself = weakref.ref(owner)

    def call(*arguments: Any) -> Any:
        number = next(numbers)
        started = time.perf_counter()
        result = inner(itself(), *arguments)
        us = (time.perf_counter() - started) * 1e6
        _CALLS.log(logging.INFO if number == 1 else logging.DEBUG, "%s: call %d, %.1f us on the host", name, number, us)
        return result

    vars(owner)[method] = call


def _changed() -> None:
    with _guard:
        watched = list(_watched.items())
    for owner, (method, name) in watched:
        if not is_shown("calls"):
            vars(owner).pop(method, None)
        elif method not in vars(owner):
            _put_around(owner, method, name)


listen(_changed)
