"""The form of a pattern with products of one left operand: their operands as strided tensors, and results as expressions over their axes.

    y[b, h, w] = gelu(sum k: x[.., k] w[k, ..] + bias[..])      one product; everything else is computed element by element from its sums
    y = silu(x v) * (x w)                                       two: each element has a sum of either
    z[i] = max j: y[i, j]                                       reductions take whole rows, or groups of columns (`rows/form.py`)
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.memo import remembered_for_last
from tilefuse.domain.contraction import COLUMN, FAST_SUMS, GROUP, INNER, ROW, SPLIT, Contraction, any_contraction_of, warpgroup_arithmetic
from tilefuse.ir.affine import Affine, axis, row_major_strides
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.scalar import Expr, reads
from tilefuse.templates.staged.pipelined.bodies import Producing, bodies
from tilefuse.templates.staged.pipelined.columns.form import ColumnForm, column_form, column_sums, without_sums
from tilefuse.templates.staged.pipelined.elements import Elements, Point, boundary_reads, elements_of
from tilefuse.templates.staged.pipelined.exact.block_scales import ScaledContraction, scaled_contraction
from tilefuse.templates.staged.pipelined.joined import joined_maps
from tilefuse.templates.staged.pipelined.operand import Operand, operand_of
from tilefuse.templates.staged.pipelined.points import RowPoints
from tilefuse.templates.staged.pipelined.result_map import ResultMap, result_map
from tilefuse.templates.staged.pipelined.rows.form import RowForm, reduced_elements, row_form
from tilefuse.templates.staged.pipelined.shifted.rows import ShiftedRows, shifted_rows


@dataclass(frozen=True)
class Product:
    """A product of the kernel: a node's contraction, or a slice of its columns from column `first` on.

    scales: of rows and of columns, for each block of the inner axis, where the contraction is that of stored 8-bit elements
    """

    node: Node
    contraction: Contraction
    first: int
    right: Operand
    scales: tuple[Expr, Expr] | None = None


@dataclass(frozen=True)
class ProductForm:
    """Products with one left operand, their operands, and where each result lies.

    extents  of the lead axes, ROW and COLUMN, in the order of the products' dimensions; the same for all products
    windows  extents of these axes that the results have: fewer rows or columns where results are a window of a padded product
    points   for each result, its axes over those of the products, of a reduction also the reduced ones; {} for one that is a product
    maps     for each result that has dimensions along rows and columns, these as a tensor's last
    beside   the same for each boundary value that maps on the sums read at the element at hand, as a residual
    reduced  reductions of the products' rows
    down     sums of groups of rows down the columns
    swapped  instructions compute the transposed products: their rows are the products' columns. See `Pipelined`
    """

    graph: Graph
    products: tuple[Product, ...]
    extents: Mapping[str, int]
    windows: Mapping[str, int]
    left: Operand
    points: Mapping[str, Point]
    maps: Mapping[str, ResultMap]
    beside: Mapping[str, ResultMap]
    reduced: RowForm
    down: ColumnForm = ColumnForm({})
    swapped: bool = False

    @property
    def tile_results(self) -> tuple[str, ...]:
        """Results with an element for each element of the products."""
        return self.reduced.elements

    @property
    def row_results(self) -> tuple[str, ...]:
        """Results with an element for each row of the products."""
        return tuple(r for r in self.graph.results if r not in self.reduced.elements and r not in self.down.points)

    @property
    def reduction_points(self) -> Mapping[str, Point]:
        """Axes of all reductions, the reduced ones too, over those of the products."""
        return {**self.reduced.points, **self.down.points}

    @cached_property
    def narrow(self) -> bool:
        """Whether the rounding of the data hides hardware approximations: as `KernelWriter.narrow`, with one element a row or a column for
        statistics. Column sums of elements of 16 bits are as exact as these."""
        read_narrow = all(v.type.dtype.bits <= 16 for v in self.graph.inputs if v.type.dtype.is_float)
        decisive = [v for r in self.graph.results for v in (self.graph.node_by_name[r].reads() if r in self.down.points else (r,))
                    if not (read_narrow and r in self.row_results and self.graph.type_of(r).dtype == F32)]
        return all(t.is_float and t.bits <= 16 for t in (self.graph.type_of(v).dtype for v in decisive))

    @property
    def product(self) -> Node:
        """The first product's node."""
        return self.products[0].node

    @cached_property
    def contraction(self) -> Contraction:
        """The first product's contraction; all have its left operand, extents and precision."""
        return self.products[0].contraction

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The left operand and every right one."""
        return (self.left, *(p.right for p in self.products))

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Nodes of the products, each once."""
        return tuple({p.node.name: p.node for p in self.products}.values())

    @cached_property
    def values_of_results(self) -> frozenset[str]:
        """Values that maps on the sums read, and the biases of products."""
        read = (v for body in bodies(self.graph, self.graph.results) for v in reads(body))
        return frozenset((*read, *(p.contraction.bias for p in self.products if p.contraction.bias)))

    @cached_property
    def producing_by_operand(self) -> dict[str, Producing]:
        """Computation of one element of each operand that maps of the kernel compute, by the operand's value."""
        return {o.value: Producing.of(o.element, self.graph, o.dtype != F32) for o in self.operands if o.element is not None}

    @cached_property
    def inner(self) -> int:
        """Extent of the contracted axis."""
        return self.contraction.inner

    @property
    def num_groups(self) -> int:
        """Groups that the rows are sorted by, each with a right operand of its own; 0 for a product without groups."""
        return self.contraction.num_groups

    @property
    def operand_extents(self) -> dict[str, int]:
        """Extents of the axes of operands: those of the products, the inner axis, and the groups."""
        return {**self.extents, INNER: self.inner, **({GROUP: self.num_groups} if self.num_groups else {})}

    @property
    def row_axis(self) -> str:
        """The products' axis along the rows of tiles and instructions."""
        return COLUMN if self.swapped else ROW

    @property
    def column_axis(self) -> str:
        """The products' axis along the columns of tiles and instructions."""
        return ROW if self.swapped else COLUMN

    @property
    def rows(self) -> int:
        """Rows of the results along the rows of tiles."""
        return self.windows[self.row_axis]

    @property
    def columns(self) -> int:
        """Columns of the results along the columns of tiles."""
        return self.windows[self.column_axis]

    def place(self, row: Affine, column: Affine) -> dict[str, Affine]:
        """The products' axes at a row and a column of the tiles."""
        return {self.row_axis: row, self.column_axis: column}

    @property
    def row_width(self) -> int:
        """Columns that are reduced together."""
        return self.reduced.width or self.columns

    @property
    def leads(self) -> tuple[str, ...]:
        """Lead (batch) axes."""
        return self.contraction.axes[:-2]

    @property
    def has_block_scales(self) -> bool:
        """Whether sums of each slot are multiplied by scales of their rows and columns before they are added."""
        return self.products[0].scales is not None

    @property
    def adds_partial_sums(self) -> bool:
        """Whether sums of each slot leave the accumulators of the tensor cores, and threads add them in f32.

        The tensor cores align products of 8-bit floats with their accumulator and drop the bits below its last.
        """
        return self.splits_operands or self.left.dtype.is_float and self.left.dtype.bits == 8 and self.contraction.precision != FAST_SUMS

    @cached_property
    def splits_operands(self) -> bool:
        """Whether f32 operands are multiplied as high and low parts (`operand_parts.py`)."""
        return warpgroup_arithmetic(self.contraction, self.left.dtype, self.left.dtype) == SPLIT

    @cached_property
    def shifted(self) -> ShiftedRows | None:
        """How rows of the left operand that begin anywhere in memory come by tensor copies; None where they begin at 16 bytes, or come
        another way."""
        comes_otherwise = self.swapped or self.num_groups or self.reduced.stages or self.down.points or self.adds_partial_sums
        return None if comes_otherwise else shifted_rows(self.left, tuple(p.right for p in self.products), self.operand_extents)

    @property
    def row_step(self) -> int:
        """Rows of the product from one row of a tile to the next."""
        return self.shifted.step if self.shifted is not None else 1

    @property
    def walked_inner(self) -> int:
        """Inner elements that slots hold, those before the first one among them."""
        return self.inner + (self.shifted.each - 1 if self.shifted is not None else 0)

    @property
    def arrays_a_product(self) -> int:
        """Arrays of a thread that hold sums of one product: those of a slot, of low parts, and of the tile."""
        return 3 if self.splits_operands else 2 if self.adds_partial_sums else 1

    @cached_property
    def num_leads(self) -> int:
        """Lead places."""
        return prod(self.extents[a] for a in self.leads)


def form_for(form: ProductForm, swapped: bool) -> ProductForm:
    """The same products with tiles of their results, or of their transposed results."""
    return form if form.swapped == swapped else replace(form, swapped=swapped)


@remembered_for_last
def product_form(graph: Graph, layouts: Layouts) -> ProductForm | Rejected:
    """The form of a pattern given as a graph of its own, or why it has none."""
    graph = joined_maps(graph)
    nodes = tuple(n for n in graph.nodes if n.category == "library")
    others = [n for n in graph.nodes if n.category not in ("map", "gather", "library", "reduce")]
    if others:
        return Rejected(Reason.OTHER_TEMPLATE, f"%{others[0].name} is a {others[0].kind}, and sums of a pipeline go to maps and reductions")
    if not nodes:
        return Rejected(Reason.OTHER_TEMPLATE, "0 products, and a pipeline has one")
    contractions: dict[str, Contraction] = {}
    scaled: dict[str, ScaledContraction] = {}
    for node in nodes:
        contraction = any_contraction_of(node, graph)
        if contraction is None:
            return Rejected(Reason.LIBRARY_CALL, f"%{node.name} is a library call")
        of_blocks = scaled_contraction(graph, contraction, node.type.shape)
        if of_blocks is not None:
            scaled[node.name], contraction = of_blocks, of_blocks.contraction
        contractions[node.name] = contraction
    if scaled and len({scaled[n.name].left if n.name in scaled else None for n in nodes}) > 1:
        return Rejected(Reason.OTHER_TEMPLATE, f"%{nodes[0].name} and another product have different scales of their left operand")
    first = contractions[nodes[0].name]
    if first.offsets in graph.node_by_name:
        return Rejected(Reason.OTHER_TEMPLATE, f"%{first.offsets}, the ends of groups, is computed in the same kernel")
    shape = dict(zip(first.axes, nodes[0].type.shape, strict=True))
    left = _common_left(graph, layouts, nodes, contractions)
    if isinstance(left, Rejected):
        return left
    sums = column_sums(graph)
    of_elements = without_sums(graph, sums) if sums else graph
    if not of_elements.results:
        return Rejected(Reason.OTHER_TEMPLATE, f"%{sums[0].name} is a column sum of elements that are no results")
    placed = _elements(of_elements, nodes, shape)
    if isinstance(placed, Rejected):
        return placed
    elements, rows = placed
    if sums and (rows.width or first.num_groups):
        return Rejected(Reason.OTHER_TEMPLATE,
                        f"%{sums[0].name} adds columns of a product whose rows lie in groups, or parts of which are reduced")
    down = column_form(graph, sums, tuple(contractions), elements, rows)
    if isinstance(down, Rejected):
        return down
    products: list[Product] = []
    for name, column in elements.slices:
        right = operand_of(graph, layouts, contractions[name], "right", elements.extents, column)
        if isinstance(right, Rejected):
            return right
        if left.dtype != right.dtype and warpgroup_arithmetic(contractions[name], left.dtype, right.dtype) is None:
            return Rejected(Reason.UNSUPPORTED_OP, f"%{name} multiplies {left.dtype} by {right.dtype}")
        products.append(Product(graph.node_by_name[name], contractions[name], column, right,
                                scaled[name].of_slice(column) if name in scaled else None))
    reduced = row_form(graph, elements, rows, down.points)
    return ProductForm(graph, tuple(products), elements.extents, elements.windows, left, elements.points,
                       _maps(graph, layouts, elements, reduced.elements), _beside(graph, layouts, elements, {**rows.points, **down.points}),
                       reduced, down)


def _elements(graph: Graph, nodes: tuple[Node, ...], shape: Mapping[str, int]) -> tuple[Elements, RowPoints] | Rejected:
    """Where results lie, and the reductions before them."""
    if any(n.category == "reduce" for n in graph.nodes):
        return reduced_elements(graph, nodes, shape)
    elements = elements_of(graph, nodes, shape)
    return elements if isinstance(elements, Rejected) else (elements, RowPoints({}, {}))


def _common_left(graph: Graph, layouts: Layouts, nodes: tuple[Node, ...], contractions: Mapping[str, Contraction]) -> Operand | Rejected:
    """The left operand of all products, or why they have none in common."""
    lefts: list[Operand] = []
    first = contractions[nodes[0].name]
    for node in nodes:
        contraction = contractions[node.name]
        left = operand_of(graph, layouts, contraction, "left", dict(zip(contraction.axes, node.type.shape, strict=True)))
        if isinstance(left, Rejected):
            return left
        if left != (lefts or [left])[0] or (contraction.inner, contraction.precision) != (first.inner, first.precision) \
                or (contraction.offsets, contraction.num_groups) != (first.offsets, first.num_groups) \
                or node.type.shape[:-1] != nodes[0].type.shape[:-1]:
            return Rejected(Reason.OTHER_TEMPLATE, f"%{nodes[0].name} and %{node.name} are products of different left operands, "
                                                   "and a pipeline brings one")
        lefts.append(left)
    return lefts[0]


# -- results ---------------------------------------------------------------------------------------------------------------


def _beside(graph: Graph, layouts: Layouts, elements: Elements, reductions: Mapping[str, Point]) -> dict[str, ResultMap]:
    """Boundary values with the products' rows and columns that maps read."""
    products = frozenset(name for name, _ in elements.slices)
    map_by_value: dict[str, ResultMap] = {}
    for value, places in boundary_reads(graph, {**reductions, **elements.points}, products, elements.extents).items():
        shape = graph.type_of(value).shape
        tensor = result_map(places, shape, tuple(layouts.get(value) or row_major_strides(shape)), elements.extents)
        if tensor is not None:
            map_by_value[value] = tensor
    return map_by_value


def _maps(graph: Graph, layouts: Layouts, elements: Elements, results: tuple[str, ...]) -> dict[str, ResultMap]:
    """Those of some results that are tensors with the products' rows and columns."""
    map_by_result: dict[str, ResultMap] = {}
    for name in results:
        point = elements.points[name]
        places = tuple(point[a] for a in graph.node_by_name[name].axes) if point else tuple(axis(a) for a in elements.extents)
        shape = graph.type_of(name).shape
        tensor = result_map(places, shape, tuple(layouts.get(name) or row_major_strides(shape)), elements.extents)
        if tensor is not None:
            map_by_result[name] = tensor
    return map_by_result
