"""Memory of scatters: the input that they update, or their initial contents, so that a large table is not copied.

    copy %table -> %s   %s = scatter into %table   copy %s -> %table      ->      %table = scatter into %table
"""
from __future__ import annotations

from collections.abc import Mapping

from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import strides_of
from tilefuse.ir.scalar import reads
from tilefuse.plan.pattern import LibraryCall, Plan


def scatter_updates(plan: Plan) -> dict[str, str]:
    """Scatter -> input, for every chain of scatters that starts from an input and ends as its update.

    Safe where, from the first scatter's kernel on, only the chain reads the input; nothing else reads a value in between, nor the last one
    before its kernel has ended; and each link has a kernel of its own, because the blocks of one kernel are not ordered. Steps behind the
    chain read its last value where the input lies, as attention reads a cache of keys after the new one is in it.
    Cost: linear in the reads of the graph.
    """
    graph = plan.graph
    made_at, readers = _steps_of(plan)
    viewed = {v.base for v in plan.windows} | {v.value for v in plan.windows}
    target_of: dict[str, str] = {}
    for target, value in graph.updates:
        chain = _chain(graph, target, value)
        if not chain or viewed.intersection((target, *chain)) or set(graph.results).intersection(chain):
            continue
        numbers = [made_at[name] for name in chain]
        own = set(zip(numbers, chain))
        seen = [use for use in readers.get(target, ()) if use[0] >= numbers[0]]
        between = [use for name in chain[:-1] for use in readers.get(name, ())]
        between += [use for use in readers.get(value, ()) if use[0] <= numbers[-1]]
        strides = {strides_of(graph, plan.layouts, name) for name in (target, *chain)}
        if len(set(numbers)) == len(chain) and own.issuperset((*seen, *between)) and len(strides) == 1:
            target_of.update(dict.fromkeys(chain, target))
    return target_of


def _chain(graph: Graph, target: str, value: str) -> list[str]:
    """The scatters from `target` to `value`, in order; empty where another node lies between, or one reads the memory that it
    overwrites."""
    chain: list[str] = []
    while value != target:
        node = graph.node_by_name.get(value)
        if node is None or node.category != "scatter" or not _looked_at(node).isdisjoint((target, *chain, *node.operands)):
            return []
        chain.insert(0, value)
        value = node.operands[0]
    return chain


def _looked_at(node: Node) -> set[str]:
    """Values that a scatter reads, other than its base."""
    return {v for e in (*node.target, *(() if node.body is None else (node.body,))) for v in reads(e)}


def _steps_of(plan: Plan) -> tuple[Mapping[str, int], Mapping[str, list[tuple[int, str]]]]:
    """The step that computes each value, and the uses of each value as (step, reading node or library operator)."""
    made_at: dict[str, int] = {}
    readers: dict[str, list[tuple[int, str]]] = {}
    for number, step in enumerate(plan.steps):
        if isinstance(step, LibraryCall):
            for value in step.operands:
                readers.setdefault(value, []).append((number, step.operator))
            continue
        for name in step.pattern.nodes:
            made_at[name] = number
            for value in plan.graph.node_by_name[name].reads():
                readers.setdefault(value, []).append((number, name))
    return made_at, readers
