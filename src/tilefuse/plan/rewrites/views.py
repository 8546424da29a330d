"""Views: nodes that only rename memory. A strided window onto a value needs no kernel where its reader takes strides.

Library calls and callers take strided tensors; kernels do not read views (passes substitute them into the subscripts instead), except
windows that lie like tensors of their own, which products in kernels take as operands.
"""
from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from tilefuse.ir.affine import row_major_strides
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts, strides_of, window_of
from tilefuse.ir.scalar import Read
from tilefuse.plan.pattern import View
from tilefuse.target.memory import ACCESS_BYTES


def as_view(graph: Graph, node: Node, base_strides: tuple[int, ...]) -> View | None:
    """The node as a window onto the one value it reads; None where it computes, has guards, or has a subscript with a remainder.

    Units: offset and strides in elements of the base's memory.
    """
    window = window_of(graph, node, base_strides)
    if window is None or not isinstance(node.body, Read):
        return None
    return View(node.name, node.body.value, *window)


def is_window(graph: Graph, view: View) -> bool:
    """Whether a view is a dense part of its base, aligned like a tensor of its own."""
    type_ = graph.type_of(view.value)
    dense = view.strides == row_major_strides(type_.shape)
    return dense and type_.num_bytes < graph.type_of(view.base).num_bytes and view.offset * type_.dtype.itemsize % ACCESS_BYTES == 0


def without_views(layouts: Layouts, views: Mapping[str, View]) -> dict[str, tuple[int, ...]]:
    """The layouts of values with memory of their own. A view has the layout that its base gives it, and not one that was decided for it as
    a value."""
    return {value: strides for value, strides in layouts.items() if value not in views}


def find_views(graph: Graph, layouts: Layouts, wanted: Layouts) -> dict[str, View]:
    """Nodes of the graph that need no kernel: every user is a library call or another view, or they go to the caller unchanged.

    The base of a view is never a view itself: chains are resolved to the value that has memory.

    wanted: strides that the caller wants of results; a result with other strides is no view.
    """
    # Values whose memory a result must not share.
    frozen = frozenset(i.name for i in graph.inputs if i.constant) | frozenset(i for i, _ in graph.updates)
    updated = frozenset(v for _, v in graph.updates)
    stored: frozenset[str] = frozenset()
    while True:
        views = _possible_views(graph, layouts, stored)
        possible = frozenset(views)
        # Users come after their operands, so one visit backwards knows the decision on every user.
        for name in [n.name for n in reversed(graph.nodes) if n.name in views]:
            if name in updated or not _allowed(graph, views, name, wanted, frozen):
                del views[name]
        # A value that is no view after all has memory of its own, of which other nodes may be views.
        if possible - views.keys() <= stored:
            return views
        stored |= possible - views.keys()


def _possible_views(graph: Graph, layouts: Layouts, stored: AbstractSet[str]) -> dict[str, View]:
    """Nodes that strides can express, with users of any kind: windows onto the memory of the first value of their chain, or else onto
    the nearest one of `stored`."""
    views: dict[str, View] = {}
    for node in graph.nodes:
        if node.kind != "map" or not isinstance(node.body, Read):
            continue
        value = node.body.value
        under = views.get(value)
        view = None if under is None else as_view(graph, node, under.strides)
        if view is not None and under is not None:
            views[node.name] = View(view.value, under.base, under.offset + view.offset, view.strides)
        elif under is None or value in stored:
            view = as_view(graph, node, strides_of(graph, layouts, value))
            if view is not None:
                views[node.name] = view
    return views


def _allowed(graph: Graph, views: Mapping[str, View], value: str, result_layouts: Layouts, frozen: frozenset[str]) -> bool:
    for user in graph.users_by_name[value]:
        # A view of the value's own memory needs that memory.
        if graph.node_by_name[user].category != "library" and (user not in views or views[user].base == value):
            return False
    if value not in graph.results:
        return True
    view = views[value]
    if value in result_layouts and result_layouts[value] != view.strides:
        return False
    # A caller may write into its results: overlapping memory, weights and updated inputs must not be handed out.
    overlapping = any(s == 0 and n > 1 for s, n in zip(view.strides, graph.type_of(value).shape, strict=True))
    return not overlapping and view.base not in frozen
