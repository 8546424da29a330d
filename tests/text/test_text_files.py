"""One runner for all text files: an input graph, the passes to run, and the expected text or error.

    // what the file shows
    device: h200                                     (only where passes read a device)
    passes: merge-equal-nodes,remove-dead-nodes      (empty: only parse, verify and print)
    graph @g(...) -> (...) { ... }
    ---- expected
    graph @g(...) -> (...) { ... }

Instead of `---- expected`, `---- error NAME` with text that the message of an error of that class must contain.
`pytest tests/text --update` rewrites the expected parts.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tilefuse.base import errors
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph, print_graph

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*/*.txt"))


@dataclass(frozen=True)
class Case:
    """One file, cut into its parts. `error`: the class of the expected error, or "" where a graph is expected."""

    head: str
    passes: str
    graph: str
    error: str
    expected: str


def cut(text: str) -> Case:
    """The parts of a file. Raises: ValueError where one is missing."""
    given, marker, expected = text.partition("\n---- ")
    if not marker:
        raise ValueError("no line '---- expected' or '---- error NAME'")
    kind, _, expected = expected.partition("\n")
    if kind != "expected" and not kind.startswith("error "):
        raise ValueError(f"'---- {kind}' is neither '---- expected' nor '---- error NAME'")
    head, marker, rest = given.partition("passes:")
    if not marker:
        raise ValueError("no line 'passes: ...'")
    passes, _, graph = rest.partition("\n")
    return Case(head, passes.strip(), graph + "\n", kind.removeprefix("error ") if kind != "expected" else "", expected)


def run(case: Case, name: str) -> Graph:
    graph = parse_graph(case.graph, name)
    if not case.passes:
        return graph
    from tilefuse.base.options import Options
    from tilefuse.driver.pipeline import context_of
    from tilefuse.passes.manager import PassContext, Pipeline
    from tilefuse.target.catalog import device_by_name

    device = re.search(r"^device: (\w+)$", case.head, re.MULTILINE)
    return Pipeline.parse(case.passes).run(graph, context_of(device_by_name(device[1]), Options()) if device else PassContext())


def join(case: Case, kind: str, expected: str) -> str:
    return f"{case.head}passes: {case.passes}\n{case.graph}---- {kind}\n{expected}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(FOLDER)))
def test_text_file(path: Path, request: pytest.FixtureRequest) -> None:
    case = cut(path.read_text())
    update = request.config.getoption("--update")
    try:
        found = print_graph(run(case, path.name))
    except errors.CompilerError as error:
        if update:
            path.write_text(join(case, f"error {type(error).__name__}", error.message + "\n"))
            return
        assert case.error, f"unexpected {type(error).__name__}: {error}"
        assert type(error).__name__ == case.error, f"{case.error} expected, got {type(error).__name__}: {error}"
        assert case.expected.strip() in str(error)
        return
    if update:
        path.write_text(join(case, "expected", found))
        return
    assert not case.error, f"{case.error} expected, got the graph\n{found}"
    assert found == case.expected


def test_folders_hold_files() -> None:
    assert FILES
    assert not list(FOLDER.glob("*.txt")), "files belong into a folder named after the pass they show, or `parser`"


def test_cut_and_join_are_inverse() -> None:
    for path in FILES:
        text = path.read_text()
        case = cut(text)
        assert join(case, f"error {case.error}" if case.error else "expected", case.expected) == text, path
