"""Facts of a program's steps in the user's words: which nodes each computes, where they were written, how many bytes it must move."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tilefuse.runtime.calls.call_plan import ITEMSIZE
from tilefuse.runtime.spec import CopyStep, KernelCode, KernelStep, LibraryStep, ProgramSpec


def step_facts(spec: ProgramSpec, explanation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One mapping a step, in order: name, kind ("kernel", "library", "copy"), nodes, path and place of its last node, bytes, limit_us,
    predicted_us (None where nothing predicts it).

    A program may be some of the steps that the explanation is of: a step is found by the values that it addresses.
    Units: bytes, microseconds.
    """
    kernels = list(explanation.get("kernels", ()))
    call_of = {value: c for c in explanation.get("library", ()) for _, value in c["results"]}
    node_of = {n["name"]: n for n in (explanation.get("graph") or {}).get("nodes", ())}
    bandwidth = float((explanation.get("machine") or {}).get("global_bytes_per_s", 0.0) or 0.0)
    size = {v.name: ITEMSIZE[v.dtype] * prod(v.shape) for v in spec.values}
    rows: list[dict[str, Any]] = []
    for step in spec.steps:
        match step:
            case KernelStep():
                code = spec.kernels[step.kernel]
                explained = _explained(code, step, kernels)
                nodes = list(explained.get("nodes", code.nodes))
                # The code of fused routines has no bytes; its explanation does.
                num_bytes = code.bytes_read + code.bytes_written or explained.get("bytes_read", 0) + explained.get("bytes_written", 0)
                row: dict[str, Any] = {"name": code.name, "kind": "kernel", "nodes": nodes, "bytes": num_bytes,
                       "limit_us": round(code.limit_us, 4), "predicted_us": explained.get("predicted_us")}
            case LibraryStep():
                nodes = [r for r in step.results if r]
                explained = next((call_of[n] for n in nodes if n in call_of), {})
                num_bytes = int(explained.get("bytes", 0))
                row = {"name": step.operator, "kind": "library", "nodes": nodes, "bytes": num_bytes,
                       "limit_us": round(num_bytes / bandwidth * 1e6, 4) if bandwidth else 0.0,
                       "predicted_us": explained.get("predicted_us")}
            case CopyStep():
                num_bytes = 2 * size.get(step.target, 0)
                row = {"name": f"{step.target} = {step.source}", "kind": "copy", "nodes": [step.source], "bytes": num_bytes,
                       "limit_us": round(num_bytes / bandwidth * 1e6, 4) if bandwidth else 0.0, "predicted_us": None}
        rows.append(row | _where([node_of[n] for n in row["nodes"] if n in node_of]))
    return rows


def _explained(code: KernelCode, step: KernelStep, kernels: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The explanation of a kernel's step, which is removed from `kernels`; an empty one where none fits.

    Several steps run one code: each step's explanation is the first whose values are most of its arguments. An argument may name other
    memory than the value that is written there (an update in place, a value over an operand at its last use), so the written values alone
    do not identify it.
    """
    own = {a for p, a in zip(code.parameters, step.arguments, strict=True) if p.role != "in"}
    fitting = [k for k in kernels if k["name"] == code.name] or [k for k in kernels if own.intersection(k.get("writes", ()))]
    if not fitting:
        return {}
    arguments = set(step.arguments)
    nearest = max(fitting, key=lambda k: len(arguments.intersection((*k.get("reads", ()), *k.get("writes", ())))))
    kernels.remove(nearest)
    return nearest


def _where(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The module of most nodes, and the line of its last node that has one."""
    paths = Counter(n.get("path", "") for n in nodes)
    paths.pop("", None)
    path = paths.most_common(1)[0][0] if paths else ""
    places = [n["place"] for n in nodes if n.get("place") and (not path or n.get("path") == path)]
    return {"path": str(path), "place": str(places[-1]) if places else ""}
