"""Structural keys: patterns that are equal up to the names of their values have equal keys.

Repeated layers are scheduled and priced once, and identical kernels share one source. Keys consist of small integers assigned in the order
of first appearance, so a key costs time linear in the pattern's reads and is only meaningful within one `Structures`; a digest identifies
equal patterns of any graph, in any process.
"""
from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence

from tilefuse.ir.custom import custom_texts
from tilefuse.ir.graph import Graph, Node, node_inputs
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.scalar import rename_reads
from tilefuse.plan.pattern import Pattern


class Structures:
    """Assigns keys to the patterns of one graph under one choice of layouts."""

    def __init__(self, graph: Graph, layouts: Layouts) -> None:
        self._graph = graph
        self._layouts = layouts
        self._interned: dict[Hashable, int] = {}
        self._text_of: dict[str, str] = {}
        self._key_of: dict[Pattern, tuple[int, ...]] = {}
        self._of_node: dict[str, int] = {}
        self._of_value: dict[str, int] = {}
        self._reads: dict[str, tuple[str, ...]] = {}

    def reads(self, name: str) -> tuple[str, ...]:
        """Values that a node uses; cached, because patterns ask repeatedly."""
        reads = self._reads.get(name)
        if reads is None:
            reads = self._reads[name] = self._graph.node_by_name[name].reads()
        return reads

    def key(self, pattern: Pattern) -> tuple[int, ...]:
        """Equal for patterns that are equal up to names: same node forms, same wiring, same boundary types and layouts."""
        key = self._key_of.get(pattern)
        if key is None:
            key = self._key_of[pattern] = self._made_key(pattern)
        return key

    def _made_key(self, pattern: Pattern) -> tuple[int, ...]:
        # The innermost loop of planning: every set of nodes that is tried comes through here.
        place: dict[str, int] = {}
        key: list[int] = []
        add = key.append
        known, outside = self._of_node, 0
        for number, name in enumerate(pattern.nodes):
            add(known[name] if name in known else self.node_form(name))
            for value in self._reads[name]:
                at = place.get(value)
                if at is None:
                    outside += 1
                    at = place[value] = -outside
                add(at)
            place[name] = number
        add(outside)
        key.extend(self.value_form(v) for v, at in place.items() if at < 0)
        for value in pattern.written:
            key.append(place[value])
            key.append(self.value_form(value))
        return tuple(key)

    def digest(self, pattern: Pattern, more: Hashable = None) -> str:
        """Equal, in every graph and process, for patterns with equal keys, functions of equal texts and an equal `more`.

        Requires: the text of `more` determines it.
        """
        place = {name: n for n, name in enumerate(self.names(pattern))}
        lines = [f"{self._node_text(name)}({','.join(str(place[v]) for v in self.reads(name))})" for name in pattern.nodes]
        lines += [self._value_text(name) for name in list(place)[len(pattern.nodes):]]
        lines += [f"{place[name]}={self._value_text(name)}" for name in pattern.written]
        return digest_text(repr((len(pattern.nodes), lines, more)))

    def names(self, pattern: Pattern) -> tuple[str, ...]:
        """All values of a pattern: its nodes, then the values read from outside, in order of first use."""
        return tuple(dict.fromkeys((*pattern.nodes, *(v for n in pattern.nodes for v in self.reads(n)))))

    def _node_text(self, name: str) -> str:
        text = self._text_of.get(name)
        if text is None:
            node = self._graph.node_by_name[name]
            custom = custom_texts(Graph("", (), (node,), ()))
            text = self._text_of[name] = digest_text(repr((anonymous(node, self.reads(name)), custom)))
        return text

    def _value_text(self, name: str) -> str:
        return f"{self._graph.type_of(name)}{self._layouts.get(name)}"

    def node_form(self, name: str) -> int:
        """A number for the node without its name and its operands' names."""
        form = self._of_node.get(name)
        if form is None:
            node = self._graph.node_by_name[name]
            form = self._of_node[name] = self._intern(("node", anonymous(node, self.reads(name))))
        return form

    def value_form(self, name: str) -> int:
        """A number for a value's type and layout."""
        form = self._of_value.get(name)
        if form is None:
            form = self._of_value[name] = self._intern(("value", self._graph.type_of(name), self._layouts.get(name)))
        return form

    def _intern(self, thing: Hashable) -> int:
        return self._interned.setdefault(thing, len(self._interned))


def anonymous(node: Node, reads: Sequence[str]) -> tuple[Hashable, ...]:
    """Structure of a node up to the names of values: its kind, type, axes and body with reads numbered in order of occurrence."""
    numbered = {value: str(n) for n, value in enumerate(reads)}
    body = None if node.body is None else rename_reads(node.body, numbered)
    target = tuple(rename_reads(e, numbered) for e in node.target)
    operands = tuple(numbered[v] for v in node.operands)
    return (node.kind, node.type, node.axes, node.over, node.along, body, target, operands, node.attributes)


def digest_text(text: str) -> str:
    """A short name of a text, the same in every process."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def boundary(graph: Graph, pattern: Pattern) -> tuple[str, ...]:
    """The pattern's boundary values in canonical order: those that it reads, in order of first use, then those that it writes.

    Patterns with equal keys have boundaries that correspond position by position.
    """
    return (*node_inputs(graph.node_by_name[n] for n in pattern.nodes), *pattern.written)
