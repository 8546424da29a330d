"""The form of a chain of products: each one's left operand is computed element by element from the sums of the one before.

    h = relu(x v + a)      y = h w + b        two layers; h at (row, column) needs the first product at (row, column) alone

Each layer is a graph of its own with one product, whose left operand is an input of it, and so has a `ProductForm`.
"""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.contraction import COLUMN, INNER, contraction_of
from tilefuse.ir.affine import axis, substitute
from tilefuse.ir.graph import Graph, Input, Node, node_inputs
from tilefuse.ir.layouts import Layouts
from tilefuse.templates.staged.pipelined.form import ProductForm, product_form

# Element types of left operands in registers. Source: PTX ISA, wgmma.
NARROW = ("f16", "bf16")


@dataclass(frozen=True)
class Layer:
    """One product of a chain. ahead: the form whose one result is the left operand of the next product; None for the last product.
    results: the form of the kernel's results that its sums give; None where they give none."""

    ahead: ProductForm | None
    results: ProductForm | None

    @property
    def form(self) -> ProductForm:
        """Either form: both have the same product."""
        form = self.ahead or self.results
        assert form is not None
        return form

    @property
    def columns(self) -> int:
        """Columns of the sums that the next product or a result needs."""
        return max(f.columns for f in (self.ahead, self.results) if f is not None)


@dataclass(frozen=True)
class ChainForm:
    """The layers of a chain in order; `graph` is the whole pattern."""

    graph: Graph
    layers: tuple[Layer, ...]

    @property
    def first(self) -> ProductForm:
        """The first product: its left operand comes from memory."""
        return self.layers[0].form

    @property
    def rows(self) -> int:
        """Rows of every layer."""
        return self.first.rows


def chain_form(graph: Graph, layouts: Layouts) -> ChainForm | Rejected:
    """The form of a pattern given as a graph of its own, or why it is no chain."""
    products = tuple(n for n in graph.nodes if n.category == "library")
    if len(products) < 2:
        return Rejected(Reason.OTHER_TEMPLATE, f"{len(products)} products, and a chain has two or more")
    contractions = [contraction_of(n, graph) for n in products]
    lefts = [c.left for c in contractions if c is not None]
    if len(lefts) < len(products):
        return Rejected(Reason.LIBRARY_CALL, "a library call of the pattern is no product of matrices")
    results = _results_by_product(graph, products)
    if isinstance(results, Rejected):
        return results
    layers: list[Layer] = []
    for n, product in enumerate(products):
        forms: list[ProductForm | None] = []
        last = n + 1 == len(products)
        for names in (() if last else (lefts[n + 1],), results[n]):
            form = _layer_form(graph, layouts, product, names, first=n == 0) if names else None
            if isinstance(form, Rejected):
                return form
            forms.append(form)
        if forms == [None, None]:
            return Rejected(Reason.OTHER_TEMPLATE, f"nothing reads %{product.name}")
        layers.append(Layer(*forms))
    why = _why_apart(graph, layers)
    return why if why is not None else ChainForm(graph, tuple(layers))


def _results_by_product(graph: Graph, products: tuple[Node, ...]) -> list[tuple[str, ...]] | Rejected:
    """For each product the results that its sums give: the last product that a result depends on."""
    position = {p.name: n for n, p in enumerate(products)}
    last_by_value: dict[str, int] = {}
    for node in graph.nodes:
        before = max((last_by_value.get(v, -1) for v in node.reads()), default=-1)
        last_by_value[node.name] = max(before, position.get(node.name, -1))
    if any(last_by_value[r] < 0 for r in graph.results):
        return Rejected(Reason.DOMAIN_MISMATCH, "a result depends on no product")
    return [tuple(r for r in graph.results if last_by_value[r] == n) for n in range(len(products))]


def _layer_form(graph: Graph, layouts: Layouts, product: Node, results: tuple[str, ...], first: bool) -> ProductForm | Rejected:
    """The form of one layer. first: its left operand is a boundary value, not computed from sums."""
    layer = _layer_graph(graph, product, results, first)
    return layer if isinstance(layer, Rejected) else product_form(layer, layouts)


def _layer_graph(graph: Graph, product: Node, results: tuple[str, ...], first: bool) -> Graph | Rejected:
    """The nodes between a product and values computed from its sums, with those of its right operand."""
    inside: set[str] = set()
    waiting = list(results)
    while waiting:
        name = waiting.pop()
        node = graph.node_by_name.get(name)
        if node is None or name in inside:
            continue
        if node.category == "library" and name != product.name:
            return Rejected(Reason.OTHER_TEMPLATE, f"%{results[0]} reads %{name} beside %{product.name}, whose sums are in registers")
        if node.category not in ("map", "gather", "library"):
            return Rejected(Reason.OTHER_TEMPLATE, f"%{name} is a {node.kind}, and sums of a chain go to maps only")
        inside.add(name)
        waiting += node.operands[0 if first else 1:] if name == product.name else node.reads()
    nodes = graph.in_order(inside)
    inputs = tuple(Input(v, graph.type_of(v)) for v in node_inputs(nodes))
    return Graph(graph.name, inputs, nodes, results)


def _why_apart(graph: Graph, layers: list[Layer]) -> Rejected | None:
    """Why the layers are no chain: other rows, elements or types than the sums before have."""
    first = layers[0].form
    for layer in layers:
        for form in (layer.ahead, layer.results):
            if form is None:
                continue
            if len(form.products) > 1:
                return Rejected(Reason.OTHER_TEMPLATE, f"%{form.product.name} is read as slices of its columns")
            rows = {a: e for a, e in form.windows.items() if a != COLUMN}
            if rows != {a: e for a, e in first.windows.items() if a != COLUMN}:
                return Rejected(Reason.DOMAIN_MISMATCH, f"%{form.product.name} has other rows than %{first.product.name}")
            if form.left.dtype.name not in NARROW:
                return Rejected(Reason.UNSUPPORTED_OP, f"%{form.product.name} of {form.left.dtype}: sums become operands of 16 bits")
    for layer, following in zip(layers, layers[1:]):
        assert layer.ahead is not None
        name, contraction = layer.ahead.graph.results[0], following.form.contraction
        if graph.type_of(name).dtype.name not in NARROW:
            return Rejected(Reason.UNSUPPORTED_OP, f"%{name}, a left operand, is {graph.type_of(name).dtype}")
        node, point = graph.node_by_name[name], layer.ahead.points[name]
        extents = {**following.form.extents, INNER: contraction.inner}
        axes = node.axes if point else tuple(layer.ahead.extents)
        for a, read, extent in zip(axes, contraction.left_index, node.type.shape, strict=True):
            at = substitute(read, {INNER: axis(COLUMN)}, extents)
            if extent > 1 and at != (point[a] if point else axis(a)):
                return Rejected(Reason.OTHER_TEMPLATE, f"%{following.form.product.name} reads %{name} at other places than its own")
        if layer.ahead.columns != contraction.inner:
            return Rejected(Reason.DOMAIN_MISMATCH, f"%{name} has {layer.ahead.columns} columns, and %{following.form.product.name} reads "
                                                    f"{contraction.inner}")
    return None

