"""Matrix products that a kernel may hold, and the library's times for them.

A product stays a library call unless a pattern that holds it is cheaper than the call and the kernels around it together.
Source: FusionStitching 4.2 (large products partition the graph, small and batched ones may fuse).
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod

from tilefuse.domain.contraction import FAST_SUMS, GROUPED, RESULT_DTYPE, SPLIT, Contraction, any_contraction_of, warpgroup_arithmetic
from tilefuse.domain.roofline import operations_per_s, price_work
from tilefuse.domain.work import Operations, Work
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts
from tilefuse.passes.device.padding import may_keep_left, product_operands, product_sizes
from tilefuse.passes.facts import NO_LAYOUTS
from tilefuse.plan.chains import find_chains
from tilefuse.plan.price.library_tiles import ProductSizes, product_work
from tilefuse.plan.reduced_products import find_reduced_products
from tilefuse.plan.walks import find_walks
from tilefuse.target.device import DeviceSpec
from tilefuse.target.memory import ACCESS_BYTES
from tilefuse.templates.registry import kernel_templates

# Units for which the library loads operands in accesses of 16 bytes, where these are aligned, and is far slower where they are not.
UNITS_OF_LINES = ("f16", "bf16", "tf32")
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
    """Library operators that a kernel may hold, and the time of a call: K(Op) of FusionStitching 4.3. Units: `us` microseconds.

    alone: which of them may be a kernel of their own
    measured: calls whose time was measured; that of the others is predicted
    walks: sets of nodes that may share a kernel as a whole, with any products in them
    reduced: sets of a product with the reductions of its rows and the sums of its columns
    """

    fusible: FusibleLibrary = never
    us: Callable[[Node], float] = nothing
    alone: FusibleLibrary = never
    walks: tuple[tuple[str, ...], ...] = ()
    reduced: tuple[tuple[str, ...], ...] = ()
    measured: FusibleLibrary = never

    @cached_property
    def walked(self) -> frozenset[str]:
        """All nodes of walks."""
        return frozenset(n for walk in self.walks for n in walk)

    def may_be_held(self, node: Node) -> bool:
        """Whether a kernel could hold the node, a library operator, instead of a call."""
        return node.category == "library" and (node.name in self.walked or self.fusible(node))

    def call_us(self, node: Node) -> float:
        """Time of a call that a kernel could hold instead; 0 for every other node. Units: microseconds."""
        return self.us(node) if self.may_be_held(node) else 0.0


NO_PRODUCTS = Products()


def fusible_product(node: Node, graph: Graph, device: DeviceSpec) -> bool:
    """Whether a kernel may hold the node: a product that the library does not clearly compute faster."""
    if device.kind != "cuda" or node.kind not in ("library.matmul", GROUPED):
        return False
    return any(template.holds_product(node, graph, device) for template in kernel_templates())


def library_product_us(node: Node, graph: Graph, device: DeviceSpec, layouts: Layouts = NO_LAYOUTS) -> float:
    """The library's time for a product, launch included, by which plans choose between kernel and call.

    Units: microseconds. Source: `library_work`, priced by `roofline.price_work`.
    """
    return price_work(library_work(node, graph, device, layouts), device).us


def library_work(node: Node, graph: Graph, device: DeviceSpec, layouts: Layouts = NO_LAYOUTS) -> Work:
    """Work of the library's call for a product. layouts: strides of inputs. Requires: the node is a product.

    Source: `library_tiles.product_work`; `UnalignedFigures` where lines of an operand or of the result do not begin at multiples of 16
    bytes.
    """
    contraction = any_contraction_of(node, graph)
    assert contraction is not None, "asked of products only"
    left, right = graph.type_of(contraction.left), graph.type_of(contraction.right)
    unit = "tf32" if node.attribute("precision") == "tf32" else left.dtype.name
    if node.attribute(RESULT_DTYPE) and not _takes_bytes(node, contraction, left.dtype.is_float):
        # Operands are converted first; 32 bits of floats and 64 of integers hold every sum as exactly.
        unit = "f32" if left.dtype.is_float else "f64"
    share = 1.0
    if node.attribute(RESULT_DTYPE) and unit == left.dtype.name:
        kind = "int" if left.dtype.is_integer else FAST_SUMS if contraction.precision == FAST_SUMS else "float"
        share = dict(device.fitted.calls.byte_shares)[kind]
    *lead, rows, columns = node.type.shape
    sizes = ProductSizes(prod(lead), rows, columns, contraction.inner, unit, left.dtype.itemsize, left.num_bytes + right.num_bytes,
                         node.type.num_bytes, share)
    line_bytes = _line_bytes(node, graph, layouts) if device.kind == "cuda" and unit in UNITS_OF_LINES else ACCESS_BYTES
    return product_work(sizes, device) if line_bytes == ACCESS_BYTES else _unaligned_work(sizes, line_bytes == ACCESS_BYTES // 2, device)


def _line_bytes(node: Node, graph: Graph, layouts: Layouts) -> int:
    """Largest access in which the library reads a product's operands and writes its result: 16 bytes, 8, or fewer. Units: bytes.

    Operands that are no matrices are copied into dense ones first.
    """
    if node.kind != "library.matmul" or len(node.operands) < 2 or not node.type.num_elements:
        return ACCESS_BYTES
    if any(len(graph.type_of(v).shape) < 2 for v in (*node.operands[:2], node.name)):
        return ACCESS_BYTES
    item, extents, lines = node.type.dtype.itemsize, product_sizes(graph, node), [node.type.shape[-1] * node.type.dtype.itemsize]
    for operand in product_operands(graph, node, layouts):
        if operand.memory is None or not operand.memory.is_matrix:
            lines.append(extents[operand.place[-1]] * item)
        elif not operand.memory.is_multiple_of(ACCESS_BYTES):
            lines.append(ACCESS_BYTES // 2 if operand.memory.is_multiple_of(ACCESS_BYTES // 2) else 1)
    return min(ACCESS_BYTES, gcd(ACCESS_BYTES, *lines))


def _takes_bytes(node: Node, contraction: Contraction, is_float: bool) -> bool:
    """Whether the library multiplies operands of 8 bits as they are. Source: torch._scaled_mm, torch._int_mm."""
    rows, columns = node.type.shape[-2:]
    if len(node.type.shape) != 2:
        return False
    if is_float:
        return contraction.inner_last_left and contraction.inner_last_right and columns % 16 == 0 == contraction.inner % 16
    return rows > 16 and columns % 8 == 0 == contraction.inner % 8


def _unaligned_work(sizes: ProductSizes, eight_bytes: bool, device: DeviceSpec) -> Work:
    """Work of the library's call for a product on the matrix unit whose lines do not begin at multiples of 16 bytes.

    eight_bytes: they begin at multiples of 8 bytes. Source: `UnalignedFigures`.
    """
    fitted = device.fitted.unaligned
    rate = fitted.eight_bytes_rate if eight_bytes else fitted.other_rate
    return Work(global_bytes=sizes.operand_bytes + sizes.result_bytes, read_bytes=sizes.operand_bytes,
                operations=(Operations(sizes.operations, sizes.unit, rate / operations_per_s(sizes.unit, device)),),
                serial_us=fitted.least_us + min(fitted.inner_us * sizes.inner, fitted.longest_inner_us))


def may_be_alone(node: Node, graph: Graph, device: DeviceSpec) -> bool:
    """Whether a product may be a kernel of its own, with no other node."""
    return fusible_product(node, graph, device) and _gains_alone(node, graph, device, NO_LAYOUTS)


def _gains_alone(node: Node, graph: Graph, device: DeviceSpec, layouts: Layouts) -> bool:
    return (_has_few_rows(node, device) or _gains_a_unit(node, graph, device)
            or device.capabilities.warpgroup_products and _reads_rows_anywhere(node, graph, layouts))


def _reads_rows_anywhere(node: Node, graph: Graph, layouts: Layouts) -> bool:
    """Whether kernels read whole 16 bytes of a left operand that the library reads element by element, since its rows begin anywhere."""
    if node.kind != "library.matmul" or any(len(graph.type_of(v).shape) < 2 for v in node.operands[:2]):
        return False
    left, right = product_operands(graph, node, layouts)
    return may_keep_left((left, right)) and not left.is_aligned and right.is_aligned


def _has_few_rows(node: Node, device: DeviceSpec) -> bool:
    return prod(node.type.shape[:-1]) <= device.fitted.products.few_rows


def _gains_a_unit(node: Node, graph: Graph, device: DeviceSpec) -> bool:
    """Whether the library multiplies on threads, where kernels multiply high and low parts of f32 on the matrix unit, or 8-bit operands,
    which it multiplies at a lower rate; or a product of groups, which it multiplies one by one for most types."""
    contraction = any_contraction_of(node, graph)
    if contraction is None or not device.capabilities.warpgroup_products:
        return False
    types = (graph.type_of(v).dtype for v in (contraction.left, contraction.right))
    return bool(node.attribute(RESULT_DTYPE)) or node.kind == GROUPED or warpgroup_arithmetic(contraction, *types) == SPLIT


def matrix_products(graph: Graph, device: DeviceSpec, layouts: Layouts = NO_LAYOUTS) -> Products:
    """The matrix products of a graph that kernels may hold on a device; on a GPU without the matrix instructions none.

    layouts: strides of inputs.
    """
    if device.kind == "cuda" and not device.has_matrix_unit:
        return NO_PRODUCTS
    known: dict[str, bool] = {}

    def fusible(node: Node) -> bool:
        is_fusible = known.get(node.name)
        if is_fusible is None:
            is_fusible = known[node.name] = fusible_product(node, graph, device)
        return is_fusible

    def alone(node: Node) -> bool:
        return fusible(node) and _gains_alone(node, graph, device, layouts)

    walks = (*find_walks(graph, device), *find_chains(graph, device))
    reduced = find_reduced_products(graph, device)
    return Products(fusible, lambda n: library_product_us(n, graph, device, layouts), alone, walks, reduced)
