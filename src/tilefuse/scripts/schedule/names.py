"""Names of a script's variables inside fused kernels of routines, which have their own names.

    vector x, x_l, tile      x_l and tile are names of the generated code: the kernel calls them xl and tile2

Elements are named after their variables (`x_l`, `x_sum`, `x_blocks`, ...). A variable of such a name would collide with another's element.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tilefuse.scripts.language.elementary import CallGraph

# Names in generated kernels that belong to no variable, and suffixes of a variable's name for its elements and sums.
KERNEL_NAMES = re.compile(r"(thread|block|tile|turn|row|slot|begins|ends|block_[xy]|(tx|ty|instance|last|arrivals)_\d+|tile_of_\w+|tf_\w+"
                 r"|tiles_[xy]|chunks|all_blocks|stop|launched_[xy]_\d+|(groups|begin|end)_(turns|taken)_\d+"
                 r"|(last_turn|row_begins|walked)_\d+|turn_of_\w+)\Z")
VARIABLE_SUFFIXES = re.compile(r"(l|sum|total|blocks|partials|value|passed|left_out|of|of_\d+|\d+)(_\w*)?\Z")


def safe_graph(graph: CallGraph) -> tuple[CallGraph, dict[str, str]]:
    """(the graph with variables renamed that collide with the kernel's own names, new name -> the script's name of each variable).

    Exact: the same object where no name collides.
    """
    taken = set(graph.variables) | {size for v in graph.variables.values() for size in (*v.sizes, v.leading)}
    names: dict[str, str] = {}
    for name in graph.variables:
        safe = name
        # Printers turn two `_` into one, and append one to words of C++.
        if KERNEL_NAMES.match(name) or _belongs(name, graph.variables) or "__" in name or name.startswith("_") or name.endswith("_"):
            safe = _free(name.replace("_", ""), taken)
            taken.add(safe)
        names[name] = safe
    script_name = {safe: name for name, safe in names.items()}
    if all(safe == name for safe, name in script_name.items()):
        return graph, script_name
    variables = {names[n]: replace(v, name=names[n]) for n, v in graph.variables.items()}
    calls = tuple(replace(c, arguments=tuple(names[a] if isinstance(a, str) else a for a in c.arguments),
                          results=tuple(names[r] for r in c.results)) for c in graph.calls)
    renamed = replace(graph, variables=variables, inputs=tuple(names[n] for n in graph.inputs),
                      outputs=tuple(names[n] for n in graph.outputs), calls=calls)
    return renamed, script_name


def _belongs(name: str, variables: Mapping[str, object]) -> bool:
    """Whether the name could be that of another variable's element or sum."""
    return any(head in variables and VARIABLE_SUFFIXES.match(rest) for head, rest in _splits(name))


def _splits(name: str) -> Iterable[tuple[str, str]]:
    """The name cut in two at each of its `_`."""
    return ((name[:m.start()], name[m.end():]) for m in re.finditer("_", name))


def _free(stem: str, taken: set[str]) -> str:
    """A name that is neither taken nor one of the kernel's own, with no `_` in it."""
    stem, number = stem or "v", 1
    name = stem
    while name in taken or KERNEL_NAMES.match(name):
        number += 1
        name = f"{stem}{number}"
    return name
