"""Composite library operators written out as reductions and maps, in numerically safe forms.

Everything is computed in the compute dtype of the operand (f32 for f16 and bf16) and rounded once at the end. An expansion is
an entry of `EXPANSIONS`: it emits its nodes through a TensorBuilder and gives the values of all its results.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tilefuse.base.construction import replace
from tilefuse.ir.affine import floordiv
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import DType, compute_dtype
from tilefuse.ir.graph import Graph, Node, library_call_key
from tilefuse.ir.rewrite import rename_operands
from tilefuse.ir.scalar import Expr, Read, call, const
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass


class Rewriter(TensorBuilder):
    """A TensorBuilder that emits a graph again node by node; new names differ from all names of the graph.

    prefix: start of new names: the name of the node that is being rewritten.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph.name)
        self.inputs = list(graph.inputs)
        self.types = {i.name: i.type for i in graph.inputs}
        self.reserved = set(graph.type_by_name)
        self.prefix = ""

    def fresh(self, base_name: str) -> str:
        """A name that neither the old graph nor the new one has."""
        base = self.prefix + base_name
        name = super().fresh(base)
        while name in self.reserved:
            self._counts[base] = self._counts.get(base, 0) + 1
            name = super().fresh(f"{base}_{self._counts[base]}")
        return name

    def rename_last(self, value: str, name: str) -> str:
        """Renames the recently emitted node `value` to `name`. Requires: no later node reads it yet under another name."""
        for at in range(len(self.nodes) - 1, -1, -1):
            if self.nodes[at].name == value:
                self.nodes[at] = replace(self.nodes[at], name=name)
                self.types[name] = self.types.pop(value)
                self.nodes[at + 1 :] = [rename_operands(n, {value: name}) for n in self.nodes[at + 1 :]]
                return name
        return value


Expansion = Callable[[Rewriter, Node], tuple[str, ...]]
EXPANSIONS: dict[str, Expansion] = {}


def expansion(fn: Expansion) -> Expansion:
    """Register a function as the expansion of the library operator of its name."""
    EXPANSIONS[fn.__name__] = fn
    return fn


def _number(node: Node, name: str, default: float = 0.0) -> float:
    value = node.attribute(name, default)
    assert isinstance(value, (int, float))
    return value


def _work(b: Rewriter, x: str) -> DType:
    return compute_dtype(b.dtype_of(x))


def _reduced(b: Rewriter, monoid: str, x: str, axes: Sequence[int], fn: Callable[[Expr], Expr] | None = None) -> str:
    """Reduction of fn(x) over `axes` in the compute dtype, without these dimensions."""
    work, shape = _work(b, x), b.shape_of(x)
    names = axis_names(len(shape))
    element = b.read_as(x, work, shape, names)
    kept_dims = [d for d in range(len(shape)) if d not in axes]
    over = [(names[d], shape[d]) for d in sorted(axes)]
    body = fn(element) if fn else element
    return b.reduce_node(monoid, work, [shape[d] for d in kept_dims], [names[d] for d in kept_dims], over, body, name=monoid)


def _spread_out(b: Rewriter, value: str, axes: Sequence[int]) -> str:
    """A reduced value with extents 1 on `axes`, as it broadcasts against the reduced operand."""
    return b.expand_dims(value, sorted(axes)) if axes else value


def _kept(b: Rewriter, node: Node, value: str) -> tuple[str, ...]:
    """The only result of a composite with `axes` and `keepdims`."""
    return (_spread_out(b, value, node.integers("axes")) if node.attribute("keepdims") else value,)


def _count(b: Rewriter, x: str, axes: Sequence[int]) -> int:
    return prod(b.shape_of(x)[d] for d in axes)


def _grown(b: Rewriter, x: str, shift: str, axes: Sequence[int]) -> str:
    """exp(x - shift) in the compute dtype."""
    return b.expression(lambda v, m: call("exp", call("sub", v, m)), x, _spread_out(b, shift, axes), dtype=_work(b, x), name="exp")


@expansion
def softmax(b: Rewriter, node: Node) -> tuple[str, ...]:
    """exp(x - max) / sum(exp(x - max)): no overflow, and the largest term is 1. A row of -inf gives NaN, as frameworks do."""
    (x,) = node.operands
    at = [int(_number(node, "axis"))]
    grown = _grown(b, x, _reduced(b, "max", x, at), at)
    # One division a row: the sum lies between 1 and the row's length, so its reciprocal is safe and within one rounding.
    inverse = b.expression(lambda s: call("reciprocal", s), _reduced(b, "sum", grown, at), dtype=_work(b, x), name="inverse")
    return (b.expression(lambda e, r: call("mul", e, r), grown, _spread_out(b, inverse, at), dtype=node.type.dtype, name="softmax"),)


@expansion
def log_softmax(b: Rewriter, node: Node) -> tuple[str, ...]:
    """(x - max) - log(sum(exp(x - max))): the logarithm's argument lies between 1 and the row's length."""
    (x,) = node.operands
    at = [int(_number(node, "axis"))]
    top = _reduced(b, "max", x, at)
    total = _reduced(b, "sum", _grown(b, x, top, at), at)
    log_total = b.expression(lambda s: call("log", s), total, dtype=_work(b, x), name="log")

    def body(v: Expr, m: Expr, s: Expr) -> Expr:
        return call("sub", call("sub", v, m), s)

    return (b.expression(body, x, _spread_out(b, top, at), _spread_out(b, log_total, at), dtype=node.type.dtype, name="log_softmax"),)


@expansion
def logsumexp(b: Rewriter, node: Node) -> tuple[str, ...]:
    """log(sum(exp(x - m))) + m with m the maximum, or 0 where that is not finite: a row of -inf gives -inf, one with inf gives inf."""
    (x,) = node.operands
    axes = node.integers("axes")
    work = _work(b, x)
    top = _reduced(b, "max", x, axes)
    shift = b.expression(lambda m: call("select", call("isfinite", m), m, const(0, work)), top, dtype=work, name="shift")
    total = _reduced(b, "sum", _grown(b, x, shift, axes), axes)
    result = b.expression(lambda s, m: call("add", call("log", s), m), total, shift, dtype=node.type.dtype, name="logsumexp")
    return _kept(b, node, result)


@expansion
def mean(b: Rewriter, node: Node) -> tuple[str, ...]:
    """sum(x) / n, summed in the compute dtype and rounded once; NaN for no elements."""
    (x,) = node.operands
    axes = node.integers("axes")
    return _kept(b, node, _scaled(b, _reduced(b, "sum", x, axes), _count(b, x, axes), node.type.dtype, "mean"))


def _scaled(b: Rewriter, total: str, count: float, dtype: DType, name: str) -> str:
    """total / count."""
    work = b.dtype_of(total)
    return b.expression(lambda s: call("div", s, const(count, work)), total, dtype=dtype, name=name)


def _spread(b: Rewriter, node: Node, dtype: DType) -> str:
    """Squared deviations over degrees of freedom."""
    (x,) = node.operands
    axes = node.integers("axes")
    freedom = max(_count(b, x, axes) - _number(node, "correction", 1.0), 0.0)
    return _scaled(b, _reduced(b, "m2", x, axes), freedom, dtype, "variance")


@expansion
def variance(b: Rewriter, node: Node) -> tuple[str, ...]:
    """Squared deviations from the mean (Welford, Chan) over n - correction; no cancellation of large squares."""
    return _kept(b, node, _spread(b, node, node.type.dtype))


@expansion
def standard_deviation(b: Rewriter, node: Node) -> tuple[str, ...]:
    """Square root of the variance."""
    work = _work(b, node.operands[0])
    return _kept(b, node, b.expression(lambda v: call("sqrt", v), _spread(b, node, work), dtype=node.type.dtype, name="deviation"))


def _affine_operands(node: Node) -> tuple[str | None, str | None]:
    """Weight and bias of a norm, where it has them."""
    operands = list(node.operands[1:])
    weight = operands.pop(0) if node.attribute("has_weight") else None
    return weight, operands.pop(0) if node.attribute("has_bias") else None


def _statistics(b: Rewriter, x: str, axes: Sequence[int], eps: float) -> tuple[str, str]:
    """Mean and 1 / sqrt(variance + eps) over `axes`, without these dimensions."""
    work, count = _work(b, x), _count(b, x, axes)
    mid = _scaled(b, _reduced(b, "sum", x, axes), count, work, "mean")
    spread = _reduced(b, "m2", x, axes)
    return mid, _inverse_root(b, spread, count, eps, work)


def _inverse_root(b: Rewriter, total: str, count: int, eps: float, work: DType) -> str:
    """1 / sqrt(total / count + eps)."""

    def body(s: Expr) -> Expr:
        return call("rsqrt", call("add", call("div", s, const(count, work)), const(eps, work)))

    return b.expression(body, total, dtype=work, name="rstd")


def _normalised(b: Rewriter, x: str, mid: str | None, rstd: str, weight: str | None, bias: str | None, dtype: DType, name: str) -> str:
    """((x - mid) * rstd) * weight + bias in one map."""

    def body(*args: Expr) -> Expr:
        operands = list(args)
        value = operands.pop(0)
        if mid is not None:
            value = call("sub", value, operands.pop(0))
        value = call("mul", value, operands.pop(0))
        if weight is not None:
            value = call("mul", value, operands.pop(0))
        return call("add", value, operands.pop(0)) if bias is not None else value

    work = _work(b, x)
    operands = [v for v in (x, mid, rstd, weight, bias) if v is not None]
    # Weights may be kept in another type than the activations; arithmetic is done in the activations' compute dtype.
    operands = [v if compute_dtype(b.dtype_of(v)) == work else b.cast(v, work) for v in operands]
    return b.expression(body, *operands, dtype=dtype, name=name)


def _placed(b: Rewriter, value: str | None, rank: int, axes: Sequence[int]) -> str | None:
    """A tensor whose dimensions are `axes` of a tensor of `rank` dimensions, with extents 1 elsewhere."""
    if value is None:
        return None
    return b.expand_dims(value, [d for d in range(rank) if d not in axes])


@expansion
def layer_norm(b: Rewriter, node: Node) -> tuple[str, ...]:
    """(x - mean) / sqrt(variance + eps) * weight + bias with the variance by Welford and Chan; also mean and 1 / sqrt(...)."""
    x, axes = node.operands[0], node.integers("axes")
    weight, bias = _affine_operands(node)
    mid, rstd = (_spread_out(b, v, axes) for v in _statistics(b, x, axes, _number(node, "eps")))
    rank = b.rank_of(x)
    y = _normalised(b, x, mid, rstd, _placed(b, weight, rank, axes), _placed(b, bias, rank, axes), b.dtype_of(x), "layer_norm")
    return y, mid, rstd


@expansion
def rms_norm(b: Rewriter, node: Node) -> tuple[str, ...]:
    """x / sqrt(mean(x * x) + eps) * weight; also 1 / sqrt(...)."""
    x, axes = node.operands[0], node.integers("axes")
    weight, _ = _affine_operands(node)
    work, count, eps = _work(b, x), _count(b, x, axes), _number(node, "eps")
    squares = _reduced(b, "sum", x, axes, lambda v: call("mul", v, v))
    rstd = _spread_out(b, _inverse_root(b, squares, count, eps, work), axes)
    return _normalised(b, x, None, rstd, _placed(b, weight, b.rank_of(x), axes), None, b.dtype_of(x), "rms_norm"), rstd


@expansion
def group_norm(b: Rewriter, node: Node) -> tuple[str, ...]:
    """Layer norm over each group of channels with all positions, then weight and bias a channel; also mean and 1 / sqrt(...)."""
    x, groups = node.operands[0], int(_number(node, "groups"))
    shape = b.shape_of(x)
    rank = len(shape)
    split = b.reshape(x, [shape[0], groups, shape[1] // groups, *shape[2:]])
    mid, rstd = _statistics(b, split, list(range(2, rank + 1)), _number(node, "eps"))
    names = axis_names(rank)
    extents = dict(zip(names, shape, strict=True))

    def spread(value: str) -> str:
        """A statistic of shape [N, groups] at every channel."""
        read = b.read(x, shape, names)
        index = (read.index[0], floordiv(read.index[1], shape[1] // groups, extents))
        return b.make_map("group", b.dtype_of(value), (*shape[:2], *(1,) * (rank - 2)), names, Read(value, index))

    weight, bias = _affine_operands(node)
    w, c = _placed(b, weight, rank, [1]), _placed(b, bias, rank, [1])
    y = _normalised(b, x, spread(mid), spread(rstd), w, c, b.dtype_of(x), "group_norm")
    return y, mid, rstd


@expansion
def own_gradient(b: Rewriter, node: Node) -> tuple[str, ...]:
    """The operator's first operands; later ones are for gradients alone."""
    return node.operands[:int(_number(node, "num_results"))]


@register_pass
@dataclass(frozen=True)
class Decompose(Pass):
    """Write composite library operators (softmax family, means, variances, norms) as reductions and maps.

    All results of one composite are expanded together, so that they share their reductions; unused ones are left for remove-dead-nodes.
    Exact: no; the composites are defined by these expansions up to the order of summation and one rounding per operation.
    """

    name: ClassVar[str] = "decompose"
    establishes: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY})
    exact: ClassVar[bool] = False

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        if not any(n.category == "library" and n.detail in EXPANSIONS for n in graph.nodes):
            return graph
        b = Rewriter(graph)
        siblings: dict[object, dict[int, str]] = {}
        for node in graph.nodes:
            if node.category == "library" and node.detail in EXPANSIONS:
                siblings.setdefault(library_call_key(node), {}).setdefault(int(_number(node, "result")), node.name)
        renamed: dict[str, str] = {}
        expanded: dict[object, tuple[str, ...]] = {}
        for old in graph.nodes:
            node = rename_operands(old, renamed)
            if old.category != "library" or old.detail not in EXPANSIONS:
                b.add(node)
                continue
            key = library_call_key(old)
            if key not in expanded:
                expanded[key] = _expand(b, node, siblings[key])
                ctx.count(old.detail)
            result = expanded[key][int(_number(old, "result"))]
            if result != old.name:
                renamed[old.name] = result
        return replace(
            graph,
            nodes=tuple(b.nodes),
            results=tuple(renamed.get(r, r) for r in graph.results),
            updates=tuple((i, renamed.get(v, v)) for i, v in graph.updates),
        )


def _expand(b: Rewriter, node: Node, name_by_result: dict[int, str]) -> tuple[str, ...]:
    """Emits the expansion of a composite; its results get the names of the library nodes that they replace."""
    b.prefix, b.span = f"{node.name}_", node.span
    num_before = len(b.nodes)
    values = list(EXPANSIONS[node.detail](b, node))
    new = {n.name for n in b.nodes[num_before:]}
    for position, value in enumerate(values):
        if position in name_by_result and value in new:
            name = b.rename_last(value, name_by_result[position])
            values = [name if v == value else v for v in values]
    b.prefix = ""
    return tuple(values)
