"""Attention in a joint graph, as its products and its softmax, with the derivative that autograd wrote for it.

    forward     s = bmm(q, k') * scale [+ mask]     p = softmax(s)     w = p or dropout(p)     y = bmm(w, v)
    backward    dw = bmm(g, v')     dp = dw or dw * m     ds = (dp p - p sum(dp p)) [where not hidden] * scale
                dv = bmm(w', g)     dq = bmm(ds, k)       dk' = bmm(q', ds)

Each node between dw and ds is matched, so that nothing else, as a hook that scales gradients, is taken for the derivative.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch.fx import Node

from tilefuse.driver.torch.joint_code import shape_of
from tilefuse.frontends.torch.own.random_numbers import RANDOM_BELOW

_ATEN = torch.ops.aten
BMM = _ATEN.bmm.default
SOFTMAXES = (_ATEN._softmax.default, _ATEN._safe_softmax.default)
_VIEWS = (_ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.reshape.default, _ATEN.expand.default, _ATEN.alias.default)
_COPIES = (_ATEN.clone.default, _ATEN._to_copy.default, torch.ops.prims.convert_element_type.default)
_CONSTANTS = {_ATEN.full.default: 1, _ATEN.scalar_tensor.default: 0}
# Relative difference of two products of the same numbers in another order. Source: rounding of f64, and of f32 constants.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Mask:
    """A mask of scores: puts the number `fill` where it is true (or, if `is_visible`, where not), or is added.

    parts  (mask, scores with it) of each mask, the last one first, where there are several, or where they are added to scores of other
           lead dimensions than the softmax has; `value` is that of the last one
    """

    value: Node
    is_added: bool = False
    is_visible: bool = False
    fill: float = -math.inf
    parts: tuple[tuple[Mask, Node], ...] = ()

    @property
    def all(self) -> tuple[Mask, ...]:
        """The mask, or its parts."""
        return tuple(m for m, _ in self.parts) or (self,)


@dataclass(frozen=True)
class Dropout:
    """A dropout of powers. is_left: its mask; the others are multiplied by `factor`."""

    is_left: Node
    factor: float
    probability: float
    seed: Node
    number: int


@dataclass(frozen=True)
class JointAttention:
    """One attention and its derivative. Nodes of three dimensions, as products have them: [heads, rows or columns, width].

    scores        before the softmax, of all lead dimensions
    keys          the turned ones that the first product multiplies by: [heads, width, columns]
    of_queries, of_keys, of_values  the products that give gradients; None where nothing asks for them. Those of the keys are turned
    readers       (node, its operand): other readers of the gradient of the scores, which is that of a mask that is added
    filled        the mask that puts a finite number at hidden places, before the other one
    """

    softmax: Node
    scores: Node
    queries: Node
    keys: Node
    values: Node
    result: Node
    gradient: Node
    scale: float
    mask: Mask | None
    dropout: Dropout | None
    of_queries: Node | None
    of_keys: Node | None
    of_values: Node | None
    readers: tuple[tuple[Node, Node], ...] = ()
    filled: Mask | None = None


def attentions(graph: torch.fx.Graph, backward: set[Node]) -> Iterator[JointAttention]:
    """Every attention whose forward and derivative have the form. backward: values of that part."""
    for node in graph.nodes:
        if node.op == "call_function" and node.target in SOFTMAXES and node not in backward:
            attention = _Reading(node, backward).read()
            if attention is not None:
                yield attention


class _Reading:
    """The reading of one softmax."""

    def __init__(self, softmax: Node, backward: set[Node]) -> None:
        self.softmax, self.backward = softmax, backward

    def read(self) -> JointAttention | None:
        """The attention around it; None where something differs."""
        scores = self.softmax.args[0]
        assert isinstance(scores, Node)
        if self.softmax.args[1] not in (-1, scores.meta["val"].dim() - 1) or scores.meta["val"].dim() < 3:
            return None
        before, behind = self._scores(scores), self._weights()
        if before is None or behind is None:
            return None
        product, scale, mask, filled = before
        if shape_of(product)[-2:] != shape_of(scores)[-2:]:
            return None
        dropout, weights, result = behind
        queries, keys = _operands(product)
        _, values = _operands(result)
        of_weights = self._times_turned(values)
        if of_weights is None:
            return None
        gradient = of_weights.args[0]
        of_scores = _Derivative(self.softmax, (mask, filled), dropout, self.backward).follow(of_weights, product)
        factor = scale * (dropout.factor if dropout else 1.0)
        if of_scores is None or not math.isclose(of_scores.factor, factor, rel_tol=_ROUNDING):
            return None
        of_mask = dropout.factor if dropout else 1.0
        if any(mask is None or filled is not None or not mask.is_added or not math.isclose(of_scores.factors[x], of_mask, rel_tol=_ROUNDING)
               for _, x in of_scores.readers):
            return None
        ends = [n for n in of_scores.ends if n not in (of_scores.of_queries, of_scores.of_keys)]
        of_values = next((n for n in self._turned_times(weights) if n.args[1] is gradient), None)
        if ends or any(n is not of_values for n in self._turned_times(weights)):
            return None
        return JointAttention(self.softmax, scores, queries, keys, values, result, gradient, scale, mask, dropout,
                              of_scores.of_queries, of_scores.of_keys, of_values, tuple(of_scores.readers), filled)

    # -- forward -----------------------------------------------------------------------------------------------------------

    def _scores(self, s: Node) -> tuple[Node, float, Mask | None, Mask | None] | None:
        """The product of scores, their scale, and behind it the mask, before which another one may put a finite number."""
        scale = 1.0
        mask: Mask | None = None
        filled: Mask | None = None
        parts: list[tuple[Mask, Node]] = []
        while s.target is not BMM:
            x, factor, behind = _scaled(s) or _masked(s) or (_passed(s), 1.0, None)
            is_sum = behind is not None and s.target is _ATEN.add.Tensor
            like, shape = (shape_of(n)[-2:] if is_sum else shape_of(n) for n in (self.softmax, s))
            fills = behind is not None and not behind.is_added and math.isfinite(behind.fill)
            is_late = scale != 1.0 or filled is not None
            if x is None or behind is not None and (is_late or shape != like) or factor <= 0.0:
                return None
            if behind is not None and not fills:
                parts.append((Mask(next(a for a in s.args if a is not x), is_added=True) if is_sum else behind, s))
            scale, s = scale * factor, x
            mask, filled = (mask, behind) if fills else (mask or behind, filled)
        if len(parts) > 1 or parts and shape_of(parts[0][1]) != shape_of(self.softmax):
            mask = Mask(parts[0][0].value, is_added=True, parts=tuple(parts))
        return s, scale, mask, filled

    def _weights(self) -> tuple[Dropout | None, Node, Node] | None:
        """The dropout of the powers, the product's left operand, and the product."""
        node: Node = self.softmax
        dropout: Dropout | None = None
        while True:
            users = [u for u in node.users if u not in self.backward]
            if len(users) != 1:
                return None
            user: Node = users[0]
            if user.op == "output":
                return None
            if user.target is BMM and user.args[0] is node and user.args[1] is not node:
                return dropout, node, user
            if isinstance(user.meta["val"], torch.Tensor) and shape_of(user)[-2:] == shape_of(node)[-2:] and _passed(user) is node:
                node = user
            elif dropout is None and user.target is _ATEN.mul.Tensor and (drop := _dropped(user, self.backward)) is not None:
                dropout, node = drop
            else:
                return None

    # -- backward ----------------------------------------------------------------------------------------------------------

    def _times_turned(self, values: Any) -> Node | None:
        """The one product of the backward by the turned values."""
        products = [p for t in values.users if _is_turned(t) for p in t.users
                    if p in self.backward and p.target is BMM and p.args[1] is t]
        return products[0] if len(products) == 1 else None

    def _turned_times(self, weights: Node) -> list[Node]:
        """Products of the backward with the turned powers on their left."""
        return [p for t in weights.users if _is_turned(t) for p in t.users if p in self.backward]


@dataclass(frozen=True)
class _Gradient:
    """A value between the gradients of powers and of scores: `factor` times one of

        weights     gradient of the dropped powers        powers    the same of the powers
        by_powers   times the powers                      sum       summed up over each row, perhaps times the powers (`sum_by_powers`)
        scores      gradient of the softmax's scores; `is_filled`: 0 where these are a finite number
    """

    kind: str
    factor: float = 1.0
    is_filled: bool = False


@dataclass
class _Ends:
    """Products that read the gradient of the scores. factor: of that gradient.

    readers  other nodes, each with the form of the gradient that it reads
    factors  of these forms
    """

    factor: float
    ends: list[Node]
    of_queries: Node | None = None
    of_keys: Node | None = None
    readers: list[tuple[Node, Node]] = field(default_factory=list)
    factors: dict[Node, float] = field(default_factory=dict)


class _Derivative:
    """The derivative of a softmax, from the gradient of the dropped powers on."""

    def __init__(self, softmax: Node, masks: tuple[Mask | None, Mask | None], dropout: Dropout | None, backward: set[Node]) -> None:
        self.softmax, (self.mask, self.filled), self.dropout, self.backward = softmax, masks, dropout, backward
        self.known: dict[Node, _Gradient] = {}

    def follow(self, of_weights: Node, product: Node) -> _Ends | None:
        """The products behind it; None where a value on the way is none of the derivative's, or is read elsewhere."""
        self.known[of_weights] = _Gradient("weights" if self.dropout else "powers")
        queries, keys = _operands(product)
        ends = _Ends(0.0, [])
        for node in self._in_order(of_weights):
            read = [n for n in node.all_input_nodes if n in self.known]
            if not read:
                # Behind a reader.
                continue
            if node.target is BMM:
                of = self.known.get(node.args[0]) or self.known.get(node.args[1])
                if of is None or of.kind != "scores" or ends.factor not in (0.0, of.factor) or of.is_filled != (self.filled is not None):
                    return None
                ends.factor = of.factor
                ends.ends.append(node)
                if node.args[0] in self.known and _is_turned(node.args[1]) and node.args[1].args[0] is keys:
                    ends.of_queries = node
                if node.args[1] in self.known and _is_turned(node.args[0]) and node.args[0].args[0] is queries:
                    ends.of_keys = node
                continue
            gradient = None if node.op == "output" else self._gradient(node)
            if gradient is not None:
                self.known[node] = gradient
            elif all(self.known[n].kind == "scores" for n in read):
                ends.readers += [(node, n) for n in read]
                ends.factors |= {n: self.known[n].factor for n in read}
            else:
                return None
        return ends if ends.ends else None

    def _in_order(self, start: Node) -> list[Node]:
        """Readers of a node, and theirs, up to the next products, in graph order."""
        inside: set[Node] = set()
        stack = [start]
        while stack:
            for user in stack.pop().users:
                if user not in inside:
                    inside.add(user)
                    if user.target is not BMM and user.op != "output":
                        stack.append(user)
        order = {n: at for at, n in enumerate(start.graph.nodes)}
        return sorted(inside, key=order.__getitem__)

    def _gradient(self, node: Node) -> _Gradient | None:
        x = _passed(node)
        if x is not None:
            return self.known.get(x)
        match node.target:
            case _ATEN.mul.Tensor | _ATEN.mul.Scalar | _ATEN.div.Tensor | _ATEN.div.Scalar:
                return self._multiplied(node)
            case _ATEN.where.self | _ATEN.masked_fill.Scalar | _ATEN.masked_fill.Tensor:
                return self._selected(node)
            case _ATEN.sum.dim_IntList if node.args[1] in ([-1], [node.args[0].meta["val"].dim() - 1]) and node.args[2:] == (True,):
                of = self.known.get(node.args[0])
                return replace(of, kind="sum") if of is not None and of.kind == "by_powers" else None
            case _ATEN.sub.Tensor if not node.kwargs:
                one, other = (self.known.get(a) for a in node.args)
                if one is not None and other is not None and (one.kind, other.kind) == ("by_powers", "sum_by_powers"):
                    return _Gradient("scores", one.factor) if one.factor == other.factor else None
        return None

    def _multiplied(self, node: Node) -> _Gradient | None:
        scaled = _scaled(node)
        if scaled is not None:
            of = self.known.get(scaled[0])
            return None if of is None else replace(of, factor=of.factor * scaled[1])
        if node.target is not _ATEN.mul.Tensor:
            return None
        a, b = node.args
        of, other = (self.known[a], b) if a in self.known else (self.known.get(b), a)
        if of is None:
            return None
        if of.kind == "weights" and self.dropout is not None:
            factor = _mask_factor(other, self.dropout.is_left)
            return None if factor is None else _Gradient("powers", of.factor * factor)
        if _root(other) is self.softmax and of.kind in ("powers", "sum"):
            return replace(of, kind="by_powers" if of.kind == "powers" else "sum_by_powers")
        return None

    def _selected(self, node: Node) -> _Gradient | None:
        """A choice between a gradient and 0."""
        chosen = _chosen(node)
        if chosen is None or chosen.fill != 0.0:
            return None
        of = self.known.get(chosen.value)
        if of is None:
            return None
        if of.kind == "weights" and self.dropout is not None and chosen.condition is self.dropout.is_left and chosen.is_visible:
            return replace(of, kind="powers")
        if of.kind != "scores":
            return None
        if _is_of(chosen, self.filled):
            return replace(of, is_filled=True)
        return of if self.mask is not None and any(_is_of(chosen, m) for m in self.mask.all) else None


# -- single nodes ------------------------------------------------------------------------------------------------------------


def _operands(product: Node) -> tuple[Node, Node]:
    left, right = product.args
    assert isinstance(left, Node) and isinstance(right, Node)
    return left, right


@dataclass(frozen=True)
class _Choice:
    """`value` where a condition is true (`is_visible`) or false, else a number."""

    value: Node
    condition: Node
    fill: float
    is_visible: bool


def _is_of(chosen: _Choice, mask: Mask | None) -> bool:
    """Whether a choice is made by a mask's condition."""
    return mask is not None and not mask.is_added and chosen.condition is mask.value and chosen.is_visible == mask.is_visible


def _chosen(node: Node) -> _Choice | None:
    if node.target in (_ATEN.masked_fill.Scalar, _ATEN.masked_fill.Tensor):
        value, condition, fill = node.args[0], node.args[1], _number(node.args[2])
        return None if fill is None else _Choice(value, condition, fill, False)
    if node.target is _ATEN.where.self:
        condition, a, b = node.args
        for value, other, is_visible in ((a, b, True), (b, a, False)):
            fill = _number(other)
            if fill is not None and _number(value) is None:
                return _Choice(value, condition, fill, is_visible)
    return None


def _masked(node: Node) -> tuple[Node, float, Mask] | None:
    """Scores behind a mask that hides with -inf or a finite number, or is added."""
    chosen = _chosen(node)
    if chosen is not None:
        fill = chosen.fill
        return (chosen.value, 1.0, Mask(chosen.condition, False, chosen.is_visible, fill)) if fill < math.inf else None
    if node.target is not _ATEN.add.Tensor or node.kwargs or not all(isinstance(a, Node) for a in node.args):
        return None
    x, added = sorted(node.args, key=lambda a: shape_of(a) != shape_of(node))
    if shape_of(x) != shape_of(node) or not added.meta["val"].is_floating_point():
        return None
    if _leads_to_product(added) and not _leads_to_product(x):
        x, added = added, x
    return x, 1.0, of_zeros(added) or Mask(added, is_added=True)


def of_zeros(added: Node) -> Mask | None:
    """The condition of a mask that is 0 or -inf."""
    root = _root(added)
    if root.target is not _ATEN.where.self:
        return None
    condition, a, b = root.args
    numbers = _number(a), _number(b)
    return Mask(condition, is_visible=numbers[0] == 0.0) if numbers in ((0.0, -math.inf), (-math.inf, 0.0)) else None


def _leads_to_product(node: Any) -> bool:
    while isinstance(node, Node) and node.target is not BMM:
        scaled = _scaled(node)
        node = scaled[0] if scaled is not None else _passed(node)
    return isinstance(node, Node)


def _scaled(node: Node) -> tuple[Node, float, None] | None:
    """A value times a number."""
    if node.target in (_ATEN.mul.Tensor, _ATEN.mul.Scalar, _ATEN.div.Tensor, _ATEN.div.Scalar):
        x, factor = node.args[0], _number(node.args[1])
        if isinstance(x, Node) and factor:
            return x, factor if node.target in (_ATEN.mul.Tensor, _ATEN.mul.Scalar) else 1.0 / factor, None
    return None


def _passed(node: Node) -> Node | None:
    """The operand of a node that has the same elements in the same order."""
    if node.op != "call_function" or node.target not in (*_VIEWS, *_COPIES):
        return None
    x = node.args[0]
    assert isinstance(x, Node)
    return x if prod(shape_of(x)) == prod(shape_of(node)) and node.meta["val"].is_floating_point() else None


def _root(node: Any) -> Any:
    """The value of which a node is a copy, in any type."""
    while isinstance(node, Node) and (x := _passed(node)) is not None:
        node = x
    return node


def _dropped(scaled: Node, backward: set[Node]) -> tuple[Dropout, Node] | None:
    """The dropout whose kept powers a node is, and its result."""
    users = [u for u in scaled.users if u not in backward]
    chosen = _chosen(users[0]) if len(users) == 1 and len(scaled.users) == 1 else None
    if chosen is None or chosen.value is not scaled or chosen.fill != 0.0 or not chosen.is_visible:
        return None
    is_left, factor = chosen.condition, _number(scaled.args[1])
    if is_left.target is not RANDOM_BELOW or not factor:
        return None
    seed, number, _, limit = is_left.args
    if shape_of(is_left) != shape_of(scaled) or not math.isclose(factor * limit, 1.0, rel_tol=_ROUNDING):
        return None
    return Dropout(is_left, factor, 1.0 - limit, seed, number), users[0]


def _mask_factor(node: Any, is_left: Node) -> float | None:
    """The number by which a dropout's mask is multiplied; None for another value."""
    factor = 1.0
    while isinstance(node, Node):
        if node is is_left:
            return factor
        scaled = _scaled(node)
        if scaled is not None:
            node, factor = scaled[0], factor * scaled[1]
        else:
            node = node.args[0] if node.target in _COPIES else None
    return None


def _is_turned(node: Any) -> bool:
    """Whether a node exchanges the two dimensions of its operand's matrices."""
    if not isinstance(node, Node):
        return False
    if node.target is _ATEN.transpose.int:
        return {d % 3 for d in node.args[1:]} == {1, 2} and node.meta["val"].dim() == 3
    return node.target is _ATEN.permute.default and list(node.args[1]) == [0, 2, 1]


def _number(x: Any) -> float | None:
    """A number, or the constant that a node without dimensions is."""
    if isinstance(x, Node):
        at = _CONSTANTS.get(x.target) if x.op == "call_function" else None
        return None if at is None or any(e != 1 for e in shape_of(x)) else _number(x.args[at])
    return float(x) if isinstance(x, int | float) else None
