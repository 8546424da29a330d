"""The log of calls: programs and recordings tell of their calls while the log `calls` is shown, and cost nothing while it is not.

What is called is put around an instance's method when the log is switched on, and taken away when it is switched off.
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
    """Has the calls of an instance's method logged while the log is shown. name: what the line calls it."""
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
        made = inner(itself(), *arguments)
        us = (time.perf_counter() - started) * 1e6
        _CALLS.log(logging.INFO if number == 1 else logging.DEBUG, "%s: call %d, %.1f us on the host", name, number, us)
        return made

    vars(owner)[method] = call


def _changed() -> None:
    with _guard:
        found = list(_watched.items())
    for owner, (method, name) in found:
        if not is_shown("calls"):
            vars(owner).pop(method, None)
        elif method not in vars(owner):
            _put_around(owner, method, name)


listen(_changed)
