"""A program's explanation as short lines. The data is plain (the driver made it, a saved program carries it); nothing is decided here."""
from __future__ import annotations

from collections.abc import Mapping
from json import loads
from typing import Any

from tilefuse.runtime.spec import ProgramSpec


def explanation_data(spec: ProgramSpec) -> dict[str, Any]:
    """A program's explanation as plain data; `seconds` under `plan` are known in the process that planned, and None elsewhere."""
    data: dict[str, Any] = loads(spec.explanation) if spec.explanation else {}
    if "plan" in data:
        data["plan"]["seconds"] = None if spec.plan_seconds is None else round(spec.plan_seconds, 3)
    return data


def explanation_text(explanation: Mapping[str, Any]) -> str:
    """The explanation in short lines, for a person without the command line at hand."""
    head = (f"{explanation['name']} on {explanation['device']}: {explanation['num_kernels']} kernels "
            f"({explanation['num_distinct_kernels']} distinct, {explanation['unfused_kernels']} unfused), "
            f"{len(explanation['library'])} library calls; "
            f"{explanation['bytes'] / 2**20:.2f} MiB moved by kernels ({explanation['unfused_bytes'] / 2**20:.2f} unfused); "
            f"predicted {explanation['objective_us']:.1f} us ({explanation['unfused_us']:.1f} unfused)")
    lines = [head]
    if told := search_text(explanation.get("plan", {})):
        lines.append(f"  {told}")
    for k in explanation["kernels"]:
        lines.append(f"  {k['step']} {k['name']}: {k['template']}, {len(k['nodes'])} nodes, {k['bytes_read'] + k['bytes_written']} bytes, "
                     f"limit {k['limit_us']:.2f} us, predicted {k['predicted_us']:.2f} us from {k['bound_by']}")
        levels = ", ".join(f"{e['producer']} -> {e['user']} {e['level']}" for e in k["edges"])
        lines.append(f"    {{{', '.join(k['nodes'])}}}" + (f"; {levels}" if levels else ""))
    lines += [f"  library {c['operator']} ({', '.join(c['operands'])}) -> {', '.join(value for _, value in c['results'])}"
              for c in explanation["library"]]
    lines += [f"  fallback {f['operator']}: {f['reason']}" for f in explanation["fallbacks"]]
    lines += [f"  not fused {r['first']} + {r['second']}: {r['reason']} ({r['detail']})" for r in explanation["rejected"]]
    return "\n".join(lines) + "\n"


def search_text(plan: Mapping[str, Any]) -> str:
    """How the integer program found the plan, in one sentence; empty where greedy connecting alone did.

    Units: microseconds saved against one kernel a unit, and the most that any choice of the candidates could save.
    """
    if not plan.get("rounds"):
        return ""
    known = f"at most {plan['bound_us']:.1f} us" if not plan["proven"] else "which is the optimum"
    by = ", ".join(f"{count} by {generator}" for generator, count in plan["candidates"].items())
    kept = "the plan of greedy connecting stands: " if plan["planner"] == "greedy" else ""
    seconds = f" and {plan['seconds']:.2f} s" if plan.get("seconds") is not None else ""
    return (f"{kept}integer program saves {plan['objective_us']:.1f} us, {known}, in {plan['rounds']} rounds with {plan['cuts']} cuts"
            f"{seconds}; candidates: {by or 'none'}")
