"""GraphBuilder: how frontends and tests make graphs node by node, with fresh names and checked types."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilefuse.base.source import Span
from tilefuse.ir.affine import Affine, axis
from tilefuse.ir.dtype import DType
from tilefuse.ir.graph import Attribute, Graph, Input, Node, Type
from tilefuse.ir.names import plain_name
from tilefuse.ir.scalar import Expr, Lookup, Read, walk

AXIS_NAMES = "ijklmnpqrstuvw"


class GraphBuilder:
    """Collects inputs and nodes. Value names are plain strings; `type_of` gives their types."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: list[Input] = []
        self.nodes: list[Node] = []
        self.types: dict[str, Type] = {}
        self.span: Span | None = None
        self._counts: dict[str, int] = {}

    def fresh(self, wanted: str) -> str:
        """`wanted` if it is free, else with a number appended. Characters outside [A-Za-z0-9_] become "_"."""
        base = plain_name(wanted)
        if base[0].isdigit():
            base = "_" + base
        name = base
        while name in self.types:
            self._counts[base] = self._counts.get(base, 0) + 1
            name = f"{base}_{self._counts[base]}"
        return name

    def input(self, name: str, dtype: DType, shape: Sequence[int], *, constant: bool = False) -> str:
        """Declares an input; returns its value name."""
        new_input = Input(self.fresh(name), Type(dtype, tuple(shape)), constant)
        self.inputs.append(new_input)
        self.types[new_input.name] = new_input.type
        return new_input.name

    def type_of(self, value: str) -> Type:
        """Type of a value."""
        return self.types[value]

    def add(self, node: Node) -> str:
        """Appends a node built by hand (its name must be fresh)."""
        if node.name in self.types:
            raise ValueError(f"value {node.name} is defined twice")
        self.nodes.append(node)
        self.types[node.name] = node.type
        return node.name

    def map(self, name: str, dtype: DType, shape: Sequence[int], axes: Sequence[str], body: Expr) -> str:
        """A map (or a gather where a lookup occurs in the body)."""
        kind = "gather" if any(isinstance(x, Lookup) for x in walk(body)) else "map"
        return self.add(Node(self.fresh(name), Type(dtype, tuple(shape)), kind, tuple(axes), body=body, span=self.span))

    def add_reduction(self, name: str, monoid: str, dtype: DType, shape: Sequence[int], axes: Sequence[str],
                      over: Sequence[tuple[str, int]], body: Expr) -> str:
        """A reduction of `body` over the axes `over`."""
        return self.add(Node(self.fresh(name), Type(dtype, tuple(shape)), f"reduce.{monoid}", tuple(axes), tuple(over), body=body,
                             span=self.span))

    def add_scan(self, name: str, monoid: str, dtype: DType, shape: Sequence[int], axes: Sequence[str], along: str, body: Expr) -> str:
        """An inclusive scan along one of the axes."""
        return self.add(Node(self.fresh(name), Type(dtype, tuple(shape)), f"scan.{monoid}", tuple(axes), along=along, body=body,
                             span=self.span))

    def add_scatter(self, name: str, monoid: str, base: str, over: Sequence[tuple[str, int]], target: Sequence[Expr], body: Expr) -> str:
        """A scatter of `body` over the domain `over` into a copy of `base`."""
        return self.add(Node(self.fresh(name), self.types[base], f"scatter.{monoid}", over=tuple(over), body=body,
                             target=tuple(target), operands=(base,), span=self.span))

    def library(self, name: str, operator: str, type: Type, operands: Sequence[str],
                attributes: Mapping[str, Attribute] | None = None) -> str:
        """A call of the framework or a vendor library."""
        pairs = tuple(sorted((attributes or {}).items()))
        return self.add(Node(self.fresh(name), type, f"library.{operator}", operands=tuple(operands), attributes=pairs, span=self.span))

    def finish(self, results: Sequence[str], updates: Sequence[tuple[str, str]] = ()) -> Graph:
        """The graph; dead nodes stay (a pass removes them)."""
        return Graph(self.name, tuple(self.inputs), tuple(self.nodes), tuple(results), tuple(updates))


def axis_names(count: int, prefix: str = "") -> tuple[str, ...]:
    """Distinct axis names for `count` dimensions."""
    if count <= len(AXIS_NAMES) and not prefix:
        return tuple(AXIS_NAMES[:count])
    return tuple(f"{prefix or 'd'}{n}" for n in range(count))


def read_at(value: str, index: Sequence[Affine | str]) -> Read:
    """A read whose subscripts may be given as axis names."""
    return Read(value, tuple(axis(e) if isinstance(e, str) else e for e in index))
