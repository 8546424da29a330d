"""Independent patterns side by side in one graph, as packed kernels hold them."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tests.unit.templates.pattern_graphs import Arrays, Pattern, integers
from tilefuse.ir.graph import Graph, Input, Node
from tilefuse.ir.scalar import rename_reads
from tilefuse.ir.text import parse_graph


def side_by_side(patterns: Sequence[Pattern], shared: Sequence[str] = ()) -> Pattern:
    """One pattern of all of them; values of pattern number n get the suffix `_n`, but inputs in `shared` are the same value for all."""
    inputs: dict[str, Input] = {}
    nodes: list[Node] = []
    results: list[str] = []
    fills = {}
    for n, pattern in enumerate(patterns):
        names = {v: v if v in shared else f"{v}_{n}" for v in pattern.graph.type_by_name}
        for i in pattern.graph.inputs:
            inputs[names[i.name]] = replace(i, name=names[i.name])
            fills[names[i.name]] = (pattern.fill, i.name)
        nodes += [renamed(node, names) for node in pattern.graph.nodes]
        results += [names[r] for r in pattern.graph.results]

    def fill(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
        own, old = fills[name]
        return own(rng, old, shape)

    def bounds(values: Arrays) -> list[np.ndarray]:
        found: list[np.ndarray] = []
        for n, pattern in enumerate(patterns):
            own = {i.name: values[i.name if i.name in shared else f"{i.name}_{n}"] for i in pattern.graph.inputs}
            found += pattern.bounds(own) if pattern.bounds else [np.zeros(())] * len(pattern.graph.results)
        return found

    return Pattern(Graph("side_by_side", tuple(inputs.values()), tuple(nodes), tuple(results)), fill, bounds)


def renamed(node: Node, names: dict[str, str]) -> Node:
    """The node with its own name and all values it uses renamed."""
    return replace(node, name=names[node.name], body=None if node.body is None else rename_reads(node.body, names),
                   target=tuple(rename_reads(t, names) for t in node.target), operands=tuple(names[v] for v in node.operands))


def update(*shape: int, dtype: str = "f32") -> Pattern:
    """An optimiser's step in small: two results, three operands, one of them without axes."""
    axes = [f"i{n}" for n in range(len(shape))]
    at, t = f"[{', '.join(axes)}]", f"{dtype}[{', '.join(map(str, shape))}]"
    to = "" if dtype == "f32" else dtype
    moment = f"{to}(add(mul(f32(%m{at}), 0.5:f32), f32(%g{at})))" if to else f"add(mul(%m{at}, 0.5:f32), %g{at})"
    stepped = f"{to}(sub(f32(%p{at}), mul(f32(%n{at}), %rate[])))" if to else f"sub(%p{at}, mul(%n{at}, %rate[]))"
    return Pattern(parse_graph(f"""graph @update(%p: {t}, %g: {t}, %m: {t}, %rate: f32[]) -> ({t}, {t}) {{
      %n: {t} = map [{', '.join(axes)}] {{ {moment} }}
      %q: {t} = map [{', '.join(axes)}] {{ {stepped} }}
      return %q, %n
    }}"""), lambda rng, name, s: integers(rng, name, s) * (2.0 if name == "m" else 1.0))


def total(*shape: int) -> Pattern:
    """A sum over everything."""
    axes = [f"k{n}" for n in range(len(shape))]
    over = ", ".join(f"{a} < {e}" for a, e in zip(axes, shape, strict=True))
    return Pattern(parse_graph(f"""graph @total(%x: f32[{', '.join(map(str, shape))}]) -> (f32[]) {{
      %s: f32[] = reduce.sum [] over [{over}] {{ %x[{', '.join(axes)}] }}
      return %s
    }}"""), integers)
