"""The root domain of a pattern, and what every node computes at one point of it.

A kernel walks one iteration domain, the root: kept axes (one result row or column each) and reduced axes. Every node of the
pattern gets a coordinate: its own subscripts as a function of the root axes. A node read at its coordinate is computed once
a point and shared (register composition); a map read anywhere else is computed again there. A reduction has exactly one coordinate.

    y[i, j] = exp(x[i, j] - m[i])        root kept (k0), reduced (r0):  m at (k0), y at (k0, r0)
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.ir.affine import (
    Affine,
    Extents,
    axis,
    bounds,
    delinearise,
    floordiv,
    linearise,
    mod,
    row_major_strides,
    simplify,
    substitute,
)
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.scalar import Bound, Call, Const, Expr, Guard, Index, Lookup, Read, walk
from tilefuse.schedule.carried import carried_span, num_rows
from tilefuse.schedule.resolved import (
    Coordinate,
    Domain,
    Instance,
    Resolved,
    Touch,
    Use,
    coordinate_kept,
    resolved_walk,
)
from tilefuse.schedule.tile import Layouts

# A reduction over at most this many elements may be a loop in one thread; longer ones are shared by threads.
SERIAL_REDUCTION_LIMIT = 32
# Expressions under a guard are written out in place; beyond this many leaves a pattern is not worth composing.
INLINE_LIMIT = 400


class _Conflict(Exception):
    """Internal to this module: carries the Rejected value out of the recursion."""

    def __init__(self, rejected: Rejected) -> None:
        super().__init__(rejected.detail)
        self.rejected = rejected


def find_domain(graph: Graph, layouts: Layouts) -> Domain | Rejected:
    """The root domain of a pattern given as a graph of its own (inputs: boundary; results: values written).

    Layouts give element strides of boundary values and results; missing ones are dense row-major.
    """
    builder = _Builder(graph, layouts)
    try:
        return builder.build()
    except _Conflict as conflict:
        return conflict.rejected


def is_serial_reduction(node: Node) -> bool:
    """Whether one thread should reduce this node on its own: a short reduction whose axes move together with kept axes, or a
    very short one (windows of pooling, tiny last axes)."""
    if node.category != "reduce":
        return False
    size = prod(extent for _, extent in node.over)
    if carried_span(node):
        return False
    if size <= 4:
        return True
    over = {name for name, _ in node.over}
    windowed = False
    for x in walk(node.body):  # type: ignore[arg-type]
        match x:
            case Read(_, index):
                windowed |= any(e.axes() & over and e.axes() - over for e in index)
            case Guard():
                windowed = True
    if windowed and size <= 4096:
        return True
    return size <= SERIAL_REDUCTION_LIMIT and prod(node.type.shape) >= 4096 * 8 and not over_is_contiguous(node)


def over_is_contiguous(node: Node) -> bool:
    """Whether some read of the body runs along memory with a reduced axis in its last subscript."""
    over = {name for name, _ in node.over}
    return any(isinstance(x, Read) and x.index and x.index[-1].axes() & over for x in walk(node.body))  # type: ignore[arg-type]


class _Builder:
    def __init__(self, graph: Graph, layouts: Layouts) -> None:
        self.graph = graph
        self.layouts = layouts
        self.inside = graph.node_by_name
        self.extents: dict[str, int] = {}
        self.home: dict[str, Coordinate] = {}
        self.over_home: dict[str, dict[str, Affine]] = {}
        self.by_key: dict[tuple[str, Coordinate], int] = {}
        self.domain = Domain((), (), self.extents)
        self.in_progress: set[tuple[str, Coordinate]] = set()
        self.inlined = 0
        self.carried: set[str] = set()

    # -- the root ---------------------------------------------------------------------------------------------

    def build(self) -> Domain:
        scatters = [n for n in self.graph.nodes if n.category == "scatter"]
        shared = [n for n in self.graph.nodes if n.category == "reduce" and not is_serial_reduction(n) or n.category == "scan"]
        if scatters:
            if len(scatters) > 1 or shared or self.graph.results != (scatters[0].name,):
                raise _Conflict(Rejected(Reason.DOMAIN_MISMATCH, f"%{scatters[0].name} scatters; its kernel can write nothing else"))
            base = scatters[0].operands[0]
            if base in self.inside:
                raise _Conflict(Rejected(Reason.NEEDS_GRID_SYNC,
                                         f"%{base} must be whole in memory before %{scatters[0].name} writes over a copy of it"))
            self._root_of_scatter(scatters[0])
            self._place_all(scatters[0])
            self._resolve_scatter(scatters[0])
            return self.domain
        rowwise = [n for n in shared if not carried_span(n)]
        self.carried = {n.name for n in shared if rowwise and carried_span(n)}
        anchor = self._anchor(rowwise or shared)
        self._root(anchor, bool(shared))
        for node in shared:
            if node.name in self.carried:
                self._place_carried(node)
        self._place_all(anchor)
        self._resolve_all()
        self.domain.has_scan = any(n.category == "scan" for n in shared)
        return self.domain

    def _anchor(self, shared: list[Node]) -> Node:
        if shared:
            return max(shared, key=lambda n: prod(n.extents.values()))
        written = [self.inside[r] for r in self.graph.results]
        return max(written, key=lambda n: n.type.num_elements)

    def _root(self, anchor: Node, has_shared: bool) -> None:
        d = self.domain
        along = {anchor.along} if anchor.along else set()
        kept = [(a, e) for a, e in zip(anchor.axes, anchor.type.shape) if a not in along] if has_shared else []
        over = list(anchor.over) if has_shared else []
        reduced = over + [(a, e) for a, e in zip(anchor.axes, anchor.type.shape) if a in along or not has_shared]
        names: dict[str, Affine] = {}
        d.kept = tuple(f"k{n}" for n in range(len(kept)))
        d.reduced = tuple(f"r{n}" for n in range(len(reduced)))
        for root, (own, extent) in zip(d.kept + d.reduced, kept + reduced, strict=True):
            self.extents[root] = extent
            names[own] = axis(root)
        self._set_home(anchor, tuple(simplify(names[a], self.extents) for a in anchor.axes))
        if over:
            self.over_home[anchor.name] = {a: simplify(names[a], self.extents) for a, _ in over}

    def _place_carried(self, node: Node) -> None:
        """A carried sum: its group and step are quotient and remainder of the row's number, its columns the row's elements."""
        d = self.domain
        if num_rows(node) != d.num_kept or prod(node.type.shape[1:]) != d.num_reduced:
            raise _Conflict(Rejected(Reason.REDUCTION_MISMATCH,
                                     f"%{node.name} sums {num_rows(node)} rows of {prod(node.type.shape[1:])} elements, the kernel has "
                                     f"{d.num_kept} of {d.num_reduced}"))
        row = linearise(tuple(axis(a) for a in d.kept), row_major_strides(tuple(self.extents[a] for a in d.kept)))
        column = linearise(tuple(axis(a) for a in d.reduced), row_major_strides(tuple(self.extents[a] for a in d.reduced)))
        span = node.over[0][1]
        columns = delinearise(simplify(column, self.extents), node.type.shape[1:], self.extents)
        self._set_home(node, (floordiv(row, span, self.extents), *(simplify(c, self.extents) for c in columns)))
        self.over_home[node.name] = {node.over[0][0]: mod(row, span, self.extents)}

    def _root_of_scatter(self, node: Node) -> None:
        self.domain.reduced = tuple(f"r{n}" for n in range(len(node.over)))
        names = {}
        for root, (own, extent) in zip(self.domain.reduced, node.over, strict=True):
            self.extents[root] = extent
            names[own] = simplify(axis(root), self.extents)
        self.over_home[node.name] = names
        self.home[node.name] = ()
        self._note_homes(node)

    # -- coordinates ------------------------------------------------------------------------------------------

    def _set_home(self, node: Node, coordinate: Coordinate) -> None:
        self.home[node.name] = coordinate

    def _axis_map(self, node: Node) -> dict[str, Affine]:
        names = dict(zip(node.axes, self.home[node.name]))
        return names | self.over_home.get(node.name, {})

    def _note_homes(self, node: Node) -> None:
        """Values that `node` reads get their first coordinate from it, where it is free of loop variables."""
        if node.category == "reduce" and node.name not in self.over_home:
            if is_serial_reduction(node):
                self._note_reads(node, dict(zip(node.axes, self.home[node.name])), {a for a, _ in node.over})
                return
            self._assign_over(node)
        self._note_reads(node, self._axis_map(node), set())

    def _note_reads(self, node: Node, names: Mapping[str, Affine], loose: set[str]) -> None:
        for read in _unguarded_reads((*node.target, node.body) if node.body is not None else node.target):
            if read.value in self.home or any(e.axes() & loose for e in read.index):
                continue
            self.home[read.value] = tuple(substitute(e, names, self.extents) for e in read.index)

    def _assign_over(self, node: Node) -> None:
        """A second shared reduction: its reduced axes are the root's, by equal position in the reduced domain."""
        shape = tuple(extent for _, extent in node.over)
        if prod(shape) != self.domain.num_reduced:
            raise _Conflict(Rejected(Reason.REDUCTION_MISMATCH,
                                     f"%{node.name} reduces {prod(shape)} elements, the kernel's rows have {self.domain.num_reduced}"))
        root_shape = tuple(self.extents[a] for a in self.domain.reduced)
        by_read = self._over_by_reads(node)
        if by_read is not None:
            self.over_home[node.name] = by_read
            return
        flat = linearise(tuple(axis(a) for a in self.domain.reduced), row_major_strides(root_shape))
        coordinate = delinearise(flat, shape, self.extents)
        self.over_home[node.name] = {a: simplify(c, self.extents) for (a, _), c in zip(node.over, coordinate, strict=True)}

    def _over_by_reads(self, node: Node) -> dict[str, Affine] | None:
        """Reduced axes matched dimension by dimension against values whose coordinate is known; None if some stay open."""
        found = self._solve_dimensions(node)
        over = dict(node.over)
        if not all(a in found for a in over):
            return None
        used = [found[a] for a in over]
        names = {t for e in used for t in e.axes()}
        return {a: found[a] for a in over} if names <= set(self.domain.reduced) else None

    def _solve_dimensions(self, node: Node) -> dict[str, Affine]:
        extents = node.extents
        found: dict[str, Affine] = {}
        for read in _reads((*node.target, node.body) if node.body is not None else node.target):
            known = self.home.get(read.value)
            if known is None:
                continue
            shape = self.graph.type_of(read.value).shape
            for e, target, extent in zip(read.index, known, shape, strict=True):
                if len(e.terms) == 1 and e.const == 0 and e.terms[0][1] == 1 and isinstance(e.terms[0][0], str):
                    name = e.terms[0][0]
                    if extents.get(name) == extent and name not in found:
                        found[name] = target
        return found

    def _place_all(self, anchor: Node) -> None:
        """Coordinates for every node: first what the anchor reads, then the others as their operands become known."""
        order = list(self.graph.nodes)
        position = {n.name: p for p, n in enumerate(order)}
        self._place_upstream(position[anchor.name], order)
        pending = [n for n in order if n.name not in self.home]
        while pending:
            left = []
            for node in pending:
                if node.name in self.home or self._place_by_reads(node):
                    self._place_upstream(position[node.name], order)
                else:
                    left.append(node)
            if len(left) == len(pending):
                # What is read only behind guards needs no coordinate of its own: it is computed where it is read.
                stuck = next((n for n in left if self._needs_home(n)), None)
                if stuck is None:
                    return
                self._place_by_shape(stuck)
                self._place_upstream(position[stuck.name], order)
            pending = [n for n in left if n.name not in self.home]

    def _needs_home(self, node: Node) -> bool:
        return node.name in self.graph.results or node.category == "scan" or node.category == "reduce" and not is_serial_reduction(node)

    def _place_upstream(self, start: int, order: Sequence[Node]) -> None:
        for node in reversed(order[: start + 1]):
            if node.name in self.home:
                self._note_homes(node)

    def _place_by_reads(self, node: Node) -> bool:
        """A node downstream of placed values: its axes from theirs, by dimension or by flat position."""
        if not any(read.value in self.home for read in _reads((node.body,))):
            return False
        root = self.domain.kept + self.domain.reduced
        found = self._solve_dimensions(node)
        if not all(a in found for a in node.axes):
            flat = self._solve_flat(node)
            if flat is not None:
                self._set_home(node, flat)
                return True
        missing = [(a, e) for a, e in zip(node.axes, node.type.shape) if a not in found and e != 1]
        if missing:
            taken = frozenset().union(*(found[a].axes() for a in node.axes if a in found))
            free = [a for a in root if a not in taken and self.extents[a] != 1]
            if prod(self.extents[a] for a in free) != prod(e for _, e in missing):
                # A value over the kept axes only (a row's loss) leaves the reduced axes free.
                free = [a for a in free if a in self.domain.kept]
                if prod(self.extents[a] for a in free) != prod(e for _, e in missing):
                    return False
            flat_free = linearise(tuple(axis(a) for a in free), row_major_strides(tuple(self.extents[a] for a in free)))
            for (a, _), c in zip(missing, delinearise(flat_free, tuple(e for _, e in missing), self.extents), strict=True):
                found[a] = simplify(c, self.extents)
        coordinate = tuple(found.get(a, Affine()) for a in node.axes)
        axes_used = [frozenset(c.axes()) for c in coordinate if c.terms]
        if sum(len(s) for s in axes_used) != len(frozenset().union(*axes_used)) and not self._is_bijection(coordinate, node.type.shape):
            return False
        self._set_home(node, coordinate)
        return True

    def _solve_flat(self, node: Node) -> Coordinate | None:
        own = linearise(tuple(axis(a) for a in node.axes), row_major_strides(node.type.shape))
        extents = node.extents
        own = simplify(own, extents)
        for read in _reads((node.body,)):
            known = self.home.get(read.value)
            if known is None:
                continue
            shape = self.graph.type_of(read.value).shape
            if prod(shape) != node.type.num_elements:
                continue
            if simplify(linearise(read.index, row_major_strides(shape)), extents) == own:
                flat = simplify(linearise(known, row_major_strides(shape)), self.extents)
                return tuple(simplify(c, self.extents) for c in delinearise(flat, node.type.shape, self.extents))
        return None

    def _place_by_shape(self, node: Node) -> None:
        """Nothing connects the node to placed values: equal element counts are walked in row-major order together."""
        root = self.domain.kept + self.domain.reduced
        extents = tuple(self.extents[a] for a in root)
        wanted = node.type.num_elements
        if node.category in ("reduce", "scan") and not is_serial_reduction(node):
            if node.category == "reduce" and wanted == self.domain.num_kept:
                root, extents = self.domain.kept, tuple(self.extents[a] for a in self.domain.kept)
            else:
                raise _Conflict(Rejected(Reason.DOMAIN_MISMATCH, f"%{node.name} is not computed over the kernel's domain"))
        elif wanted != prod(extents):
            if wanted == self.domain.num_kept and self.domain.kept:
                root, extents = self.domain.kept, tuple(self.extents[a] for a in self.domain.kept)
            else:
                raise _Conflict(Rejected(Reason.DOMAIN_MISMATCH,
                                         f"%{node.name} has {wanted} elements, the kernel's domain {prod(extents)}"))
        flat = linearise(tuple(axis(a) for a in root), row_major_strides(extents))
        coordinate = delinearise(simplify(flat, self.extents), node.type.shape, self.extents)
        self._set_home(node, tuple(simplify(c, self.extents) for c in coordinate))

    # -- resolution -------------------------------------------------------------------------------------------

    def _resolve_all(self) -> None:
        d = self.domain
        for name in self.graph.results:
            node = self.inside[name]
            home = self.home[name]
            if name in self.carried:
                strides = self.layouts.get(name) or row_major_strides(node.type.shape)
                d.outputs.append((name, self._instance(node, home), simplify(linearise(home, strides), self.extents)))
                continue
            if not self._is_bijection(home, node.type.shape):
                raise _Conflict(Rejected(Reason.DOMAIN_MISMATCH, f"%{name} is not written once at each element by the kernel's domain"))
            used = frozenset().union(*(c.axes() for c in home)) if home else frozenset()
            key = self._instance(node, home)
            if used and not used <= set(d.kept) and not _covers(used, d):
                raise _Conflict(Rejected(Reason.DOMAIN_MISMATCH, f"%{name} varies along reduced axes only; several rows would write it"))
            if not any(i.shared for i in d.instances) and not _covers(used, d):
                raise _Conflict(Rejected(Reason.DOMAIN_MISMATCH, f"%{name} has fewer elements than the kernel's domain"))
            strides = self.layouts.get(name) or row_major_strides(node.type.shape)
            d.outputs.append((name, key, simplify(linearise(home, strides), self.extents)))

    def _resolve_scatter(self, node: Node) -> None:
        names = self.over_home[node.name]
        strides = self.layouts.get(node.name) or row_major_strides(node.type.shape)
        assert node.body is not None
        value = self._resolve(node.body, names, False)
        target = tuple((self._resolve(t, names, False), extent, stride) for t, extent,
                       stride in zip(node.target, node.type.shape, strides, strict=True))
        self.domain.scatter = (node.name, value, target)

    def _is_bijection(self, coordinate: Coordinate, shape: tuple[int, ...]) -> bool:
        """Whether the coordinate runs through `shape` exactly once while the axes it uses run through their extents."""
        if prod(shape) == 0:
            return True
        flat = simplify(linearise(coordinate, row_major_strides(shape)), self.extents)
        used = flat.axes()
        if prod(self.extents[a] for a in used) != prod(shape):
            return False
        if flat.is_linear:
            step = 1
            for atom, c in sorted(flat.terms, key=lambda t: t[1]):
                if c != step or flat.const:
                    return False
                step *= self.extents[atom]  # type: ignore[index]
            return True
        import numpy as np

        from tilefuse.ir.affine import evaluate
        if prod(shape) > 1 << 22:
            return all(isinstance(c, Affine) for c in coordinate) and len(used) <= 2
        grids = np.meshgrid(*(np.arange(self.extents[a]) for a in sorted(used)), indexing="ij", sparse=True)
        seen = np.bincount(np.ravel(evaluate(flat, dict(zip(sorted(used), grids)))), minlength=prod(shape))
        return bool(len(seen) == prod(shape) and (seen == 1).all())

    def _instance(self, node: Node, coordinate: Coordinate) -> int:
        identity = (node.name, coordinate)
        if identity in self.by_key:
            return self.by_key[identity]
        shared = node.category == "scan" or node.category == "reduce" and not is_serial_reduction(node)
        if shared and coordinate != self.home[node.name]:
            raise _Conflict(Rejected(Reason.DOMAIN_MISMATCH,
                                     f"%{node.name} is needed at {_text(coordinate)} but reduced at {_text(self.home[node.name])}"))
        names: dict[str, Affine] = dict(zip(node.axes, coordinate))
        serial: tuple[tuple[str, int], ...] = ()
        position = None
        if shared:
            if node.name in self.carried:
                names |= self.over_home[node.name]
            elif node.category == "reduce":
                if not coordinate_kept(coordinate, self.domain):
                    raise _Conflict(Rejected(Reason.REDUCTION_MISMATCH, f"%{node.name} keeps an axis that the kernel reduces"))
                names |= self.over_home[node.name]
                if not self._is_bijection(tuple(self.over_home[node.name][a] for a, _ in node.over), tuple(e for _, e in node.over)):
                    raise _Conflict(Rejected(Reason.REDUCTION_MISMATCH, f"%{node.name} reduces other elements than the kernel's rows"))
                position = simplify(linearise(tuple(self.over_home[node.name][a] for a, _ in node.over),
                                              row_major_strides(tuple(e for _, e in node.over))), self.extents)
            elif names[node.along].axes() != {a for a in self.domain.reduced
                                              if self.extents[a] > 1} and self.extents[self.domain.reduced[0]] > 1:
                raise _Conflict(Rejected(Reason.REDUCTION_MISMATCH, f"%{node.name} scans another axis than the kernel's rows"))
        elif node.category == "reduce":
            for own, extent in node.over:
                loop = f"{node.name}_{own}_{len(self.by_key)}"
                self.extents[loop] = extent
                serial += ((loop, extent),)
                names[own] = axis(loop)
            position = linearise(tuple(axis(loop) for loop, _ in serial), row_major_strides(tuple(e for _, e in node.over)))
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
        found: set[str] = set()
        for c in coordinate:
            found |= c.axes()
        for x in resolved_walk(body):
            match x:
                case Use(key):
                    found |= self.domain.instances[key].depends
                case Touch(_, _, offset, _):
                    found |= offset.axes()
                case Index(affine):
                    found |= affine.axes()
                case Guard(bounds, _, _):
                    for b in bounds:
                        found |= b.index.axes()
        return frozenset(found)

    def _resolve(self, e: Expr, names: Mapping[str, Affine], guarded: bool) -> Resolved:
        """`e` with axes replaced by root axes, operands inside the pattern by uses, boundary values by touches."""
        match e:
            case Const():
                return e
            case Index(affine):
                return Index(substitute(affine, names, self.extents))
            case Call(fn, args):
                return Call(fn, tuple(self._resolve(a, names, guarded) for a in args))  # type: ignore[misc]
            case Guard(bounds, then, otherwise):
                new = tuple(Bound(substitute(b.index, names, self.extents), b.low, b.high) for b in bounds)
                if all(_always(b, self.extents) for b in new):
                    return self._resolve(then, names, guarded)
                return Guard(new, self._resolve(then, names, True), self._resolve(otherwise, names, True))  # type: ignore[arg-type]
            case Read(value, index):
                return self._resolve_read(value, tuple(substitute(i, names, self.extents) for i in index), guarded)
            case Lookup(value, subscripts):
                if value in self.inside:
                    raise _Conflict(Rejected(Reason.NEEDS_GRID_SYNC,
                                             f"%{value} is looked up at data-dependent places; it must be whole in memory first"))
                t = self.graph.type_of(value)
                strides = self.layouts.get(value) or row_major_strides(t.shape)
                offset = Affine()
                dynamic: list[tuple[Resolved, int, int]] = []
                for s, extent, stride in zip(subscripts, t.shape, strides, strict=True):
                    r = self._resolve(s, names, guarded)
                    if isinstance(r, Index):
                        offset = offset + r.affine * stride
                    else:
                        dynamic.append((r, extent, stride))
                return Touch(value, t.dtype, simplify(offset, self.extents), tuple(dynamic))
        raise TypeError(f"not a scalar expression: {e!r}")

    def _resolve_read(self, value: str, index: Coordinate, guarded: bool) -> Resolved:
        node = self.inside.get(value)
        if node is None:
            t = self.graph.type_of(value)
            strides = self.layouts.get(value) or row_major_strides(t.shape)
            return Touch(value, t.dtype, simplify(linearise(index, strides), self.extents))
        shared = node.category == "scan" or node.category == "reduce" and not is_serial_reduction(node)
        if node.category == "scatter":
            raise _Conflict(Rejected(Reason.NEEDS_GRID_SYNC, f"%{value} is a scatter; it must be whole in memory before it is read"))
        if not guarded or shared:
            return Use(self._instance(node, index))
        if (value, index) in self.by_key:
            return Use(self.by_key[value, index])
        if node.category == "reduce":
            raise _Conflict(Rejected(Reason.UNSUPPORTED_OP, f"%{value} is a reduction read behind padding"))
        self.inlined += 1
        if self.inlined > INLINE_LIMIT:
            detail = f"%{value} and its operands would be written out {self.inlined} times behind padding"
            raise _Conflict(Rejected(Reason.RECOMPUTATION, detail))
        assert node.body is not None
        return self._resolve(node.body, dict(zip(node.axes, index)), True)


def _always(b: Bound, extents: Extents) -> bool:
    """Whether a bound holds in the whole domain."""
    span = bounds(b.index, extents)
    return span is not None and b.low <= span[0] and span[1] < b.high


def _covers(used: frozenset[str] | set[str], domain: Domain) -> bool:
    return all(a in used or domain.extents[a] == 1 for a in domain.kept + domain.reduced)


def _text(coordinate: Coordinate) -> str:
    return "[" + ", ".join(map(str, coordinate)) + "]"


def _reads(bodies: Sequence[Expr | None]) -> list[Read]:
    return [x for body in bodies if body is not None for x in walk(body) if isinstance(x, Read)]


def _unguarded_reads(bodies: Sequence[Expr | None]) -> list[Read]:
    """Reads outside guards first, then the guarded ones: a home under a guard may be out of range where the guard fails."""
    found: list[Read] = []
    stack = [b for b in bodies if b is not None]
    while stack:
        e = stack.pop(0)
        match e:
            case Read():
                found.append(e)
            case Call(_, args):
                stack = list(args) + stack
            case Lookup(_, subscripts):
                stack = list(subscripts) + stack
    return found
