"""Options that hold for every test."""
from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite the expected texts under tests/text and tests/golden (refused in CI)")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--update") and os.environ.get("CI"):
        raise pytest.UsageError("--update is refused in CI: expected texts change in a commit that a person reads")


@pytest.fixture(autouse=True)
def planned_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program is taken from an earlier run: a fault that a test plants in the compiler must show."""
    from tilefuse.driver.reuse import known_programs

    monkeypatch.setattr(known_programs, "enabled", False)


@pytest.fixture(autouse=True)
def operators_as_found() -> Iterator[None]:
    """Operators that a test registers are taken out again: which tests share a process is chance, and some read the whole table."""
    from tilefuse.ir.custom import CUSTOM_FUNCTIONS, unregister_function

    known = set(CUSTOM_FUNCTIONS)
    yield
    for name in set(CUSTOM_FUNCTIONS) - known:
        unregister_function(name)


@pytest.fixture(autouse=True)
def logs_as_found() -> Iterator[None]:
    """Logs that a test shows are off again: where plans are shown, no program is taken from the cache."""
    yield
    from tilefuse.base.logs import from_environment

    from_environment({})
