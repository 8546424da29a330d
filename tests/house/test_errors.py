"""Errors are never swallowed: broad excepts only at the two boundaries, errors of our own kinds, no bare prints."""
from __future__ import annotations

import ast
import re
import subprocess

import pytest

from tests.house.source_tree import ROOT, SourceFile, package_files

# The two places where anything may be caught: a command must end with a message, and a model must run although we failed.
BOUNDARIES = {"src/tilefuse/tools/cli.py", "src/tilefuse/driver/torch_backend.py"}
BROAD = {"Exception", "BaseException"}
# Home folders, temporary folders of one machine, mount points: they mean nothing to a reader elsewhere.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|home|root|Users|mnt|tmp/[a-z]{2}/)(?:/|\b)")


def broad_handlers(tree: ast.AST) -> list[int]:
    """Lines of `except:`, `except Exception` and `except BaseException`, also inside tuples."""
    lines: list[int] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            if any(c is None or (isinstance(c, ast.Name) and c.id in BROAD) for c in caught):
                lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("file", package_files(), ids=lambda f: f.name)
def test_broad_excepts_stand_only_at_the_boundaries(file: SourceFile) -> None:
    """A search that fails for an unexpected reason must fail loudly; expected failures are `Rejected` values."""
    lines = [] if file.name in BOUNDARIES else broad_handlers(file.tree)
    assert not lines, f"{file.name}: broad except at lines {lines}"


def test_a_broad_except_is_found() -> None:
    """The check itself can fail."""
    assert broad_handlers(ast.parse("try:\n    x()\nexcept (ValueError, Exception):\n    pass\n")) == [3]
    assert broad_handlers(ast.parse("try:\n    x()\nexcept:\n    pass\n")) == [3]


@pytest.mark.parametrize("file", package_files(), ids=lambda f: f.name)
def test_plain_raises_are_ours(file: SourceFile) -> None:
    """User-facing failures are CompilerErrors: no `raise Exception(...)`, no `raise RuntimeError(...)`."""
    plain = [
        f"{file.name}:{node.lineno}"
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and isinstance(node.exc.func, ast.Name)
        and node.exc.func.id in {"Exception", "RuntimeError", "AssertionError", "BaseException"}
    ]
    assert not plain, f"raise one of base/errors.py instead: {plain}"


@pytest.mark.parametrize("file", package_files(), ids=lambda f: f.name)
def test_only_tools_print(file: SourceFile) -> None:
    """A library does not write to standard output; the command line does."""
    if file.folder == "tools":
        return
    found = [
        f"{file.name}:{node.lineno}"
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
        and not any(k.arg == "file" for k in node.keywords)
    ]
    assert not found, f"print to standard output: {found}"


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
