"""Convolutions of 3 x 3 windows, one place apart, by minimal filtering: their graphs over transformed tiles.

    %x_tiles   [p, q, tile, c]                      B^T d B of each tile of (m + 2) x (m + 2) elements, c the input channels
    %w_filters [p, q, k, c]                         G g G^T
    %y_product [p, q, tile, k]                      for each of the (m + 2)^2 places: the tiles' elements there times those of the filters
    %y         [batch, k, m x m elements a tile]    A^T product A, and the bias

Each transform is two maps, one over the rows and one over the columns, whose formula depends on the place. Where images lie row-major,
tiles are the last axes instead of the channels, so that transforms read and write neighbours in either layout.
Source: Lavin and Gray 2015 (arXiv:1509.09308), section 4.2 and algorithm 1.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.ir.affine import Affine, axis, delinearise, linearise, number, row_major_strides
from tilefuse.ir.building.tensor_elementwise import converted
from tilefuse.ir.dtype import F64, I64, DType, compute_dtype
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.names import free_name
from tilefuse.ir.scalar import Bound, Expr, Guard, Index, Read, call, const
from tilefuse.passes.device.minimal_filtering import Matrix, MinimalFiltering, applied

# Attribute of a product whose operands are transformed tiles: the convolution that it was. Layouts are planned as around convolutions.
TRANSFORMED = "transformed"


@dataclass(frozen=True, slots=True)
class Windows:
    """A convolution's geometry. Shapes: image [batch, channels, rows, columns], result alike; low: padding before rows and columns."""

    image: tuple[int, ...]
    result: tuple[int, ...]
    low: tuple[int, int]

    def tiles(self, filtering: MinimalFiltering) -> tuple[int, int, int]:
        """Tiles: of the batch, along the rows, and along the columns."""
        return self.result[0], -(-self.result[2] // filtering.results), -(-self.result[3] // filtering.results)

    def num_tiles(self, filtering: MinimalFiltering) -> int:
        """Tiles of the whole batch."""
        return prod(self.tiles(filtering))


def windows_of(node: Node, graph: Graph, taps: int = 3) -> Windows | Rejected:
    """The geometry of a convolution of dense taps x taps windows at every place; or why it is none. Requires: a `library.convolution`."""
    def refused(why: str) -> Rejected:
        return Rejected(Reason.DOMAIN_MISMATCH, f"%{node.name} {why}")

    image, weight = (graph.type_of(v) for v in node.operands[:2])
    if weight.shape[2:] != (taps, taps):
        return refused(f"has windows of {' x '.join(map(str, weight.shape[2:]))}")
    if node.attribute("transposed", False):
        return refused("is transposed")
    if node.attribute("groups", 1) != 1:
        return refused(f"has {node.attribute('groups')} groups")
    for name in ("stride", "dilation"):
        if any(n != 1 for n in node.integers(name)):
            return refused(f"has {name} {' x '.join(map(str, node.integers(name)))}")
    padding = node.attribute("padding", ())
    low = tuple(p[0] if isinstance(p, tuple) else p for p in padding) if isinstance(padding, tuple) else ()
    if len(low) != 2 or not all(isinstance(n, int) and n >= 0 for n in low):
        return refused(f"has padding {padding}")
    if not (image.num_elements and node.type.num_elements):
        return refused("has no elements, or no products")
    return Windows(image.shape, node.type.shape, (int(str(low[0])), int(str(low[1]))))


@dataclass(frozen=True, slots=True)
class TransformedNodes:
    """The nodes of one convolution, in order. filters: those of the weight alone; tiles, outputs: the transforms; product: the product."""

    filters: tuple[Node, ...]
    tiles: tuple[Node, ...]
    product: Node
    outputs: tuple[Node, ...]


@dataclass(slots=True)
class TransformBuilder:
    """Builds the nodes of convolutions. Those that read the same image or weight in the same way share its transform."""

    graph: Graph
    names_in_use: set[str] = field(init=False)
    known: dict[tuple[object, ...], tuple[Node, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names_in_use = set(self.graph.type_by_name)

    def of(self, node: Node, windows: Windows, filtering: MinimalFiltering, precision: str, channels_inner: bool) -> TransformedNodes:
        """The nodes that compute a convolution; the last one has its name.

        precision: of the product. channels_inner: whether the channels are the last axis of the tiles; else the tiles are.
        """
        image, weight = node.operands[:2]
        n = filtering.positions
        tiles = self._once((image, windows.low, windows.tiles(filtering), n, channels_inner),
                           lambda: self._tiles(image, windows, filtering, channels_inner))
        filters = self._once((weight, n), lambda: self._filters(weight, filtering))
        left, right = (tiles, filters) if channels_inner else (filters, tiles)
        count = windows.num_tiles(filtering), node.type.shape[1]
        product_type = Type(node.type.dtype, (n, n, *(count if channels_inner else reversed(count))))
        attributes = (("precision", precision), (TRANSFORMED, True), ("transpose_a", False), ("transpose_b", channels_inner))
        product = Node(self._name(f"{node.name}_product"), product_type, "library.matmul",
                       operands=(left[-1].name, right[-1].name), attributes=attributes, span=node.span)
        return TransformedNodes(filters, tiles, product, self._outputs(node, product.name, windows, filtering, channels_inner))

    def _once(self, key: tuple[object, ...], build: Callable[[], tuple[Node, ...]]) -> tuple[Node, ...]:
        if key not in self.known:
            self.known[key] = build()
        return self.known[key]

    def _tiles(self, image: str, windows: Windows, filtering: MinimalFiltering, channels_inner: bool) -> tuple[Node, ...]:
        """B^T d B: over the rows of a tile, then over its columns."""
        n, m, dtype = filtering.positions, filtering.results, self.graph.type_of(image).dtype
        wide, tiles, channels, count = compute_dtype(dtype), windows.tiles(filtering), windows.image[1], windows.num_tiles(filtering)
        places, shape = (("t", "c"), (count, channels)) if channels_inner else (("c", "t"), (channels, count))
        batch, down, across = delinearise(axis("t"), tiles, {"t": count})

        def element(row: int) -> Expr:
            at = down * m + (row - windows.low[0]), across * m + axis("j") - windows.low[1]
            read = converted(Read(image, (batch, axis("c"), *at)), dtype, wide)
            return _inside(read, at, ((tiles[1] - 1) * m, (tiles[2] - 1) * m + n - 1), (row, 0), windows, wide)

        by_row = _chosen(axis("p"), filtering.inputs, [element(row) for row in range(n)], wide)
        first = Node(self._name(f"{image}_tile_rows"), Type(wide, (n, n, *shape)), "map", ("p", "j", *places), body=by_row)
        terms: list[Expr] = [Read(first.name, (axis("p"), number(j), *map(axis, places))) for j in range(n)]
        body = _chosen(axis("q"), filtering.inputs, terms, wide, dtype)
        return first, Node(self._name(f"{image}_tiles"), Type(dtype, (n, n, *shape)), "map", ("p", "q", *places), body=body)

    def _filters(self, weight: str, filtering: MinimalFiltering) -> tuple[Node, ...]:
        """G g G^T in f64, rounded once: entries of G are no fractions of powers of two."""
        n, taps, type_ = filtering.positions, filtering.taps, self.graph.type_of(weight)
        features, channels = type_.shape[:2]
        read = [Read(weight, (axis("k"), axis("c"), number(row), axis("j"))) for row in range(taps)]
        wide = [converted(tap, type_.dtype, F64) for tap in read]
        first = Node(self._name(f"{weight}_filter_rows"), Type(F64, (n, taps, features, channels)), "map", ("p", "j", "k", "c"),
                     body=_chosen(axis("p"), filtering.filters, wide, F64))
        terms: list[Expr] = [Read(first.name, (axis("p"), number(j), axis("k"), axis("c"))) for j in range(taps)]
        return first, Node(self._name(f"{weight}_filters"), Type(type_.dtype, (n, n, features, channels)), "map", ("p", "q", "k", "c"),
                           body=_chosen(axis("q"), filtering.filters, terms, F64, type_.dtype))

    def _outputs(self, node: Node, product: str, windows: Windows, filtering: MinimalFiltering, channels_inner: bool) -> tuple[Node, ...]:
        """A^T product A: over the rows of a tile, then over its columns, then the bias."""
        n, m, dtype = filtering.positions, filtering.results, node.type.dtype
        wide, (batch, rows, columns) = compute_dtype(dtype), windows.tiles(filtering)
        tile = linearise((axis("n"), axis("h") // m, axis("s")), row_major_strides((batch, rows, columns)))
        names, shape = ("n", "k", "h", "w"), node.type.shape
        if channels_inner:
            names, shape = ("n", "h", "w", "k"), (shape[0], shape[2], shape[3], shape[1])

        def element(row: int) -> Expr:
            at = (number(row), axis("q"), *((tile, axis("k")) if channels_inner else (axis("k"), tile)))
            return converted(Read(product, at), dtype, wide)

        first = Node(self._name(f"{node.name}_rows"), Type(wide, (*node.type.shape[:3], columns, n)), "map", ("n", "k", "h", "s", "q"),
                     body=_chosen(axis("h") % m, filtering.outputs, [element(row) for row in range(n)], wide))
        terms: list[Expr] = [Read(first.name, (axis("n"), axis("k"), axis("h"), axis("w") // m, number(q))) for q in range(n)]
        body = _chosen(axis("w") % m, filtering.outputs, terms, wide)
        if node.attribute("has_bias", False):
            body = call("add", body, converted(Read(node.operands[2], (axis("k"),)), dtype, wide))
        name = self._name(f"{node.name}_places") if channels_inner else node.name
        second = Node(name, Type(dtype, shape), "map", names, body=converted(body, wide, dtype), span=node.span)
        if not channels_inner:
            return first, second
        image = Read(name, tuple(map(axis, names)))
        return first, second, Node(node.name, node.type, "map", ("n", "k", "h", "w"), body=image, span=node.span)

    def _name(self, preferred: str) -> str:
        name = free_name(preferred, self.names_in_use)
        self.names_in_use.add(name)
        return name


def _inside(read: Expr, at: Sequence[Affine], reach: tuple[int, int], first: tuple[int, int], windows: Windows, dtype: DType) -> Expr:
    """A read of the image; zero over padding, and behind the image's end, where the last tile reaches.

    reach: last place along each dimension from `first`, before padding is taken off.
    """
    limits = tuple(Bound(e, 0, extent) for e, extent, low, last, start in zip(at, windows.image[2:], windows.low, reach, first, strict=True)
                   if start < low or last + start - low >= extent)
    return Guard(limits, read, const(0.0, dtype)) if limits else read


def _chosen(place: Affine, matrix: Matrix, terms: Sequence[Expr], wide: DType, dtype: DType | None = None) -> Expr:
    """The row of `matrix @ terms` at a place, in the type `wide`, rounded to `dtype` if that is another one."""
    *others, body = (converted(e, wide, dtype or wide) for e in applied(matrix, terms, wide))
    for row, e in reversed(list(enumerate(others))):
        body = call("select", call("eq", Index(place), const(row, I64)), e, body)
    return body


# -- error bound ----------------------------------------------------------------------------------------------------------------


def roundings(filtering: MinimalFiltering) -> int:
    """Upper bound on the roundings on the way of one term through the transforms and the product, the sum over channels aside.

    A sum of t terms with coefficients rounds each term at most t + 1 times; two dimensions, three transforms, and the product.
    """
    def most(matrix: Matrix) -> int:
        return max(sum(map(bool, row)) for row in matrix) + 1

    return 2 * (most(filtering.inputs) + most(filtering.outputs)) + 2


def magnitudes(matrix: Matrix) -> tuple[tuple[float, ...], ...]:
    """Absolute values of a matrix, by which errors of its terms grow."""
    return tuple(tuple(abs(float(c)) for c in row) for row in matrix)
