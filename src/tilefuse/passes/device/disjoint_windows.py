"""Convolutions whose windows share no element, as products: their tensors as matrices, and their results from matrices.

    wide     [batch, channels, places...]     the tensor that windows lie on: the image of a convolution, the result of a transposed one
    narrow   [batch, features, windows...]    the tensor with an element for each window
    weight   [features, channels, window...]

    windows  [batch windows, window]          row r: the elements of window r; the inner axis is channels, then places of the window

    narrow = windows weight^T                 convolution; gradient of a transposed one's image
    wide   = (narrow weight) spread           transposed convolution; gradient of a convolution's image
    weight = narrow^T windows                 gradient of either's weight
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.ir.affine import Affine, axis, delinearise, linearise, row_major_strides
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.scalar import Bound, Expr, Guard, Read

# Axes of matrices: rows, and columns or the inner axis.
ROW, COLUMN = "i", "j"
NARROW, WIDE, WEIGHT, BIAS = "narrow", "wide", "weight", "bias"


@dataclass(frozen=True, slots=True)
class DisjointWindows:
    """The geometry of a convolution whose windows share no element. Units: elements.

    wide, narrow, weight  shapes, as above
    stride, dilation, low a dimension's step between windows, step inside of a window, padding before the first place
    """

    wide: tuple[int, ...]
    narrow: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    low: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Windows of the whole batch."""
        return self.narrow[0] * prod(self.narrow[2:])

    @property
    def inner(self) -> int:
        """Elements of a window."""
        return prod(self.weight[1:])

    @property
    def features(self) -> int:
        """Channels of the narrow tensor."""
        return self.weight[0]

    @property
    def is_pointwise(self) -> bool:
        """Whether each place is a window, so that both tensors are matrices as they lie, channels last."""
        return self.wide[2:] == self.narrow[2:] and not any(self.low)

    def narrow_matrix(self, value: str) -> Expr:
        """The element [i, j] of the narrow tensor as a matrix [windows, features]."""
        batch, *windows = self._window(axis(ROW))
        return Read(value, (batch, axis(COLUMN), *windows))

    def weight_matrix(self, value: str) -> Expr:
        """The element [i, j] of the weight as a matrix [features, window]."""
        return Read(value, (axis(ROW), *self._place(axis(COLUMN))))

    def windows_matrix(self, value: str, zero: Expr) -> Expr:
        """The element [i, j] of the wide tensor's windows [windows, window]; zero where a window lies over padding."""
        batch, *windows = self._window(axis(ROW))
        channel, *places = self._place(axis(COLUMN))
        at = tuple(w * s + p * d - low for w, s, p, d, low in zip(windows, self.stride, places, self.dilation, self.low, strict=True))
        read = Read(value, (batch, channel, *at))
        bounds = tuple(Bound(e, 0, n) for e, n, beyond in zip(at, self.wide[2:], self._beyond(), strict=True) if beyond)
        return Guard(bounds, read, zero) if bounds else read

    def narrow_from(self, product: str, axes: Sequence[str]) -> Expr:
        """The element of the narrow tensor at `axes`, from a product [windows, features]."""
        batch, feature, *windows = map(axis, axes)
        return Read(product, (linearise((batch, *windows), row_major_strides((self.narrow[0], *self.narrow[2:]))), feature))

    def weight_from(self, product: str, axes: Sequence[str]) -> Expr:
        """The element of the weight at `axes`, from a product [features, window]."""
        feature, *place = map(axis, axes)
        return Read(product, (feature, linearise(tuple(place), row_major_strides(self.weight[1:]))))

    def wide_from(self, product: str, axes: Sequence[str], zero: Expr) -> Expr:
        """The element of the wide tensor at `axes`, from a product [windows, window]; zero where it lies in no window."""
        batch, channel, *at = map(axis, axes)
        windows, places = [], []
        bounds: list[Bound] = []
        for d, e in enumerate(at):
            count, extent, reach = self.narrow[d + 2], self.weight[d + 2], self._reach(d)
            # The only window of a dimension goes on to the end of the tensor.
            step = self.stride[d] if count > 1 else max(self.wide[d + 2] + self.low[d], reach)
            window, inside = (e + self.low[d]) // step, (e + self.low[d]) % step
            if (self.wide[d + 2] + self.low[d] - 1) // step >= count:
                bounds.append(Bound(window, 0, count))
            if step > reach:
                bounds.append(Bound(inside, 0, reach))
            if self.dilation[d] > 1 and extent > 1:
                bounds.append(Bound(inside % self.dilation[d], 0, 1))
            windows.append(window)
            places.append(inside // self.dilation[d])
        row = linearise((batch, *windows), row_major_strides((self.narrow[0], *self.narrow[2:])))
        read = Read(product, (row, linearise((channel, *places), row_major_strides(self.weight[1:]))))
        return Guard(tuple(bounds), read, zero) if bounds else read

    def _window(self, row: Affine) -> tuple[Affine, ...]:
        return delinearise(row, (self.narrow[0], *self.narrow[2:]), {ROW: self.rows})

    def _place(self, column: Affine) -> tuple[Affine, ...]:
        return delinearise(column, self.weight[1:], {COLUMN: self.inner})

    def _reach(self, dimension: int) -> int:
        return self.dilation[dimension] * (self.weight[dimension + 2] - 1) + 1

    def _beyond(self) -> list[bool]:
        """For each dimension whether a window reaches outside of the wide tensor."""
        return [low > 0 or (n - 1) * s + self._reach(d) - low > extent for d, (low, n, s, extent) in enumerate(
            zip(self.low, self.narrow[2:], self.stride, self.wide[2:], strict=True))]


def disjoint_windows(node: Node, graph: Graph) -> DisjointWindows | Rejected:
    """The geometry of a convolution or of its gradient; or why it is no product. Requires: a node of `WEIGHT_OPERAND`."""
    is_gradient = node.kind == "library.convolution_backward"
    x, weight = (graph.type_of(v) for v in node.operands[is_gradient:is_gradient + 2])
    y = graph.type_of(node.operands[0]) if is_gradient else node.type
    wide, narrow = (y, x) if node.attribute("transposed", False) else (x, y)
    if node.attribute("groups", 1) != 1:
        return Rejected(Reason.DOMAIN_MISMATCH, f"%{node.name} has {node.attribute('groups')} groups, and a product has one")
    if not (wide.num_elements and narrow.num_elements and weight.num_elements):
        return Rejected(Reason.DOMAIN_MISMATCH, f"%{node.name} has no elements, or no products")
    rank = len(weight.shape) - 2
    stride, dilation = (node.integers(a) or (1,) * rank for a in ("stride", "dilation"))
    padding = node.attribute("padding", ())
    low = tuple(p[0] if isinstance(p, tuple) else p for p in padding) if isinstance(padding, tuple) else ()
    windows = DisjointWindows(wide.shape, narrow.shape, weight.shape, stride, dilation, tuple(n for n in low if isinstance(n, int)))
    for d in range(rank):
        if narrow.shape[d + 2] > 1 and stride[d] < dilation[d] * (weight.shape[d + 2] - 1) + 1:
            return Rejected(Reason.DOMAIN_MISMATCH, f"windows of %{node.name} share elements: {weight.shape[d + 2]} places "
                                                    f"{dilation[d]} apart, {stride[d]} from one window to the next")
    return windows


def computed_tensor(node: Node) -> str:
    """Which tensor a convolution or its gradient computes: NARROW, WIDE, WEIGHT or BIAS. Requires: a node of `WEIGHT_OPERAND`."""
    transposed = bool(node.attribute("transposed", False))
    if node.kind == "library.convolution":
        return WIDE if transposed else NARROW
    result = node.attribute("result", 0)
    assert isinstance(result, int)
    return (NARROW if transposed else WIDE, WEIGHT, BIAS)[result]
