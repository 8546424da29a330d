"""Arguments and results of array functions as trees: dicts, lists and tuples of arrays, with all other objects unchanged.

A tree's form is hashable, so it distinguishes programs of one function; its leaves have the order of the tree.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tilefuse.arrays.array import Array
from tilefuse.arrays.nodes import user_span
from tilefuse.base.errors import UserError

LEAF = "*"


def flatten(tree: Any, leaves: list[Any], path: str = "", paths: list[str] | None = None) -> Any:
    """The form of a tree; its leaves (arrays, and data that becomes one) are appended to `leaves`, their names to `paths`.

    Raises: UserError for a leaf that is neither an array nor hashable.
    """
    kind = type(tree)
    if paths is None and (kind is dict or kind is list or kind is tuple):
        # Every call of a compiled function pays for this code: no names, and no call for a leaf.
        parts = []
        for v in tree.values() if kind is dict else tree:
            if v.__class__ is Array:
                leaves.append(v)
                parts.append(LEAF)
            else:
                parts.append(flatten(v, leaves))
        return ("dict", tuple(tree), tuple(parts)) if kind is dict else (kind, tuple(parts))
    if kind is Array:
        leaves.append(tree)
        if paths is not None:
            paths.append(path)
        return LEAF
    if kind is dict or isinstance(tree, Mapping):
        keys = tuple(tree)
        return "dict", keys, tuple([flatten(tree[k], leaves, f"{path}_{k}" if path else str(k), paths) for k in keys])
    if kind is list or kind is tuple or isinstance(tree, (list, tuple)):
        return kind, tuple([flatten(v, leaves, f"{path}_{n}" if path else f"_{n}", paths) for n, v in enumerate(tree)])
    if isinstance(tree, (Array, np.ndarray)) or hasattr(tree, "__dlpack__"):
        leaves.append(tree)
        if paths is not None:
            paths.append(path)
        return LEAF
    try:
        hash(tree)
    except TypeError:
        raise UserError(f"{path or 'a value'} is a {kind.__name__}, neither an array nor a setting", where=user_span(),
                        hint="pass arrays, numbers, strings, or dicts, lists and tuples of them") from None
    # 1, 1.0 and True are equal and hash alike, but mean different programs.
    return "=", kind, tree


def unflatten(form: Any, leaves: Iterator[Any]) -> Any:
    """The tree of a form with its leaves in order."""
    if form == LEAF:
        return next(leaves)
    if form[0] == "=":
        return form[2]
    if form[0] == "dict":
        return {key: next(leaves) if part is LEAF else unflatten(part, leaves) for key, part in zip(form[1], form[2])}
    kind, parts = form
    children = [next(leaves) if part is LEAF else unflatten(part, leaves) for part in parts]
    return kind(*children) if hasattr(kind, "_fields") else kind(children)


def settings(form: Any) -> list[Any]:
    """Items of a form that are no leaves, in order."""
    if form == LEAF:
        return []
    return [form[2]] if form[0] == "=" else [s for part in form[-1] for s in settings(part)]


def num_leaves(form: Any) -> int:
    """How many leaves a form has."""
    if form == LEAF:
        return 1
    return 0 if form[0] == "=" else sum(map(num_leaves, form[-1]))
