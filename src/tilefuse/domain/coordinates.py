"""Coordinates: the index of every node of a pattern in the root domain, as a function of the root axes.

The anchor is placed first, then its operands, then their users. Subscripts decide a coordinate; if they do not, row-major position does.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.carried import carried_groups, num_rows
from tilefuse.domain.resolved import (
    Coordinate,
    Domain,
)
from tilefuse.ir.affine import (
    Affine,
    axes_of,
    axis,
    bounds,
    delinearise,
    floordiv,
    from_terms,
    linearise,
    mod,
    row_major_strides,
    simplify,
    substitute,
)
from tilefuse.ir.digits import numbers_its_axes
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.scalar import Call, Expr, Guard, Lookup, Read, walk


class Conflict(Exception):
    """Carries a `Rejected` value out of the recursion of `find_domain`."""

    def __init__(self, rejected: Rejected) -> None:
        super().__init__(rejected.detail)
        self.rejected = rejected


def is_serial_reduction(node: Node) -> bool:
    """Whether one thread should reduce this node alone: over overlapping or short windows, or over a very short axis.

    Threads share longer windows that do not overlap, like other rows. An example is a norm over the features of four adjacent pixels.
    """
    if node.category != "reduce":
        return False
    size = prod(extent for _, extent in node.over)
    if carried_groups(node):
        return False
    if size <= 4:
        return True
    windowed, overlapping = _windows(node)
    if windowed and (size <= SEARCH.domain.serial_reduction or overlapping and size <= SEARCH.domain.serial_window):
        return True
    return is_short_across_memory(node) and prod(node.type.shape) >= SEARCH.domain.serial_results


def _windows(node: Node) -> tuple[bool, bool]:
    """Whether a reduction is over windows, and whether these may overlap."""
    over = {name for name, _ in node.over}
    windowed = overlapping = False
    assert node.body is not None
    for x in walk(node.body):
        match x:
            case Read(_, index):
                mixed = [e for e in index if e.axes() & over and e.axes() - over]
                windowed |= bool(mixed)
                overlapping |= any(_overlap(e, over, node.extents) for e in mixed)
            case Guard():
                windowed = True
    return windowed, overlapping


def is_short_across_memory(node: Node) -> bool:
    """Whether a reduction is over few non-contiguous elements and over no window, so that one thread or several may do it.

    The number of results decides the preference. It must not decide whether a kernel exists.
    """
    size = prod(extent for _, extent in node.over)
    if node.category != "reduce" or not 4 < size <= SEARCH.domain.serial_reduction or carried_groups(node):
        return False
    return not over_is_contiguous(node) and not _windows(node)[0]


def _overlap(e: Affine, over: set[str], extents: Mapping[str, int]) -> bool:
    """Whether windows along a subscript may overlap: 2 * i + k for k < 3, not for k < 2, nor 4 * i + 2 * k + j for j, k < 2.

    Requires: every axis has an extent. Windows are disjoint if the terms are digits of a number: each step exceeds the range of all smaller
    ones together.
    """
    below = 0
    for atom, c in sorted(e.terms, key=lambda term: abs(term[1])):
        axes = axes_of(atom)
        reach = bounds(from_terms([(atom, 1)], 0), extents)
        if reach is None or axes & over and axes - over or abs(c) <= below:
            return True
        below += abs(c) * (reach[1] - reach[0])
    return False


def over_is_contiguous(node: Node) -> bool:
    """Whether one of the largest reads of the body has a reduced axis in its last subscript.

    Smaller operands do not count: the vector of a matrix-vector product is contiguous along any reduced axis.
    """
    over, extents = {name for name, _ in node.over}, node.extents
    assert node.body is not None
    reads = [x for x in walk(node.body) if isinstance(x, Read) and x.index]
    points = [prod(extents[a] for a in frozenset().union(*(e.axes() for e in x.index))) for x in reads]
    return any(x.index[-1].axes() & over for x, n in zip(reads, points, strict=True) if n == max(points))


class Placement:
    """Assigns every node of a pattern its coordinate.

    home       coordinate by node
    over_home  root expression of each reduced axis, by node
    serial     reductions that one thread computes alone
    """

    def __init__(self, graph: Graph, layouts: Layouts, serial: frozenset[str]) -> None:
        self.serial = serial
        self.graph = graph
        self.layouts = layouts
        self.inside = graph.node_by_name
        self.extents: dict[str, int] = {}
        self.home: dict[str, Coordinate] = {}
        self.over_home: dict[str, dict[str, Affine]] = {}
        self.domain = Domain((), (), self.extents)
        self.carried: set[str] = set()
        self.noted: set[str] = set()

    def anchor(self, shared: list[Node]) -> Node:
        """The node whose iteration domain is the root: the largest shared reduction, or the largest result."""
        if shared:
            return max(shared, key=lambda n: prod(n.extents.values()))
        written = [self.inside[r] for r in self.graph.results]
        return max(written, key=lambda n: n.type.num_elements)

    def place_root(self, anchor: Node, has_shared: bool) -> None:
        """Creates the root axes from the anchor and places the anchor."""
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

    def place_carried(self, node: Node) -> None:
        """Places a carried sum: its step and group are quotient and remainder of the row number, its columns are the row's elements."""
        d = self.domain
        if num_rows(node) != d.num_kept or prod(node.type.shape[1:]) != d.num_reduced:
            raise Conflict(Rejected(Reason.REDUCTION_MISMATCH,
                                     f"%{node.name} sums {num_rows(node)} rows of {prod(node.type.shape[1:])} elements, the kernel has "
                                     f"{d.num_kept} of {d.num_reduced}"))
        row = linearise(tuple(axis(a) for a in d.kept), row_major_strides(tuple(self.extents[a] for a in d.kept)))
        column = linearise(tuple(axis(a) for a in d.reduced), row_major_strides(tuple(self.extents[a] for a in d.reduced)))
        groups = node.type.shape[0]
        columns = delinearise(simplify(column, self.extents), node.type.shape[1:], self.extents)
        self._set_home(node, (mod(row, groups, self.extents), *(simplify(c, self.extents) for c in columns)))
        self.over_home[node.name] = {node.over[0][0]: floordiv(row, groups, self.extents)}

    def place_scatter(self, node: Node) -> None:
        """As `place_root` for a scatter, whose whole domain is reduced axes."""
        self.domain.reduced = tuple(f"r{n}" for n in range(len(node.over)))
        names = {}
        for root, (own, extent) in zip(self.domain.reduced, node.over, strict=True):
            self.extents[root] = extent
            names[own] = simplify(axis(root), self.extents)
        self.over_home[node.name] = names
        self.home[node.name] = ()
        self._note_homes(node)

    def _set_home(self, node: Node, coordinate: Coordinate) -> None:
        self.home[node.name] = coordinate

    def _axis_map(self, node: Node) -> dict[str, Affine]:
        names = dict(zip(node.axes, self.home[node.name]))
        return names | self.over_home.get(node.name, {})

    def _note_homes(self, node: Node) -> None:
        """Places the operands of `node` that have no coordinate yet, unless a subscript contains a loop variable."""
        if node.category == "reduce" and node.name not in self.over_home:
            if node.name in self.serial:
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
        """Maps the reduced axes of a further shared reduction to the root's, by subscripts or by equal position in the reduced domain."""
        shape = tuple(extent for _, extent in node.over)
        if prod(shape) != self.domain.num_reduced:
            raise Conflict(Rejected(Reason.REDUCTION_MISMATCH,
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
        """Root expressions of the reduced axes, solved by dimension from placed operands; None if one stays unknown."""
        solved = self._solve_dimensions(node)
        over = dict(node.over)
        if not all(a in solved for a in over):
            return None
        used = [solved[a] for a in over]
        names = {t for e in used for t in e.axes()}
        return {a: solved[a] for a in over} if names <= set(self.domain.reduced) else None

    def _solve_dimensions(self, node: Node) -> dict[str, Affine]:
        extents = node.extents
        solved: dict[str, Affine] = {}
        for read in _reads((*node.target, node.body) if node.body is not None else node.target):
            known = self.home.get(read.value)
            if known is None:
                continue
            shape = self.graph.type_of(read.value).shape
            for e, target, extent in zip(read.index, known, shape, strict=True):
                if len(e.terms) == 1 and e.const == 0 and e.terms[0][1] == 1 and isinstance(e.terms[0][0], str):
                    name = e.terms[0][0]
                    if extents.get(name) == extent and name not in solved:
                        solved[name] = target
        return solved

    def place_all(self, anchor: Node) -> None:
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
                # A value that is read only behind guards needs no coordinate: it is computed at its reads.
                stuck = next((n for n in left if self._needs_home(n)), None)
                if stuck is None:
                    return
                self._place_by_shape(stuck)
                self._place_upstream(position[stuck.name], order)
            pending = [n for n in left if n.name not in self.home]

    def _needs_home(self, node: Node) -> bool:
        return node.name in self.graph.results or node.category == "scan" or node.category == "reduce" and node.name not in self.serial

    def _place_upstream(self, start: int, order: Sequence[Node]) -> None:
        for node in reversed(order[: start + 1]):
            # A node places its operands once. Repeating it would cost the square of a long chain.
            if node.name in self.home and node.name not in self.noted:
                self.noted.add(node.name)
                self._note_homes(node)

    def _place_by_reads(self, node: Node) -> bool:
        """Places a node from the coordinates of its operands, by dimension or by flat position; False if they do not decide it."""
        if not any(read.value in self.home for read in _reads((node.body,))):
            return False
        root = self.domain.kept + self.domain.reduced
        solved = self._solve_dimensions(node)
        if not all(a in solved for a in node.axes):
            flat = self._solve_flat(node)
            if flat is not None:
                self._set_home(node, flat)
                return True
        missing = [(a, e) for a, e in zip(node.axes, node.type.shape) if a not in solved and e != 1]
        if missing:
            taken = frozenset().union(*(solved[a].axes() for a in node.axes if a in solved))
            free = [a for a in root if a not in taken and self.extents[a] != 1]
            if prod(self.extents[a] for a in free) != prod(e for _, e in missing):
                # A value over the kept axes only (a row's loss) leaves the reduced axes free.
                free = [a for a in free if a in self.domain.kept]
                if prod(self.extents[a] for a in free) != prod(e for _, e in missing):
                    return False
            flat_free = linearise(tuple(axis(a) for a in free), row_major_strides(tuple(self.extents[a] for a in free)))
            for (a, _), c in zip(missing, delinearise(flat_free, tuple(e for _, e in missing), self.extents), strict=True):
                solved[a] = simplify(c, self.extents)
        coordinate = tuple(solved.get(a, Affine()) for a in node.axes)
        axes_used = [frozenset(c.axes()) for c in coordinate if c.terms]
        if sum(len(s) for s in axes_used) != len(frozenset().union(*axes_used)) and not self.is_bijection(coordinate, node.type.shape):
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
        """Places a node that no read connects to placed values: by row-major position in a domain of equal size."""
        root = self.domain.kept + self.domain.reduced
        extents = tuple(self.extents[a] for a in root)
        size = node.type.num_elements
        if node.category in ("reduce", "scan") and node.name not in self.serial:
            if node.category == "reduce" and size == self.domain.num_kept:
                root, extents = self.domain.kept, tuple(self.extents[a] for a in self.domain.kept)
            else:
                raise Conflict(Rejected(Reason.DOMAIN_MISMATCH, f"%{node.name} is not computed over the kernel's domain"))
        elif size != prod(extents):
            if size == self.domain.num_kept and self.domain.kept:
                root, extents = self.domain.kept, tuple(self.extents[a] for a in self.domain.kept)
            else:
                raise Conflict(Rejected(Reason.DOMAIN_MISMATCH,
                                         f"%{node.name} has {size} elements, the kernel's domain {prod(extents)}"))
        flat = linearise(tuple(axis(a) for a in root), row_major_strides(extents))
        coordinate = delinearise(simplify(flat, self.extents), node.type.shape, self.extents)
        self._set_home(node, tuple(simplify(c, self.extents) for c in coordinate))

    def is_bijection(self, coordinate: Coordinate, shape: tuple[int, ...]) -> bool:
        """Whether the coordinate takes every index of `shape` exactly once as its axes run over their extents."""
        if prod(shape) == 0:
            return True
        flat = simplify(linearise(coordinate, row_major_strides(shape)), self.extents)
        used = flat.axes()
        if prod(self.extents[a] for a in used) != prod(shape):
            return False
        return numbers_its_axes(flat, self.extents)


def _reads(bodies: Sequence[Expr | None]) -> list[Read]:
    return [x for body in bodies if body is not None for x in walk(body) if isinstance(x, Read)]


def _unguarded_reads(bodies: Sequence[Expr | None]) -> list[Read]:
    """Reads outside guards. A coordinate under a guard may be out of range where the guard fails."""
    reads: list[Read] = []
    stack = [b for b in reversed(bodies) if b is not None]
    while stack:
        e = stack.pop()
        match e:
            case Read():
                reads.append(e)
            case Call(_, inner) | Lookup(_, inner):
                stack.extend(inner[::-1])
    return reads
