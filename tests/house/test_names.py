"""Names: no drawer files, no empty class words, pass names as their classes, files of readable length."""
from __future__ import annotations

import ast
import re

import pytest

from tests.house.source_tree import ROOT, SourceFile, other_files, package_files

DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc", "shared", "stuff", "tools_misc", "functions"}
EMPTY_WORDS = ("Base", "Manager", "Info", "Data", "Helper", "Util", "Utils")
CLASSES_THAT_MAY = {"passes/manager.py"}
MOST_LINES = 600
# Operator tables may be longer: one record an operator is easier to read in one place.
TABLES = re.compile(r"(frontends/(torch|onnx)_ops\w*|ir/ops\w*|runtime/library)\.py$")
MOST_TABLE_LINES = 1600


def words_of(class_name: str) -> list[str]:
    """The words of a CamelCase name: KernelCache -> Kernel, Cache."""
    return re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*", class_name)


def test_no_drawer_files() -> None:
    """A file is named after the one thing in it, so that its contents can be guessed."""
    drawers = [p for p in (*[f.path for f in package_files()], *other_files()) if p.stem in DRAWERS]
    assert not drawers, f"name these files after what they hold: {[str(p.relative_to(ROOT)) for p in drawers]}"


@pytest.mark.parametrize("file", package_files(), ids=lambda f: f.name)
def test_class_names_say_something(file: SourceFile) -> None:
    """No class is called SomethingBase, SomethingManager, SomethingInfo, SomethingData or SomethingHelper."""
    if any(file.name.endswith(tail) for tail in CLASSES_THAT_MAY):
        return
    found = [
        f"{file.name}:{node.lineno} {node.name}"
        for node in ast.walk(file.tree)
        if isinstance(node, ast.ClassDef) and set(words_of(node.name)) & set(EMPTY_WORDS)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("file", package_files(), ids=lambda f: f.name)
def test_files_have_readable_length(file: SourceFile) -> None:
    """Most files lie between 80 and 500 lines; beyond the ceiling a file holds two ideas."""
    most = MOST_TABLE_LINES if TABLES.search(file.name) else MOST_LINES
    lines = file.text.count("\n")
    assert lines <= most, f"{file.name} has {lines} lines; split it by idea (ceiling {most})"


def test_pass_names_equal_their_classes() -> None:
    """`remove-dead-nodes` is RemoveDeadNodes: text and code are found by one name."""
    wrong: list[str] = []
    for file in package_files():
        if file.folder != "passes":
            continue
        for node in ast.walk(file.tree):
            if not isinstance(node, ast.ClassDef):
                continue
            for statement in node.body:
                match statement:
                    case ast.AnnAssign(target=ast.Name("name"), value=ast.Constant(str(text))) if text:
                        expected = "".join(word.capitalize() for word in text.split("-"))
                        if expected.lower() != node.name.lower():
                            wrong.append(f"{file.name}:{node.lineno} {node.name} is called {text!r}")
    assert not wrong, "\n".join(wrong)
