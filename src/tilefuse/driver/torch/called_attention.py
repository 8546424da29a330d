"""Calls of attention with dropout in a training step, written out: products, softmax, a mask of a known seed, gradients from logarithms.

    y, l, ... = _scaled_dot_product_flash_attention(q, k, v, p)              s = bmm(q, k') * scale, masked        w = dropout(softmax(s))
    dq, dk, dv = .._backward(g, q, k, v, y, l, ..., p)               ->      y = bmm(w, v)      dq, dk, dv = attention_backward(...)

The library's random numbers are its own, so only both sides together can be kernels of ours. They are taken with the option
`attention_gradients=kernels`, where kernels hold the gradients: nothing has timed the library's dropout.
"""
from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from tilefuse.driver.torch.attention_forms import Dropout, JointAttention, Mask, of_zeros
from tilefuse.driver.torch.joint_code import JointCode, shape_of
from tilefuse.driver.torch.redrawn import SeededCode
from tilefuse.frontends.torch.own.random_numbers import RANDOM_BELOW
from tilefuse.ir.library.attention_call import TORCH_ARGUMENTS as FORWARD
from tilefuse.ir.library.attention_gradient_call import TORCH_ARGUMENTS as BACKWARD

_ATEN = torch.ops.aten
NUM_GRADIENTS = 3


@dataclass(frozen=True)
class CalledAttention:
    """A call of the forward pass and the one of its gradients, with their arguments by torch's names of them."""

    forward: Node
    backward: Node
    arguments: dict[str, Any]

    def result(self, of: Node, number: int) -> Node | None:
        """The node with one result of a call."""
        return next((u for u in of.users if u.target is operator.getitem and u.args[1] == number), None)


def called_attentions(graph: Graph) -> Iterator[CalledAttention]:
    """Calls with dropout whose further results, as logarithms and the library's random state, only their gradients read; none over named
    sizes."""
    for library, (name, names) in FORWARD.items():
        for forward in graph.find_nodes(op="call_function", target=_operator(name)):
            arguments = dict(zip(("query", "key", "value", *names), forward.args, strict=False)) | forward.kwargs
            behind = {u for x in forward.users if x.args[1:] != (0,) for u in x.users}
            target = _operator(BACKWARD[library][0])
            if arguments.get("dropout_p") and len(behind) == 1 and all(u.target is target for u in behind):
                called = CalledAttention(forward, behind.pop(), arguments)
                if _is_whole(called):
                    yield called


def _is_whole(called: CalledAttention) -> bool:
    """Whether the gradients asked for are those of queries, keys and values, of heads that agree."""
    q, k, v = (shape_of(called.arguments[n]) for n in ("query", "key", "value"))
    numbers = [u.args[1] for u in called.backward.users if u.users]
    if not all(isinstance(e, int) for e in (*q, *k)):
        return False
    alike = len(q) == len(k) == len(v) == 4 and q[:2] == k[:2] == v[:2] and k[2] == v[2]
    return alike and called.result(called.forward, 0) is not None and all(isinstance(n, int) and n < NUM_GRADIENTS for n in numbers)


def _operator(name: str) -> Any:
    """The operator "aten.name.overload"."""
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


class WrittenOut(JointCode):
    """Statements in the place of one call. seeded: draws its mask."""

    def __init__(self, called: CalledAttention, seeded: SeededCode) -> None:
        super().__init__(seeded.graph, called.arguments["query"].meta["val"].fake_mode)
        self.called, self.seeded = called, seeded
        seeded.mode = self.mode

    def replace(self, of: JointAttention, gradients: Iterator[Node]) -> None:
        """Puts the statements' result and gradients in place of the calls'. of: of `attention`; gradients: of the queries, of the turned
        keys, and of the values, which are written before the call of the gradients."""
        called = self.called
        with self.graph.inserting_before(called.forward):
            self._take_place(called.result(called.forward, 0), of.result)
        with self.graph.inserting_before(called.backward):
            for n, gradient in enumerate(gradients):
                self._take_place(called.result(called.backward, n), self.call(_ATEN.transpose.int, gradient, 1, 2) if n == 1 else gradient)
        for call in (called.backward, called.forward):
            for result in list(call.users):
                self.graph.erase_node(result)
            self.graph.erase_node(call)

    def _take_place(self, old: Node | None, joined: Node) -> None:
        """Replaces a result, laid out as torch had it, so that views of it stay views."""
        if old is None:
            return
        value = old.meta["val"]
        x = self.call(_ATEN.view.default, joined, self.extents(value.shape))
        order = sorted(range(value.dim()), key=lambda d: -value.stride(d))
        if order != list(range(value.dim())):
            laid = self.call(_ATEN.clone.default, self.call(_ATEN.permute.default, x, order), memory_format=torch.contiguous_format)
            x = self.call(_ATEN.permute.default, laid, [order.index(d) for d in range(value.dim())])
        old.replace_all_uses_with(x)

    def attention(self) -> JointAttention:
        """The statements of both products, the softmax and the mask, as one attention; its result has no reader yet."""
        called, arguments = self.called, self.called.arguments
        probability = float(arguments["dropout_p"])
        drawn = self.seeded.next_number(called.forward, arguments["query"].meta["val"].device)
        with self.graph.inserting_before(called.forward):
            q, k, v = (self._joined(arguments[n]) for n in ("query", "key", "value"))
            keys = self.call(_ATEN.transpose.int, k, 1, 2)
            product = self.call(_ATEN.bmm.default, q, keys)
            lead = arguments["query"].meta["val"].shape[:2]
            scores = self.call(_ATEN.view.default, product, self.extents((*lead, *product.meta["val"].shape[1:])))
            scale = arguments.get("scale")
            scale = float(scale) if scale is not None else q.meta["val"].shape[-1] ** -0.5
            scores, mask = self._masked(self.call(_ATEN.mul.Tensor, scores, scale))
            # Rows that a mask hides whole are zeros.
            of_softmax = (_ATEN._softmax.default, scores, -1, False) if mask is None else (_ATEN._safe_softmax.default, scores, -1)
            softmax = self.call(*of_softmax)
            is_left = self.call(RANDOM_BELOW, *drawn, self.extents(scores.meta["val"].shape), 1.0 - probability)
            factor = 1.0 / (1.0 - probability)
            dropped = self.call(_ATEN.where.self, is_left, self.call(_ATEN.mul.Tensor, softmax, factor), self._number(0.0, softmax))
            weights = self.call(_ATEN.view.default, dropped, self.extents(product.meta["val"].shape))
            result = self.call(_ATEN.bmm.default, weights, v)
        with self.graph.inserting_before(called.backward):
            gradient = self._joined(called.backward.args[0])
        dropout = Dropout(is_left, factor, probability, *drawn)
        gradients = [called.result(called.backward, n) for n in range(NUM_GRADIENTS)]
        return JointAttention(softmax, scores, q, keys, v, result, gradient, scale, mask, dropout, gradients[0], gradients[1], gradients[2])

    def _joined(self, x: Any) -> Node:
        """A value of all heads of all batches along one dimension."""
        batch, heads, rows, width = x.meta["val"].shape
        return self.call(_ATEN.reshape.default, x, self.extents((batch * heads, rows, width)))

    def _masked(self, scores: Node) -> tuple[Node, Mask | None]:
        """The scores with the call's bias, or with a causal mask."""
        bias, is_causal = self.called.arguments.get("attn_bias"), self.called.arguments.get("is_causal")
        rows, columns = scores.meta["val"].shape[-2:]
        lowest = self._number(float("-inf"), scores)
        if bias is not None:
            mask = of_zeros(bias) or Mask(bias, is_added=True)
            if mask.is_added:
                return self.call(_ATEN.add.Tensor, scores, bias), mask
            sides = (scores, lowest) if mask.is_visible else (lowest, scores)
            return self.call(_ATEN.where.self, mask.value, *sides), mask
        if not is_causal:
            return scores, None
        row, column = (self._places(n, scores) for n in (rows, columns))
        visible = self.call(_ATEN.ge.Tensor, self.call(_ATEN.unsqueeze.default, row, 1), column)
        return self.call(_ATEN.where.self, visible, scores, lowest), Mask(visible, is_visible=True)

    def _places(self, count: int | torch.SymInt, like: Node) -> Node:
        extent, = self.extents((count,))
        return self.call(torch.ops.prims.iota.default, extent, start=0, step=1, dtype=torch.int64, device=like.meta["val"].device,
                         requires_grad=False)

    def _number(self, number: float, like: Node) -> Node:
        value = like.meta["val"]
        return self.call(_ATEN.full.default, [], number, dtype=value.dtype, device=value.device)
