"""Errors are never swallowed: broad excepts only at the two boundaries, errors of our own kinds, no bare prints."""
from __future__ import annotations

import ast
import re
import subprocess

import pytest

from tests.house.source_tree import ROOT, nodes_of, package_files

# The two places where anything may be caught: a command must end with a message, and a model must run although we failed.
BOUNDARIES = {"src/tilefuse/tools/cli.py", "src/tilefuse/driver/torch_backend.py"}
BROAD = {"Exception", "BaseException"}
# Home folders, temporary folders of one machine, mount points: they mean nothing to a reader elsewhere.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|home|root|Users|mnt|tmp/[a-z]{2}/)(?:/|\b)")


def broad_handlers(tree: ast.AST) -> list[int]:
    """Lines of `except:`, `except Exception` and `except BaseException`, also inside tuples."""
    lines: list[int] = []
    for node in nodes_of(tree, ast.ExceptHandler):
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        if any(c is None or (isinstance(c, ast.Name) and c.id in BROAD) for c in caught):
            lines.append(node.lineno)
    return lines


def test_broad_excepts_stand_only_at_the_boundaries() -> None:
    """A search that fails for an unexpected reason must fail loudly; expected failures are `Rejected` values."""
    broad = [f"{file.name}:{line}" for file in package_files() if file.name not in BOUNDARIES for line in broad_handlers(file.tree)]
    assert not broad, "broad excepts:\n" + "\n".join(broad)


def test_a_broad_except_is_found() -> None:
    """The check itself can fail."""
    assert broad_handlers(ast.parse("try:\n    x()\nexcept (ValueError, Exception):\n    pass\n")) == [3]
    assert broad_handlers(ast.parse("try:\n    x()\nexcept:\n    pass\n")) == [3]


def plain_raises(tree: ast.AST) -> list[int]:
    """Lines that raise Python's general errors."""
    return [
        node.lineno
        for node in nodes_of(tree, ast.Raise)
        if isinstance(node.exc, ast.Call)
        and isinstance(node.exc.func, ast.Name)
        and node.exc.func.id in {"Exception", "RuntimeError", "AssertionError", "BaseException"}
    ]


def prints(tree: ast.AST) -> list[int]:
    """Lines that print to standard output."""
    return [
        node.lineno
        for node in nodes_of(tree, ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id == "print" and not any(k.arg == "file" for k in node.keywords)
    ]


def test_plain_raises_are_ours() -> None:
    """User-facing failures are CompilerErrors: no `raise Exception(...)`, no `raise RuntimeError(...)`."""
    plain = [f"{file.name}:{line}" for file in package_files() for line in plain_raises(file.tree)]
    assert not plain, "raise one of base/errors.py instead:\n" + "\n".join(plain)


def test_only_tools_print() -> None:
    """A library does not write to standard output; the command line does."""
    printing = [f"{file.name}:{line}" for file in package_files() if file.folder != "tools" for line in prints(file.tree)]
    assert not printing, "print to standard output:\n" + "\n".join(printing)


def test_a_plain_raise_and_a_print_are_found() -> None:
    """The checks themselves can fail."""
    assert plain_raises(ast.parse("if x:\n    raise RuntimeError('no')\nraise OptionError('no')\n")) == [2]
    assert prints(ast.parse("print(1)\nprint(1, file=out)\n")) == [1]


def test_no_machine_paths_in_tracked_files() -> None:
    """Nothing in the repository depends on where one machine keeps its files."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    found: list[str] = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path == ROOT / "tests/house/test_errors.py" or not path.is_file() or path.suffix in {".onnx", ".npz", ".png", ".pb"}:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if MACHINE_PATH.search(line):
                found.append(f"{name}:{number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)
