"""Chooses the values that a training step saves between forward and backward: a minimum cut of the joint graph, weighted by memory traffic.

    saved          a write unless the value is written anyway, a read, and memory until the backward reads it
    recomputed     arithmetic; reads of the operands where a reduction reads them or where they were used far ahead; a write and a read
                   where a library operator of the backward reads it
    always saved   results of library operators, seeds of random numbers, and results of torch itself

Views and detached values are free. Random numbers that the backward needs are functions of a saved seed (`driver/torch/redrawn.py`), and
recomputed like other values. The cut decides; torch's partitioner gets the decision node by node and divides the graph: it keeps effects
and writes into arguments in order. Graphs with user checkpoints are left to torch.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule, Node

from tilefuse.base.options import Options
from tilefuse.driver.torch.attention_steps import recompute_attention
from tilefuse.driver.torch.joint_code import known_size
from tilefuse.driver.torch.pool_places import keep_near_places
from tilefuse.driver.torch.redrawn import draw_by_seed
from tilefuse.frontends.torch import ops_library, ops_loss, ops_norm, ops_pool, ops_random, ops_reduce, ops_search
from tilefuse.frontends.torch.ops import TORCH_OPS
from tilefuse.frontends.torch.own.attention import ATTENTION_BACKWARD, MASK_OPERAND
from tilefuse.frontends.torch.own.random_numbers import RANDOM_BELOW, RANDOM_NORMAL, RANDOM_UNIFORM
from tilefuse.ir.ops import RANDOM_NUMBERS_A_CALL, SCALAR_OPS
from tilefuse.target.device import DeviceSpec

# Operators that share their operand's memory, and those whose result covers all of it.
WHOLE_VIEWS = frozenset({"view", "_unsafe_view", "permute", "transpose", "t", "expand", "squeeze", "unsqueeze", "alias", "detach",
                         "unfold", "view_as", "reshape", "numpy_T", "lift_fresh"})
VIEWS = WHOLE_VIEWS | {"slice", "select", "split", "split_with_sizes", "unbind", "as_strided", "diagonal", "chunk", "narrow"}
# Operations per element: functions by series, roots and quotients, and all others. Source: the operator table's own counts.
SLOW = frozenset({"exp", "expm1", "log", "log1p", "log2", "log10", "tanh", "sigmoid", "erf", "erfc", "sin", "cos", "tan", "pow", "gelu",
                  "silu", "softplus", "mish", "elu", "native_layer_norm", "native_group_norm", "_softmax", "_log_softmax"})
SLOW_FLOPS, FLOPS = 12, 2
# Operators whose result is a function of a seed and of each element's place, by the scalar functions that they apply.
DRAWS = {RANDOM_UNIFORM: "random_uniform", RANDOM_BELOW: "random_bits", RANDOM_NORMAL: "random_normal"}
# Operators with kernels of their own that add to memory; nothing is fused with them.
SCATTERS = frozenset({"index_put", "scatter", "scatter_add", "scatter_reduce", "embedding_dense_backward"})
# Modules whose lowerings no fused kernel computes, and modules whose lowerings reduce.
LIBRARY_OPS = frozenset(m.__name__ for m in (ops_library, ops_random, ops_search))
REDUCING_OPS = frozenset(m.__name__ for m in (ops_reduce, ops_norm, ops_loss, ops_pool))
# Bytes of saved memory that count as one byte of traffic: of two choices with equal traffic, the one that saves less memory is chosen.
TIE = 1024
# Cost of recomputing from an argument that the forward overwrites: so high that the value is always saved.
NEVER = 1 << 60
DEFAULTS = Options()


def without_detached(graph: torch.fx.Graph) -> None:
    """Removes detach nodes: their value is the same, and the partitioner would save it beside or instead of the operands.

    A detached value that is a result itself stays.
    """
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.detach.default and isinstance(node.args[0], Node):
            node.replace_all_uses_with(node.args[0], delete_user_cb=lambda user: user.op != "output")
            if not node.users:
                graph.erase_node(node)


def prepare(joint: GraphModule, num_results: int, static: Iterable[int], device: DeviceSpec, options: Options = DEFAULTS
            ) -> bool:
    """Marks every value of the forward as saved or recomputed, for torch's partitioner; False where the choice is left to torch.

    num_results: number of the joint graph's outputs that are the forward's. static: numbers of arguments that stay in memory anyway.
    Symbolic sizes count as those of the first call. Steps with user checkpoints are left to torch.
    """
    from torch._functorch.compile_utils import fx_graph_cse
    from torch.utils.checkpoint import CheckpointPolicy

    without_detached(joint.graph)
    joint.graph.eliminate_dead_code()
    keep_near_places(joint.graph)
    joint.graph = fx_graph_cse(joint.graph)
    seeded = draw_by_seed(joint.graph, Step(joint.graph, num_results, frozenset(static), device).backward)
    backward = Step(joint.graph, num_results, frozenset(static), device).backward
    recompute_attention(joint.graph, backward, seeded, device, options)
    if any("recompute" in n.meta for n in joint.graph.nodes):
        return False
    step = Step(joint.graph, num_results, frozenset(static), device)
    if not step.tangents:
        return False
    again = step.made_again()
    for node in joint.graph.nodes:
        if node.op == "call_function" and node not in step.backward and not _is_size(node):
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE if node in again else CheckpointPolicy.MUST_SAVE
    return True


@dataclass
class Step:
    """A joint graph with the costs of its values. Units: bytes moved through global memory; other costs are converted to such bytes."""

    graph: torch.fx.Graph
    num_results: int
    static: frozenset[int]
    device: DeviceSpec
    level: dict[Node, int] = field(default_factory=dict)

    @cached_property
    def tangents(self) -> list[Node]:
        """Gradients of the results: arguments of the backward."""
        return [n for n in self.graph.nodes if n.op == "placeholder" and "tangents" in str(n.target)]

    @cached_property
    def backward(self) -> set[Node]:
        """Values that need a gradient of a result, or that torch marks for the backward."""
        backward: set[Node] = set(self.tangents)
        for node in self.graph.nodes:
            if node.op != "output" and (not backward.isdisjoint(node.all_input_nodes) or _is_tagged_backward(node)):
                backward.add(node)
        return backward

    @cached_property
    def _results(self) -> tuple[list[Any], list[Any]]:
        listed = self.graph.output_node().args[0]
        assert isinstance(listed, list | tuple)
        return list(listed[:self.num_results]), list(listed[self.num_results:])

    @cached_property
    def forward(self) -> set[Node]:
        """Values that the results and the writes into arguments need."""
        todo = [n for n in self._results[0] if isinstance(n, Node)]
        todo += [n for n in self.graph.nodes if _writes(n) and n not in self.backward]
        forward: set[Node] = set()
        while todo:
            node = todo.pop()
            if node not in forward:
                forward.add(node)
                todo.extend(node.all_input_nodes)
        return forward

    @cached_property
    def overwritten(self) -> set[Node]:
        """Arguments that the forward writes into."""
        return {n.args[0] for n in self.graph.nodes if _writes(n) and n.args and isinstance(n.args[0], Node)}

    def made_again(self) -> set[Node]:
        """Values that the backward recomputes, by the minimum cut. Cost: one maximum flow over the undecided values."""
        import networkx

        flow = networkx.DiGraph()
        flow.add_nodes_from(("source", "sink"))
        for node in self.graph.nodes:
            if node.op == "output" or node in self.backward:
                continue
            again, kept = self.remaking(node), self.keeping(node)
            always = again is None and (node in self.forward or node.op == "placeholder")
            # Saving a value that only the backward needs would make the forward compute it.
            before, after = "source" if always else (node, "in"), (node, "out")
            if not always and again:
                _add(flow, "source", before, again)
                if node not in self.forward:
                    _add(flow, before, "sink", again)
            _add(flow, before, after, kept)
            for user in node.users:
                if user in self.backward or user.op == "output" and node in self._results[1]:
                    _add(flow, after, "sink", None)
                elif user.op != "output" and not self._is_always_kept(user):
                    _add(flow, after, (user, "in"), None)
        _, (kept_side, _) = networkx.minimum_cut(flow, "source", "sink")
        return self._needed({n for n in self.graph.nodes if (n, "in") in flow and (n, "in") not in kept_side})

    def _is_always_kept(self, node: Node) -> bool:
        """Whether the backward never recomputes the node, and so needs none of its operands."""
        return node in self.forward and self.remaking(node) is None

    def _needed(self, again: set[Node]) -> set[Node]:
        """The backward values that are really needed, directly or through others."""
        todo = [i for n in self.backward for i in n.all_input_nodes] + [n for n in self._results[1] if isinstance(n, Node)]
        needed: set[Node] = set()
        while todo:
            node = todo.pop()
            if node in again and node not in needed:
                needed.add(node)
                todo.extend(node.all_input_nodes)
        return needed

    def keeping(self, node: Node) -> int | None:
        """Cost of saving a value; None where it cannot be saved, or where its operand, whose memory it shares, is saved too."""
        if _is_size(node):
            return 0
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or _op(node) in WHOLE_VIEWS and node.op == "call_function":
            return None
        if node in self.overwritten:
            return NEVER
        size = _num_bytes(value)
        operand_bytes = 0 if node.op == "placeholder" and self._numbers[node] in self.static else size
        return size * (1 if self.in_memory(node) else 2) * TIE + operand_bytes

    def remaking(self, node: Node) -> int | None:
        """Cost of recomputing a value in the backward; None where that is forbidden."""
        if node.op != "call_function" or _writes(node):
            return None
        op = _op(node)
        if op == "getitem" or op in VIEWS or _is_size(node):
            return 0
        if self.is_library(node):
            return None
        value = node.meta.get("val")
        size = max((_num_bytes(v) for v in _tensors(value)), default=0)
        count = max((known_size(v.numel()) for v in _tensors(value)), default=0)
        operands = [i for i in node.all_input_nodes if _tensors(i.meta.get("val"))]
        moved = count * _flops(node) * self.device.global_bytes_per_s / max(self.device.flops_per_s, 1.0)
        if self.is_reduction(node):
            moved += sum(_num_bytes(v) for i in operands for v in _tensors(i.meta["val"]))
        if any(user in self.backward and self.is_library(user) and not _computes(user, node) for user in _users(node)):
            moved += 2 * size
        if self.has_far_users(node):
            moved += 2 * size
        moved += sum(_num_bytes(v) for i in operands if self.is_far(i, node) for v in _tensors(i.meta["val"]))
        return int(moved * TIE)

    def in_memory(self, node: Node) -> bool:
        """Whether the forward writes the value anyway: arguments, results, operands and results of library operators, values with distant
        users."""
        if node.op == "placeholder" or node in self._results[0] or self.is_library(_maker(node)):
            return True
        return any(u in self.forward and self.is_library(u) for u in _users(node)) or self.has_far_users(node)

    def is_library(self, node: Node) -> bool:
        """Whether no fused kernel computes the node: the library or torch does, or random bits must be drawn once."""
        if node.op != "call_function" or _op(node) in VIEWS or _op(node) == "getitem":
            return False
        lowering = TORCH_OPS.get(_full_name(node))
        if lowering is None or _op(node) in SCATTERS:
            return True
        return lowering.__module__ in LIBRARY_OPS

    def is_reduction(self, node: Node) -> bool:
        """Whether the node needs all of an operand before it produces any result."""
        lowering = TORCH_OPS.get(_full_name(node))
        return lowering is not None and lowering.__module__ in REDUCING_OPS

    def depth(self, node: Node) -> int:
        """Library operators on the longest way from the arguments to a value."""
        if not self.level:
            for n in self.graph.nodes:
                self.level[n] = max((self.level[i] for i in n.all_input_nodes), default=0) + (1 if self.is_library(n) else 0)
        return self.level[node]

    def has_far_users(self, node: Node) -> bool:
        """Whether kernels of the forward use a value both before and after a library operator that needs it."""
        users = [u for u in _users(node) if u in self.forward and not self.is_library(u)]
        return len({self.depth(u) for u in users}) > 1 and not self.is_spread(node)

    def is_spread(self, node: Node) -> bool:
        """Whether kernels compute a value where they read it, as the sum of a bias of heads and a mask of columns: from less than half of
        its bytes, for readers with as many elements."""
        if node.op != "call_function" or _op(node) in VIEWS or self.is_library(node) or self.is_reduction(node):
            return False
        num_bytes = sum(_num_bytes(v) for v in _tensors(node.meta.get("val")))
        read_bytes = sum(_num_bytes(v) for i in node.all_input_nodes for v in _tensors(i.meta.get("val")))
        return 2 * read_bytes < num_bytes and all(_computes(u, node) or _num_elements(u) == _num_elements(node) for u in _users(node))

    def is_far(self, operand: Node, node: Node) -> bool:
        """Whether other kernels used an operand before a library operator that precedes the node."""
        if operand.op == "placeholder" or not self.has_far_users(operand):
            return False
        return self.depth(node) > min(self.depth(u) for u in _users(operand) if u in self.forward and not self.is_library(u))

    @cached_property
    def _numbers(self) -> dict[Node, int]:
        return {n: i for i, n in enumerate(self.graph.find_nodes(op="placeholder"))}


def _add(flow: Any, one: object, other: object, cost: int | None) -> None:
    """Adds an edge; None stands for infinite capacity, which networkx expresses by a missing attribute."""
    if cost is None:
        flow.add_edge(one, other)
    else:
        flow.add_edge(one, other, capacity=cost)


def _computes(user: Node, node: Node) -> bool:
    """Whether kernels of an operator compute an operand where they read it: the mask of attention's gradients."""
    return user.target is ATTENTION_BACKWARD and user.args[MASK_OPERAND] is node


def _users(node: Node) -> list[Node]:
    """Nodes that use a value, also through views of it."""
    users: list[Node] = []
    todo = list(node.users)
    while todo:
        user = todo.pop()
        if user.op == "call_function" and (_op(user) in VIEWS or _op(user) == "getitem"):
            todo.extend(user.users)
        elif user.op != "output":
            users.append(user)
    return users


def _maker(node: Node) -> Node:
    """The node that computes a value: itself, or the operator of which it is one result."""
    while node.op == "call_function" and _op(node) == "getitem" and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def _op(node: Node) -> str:
    """Name of an operator without namespace and overload."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target._opname)
    return str(getattr(target, "__name__", target))


def _flops(node: Node) -> float:
    """Operations for each element of a result. Threads with neighbouring elements share a call of the generator where rows begin at one."""
    if node.target in DRAWS:
        shape = node.meta["val"].shape
        shared = shape and known_size(shape[-1]) % RANDOM_NUMBERS_A_CALL == 0
        return SCALAR_OPS[DRAWS[node.target]].flops / (RANDOM_NUMBERS_A_CALL if shared else 1)
    return SLOW_FLOPS if _op(node) in SLOW else FLOPS


def _full_name(node: Node) -> str:
    target = node.target
    return f"{target.namespace}.{target._opname}.{target._overloadname}" if isinstance(target, torch._ops.OpOverload) else str(target)


def _writes(node: Node) -> bool:
    return node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _is_tagged_backward(node: Node) -> bool:
    return str(node.meta.get("partitioner_tag", "")) in ("is_backward", "must_be_in_backward")


def _tensors(value: Any) -> list[torch.Tensor]:
    return [v for v in (value if isinstance(value, tuple | list) else (value,)) if isinstance(v, torch.Tensor)]


def _num_bytes(value: torch.Tensor) -> int:
    return known_size(value.numel()) * int(value.element_size())


def _num_elements(node: Node) -> int:
    return sum(known_size(v.numel()) for v in _tensors(node.meta.get("val")))


def _is_size(node: Node) -> bool:
    """Whether a node is a number and not a tensor: torch carries numbers over itself."""
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float)
