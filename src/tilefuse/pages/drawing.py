"""Boxes and edges of an explanation: operators inside kernels inside groups; every read of every value is one edge with its level.

Reads the explanation as plain data. `docs/explanation.md` says what its fields mean.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilefuse.pages.groups import Group, Step, grouped

# More inputs than that, and those that one step alone reads (weights of a traced module) are folded into its box at first.
MANY_INPUTS = 8


def drawing_of(explanation: Mapping[str, Any]) -> dict[str, Any]:
    """{"boxes": [...], "edges": [...]} of a program.

    box   id, kind ("group", "kernel", "library", "copy", "node", "input", "weight", "result"), label, parent ("" for the outermost),
          `number` in its list of the explanation, `folded` for inputs and weights that are shown inside their only reader at first
    edge  source and target (ids of innermost boxes), value, level, type, bytes
    """
    graph = explanation.get("graph") or {"inputs": [], "nodes": [], "results": [], "updates": []}
    node_by_name = {n["name"]: n for n in graph["nodes"]}
    steps = _steps(explanation, node_by_name)
    boxes: list[dict[str, Any]] = []
    _place(grouped(steps), "", boxes)
    home: dict[str, str] = {}
    for number, kernel in enumerate(explanation.get("kernels", ())):
        boxes += [{"id": f"k{number}/{n}", "kind": "node", "label": n, "parent": f"k{number}", "number": -1} for n in kernel["nodes"]]
        home |= {value: f"k{number}/{value}" for value in kernel.get("writes", ())}
    for number, call in enumerate(explanation.get("library", ())):
        home |= {value: f"l{number}" for _, value in call["results"]}
    readers = _readers(explanation, graph)
    parents = {str(b["id"]): str(b["parent"]) for b in boxes}
    boxes += _inputs(explanation, graph, readers, home, parents)
    boxes += [{"id": f"r{n}", "kind": "result", "label": title, "parent": "", "number": n, "value": value}
              for n, (title, value) in enumerate(_results(explanation, graph))]
    return {"boxes": boxes, "edges": _edges(explanation, graph, readers, home)}


def _steps(explanation: Mapping[str, Any], node_by_name: Mapping[str, Mapping[str, Any]]) -> list[Step]:
    """Every kernel, call and copy in order of execution, with its form and module."""
    letter = {"kernels": "k", "library": "l", "copies": "c"}
    order = explanation.get("steps") or [[name, n] for name in letter for n in range(len(explanation.get(name, ())))]
    bases = {v["value"]: v["base"] for v in explanation.get("views", ())}
    constants = {i["name"] for i in (explanation.get("graph") or {"inputs": ()})["inputs"]}
    steps: list[Step] = []
    for name, number in order:
        item = explanation[name][number]
        nodes = item.get("nodes") or [value for _, value in item.get("results", ())]
        nodes_of_step = [node_by_name[n] for n in nodes if n in node_by_name]
        form = f"{name} {item.get('template', item.get('operator', ''))} {' '.join(n['kind'] for n in nodes_of_step)}"
        writes = item.get("writes") or [value for _, value in item.get("results", ())] or [item.get("target", "")]
        # A view stands for the memory it looks at.
        reads = (_owner(v, bases) for v in item.get("reads") or item.get("operands") or [item.get("source", "")])
        steps.append(Step(f"{letter[name]}{number}", form, _module(nodes_of_step), frozenset(reads) - constants, frozenset(writes)))
    return _with_neighbours(steps)


def _module(nodes: Sequence[Mapping[str, Any]]) -> str:
    """The module that most nodes of a step belong to; of several the first."""
    counts = Counter(n.get("path", "") for n in nodes)
    counts.pop("", None)
    return counts.most_common(1)[0][0] if counts else ""


def _with_neighbours(steps: list[Step]) -> list[Step]:
    """Steps of no module between two of one module belong to it: layout changes, which no user wrote."""
    steps_with_paths = list(steps)
    for n, step in enumerate(steps):
        before = next((s.path for s in reversed(steps_with_paths[:n]) if s.path), "")
        after = next((s.path for s in steps[n + 1:] if s.path), "")
        if not step.path and before and before == after:
            steps_with_paths[n] = replace(step, path=before)
    return steps_with_paths


def _place(members: Sequence[Group | Step], parent: str, boxes: list[dict[str, Any]]) -> None:
    """Boxes of groups and steps, each group before its members."""
    forms: dict[str, str] = {}
    for m in members:
        if isinstance(m, Step):
            kind = {"k": "kernel", "l": "library", "c": "copy"}[m.key[0]]
            boxes.append({"id": m.key, "kind": kind, "label": "", "parent": parent, "number": int(m.key[1:]), "path": m.path})
            continue
        same_as = forms.setdefault(m.form, m.label)
        box = {"id": f"g{len(boxes)}", "kind": "group", "label": m.label, "parent": parent, "number": -1, "num_steps": m.num_steps,
               "same_as": "" if same_as == m.label else same_as}
        boxes.append(box)
        _place(m.members, str(box["id"]), boxes)


def _readers(explanation: Mapping[str, Any], graph: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(box, node or "", value) of every read: by the nodes of kernels, by calls, by copies."""
    reads = {n["name"]: n["reads"] for n in graph["nodes"]}
    listed = [(f"k{number}/{n}", n, value) for number, kernel in enumerate(explanation.get("kernels", ()))
              for n in kernel["nodes"] for value in reads.get(n, ())]
    listed += [(f"l{number}", "", value) for number, call in enumerate(explanation.get("library", ()))
               for value in dict.fromkeys(call["operands"])]
    return listed + [(f"c{number}", "", copy["source"]) for number, copy in enumerate(explanation.get("copies", ()))]


def _owner(value: str, bases: Mapping[str, str]) -> str:
    """The value in whose memory this one lies: itself, unless it is a view."""
    seen = {value}
    while value in bases and bases[value] not in seen:
        value = bases[value]
        seen.add(value)
    return value


def _inputs(explanation: Mapping[str, Any], graph: Mapping[str, Any], readers: Sequence[tuple[str, str, str]],
            home: dict[str, str], parents: Mapping[str, str]) -> list[dict[str, Any]]:
    """A box for every input; adds them to `home`. One that a single step reads lies beside that step, and may be folded into its box."""
    bases = {v["value"]: v["base"] for v in explanation.get("views", ())}
    steps_of: dict[str, set[str]] = {}
    for box, _, value in readers:
        steps_of.setdefault(_owner(value, bases), set()).add(box.partition("/")[0])
    titles = {name: title for title, name in (*explanation.get("inputs", ()), *explanation.get("weights", ()))}
    many = sum(not i["constant"] for i in graph["inputs"]) > MANY_INPUTS
    drawn: list[dict[str, Any]] = []
    for number, value in enumerate(graph["inputs"]):
        name = value["name"]
        if name not in steps_of and name not in graph["results"]:
            continue
        alone = len(steps_of.get(name, ())) == 1
        folded = alone and (value["constant"] or many)
        home[name] = f"i{number}"
        drawn.append({"id": f"i{number}", "kind": "weight" if value["constant"] else "input",
                      "label": titles.get(name, name), "value": name,
                      "parent": parents[next(iter(steps_of[name]))] if folded else "", "number": number, "folded": folded})
    return drawn


def _results(explanation: Mapping[str, Any], graph: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(title, value) of every result; programs of old explanations have the graph's alone."""
    titled = [(str(title), str(value)) for title, value in explanation.get("results", ())]
    return titled or [(value, value) for value in graph["results"]]


def _edges(explanation: Mapping[str, Any], graph: Mapping[str, Any], readers: Sequence[tuple[str, str, str]],
           home: Mapping[str, str]) -> list[dict[str, Any]]:
    """One edge for every read of every value. Inside a kernel its level is the plan's; between steps it is global memory."""
    bases = {v["value"]: v["base"] for v in explanation.get("views", ())}
    facts = {n["name"]: n for n in (*graph["inputs"], *graph["nodes"])}
    levels = {(f"k{number}", e["producer"], e["user"]): e["level"]
              for number, kernel in enumerate(explanation.get("kernels", ())) for e in kernel["edges"]}
    inside = {(f"k{number}", n) for number, kernel in enumerate(explanation.get("kernels", ())) for n in kernel["nodes"]}
    edges: list[dict[str, Any]] = []

    def add(source: str, target: str, value: str, level: str) -> None:
        edges.append({"source": source, "target": target, "value": value, "level": level, "type": facts.get(value, {}).get("type", ""),
                      "bytes": facts.get(value, {}).get("bytes", 0)})

    for box, node, value in readers:
        step = box.partition("/")[0]
        if (step, value) in inside:
            add(f"{step}/{value}", box, value, levels.get((step, value, node), "register"))
        elif (owner := _owner(value, bases)) in home:
            add(home[owner], box, value, "global")
    for number, (_, value) in enumerate(_results(explanation, graph)):
        if (owner := _owner(value, bases)) in home:
            add(home[owner], f"r{number}", value, "global")
    return edges
