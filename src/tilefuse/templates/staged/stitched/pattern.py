"""Facts of stitching about a pattern before tiles are chosen: which values have stages, what they read, which dimensions run together.

    product(x, w)  ->  exp  ->  sum over columns        the product and the sum are kept; the sum reads the product through exp

Nothing here depends on tiles, threads or a device; `cut.py` cuts the pattern.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.contraction import INNER, Contraction, contraction_of
from tilefuse.domain.regions import Span
from tilefuse.ir.affine import Affine, substitute
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.ops import SCALAR_OPS
from tilefuse.ir.scalar import Call, Expr, Lookup, Read, walk


def flops_of(e: Expr) -> int:
    """Floating-point operations of one evaluation."""
    return sum(SCALAR_OPS[x.fn].flops for x in walk(e) if isinstance(x, Call) and x.fn in SCALAR_OPS)


def anchor_of(graph: Graph) -> str:
    """The largest of the results that nothing else in the pattern is computed from, the last of several: what others are computed from may
    be computed by many blocks. Another one only where it is larger and has more dimensions to cut.

        n = norm(x), n w  ->  n w, whatever its width          e = exp(x w), sums of the rows of e  ->  e
    """
    place = graph.position_by_name

    def size(result: str) -> tuple[int, int]:
        return graph.type_of(result).num_elements, place.get(result, -1)

    def rank(result: str) -> int:
        return sum(e > 1 for e in graph.type_of(result).shape)

    largest = max(graph.results, key=size)
    last = max((r for r in graph.results if not graph.users_by_name[r]), key=size, default=largest)
    return largest if rank(largest) > rank(last) else last


@dataclass(frozen=True, slots=True)
class OutsideRead:
    """A read of a boundary value, by its node's axes that tell elements apart. Units: bytes an element."""

    axes: frozenset[str]
    itemsize: int

    def different(self, extent_of: Mapping[str, int]) -> int:
        """Elements that loops of these extents read."""
        return prod([extent_of.get(a, 1) for a in self.axes])


class StitchPattern:
    """One pattern. `anchor`: the result whose tiles the blocks compute; `kept`: values with stages of their own."""

    def __init__(self, graph: Graph, kept: frozenset[str]) -> None:
        self.graph = graph
        self.kept = kept
        self.inside = {n.name for n in graph.nodes}
        self.contractions: dict[str, Contraction] = {}
        self.anchor = anchor_of(graph)
        self._touches: dict[str, list[tuple[str, tuple[Affine, ...]]]] = {}
        self._class: dict[tuple[str, int], tuple[str, int]] = {}
        self._values: dict[tuple[str, int], frozenset[str]] = {}
        self._flops: dict[str, int] = {}
        self._steps: dict[str, int] = {}
        self._outside: dict[str, tuple[OutsideRead, ...]] = {}
        self._least_of_loop: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = {}

    def analyse(self) -> Rejected | None:
        """Facts that do not depend on the tiles. A rejection where the pattern holds what no stage can compute."""
        for node in self.graph.nodes:
            if node.category == "library":
                contraction = contraction_of(node, self.graph)
                if contraction is None:
                    return Rejected(Reason.LIBRARY_CALL, f"%{node.name} is a library call")
                self.contractions[node.name] = self._behind_views(contraction)
            elif node.category not in ("map", "gather", "reduce"):
                return Rejected(Reason.UNSUPPORTED_OP, f"%{node.name} is a {node.category}: no stage computes it")
            if not node.type.num_elements or any(e == 0 for _, e in node.over):
                return Rejected(Reason.DOMAIN_MISMATCH, f"%{node.name} is empty")
            if node.body is not None and any(isinstance(x, Lookup) and x.value in self.inside for x in walk(node.body)):
                return Rejected(Reason.NEEDS_GRID_SYNC, f"%{node.name} looks up elements of a value of the same kernel")
        self.kept = self.values_kept()
        for node in self.graph.nodes:
            self._link(node)
        return None

    def _behind_views(self, contraction: Contraction) -> Contraction:
        """The contraction on what its operands are views of, where they are plain views of something."""
        left, left_index = self._behind(contraction.left, contraction.left_index)
        right, right_index = self._behind(contraction.right, contraction.right_index)
        return replace(contraction, left=left, left_index=left_index, right=right, right_index=right_index,
                       inner_last_left=left_index[-1].coefficient(INNER) == 1, inner_last_right=right_index[-1].coefficient(INNER) == 1)

    def _behind(self, value: str, index: tuple[Affine, ...]) -> tuple[str, tuple[Affine, ...]]:
        while value in self.inside:
            node = self.graph.node_by_name[value]
            if node.kind != "map" or not isinstance(node.body, Read) or value in self.graph.results:
                break
            inner = tuple(substitute(e, dict(zip(node.axes, index, strict=True))) for e in node.body.index)
            if not inner or not all(e.is_linear for e in inner):
                break
            value, index = node.body.value, inner
        return value, index

    # -- what is kept on chip ------------------------------------------------------------------------------------------

    def values_kept(self) -> frozenset[str]:
        """Nodes with stages of their own: here, those of the plan that is asked about."""
        return self.kept

    def values_worth_keeping(self, heavy_flops: float, fewer_elements: int) -> frozenset[str]:
        """Reductions, products and their operands, results, and maps worth computing once.

        heavy_flops: operations an element from which on a map that several nodes read is worth it. fewer_elements: elements of its one
        reader over its own, from which on it is worth it too: the reader would evaluate its functions for every element.
        """
        kept = set(self.values_with_stages)
        flops: dict[str, int] = {}
        for node in self.graph.nodes:
            if node.body is None or node.name in kept:
                continue
            flops[node.name] = flops_of(node.body) + sum(flops.get(v, 0) for v in node.reads())
            users = self.graph.users_by_name[node.name]
            largest = max((self._size(u) for u in users), default=0)
            if flops[node.name] >= heavy_flops and (len(users) > 1 or node.type.num_elements * fewer_elements <= largest):
                kept.add(node.name)
        return frozenset(kept)

    @cached_property
    def values_with_stages(self) -> frozenset[str]:
        """Reductions, products and their operands, results: nodes that always have stages of their own.

        All others are maps, whose level may be chosen.
        """
        kept = set(self.graph.results)
        for node in self.graph.nodes:
            if node.category in ("library", "reduce"):
                kept.add(node.name)
            if node.category == "library":
                contraction = self.contractions[node.name]
                kept.update(v for v in (contraction.left, contraction.right, contraction.bias) if v in self.inside)
                kept.add(self._all_that_is_left(node))
        return frozenset(kept)

    def _all_that_is_left(self, product: Node) -> str:
        """The last of the maps of a product's elements each of which is all that reads the one before, if its rows are reduced: kept in
        place of the product."""
        name = product.name
        while name not in self.graph.results and len(users := self.graph.users_by_name[name]) == 1:
            user = self.graph.node_by_name[users[0]]
            if user.kind != "map" or user.type.shape != product.type.shape or user.type.dtype.itemsize > product.type.dtype.itemsize:
                break
            name = user.name
        return name if any(self.graph.node_by_name[u].category == "reduce" for u in self.graph.users_by_name[name]) else product.name

    def _size(self, name: str) -> int:
        node = self.graph.node_by_name[name]
        return node.type.num_elements * prod(e for _, e in node.over)

    # -- reads, through what is not kept --------------------------------------------------------------------------------

    def axes(self, name: str) -> tuple[str, ...]:
        """Result axes of a node."""
        contraction = self.contractions.get(name)
        return contraction.axes if contraction is not None else self.graph.node_by_name[name].axes

    def over(self, name: str) -> tuple[tuple[str, int], ...]:
        """Reduced axes of a node."""
        contraction = self.contractions.get(name)
        return (("inner", contraction.inner),) if contraction is not None else self.graph.node_by_name[name].over

    def steps(self, name: str) -> int:
        """Elements of a node's reduced axes: 1 for a map."""
        steps = self._steps.get(name)
        if steps is None:
            steps = self._steps[name] = prod([e for _, e in self.over(name)])
        return steps

    def loop_extents(self, name: str, tile: Sequence[Span]) -> dict[str, int]:
        """Extents of the loops that compute a node over a tile of it."""
        return dict(zip(self.axes(name), [s.extent for s in tile], strict=True)) | dict(self.over(name))

    def least_of_loop(self, name: str, extents: tuple[int, ...]) -> tuple[int, int]:
        """Operations of a map or reduction over a tile of these extents, and bytes that its loops read of boundary values at least; its
        other accesses may stay in registers."""
        known = self._least_of_loop.get((name, extents))
        if known is None:
            steps = prod(extents) * self.steps(name)
            extent_of = dict(zip(self.axes(name), extents, strict=True)) | dict(self.over(name))
            read_bytes = sum([min(steps, read.different(extent_of)) * read.itemsize for read in self.outside_reads(name)])
            known = self._least_of_loop[name, extents] = steps * self.flops(name), read_bytes
        return known

    def outside_reads(self, name: str) -> tuple[OutsideRead, ...]:
        """Reads of boundary values by a map or reduction, what is evaluated on the way included."""
        reads = self._outside.get(name)
        if reads is None:
            reads = self._outside[name] = tuple(
                OutsideRead(frozenset[str]().union(*(e.axes() for e in index)), self.graph.type_of(value).dtype.itemsize)
                for value, index in self.touches(name) if value not in self.inside)
        return reads

    @cached_property
    def product_operands(self) -> frozenset[str]:
        """Left and right operands of all products. Requires: `analyse` found nothing."""
        return frozenset(v for c in self.contractions.values() for v in (c.left, c.right))

    @cached_property
    def shared_operands(self) -> frozenset[str]:
        """Operands that surely lie in shared memory, where they lie on chip at all. Requires: `analyse` found nothing.

        Only sums, maps of them in their stage, and right operands from outside may lie elsewhere (`chained.py`,
        `choose._direct`). So these are left operands from outside, and those that all products depend on: no stage of sums is before them.
        """
        rights = {c.right for c in self.contractions.values()}
        needed_by_all = set[str].intersection(*[self._needed_by(name) - {name} for name in self.contractions]) if rights else set()
        return frozenset(v for v in self.product_operands if (v in needed_by_all if v in self.inside else v not in rights))

    def _needed_by(self, product: str) -> set[str]:
        """A product and the values that it depends on."""
        needed = {product}
        for node in reversed(self.graph.nodes):
            if node.name in needed:
                needed.update(node.reads())
        return needed

    def touches(self, name: str) -> list[tuple[str, tuple[Affine, ...]]]:
        """(value, subscripts over the node's axes) of every read that ends at a kept or a boundary value."""
        touches = self._touches.get(name)
        if touches is None:
            contraction = self.contractions.get(name)
            if contraction is not None:
                touches = [(contraction.left, contraction.left_index), (contraction.right, contraction.right_index)]
                if contraction.bias:
                    touches.append((contraction.bias, contraction.bias_index))
            else:
                touches = list(self._walk(self.graph.node_by_name[name], {}))
            self._touches[name] = touches
        return touches

    def _walk(self, node: Node, at: dict[str, Affine]) -> Iterator[tuple[str, tuple[Affine, ...]]]:
        assert node.body is not None
        for x in walk(node.body):
            if not isinstance(x, Read):
                continue
            index = tuple(substitute(e, at) for e in x.index) if at else x.index
            if x.value not in self.inside or x.value in self.kept:
                yield x.value, index
            else:
                inner = self.graph.node_by_name[x.value]
                yield from self._walk(inner, dict(zip(inner.axes, index, strict=True)))

    def _on_the_way(self, name: str) -> Iterator[Node]:
        node = self.graph.node_by_name[name]
        yield node
        for v in node.reads():
            if v in self.inside and v not in self.kept:
                yield from self._on_the_way(v)

    def looked_up(self, name: str) -> set[str]:
        """Values in whose elements a node, or what is evaluated on the way to it, looks at data-dependent places."""
        return {e.value for e in self._lookups(name)}

    def lookups(self, name: str) -> tuple[int, ...]:
        """Bytes of an element of each lookup of a node and of the nodes that are evaluated on the way to it."""
        return tuple(self.graph.type_of(e.value).dtype.itemsize for e in self._lookups(name))

    def _lookups(self, name: str) -> Iterator[Lookup]:
        return (e for n in self._on_the_way(name) if n.body is not None for e in walk(n.body) if isinstance(e, Lookup))

    def flops(self, name: str) -> int:
        """Operations of one element (one step, for a reduction), what is evaluated on the way included."""
        flops = self._flops.get(name)
        if flops is None:
            flops = self._flops[name] = self._counted_flops(self.graph.node_by_name[name])
        return flops

    def _counted_flops(self, node: Node) -> int:
        if node.body is None:
            return 2
        total = flops_of(node.body)
        for x in walk(node.body):
            if isinstance(x, Read) and x.value in self.inside and x.value not in self.kept:
                total += self.flops(x.value)
        return total + (1 if node.category == "reduce" else 0)

    # -- dimensions that run together -------------------------------------------------------------------------------------

    def _root(self, item: tuple[str, int]) -> tuple[str, int]:
        while self._class.get(item, item) != item:
            item = self._class[item]
        return item

    def _link(self, node: Node) -> None:
        if node.name not in self.kept:
            return
        axes = self.axes(node.name)
        shape = node.type.shape
        for value, index in self.touches(node.name):
            if value not in self.inside:
                continue
            full = self.graph.type_of(value).shape
            for d, e in enumerate(index):
                if len(e.terms) == 1 and e.const == 0 and e.terms[0][1] == 1 and e.terms[0][0] in axes:
                    position = axes.index(e.terms[0][0])
                    if shape[position] == full[d]:
                        self._join((node.name, position), (value, d))

    def _join(self, a: tuple[str, int], b: tuple[str, int]) -> None:
        """Lets two dimensions run together, unless two of one value would (rows and columns of x x')."""
        a, b = self._root(a), self._root(b)
        mine, other = (self._values.get(r, frozenset([r[0]])) for r in (a, b))
        if a != b and not mine & other:
            self._class[a] = b
            self._values[b] = mine | other
