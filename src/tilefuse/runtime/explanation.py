"""A program's explanation as short lines. The data is plain (from the driver or a saved program); nothing is decided here."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from json import dumps, loads
from typing import Any

from tilefuse.base.printable import one_line
from tilefuse.runtime.spec import ProgramSpec
from tilefuse.runtime.stage_tree import task_lines, tree_lines

# Inputs whose sizes a sentence names.
SHOWN_SIZES = 3


def explanation_data(spec: ProgramSpec) -> dict[str, Any]:
    """A program's explanation as plain data; `seconds` under `plan` are known only in the process that planned, else None."""
    data: dict[str, Any] = loads(spec.explanation) if spec.explanation else {}
    if spec.places:
        _tell_places(data, spec.places)
    if "plan" in data:
        data["plan"]["seconds"] = None if spec.plan_seconds is None else round(spec.plan_seconds, 3)
    if data:
        data["inputs"] = [list(pair) for pair in zip(spec.told_inputs, spec.inputs, strict=True)]
        data["weights"] = [[title, name] for name, title in spec.weight_titles]
        data["results"] = [list(pair) for pair in zip(spec.told_results, spec.results, strict=True)]
    return data


def with_own_places(spec: ProgramSpec) -> ProgramSpec:
    """The spec with the places of its explanation written into it: a file has no others."""
    if not spec.places or not spec.explanation:
        return spec
    data = loads(spec.explanation)
    _tell_places(data, spec.places)
    return replace(spec, explanation=dumps(data), places={})


def _tell_places(data: Mapping[str, Any], places: Mapping[str, tuple[str, str, str]]) -> None:
    for node in (data.get("graph") or {"nodes": ()})["nodes"]:
        known_place = places.get(node.get("origin", ""))
        if known_place is not None:
            node["operator"], node["path"], node["place"] = known_place


def explanation_text(explanation: Mapping[str, Any]) -> str:
    """The explanation in short lines, for readers without the command line."""
    head = (f"{explanation['name']} on {explanation['device']}: {explanation['num_kernels']} kernels "
            f"({explanation['num_distinct_kernels']} distinct, {explanation['unfused_kernels']} without fusion), "
            f"{len(explanation['library'])} library calls; "
            f"{explanation['bytes'] / 2**20:.2f} MiB moved by kernels ({explanation['unfused_bytes'] / 2**20:.2f} without fusion)")
    lines = [head]
    if totals := totals_text(explanation.get("totals", {})):
        lines.append(f"  {totals}")
    if search := search_text(explanation.get("plan", {})):
        lines.append(f"  {search}")
    renamed = [f"{title} is %{name}" for title, name in (*explanation.get("inputs", ()), *explanation.get("results", ())) if title != name]
    if renamed:
        lines.append(f"  {', '.join(dict.fromkeys(renamed))}")
    if explanation["kernels"]:
        lines.append(f"  kernels: {generators_text(explanation)}")
    for k in explanation["kernels"]:
        lines.append(f"  {k['step']} {k['name']}: {k['template']}, {len(k['nodes'])} nodes, {k['bytes_read'] + k['bytes_written']} bytes, "
                     f"limit {k['limit_us']:.2f} us, {_kernel_time(k)}")
        levels = ", ".join(f"{e['producer']} -> {e['user']} {e['level']}" for e in k["edges"])
        lines.append(f"    {{{', '.join(k['nodes'])}}}" + (f"; {levels}" if levels else ""))
        lines += [f"    {line}" for line in tree_lines(k["tree"])] if k.get("tree") else []
        lines += [f"    {line}" for line in task_lines(k.get("parameters", {}))]
    lines += [f"  library {c['operator']} ({', '.join(c['operands'])}) -> {', '.join(value for _, value in c['results'])}{_call_time(c)}"
              for c in explanation["library"]]
    lines += [f"  fallback {f['operator']}: {f['reason']}" for f in explanation["fallbacks"]]
    lines += [f"  not fused {r['first']} + {r['second']}: {r['reason']} ({r['detail']})" for r in explanation["rejected"]]
    lines += [f"  note: {note}" for note in explanation.get("notes", ())]
    return "\n".join(map(one_line, lines)) + "\n"


def _kernel_time(kernel: Mapping[str, Any]) -> str:
    us = f"{kernel['predicted_us']:.2f} us"
    return f"measured {us}" if kernel["bound_by"] == "measurement" else f"predicted {us} from {kernel['bound_by']}"


def _call_time(call: Mapping[str, Any]) -> str:
    """The time of a call and where it is from; empty where nothing was priced, as in programs of other compilers."""
    if "time_source" not in call:
        return ""
    source = {"measurement": "measured", "prediction": "predicted"}.get(call["time_source"], "at least")
    return f", {source} {call['predicted_us']:.2f} us"


def totals_text(totals: Mapping[str, Any]) -> str:
    """Bytes and predicted time of kernels and library calls together, in one sentence; empty where nothing was priced."""
    if not totals:
        return ""
    calls = totals["library_bytes"] > 0
    parts = f"kernels {totals['kernels_us']:.1f}" + (f", library calls {totals['library_us']:.1f}" if calls else "")
    number = totals["num_at_least"]
    least = f"; at least: of {number} call{'' if number == 1 else 's'} only launch and bytes are known" if number else ""
    others = [f"{totals[name] / 2**20:.2f} by {by}" for name, by in (("library_bytes", "library calls"), ("copy_bytes", "copies"))
              if totals[name]]
    moved = f"{totals['bytes'] / 2**20:.2f} MiB moved in all" + (f" ({', '.join(others)})" if others else "")
    return f"predicted {totals['us']:.1f} us ({parts}; unfused {totals['unfused_us']:.1f}{least}); {moved}"


def search_text(plan: Mapping[str, Any]) -> str:
    """The plan's origin and the integer program's outcome, in one sentence; empty where only greedy connecting ran.

    Units: microseconds saved against one kernel per unit, and an upper bound over all choices of the candidates.
    """
    if plan.get("start"):
        return start_text(plan)
    by = ", ".join(f"{count} by {generator}" for generator, count in plan.get("candidates", {}).items())
    if by and not plan.get("rounds") and plan.get("bound_us") is not None and not plan["proven"]:
        return (f"plan of greedy connecting: the time for planning (plan_seconds) was over before the integer program chose; no choice "
                f"saves more than {plan['bound_us']:.1f} us (candidates: {by})")
    if not plan.get("rounds"):
        return f"plan of greedy connecting; nothing to choose for the integer program (candidates: {by})" if by else ""
    saved, known = f"{plan['objective_us']:.1f} us", f"at most {plan['bound_us']:.1f} us" if not plan["proven"] else "which is the optimum"
    seconds = f" and {plan['seconds']:.2f} s" if plan.get("seconds") is not None else ""
    effort = f"in {plan['rounds']} rounds with {plan['cuts']} cuts{seconds}; candidates: {by or 'none'}"
    match plan["planner"]:
        case "ilp":
            return (f"plan of the integer program: saves {saved}, {known}, {effort}; "
                    f"greedy connecting's takes {plan['greedy_us']:.1f} us")
        case "both":
            better = "no choice of candidates" if plan["proven"] else "no choice of candidates that was found"
            return f"plan of greedy connecting, and of the integer program: {better} saves more than {saved} ({known}), {effort}"
    return ("plan of greedy connecting: with packed kernels it is cheaper than the integer program's, which saves "
            f"{saved}, {known}, {effort}")


def start_text(plan: Mapping[str, Any]) -> str:
    """The earlier plan that a plan started from, and the number of its kernels that stand, in one sentence."""
    start = plan["start"]
    sizes = [f"{name} {there} (here {here})" for name, (there, here) in start["sizes"].items()]
    others = f" and {len(sizes) - SHOWN_SIZES} more inputs" if len(sizes) > SHOWN_SIZES else ""
    seconds = f", in {plan['seconds']:.2f} s" if plan.get("seconds") is not None else ""
    given_up = f"; given up: {'; '.join(start['given_up'])}" if start["given_up"] else ""
    return (f"plan that starts from an earlier one of the same graph with {', '.join(sizes[:SHOWN_SIZES]) or 'equal sizes'}{others}: "
            f"{start['kept']} of its kernels kept, {start['merged']} merges{seconds}{given_up} (option reuse_plans)")


def generators_text(explanation: Mapping[str, Any]) -> str:
    """Which generators proposed the plan's kernels, as in "1 by packing, 3 by connect"."""
    counts = Counter(str(k["generator"]) for k in explanation["kernels"])
    return ", ".join(f"{count} by {generator}" for generator, count in sorted(counts.items()))
