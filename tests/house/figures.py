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

import networkx as nx

from tests.house.source_tree import PACKAGE

# Classes of the templates' choices, under the names of all states that are compared.
CHOICES = {"Pointwise", "Flat", "Transpose", "Rows", "Columns", "Stitched", "Staged", "Online", "Packed"}
# Rooms that choose, price or compose kernels, under the names of all states that are compared.
DECIDING = ("schedule/", "codegen/", "plan/", "passes/", "templates/", "domain/", "emit/", "scripts/")
LONG_FUNCTION_LINES = 60
CONSTANT = re.compile(r"[A-Z][A-Z0-9_]+$")


def trees(package: Path) -> dict[str, ast.Module]:
    """Path below the package -> syntax tree."""
    return {p.relative_to(package).as_posix(): ast.parse(p.read_text(encoding="utf-8")) for p in sorted(package.rglob("*.py"))}


def dispatches(tree: ast.Module) -> int:
    """Places that ask which template a choice is: `isinstance(choice, Rows)`, `case Rows()`, `program.template == "rows"`."""
    count = 0
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Name("isinstance"), [_, kinds]):
                count += bool({n.id for n in ast.walk(kinds) if isinstance(n, ast.Name)} & CHOICES)
            case ast.MatchClass(ast.Name(name)) if name in CHOICES:
                count += 1
            case ast.Compare(ast.Attribute(attr="template"), _, [ast.Constant() | ast.Tuple() | ast.Set(), *_]):
                count += 1
    return count


def circles(files: dict[str, ast.Module]) -> list[set[str]]:
    """Groups of modules that import each other, directly or around a corner."""
    names = {path.removesuffix(".py").replace("/", "."): path for path in files if not path.endswith("__init__.py")}
    graph = nx.DiGraph()
    for module, path in names.items():
        for node in ast.walk(files[path]):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for target in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    if (known := target.removeprefix("tilefuse.")) in names and known != module:
                        graph.add_edge(module, known)
    return [group for group in nx.strongly_connected_components(graph) if len(group) > 1]


def numeric_constants(tree: ast.Module) -> Iterator[str]:
    """Names of module constants whose value holds a number: sizes, limits, fitted figures."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) and node.value else []
        numbers = [n for n in ast.walk(node) if isinstance(n, ast.Constant) and type(n.value) in (int, float)] if targets else []
        yield from (t.id for t in targets if isinstance(t, ast.Name) and CONSTANT.match(t.id.lstrip("_")) and numbers)


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
    dispatching = {path: number for path, tree in files.items() if (number := dispatches(tree))}
    print(f"files that dispatch on the template: {len(dispatching)} ({sum(dispatching.values())} places)")
    print(f"circles of imports: {len(circles(files))} ({sum(map(len, circles(files)))} modules)")
    counted = {path: len(list(numeric_constants(tree))) for path, tree in files.items() if path.startswith(DECIDING)}
    constants = {path: number for path, number in counted.items() if number}
    print(f"numeric constants of modules that choose, price or compose: {sum(constants.values())} in {len(constants)} files")
    print(f"type: ignore: {sum(text.count('# type: ignore') for text in texts.values())}")
    lengths = [(n.end_lineno or 0) - n.lineno + 1 for tree in files.values() for n in functions(tree)]
    print(f"functions: {len(lengths)}, above {LONG_FUNCTION_LINES} lines: {sum(n > LONG_FUNCTION_LINES for n in lengths)}")
    missing, public = (sum(column) for column in zip(*(undocumented(tree) for tree in files.values())))
    print(f"public names without docstring: {missing} of {public} ({missing / public:.0%})")
    print(f"except InternalError: {sum(len(re.findall(r'except [^:]*InternalError', text)) for text in texts.values())}")
    print(f"total: {len(files)} files, {sum(text.count(chr(10)) for text in texts.values())} lines")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE)
