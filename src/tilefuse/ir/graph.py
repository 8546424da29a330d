"""The graph: immutable nodes over explicit axes, in topological order.

Every node has one result. An operator with several results is several library nodes that differ only in the
attribute `result`; the runtime performs their call once.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import prod
from typing import Union

from tilefuse.base.construction import quickly_built
from tilefuse.base.source import Span
from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Expr, reads

Attribute = Union[int, float, bool, str, None, tuple["Attribute", ...]]

REDUCE_MONOIDS = ("sum", "max", "min", "prod", "any", "all", "argmax", "argmin", "m2")
SCAN_MONOIDS = ("sum", "prod", "max", "min", "logaddexp")
SCATTER_MONOIDS = ("set", "sum", "max", "min", "prod")


@dataclass(frozen=True, slots=True)
class Type:
    """Data type and shape of a tensor. Units: extents in elements; `()` is a scalar."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of a dense tensor of this type."""
        return self.num_elements * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Input:
    """A value that comes from outside. `constant`: its data is known when compiling (a weight) and bound once."""

    name: str
    type: Type
    constant: bool = False


@cache
def _divided(kind: str) -> tuple[str, str, str]:
    """A node's kind before and behind its dot."""
    return kind.partition(".")


@quickly_built
@dataclass(frozen=True, slots=True)
class Node:
    """One tensor expression.

    kind        "map", "gather", "reduce.<monoid>", "scan.<monoid>", "scatter.<monoid>" or "library.<name>"
    axes        map, gather, reduce, scan: one axis a result dimension (extents from `type`); scatter, library: ()
    over        reduce: the reduced axes; scatter: the whole iteration domain; else ()
    along       scan: the axis (one of `axes`) along which it accumulates; else ""
    body        the element (library: None). A reduction's or scan's body is what is combined; argmax's is what is compared
    target      scatter: subscripts of the element written, one a result dimension; out-of-range targets write nothing
    operands    scatter: (the value that gives the initial contents,); library: the operand values
    attributes  library: sorted (name, value) pairs
    """

    name: str
    type: Type
    kind: str
    axes: tuple[str, ...] = ()
    over: tuple[tuple[str, int], ...] = ()
    along: str = ""
    body: Expr | None = None
    target: tuple[Expr, ...] = ()
    operands: tuple[str, ...] = ()
    attributes: tuple[tuple[str, Attribute], ...] = ()
    span: Span | None = field(default=None, compare=False, repr=False)
    # Found once: passes and planners ask each node many times.
    _reads: tuple[str, ...] | None = field(default=None, init=False, compare=False, repr=False)

    @property
    def category(self) -> str:
        """The kind up to the dot: map, gather, reduce, scan, scatter, library."""
        return _divided(self.kind)[0]

    @property
    def detail(self) -> str:
        """The word after the dot of the kind: the monoid, or the library operator's name."""
        return _divided(self.kind)[2]

    @property
    def extents(self) -> dict[str, int]:
        """Extent of every axis of the iteration domain: result axes first, then reduced axes."""
        return dict(zip(self.axes, self.type.shape)) | dict(self.over)

    def attribute(self, name: str, default: Attribute = None) -> Attribute:
        """The attribute of this name, or `default`."""
        for key, value in self.attributes:
            if key == name:
                return value
        return default

    def integers(self, name: str) -> tuple[int, ...]:
        """An attribute that is a tuple of whole numbers; empty where the node has none of that name."""
        value = self.attribute(name, ())
        assert isinstance(value, tuple)
        return tuple(n for n in value if isinstance(n, int))

    def reads(self) -> tuple[str, ...]:
        """Names of all values this node uses, each once, in order of occurrence."""
        if self._reads is None:
            inside = (v for e in (*self.target, self.body) if e is not None for v in reads(e))
            object.__setattr__(self, "_reads", tuple(dict.fromkeys((*self.operands, *inside))))
        assert self._reads is not None
        return self._reads


@quickly_built
@dataclass(frozen=True)
class Graph:
    """A tensor program. `updates` are (input, value) pairs: after a run the input's storage holds the value."""

    name: str
    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    results: tuple[str, ...]
    updates: tuple[tuple[str, str], ...] = ()

    @cached_property
    def node_by_name(self) -> Mapping[str, Node]:
        """Nodes by name, in graph order."""
        return {n.name: n for n in self.nodes}

    @cached_property
    def position_by_name(self) -> Mapping[str, int]:
        """Where every node stands in graph order."""
        return {n.name: p for p, n in enumerate(self.nodes)}

    @cached_property
    def position_by_result(self) -> Mapping[str, int]:
        """Where every result stands in the list of results."""
        return {name: p for p, name in enumerate(self.results)}

    @cached_property
    def type_by_name(self) -> Mapping[str, Type]:
        """Types of all inputs and nodes, by name."""
        return {i.name: i.type for i in self.inputs} | {n.name: n.type for n in self.nodes}

    @cached_property
    def users_by_name(self) -> Mapping[str, tuple[str, ...]]:
        """For every value the nodes that use it, in graph order."""
        users: dict[str, list[str]] = {name: [] for name in self.type_by_name}
        for node in self.nodes:
            for value in node.reads():
                users.setdefault(value, []).append(node.name)
        return {name: tuple(names) for name, names in users.items()}

    @cached_property
    def escaping(self) -> frozenset[str]:
        """Values that must exist after a run: results and update values."""
        return frozenset(self.results) | frozenset(v for _, v in self.updates)

    def in_order(self, names: Iterable[str]) -> tuple[Node, ...]:
        """The nodes of these names in graph order. Cost: about linear in the names where they are few."""
        name_set = set(names)
        if len(name_set) * 8 > len(self.nodes):
            return tuple(n for n in self.nodes if n.name in name_set)
        return tuple(sorted((self.node_by_name[n] for n in name_set), key=lambda n: self.position_by_name[n.name]))

    def type_of(self, name: str) -> Type:
        """Type of an input or node. Raises: KeyError for an unknown name."""
        return self.type_by_name[name]


def library_call_key(node: Node) -> tuple[object, ...]:
    """Equal for the nodes that are results of one library call."""
    return (node.kind, node.operands, tuple(a for a in node.attributes if a[0] != "result"))


def node_inputs(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Values that the nodes read and none of them defines, in order of first use."""
    listed = list(nodes)
    inside = {n.name for n in listed}
    return tuple(dict.fromkeys(v for n in listed for v in n.reads() if v not in inside))
