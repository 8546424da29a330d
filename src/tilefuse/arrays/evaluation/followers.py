"""Arrays computed from variables: their data is outdated once a variable is assigned, so they drop it and are computed again.

    h = w * 2; print(h)          h holds data and how it was computed, and is noted as a follower of w
    run(w.assign(...))           h holds how it was computed
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary, WeakSet

from tilefuse.arrays.graph import walking
from tilefuse.arrays.nodes import Applied, ArrayNode, Source

# Computed arrays -> the variables that they depend on; and the reverse.
_variables: WeakKeyDictionary[ArrayNode, tuple[Source, ...]] = WeakKeyDictionary()
_followers: WeakKeyDictionary[Source, WeakSet[ArrayNode]] = WeakKeyDictionary()


def variables_of(node: ArrayNode) -> tuple[Source, ...]:
    """The variables that a computed node or a leaf stands on, whose assignments make its data old."""
    if isinstance(node, Source):
        return (node,) if node.role == "variable" else ()
    return _variables.get(node, ()) if node.operands else ()


def follow(made: Sequence[ArrayNode], leaves: Sequence[ArrayNode]) -> None:
    """Notes for nodes that are computed from these leaves on which variables they stand."""
    variables = tuple(dict.fromkeys([v for leaf in leaves for v in variables_of(leaf)]))
    for node in made if variables else ():
        _variables[node] = variables
        for variable in variables:
            _followers.setdefault(variable, WeakSet()).add(node)


def forget_followers(variables: Iterable[Source]) -> None:
    """Takes their data from arrays that were computed from variables which have been assigned, and know how; they are computed again."""
    with walking:
        for variable in variables:
            for node in _followers.pop(variable, ()):
                if isinstance(node, Applied) and node.operands:
                    node.buffer = None
                _variables.pop(node, None)
