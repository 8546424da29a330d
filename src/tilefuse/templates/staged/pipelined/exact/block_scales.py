"""Operands of 8-bit floats with scales of blocks of the inner axis, recognised by structure: the tensor cores multiply the stored elements.

    x[i, k] = f32(a[i, k]) * s[i, k / 128]        w[j, k] = f32(b[j, k]) * t[j / 128, k / 128]

    sum k: x w  =  sum over blocks: s[i, block] * t[j / 128, block] * (sum of the block: a b)

The sums of a slot leave the accumulators, and threads add them to the tile's sums in f32, times the product of both scales.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilefuse.domain.contraction import COLUMN, INNER, Contraction
from tilefuse.domain.flat_product import axes_of, flat_product
from tilefuse.ir.affine import Affine, axis
from tilefuse.ir.dtype import DTYPES, F8E4M3, F32
from tilefuse.ir.graph import Graph
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Call, Expr, Lookup, Read, call, cast, is_cast, substitute_axes, transform, walk
from tilefuse.kernel.pipeline import SWIZZLE_LINE_BYTES

# Inner elements of a slot of 8-bit operands, one panel: scales are the same for all of them.
SLOT_INNER = SWIZZLE_LINE_BYTES
# Bits of the stored elements.
BYTE = F8E4M3.bits
_BLOCK, _WITHIN, _TILE = "block", "within", "tile"


@dataclass(frozen=True)
class ScaledOperand:
    """An operand as stored elements times a scale. element: the read of the stored tensor; scale: over the line axis and the first inner
    element of a slot, in f32; both over the contraction's axes."""

    element: Read
    scale: Expr


@dataclass(frozen=True)
class ScaledContraction:
    """The contraction of the stored elements, and the scales of both operands."""

    contraction: Contraction
    left: Expr
    right: Expr

    def of_slice(self, first: int) -> tuple[Expr, Expr]:
        """The scales of rows and of columns for a slice of the columns from `first` on."""
        return self.left, substitute_axes(self.right, {COLUMN: axis(COLUMN) + first}) if first else self.right


def scaled_contraction(graph: Graph, contraction: Contraction, shape: tuple[int, ...]) -> ScaledContraction | None:
    """The contraction of 8-bit operands behind one of f32; None where an operand is no stored tensor times scales of blocks.

    shape: of the result.
    Exact: no; scales multiply sums of blocks, which are rounded to f32 as products are in the definition.
    """
    if contraction.precision == F32.name or contraction.num_groups:
        return None
    extents = {**dict(zip(contraction.axes, shape, strict=True)), INNER: contraction.inner}
    sides = [_scaled(graph, value, index, extents) for value, index in ((contraction.left, contraction.left_index),
                                                                      (contraction.right, contraction.right_index))]
    left, right = sides
    if left is None or right is None:
        return None
    stored = replace(contraction, left=left.element.value, left_index=left.element.index, right=right.element.value,
                     right_index=right.element.index, precision="default")
    return ScaledContraction(stored, left.scale, right.scale)


def _scaled(graph: Graph, value: str, index: tuple[Affine, ...], extents: Mapping[str, int]) -> ScaledOperand | None:
    """An operand of f32 as stored elements times scales of blocks."""
    node = graph.node_by_name.get(value)
    if node is None or node.category != "map" or node.type.dtype != F32 or 0 in extents.values():
        return None
    flat = flat_product(Read(value, index), graph, extents)
    if flat.bounds or flat.negative or flat.narrowest.bits < F32.bits:
        return None
    elements = [None if t.divides else _stored(t.element, graph, extents) for t in flat.terms]
    stored = [e for e in elements if e is not None]
    if len(stored) != 1 or len(elements) == 1:
        return None
    # Only behind a stored element: factors written out grow with every map between them and the boundary.
    scales = [(_inlined(t.element, graph, extents), t.divides) for t, e in zip(flat.terms, elements) if e is None]
    if not all(_is_of_blocks(e, graph, extents) for e, _ in scales):
        return None
    scale = None
    for e, divides in scales:
        own = e if dtype_of(e, lambda v: graph.type_of(v).dtype) == F32 else cast(e, F32)
        if scale is None:
            scale = call("reciprocal", own) if divides else own
        else:
            scale = call("div" if divides else "mul", scale, own)
    assert scale is not None
    return ScaledOperand(stored[0], scale)


def _inlined(e: Expr, graph: Graph, extents: Mapping[str, int]) -> Expr:
    """A factor over boundary values: maps of the kernel are written out."""
    def behind(x: Expr) -> Expr:
        node = graph.node_by_name.get(x.value) if isinstance(x, Read) else None
        if not isinstance(x, Read) or node is None or node.category != "map" or node.body is None:
            return x
        return _inlined(substitute_axes(node.body, dict(zip(node.axes, x.index, strict=True)), extents), graph, extents)
    return transform(e, behind)


def _stored(e: Expr, graph: Graph, extents: Mapping[str, int]) -> Read | None:
    """The element of a boundary tensor of 8-bit floats that a factor is, converted to wider floats at most, which hold it exactly.

    Cost: linear in the maps between; they are followed as long as each is a conversion or a view.
    """
    while True:
        if is_cast(e) and isinstance(e, Call) and DTYPES[e.fn].is_float and DTYPES[e.fn].bits > BYTE:
            e = e.args[0]
            continue
        if not isinstance(e, Read):
            return None
        node = graph.node_by_name.get(e.value)
        if node is None:
            break
        if node.category != "map" or node.body is None:
            return None
        e = substitute_axes(node.body, dict(zip(node.axes, e.index, strict=True)), extents)
    dtype = graph.type_of(e.value).dtype
    return e if dtype.is_float and dtype.bits == BYTE else None


def _is_of_blocks(e: Expr, graph: Graph, extents: Mapping[str, int]) -> bool:
    """Whether a factor reads boundary tensors alone, and is the same for all inner elements of a slot."""
    if any(isinstance(x, Lookup) or isinstance(x, Read) and x.value in graph.node_by_name for x in walk(e)):
        return False
    inner = extents[INNER]
    sizes = {**extents, _BLOCK: -(-inner // SLOT_INNER), _WITHIN: min(inner, SLOT_INNER)}
    return _WITHIN not in axes_of(substitute_axes(e, {INNER: axis(_BLOCK) * SLOT_INNER + axis(_WITHIN)}, sizes))


def scales_of_tile(scale: Expr, line: str, lines: int, extents: Mapping[str, int]) -> int:
    """Different scales of so many neighbouring rows or columns of a tile, which begins at a multiple of their number.

    line: the axis of the rows or columns. extents: of the axes of operands.
    """
    tiles = -(-extents[line] // lines)
    sizes = {**extents, _TILE: tiles}
    places = ({line: axis(_TILE) * lines + n} for n in range(lines))
    return len({substitute_axes(scale, place, sizes) for place in places})
