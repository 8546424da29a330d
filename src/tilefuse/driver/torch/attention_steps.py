"""Attention in a training step: its derivative from the logarithms of its sums, so that neither softmax nor mask is kept.

    l = logarithm of the sum of exp(s)                           beside the softmax, a number a row
    dq, dk, dv, db = attention_backward(g, q, k, v, y, l, seed)  in place of the softmax's derivative and its four products; db is the
                                                                 gradient of a mask that is added, such as a learned bias

Taken where kernels hold the gradients and are predicted faster than products with a softmax between them that memory keeps (option
`attention_gradients`). Named sizes count as those of the traced call.
"""
from __future__ import annotations

import functools
import math
import operator
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from math import prod

import torch
from torch.fx import Graph, Node

from tilefuse.base.options import Options
from tilefuse.driver.torch.attention_forms import JointAttention, Mask, attentions
from tilefuse.driver.torch.called_attention import WrittenOut, called_attentions
from tilefuse.driver.torch.joint_code import JointCode, known_size, shape_of
from tilefuse.driver.torch.redrawn import SeededCode
from tilefuse.frontends.torch.ops import DTYPE_BY_TORCH
from tilefuse.frontends.torch.own.attention import ATTENTION_BACKWARD
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BOOL, F32, I64
from tilefuse.ir.graph import Graph as Expressions
from tilefuse.ir.graph import Input, Type
from tilefuse.ir.library.attention_gradient_call import AttentionGradientCall
from tilefuse.plan.price.predictions import Predictions
from tilefuse.plan.rewrites.attention_gradient import GradientChoice, gradient_choice
from tilefuse.target.device import DeviceSpec

_ATEN = torch.ops.aten


def recompute_attention(graph: Graph, backward: set[Node], seeded: SeededCode, device: DeviceSpec, options: Options) -> None:
    """Rewrites the attentions of a joint graph whose gradients kernels compute faster from logarithms. backward: values of that part.
    seeded: draws further masks."""
    if options.attention_gradients == "library" or options.eager_rounding or device.kind != "cuda":
        return
    judge = _Judge(device, options.attention_gradients == "kernels")
    rewritten = judge.always and _write_out_calls(graph, seeded, judge)
    for attention in list(attentions(graph, backward)):
        if judge.takes(attention):
            _Rewriting(graph, attention).write()
            rewritten = True
    if rewritten:
        graph.eliminate_dead_code()
        for seed in [n for n in seeded.seeds.values() if not n.users]:
            graph.erase_node(seed)


def _write_out_calls(graph: Graph, seeded: SeededCode, judge: _Judge) -> bool:
    """Rewrites the library's calls with dropout whose gradients kernels hold. Returns whether there are any."""
    calls = list(called_attentions(graph))
    for called in calls:
        code = WrittenOut(called, seeded)
        attention = code.attention()
        if judge.takes(attention):
            rewriting = _Rewriting(graph, attention)
            rewriting.write_logarithms()
            code.replace(attention, rewriting.gradients())
    return bool(calls)


@dataclass
class _Judge:
    """Whether kernels compute the gradients, once for attentions that are alike. always: also where they are predicted slower."""

    device: DeviceSpec
    always: bool
    known: dict[Hashable, bool] = field(default_factory=dict)

    def takes(self, of: JointAttention) -> bool:
        """The decision for one attention."""
        types = _types(of)
        if types is None:
            return False
        call = _call(of, types)
        key = call, tuple(types.items())
        if key not in self.known:
            prices = Predictions(self.device)
            inputs = tuple(Input(name, t) for name, t in types.items())
            choice = gradient_choice(call, Expressions("attention", inputs, (), ()), self.device, prices)
            is_faster = self.always or choice.definition is not None and choice.kernels_us < self._kept_us(of, choice, types, prices)
            self.known[key] = choice.definition is not None and is_faster
        return self.known[key]

    def _kept_us(self, of: JointAttention, choice: GradientChoice, types: dict[str, Type], prices: Predictions) -> float:
        """Time of the gradients from a softmax in memory: the library's products, and their operands of all rows and columns, of which the
        product of the values' gradient reads one and a kernel reads two and writes one."""
        b = TensorBuilder("kept")
        q, k, v, g = (b.input(n, types[n].dtype, types[n].shape) for n in ("q", "k", "v", "g"))
        powers = b.input("p", types["q"].dtype, _shape(of.scores))
        products = {"dp": b.matmul(g, v, transpose_b=True)}
        products |= {"dq": b.matmul(powers, k)} if "dq" in choice.results else {}
        products |= {"dk": b.matmul(powers, q, transpose_a=True)} if "dk" in choice.results else {}
        products |= {"dv": b.matmul(powers, g, transpose_a=True)} if "dv" in choice.results else {}
        graph = b.finish(list(products.values()))
        us = sum(prices.product_us(n, graph) for n in graph.nodes if n.category == "library")
        return us + prices.copy_us(3 * types["q"].dtype.itemsize * prod(_shape(of.scores)))


def _types(of: JointAttention) -> dict[str, Type] | None:
    """Types of the call's operands, by the definition's names; None where one is none of ours."""
    *lead, rows, columns = _shape(of.scores)
    width, depth = _shape(of.queries)[-1], _shape(of.values)[-1]
    dtypes = {n.meta["val"].dtype for n in (of.queries, of.keys, of.values, of.result, of.gradient)}
    dtype = DTYPE_BY_TORCH.get(dtypes.pop()) if len(dtypes) == 1 else None
    if dtype is None:
        return None
    types = {name: Type(dtype, (*lead, length, columns_of)) for name, length, columns_of in (
        ("q", rows, width), ("k", columns, width), ("v", columns, depth), ("y", rows, depth), ("g", rows, depth))}
    types["l"] = Type(F32, (*lead, rows, 1))
    if of.mask is not None:
        of_mask = DTYPE_BY_TORCH.get(_numbers_of(of, of.mask) if of.mask.parts else of.mask.value.meta["val"].dtype)
        if of_mask is None or any(not m.is_added and m.value.meta["val"].dtype != torch.bool for m in of.mask.all):
            return None
        types["mask"] = Type(of_mask, _shape_of_mask(of))
    if of.filled is not None:
        if of.filled.value.meta["val"].dtype != torch.bool:
            return None
        types["visible"] = Type(BOOL, _shape(of.filled.value))
    types |= {"seed": Type(I64, (1,))} if of.dropout is not None else {}
    return types | ({"factors": Type(F32, (*lead, rows, 1))} if _has_factors(of) else {})


def _call(of: JointAttention, types: dict[str, Type]) -> AttentionGradientCall:
    """The call by the definition's names."""
    results = [name if node is not None else "" for name, node in zip(("dq", "dk", "dv"), _products(of), strict=True)]
    drop = of.dropout
    return AttentionGradientCall("g", "q", "k", "v", "y", "l", "mask" if of.mask else "", of.scale, False, "own",
                                 (results[0], results[1], results[2], "db" if of.readers else ""), 1,
                                 drop.probability if drop else 0.0, "seed" if drop else "",
                                 drop.number if drop else 0, "factors" if "factors" in types else "",
                                 _dtype_of_mask(of) == torch.float32 and types["q"].dtype != F32, "visible" if of.filled else "",
                                 of.filled.fill if of.filled else 0.0)


def _numbers_of(of: JointAttention, mask: Mask) -> torch.dtype:
    """The type of the sum of several masks; those that hide have the numbers of others, or the scores'."""
    types = [m.value.meta["val"].dtype for m in mask.all if m.is_added]
    return functools.reduce(torch.promote_types, types) if types else of.scores.meta["val"].dtype


def _shape_of_mask(of: JointAttention) -> tuple[int, ...]:
    """Extents of the mask, or of the sum of several: as many as the softmax has where one is added to scores of another shape."""
    assert of.mask is not None
    if any(shape_of(scores) != shape_of(of.softmax) for _, scores in of.mask.parts):
        return _shape(of.scores)
    return tuple(torch.broadcast_shapes(*(_shape(m.value) for m in of.mask.all)))


def _dtype_of_mask(of: JointAttention) -> torch.dtype | None:
    """The type of the mask's gradient, the widest that a reader has; None where nothing reads it."""
    return max((x.meta["val"].dtype for _, x in of.readers), key=lambda t: t.itemsize, default=None)


def _shape(node: Node) -> tuple[int, ...]:
    """Extents in the traced call."""
    return tuple(map(known_size, node.meta["val"].shape))


def _products(of: JointAttention) -> tuple[Node | None, Node | None, Node | None]:
    return of.of_queries, of.of_keys, of.of_values


def _has_factors(of: JointAttention) -> bool:
    """Whether scores may be of a size at which logarithms are inexact: a mask may hide a row whole with a large number."""
    return of.mask is not None and of.mask.is_added or of.filled is not None


class _Rewriting(JointCode):
    """The statements of one attention."""

    def __init__(self, graph: Graph, of: JointAttention) -> None:
        super().__init__(graph, of.softmax.meta["val"].fake_mode)
        self.of = of

    def write_logarithms(self) -> None:
        """The logarithms beside the softmax."""
        with self.graph.inserting_before(self.of.softmax.next):
            self.notes = _notes(self.of.softmax)
            self.logarithms, self.factors = self._logarithms()

    def write(self) -> None:
        """The logarithms beside the softmax, and the call in place of the products that give gradients."""
        of = self.of
        self.write_logarithms()
        # Every operand of the products that give gradients stands before the first of them.
        order = {node: at for at, node in enumerate(self.graph.nodes)}
        users = sorted((n for n in of.gradient.users if n.target is _ATEN.bmm.default), key=order.__getitem__)
        with self.graph.inserting_before(users[0]):
            self.notes = _notes(users[0])
            for product, gradient in zip(_products(of), self.gradients(), strict=True):
                if product is not None:
                    product.replace_all_uses_with(gradient)
        for reader, x in of.readers:
            with self.graph.inserting_before(reader):
                shape, dtype = x.meta["val"].shape, x.meta["val"].dtype
                form = self.call(_ATEN.view.default, self.of_mask, self.extents(shape))
                form = form if form.meta["val"].dtype == dtype else self.call(_ATEN._to_copy.default, form, dtype=dtype)
                reader.replace_input_with(x, form)

    def _logarithms(self) -> tuple[Node, Node | None]:
        """Logarithms of the rows' sums; and factors of the powers, where these are inexact.

        greatest m, sum t of exp(s - m):   l = m + log(t) rounded,   factor = exp((l - m) - log(t))

        A row of scores that are all -3e38 has l = m, powers exp(s - l) = 1, and the factor 1 / columns. Where rows of nothing but -inf have
        zeros, their logarithm is -inf. Maxima and sums are written as the softmax has them, so that kernels have them once.
        """
        scores = self.call(_ATEN._to_copy.default, self.of.scores, dtype=torch.float32)
        is_safe = self.of.softmax.target is _ATEN._safe_softmax.default
        if is_safe and not _has_factors(self.of):
            return self.call(_ATEN.logsumexp.default, scores, [-1], True), None
        m = self.call(_ATEN.amax.default, scores, [-1], True)
        of_zero = self.call(_ATEN.full.default, [], 0.0, dtype=torch.float32, device=scores.meta["val"].device)
        m = self.call(_ATEN.where.self, self.call(_ATEN.eq.Scalar, m, float("-inf")), of_zero, m) if is_safe else m
        powers = self.call(_ATEN.exp.default, self.call(_ATEN.sub.Tensor, scores, m))
        sums = self.call(_ATEN.log.default, self.call(_ATEN.sum.dim_IntList, powers, [-1], True))
        logarithms = self.call(_ATEN.add.Tensor, m, sums)
        if not _has_factors(self.of):
            return logarithms, None
        difference = self.call(_ATEN.sub.Tensor, self.call(_ATEN.sub.Tensor, logarithms, m), sums)
        factors = self.call(_ATEN.exp.default, difference)
        hidden = self.call(_ATEN.eq.Scalar, logarithms, float("-inf"))
        return logarithms, self.call(_ATEN.where.self, hidden, of_zero, factors) if is_safe else factors

    def _visible(self, mask: Mask | None) -> Node | None:
        """A mask as the operator takes it: true where scores are visible, or numbers."""
        if mask is not None and mask.parts:
            return self._sum_of(mask)
        if mask is None or mask.is_added or mask.is_visible:
            return None if mask is None else mask.value
        return self.call(_ATEN.logical_not.default, mask.value)

    def _sum_of(self, mask: Mask) -> Node:
        """Several masks as one, as windows have a bias of heads and a mask of their own: in the softmax's shape where they are added to
        scores of another shape."""
        total: Node | None = None
        for of_part, scores in mask.parts:
            part = of_part.value if of_part.is_added else self._as_numbers(of_part)
            if shape_of(scores) != shape_of(self.of.softmax):
                part = self.call(_ATEN.clone.default, self.call(_ATEN.expand.default, part, self.extents(scores.meta["val"].shape)),
                                 memory_format=torch.contiguous_format)
                part = self.call(_ATEN.view.default, part, self.extents(self.of.softmax.meta["val"].shape))
            total = part if total is None else self.call(_ATEN.add.Tensor, total, part)
        assert total is not None
        return total

    def _as_numbers(self, mask: Mask) -> Node:
        """A mask that hides, as numbers that are added: 0 where scores are visible, else -inf."""
        assert self.of.mask is not None
        dtype, device = _numbers_of(self.of, self.of.mask), self.of.scores.meta["val"].device
        of_hidden, of_others = (self.call(_ATEN.full.default, [], x, dtype=dtype, device=device) for x in (-math.inf, 0.0))
        sides = (of_others, of_hidden) if mask.is_visible else (of_hidden, of_others)
        return self.call(_ATEN.where.self, mask.value, *sides)

    def gradients(self) -> Iterator[Node]:
        """Gradients of the queries, the turned keys and the values, of three dimensions like the products' operands.

        Requires: `write_logarithms` came before.
        """
        of, drop = self.of, self.of.dropout
        lead = self.of.scores.meta["val"].shape[:-2]
        keys = self.call(_ATEN.transpose.int, of.keys, 1, 2)
        g, q, k, v, y = (self.call(_ATEN.view.default, x, self.extents((*lead, *x.meta["val"].shape[1:])))
                         for x in (of.gradient, of.queries, keys, of.values, of.result))
        mask, visible = (self._visible(m) for m in (of.mask, of.filled))
        called = self.call(ATTENTION_BACKWARD, g, q, k, v, y, self.logarithms, mask, self.factors, drop.seed if drop else None,
                           drop.number if drop else 0, drop.probability if drop else 0.0, False, of.scale, _dtype_of_mask(of),
                           visible, of.filled.fill if of.filled else 0.0)
        if of.readers:
            self.of_mask = self.call(operator.getitem, called, 3)
        for n, x in enumerate((of.queries, keys, of.values)):
            gradient = self.call(_ATEN.view.default, self.call(operator.getitem, called, n), self.extents(x.meta["val"].shape))
            yield self.call(_ATEN.transpose.int, gradient, 1, 2) if x is keys else gradient


def _notes(node: Node) -> dict[str, object]:
    """Notes for nodes beside a node: among them, the checkpoint that computes it again."""
    inherited = ("partitioner_tag", "recompute", "ac_graph_id", "stack_trace", "nn_module_stack", "seq_nr")
    return {k: node.meta[k] for k in inherited if k in node.meta}
