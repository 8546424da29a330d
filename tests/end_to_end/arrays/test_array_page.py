"""The examples of docs/arrays.md run, and print what the page says."""
from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import tilefuse.array as ta
from tilefuse.arrays.evaluation import evaluate as array_evaluate

PAGE = Path(__file__).resolve().parents[3] / "docs" / "arrays.md"


def test_examples_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `>>>` line of the page, on the host."""
    monkeypatch.setattr(array_evaluate.Evaluation, "default_device", staticmethod(lambda: "host"))
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    assert found.attempted > 15 and not found.failed


def test_functions_that_the_page_names_exist() -> None:
    """Names in the section on what is there."""
    text = PAGE.read_text(encoding="utf-8").partition("## What is there")[2].partition("## Inside")[0]
    names = [n for n in text.split("`")[1::2] if n.isidentifier()]
    assert len(names) > 20 and [n for n in names if not hasattr(ta, n)] == []
