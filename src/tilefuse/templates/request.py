"""The question that every template is asked: which kernel it has for a pattern. Facts that several templates need are worked out once.

    Request          the pattern, its layouts, the device, and how the kernel will be used
    WalkedPattern    the pattern over one iteration domain, for templates that are one walk
"""
from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.access import Access, accesses, contiguous_axes
from tilefuse.domain.contraction import INNER, contraction_of
from tilefuse.domain.domain import find_domain
from tilefuse.domain.precision import keep_precision
from tilefuse.domain.resolved import Domain
from tilefuse.ir.affine import axis, number, substitute
from tilefuse.ir.dtype import compute_dtype
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.names import free_name
from tilefuse.ir.scalar import Expr, Read, call, cast
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.parts import Known

# The price of a program's work, and the part of it that traffic may hide. Units: microseconds. Source: `domain/roofline.py`.
Price = tuple[float, float]


@dataclass(frozen=True)
class WalkedPattern:
    """A pattern over one iteration domain. layouts: strides of its own values that are not dense row-major.

    is_part, fetches_early: as of `Request`."""

    graph: Graph
    layouts: Layouts
    device: DeviceSpec
    domain: Domain
    is_part: bool = False
    fetches_early: bool = True

    @cached_property
    def accesses(self) -> list[Access]:
        """All reads and writes of boundary values."""
        return accesses(self.domain)

    @property
    def exchanges_values(self) -> bool:
        """Whether threads share results of reductions or scans. A scatter combines its values in memory."""
        return self.domain.scatter is None and any(i.shared for i in self.domain.instances)

    @property
    def carries_sums(self) -> bool:
        """Whether sums down the columns go from one row to the next."""
        return any(i.carried for i in self.domain.instances if i.shared)

    @cached_property
    def sums_columns(self) -> bool:
        """Whether reductions run across memory: more bytes run along kept axes than along reduced ones.

        A single result, and scans, are computed along reduced axes however these lie.
        """
        domain = self.domain
        if domain.num_kept <= 1 or domain.has_scan:
            return False
        weights = contiguous_axes(self.accesses, domain.kept + domain.reduced, domain.extents)
        return max((weights[a] for a in domain.kept), default=0) > max((weights[a] for a in domain.reduced), default=0)


def walked_pattern(graph: Graph, layouts: Layouts, device: DeviceSpec) -> WalkedPattern | Rejected:
    """The pattern over one iteration domain, or why it has none."""
    graph = with_sums(_without_scans_of_one(graph))
    empty = [n for n in graph.nodes if 0 in n.type.shape or any(e == 0 for _, e in n.over)]
    if empty and len(graph.nodes) > 1:
        return Rejected(Reason.DOMAIN_MISMATCH, f"%{empty[0].name} is empty")
    own = {v: layouts[v] for v in graph.type_by_name if v in layouts}
    domain = find_domain(graph, own)
    if isinstance(domain, Rejected):
        return domain
    if len(domain.instances) > 3 * len(graph.nodes) + 16:
        return Rejected(Reason.RECOMPUTATION, f"{len(graph.nodes)} nodes would be computed at {len(domain.instances)} places")
    return WalkedPattern(graph, own, device, domain)


def _without_scans_of_one(graph: Graph) -> Graph:
    """`graph` with scans along an axis of extent 1 as the maps they are: no template carries a value along such an axis."""
    single = [n for n in graph.nodes if n.category == "scan" and n.extents[n.along] == 1]
    if not single:
        return graph
    return replace(graph, nodes=tuple(replace(n, kind="map", along="") if n in single else n for n in graph.nodes))


def with_sums(graph: Graph) -> Graph:
    """`graph` with products of a matrix and a vector as the sums they are: a walk reads the matrix once, as fast as memory gives it."""
    if not any(is_vector_product(n, graph) for n in graph.nodes):
        return graph
    nodes: list[Node] = []
    for n in graph.nodes:
        nodes += _as_sum(n, graph) if is_vector_product(n, graph) else (n,)
    return replace(graph, nodes=tuple(nodes))


def is_vector_product(node: Node, graph: Graph) -> bool:
    """Whether a node is a product of floating-point matrices of which one is a vector at each lead place."""
    if contraction_of(node, graph) is None:
        return False
    types = {graph.type_of(v).dtype for v in node.operands} | {node.type.dtype}
    return len(types) == 1 and node.type.dtype.is_float and 1 in node.type.shape[-2:]


def _as_sum(node: Node, graph: Graph) -> tuple[Node, ...]:
    """A product as a sum, and a map that adds the bias and rounds, where it has either."""
    contraction = contraction_of(node, graph)
    assert contraction is not None, "a product"
    dtype, shape = compute_dtype(node.type.dtype), node.type.shape
    extents = {**dict(zip(contraction.axes, shape, strict=True)), INNER: contraction.inner}
    single = {a: number(0) for a, e in extents.items() if e == 1}
    narrow = dtype != node.type.dtype
    reads = (Read(value, tuple(substitute(i, single, extents) for i in index)) for value, index in
             ((contraction.left, contraction.left_index), (contraction.right, contraction.right_index)))
    left, right = (cast(r, dtype) if narrow else r for r in reads)
    is_whole = not narrow and not contraction.bias
    name = node.name if is_whole else free_name(f"{node.name}_sum", set(graph.type_by_name))
    total = Node(name, Type(dtype, shape), "reduce.sum", contraction.axes, ((INNER, contraction.inner),), body=call("mul", left, right))
    if is_whole:
        return (total,)
    element: Expr = Read(name, tuple(axis(a) for a in contraction.axes))
    if contraction.bias:
        bias = Read(contraction.bias, tuple(substitute(i, single, extents) for i in contraction.bias_index))
        element = call("add", element, cast(bias, dtype) if narrow else bias)
    return total, Node(node.name, node.type, "map", contraction.axes, body=cast(element, node.type.dtype) if narrow else element)


@dataclass(frozen=True)
class Request:
    """A pattern, as a graph of its own, for which a kernel is asked.

    eager_rounding  every value is rounded to its own type, also where it never leaves the kernel (`domain/precision.py`)
    packing         independent parts of the pattern may become parts of a packed kernel; else one body computes the whole pattern
    is_part         the kernel becomes one part of a packed kernel
    is_task         the kernel becomes a body of tasks in groups of tiles
    fetches_early   the kernel may fetch inputs of the program while the one ahead of it still runs (option `early_start`)
    replaces_calls  the kernel competes with calls of the library: a template leaves products that only others hold (`holds_product`)
    choices         choices of patterns that were scheduled before in this search: a template may take one again for a pattern like it
    known           parts of packed kernels that were scheduled before
    rivals          prices of the programs that other templates have proposed (`choose.py`)
    Requires: `choices` and `known` are of the same device and rounding.
    """

    graph: Graph
    layouts: Layouts
    device: DeviceSpec
    eager_rounding: bool = False
    packing: bool = False
    is_part: bool = False
    is_task: bool = False
    fetches_early: bool = True
    replaces_calls: bool = False
    choices: dict[Hashable, Any] = field(default_factory=dict)
    known: Known = field(default_factory=Known)
    rivals: list[Price] = field(default_factory=list)

    @property
    def ceiling(self) -> Price | None:
        """The least price of the programs proposed so far: a template may refuse a pattern for which all that it has costs more."""
        return min(self.rivals, default=None)

    @cached_property
    def has_products(self) -> bool:
        """Whether the pattern has products of matrices."""
        return has_products(self.graph)

    @cached_property
    def with_sums_kept(self) -> Graph:
        """The pattern for kernels that hold a product's sums in f32: maps read these, and inner values stay in f32 until a product reads
        them."""
        return self.graph if self.eager_rounding else keep_precision(self.graph, products=True)

    @cached_property
    def walked(self) -> WalkedPattern | Rejected:
        """The pattern over one iteration domain, or why it has none. Products with vectors are sums there."""
        graph = in_precision(with_sums(self.graph), self.eager_rounding) if self.has_products else self.graph
        pattern = walked_pattern(graph, self.layouts, self.device)
        return pattern if isinstance(pattern, Rejected) else replace(pattern, is_part=self.is_part, fetches_early=self.fetches_early)

    def for_part(self, part: Graph) -> Request:
        """The request for one part of a packed kernel."""
        return replace(self, graph=in_precision(part, self.eager_rounding), packing=False, is_part=True, rivals=[])


def has_products(graph: Graph) -> bool:
    """Whether a graph has products of matrices."""
    return any(n.category == "library" for n in graph.nodes)


def in_precision(graph: Graph, eager_rounding: bool) -> Graph:
    """The pattern with inner values in the precision of the kernel. Products round their operands; templates decide about results."""
    return graph if eager_rounding or has_products(graph) else keep_precision(graph)
