"""The explanation of a script's program whose kernels are fused routines, or routines beside kernels of templates.

It has the form of every explanation (docs/explanation.md). Times of routines are predictions of the search that chose them. A rejected pair
is a fusion that the search did not take, with the reason or with the time of its kernel.
"""
from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from tilefuse.base.candidate import Reason
from tilefuse.domain.roofline import Parts
from tilefuse.driver.explain.graph import machine_facts, memory_facts
from tilefuse.runtime.page import plain_explanation
from tilefuse.runtime.spec import CopyStep, KernelStep, LibraryStep, ProgramSpec
from tilefuse.scripts.language.elementary import CallGraph, FunctionCall
from tilefuse.scripts.plan.combinations import ROUTINES, FusionImplementation
from tilefuse.scripts.plan.fusions import call_groups
from tilefuse.scripts.programs import Choice, ScriptSearch

# Version of the explanation's form, as `explain.FORMAT`.
FORMAT = 2
# Figures of a kernel of routines, and their origins.
FIGURES = {
    "launch": "start of a kernel in a graph",
    "global time": "bytes through the device's transfer curve, at the rate that the loads in flight allow",
    "arithmetic time": "compute routines, timed one by one",
    "latency time": "iterations of a multiprocessor's blocks, each with the latency that the other blocks' loads do not hide",
    "time of the last block": "partial results: arrivals of blocks, their combination, additional kernels",
}
# Fields of a template's kernel that hold names of values.
NAMED_FIELDS = ("nodes", "reads", "writes", "edges", "stages", "shared", "groups", "source_names")


def explained(search: ScriptSearch, choice: Choice) -> Choice:
    """The choice with an explanation in its program; the template of the whole script has one already."""
    if choice.combination is None:
        return choice
    return replace(choice, spec=replace(choice.spec, explanation=json.dumps(_explanation(search, choice, choice.combination.parts))))


def _explanation(search: ScriptSearch, choice: Choice, parts: Sequence[FusionImplementation]) -> dict[str, Any]:
    data = plain_explanation(choice.spec)
    computed = {node["name"]: node for node in data["graph"]["nodes"]}
    nodes: dict[str, dict[str, Any]] = {}
    counts = {KernelStep: 0, LibraryStep: 0, CopyStep: 0}
    for number, part in enumerate(parts):
        spec, names, _ = search.part_program(part)
        called = {v.name: names.get(v.name, f"part{number}_{v.name}") for v in spec.values}
        kernels = data["kernels"][counts[KernelStep]:][:sum(isinstance(s, KernelStep) for s in spec.steps)]
        calls = data["library"][counts[LibraryStep]:][:sum(isinstance(s, LibraryStep) for s in spec.steps)]
        if part.kind == ROUTINES:
            _write_prediction(kernels, spec, part, search)
            partial = dict.fromkeys(name for k in kernels for name in (*k["reads"], *k["writes"]) if name in computed)
            nodes |= {name: computed[name] for name in partial if name not in search.graph.variables}
            nodes |= {r: _node(r, call, search.graph) for call in _calls(search.graph, part) for r in call.results}
        else:
            explanation = json.loads(spec.explanation)
            # Values inside a kernel are no values of the program. Variables of the script keep their names.
            internal = [n["name"] for n in explanation["graph"]["nodes"] if n["name"] not in called]
            called |= {name: name if name in search.graph.variables else f"part{number}_{name}" for name in internal}
            for record, template_record in zip((*kernels, *calls), (*explanation["kernels"], *explanation["library"]), strict=True):
                record.update(_renamed_record(template_record, called))
            nodes |= {called[n["name"]]: n | {"name": called[n["name"]], "reads": _renamed(n["reads"], called)}
                      for n in explanation["graph"]["nodes"]}
            data["figures"] |= explanation["figures"]
        for step in spec.steps:
            counts[type(step)] += 1
    data["graph"]["nodes"] = list(nodes.values())
    data["figures"] |= {name: {"unit": "us", "origin": f"{origin} (scripts/plan/work.py)"} for name, origin in FIGURES.items()}
    data |= {"format": FORMAT, "memory": memory_facts(choice.spec), "machine": machine_facts(search.device),
             "options": search.options.changed(), "device": search.device.name}
    return data | _sums(data, choice.spec, search) | _fusions_not_taken(search, parts)


def _write_prediction(kernels: Sequence[dict[str, Any]], spec: ProgramSpec, part: FusionImplementation, search: ScriptSearch) -> None:
    """Writes the predicted time of a fusion into the records of its kernels. Units: microseconds."""
    extra_us = search.device.graph_launch_us + search.device.fitted.scripts.extra_kernel_us
    main = max(kernels, key=lambda k: float(k["limit_us"]))
    main_us = max(part.predicted_us - extra_us * (len(kernels) - 1), part.predicted_us / len(kernels))
    prediction = search.prediction(part)
    main["nodes"] = list(dict.fromkeys((*(r for call in _calls(search.graph, part) for r in call.results), *main["nodes"])))
    for record in kernels:
        us = main_us if record is main else (part.predicted_us - main_us) / (len(kernels) - 1)
        figures = _figures(prediction) if record is main and prediction else {"launch": search.device.graph_launch_us, "global time": us}
        record |= {"predicted_us": round(us, 4), "figures": {name: round(value, 4) for name, value in figures.items()},
                   "notation": str(part.decision or ""), "generator": ROUTINES}
        if record is not main:
            words = record["name"].removeprefix(f"{main['name']}_")
            record["title"] = f"{words} {', '.join(record['writes'])}"


def _figures(prediction: Parts) -> dict[str, float]:
    """Parts of a predicted time. Units: microseconds."""
    return {"launch": prediction.launch_us - prediction.further_launch_us, "global time": prediction.global_us,
            "arithmetic time": prediction.arithmetic_us, "latency time": prediction.chain_us,
            "time of the last block": prediction.serial_us + prediction.further_launch_us}


def _calls(graph: CallGraph, part: FusionImplementation) -> list[FunctionCall]:
    return [graph.calls[c] for c in part.calls]


def _node(name: str, call: FunctionCall, graph: CallGraph) -> dict[str, Any]:
    """A value of the script with the call that computes it."""
    variable = graph.variables[name]
    return {"name": name, "kind": ROUTINES, "type": f"{variable.dtype.name}[{', '.join(map(str, variable.shape))}]",
            "bytes": prod(variable.shape) * variable.dtype.itemsize, "reads": [a for a in call.arguments if isinstance(a, str)],
            "operator": call.function.name, "path": "", "place": call.span.place if call.span else "", "text": _call_text(call)}


def _call_text(call: FunctionCall) -> str:
    return f"{', '.join(call.results)} = {call.function.name}({', '.join(map(str, call.arguments))})"


def _renamed_record(record: Mapping[str, Any], called: Mapping[str, str]) -> dict[str, Any]:
    """A kernel or call of a template's program with names of the whole script's program; its step keeps its number."""
    renamed = {key: value for key, value in record.items() if key not in ("step", "operands", "results")}
    return renamed | {key: _renamed(record[key], called) for key in NAMED_FIELDS if key in record}


def _renamed(value: Any, called: Mapping[str, str]) -> Any:
    match value:
        case str():
            return called.get(value, value)
        case list():
            return [_renamed(v, called) for v in value]
        case dict():
            return {key: v if key == "level" else _renamed(v, called) for key, v in value.items()}
    return value


def _sums(data: Mapping[str, Any], spec: ProgramSpec, search: ScriptSearch) -> dict[str, Any]:
    """Totals of the program, and of one kernel a call."""
    kernels, calls = data["kernels"], data["library"]
    kernels_us, library_us = sum(k["predicted_us"] for k in kernels), sum(c.get("predicted_us", 0.0) for c in calls)
    kernel_bytes, library_bytes = sum(k["bytes_read"] + k["bytes_written"] for k in kernels), sum(c.get("bytes", 0) for c in calls)
    alone = [search.alone(group) for group in call_groups(search.graph)]
    unfused_us = sum(us for us, _ in alone) if all(us for us, _ in alone) else 0.0
    unfused_bytes = sum(num_bytes for _, num_bytes in alone) if unfused_us else 0
    return {
        "objective_us": round(kernels_us, 3), "unfused_us": round(unfused_us, 3), "unfused_kernels": len(alone), "bytes": kernel_bytes,
        "unfused_bytes": unfused_bytes,
        "totals": {"kernels_us": round(kernels_us, 3), "library_us": round(library_us, 3),
                   "num_at_least": sum(bool(c.get("at_least")) for c in calls), "us": round(kernels_us + library_us, 3),
                   "unfused_us": round(unfused_us, 3), "kernel_bytes": kernel_bytes, "library_bytes": library_bytes, "copy_bytes": 0,
                   "bytes": kernel_bytes + library_bytes, "unfused_bytes": unfused_bytes}}


def _fusions_not_taken(search: ScriptSearch, parts: Sequence[FusionImplementation]) -> dict[str, Any]:
    """Fusions that the program does not have: illegal ones, and those of several of its kernels that are predicted to take longer."""
    graph = search.graph
    rows = [(calls, rejected.reason.value, rejected.detail) for calls, rejected in search.fusions.rejected]
    rows += [(calls, Reason.WORSE_THAN_INCUMBENT.value, f"{other_us:.2f} us as one kernel of routines, {own_us:.2f} us apart")
             for calls, other_us, own_us in _slower(search, parts)]
    pairs = [{"first": graph.calls[calls[0]].results[0], "second": graph.calls[calls[-1]].results[0], "reason": reason, "detail": detail}
            for calls, reason, detail in rows if len(calls) > 1]
    # Fusions of more than two calls may have equal first and last calls.
    distinct = [row for number, row in enumerate(pairs) if row not in pairs[:number]]
    return {"rejected": distinct, "num_rejected": len(distinct)}


def _slower(search: ScriptSearch, parts: Sequence[FusionImplementation]) -> Iterator[tuple[tuple[int, ...], float, float]]:
    """(calls, time as one kernel, time as several) of fusions that would hold several whole kernels of the program. Units: microseconds."""
    for fusion in search.fusions.legal:
        inside = [p for p in parts if set(p.calls) <= set(fusion.calls)]
        if len(inside) > 1 and sorted(c for p in inside for c in p.calls) == list(fusion.calls):
            one_us, _ = search.alone(fusion.calls)
            if one_us:
                yield fusion.calls, one_us, sum(p.predicted_us for p in inside)
