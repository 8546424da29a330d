"""Matrix products that a kernel may hold: which they are, and what the library would take for them.

A product stays a library call unless a pattern that holds it is cheaper than the call and the kernels around it together.
Source: FusionStitching 4.2 (large products partition the graph, small and batched ones may fuse).
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tilefuse.domain.contraction import contraction_of
from tilefuse.ir.graph import Graph, Node
from tilefuse.passes.device.padded_products import FEW_ROWS, PADDED
from tilefuse.plan.generators.walks import find_walks
from tilefuse.plan.price.cost import transfer_us
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.choose_stitch import MAX_INNER

# Which library operators (products) a kernel may hold instead of a call.
FusibleLibrary = Callable[[Node], bool]


def never(_node: Node) -> bool:
    """No library operator: every one is a call."""
    return False


def nothing(_node: Node) -> float:
    """Calls cost nothing: they are the same in every plan."""
    return 0.0


@dataclass(frozen=True)
class Products:
    """Library operators that a kernel may hold, and what a call of one takes: K(Op) of FusionStitching 4.3. Units: `us` microseconds.

    alone: which of them may be a kernel that holds nothing else
    walks: sets of nodes that may share a kernel as a whole, whatever products are in them
    """

    fusible: FusibleLibrary = never
    us: Callable[[Node], float] = nothing
    alone: FusibleLibrary = never
    walks: tuple[tuple[str, ...], ...] = ()

    @cached_property
    def walked(self) -> frozenset[str]:
        """All nodes of walks."""
        return frozenset(n for walk in self.walks for n in walk)

    def call_us(self, node: Node) -> float:
        """Time of a call that a kernel could hold instead; 0 for every other node. Units: microseconds."""
        return self.us(node) if node.category == "library" and (node.name in self.walked or self.fusible(node)) else 0.0


NO_PRODUCTS = Products()

# Beyond the first size of the right operand its tiles never lie on chip long enough to pay; with few rows, which read it once, beyond
# the second. Source: one H200, f32, a step of an LSTM of 32 x 512 as a call of 12.8 us and its gates of 3.0 us or as one kernel: 40 steps
# took 224 us less.
LARGE_OPERAND_BYTES, LARGE_FOR_FEW_ROWS_BYTES = 1 << 18, 1 << 22
# Part of the measured rate of a large product that a library reaches on the shapes that are left.
LIBRARY_EFFICIENCY = 0.7
# The same in f32 where rows, columns or inner axis are narrow: 1500 products of 300 x 16 by 16 x 300 and of 300 x 300 by 300 x 16 take
# about 345 us each on an H200.
NARROW_EFFICIENCY, NARROW = 0.25, 32
# Least time of a library product beside its launch, and time for every element of the inner axis (with the matrix unit, without): its
# loop has few blocks to hide latency behind. Units: microseconds. Source: one H200, 32 x 256 by 256 x 256 in f32 takes 9 us a call, BERT's
# products for one sentence in f16 3 to 5 us, replayed as graphs.
LEAST_US, INNER_MATRIX_US, INNER_THREADS_US = 1.5, 0.004, 0.03
# Most time of a long inner axis: it is split among blocks whose sums a second kernel adds up. Source: one H200, f32,
# microseconds of both kernels: 32 x 2048 by 2048 x 512 takes 7.8, 100 x 784 by 784 x 10 takes 8.7, 64 x 784 by 784 x 512 takes 5.9.
LONGEST_INNER_US = 6.0


def fusible_product(node: Node, graph: Graph, device: DeviceSpec) -> bool:
    """Whether a kernel may hold the node: a product that is not plainly the library's."""
    if device.kind != "cuda" or node.kind != "library.matmul" or node.attribute(PADDED):
        return False
    found = contraction_of(node, graph)
    if found is None or found.inner > MAX_INNER:
        return False
    right = graph.type_of(found.right)
    limit_bytes = LARGE_FOR_FEW_ROWS_BYTES if node.type.shape[-2] <= FEW_ROWS else LARGE_OPERAND_BYTES
    return prod(right.shape[-2:]) * right.dtype.itemsize <= limit_bytes


def library_product_us(node: Node, graph: Graph, device: DeviceSpec) -> float:
    """The library's time for a product, launch included. Units: microseconds. Source: roofline with the constants of this file."""
    found = contraction_of(node, graph)
    assert found is not None, "asked of products only"
    left, right = graph.type_of(found.left), graph.type_of(found.right)
    rates = dict(device.matrix_flops_per_s)
    name = "tf32" if node.attribute("precision") == "tf32" else left.dtype.name
    rate = rates.get(name, device.flops_per_s if name != "f64" else device.flops_per_s / 2)
    operations = 2 * node.type.num_elements * found.inner
    moved_us = transfer_us(left.num_bytes + right.num_bytes + node.type.num_bytes, device)
    narrow = name in ("f32", "f64") and min(*node.type.shape[-2:], found.inner) < NARROW
    work_us = operations / (rate * (NARROW_EFFICIENCY if narrow else LIBRARY_EFFICIENCY)) * 1e6
    inner_us = INNER_THREADS_US if name in ("f32", "f64") else INNER_MATRIX_US
    return device.graph_launch_us + max(LEAST_US + min(inner_us * found.inner, LONGEST_INNER_US), moved_us, work_us)


def matrix_products(graph: Graph, device: DeviceSpec) -> Products:
    """The matrix products of a graph that kernels may hold on a device; on a GPU without the matrix instructions none."""
    if device.kind == "cuda" and not device.has_matrix_unit:
        return NO_PRODUCTS
    known: dict[str, bool] = {}

    def fusible(node: Node) -> bool:
        found = known.get(node.name)
        if found is None:
            found = known[node.name] = fusible_product(node, graph, device)
        return found

    def alone(node: Node) -> bool:
        return fusible(node) and prod(node.type.shape[:-1]) <= FEW_ROWS

    return Products(fusible, lambda n: library_product_us(n, graph, device), alone, find_walks(graph, device))
