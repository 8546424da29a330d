"""The graph behind an explanation as plain data: values, their readers, order of execution, who holds memory when.

A page or a script rebuilds every edge from it: `graph` has the readers of each value, `steps` the order, `memory` the live ranges.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.text import print_node
from tilefuse.runtime.calls.call_plan import root_of, storage_bytes
from tilefuse.runtime.spec import CopyStep, KernelStep, LibraryStep, ProgramSpec
from tilefuse.target.device import DeviceSpec

# Expressions are shown to people; longer ones are cut here, so that no explanation grows with one node's text.
MAX_TEXT = 300


def graph_facts(graph: Graph, given: Graph | None = None, alone_us: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Inputs, nodes in graph order, results and updates. Units: `bytes` of the whole value, dense; microseconds.

    given: the graph before passes. alone_us: time of nodes as kernels or calls of their own.
    """
    alone = alone_us or {}
    # Passes hand a node's span on as it is: an equal graph of another model tells the places of its own nodes.
    origins = {} if given is None else {id(n.span): n.name for n in reversed(given.nodes) if n.span is not None}
    return {
        "inputs": [{"name": i.name, "type": str(i.type), "bytes": i.type.num_bytes, "constant": i.constant} for i in graph.inputs],
        "nodes": [_node(n, origins.get(id(n.span), "")) | ({"alone_us": round(alone[n.name], 4)} if n.name in alone else {})
                  for n in graph.nodes],
        "results": list(graph.results),
        "updates": [list(pair) for pair in graph.updates],
    }


def _node(node: Node, origin: str) -> dict[str, Any]:
    """One node: `operator`, `path` (module or scope) and `place` (line) are those of the user's model; "" where nothing tells.

    origin: the node of the graph before passes which it has these of.
    """
    span = node.span
    text = print_node(node)
    return {"name": node.name, "kind": node.kind, "type": str(node.type), "bytes": node.type.num_bytes, "reads": list(node.reads()),
            "operator": "" if span is None else span.operator, "path": "" if span is None else span.path,
            "place": "" if span is None else span.place, "origin": origin,
            "text": text if len(text) <= MAX_TEXT else text[:MAX_TEXT - 3] + "..."}


def step_order(spec: ProgramSpec) -> list[list[Any]]:
    """(list of the explanation, number in it) of every step, in order of execution."""
    counts = {"kernels": 0, "library": 0, "copies": 0}
    order: list[list[Any]] = []
    for step in spec.steps:
        name = {KernelStep: "kernels", LibraryStep: "library", CopyStep: "copies"}[type(step)]
        order.append([name, counts[name]])
        counts[name] += 1
    return order


def memory_facts(spec: ProgramSpec) -> list[dict[str, Any]]:
    """Live range of every storage: from the step that writes it first to the one that touches it last, both included.

    Inputs and constants live during the whole call; a result lives to its end, which is step number `len(spec.steps)`.
    Units: bytes as allocated (a strided value's gaps count).
    """
    values = {v.name: v for v in spec.values}
    end = len(spec.steps)
    life: dict[str, list[int]] = {}
    for number, step in enumerate(spec.steps):
        match step:
            case KernelStep():
                names = [n for n in step.arguments if n]
            case LibraryStep():
                names = [*step.operands, *(n for n in step.results if n)]
            case CopyStep():
                names = [step.source, step.target]
        for name in names:
            root, _ = root_of(values[name], values)
            life.setdefault(root, [number, number])[1] = number
    for name in spec.results:
        root, _ = root_of(values[name], values)
        life.setdefault(root, [end, end])[1] = end
    live_range = {name: (0, end) if values[name].role in ("input", "constant") else (first, last) for name, (first, last) in life.items()}
    return [{"value": name, "role": values[name].role, "bytes": storage_bytes(values[name]), "first": first, "last": last}
            for name, (first, last) in live_range.items()]


def machine_facts(device: DeviceSpec) -> dict[str, Any]:
    """Limits of the device that plots and percentages need; units stand in the names."""
    names = ("name", "kind", "arch", "num_multiprocessors", "warp_size", "max_threads_per_block", "max_threads_per_multiprocessor",
             "registers_per_multiprocessor", "shared_bytes_per_block", "shared_bytes_per_multiprocessor", "l2_bytes", "memory_bytes",
             "global_bytes_per_s", "flops_per_s", "graph_launch_us")
    return {n: getattr(device, n) for n in names} | {"matrix_flops_per_s": dict(device.matrix_flops_per_s)}
