"""Figures of the house: `python -m tests.house.figures [PACKAGE]` prints what the rules of this folder count, for comparing two states.

PACKAGE is the folder of another state's package (`src/tilefuse` of a worktree). It prints one line a room, then one line a figure.
"""
from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.house.numbers import constants
from tests.house.source_tree import PACKAGE
from tests.house.test_layering import circles, imports_of_modules
from tests.house.test_templates import dispatches
from tests.house.test_types import num_ignored
from tests.house.test_words import EMPTY_NAMES, bound_names

# Classes of the templates' choices, under the names of all states that are compared.
CHOICES = {"Pointwise", "Flat", "Transpose", "Rows", "Columns", "Stitched", "Staged", "Online", "Packed"}
# Rooms that choose, price or compose kernels, under the names of all states that are compared.
DECIDING = ("schedule/", "codegen/", "plan/", "passes/", "templates/", "domain/", "emit/", "scripts/")
LONG_FUNCTION_LINES = 60


def trees(package: Path) -> dict[str, ast.Module]:
    """Path below the package -> syntax tree."""
    return {p.relative_to(package).as_posix(): ast.parse(p.read_text(encoding="utf-8")) for p in sorted(package.rglob("*.py"))}


def undocumented(tree: ast.Module) -> tuple[int, int]:
    """(public functions, classes and methods without a docstring, all of them)."""
    public = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("_")]
    return sum(ast.get_docstring(n) is None for n in public), len(public)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Every function and method."""
    return (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))


def main(package: Path) -> None:
    """Print the figures of a package's folder."""
    files = trees(package)
    texts = {path: (package / path).read_text(encoding="utf-8") for path in files}
    rooms = Counter(path.split("/")[0] if "/" in path else "" for path in files)
    for room in sorted(rooms):
        mine = [path for path in files if (path.split("/")[0] if "/" in path else "") == room]
        folders = Counter(str(Path(path).parent) for path in mine)
        print(f"room {room or '(front door)':<12} {len(mine):4} files {sum(texts[p].count(chr(10)) for p in mine):6} lines,"
              f" largest folder {max(folders.values())} files")
    dispatching = {path: number for path, tree in files.items() if (number := len(list(dispatches(tree, CHOICES))))}
    print(f"files that dispatch on the template: {len(dispatching)} ({sum(dispatching.values())} places)")
    rounds = circles(imports_of_modules(files))
    print(f"circles of imports: {len(rounds)} ({sum(map(len, rounds))} modules)")
    counted = {path: len(list(constants(tree))) for path, tree in files.items() if path.startswith(DECIDING)}
    holding = sum(map(bool, counted.values()))
    print(f"numeric constants of modules that choose, price or compose: {sum(counted.values())} in {holding} files")
    print(f"type: ignore: {sum(map(num_ignored, texts.values()))}")
    lengths = [(n.end_lineno or 0) - n.lineno + 1 for tree in files.values() for n in functions(tree)]
    print(f"functions: {len(lengths)}, above {LONG_FUNCTION_LINES} lines: {sum(n > LONG_FUNCTION_LINES for n in lengths)}")
    missing, public = (sum(column) for column in zip(*(undocumented(tree) for tree in files.values())))
    print(f"public names without docstring: {missing} of {public} ({missing / public:.0%})")
    empty = sum(name in EMPTY_NAMES for tree in files.values() for name in bound_names(tree))
    print(f"names that are bound without a noun ({', '.join(sorted(EMPTY_NAMES))}): {empty}")
    print(f"except InternalError: {sum(len(re.findall(r'except [^:]*InternalError', text)) for text in texts.values())}")
    print(f"total: {len(files)} files, {sum(text.count(chr(10)) for text in texts.values())} lines")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE)
