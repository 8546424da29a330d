"""Public modules, classes and functions say what they are; numbers say their units; errors say their cause."""
from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.house.source_tree import SourceFile, package_files

LABELS = ("Shapes", "Units", "Requires", "Raises", "Exact", "Cost", "Source")
# Names whose unit is already in the name need no `Units:` label.
PLAIN_LABEL = re.compile(r"^\s*([A-Z][a-z]+):(\s|$)", re.MULTILINE)
# Labels of other documentation styles: we have one style.
FOREIGN = {"Args", "Arguments", "Returns", "Return", "Yields", "Parameters", "Attributes", "Examples", "Note", "Notes", "Example"}
SHORT = 4


def public_definitions(file: SourceFile) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, bool]]:
    """(definition, is a method) of the public top-level classes and functions and the public methods of public classes."""
    for node in file.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node, False
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and not inner.name.startswith("_"):
                        yield inner, True


def is_registered_rule(node: ast.AST) -> bool:
    """Whether a function is an entry of a decorated operator table, whose decorator already names what it does."""
    return isinstance(node, ast.FunctionDef) and bool(node.decorator_list)


@cache
def documented_methods() -> frozenset[str]:
    """Names of methods that some class of the package documents: an override means what the method it replaces means."""
    return frozenset(
        node.name for file in package_files() for node, is_method in public_definitions(file) if is_method and ast.get_docstring(node))


def is_override(file: SourceFile, method: ast.AST) -> bool:
    """Whether a method stands in a class with bases and has the name of a documented method."""
    owners = (node for node in file.tree.body if isinstance(node, ast.ClassDef) and method in node.body)
    return any(owner.bases for owner in owners) and getattr(method, "name", "") in documented_methods()


def is_short(node: ast.AST) -> bool:
    """Whether the body is so short that it reads as fast as a docstring."""
    return isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno < SHORT


@pytest.mark.parametrize("file", package_files(), ids=lambda f: f.name)
def test_public_things_have_docstrings(file: SourceFile) -> None:
    """Every module, public class and public function has one; short methods and table entries may do without."""
    missing: list[str] = [] if ast.get_docstring(file.tree) else [f"{file.name}: the module"]
    for node, is_method in public_definitions(file):
        if ast.get_docstring(node) or is_registered_rule(node) or (is_method and (is_short(node) or is_override(file, node))):
            continue
        missing.append(f"{file.name}:{node.lineno} {node.name}")
    assert not missing, "no docstring:\n" + "\n".join(missing)


@pytest.mark.parametrize("file", package_files(), ids=lambda f: f.name)
def test_docstrings_use_the_house_labels(file: SourceFile) -> None:
    """Sections are labelled Shapes, Units, Requires, Raises, Exact, Cost or Source; no second style creeps in."""
    foreign: list[str] = []
    for node in ast.walk(file.tree):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            continue
        for label in PLAIN_LABEL.findall(ast.get_docstring(node) or ""):
            if label in FOREIGN:
                foreign.append(f"{file.name}:{getattr(node, 'lineno', 1)} label {label}: (ours are {', '.join(LABELS)})")
    assert not foreign, "\n".join(foreign)


@pytest.mark.parametrize("file", [f for f in package_files() if f.folder == "plan" and "cost" in f.path.stem], ids=lambda f: f.name)
def test_costs_carry_a_unit_and_an_origin(file: SourceFile) -> None:
    """Every public function of a cost file whose name is a quantity says Units: and Source:."""
    missing: list[str] = []
    for node, _ in public_definitions(file):
        if isinstance(node, ast.FunctionDef) and node.name.endswith(("_us", "_bytes", "_per_s")):
            text = ast.get_docstring(node) or ""
            missing += [f"{file.name}:{node.lineno} {node.name} lacks {label}:" for label in ("Units", "Source") if f"{label}:" not in text]
    assert not missing, "\n".join(missing)
