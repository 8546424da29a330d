"""Public modules, classes and functions say what they are; numbers say their units; errors say their cause."""
from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

from tests.house.source_tree import SourceFile, docstring, nodes_of, package_files

LABELS = ("Shapes", "Units", "Requires", "Raises", "Exact", "Cost", "Source")
# Names whose unit is already in the name need no `Units:` label.
PLAIN_LABEL = re.compile(r"^\s*([A-Z][a-z]+):(?:\s|$)", re.MULTILINE)
# Labels of other documentation styles: we have one style.
FOREIGN = {"Args", "Arguments", "Returns", "Return", "Yields", "Parameters", "Attributes", "Examples", "Note", "Notes", "Example"}
SHORT = 4
# Public definitions without a docstring, by room: operators of frontends, `run` of passes. A count may only fall; other rooms have none.
UNDOCUMENTED_KNOWN = {"arrays": 1, "frontends": 231, "kernel": 1, "passes": 14, "templates": 5}


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
        node.name for file in package_files() for node, is_method in public_definitions(file) if is_method and docstring(node))


def is_override(file: SourceFile, method: ast.AST) -> bool:
    """Whether a method stands in a class with bases and has the name of a documented method."""
    owners = (node for node in file.tree.body if isinstance(node, ast.ClassDef) and method in node.body)
    return any(owner.bases for owner in owners) and getattr(method, "name", "") in documented_methods()


def is_short(node: ast.AST) -> bool:
    """Whether the body is so short that it reads as fast as a docstring."""
    return isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno < SHORT


def undocumented(file: SourceFile) -> Iterator[str]:
    """Modules, public classes and public functions without a docstring; short methods and table entries may do without."""
    if not docstring(file.tree):
        yield f"{file.name}: the module"
    for node, is_method in public_definitions(file):
        if docstring(node) or is_registered_rule(node):
            continue
        if not (is_method and (is_short(node) or is_override(file, node))):
            yield f"{file.name}:{node.lineno} {node.name}"


def foreign_labels(file: SourceFile) -> Iterator[str]:
    """Sections that the docstrings of a file label in another style."""
    for node in (file.tree, *nodes_of(file.tree, ast.ClassDef), *nodes_of(file.tree, ast.FunctionDef)):
        for label in PLAIN_LABEL.findall(docstring(node)):
            if label in FOREIGN:
                yield f"{file.name}:{getattr(node, 'lineno', 1)} label {label}: (ours are {', '.join(LABELS)})"


def test_public_things_have_docstrings() -> None:
    """Every module, public class and public function has one."""
    missing = [text for file in package_files() for text in undocumented(file)]
    assert not missing, "no docstring:\n" + "\n".join(missing)


def test_fewer_public_things_lack_docstrings() -> None:
    """Also a short method or a table entry says what it returns, unless it is one of those that have never done so."""
    counts = Counter(file.folder for file in package_files() for node, _ in public_definitions(file) if not docstring(node))
    over = {room: n for room, n in counts.items() if n > UNDOCUMENTED_KNOWN.get(room, 0)}
    assert not over, f"give new public definitions a docstring: {over}, ceilings {UNDOCUMENTED_KNOWN}"


def test_docstrings_use_the_house_labels() -> None:
    """Sections are labelled Shapes, Units, Requires, Raises, Exact, Cost or Source; no second style creeps in."""
    foreign = [text for file in package_files() for text in foreign_labels(file)]
    assert not foreign, "\n".join(foreign)


def test_a_missing_docstring_and_a_foreign_label_are_found() -> None:
    """The checks themselves can fail."""
    text = 'class C:\n    """One.\n\n    Args: none\n    """\n    def f(self):\n' + "        self.x = 1\n" * SHORT
    planted = SourceFile(package_files()[0].path, text, ast.parse(text))
    assert [line.partition(":")[2] for line in undocumented(planted)] == [" the module", "6 f"]
    assert [line.partition(":")[2].partition(" (")[0] for line in foreign_labels(planted)] == ["1 label Args:"]


def test_costs_carry_a_unit_and_an_origin() -> None:
    """Every public function of a cost file whose name is a quantity says Units: and Source:."""
    files = [f for f in package_files() if f.folder == "plan" and "cost" in f.path.stem]
    assert files
    missing: list[str] = []
    for file in files:
        for node, _ in public_definitions(file):
            if isinstance(node, ast.FunctionDef) and node.name.endswith(("_us", "_bytes", "_per_s")):
                text = docstring(node)
                missing += [f"{file.name}:{node.lineno} {node.name} lacks {label}:" for label in ("Units", "Source")
                            if f"{label}:" not in text]
    assert not missing, "\n".join(missing)
