"""The page of a program: passes its explanation, sources and measurements to `tilefuse.pages`, and writes the file."""
from __future__ import annotations

import webbrowser
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Protocol

from tilefuse.base.errors import UserError
from tilefuse.pages.page import page_text, program_data
from tilefuse.runtime.calls.call_plan import ITEMSIZE
from tilefuse.runtime.calls.callable_program import CallableProgram
from tilefuse.runtime.calls.step_times import measured_run
from tilefuse.runtime.compilers.nvrtc import Resources
from tilefuse.runtime.explanation import explanation_data
from tilefuse.runtime.spec import CopyStep, KernelStep, LibraryStep, ProgramSpec


class ShownProgram(CallableProgram, Protocol):
    """A program whose kernels' resources are known."""

    @property
    def resources(self) -> dict[str, Resources]:
        """Registers, spills and shared memory of each CUDA kernel."""


def spec_data(spec: ProgramSpec, *, label: str = "", answers: Sequence[Mapping[str, Any]] = (), side: int | None = None) -> dict[str, Any]:
    """A page's part for a program that need not run here. answers: as `tilefuse.pages.page` takes them."""
    return program_data(explanation_data(spec) or plain_explanation(spec), {k.name: k.source for k in spec.kernels}, label=label,
                        answers=answers, side=side)


def running_data(program: ShownProgram, tensors: Sequence[Any] | None = None, *, label: str = "") -> dict[str, Any]:
    """A page's part for a program: with registers where its kernels are CUDA's, with times where `tensors` are its inputs.

    Raises: as a call of the program.
    """
    data = spec_data(program.spec, label=label)
    data["resources"] = {name: {"registers": row.num_registers, "spill_bytes": row.spill_bytes} for name, row in program.resources.items()}
    if tensors is not None:
        run = measured_run(program, tensors)
        data |= {"times": [{"start_us": round(start, 3), "us": round(us, 3)} for start, us in run.steps], "call_us": round(run.call_us, 3),
                 "before_us": round(run.before_us, 3), "behind_us": round(run.behind_us, 3)}
    return data


def write_page(title: str, programs: Sequence[Mapping[str, Any]], path: Path | str | None = None, *, show: bool = False) -> Path:
    """Writes the page and returns its path; `show` opens it in the browser.

    path: None is "<title>.html" in the current folder. Raises: UserError where it cannot be written; UnsupportedError where a page's
    packages are missing.
    """
    written = Path(path) if path is not None else Path("".join(c if c.isalnum() or c in "-_." else "_" for c in title) + ".html")
    text = page_text(title, programs)
    try:
        written.write_text(text, encoding="utf-8")
    except OSError as cause:
        raise UserError(f"cannot write the page {written}: {cause}") from cause
    if show:
        webbrowser.open(written.resolve().as_uri())
    return written


def plain_explanation(spec: ProgramSpec) -> dict[str, Any]:
    """Facts from the steps of a program that no plan explains (fused routines of scripts): values, kernels, order. Units: bytes."""
    values = {v.name: v for v in spec.values}
    size = {v.name: ITEMSIZE[v.dtype] * prod(v.shape) for v in spec.values}
    kernels: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    copies: list[dict[str, Any]] = []
    steps: list[list[Any]] = []
    reads_of: dict[str, list[str]] = {}
    for step in spec.steps:
        match step:
            case KernelStep():
                code = spec.kernels[step.kernel]
                arguments = [(name, p.role) for name, p in zip(step.arguments, code.parameters, strict=True) if name]
                reads = list(dict.fromkeys(name for name, role in arguments if role in ("in", "inout")))
                writes = list(dict.fromkeys(name for name, role in arguments if role in ("out", "inout")))
                reads_of |= dict.fromkeys(writes, reads)
                steps.append(["kernels", len(kernels)])
                launch = code.launch
                kernels.append({
                    "name": code.name, "step": f"k{len(kernels)}", "nodes": writes, "writes": writes, "reads": reads, "edges": [],
                    "template": "routines", "generator": "script", "category": "script", "bytes_read": sum(size[n] for n in reads),
                    "bytes_written": sum(size[n] for n in writes), "flops": 0, "limit_us": code.limit_us, "bound_by": "bandwidth",
                    "launch": {"num_blocks": launch.num_blocks, "num_threads": launch.num_threads, "cluster": launch.cluster,
                               "shared_bytes": launch.shared_bytes, "shared_requested_bytes": launch.shared_bytes, "early": launch.early}})
            case LibraryStep():
                steps.append(["library", len(calls)])
                calls.append({"operator": step.operator, "operands": list(step.operands),
                              "results": [[n, name] for n, name in enumerate(step.results) if name]})
            case CopyStep():
                steps.append(["copies", len(copies)])
                copies.append({"source": step.source, "target": step.target})

    def value(name: str) -> dict[str, Any]:
        shape = ", ".join(map(str, values[name].shape))
        return {"name": name, "type": f"{values[name].dtype}[{shape}]", "bytes": size[name]}

    inputs = [v.name for v in spec.values if v.role in ("input", "constant")]
    nodes = [value(n) | {"kind": "routines", "reads": reads, "path": "", "operator": "", "place": "", "text": ""}
             for n, reads in reads_of.items() if n not in inputs]
    return {"name": spec.name, "device": spec.device, "options": {}, "num_kernels": len(kernels), "num_distinct_kernels": len(spec.kernels),
            "unfused_kernels": len(kernels), "objective_us": 0.0, "unfused_us": 0.0, "unfused_bytes": 0,
            "bytes": sum(k["bytes_read"] + k["bytes_written"] for k in kernels),
            "kernels": kernels, "library": calls, "copies": copies, "steps": steps, "rejected": [], "num_rejected": 0, "figures": {},
            "views": [{"value": v.name, "base": v.base} for v in spec.values if v.role == "view"], "totals": {}, "plan": {},
            "fallbacks": [], "notes": [], "memory": [], "machine": {},
            "graph": {"inputs": [value(n) | {"constant": values[n].role == "constant"} for n in inputs], "nodes": nodes,
                      "results": list(spec.results), "updates": []},
            "inputs": [list(p) for p in zip(spec.told_inputs, spec.inputs, strict=True)],
            "results": [list(p) for p in zip(spec.told_results, spec.results, strict=True)]}
