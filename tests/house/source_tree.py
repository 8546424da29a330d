"""The package's source files, parsed once for all house tests."""
from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tilefuse"


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
    return tuple(_parse(path) for path in sorted(PACKAGE.rglob("*.py")))


@cache
def other_files() -> tuple[Path, ...]:
    """Python files outside the package: tests, benchmarks, examples."""
    found = [p for folder in ("tests", "benchmarks", "examples") for p in (ROOT / folder).rglob("*.py")]
    return tuple(sorted(found))


def _parse(path: Path) -> SourceFile:
    text = path.read_text(encoding="utf-8")
    return SourceFile(path, text, ast.parse(text, filename=str(path)))
