"""Sums of gradients: the contributions to each value over its own axes, and the nodes that sum them.

A contribution without axes to sum over stays an expression until all contributions are known, so that a value's gradient is one map.
Adjacent slices of one value become a choice between them instead of a sum of mostly zeros.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.dtype import DType, compute_dtype
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import (
    Bound,
    Call,
    Const,
    Expr,
    Guard,
    Index,
    Lookup,
    Read,
    axes_in,
    call,
    choice_of_range,
    const,
    is_cast,
    substitute_axes,
    walk,
)
from tilefuse.ir.verify import verify_node
from tilefuse.passes.autodiff.scalar import is_zero, num_parts, rounded_back, simplified_call
from tilefuse.passes.autodiff.transpose import inverse
from tilefuse.passes.decompose import Rewriter
from tilefuse.passes.simplify_index import simplify_indices

# A term of a sum with more subexpressions becomes a node of its own.
MAX_TERM_PARTS = 80
# Limit on the points that the gather form reads for each point of the reader's domain; beyond that the reader adds atomically.
MAX_WASTE = 16
# A value counts as small beside another with this many times its elements: reading it is practically free.
SMALL = 8


@dataclass(frozen=True, slots=True)
class Gradient:
    """A value's gradient as an expression over `axes`: a constant, a read whose subscripts are axes, or an expression as cheap for its
    users."""

    axes: tuple[str, ...]
    body: Expr


class Gradients:
    """The gradients known so far, and the builder that holds the nodes of the graph and of its gradients."""

    def __init__(self, graph: Graph, active: set[str]) -> None:
        self.graph = graph
        self.active = active
        self.build = Rewriter(graph)
        for node in graph.nodes:
            self.build.add(node)
        self.terms: dict[str, list[Expr]] = {}
        self.complete: dict[str, Gradient] = {}
        self._sources: dict[str, str | None] = {}
        self._nodes: dict[str, Node] = {}
        self._sums: dict[Node, str] = {}

    # Facts about values

    def type_of(self, name: str) -> Type:
        """Type of a value."""
        return self.build.types[name]

    def work(self, name: str) -> DType:
        """The dtype in which contributions to a value are added."""
        return compute_dtype(self.type_of(name).dtype)

    def read_dtype(self, name: str) -> DType:
        """Data type of a value."""
        return self.build.types[name].dtype

    def dtype_of(self, e: Expr) -> DType:
        """Data type of an expression."""
        return dtype_of(e, self.read_dtype)

    def axes_of(self, name: str) -> tuple[str, ...]:
        """Names for a value's dimensions: those that its node uses."""
        node = self.graph.node_by_name.get(name)
        return node.axes if node is not None and node.axes else axis_names(len(self.type_of(name).shape))

    def here(self, name: str) -> tuple[Affine, ...]:
        """Subscripts of a value at its own axes."""
        return tuple(axis(a) if s > 1 else number(0) for a, s in zip(self.axes_of(name), self.type_of(name).shape, strict=True))

    def has(self, name: str) -> bool:
        """Whether any contribution to the value has been added."""
        return name in self.terms or name in self.complete

    def begin(self, node: Node) -> None:
        """New nodes get names after this node, and its place in the user's program."""
        self.build.prefix, self.build.span = f"d_{node.name}_", node.span

    # Adding up

    def add(self, name: str, e: Expr) -> None:
        """Adds a contribution over the value's own axes, in its work dtype."""
        if not is_zero(e):
            self.terms.setdefault(name, []).append(e)

    def add_value(self, name: str, gradient: str) -> None:
        """Adds a whole tensor of the value's shape."""
        read = Read(gradient, self.here(name))
        self.add(name, rounded_back(read, self.read_dtype(gradient), self.work(name), self.read_dtype))

    def add_read(self, read: Read, extents: Mapping[str, int], e: Expr) -> None:
        """Adds the contribution of a read over the domain `extents`: `e` at every point, in the dtype of the value read."""
        name = read.value
        shape, axes = self.type_of(name).shape, self.axes_of(name)
        if 0 in shape or is_zero(e):
            return
        wide = rounded_back(e, self.read_dtype(name), self.work(name), self.read_dtype)
        back = inverse(read.index, extents, axes, shape)
        zero = const(0, self.work(name))
        if back is not None:
            known = {a: s for a, s in zip(axes, shape, strict=True) if s > 1} | dict(back.free)
            body = substitute_axes(wide, back.solution, None if back.plain else known)
            if not back.plain:
                body = simplify_indices(Guard(back.bounds, body, zero) if back.bounds else body, known)
            if back.plain or self._worthwhile(back.free, extents, shape) and self._provable(name, body, known, back.bounds):
                self.add(name, self._summed(name, body, back.free))
                return
        self.add_scatter(name, extents, tuple(Index(a) for a in read.index), wide)

    def _worthwhile(self, free: Sequence[tuple[str, int]], extents: Mapping[str, int], shape: Sequence[int]) -> bool:
        return not free or prod(shape) * prod(s for _, s in free) <= MAX_WASTE * max(prod(extents.values()), prod(shape))

    def _provable(self, name: str, body: Expr, known: Mapping[str, int], bounds: Sequence[Bound]) -> bool:
        """Whether all reads are proved in range; plain subscripts without guards always are."""
        if not bounds and all(e.is_linear for x in walk(body) if isinstance(x, Read) for e in x.index):
            return True
        kind = "gather" if _has_lookup(body) else "map"
        node = Node("", Type(self.work(name), tuple(known.values())), kind, tuple(known), body=body)
        return not any(f.rule == "reads-in-range" for f in verify_node(node, self.build.types))

    def add_scatter(self, name: str, extents: Mapping[str, int], target: tuple[Expr, ...], e: Expr) -> None:
        """Adds `e` of every point of a domain at data-dependent places, atomically. `e` is in the value's work dtype."""
        b = self.build
        prefix, b.prefix = b.prefix, f"d_{name}_"
        zeros = b.full(self.type_of(name).shape, 0, self.work(name))
        scattered = b.add(Node(b.fresh("scatter"), b.types[zeros], "scatter.sum", over=tuple(extents.items()), body=e, target=target,
                               operands=(zeros,), span=b.span))
        b.prefix = prefix
        self.add(name, Read(scattered, self.here(name)))

    def _summed(self, name: str, body: Expr, free: Sequence[tuple[str, int]]) -> Expr:
        """The sum of `body` over the free axes; factors that do not vary there, and axes that nothing depends on, stay outside."""
        if isinstance(body, Const):
            return simplified_call("mul", const(prod(s for _, s in free), body.dtype), body)
        used = axes_in(body)
        times = prod(s for a, s in free if a not in used)
        free = [(a, s) for a, s in free if a in used]
        outside, inside = _factored(body, {a for a, _ in free}) if free else (body, None)
        total = outside
        if inside is not None:
            part: Expr = self._reduction(name, inside, free)
            total = part if outside is None else _with_inner(outside, part)
        assert total is not None
        return simplified_call("mul", const(times, self.work(name)), total) if times != 1 else total

    def _reduction(self, name: str, body: Expr, free: Sequence[tuple[str, int]]) -> Expr:
        """A sum node over the value's axes on which the body depends."""
        b = self.build
        used = axes_in(body)
        axes, shape = self.axes_of(name), self.type_of(name).shape
        sum_axes = [(a, s) for a, s in zip(axes, shape, strict=True) if a in used and s > 1]
        if len(sum_axes) == sum(s > 1 for s in shape):
            sum_axes = list(zip(axes, shape, strict=True))
        if _has_lookup(body):  # a reduction has none: its operand is a gather's result
            inner = [*((a, s) for a, s in sum_axes if s > 1), *free]
            terms = b.map("terms", self.work(name), [s for _, s in inner], [a for a, _ in inner], body)
            body = Read(terms, tuple(axis(a) for a, _ in inner))
        type_ = Type(self.work(name), tuple(s for _, s in sum_axes))
        sum_node = Node("", type_, "reduce.sum", tuple(a for a, _ in sum_axes), tuple(free), body=body,
                        span=b.span)
        if sum_node not in self._sums:  # a batch norm's shift, scale and mean need the same two
            self._sums[sum_node] = b.add(replace(sum_node, name=b.fresh("sum")))
        return Read(self._sums[sum_node], tuple(axis(a) if s > 1 else number(0) for a, s in sum_axes))

    # Results

    def gradient(self, name: str) -> Gradient:
        """The gradient of a value with contributions; no more may be added afterwards."""
        if name in self.complete:
            return self.complete[name]
        dtype, work = self.read_dtype(name), self.work(name)
        b = self.build
        prefix, b.prefix = b.prefix, f"d_{name}_"
        total = self._total(name, self.terms.pop(name), work)
        b.prefix = ""
        body = rounded_back(total, work, dtype, self.read_dtype)
        axes = self.axes_of(name)
        if not _is_plain(body, self.here(name)) and not self._costs_nothing(name, body):
            body = Read(b.map(f"d_{name}", dtype, self.type_of(name).shape, axes, body), self.here(name))
        b.prefix = prefix
        self.complete[name] = Gradient(axes, body)
        return self.complete[name]

    # Values that need not be kept

    def again(self, read: Read) -> Expr | None:
        """An element of a normalised or scaled value as its defining expression, where its gradient reads the operand anyway."""
        source = self._scaled_source(read.value)
        if source is None:
            return None
        node = self.graph.node_by_name[read.value]
        assert node.body is not None
        return substitute_axes(node.body, dict(zip(node.axes, read.index, strict=True)))

    def _scaled_source(self, name: str) -> str | None:
        """x of a map like (x - mean) * scale + shift, where x is in memory and scale is small and differentiated: the gradient of scale
        reads x."""
        if name not in self._sources:
            self._sources[name] = self._find_source(name)
        return self._sources[name]

    def _find_source(self, name: str) -> str | None:
        node = self.graph.node_by_name.get(name)
        if node is None or node.kind != "map" or node.body is None:
            return None
        large = self._large_reads(node.body, node.type.num_elements)
        if len(large) != 1 or not self._in_memory(large[0].value) or large[0].index != self.here(name):
            return None
        source = large[0].value

        def scales(e: Expr) -> bool:
            return any(isinstance(x, Read) and x.value != source and x.value in self.active for x in walk(e))

        products = [x.args for x in walk(node.body) if isinstance(x, Call) and x.fn in ("mul", "div")]
        needed = any(large[0] in walk(a) and scales(b) or large[0] in walk(b) and scales(a) for a, b in products)
        return source if needed else None

    def _large_reads(self, e: Expr, elements: int) -> list[Read]:
        large = (x for x in walk(e) if isinstance(x, Read) and self.type_of(x.value).num_elements * SMALL > elements)
        return list(dict.fromkeys(large))

    def _in_memory(self, name: str) -> bool:
        """Whether the value is stored in any plan: an input or a library call's result."""
        node = self._node(name)
        return node is None or node.category == "library"

    def _node(self, name: str) -> Node | None:
        """The node that computes a value, forward or backward; None for an input."""
        for node in self.build.nodes[len(self._nodes) + len(self.graph.nodes):]:
            self._nodes[node.name] = node
        return self.graph.node_by_name.get(name) or self._nodes.get(name)

    def _is_sum_kept(self, name: str) -> bool:
        """Whether the value is a reduction, or one rounded to a narrow type: a kernel of its own computes it for several users."""
        node = self._node(name)
        if node is not None and node.kind == "map" and node.body is not None and is_cast(node.body):
            match node.body:
                case Call(_, (Read(value, index),)) if index == tuple(map(axis, node.axes)):
                    node = self._node(value)
        return node is not None and node.category == "reduce"

    def _costs_nothing(self, name: str, body: Expr) -> bool:
        """Whether the gradient's users read no more if each computes it: only a mask is applied, whose operands they read anyway."""
        source = self._scaled_source(name)
        root = body.args[0] if is_cast(body) and isinstance(body, Call) else body
        if source is None or _has_lookup(body) or not (isinstance(root, Call) and root.fn == "select"):
            return False
        large = [r for r in self._large_reads(body, self.type_of(name).num_elements) if r.value != source]
        if len(large) != 1 or large[0].index != self.here(name):
            return False
        # Several kernels use it, so a sum over windows (a pool's gradient) is stored like a library call's result.
        return self._in_memory(large[0].value) or self._is_sum_kept(large[0].value)

    def _total(self, name: str, terms: Sequence[Expr], work: DType) -> Expr:
        """The sum of all contributions. Many whole tensors are added pair by pair in nodes of their own: a later pass turns such sums of
        products into one product."""
        parts = side_by_side(terms, self.axes_of(name), self.type_of(name).shape, const(0, work))
        whole = [e for e in parts if isinstance(e, Read)]
        if len(whole) > 2:
            rest = [e for e in parts if not isinstance(e, Read)]
            axes, shape = self.axes_of(name), self.type_of(name).shape
            joined: Expr = whole[0]
            for n, e in enumerate(whole[1:]):
                joined = simplified_call("add", joined, e)
                if n < len(whole) - 2 or rest:
                    joined = Read(self.build.map("sum", work, shape, axes, joined), self.here(name))
            parts = [joined, *rest]
        if len(parts) > 1:
            parts = [self._own_node(name, e, work) if num_parts(e) > MAX_TERM_PARTS else e for e in parts]
        total = parts[0]
        for part in parts[1:]:
            if num_parts(total) > MAX_TERM_PARTS:
                total = self._own_node(name, total, work)
            total = simplified_call("add", total, part)
        return total

    def _own_node(self, name: str, e: Expr, work: DType) -> Expr:
        return Read(self.build.map("term", work, self.type_of(name).shape, self.axes_of(name), e), self.here(name))

    def at(self, name: str, axes: Sequence[str]) -> Expr:
        """The gradient of a value at the axes of these names."""
        gradient = self.gradient(name)
        shape = self.type_of(name).shape
        index = {a: axis(to) if s > 1 else number(0) for a, to, s in zip(gradient.axes, axes, shape, strict=True)}
        return substitute_axes(gradient.body, index)

    def value_of(self, name: str) -> str:
        """The name of a value that holds the gradient."""
        gradient = self.gradient(name)
        match gradient.body:
            case Read(value, index) if index == self.here(name) and self.type_of(value).shape == self.type_of(name).shape:
                return value
        b = self.build
        prefix, b.prefix = b.prefix, ""
        gradient_name = b.map(f"d_{name}", self.read_dtype(name), self.type_of(name).shape, gradient.axes, gradient.body)
        b.prefix = prefix
        self.complete[name] = Gradient(gradient.axes, Read(gradient_name, self.here(name)))
        return gradient_name

    def result(self, name: str) -> str:
        """As `value_of`, zeros where there is no contribution."""
        if not self.has(name):
            self.complete[name] = Gradient(self.axes_of(name), const(0, self.read_dtype(name)))
        return self.value_of(name)


def _has_lookup(e: Expr) -> bool:
    return any(isinstance(x, Lookup) for x in walk(e))


def _is_plain(e: Expr, here: Sequence[Affine]) -> bool:
    """Whether the expression may replace a value wherever it is used: a constant, or a read at axes and constants."""
    if isinstance(e, Const):
        return True
    return isinstance(e, Read) and all(not a.terms or a in here for a in e.index)


INNER = Read("", ())  # represents the sum in the part outside of it


def _factored(body: Expr, free: set[str]) -> tuple[Expr | None, Expr]:
    """(outside, inside) with sum(body) = outside where INNER is sum(inside); outside None where nothing can be taken out.

    mul(w[j], mul(g[i, j], r[j])) over i gives mul(w[j], mul(INNER, r[j])) and g[i, j]: several sums of one backward pass become equal.
    """

    def fixed(e: Expr) -> bool:
        return not (axes_in(e) & free)

    match body:
        case Call("neg", (a,)):
            outside, inside = _factored(a, free)
            return call("neg", INNER if outside is None else outside), inside
        case Call("mul", (a, b)) if fixed(a) or fixed(b):
            one, other = (a, b) if fixed(a) else (b, a)
            outside, inside = _factored(other, free)
            return simplified_call("mul", INNER if outside is None else outside, one), inside
        case Call("div", (a, b)) if fixed(b):
            outside, inside = _factored(a, free)
            return call("div", INNER if outside is None else outside, b), inside
        case Call("mul", (a, b)):
            # A factor inside one operand comes out as well.
            out_a, in_a = _factored(a, free)
            out_b, in_b = _factored(b, free)
            inside = call("mul", in_a, in_b)
            if out_a is None or out_b is None:
                return out_a if out_b is None else out_b, inside
            return _with_inner(out_a, out_b), inside
    return None, body


def _with_inner(outside: Expr, part: Expr) -> Expr:
    """`outside` with INNER replaced."""
    if outside == INNER:
        return part
    if isinstance(outside, Call):
        return Call(outside.fn, tuple(_with_inner(a, part) if isinstance(a, (Call, Read)) else a for a in outside.args))
    return outside


def side_by_side(terms: Sequence[Expr], axes: Sequence[str], shape: Sequence[int], zero: Const) -> list[Expr]:
    """The terms, where those that are zero outside of disjoint ranges of one axis are combined into a balanced choice.

    Guard(0 <= i < 2, a, 0) + Guard(2 <= i < 5, b, 0)  ->  Guard(0 <= i < 2, a, b)   where i has extent 5
    """
    groups: dict[str, list[tuple[int, int, Expr]]] = {}
    choices: list[Expr] = []
    extent_of = dict(zip(axes, shape, strict=True))
    for e in terms:
        match e:
            case Guard((Bound(index, low, high),), then, otherwise) if is_zero(otherwise) and len(index.terms) == 1:
                ((name, c),) = index.terms
                if isinstance(name, str) and c == 1 and name in extent_of:
                    groups.setdefault(name, []).append((max(low - index.const, 0), min(high - index.const, extent_of[name]), then))
                    continue
        choices.append(e)
    for name, parts in groups.items():
        parts.sort(key=lambda p: (p[0], p[1]))
        while parts:
            chosen: list[tuple[int, int, Expr]] = []
            later: list[tuple[int, int, Expr]] = []
            for part in parts:
                (chosen if not chosen or part[0] >= chosen[-1][1] else later).append(part)
            choices.append(choice_of_range(_filled(chosen, extent_of[name], zero), axis(name)))
            parts = later
    return choices


def _filled(parts: Sequence[tuple[int, int, Expr]], extent: int, zero: Const) -> list[tuple[int, int, Expr]]:
    """The ranges with zeros between them, so that they cover the axis."""
    out: list[tuple[int, int, Expr]] = []
    at = 0
    for low, high, e in parts:
        if low > at:
            out.append((at, low, zero))
        out.append((low, high, e))
        at = high
    if at < extent:
        out.append((at, extent, zero))
    return out
