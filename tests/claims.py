"""Several pytest processes share one list of tests: each takes the next that nobody has, and reports every test at once.

A pytest plugin; `processes.py` starts the processes. A test is claimed by making a file, which only one process can do. Tests that share
what a fixture of their module made are claimed together: it is made once.
"""
from __future__ import annotations

import gc
import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

# File of a phase's folder: paths of the files, one a line, of which the phase's mark expression left tests out.
LEFT = "left.txt"
# Python looks for garbage among new objects after so many.
GARBAGE_AFTER = 20_000


def pytest_addoption(parser: pytest.Parser) -> None:
    """The folder of claims and reports, this process's number, and when no further test is begun (seconds of the epoch; 0: never)."""
    parser.addoption("--claims", type=Path, help="folder that the processes share")
    parser.addoption("--worker", default="0", help="name of this process's reports")
    parser.addoption("--until", type=float, default=0.0, help="time after which no test is begun")


def is_claimed(folder: Path, number: int) -> bool:
    """Whether this call took test `number`: false if any process took it before."""
    try:
        os.close(os.open(folder / str(number), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def together(items: Sequence[pytest.Item]) -> Iterator[list[pytest.Item]]:
    """The tests in order; neighbours of one file that use a fixture of their module in one list."""
    for _, found in itertools.groupby(items, _claimed_as):
        yield list(found)


def _claimed_as(item: pytest.Item) -> str:
    fixtures = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    shared = any(f.scope == "module" for found in fixtures.values() for f in found)
    return item.nodeid.partition("::")[0] if shared else item.nodeid


def claimed(items: Sequence[pytest.Item], folder: Path, until: float) -> Iterator[pytest.Item]:
    """The tests that fall to this process."""
    for number, found in enumerate(together(items)):
        if until and time.time() > until:
            return
        if is_claimed(folder, number):
            yield from found


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Run what can be claimed. The next test is claimed before one runs, so that fixtures of a module stay for it."""
    taken = claimed(session.items, session.config.getoption("--claims"), session.config.getoption("--until"))
    item = next(taken, None)
    while item is not None:
        following = next(taken, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        item = following
    return True


class Reports:
    """One line of JSON a finished test, written at once: a process that dies keeps what it had."""

    def __init__(self, path: Path, num_collected: int) -> None:
        self.path = path
        self._add({"collected": num_collected})

    def _add(self, row: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the outcome of the test itself, and of setting it up or tearing it down where that did not pass."""
        if report.when != "call" and report.passed:
            return
        if isinstance(report.longrepr, tuple):
            reason = str(report.longrepr[2])
        else:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = str(crash.message if crash else report.longrepr or "")
        # Figures are printed by the tests that run alone; others print what pytest shows when they fail.
        printed = report.capstdout if report.passed and "alone" in report.keywords else ""
        self._add({"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 2), "reason": reason[:2000],
                   "printed": printed[-2000:]})


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Name the files of tests that are left out: every process of a phase writes the same text, under its final name at once."""
    config = items[0].config
    folder: Path = config.getoption("--claims")
    text = "\n".join(dict.fromkeys(str(item.path) for item in items))
    mine = folder / f"{LEFT}.{config.getoption('--worker')}"
    mine.write_text(text, encoding="utf-8")
    mine.replace(folder / LEFT)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Report under this process's name. What imports and collecting have made stays: Python looks for garbage among the rest alone.

    Two cores, tests/unit/plan: 6.4 of 59 CPU seconds went to half a million objects that live as long as the process.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_AFTER)
    config = session.config
    folder: Path = config.getoption("--claims")
    config.pluginmanager.register(Reports(folder / f"{config.getoption('--worker')}.jsonl", len(session.items)))
