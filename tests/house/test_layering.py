"""Imports only go down: every import in the package, also those inside functions, respects the floors."""
from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Set

import networkx as nx

from tests.house.source_tree import PACKAGE, SourceFile, nodes, nodes_of, package_files

# Room -> the rooms it may import (besides itself), in the order of the floors of docs/layout.md. "" is the front door: `tilefuse`,
# `tilefuse.array`, `tilefuse.blas`, `tilefuse.onnx_backend`.
GROUND = {"base", "target"}
GRAPHS = GROUND | {"ir", "frontends", "passes"}
KERNELS = {"kernel", "domain", "printers", "emit", "templates"}
BELOW_DRIVER = GRAPHS | KERNELS | {"pages", "runtime", "standalone", "plan"}
MAY_IMPORT: dict[str, set[str]] = {
    "base": set(),
    "target": {"base"},
    "pages": {"base"},
    "ir": GROUND,
    "runtime": GROUND | {"pages"},
    "standalone": GROUND | {"runtime"},
    "frontends": GROUND | {"ir"},
    "passes": GROUND | {"ir"},
    "kernel": GROUND | {"ir"},
    "domain": GROUND | {"ir", "passes", "kernel"},
    "printers": GROUND | {"ir", "kernel"},
    "emit": GROUND | {"ir", "kernel", "domain"},
    "templates": GROUND | {"ir", "passes", "kernel", "domain", "emit"},
    "plan": GROUND | {"ir", "passes", "kernel", "domain", "emit", "templates"},
    "driver": BELOW_DRIVER,
    "scripts": BELOW_DRIVER | {"driver"},
    "arrays": BELOW_DRIVER | {"driver"},
    "inspection": GROUND | {"ir", "pages", "runtime", "driver", "scripts", "arrays"},
    "": BELOW_DRIVER | {"driver", "scripts", "arrays", "inspection"},
    "nn": {"", "base", "arrays"},
    "optim": {"", "base", "arrays", "nn"},
    "tools": BELOW_DRIVER | {"", "driver", "scripts", "arrays", "inspection"},
}
# Imports that climb today. Each entry is a debt; an entry that no longer climbs must go.
CLIMBS: set[tuple[str, str]] = set()


def imported_modules(file: SourceFile) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything of tilefuse that a file imports, wherever in the file."""
    for node in (n for kind in (ast.Import, ast.ImportFrom, ast.Call) for n in nodes_of(file.tree, kind)):
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
    """Dotted package of a file: ("tilefuse", "ir", "library") for ir/library/meaning.py."""
    return ("tilefuse", *file.path.relative_to(PACKAGE).parts[:-1])


def room_of(module: str) -> str:
    """The room of a dotted module name; "" for the front door and the modules directly in the package."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else ""


def climbs(file: SourceFile) -> list[tuple[int, str]]:
    """(line, module) of the imports of a file that climb."""
    allowed = MAY_IMPORT[file.folder] | {file.folder}
    return sorted({(line, module) for line, module in imported_modules(file) if room_of(module) not in allowed})


def test_imports_only_go_down() -> None:
    """A file imports only its own room and the rooms of lower floors."""
    new, known = [], set()
    for file in package_files():
        for line, module in climbs(file):
            debt = (file.path.relative_to(PACKAGE).as_posix(), room_of(module))
            if debt in CLIMBS:
                known.add(debt)
            else:
                new.append(f"{file.name}:{line} imports {module}")
    assert not new, "\n".join(new)
    assert not CLIMBS - known, f"these no longer climb, take them out of CLIMBS: {sorted(CLIMBS - known)}"


def imports_of_modules(tree_by_path: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Module -> the modules of the package that it imports, names without "tilefuse.".

    tree_by_path: syntax trees of the package's files by their paths below it.
    """
    path_of = {path.removesuffix(".py").replace("/", "."): path for path in tree_by_path}
    graph: dict[str, set[str]] = {}
    for module, path in path_of.items():
        named = {n for node in nodes_of(tree_by_path[path], ast.ImportFrom) if node.module and not node.level
                 for n in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))}
        graph[module] = {n.removeprefix("tilefuse.") for n in named if n.removeprefix("tilefuse.") in path_of} - {module}
    return graph


def package_trees() -> dict[str, ast.Module]:
    """Syntax trees of the package's files by their paths below it."""
    return {f.path.relative_to(PACKAGE).as_posix(): f.tree for f in package_files()}


def circles(imports: Mapping[str, Set[str]]) -> list[set[str]]:
    """Groups of modules that import each other, directly or around a corner."""
    graph = nx.DiGraph([(module, target) for module, targets in imports.items() for target in targets])
    return [group for group in nx.strongly_connected_components(graph) if len(group) > 1]


def test_no_circle_of_modules() -> None:
    """Modules that import each other, directly or around a corner, are one module or three."""
    found = [sorted(c) for c in circles(imports_of_modules(package_trees()))]
    assert not found, f"circles of imports: {found}"


# Folders of a room in their order, lower first: a folder imports those before it. Modules directly in a room stand where they like.
ROOM_ORDER = {
    "arrays": ("functions", "evaluation"),
    "base": ("search",),
    "driver": ("lowering", "explain", "reuse", "torch", "onnx", "measure", "compare"),
    "frontends": ("torch", "onnx"),
    "ir": ("building", "library"),
    "kernel": ("tasks",),
    "passes": ("autodiff", "device"),
    "plan": ("rewrites", "price", "generators", "select", "text"),
    "printers": ("support",),
    "runtime": ("calls", "stores", "compilers"),
    "scripts": ("language", "schedule", "plan", "compose"),
    "target": ("fitted",),
    "templates": ("transpose", "flat", "tiles", "rows", "columns", "staged", "panels", "packed", "tasks"),
    "tools": ("emit", "commands"),
}


def folder_of(module: str) -> tuple[str, str]:
    """(room, folder in it) of a module's name without "tilefuse."; the folder is "" for a module directly in a room."""
    parts = module.split(".")
    return (parts[0], parts[1]) if len(parts) > 2 else (parts[0], "")


def imports_against_the_order(graph: dict[str, set[str]]) -> list[str]:
    """Imports of modules in a later folder of the same room. Raises: KeyError, ValueError for a folder that ROOM_ORDER lacks."""
    against = []
    for module, targets in graph.items():
        room, folder = folder_of(module)
        for target in targets:
            if folder and folder_of(target)[0] == room and folder_of(target)[1]:
                order = ROOM_ORDER[room]
                if order.index(folder_of(target)[1]) > order.index(folder):
                    against.append(f"{module} imports {target}")
    return sorted(against)


def test_folders_of_a_room_keep_their_order() -> None:
    """Folders that need each other are no folders: a record or a function stands in the wrong one."""
    assert not imports_against_the_order(imports_of_modules(package_trees()))
    planted = {"plan.price.cost": {"plan.select.ilp", "plan.pattern"}}
    assert imports_against_the_order(planted) == ["plan.price.cost imports plan.select.ilp"]


def test_the_order_names_every_folder() -> None:
    """A new folder takes its place in the order of its room, and one that is gone leaves it."""
    folders: dict[str, set[str]] = {}
    for module in imports_of_modules(package_trees()):
        room, folder = folder_of(module)
        if folder:
            folders.setdefault(room, set()).add(folder)
    assert {room: set(order) for room, order in ROOM_ORDER.items()} == folders


# Rooms whose functions import our own modules late, so that the front door and the command line start quickly.
LATE = {"", "driver", "scripts", "arrays", "inspection", "tools", "nn", "optim"}


def late_imports(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, module) of the imports of our own modules inside functions."""
    return sorted({(n.lineno, n.module) for function in nodes_of(tree, ast.FunctionDef) for n in nodes(function)
                   if isinstance(n, ast.ImportFrom) and n.module and n.module.startswith("tilefuse")})


def test_our_own_modules_are_imported_at_the_top() -> None:
    """Below the driver an import inside a function is for packages of others: two files that need each other are one, or three."""
    files = [f for f in package_files() if f.folder not in LATE]
    assert files
    late = [f"{file.name}:{line} imports {module} inside a function" for file in files for line, module in late_imports(file.tree)]
    assert not late, "\n".join(late)


def test_every_folder_is_a_known_room() -> None:
    """A new folder must take its place in the table above before it can be used."""
    unknown = {f.folder for f in package_files()} - set(MAY_IMPORT)
    assert not unknown, f"folders without a floor: {sorted(unknown)}"


MOST_FILES = 26


def test_no_folder_is_a_heap() -> None:
    """A folder holds at most about 25 modules: more than that hide a theme that has no name yet."""
    counts = Counter(f.path.parent.relative_to(PACKAGE).as_posix() for f in package_files() if f.path.stem != "__init__")
    heaps = {folder: number for folder, number in counts.items() if number > MOST_FILES}
    assert not heaps, f"more than {MOST_FILES} modules: {heaps}"


def test_a_climbing_import_is_found() -> None:
    """The check itself can fail: an import of the driver from the ir room, hidden in a function, is seen."""
    file = next(f for f in package_files() if f.folder == "ir")
    text = "def f():\n    from tilefuse.driver.compile import compile_graph\n    return compile_graph\n"
    planted = SourceFile(file.path, text, ast.parse(text))
    assert [room_of(name) for _, name in imported_modules(planted)] == ["driver"]
    assert climbs(planted) == late_imports(planted.tree) == [(2, "tilefuse.driver.compile")]
