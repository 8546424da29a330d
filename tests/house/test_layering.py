"""Imports only go down: every import in the package, also those inside functions, respects the floors."""
from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.house.source_tree import SourceFile, package_files

# Room -> the rooms it may import (besides itself). `tilefuse` alone is the package's front door, floor 6: it may name the driver.
MAY_IMPORT: dict[str, set[str]] = {
    "base": set(),
    "target": {"base"},
    "ir": {"base", "target"},
    "pages": {"base"},
    "runtime": {"base", "target", "pages"},
    "standalone": {"base", "target", "runtime"},
    "frontends": {"base", "target", "ir"},
    "passes": {"base", "target", "ir"},
    "schedule": {"base", "target", "ir", "passes"},
    "plan": {"base", "target", "ir", "passes", "schedule"},
    "codegen": {"base", "target", "ir", "passes", "schedule"},
    "driver": {"base", "target", "ir", "pages", "runtime", "standalone", "frontends", "passes", "schedule", "plan", "codegen"},
    "inspection": {"base", "target", "ir", "pages", "runtime", "driver"},
    "tools": {"", "base", "target", "ir", "pages", "runtime", "standalone", "frontends", "passes", "schedule", "plan", "codegen", "driver",
              "inspection"},
    "": {"base", "target", "ir", "runtime", "frontends", "passes", "schedule", "plan", "codegen", "driver", "inspection"},
    "nn": {"", "base", "frontends"},
    "optim": {"", "base", "frontends", "nn"},
}


def imported_modules(file: SourceFile) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything of tilefuse that a file imports, wherever in the file."""
    for node in ast.walk(file.tree):
        match node:
            case ast.Import(names):
                for alias in names:
                    if alias.name.split(".")[0] == "tilefuse":
                        yield node.lineno, alias.name
            case ast.ImportFrom(module, names, level):
                if level:
                    base = list(package_parts(file))[: len(package_parts(file)) - level + 1]
                    yield node.lineno, ".".join([*base, *([module] if module else [])])
                elif module and module.split(".")[0] == "tilefuse":
                    if module == "tilefuse":
                        for alias in names:
                            yield node.lineno, f"tilefuse.{alias.name}"
                    else:
                        yield node.lineno, module
            case ast.Call(ast.Attribute(attr="import_module") | ast.Name("import_module" | "__import__"), [ast.Constant(str(name)), *_]):
                if name.split(".")[0] == "tilefuse":
                    yield node.lineno, name


def package_parts(file: SourceFile) -> tuple[str, ...]:
    """Dotted package of a file: ("tilefuse", "ir") for ir/graph.py."""
    return ("tilefuse", file.folder) if file.folder else ("tilefuse",)


def room_of(module: str) -> str:
    """The room of a dotted module name; "" for the front door and the modules directly in the package."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else ""


@pytest.mark.parametrize("file", package_files(), ids=lambda f: f.name)
def test_imports_only_go_down(file: SourceFile) -> None:
    """A file imports only its own room and the rooms of lower floors."""
    allowed = MAY_IMPORT[file.folder] | {file.folder}
    climbs = [f"{file.name}:{line} imports {name}" for line, name in imported_modules(file) if room_of(name) not in allowed]
    assert not climbs, "\n".join(climbs)


# Pairs that need each other: what saves or explains a record makes or reads one, and methods of arrays call functions of arrays.
MUTUAL = {f"src/tilefuse/{name}.py" for name in ("runtime/cache", "runtime/program", "frontends/array_methods")}
# Rooms whose functions import our own modules late, so that the front door and the command line start quickly.
LATE = {"", "driver", "inspection", "tools", "nn", "optim"}


@pytest.mark.parametrize("file", [f for f in package_files() if f.folder not in LATE], ids=lambda f: f.name)
def test_our_own_modules_are_imported_at_the_top(file: SourceFile) -> None:
    """Below the driver an import inside a function is for packages of others: two files that need each other are one, or three."""
    functions = [n for n in ast.walk(file.tree) if isinstance(n, ast.FunctionDef)]
    late = [n.module for f in functions for n in ast.walk(f) if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("tilefuse")]
    assert not late or file.name in MUTUAL, f"{file.name} imports {', '.join(map(str, late))} inside a function"


def test_every_folder_is_a_known_room() -> None:
    """A new folder must take its place in the table above before it can be used."""
    unknown = {f.folder for f in package_files()} - set(MAY_IMPORT)
    assert not unknown, f"folders without a floor: {sorted(unknown)}"


def test_a_climbing_import_is_found() -> None:
    """The check itself can fail: an import of the driver from the ir room, hidden in a function, is seen."""
    file = next(f for f in package_files() if f.folder == "ir")
    text = "def f():\n    from tilefuse.driver.compile import compile_graph\n    return compile_graph\n"
    planted = SourceFile(file.path, text, ast.parse(text))
    assert [room_of(name) for _, name in imported_modules(planted)] == ["driver"]
