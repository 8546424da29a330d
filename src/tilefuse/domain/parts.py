"""Independent parts of a pattern: sets of nodes without data dependence on the others.

    {a -> b, c -> d}     parts {a, b} and {c, d}
    {s -> a, s -> b}     one part; or two parts {s, a} and {s, b} that each compute s, if s is a map that is no result
"""
from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import partial

from tilefuse.base.construction import replace
from tilefuse.ir.affine import row_major_strides
from tilefuse.ir.graph import Graph, Input, Node, node_inputs
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.scalar import Expr, Read, rename_reads, transform
from tilefuse.target.memory import ACCESS_BYTES


def connected_parts(pattern: Graph, recompute: bool = False, siblings: bool = False, reductions: bool = False) -> list[Graph]:
    """The parts of a pattern given as a graph of its own, in the order of their first nodes.

    recompute: internal maps do not connect their users; every part has its own copy. reductions: nor do internal reductions.
    siblings: an input of more than one element connects its users, so that it can be read once.
    Cost: about linear in the reads of the pattern.
    """
    inside = pattern.node_by_name
    results = set(pattern.results)
    kinds = ("map", "reduce") if reductions else ("map",)
    loose = {n.name for n in pattern.nodes if n.category in kinds and n.name not in results} if recompute else set()
    home: dict[str, str] = {n.name: n.name for n in pattern.nodes if n.name not in loose}
    if siblings:
        home |= {i.name: i.name for i in pattern.inputs if i.type.num_elements > 1}

    def root(name: str) -> str:
        while home[name] != name:
            home[name] = home[home[name]]
            name = home[name]
        return name

    for node in pattern.nodes:
        if node.name in home:
            for value in _anchors(node, inside, loose, home) if loose else node.reads():
                if value in home:
                    home[root(value)] = root(node.name)
    members: dict[str, dict[str, None]] = {}
    for node in pattern.nodes:
        if node.name in home:
            part = members.setdefault(root(node.name), {})
            part[node.name] = None
            if loose:
                part.update(dict.fromkeys(_loose_reads(node, inside, loose)))
    return [part_graph(pattern, names) for names in members.values()]


def _loose_reads(node: Node, inside: Mapping[str, Node], loose: set[str]) -> list[str]:
    """Loose nodes that `node` reads, directly or through other loose nodes."""
    needed: dict[str, None] = {}
    todo = [v for v in node.reads() if v in loose]
    while todo:
        value = todo.pop()
        if value not in needed:
            needed[value] = None
            todo.extend(v for v in inside[value].reads() if v in loose)
    return list(needed)


def _anchors(node: Node, inside: Mapping[str, Node], loose: set[str], home: Mapping[str, str]) -> list[str]:
    """Values that connect (the keys of `home`) among those that `node` reads directly or through loose nodes."""
    through = [node, *(inside[v] for v in _loose_reads(node, inside, loose))]
    return [v for n in through for v in n.reads() if v in home]


def part_graph(pattern: Graph, names: Iterable[str]) -> Graph:
    """Some nodes of a pattern as a graph of its own; results are those of its values that the pattern writes."""
    nodes = pattern.in_order(names)
    inputs = tuple(Input(v, pattern.type_of(v)) for v in node_inputs(nodes))
    results = pattern.position_by_result
    return Graph(nodes[0].name, inputs, nodes, tuple(sorted((n.name for n in nodes if n.name in results), key=results.__getitem__)))


def structure_but_starts(part: Graph, layouts: Layouts) -> Hashable:
    """As `structure_of`, but also equal for parts that read their inputs at a constant shift, such as steps of a recurrence.

        exp(%x[3, i]) + %x[4, i]      and      exp(%x[7, i]) + %x[8, i]

    A constant subscript counts by its distance from the first one of the same input. The first one counts by its offset modulo a vector.
    """
    types = {i.name: i.type for i in part.inputs}
    starts: dict[tuple[str, int], int] = {}
    # Tiles of a product's operands are copied on chip as a whole. The start of a tile decides whether it leaves its input.
    whole = {v for n in part.nodes if n.category == "library" for v in n.operands}

    def from_start(e: Expr, moves: bool) -> Expr:
        if not isinstance(e, Read) or e.value not in types:
            return e
        return Read(e.value, tuple(s - starts.setdefault((e.value, d), s.const) if moves or s.is_const else s
                                   for d, s in enumerate(e.index)))

    nodes = tuple(n if n.body is None else replace(n, body=transform(n.body, partial(from_start, moves=n.name not in whole)))
                  for n in part.nodes)
    place = {i.name: n for n, i in enumerate(part.inputs)}
    lies = {v: layouts.get(v) or row_major_strides(types[v].shape) for v, _ in starts}
    where = tuple((place[v], d, start * lies[v][d] * types[v].dtype.itemsize % ACCESS_BYTES) for (v, d), start in starts.items())
    return structure_of(replace(part, nodes=nodes), layouts), where


def structure_of(part: Graph, layouts: Layouts) -> Hashable:
    """Equal for parts that are equal up to names: same nodes, same wiring, same types and layouts at the boundary."""
    number_of: dict[str, str] = {i.name: str(n) for n, i in enumerate(part.inputs)}
    number_of |= {n.name: f"n{p}" for p, n in enumerate(part.nodes)}
    nodes = tuple((n.kind, n.type, n.axes, n.over, n.along, n.attributes, None if n.body is None else rename_reads(n.body, number_of),
                   tuple(rename_reads(t, number_of) for t in n.target), tuple(number_of[v] for v in n.operands)) for n in part.nodes)
    boundary = tuple((i.type, layouts.get(i.name)) for i in part.inputs)
    return (nodes, boundary, tuple((number_of[r], layouts.get(r)) for r in part.results))
