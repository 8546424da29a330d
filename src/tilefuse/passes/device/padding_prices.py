"""Prices of padded products: of each product alone, and of products together that read the same matrix.

    g  ->  dw = g' x,  dx = g w        g is stored padded by the kernel that computes it where both products take it so; one of them alone
                                       would need a copy of g beside the one that the other product reads
"""
from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from tilefuse.ir.graph import Graph, Input, Node
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.scalar import Read
from tilefuse.passes.device.operand_memory import behind_views, views_between
from tilefuse.passes.device.padding import (
    Copies,
    PaddedProduct,
    Sizes,
    Way,
    may_keep_left,
    padded_product,
    padded_sizes,
    product_operands,
)
from tilefuse.passes.facts import Prices
from tilefuse.target.device import DeviceSpec
from tilefuse.target.memory import ACCESS_BYTES, LINE_BYTES


@dataclass(frozen=True, slots=True)
class Padding:
    """A product that could be padded: to `sizes`, with kernels that copy the operands `copied`.

    us, padded_us: of the product as it lies and of the padded one with its copies; the shorter one of call and kernel each.
    planned_us: of the kernels of a plan that hold such products without paddings, and of the calls and kernels in their place; None
              without a plan.
    way: how it is padded. together: products with which it shares copies, where one of them alone would not gain.
    Units: predicted microseconds.
    """

    product: str
    sizes: Sizes
    copied: tuple[str, ...]
    us: float
    padded_us: float
    is_taken: bool
    planned_us: tuple[float, float] | None = None
    way: Way = Way()
    together: tuple[str, ...] = ()

    def text(self) -> str:
        """The choice in a line."""
        rows, inner, columns = self.sizes
        copies = f" and copies of {', '.join('%' + v for v in self.copied)}" if self.copied else ""
        copies += f", together with {', '.join('%' + v for v in self.together)}" if self.together else ""
        plans = "" if self.planned_us is None else "; with their kernels {1:.1f} us and {0:.1f} us".format(*self.planned_us)
        return (f"%{self.product} is {'padded' if self.is_taken else 'not padded'} to {rows} x {inner} by {columns}: predicted "
                f"{self.padded_us:.1f} us with padding{copies}, {self.us:.1f} us as it lies{plans}")


class PaddingPrices:
    """Prices of one graph. input_strides: those of inputs, in elements. at_hand: constants that are padded before any call."""

    def __init__(self, graph: Graph, device: DeviceSpec, prices: Prices, input_strides: Layouts, at_hand: frozenset[str]) -> None:
        self._graph, self._device, self._prices, self._strides, self._at_hand = graph, device, prices, input_strides, at_hand

    def choices(self, products: Sequence[Node]) -> list[Padding]:
        """The choice for each product: alone, or together with those that read the same matrix where that is faster."""
        choices = {node.name: self._alone(node) for node in products}
        for group in self._groups(products):
            apart_us = sum(c.padded_us if c.is_taken else c.us for c in (choices[n.name] for n in group))
            together = min((self._together(group, choices, Way(unit)) for unit in (ACCESS_BYTES, LINE_BYTES)), key=_sum_us)
            if apart_us - _sum_us(together) > self._least_gain_us:
                choices.update({c.product: c for c in together})
        return list(choices.values())

    @property
    def _least_gain_us(self) -> float:
        return self._device.fitted.unaligned.least_gain_us

    def _alone(self, node: Node) -> Padding:
        """The price of a product as it lies, and padded in the fastest way: copies in whole 16 bytes or in whole lines of the caches, of
        which tensor copies ask for fewer; of both operands, or of the right one alone."""
        us = self._unpadded_us(node)

        def padded(way: Way) -> Padding:
            return self._padding(node, us, way, Copies(self._graph, self._strides), {node.name})

        operands = product_operands(self._graph, node, self._strides)
        choices = [padded(Way(unit)) for unit in (ACCESS_BYTES, LINE_BYTES)]
        if operands[0].value in choices[0].copied and may_keep_left(operands):
            choices += [padded(Way(unit, keeps_left=True)) for unit in (ACCESS_BYTES, LINE_BYTES)]
        return min(choices, key=lambda p: p.padded_us)

    def _together(self, group: Sequence[Node], alone: dict[str, Padding], way: Way) -> list[Padding]:
        """All products of a group padded one way. A copy that several of them read counts once."""
        copies, names = Copies(self._graph, self._strides), {n.name for n in group}
        priced = [self._padding(n, alone[n.name].us, way, copies, names) for n in group]
        return [replace(p, is_taken=True, together=tuple(n.name for n in group if n.name != p.product)) for p in priced]

    def _groups(self, products: Sequence[Node]) -> Iterator[list[Node]]:
        """Products that would copy the same matrices, several each."""
        groups: list[tuple[set[str], list[Node]]] = []
        for node in products:
            copies = padded_product(Copies(self._graph, self._strides), node).copies
            read = {behind_views(self._graph, v) for v in copies if v not in self._at_hand}
            joined = [g for g in groups if g[0] & read]
            groups = [g for g in groups if g not in joined]
            groups.append((read.union(*(g[0] for g in joined)), [*(n for g in joined for n in g[1]), node]))
        return (group for _, group in groups if len(group) > 1)

    def _padding(self, node: Node, us: float, way: Way, copies: Copies, products: Collection[str]) -> Padding:
        """A product padded in one way. us: of the product as it lies. copies: those of the products before, which cost nothing more.
        products: all that read the copies."""
        graph, prices = self._graph, self._prices
        sizes = padded_sizes(graph, node, product_operands(graph, node, self._strides), way)
        padded = padded_product(copies, node, way)
        copied = {v: copy for v, copy in padded.copies.items()
                  if not (self._is_stored_for(v, products) or self._at_hand.issuperset(copy.reads()))}
        copied_bytes = 2 * sum(copy.type.num_bytes for copy in copied.values())
        returned = node.name in graph.escaping
        alone = self._graph_of(padded, copies)
        product_us = prices.product_us(padded.product, alone)
        called_us = product_us + prices.copy_us(copied_bytes + 2 * node.type.num_bytes * returned, len(copied) + returned)
        own_us = prices.own_product_us(alone, tuple(n.name for n in alone.nodes), {})
        padded_us = called_us if own_us is None else min(called_us, own_us + prices.copy_us(copied_bytes, len(copied)))
        return Padding(node.name, sizes, tuple(copied), us, padded_us, us - padded_us > self._least_gain_us, way=way)

    def _unpadded_us(self, node: Node) -> float:
        """Predicted time of the product as it lies: by the library, which copies operands that are no matrices, or by a kernel. Units:
        microseconds."""
        graph, prices = self._graph, self._prices
        operands = product_operands(graph, node, self._strides)
        moved = [o for o in operands if o.memory is None or not o.memory.is_matrix]
        copies_us = prices.copy_us(2 * sum(graph.type_of(o.value).num_bytes for o in moved), len(moved))
        called_us = prices.product_us(node, graph, self._strides)
        own_us = prices.own_product_us(graph, (*views_behind(graph, node), node.name), self._strides)
        return called_us + copies_us if own_us is None else min(called_us + copies_us, own_us)

    def _graph_of(self, padded: PaddedProduct, copies: Copies) -> Graph:
        """The padded product and the window of its result, of operands that are inputs or views of inputs."""
        graph = self._graph
        views = {n: graph.node_by_name[n] for n in views_behind(graph, padded.product)}
        read = dict.fromkeys((*padded.product.operands, *(v for node in views.values() for v in node.reads())))
        inputs = tuple(Input(v, copies.type_by_name.get(v) or graph.type_of(v)) for v in read if v not in views)
        return Graph("padded", inputs, (*views.values(), *padded.behind), (padded.behind[-1].name,))

    def _is_stored_for(self, value: str, products: Collection[str]) -> bool:
        """Whether a kernel computes the value, or the value that it views, for these products alone."""
        graph, stored = self._graph, behind_views(self._graph, value)
        maker = graph.node_by_name.get(stored)
        if maker is None or maker.kind != "map":
            return False
        waiting, seen = [stored], set[str]()
        while waiting:
            v = waiting.pop()
            if v in graph.escaping:
                return False
            for user in graph.users_by_name[v]:
                if user not in products and user not in seen:
                    node = graph.node_by_name[user]
                    if node.kind != "map" or not isinstance(node.body, Read):
                        return False
                    seen.add(user)
                    waiting.append(user)
        return True


def _sum_us(choices: Sequence[Padding]) -> float:
    return sum(c.padded_us for c in choices)


def views_behind(graph: Graph, node: Node) -> list[str]:
    """Views between a product and the values that have memory, in graph order."""
    views = {view.name for value in node.operands for view, _ in views_between(graph, value)}
    return [n.name for n in graph.in_order(views)]
