"""One measurement of a workload for a peer: correct first, then timed, then what the device ran and what the compiler made of it."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks import turns
from benchmarks.case import Tensors, as_tuple
from benchmarks.launches import Launches, facts_of, launches_of
from benchmarks.optimisers import State
from benchmarks.peers import NotApplicable, warm
from benchmarks.timing import time_calls, wait
from benchmarks.workloads import Task, batch_as, by_name, dtype_of, state_on

SEED = 815


def measure_workload(name: str, peer: str, device: torch.device, *, inductor_mode: str, tiny: bool) -> dict[str, Any]:
    """Compile, compare outputs and updated state with double precision, time, count.

    Units: microseconds a step, seconds to compile.
    """
    workload = by_name(name)
    dtype = dtype_of(workload)
    warm(peer, device)
    torch.manual_seed(SEED)
    task = workload.make(tiny)
    fresh = task.state()
    generator = torch.Generator(device).manual_seed(SEED)
    batches = [batch_as(task.batch(device, generator), dtype) for _ in range(2)]
    with torch.no_grad():
        eager_error = error_of(task, fresh, batches[0], *_stepped(task.step, state_on(fresh, device, dtype), batches[0]))
        first = _first_step(task, peer, inductor_mode, lambda: state_on(fresh, device, dtype), batches[0])
        step, outputs, state = first.step, first.outputs, first.state
        error = error_of(task, fresh, batches[0], outputs, state)
        timing, _ = time_calls([lambda b=b: step(state, *b) for b in batches], device, budget_s=1.0)
        found = compiled_facts() if peer == "tilefuse" else {}
        launches = launches_of(lambda: step(state, *batches[1]), device, found.get("categories"))
        if peer == "eager":
            found["graph_size"] = graph_size(task, state_on(fresh, device, dtype), batches[0])
    categories = found.pop("categories", {})
    shared = found.pop("shared", {})
    record: dict[str, Any] = {
        "status": "ok", "us": timing.median_us, "low_us": timing.low_us, "high_us": timing.high_us, "method": timing.method,
        "compile_s": round(first.compile_s, 3), "error": error, "eager_error": eager_error, **found, **facts_of(launches),
        **pattern_times(launches, categories, shared), **first.told,
    }
    if not error <= 2 * eager_error + 2.5e-3:
        record["status"] = "wrong"
        record["reason"] = f"relative error {error:.3g} where eager has {eager_error:.3g}"
    return record


@dataclass(frozen=True)
class _First:
    """A peer's step after its first call. `told` says what had to be set for it. Units: seconds."""

    step: Callable[..., Tensors]
    outputs: Tensors
    state: State
    compile_s: float
    told: dict[str, str]


def _first_step(task: Task, peer: str, inductor_mode: str, fresh: Callable[[], State], batch: Tensors) -> _First:
    """Compile and run once. Where torch.compile stumbles over itself it is asked again without moving loops for fusion.

    Its search asserts in torch 2.11 (`reorder_loops_by_dep_pair`) on a step with templates among the kernels it tries to fuse.
    """
    from torch._inductor import config
    from torch._inductor.exc import InductorError

    told: dict[str, str] = {}
    while True:
        step, state = compiled_step(task, peer, inductor_mode), fresh()
        started = turns.clock()
        try:
            with turns.let_go(), config.patch(loop_ordering_after_fusion=False) if told else nullcontext():
                outputs, state = _stepped(step, state, batch)
                wait(batch[0].device)
                compile_s = turns.clock() - started
            return _First(step, outputs, state, compile_s, told)
        except InductorError as error:
            if peer != "inductor" or told or "AssertionError" not in str(error):
                raise
            told = {"setting": "loop_ordering_after_fusion=False, because it fails without"}


def compiled_step(task: Task, peer: str, inductor_mode: str) -> Callable[..., Tensors]:
    """The step as the peer runs it, one graph for compilers. Raises: NotApplicable for a peer that has no way to run it."""
    torch._dynamo.reset()
    match peer:
        case "eager":
            return task.step
        case "inductor":
            return torch.compile(task.step, dynamic=False, fullgraph=True, mode=None if inductor_mode == "default" else inductor_mode)
        case "tilefuse":
            from tilefuse.driver import torch_backend

            torch_backend.reset()
            # Strict: a graph that cannot be compiled must not be timed as eager under our name.
            return torch.compile(task.step, backend=torch_backend.backend, dynamic=False, fullgraph=True, options={"strict": True})
    raise NotApplicable(f"{peer} has no version of the workloads")


def _stepped(step: Callable[..., Tensors], state: State, batch: Tensors) -> tuple[Tensors, State]:
    outputs = as_tuple(step(state, *batch))
    return tuple(t.clone() for t in outputs), state


def error_of(task: Task, fresh: State, batch: Tensors, outputs: Tensors, state: State) -> float:
    """Largest relative error of the outputs, and of what a step changed in each group of the state, against double precision."""
    device, dtype = batch[0].device, state[0][0].dtype
    before = state_on(state_on(fresh, device, dtype), device, torch.float64)
    wide_state, wide_batch = [[t.clone() for t in group] for group in before], batch_as(batch, torch.float64)
    wanted = task.step(wide_state, *wide_batch) if task.scored is None else task.scored(wide_state, wide_batch, outputs)
    errors = [joint_error([out], [ref]) for out, ref in zip(outputs, wanted, strict=True)]
    for old, new, reference in zip(before, state, wide_state, strict=True):
        errors.append(joint_error([n.double() - o for n, o in zip(new, old)], [r - o for r, o in zip(reference, old)]))
    return max(errors)


def joint_error(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """||found - wanted|| / ||wanted|| over all tensors together; absolute where nothing is wanted, infinite where one is not a number."""
    difference = sum((f.double() - w.double()).square().sum().item() for f, w in zip(found, wanted, strict=True)) ** 0.5
    scale = sum(w.double().square().sum().item() for w in wanted) ** 0.5
    error = difference / scale if scale else difference
    return float(error) if error == error else float("inf")


def graph_size(task: Task, state: State, batch: Tensors) -> int:
    """Operators of the step as torch traces it, forward, backward and update. The state is changed."""
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = make_fx(task.step)(state, *batch)
    return sum(node.op == "call_function" and "getitem" not in str(node.target) for node in traced.graph.nodes)


def compiled_facts() -> dict[str, Any]:
    """Facts about tilefuse's programs: counts, classes of patterns, shared memory; `categories` and `shared` (bytes) by kernel name."""
    from tilefuse.driver import torch_backend

    explanations = [part.program.explain(json=True) for part in torch_backend.compiled_parts()]
    kernels = [k for e in explanations for k in e["kernels"]]
    return {
        "num_programs": len(explanations),
        "num_kernels": len(kernels),
        "unfused_kernels": sum(e["unfused_kernels"] for e in explanations),
        "num_library_calls": sum(len(e["library"]) for e in explanations),
        "num_copies": sum(len(e["copies"]) for e in explanations),
        "fallbacks": sorted({f["operator"] for e in explanations for f in e["fallbacks"]}),
        "patterns": pattern_counts(kernels),
        "shared_memory": shared_facts(kernels),
        "categories": {k["name"]: k["category"] for k in kernels},
        "shared": {k["name"]: k["launch"]["shared_bytes"] for k in kernels},
    }


def pattern_counts(kernels: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Kernels of each class."""
    found = {"elementwise": 0, "reduction": 0, "product": 0}
    for kernel in kernels:
        found[kernel["category"]] += 1
    return found


def shared_facts(kernels: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Share of kernels with shared memory, mean and largest bytes among those, and allocated over requested where that is told."""
    used = [k for k in kernels if k["launch"]["shared_bytes"]]
    asked = [k for k in used if k["launch"].get("shared_requested_bytes")]
    requested = sum(k["launch"]["shared_requested_bytes"] for k in asked)
    return {
        "share": len(used) / len(kernels) if kernels else None,
        "average_bytes": sum(k["launch"]["shared_bytes"] for k in used) / len(used) if used else None,
        "largest_bytes": max((k["launch"]["shared_bytes"] for k in used), default=None),
        "allocated_of_requested": sum(k["launch"]["shared_bytes"] for k in asked) / requested if requested else None,
    }


def pattern_times(launches: Sequence[Launches] | None, categories: Mapping[str, str], shared: Mapping[str, int]) -> dict[str, Any]:
    """Time of tilefuse's own kernels by class, and the share of it spent in kernels with shared memory; nothing where none were timed.

    Units: microseconds a step.
    """
    ours = [x for x in launches or () if x.name in categories]
    if not ours:
        return {}
    us = {"elementwise": 0.0, "reduction": 0.0, "product": 0.0}
    for launch in ours:
        us[categories[launch.name]] += launch.us
    with_shared = sum(x.us for x in ours if shared.get(x.name))
    return {"pattern_us": us, "shared_time_share": with_shared / sum(us.values()) if sum(us.values()) else None}
