"""Splits a graph in which torch must run some nodes: the nodes between them are compiled in parts.

Torch runs nodes that the IR cannot express: calls that are no operators of the dispatcher (higher-order operators, random states of
gradient checkpoints, ordered effects), tensors of unknown types or layouts, data-dependent sizes. Each node gets a level, one more than its
operands' wherever the two sides meet; the nodes of a level are one part.
"""
from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import tree_leaves

from tilefuse.frontends.torch.nodes import PARTS_BY_COMPLEX, guesses_shape
from tilefuse.frontends.torch.ops import DTYPE_BY_TORCH
from tilefuse.runtime.calls.strided import lies, relaid

Boxed = Callable[[list[Any]], Sequence[Any]]
Function = TypeVar("Function", bound=Callable[..., Any])

_ARGUMENTS = (fx.Node, str, bool, int, float, complex, torch.dtype, torch.device, torch.layout, torch.memory_format, slice)
_NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes of one level as a graph of their own, and the places of its inputs and outputs.

    ours: whether tilefuse compiles it. released: places without later readers.
    """

    module: fx.GraphModule
    ours: bool
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    released: tuple[int, ...]


def marked(run: Function) -> Function:
    """`run` with the mark for torch that it takes its arguments as one list. Torch reads the mark from a function's own attributes."""
    run.__dict__["_boxed_call"] = True
    return run


@dataclass(frozen=True, slots=True)
class Split:
    """A graph in parts, in the order in which they run.

    Parts pass values through numbered places: inputs have the first places, other values follow.
    results: each result's place (None: the constant beside it) and the strides that torch derived (None: unchanged).
    """

    parts: tuple[Part, ...]
    num_inputs: int
    num_places: int
    results: tuple[tuple[int | None, Any, tuple[int, ...] | None], ...]

    def foreign(self) -> list[str]:
        """Names of the operators that torch runs, each once."""
        nodes = (n for part in self.parts if not part.ours for n in part.module.graph.nodes)
        calls = (n for n in nodes if n.op == "call_function" and n.target is not operator.getitem and not _is_write(n))
        return list(dict.fromkeys(map(_name, calls)))

    def joined(self, runs: Sequence[Boxed]) -> Boxed:
        """The whole graph as a boxed callable over its parts."""

        def run(arguments: list[Any]) -> list[Any]:
            values: list[Any] = [*arguments, *[None] * (self.num_places - self.num_inputs)]
            arguments.clear()
            for part, call in zip(self.parts, runs, strict=True):
                operands = [values[at] for at in part.takes]
                for at in part.released:
                    values[at] = None
                for at, result in zip(part.gives, call(operands), strict=True):
                    values[at] = result
            return [constant if at is None else _laid_out(values[at], strides) for at, constant, strides in self.results]

        return marked(run)


def split(gm: fx.GraphModule) -> Split | None:
    """The graph in parts; None where torch must run no node, or a node writes to one of its inputs."""
    calls = [n for n in gm.graph.nodes if n.op == "call_function"]
    guessed = _guessed(calls)
    foreign = {n for n in calls if n in guessed or not _expressible(n)}
    if not foreign or any(n.op in ("call_module", "call_method") for n in gm.graph.nodes) or any(_mutates(n) for n in calls):
        return None
    nodes_at: dict[int, list[fx.Node]] = {}
    for node, level in _levels(calls, foreign).items():
        nodes_at.setdefault(level, []).append(node)
    sides: list[tuple[int, list[fx.Node], list[fx.Node]]] = []
    for level in sorted(nodes_at):
        members = set(nodes_at[level])
        takes = dict.fromkeys(a for n in nodes_at[level] for a in n.all_input_nodes if a not in members and a.op != "get_attr")
        sides.append((level, list(takes), [n for n in nodes_at[level] if any(u not in members for u in n.users)]))
    last_reader = {n: at for at, (_, taken, _) in enumerate(sides) for n in taken}
    inputs = gm.graph.find_nodes(op="placeholder")
    places = {n: at for at, n in enumerate([*inputs, *(n for _, _, gives in sides for n in gives)])}
    parts: list[Part] = []
    for at, (level, taken, gives) in enumerate(sides):
        released = [places[n] for n in taken if last_reader[n] == at and not any(u.op == "output" for u in n.users)]
        module = _module(gm, nodes_at[level], taken, gives)
        parts.append(Part(module, level % 2 == 0, tuple(places[n] for n in taken), tuple(places[n] for n in gives), tuple(released)))
    listed = gm.graph.output_node().args[0]
    assert isinstance(listed, (list, tuple))
    results = tuple((places.get(r) if isinstance(r, fx.Node) else None, _constant(gm, r), None if r in guessed else _strides(r))
                    for r in listed)
    return Split(tuple(parts), len(inputs), len(places), results)


def _levels(calls: Sequence[fx.Node], foreign: set[fx.Node]) -> dict[fx.Node, int]:
    """Even levels are compiled, odd ones run in torch; a node's level is above those of its operands."""
    levels: dict[fx.Node, int] = {}
    writes = [n for n in calls if _is_write(n)]
    for node in calls:
        if _is_write(node):
            continue
        side = 1 if node in foreign else 0
        if node.target is operator.getitem and node.args[0] in foreign:
            foreign.add(node)
            side = 1
        below = [levels[a] for a in node.all_input_nodes if a in levels]
        levels[node] = max((at if at % 2 == side else at + 1 for at in below), default=side)
    # The final value of an updated input is written after the last read of the input.
    return levels | dict.fromkeys(writes, max(levels.values(), default=0) | 1)


def _guessed(calls: Sequence[fx.Node]) -> set[fx.Node]:
    """Nodes whose traced shapes are guesses, directly or through their operands."""
    guessed: set[fx.Node] = set()
    for node in calls:
        if guesses_shape(node) or any(a in guessed for a in node.all_input_nodes):
            guessed.add(node)
    return guessed


def _is_write(node: fx.Node) -> bool:
    return str(node.target) == "aten.copy_.default"


def _name(node: fx.Node) -> str:
    """The operator that a node runs; for ordered effects, the operator with the effect."""
    operators = [a for a in node.args if isinstance(a, torch._ops.OpOverload)]
    return str(operators[0] if operators else node.target)


def _expressible(node: fx.Node) -> bool:
    """Whether an imported graph may contain a node; its operator may still be a library call there."""
    target = node.target
    plain = isinstance(target, torch._ops.OpOverload) or target is operator.getitem
    if not plain and not (getattr(target, "__module__", "") in ("_operator", "math") and isinstance(node.meta.get("val"), _NUMBERS)):
        return False
    if _is_write(node):
        return True
    leaves = tree_leaves((node.args, node.kwargs))
    if not all(a is None or isinstance(a, (*_ARGUMENTS, *_NUMBERS)) for a in leaves):
        return False
    values = [node.meta.get("val"), *(a.meta.get("val") for a in node.all_input_nodes)]
    return all(_has_type(v) for v in tree_leaves(values))


def _has_type(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        known = value.dtype in DTYPE_BY_TORCH or value.dtype in PARTS_BY_COMPLEX
        return known and value.layout == torch.strided and not free_unbacked_symbols(value)
    return value is None or isinstance(value, _NUMBERS) and not free_unbacked_symbols(value)


def _mutates(node: fx.Node) -> bool:
    """Whether a node changes an operand in place, other than as the final update of an input."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return False
    written = node.args[0] if node.args else None
    return not _is_write(node) or not (isinstance(written, fx.Node) and written.op == "placeholder") or bool(node.users)


def _module(gm: fx.GraphModule, nodes: Sequence[fx.Node], takes: Sequence[fx.Node], gives: Sequence[fx.Node]) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in takes:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in nodes:
        for attribute in node.all_input_nodes:
            if attribute.op == "get_attr" and attribute not in copies:
                copies[attribute] = graph.node_copy(attribute)
        copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(tuple(copies[n] for n in gives))
    return fx.GraphModule(gm, graph)


def _constant(gm: fx.GraphModule, result: object) -> Any:
    """A result that no part computes: a number, or a tensor of the module."""
    if not isinstance(result, fx.Node):
        return result
    return operator.attrgetter(str(result.target))(gm) if result.op == "get_attr" else None


def _strides(result: object) -> tuple[int, ...] | None:
    fake = result.meta.get("val") if isinstance(result, fx.Node) and result.op == "call_function" else None
    if not isinstance(fake, torch.Tensor) or fake.layout != torch.strided or not _has_type(fake):
        return None
    return tuple(int(s) for s in fake.stride())


def _laid_out(value: Any, strides: tuple[int, ...] | None) -> Any:
    if strides is None or lies(value, strides) or not value.numel():
        return value
    return relaid(value, tuple(value.shape), strides)
