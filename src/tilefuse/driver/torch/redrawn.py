"""Random numbers that the backward part of a step needs, as functions of a seed: the part draws them again instead of reading them.

    y, m = native_dropout(x, p)       seed = random_seed()              one a device, saved: 8 bytes
                                ->    m = random_below(seed, n, shape, 1 - p)
                                      y = where(m, x / (1 - p), 0)

`driver/torch/partition.py` then decides like for any other value whether the mask is saved or drawn again. Operator n of the graph has the
key seed + n, so both draws are equal bit by bit, whichever call of the backward it is.
"""
from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy

from tilefuse.driver.torch.joint_code import JointCode, readers
from tilefuse.frontends.torch.own.random_numbers import RANDOM_BELOW, RANDOM_NORMAL, RANDOM_SEED, RANDOM_UNIFORM

_ATEN = torch.ops.aten
_DROPOUT = _ATEN.native_dropout.default
# Notes of a node that the partition reads: its checkpoint and its part of the step.
_INHERITED = ("recompute", "ac_graph_id", "partitioner_tag", "stack_trace", "original_aten", "nn_module_stack", "seq_nr")


def draw_by_seed(graph: Graph, backward: set[Node]) -> SeededCode:
    """Rewrites, in a joint graph, the random operators of the forward with a reader in the backward; returns the code, which may draw more.

    backward: values of that part.
    """
    code = SeededCode(graph)
    for node in list(graph.nodes):
        if node.op != "call_function" or node in backward or not _is_drawn_here(node):
            continue
        if any(reader in backward for reader in readers(node)):
            code.replace(node)
    return code


def _is_drawn_here(node: Node) -> bool:
    if node.target is _DROPOUT:
        return node.args[2] is not False and node.meta["val"][0].is_floating_point()
    return node.target in _DRAWS and node.kwargs.get("generator") is None and node.meta["val"].is_floating_point()


@dataclass
class SeededCode(JointCode):
    """Statements put before the operator that they replace. seeds: by device; number: of operators replaced so far."""

    seeds: dict[torch.device, Node] = field(default_factory=dict)
    number: int = 0

    def replace(self, node: Node) -> None:
        """The operator as statements, in its place."""
        value = _first(node)
        self.mode = value.fake_mode
        self.next_number(node, value.device)
        with self.graph.inserting_before(node):
            self.notes = {k: node.meta[k] for k in _INHERITED if k in node.meta}
            if node.target is _DROPOUT:
                results = self._dropout(node, value)
            else:
                drawn = _DRAWS[node.target](self, node, value)
                results = [drawn if drawn.meta["val"].dtype == value.dtype else self.call(_ATEN._to_copy.default, drawn, dtype=value.dtype)]
        if node.target is not _DROPOUT:
            node.replace_all_uses_with(results[0])
        for user in list(node.users):
            assert user.target is operator.getitem and isinstance(user.args[1], int)
            user.replace_all_uses_with(results[user.args[1]])
            self.graph.erase_node(user)
        self.graph.erase_node(node)

    def next_number(self, node: Node, device: torch.device) -> tuple[Node, int]:
        """The seed of a device, and a number of its own for an operator in the place of a node."""
        if device not in self.seeds:
            with self.graph.inserting_before(next(n for n in self.graph.nodes if n.op != "placeholder")):
                self._draw_seed(node, device)
        self.number += 1
        return self.seeds[device], self.number

    def _draw_seed(self, node: Node, device: torch.device) -> None:
        """The seed of a device: saved, also where a checkpoint asks to compute its part again."""
        self.notes = {k: node.meta[k] for k in ("partitioner_tag", "ac_graph_id") if k in node.meta}
        if "recompute" in node.meta:
            self.notes["recompute"] = CheckpointPolicy.MUST_SAVE
        self.seeds[device] = self.call(RANDOM_SEED, device)

    def _dropout(self, node: Node, value: torch.Tensor) -> list[Node]:
        """Results of a dropout: the scaled elements, and which of them are kept."""
        x, p = node.args[:2]
        assert isinstance(p, float | int)
        mask = self.drawn(RANDOM_BELOW, value, 1.0 - p)
        scaled = self.call(_ATEN.mul.Tensor, x, 1.0 / (1.0 - p) if p < 1.0 else 0.0)
        return [self.call(_ATEN.where.self, mask, scaled, self._zero(value)), mask]

    def _zero(self, value: torch.Tensor) -> Node:
        return self.call(_ATEN.full.default, [], 0.0, dtype=value.dtype, device=value.device)

    def drawn(self, target: Any, value: torch.Tensor, *further: float) -> Node:
        """Random numbers of the shape of a value."""
        return self.call(target, self.seeds[value.device], self.number, self.extents(value.shape), *further)

    def scaled(self, x: Node, factor: float, offset: float) -> Node:
        """x * factor + offset."""
        x = x if factor == 1.0 else self.call(_ATEN.mul.Tensor, x, factor)
        return x if offset == 0.0 else self.call(_ATEN.add.Tensor, x, offset)


def _first(node: Node) -> torch.Tensor:
    value = node.meta["val"]
    first: torch.Tensor = value[0] if isinstance(value, tuple | list) else value
    return first


def _argument(node: Node, n: int, default: float) -> float:
    value = node.args[n] if n < len(node.args) else default
    assert isinstance(value, float | int)
    return float(value)


def _bernoulli(code: SeededCode, node: Node, value: torch.Tensor) -> Node:
    if node.target is _ATEN.bernoulli.p:
        return code.drawn(RANDOM_BELOW, value, _argument(node, 1, 0.5))
    return code.call(_ATEN.lt.Tensor, code.drawn(RANDOM_UNIFORM, value), node.args[0])


def _uniform(code: SeededCode, node: Node, value: torch.Tensor) -> Node:
    low, high = _argument(node, 1, 0.0), _argument(node, 2, 1.0)
    return code.scaled(code.drawn(RANDOM_UNIFORM, value), high - low, low)


def _normal(code: SeededCode, node: Node, value: torch.Tensor) -> Node:
    return code.scaled(code.drawn(RANDOM_NORMAL, value), _argument(node, 2, 1.0), _argument(node, 1, 0.0))


_Draw = Callable[[SeededCode, Node, torch.Tensor], Node]
_DRAWS: dict[Any, _Draw] = {
    _ATEN.bernoulli.default: _bernoulli, _ATEN.bernoulli.p: _bernoulli, _ATEN.uniform.default: _uniform,
    _ATEN.normal_functional.default: _normal,
    **{op: lambda code, node, value: code.drawn(RANDOM_UNIFORM, value) for op in (_ATEN.rand.default, _ATEN.rand_like.default)},
    **{op: lambda code, node, value: code.drawn(RANDOM_NORMAL, value) for op in (_ATEN.randn.default, _ATEN.randn_like.default)},
}
