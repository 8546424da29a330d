"""The package's source files, parsed and walked once for all house tests."""
from __future__ import annotations

import ast
import gc
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tilefuse"
Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True)
class SourceFile:
    """One Python file: its path from the repository's root, its text and its syntax tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """Path from the repository's root, for messages."""
        return str(self.path.relative_to(ROOT))

    @property
    def folder(self) -> str:
        """The room: first folder below the package, or "" for files directly in it."""
        parts = self.path.relative_to(PACKAGE).parts
        return parts[0] if len(parts) > 1 else ""


@cache
def package_files() -> tuple[SourceFile, ...]:
    """Every Python file of the package, sorted by path."""
    # Nothing becomes garbage here, and a million nodes stay: collecting while they are made takes three times as long as parsing, and
    # each later collection would visit them.
    was_enabled = gc.isenabled()
    gc.disable()
    files = tuple(_parse(path) for path in sorted(PACKAGE.rglob("*.py")))
    gc.freeze()
    if was_enabled:
        gc.enable()
    return files


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Every node of a tree, as `ast.walk` gives them; walked once a tree."""
    return tuple(ast.walk(tree))


@cache
def _nodes_by_kind(tree: ast.AST) -> dict[type[ast.AST], list[ast.AST]]:
    by_kind: dict[type[ast.AST], list[ast.AST]] = {}
    for node in nodes(tree):
        by_kind.setdefault(type(node), []).append(node)
    return by_kind


def nodes_of(tree: ast.AST, kind: type[Node]) -> list[Node]:
    """The nodes of one kind (a class of `ast` without subclasses), in the order of `ast.walk`."""
    return [node for node in _nodes_by_kind(tree).get(kind, ()) if isinstance(node, kind)]


@cache
def other_files() -> tuple[Path, ...]:
    """Python files outside the package: tests, benchmarks, examples."""
    found = [p for folder in ("tests", "benchmarks", "examples") for p in (ROOT / folder).rglob("*.py")]
    return tuple(sorted(found))


def docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The docstring with the indentation that it has in the file, or ""."""
    return (ast.get_docstring(node, clean=False) or "").strip()


def _parse(path: Path) -> SourceFile:
    text = path.read_text(encoding="utf-8")
    return SourceFile(path, text, ast.parse(text, filename=str(path)))
