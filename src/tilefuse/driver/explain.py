"""The explanation of a program as plain data: what each kernel holds and moves, what was not fused and why.

`explain --json` prints it, `tools` renders it, and a saved program carries it. Units stand in the names.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tilefuse.plan.category import category_of
from tilefuse.plan.cost import AnalyticCost, Figure
from tilefuse.plan.pattern import LibraryCall, Plan, PlannedKernel
from tilefuse.runtime.spec import KernelCode, KernelStep, LibraryStep, ProgramSpec
from tilefuse.schedule.packed import Packed
from tilefuse.schedule.stitch_plan import StitchPlan
from tilefuse.schedule.tile import TileProgram
from tilefuse.target.device import DeviceSpec


def explanation_of(plan: Plan, spec: ProgramSpec, fallbacks: Iterable[tuple[str, str]], options: Mapping[str, object],
                   device: DeviceSpec | None = None) -> dict[str, Any]:
    """The explanation. `options`: those that differ from their defaults; fallbacks: (operator, reason).

    device: adds to each kernel the figures behind its cost; their units and origins stand once, under `figures`.
    """
    model = AnalyticCost(device) if device is not None else None
    figures = {} if model is None else {id(p): model.figures(p) for p in plan.programs}
    codes = [spec.kernels[s.kernel] for s in spec.steps if isinstance(s, KernelStep)]
    kernels = [_kernel(k, code, figures.get(id(k.program), ())) for k, code in zip(plan.kernels, codes, strict=True)]
    return {
        "name": spec.name,
        "device": plan.device,
        "options": dict(options),
        "objective_us": round(plan.objective_us, 3),
        "unfused_us": round(plan.unfused_us, 3),
        "num_kernels": len(kernels),
        "num_distinct_kernels": len(spec.kernels),
        "unfused_kernels": plan.unfused_kernels,
        "bytes": sum(k["bytes_read"] + k["bytes_written"] for k in kernels),
        "unfused_bytes": plan.unfused_bytes,
        "plan": _search(plan),
        "kernels": kernels,
        "figures": {f.name: {"unit": f.unit, "origin": f.origin} for told in list(figures.values())[:1] for f in told},
        "library": [_library(c) for c in plan.library_calls],
        "views": [{"value": v.value, "base": v.base, "offset": v.offset, "strides": list(v.strides)} for v in plan.views],
        "copies": [{"source": s.source, "target": s.target} for s in spec.steps if not isinstance(s, KernelStep | LibraryStep)],
        "layouts": {value: list(strides) for value, strides in sorted(plan.layouts.items())},
        "fallbacks": [{"operator": operator, "reason": reason} for operator, reason in fallbacks],
        "rejected": [{"first": r.first, "second": r.second, "reason": r.rejected.reason.value, "detail": r.rejected.detail}
                     for r in plan.rejected],
        "num_rejected": plan.num_rejected,
        "notes": list(plan.notes),
    }


def _search(plan: Plan) -> dict[str, Any]:
    """How the plan was found; `runtime.explanation` adds the seconds that it took, which differ from run to run.

    `objective_us`: time saved against one kernel a node (greedy) or a unit (ilp); `bound_us`: no choice of candidates saves more.
    """
    search = plan.search
    if search is None:
        return {"planner": "greedy", "objective_us": round(plan.unfused_us - plan.objective_us, 3), "bound_us": None, "proven": False,
                "rounds": 0, "cuts": 0, "greedy_us": None, "peak_bytes": None, "candidates": {}, "rejected": {}}
    return {"planner": search.planner, "objective_us": round(search.objective_us, 3), "bound_us": round(search.bound_us, 3),
            "proven": search.proven, "rounds": search.rounds, "cuts": search.cuts,
            "greedy_us": round(search.greedy_us, 3), "peak_bytes": search.peak_bytes, "candidates": dict(search.candidates),
            "rejected": dict(search.rejected)}


def _kernel(kernel: PlannedKernel, code: KernelCode, figures: Sequence[Figure]) -> dict[str, Any]:
    program = kernel.program
    return {
        "name": code.name,
        "step": kernel.name,
        "nodes": list(kernel.pattern.nodes),
        "writes": list(kernel.pattern.written),
        "edges": [{"producer": e.producer, "user": e.user, "level": e.level.value} for e in kernel.levels],
        "template": program.template,
        "notation": program.notation,
        "generator": kernel.generator,
        "category": category_of(program.graph.nodes),
        "bytes_read": program.bytes_read,
        "bytes_written": program.bytes_written,
        "flops": program.flops,
        "limit_us": round(kernel.limit_us, 4),
        "predicted_us": round(kernel.cost.us, 4),
        "bound_by": kernel.cost.source,
        "figures": {f.name: round(f.value, 4) for f in figures},
        # The code's launch, not the schedule's: composing the kernel settles how much shared memory it needs.
        "launch": {"num_blocks": code.launch.num_blocks, "num_threads": code.launch.num_threads, "cluster": code.launch.cluster,
                   "shared_bytes": code.launch.shared_bytes,
                   "shared_requested_bytes": _requested_bytes(program, code.launch.shared_bytes), "early": code.launch.early},
    }


def _requested_bytes(program: TileProgram, allocated: int) -> int:
    """Shared memory of a kernel if none of its arrays lay where another does that is not alive at the time.

    allocated: bytes a block that its launch asks for; those of a packed kernel are of the group that needs most.
    """
    groups = program.choice.groups if isinstance(program.choice, Packed) else ()
    plans = [p.internal for p in (program, *(g.program for g in groups)) if isinstance(p.internal, StitchPlan)]
    largest = max(plans, key=lambda p: p.shared_bytes, default=None)
    return allocated if largest is None or not allocated else allocated + largest.requested_bytes - largest.shared_bytes


def _library(call: LibraryCall) -> dict[str, Any]:
    return {"operator": call.operator, "operands": list(call.operands), "results": [[number, value] for number, value in call.results]}
