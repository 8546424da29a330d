"""The root domain of a pattern, and the computation of every node at one point of it.

A kernel walks one iteration domain, the root: kept axes (one result row or column each) and reduced axes. Every node of the pattern has a
coordinate: its own subscripts as a function of the root axes. A node that is read at its coordinate is computed once per point and shared
(register composition). A map that is read elsewhere is recomputed there. A reduction has exactly one coordinate.

    y[i, j] = exp(x[i, j] - m[i])        root kept (k0), reduced (r0):  m at (k0), y at (k0, r0)
"""
from __future__ import annotations

from collections.abc import Mapping

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.carried import carried_groups
from tilefuse.domain.coordinates import Conflict, Placement, is_serial_reduction, is_short_across_memory
from tilefuse.domain.merge_axes import with_merged_axes
from tilefuse.domain.resolved import Coordinate, Domain, Instance, Resolved, ResolvedLeaf, Touch, Use, coordinate_kept, resolved_walk
from tilefuse.domain.split_axes import with_split_axes
from tilefuse.ir.affine import (
    Affine,
    Extents,
    axis,
    bounds,
    linearise,
    row_major_strides,
    simplify,
    substitute,
)
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.resolver import Resolver
from tilefuse.ir.scalar import Bound, Expr, GraphLeaf, Guard, Index, Lookup, Read


def find_domain(graph: Graph, layouts: Layouts) -> Domain | Rejected:
    """The root domain of a pattern, a graph whose inputs are the boundary and whose results are the values written.

    layouts: element strides of boundary values and results; missing ones are dense row-major.
    """
    reductions = [n for n in graph.nodes if n.category == "reduce"]
    preferred = frozenset(n.name for n in reductions if is_serial_reduction(n))
    either = frozenset(n.name for n in reductions if is_short_across_memory(n))
    domain = _domain_with(graph, layouts, preferred)
    for serial in dict.fromkeys((preferred - either, preferred | either)):
        if isinstance(domain, Rejected) and serial != preferred:
            other = _domain_with(graph, layouts, serial)
            domain = domain if isinstance(other, Rejected) else other
    return domain


def _domain_with(graph: Graph, layouts: Layouts, serial: frozenset[str]) -> Domain | Rejected:
    """The root domain if one thread computes each reduction of `serial` and several threads share each other one."""
    try:
        return with_split_axes(with_merged_axes(_Builder(graph, layouts, serial).build()))
    except Conflict as conflict:
        return conflict.rejected


class _Builder(Placement):
    def __init__(self, graph: Graph, layouts: Layouts, serial: frozenset[str]) -> None:
        super().__init__(graph, layouts, serial)
        self.by_key: dict[tuple[str, Coordinate], int] = {}
        self.inlined = 0

    def build(self) -> Domain:
        """The domain of the graph."""
        scatters = [n for n in self.graph.nodes if n.category == "scatter"]
        shared = [n for n in self.graph.nodes if n.category == "reduce" and n.name not in self.serial or n.category == "scan"]
        if scatters:
            if len(scatters) > 1 or shared or self.graph.results != (scatters[0].name,):
                raise Conflict(Rejected(Reason.DOMAIN_MISMATCH, f"%{scatters[0].name} scatters; its kernel can write nothing else"))
            base = scatters[0].operands[0]
            if base in self.inside:
                raise Conflict(Rejected(Reason.NEEDS_GRID_SYNC,
                                         f"%{base} must be whole in memory before %{scatters[0].name} writes over a copy of it"))
            self.place_scatter(scatters[0])
            self.place_all(scatters[0])
            self._resolve_scatter(scatters[0])
            return self.domain
        rowwise = [n for n in shared if not carried_groups(n)]
        self.carried = {n.name for n in shared if rowwise and carried_groups(n)}
        anchor = self.anchor(rowwise or shared)
        self.place_root(anchor, bool(shared))
        for node in shared:
            if node.name in self.carried:
                self.place_carried(node)
        self.place_all(anchor)
        self._resolve_all()
        self.domain.has_scan = any(n.category == "scan" for n in shared)
        return self.domain

    def _resolve_all(self) -> None:
        d = self.domain
        for name in self.graph.results:
            node = self.inside[name]
            home = self.home[name]
            if name in self.carried:
                strides = self.layouts.get(name) or row_major_strides(node.type.shape)
                d.outputs.append((name, self._instance(node, home), simplify(linearise(home, strides), self.extents)))
                continue
            if not self.is_bijection(home, node.type.shape):
                raise Conflict(Rejected(Reason.DOMAIN_MISMATCH, f"%{name} is not written once at each element by the kernel's domain"))
            used = frozenset().union(*(c.axes() for c in home)) if home else frozenset()
            key = self._instance(node, home)
            if used and not used <= set(d.kept) and not _covers(used, d):
                raise Conflict(Rejected(Reason.DOMAIN_MISMATCH, f"%{name} varies along reduced axes only; several rows would write it"))
            if not any(i.shared for i in d.instances) and not _covers(used, d):
                raise Conflict(Rejected(Reason.DOMAIN_MISMATCH, f"%{name} has fewer elements than the kernel's domain"))
            strides = self.layouts.get(name) or row_major_strides(node.type.shape)
            d.outputs.append((name, key, simplify(linearise(home, strides), self.extents)))

    def _along_rows(self) -> Affine:
        """Position of an element of the domain in its row."""
        extents = {a: self.extents[a] for a in self.domain.reduced}
        return simplify(linearise(tuple(map(axis, extents)), row_major_strides(tuple(extents.values()))), self.extents)

    def _resolve_scatter(self, node: Node) -> None:
        names = self.over_home[node.name]
        strides = self.layouts.get(node.name) or row_major_strides(node.type.shape)
        assert node.body is not None
        value = self._resolve(node.body, names, False)
        target = tuple((self._resolve(t, names, False), extent, stride) for t, extent,
                       stride in zip(node.target, node.type.shape, strides, strict=True))
        self.domain.scatter = (node.name, value, target)

    def _instance(self, node: Node, coordinate: Coordinate) -> int:
        identity = (node.name, coordinate)
        if identity in self.by_key:
            return self.by_key[identity]
        shared = node.category == "scan" or node.category == "reduce" and node.name not in self.serial
        if shared and coordinate != self.home[node.name]:
            raise Conflict(Rejected(Reason.DOMAIN_MISMATCH,
                                     f"%{node.name} is needed at {_text(coordinate)} but reduced at {_text(self.home[node.name])}"))
        names: dict[str, Affine] = dict(zip(node.axes, coordinate))
        serial: tuple[tuple[str, int], ...] = ()
        position = None
        if shared:
            if node.name in self.carried:
                names |= self.over_home[node.name]
            elif node.category == "reduce":
                if not coordinate_kept(coordinate, self.domain):
                    raise Conflict(Rejected(Reason.REDUCTION_MISMATCH, f"%{node.name} keeps an axis that the kernel reduces"))
                names |= self.over_home[node.name]
                if not self.is_bijection(tuple(self.over_home[node.name][a] for a, _ in node.over), tuple(e for _, e in node.over)):
                    raise Conflict(Rejected(Reason.REDUCTION_MISMATCH, f"%{node.name} reduces other elements than the kernel's rows"))
                position = simplify(linearise(tuple(self.over_home[node.name][a] for a, _ in node.over),
                                              row_major_strides(tuple(e for _, e in node.over))), self.extents)
            elif simplify(names[node.along], self.extents) != self._along_rows():
                # A scan along another axis, or in descending order: a kernel walks its rows once, in ascending order.
                raise Conflict(Rejected(Reason.REDUCTION_MISMATCH, f"%{node.name} scans otherwise than the kernel walks its rows"))
        elif node.category == "reduce":
            # A reduction over no axis still combines one element: its position is 0, and its m2 is 0 for every value.
            for own, extent in node.over or (("one", 1),):
                loop = f"{node.name}_{own}_{len(self.by_key)}"
                self.extents[loop] = extent
                serial += ((loop, extent),)
                if node.over:
                    names[own] = axis(loop)
            position = linearise(tuple(axis(loop) for loop, _ in serial), row_major_strides(tuple(e for _, e in serial)))
        assert node.body is not None
        body = self._resolve(node.body, names, False)
        uses = tuple(dict.fromkeys(x.key for x in resolved_walk(body) if isinstance(x, Use)))
        depends = frozenset().union(*(c.axes() for c in coordinate)) if shared and node.category == "reduce" else self._depends(body,
                                                                                                                                coordinate)
        depends = depends - {loop for loop, _ in serial}
        key = len(self.domain.instances)
        self.domain.instances.append(Instance(key, node, coordinate, body, depends, serial, shared, position, uses,
                                              node.name in self.carried))
        self.by_key[identity] = key
        return key

    def _depends(self, body: Resolved, coordinate: Coordinate) -> frozenset[str]:
        axes: set[str] = set()
        for c in coordinate:
            axes |= c.axes()
        for x in resolved_walk(body):
            match x:
                case Use(key):
                    axes |= self.domain.instances[key].depends
                case Touch(_, _, offset, _):
                    axes |= offset.axes()
                case Index(affine):
                    axes |= affine.axes()
                case Guard(bounds, _, _):
                    for b in bounds:
                        axes |= b.index.axes()
        return frozenset(axes)

    def _resolve(self, e: Expr, names: Mapping[str, Affine], guarded: bool) -> Resolved:
        """`e` with axes replaced by root axes, internal values by uses, and boundary values by touches."""
        return _AtPlace(self, names).expression(e, guarded)

    def resolve_read(self, value: str, index: Coordinate, guarded: bool) -> Resolved:
        """A read of a value with its place: inlined, or at offsets of a boundary value."""
        node = self.inside.get(value)
        if node is None:
            t = self.graph.type_of(value)
            strides = self.layouts.get(value) or row_major_strides(t.shape)
            return Touch(value, t.dtype, simplify(linearise(index, strides), self.extents))
        shared = node.category == "scan" or node.category == "reduce" and node.name not in self.serial
        if node.category == "scatter":
            raise Conflict(Rejected(Reason.NEEDS_GRID_SYNC, f"%{value} is a scatter; it must be whole in memory before it is read"))
        if not guarded or shared:
            return Use(self._instance(node, index))
        if (value, index) in self.by_key:
            return Use(self.by_key[value, index])
        if node.category == "reduce":
            raise Conflict(Rejected(Reason.UNSUPPORTED_OP, f"%{value} is a reduction read behind padding"))
        self.inlined += 1
        if self.inlined > SEARCH.domain.inlined_values:
            detail = f"%{value} and its operands would be written out {self.inlined} times behind padding"
            raise Conflict(Rejected(Reason.RECOMPUTATION, detail))
        assert node.body is not None
        return self._resolve(node.body, dict(zip(node.axes, index)), True)


class _AtPlace(Resolver[GraphLeaf, ResolvedLeaf]):
    """Resolves expressions of the pattern's nodes, with `names` as the values of their axes."""

    def __init__(self, builder: _Builder, names: Mapping[str, Affine]) -> None:
        self.builder, self.names = builder, names

    def index(self, e: Affine) -> Affine:
        return substitute(e, self.names, self.builder.extents)

    def always(self, bound: Bound) -> bool:
        return _always(bound, self.builder.extents)

    def leaf(self, e: GraphLeaf, guarded: bool) -> Resolved:
        match e:
            case Read(value, index):
                return self.builder.resolve_read(value, tuple(self.index(i) for i in index), guarded)
            case Lookup():
                return self._lookup(e, guarded)
        raise TypeError(f"not a scalar expression: {e!r}")

    def _lookup(self, e: Lookup, guarded: bool) -> Touch:
        builder = self.builder
        if e.value in builder.inside:
            raise Conflict(Rejected(Reason.NEEDS_GRID_SYNC,
                                     f"%{e.value} is looked up at data-dependent places; it must be whole in memory first"))
        t = builder.graph.type_of(e.value)
        strides = builder.layouts.get(e.value) or row_major_strides(t.shape)
        offset = Affine()
        dynamic: list[tuple[Resolved, int, int]] = []
        for s, extent, stride in zip(e.subscripts, t.shape, strides, strict=True):
            r = self.expression(s, guarded)
            if isinstance(r, Index):
                offset = offset + r.affine * stride
            else:
                dynamic.append((r, extent, stride))
        return Touch(e.value, t.dtype, simplify(offset, builder.extents), tuple(dynamic))


def _always(b: Bound, extents: Extents) -> bool:
    """Whether a bound holds in the whole domain."""
    span = bounds(b.index, extents)
    return span is not None and b.low <= span[0] and span[1] < b.high


def _covers(used: frozenset[str] | set[str], domain: Domain) -> bool:
    return all(a in used or domain.extents[a] == 1 for a in domain.kept + domain.reduced)


def _text(coordinate: Coordinate) -> str:
    return "[" + ", ".join(map(str, coordinate)) + "]"
