"""Graphs built by hand: placeholders to feed, variables to assign, and a session that runs fetches.

    x = ta.placeholder((32, 3))                        w = ta.variable(ta.zeros((3,)))
    step = w.assign(w - 0.1 * ta.grad(loss, w))        ta.Session().run([loss, step], {x: batch})

Everything fetched in one run sees the variables as they were before it; assignments happen together at its end.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from tilefuse.arrays.array import Array, apply, lower_copy
from tilefuse.arrays.evaluation.evaluate import Evaluation, strides_of
from tilefuse.arrays.evaluation.followers import forget_followers
from tilefuse.arrays.evaluation.nan import checks_nan, find_nan
from tilefuse.arrays.graph import graph_of, in_order, structure_of, walking
from tilefuse.arrays.nodes import ArrayNode, Source, common_device, user_span
from tilefuse.arrays.trees import LEAF, unflatten
from tilefuse.arrays.types import DEFAULT_FLOAT, NAME_OF, as_dtype
from tilefuse.base.bounded import Bounded
from tilefuse.base.errors import ShapeError, TypeMismatchError, UserError
from tilefuse.base.options import Options
from tilefuse.driver.compile import compile_graph
from tilefuse.ir.graph import Type
from tilefuse.runtime.calls.library import as_complex

MOST_PROGRAMS = 512
_Refs = tuple[ref[ArrayNode], ...]


def placeholder(shape: int | Sequence[int], dtype: Any = None, name: str = "", *, device: Any = None) -> Array:
    """An array without data; each `Session.run` is fed its value. `name` is for messages and generated code."""
    extents = (shape,) if not isinstance(shape, Iterable) else tuple(shape)
    if not all(isinstance(n, (int, np.integer)) and n >= 0 for n in extents):
        raise ShapeError(f"the shape of a placeholder is numbers, not {shape}", where=user_span(),
                         hint="programs are compiled for fixed shapes: make a placeholder for each")
    extents = tuple(map(int, extents))
    kind = DEFAULT_FLOAT if dtype is None else as_dtype(dtype)
    place = Evaluation.default_device() if device is None else Evaluation.device_named(device)
    return Array(Source(Type(kind, extents), place, None, name or "placeholder", "placeholder"))


class Variable(Array):
    """An array with data that assignments change, in arithmetic as any array. `variable` makes one; node: its data."""

    __slots__ = ()

    def assign(self, value: Any) -> Assign:
        """An assignment to fetch: when it is run, the variable holds `value`.

        Raises: ShapeError, TypeMismatchError where it does not fit.
        """
        array = value if isinstance(value, Array) else Array(Evaluation.source(value, self.dtype, self.device, None))
        if array.shape != self.shape:
            raise ShapeError(f"a variable of shape {self.shape} cannot hold a value of shape {array.shape}", where=user_span(),
                             hint="reshape or broadcast_to the value")
        if array.dtype != self.dtype:
            raise TypeMismatchError(f"a variable of {NAME_OF[self.dtype]} cannot hold {NAME_OF[array.dtype]}", where=user_span(),
                                    hint="convert the value with astype")
        return Assign(self, array)

    @property
    def value(self) -> Array:
        """Its present data, as an array that later assignments leave alone."""
        assert isinstance(self.node, Source)
        return Array(Source(self.node.type, self.node.device, self.node.buffer.clone()))


class Assign(Array):
    """An assignment: an array with the new value. Fetching it, or an array that depends on it, performs the assignment."""

    __slots__ = ("variable",)

    def __init__(self, variable: Variable, value: Array) -> None:
        # A node of its own: a run finds by it which assignments are to be made. A later write to the value does not change it.
        super().__init__(apply(lower_copy, (value,)).node)
        self.variable = variable
        _assigned[self.node] = variable.node

    def __setitem__(self, key: Any, value: Any, /) -> None:
        raise UserError("an assignment is not written to", where=user_span(), hint="write to the value before it is assigned")


# The node of each assignment -> the variable's.
_assigned: WeakKeyDictionary[ArrayNode, ArrayNode] = WeakKeyDictionary()


def variable(initial: Any, name: str = "", *, dtype: Any = None, device: Any = None) -> Variable:
    """A variable that starts with a copy of `initial`: an array, or data that becomes one."""
    if isinstance(initial, Array):
        initial.buffer()
        if dtype is not None and as_dtype(dtype) != initial.dtype:
            raise TypeMismatchError(f"the initial value is {NAME_OF[initial.dtype]}, not {NAME_OF[as_dtype(dtype)]}", where=user_span(),
                                    hint="convert it with astype")
        source = Evaluation.moved(initial.node, initial.device if device is None else Evaluation.device_named(device), True)
    else:
        place = None if device is None else Evaluation.device_named(device)
        source = Evaluation.source(initial, None if dtype is None else as_dtype(dtype), place, True)
    return Variable(Source(source.type, source.device, source.buffer.contiguous(), name or "variable", "variable"))


class Session:
    """Runs fetches. Programs are stored by their fetches, so the same fetches cost only a launch the next time.

    options: fields of `Options`.
    """

    def __init__(self, **options: Any) -> None:
        """options: fields of `Options`."""
        self._options = Options.from_environment().with_overrides(**options)
        self._programs: Bounded[tuple[Any, ...], Any] = Bounded(MOST_PROGRAMS)
        # First node fetched -> all of them, and the assignments below them.
        self._below: WeakKeyDictionary[ArrayNode, tuple[_Refs, _Refs]] = WeakKeyDictionary()

    @property
    def programs(self) -> tuple[Any, ...]:
        """The programs made so far (`runtime.program.Program`), one for each set of fetches."""
        return tuple(self._programs.values())

    def run(self, fetches: Any, feed: Mapping[Array, Any] | None = None) -> Any:
        """The values of arrays, and of assignments after making them, in the form of `fetches` (an item, a list, tuple or dict).

        Assignments on the way to what is fetched are made too.
        feed: data for every placeholder that the fetches need.
        Raises: UserError for a placeholder that is not fed, for one that is no placeholder, and for a variable assigned twice;
            ShapeError, TypeMismatchError for data that does not fit its placeholder.
        """
        items: list[Any] = []
        form = _fetched(fetches, items)
        nodes: list[ArrayNode] = [item.node for item in items]
        nodes += self._assignments_below(nodes) if nodes else []
        assigns = {n: _assigned[node] for n, node in enumerate(nodes) if node in _assigned}
        if len(set(assigns.values())) < len(assigns):
            raise UserError("a variable is assigned twice in one run", where=user_span(), hint="run one assignment after the other")
        fed = dict([_fed(a, data) for a, data in (feed or {}).items()])
        results = self._results(nodes, assigns, fed)
        return unflatten(form, iter(results[:len(items)]))

    def _assignments_below(self, nodes: Sequence[ArrayNode]) -> list[ArrayNode]:
        """The assignments from whose values these nodes are computed, in order. Visited once for the same fetches."""
        fetched, below = self._below.get(nodes[0], ((), ()))
        if [r() for r in fetched] != nodes or any(r() is None for r in below):
            with walking:
                assignments = [n for n in in_order(nodes, through=True) if n in _assigned and n not in nodes]
            fetched, below = tuple(map(ref, nodes)), tuple(map(ref, assignments))
            self._below[nodes[0]] = fetched, below
        return [n for n in (r() for r in below) if n is not None]

    def _results(self, nodes: list[ArrayNode], assigns: Mapping[int, ArrayNode], fed: Mapping[ArrayNode, Any]) -> list[Array]:
        targets = list(assigns.values())
        # The variables are requested too, so that a variable that is only assigned is an input of the program.
        if not nodes:
            return []
        device = common_device([*nodes, *targets])
        graph = None
        with walking:
            structure, leaves = structure_of([*nodes, *targets])
            key = (structure, tuple(assigns), device)
            program = self._programs.get(key)
            missing = [leaf for leaf in leaves if leaf.buffer is None and leaf not in fed]
            if missing:
                missing_names = ", ".join(str(getattr(leaf, "name", "")) for leaf in missing)
                raise UserError(f"the fetches need {missing_names}, which is not fed", where=user_span(),
                                hint="run(fetches, {placeholder: value})")
            if program is None or checks_nan():
                graph, again = graph_of([Array(n) for n in (*nodes, *targets)], "session")
                assert list(again) == leaves
                names = [*graph.results[:len(nodes)]]
                updates = tuple((graph.results[len(nodes) + k], names[number]) for k, number in enumerate(assigns))
                graph = replace(graph, results=tuple(names), updates=tuple((t, v) for t, v in updates if t != v))
        if program is None:
            assert graph is not None
            layouts = {i.name: strides_of(leaf.buffer) for i, leaf in zip(graph.inputs, leaves, strict=True)
                       if leaf not in fed and not leaf.buffer.is_contiguous() and 0 not in leaf.buffer.stride()}
            compiled = compile_graph(graph, constants={}, input_layouts=layouts, device=device, options=self._options)
            program = self._programs.put(key, compiled)
        inputs = [fed.get(leaf, leaf.buffer) for leaf in leaves]
        if checks_nan():
            assert graph is not None
            find_nan(graph, inputs, device, self._options)
        results = program(*inputs)
        forget_followers(v for v in targets if isinstance(v, Source))
        input_ids = {id(b) for b in inputs}
        arrays: list[Array] = []
        for node, result in zip(nodes, results, strict=True):
            tensor = as_complex(result) if node.type.dtype.is_complex else result
            if id(tensor) in input_ids:
                tensor = tensor.clone()  # a variable's own memory changes with the next assignment
            input_ids.add(id(tensor))
            arrays.append(Array(Source(node.type, device, tensor)))
        return arrays


def _fed(array: Any, data: Any) -> tuple[ArrayNode, Any]:
    """A placeholder and the tensor for it. Raises: UserError, ShapeError, TypeMismatchError."""
    node = array.node if isinstance(array, Array) else None
    if not isinstance(node, Source) or node.role != "placeholder":
        got = "" if node is not None else f", not a {type(array).__name__}"
        raise UserError(f"only placeholders are fed{got}", where=user_span(),
                        hint="assign variables; computed arrays have their own values" if node is not None else
                        "feed is {placeholder: value}, with the array that ta.placeholder gave")
    if isinstance(data, Array):
        data.buffer()
        source = data.node if data.device == node.device else Evaluation.moved(data.node, node.device, False)
    else:
        plain = isinstance(data, (bool, int, float, complex, list, tuple))
        source = Evaluation.source(data, node.type.dtype if plain else None, node.device, None)
    if source.type.shape != node.type.shape:
        raise ShapeError(f"placeholder {node.name} has shape {node.type.shape}, the data has {source.type.shape}", where=user_span())
    if source.type.dtype != node.type.dtype:
        raise TypeMismatchError(f"placeholder {node.name} takes {NAME_OF[node.type.dtype]}, the data is {NAME_OF[source.type.dtype]}",
                                where=user_span(), hint="convert it with astype")
    return node, source.buffer


def _fetched(fetches: Any, items: list[Any]) -> Any:
    """The form of fetches; arrays and assignments are appended to `items`. Raises: TypeMismatchError for anything else."""
    if isinstance(fetches, Array):
        items.append(fetches)
        return LEAF
    if isinstance(fetches, Mapping):
        return "dict", tuple(fetches), tuple([_fetched(v, items) for v in fetches.values()])
    if isinstance(fetches, (list, tuple)):
        return type(fetches), tuple([_fetched(v, items) for v in fetches])
    raise TypeMismatchError(f"a session fetches arrays and assignments, not a {type(fetches).__name__}", where=user_span())

