"""Names: no drawer files, no empty class words, pass names as their classes, files of readable length."""
from __future__ import annotations

import ast
import re

import pytest

from tests.house.source_tree import ROOT, nodes_of, other_files, package_files

DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc", "shared", "stuff", "tools_misc", "functions"}
EMPTY_WORDS = ("Base", "Manager", "Info", "Data", "Helper", "Util", "Utils")
CLASSES_THAT_MAY = {"passes/manager.py"}
MOST_LINES = 600
# Operator tables may be longer: one record an operator is easier to read in one place.
TABLES = re.compile(r"(frontends/(torch|onnx)/ops\w*|ir/ops\w*|runtime/calls/library)\.py$")
MOST_TABLE_LINES = 1600


def words_of(class_name: str) -> list[str]:
    """The words of a CamelCase name: KernelCache -> Kernel, Cache."""
    return re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*", class_name)


def test_no_drawer_files() -> None:
    """A file is named after the one thing in it, so that its contents can be guessed."""
    drawers = [p for p in (*[f.path for f in package_files()], *other_files()) if p.stem in DRAWERS]
    assert not drawers, f"name these files after what they hold: {[str(p.relative_to(ROOT)) for p in drawers]}"


def test_class_names_say_something() -> None:
    """No class is called SomethingBase, SomethingManager, SomethingInfo, SomethingData or SomethingHelper."""
    empty = [
        f"{file.name}:{node.lineno} {node.name}"
        for file in package_files()
        if not any(file.name.endswith(tail) for tail in CLASSES_THAT_MAY)
        for node in nodes_of(file.tree, ast.ClassDef)
        if set(words_of(node.name)) & set(EMPTY_WORDS)
    ]
    assert not empty, "\n".join(empty)


def test_files_have_readable_length() -> None:
    """Most files lie between 80 and 500 lines; beyond the ceiling a file holds two ideas."""
    long = []
    for file in package_files():
        most = MOST_TABLE_LINES if TABLES.search(file.name) else MOST_LINES
        if (lines := file.text.count("\n")) > most:
            long.append(f"{file.name} has {lines} lines; split it by idea (ceiling {most})")
    assert not long, "\n".join(long)


def test_pass_names_equal_their_classes() -> None:
    """`remove-dead-nodes` is RemoveDeadNodes: text and code are found by one name."""
    wrong: list[str] = []
    for file in package_files():
        if file.folder != "passes":
            continue
        for node in nodes_of(file.tree, ast.ClassDef):
            for statement in node.body:
                match statement:
                    case ast.AnnAssign(target=ast.Name("name"), value=ast.Constant(str(text))) if text:
                        expected = "".join(word.capitalize() for word in text.split("-"))
                        if expected.lower() != node.name.lower():
                            wrong.append(f"{file.name}:{node.lineno} {node.name} is called {text!r}")
    assert not wrong, "\n".join(wrong)


LOOKS_INTO_TEXT = {"startswith", "endswith", "strip", "removeprefix", "find", "index", "match", "fullmatch", "search"}


def arch_tests(tree: ast.AST) -> list[int]:
    """Lines that compare an architecture's name, or look into it."""
    def names_one(node: ast.AST) -> bool:
        text = isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("sm_")
        return text or isinstance(node, ast.Attribute) and node.attr == "arch" or isinstance(node, ast.Name) and node.id == "arch"

    lines: list[int] = []
    for node in (n for kind in (ast.Compare, ast.Call, ast.Subscript) for n in nodes_of(tree, kind)):
        compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS_INTO_TEXT
        looked = [node.func.value, *node.args] if called else []  # type: ignore[attr-defined]
        sliced = [node.value] if isinstance(node, ast.Subscript) else []
        if any(names_one(n) for n in (*compared, *looked, *sliced)):
            lines.append(node.lineno)
    return sorted(lines)


def test_architectures_are_no_text() -> None:
    """An ability of a device is a fact of its record; as text, "sm_100a" is less than "sm_90"."""
    texts = [f"{file.name}:{line}" for file in package_files() if file.folder != "target" for line in arch_tests(file.tree)]
    assert not texts, "ask device.capabilities:\n" + "\n".join(texts)


@pytest.mark.parametrize("text", ['device.arch >= "sm_90"', 'device.arch.startswith("sm_9")', 'arch == other', 'device.arch[3:]',
                                  '"sm_80" in x'])
def test_a_compared_architecture_is_found(text: str) -> None:
    """The check itself can fail."""
    assert arch_tests(ast.parse(text)) == [1]
