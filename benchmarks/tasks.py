"""Times of tasks: a wait behind a stage, a task, and whole models with and without the grid level.

    python -m benchmarks.tasks                     the figures of `target/fitted/tasks.py`, and launches beside them
    python -m benchmarks.tasks --costs             ticket, counters, polls, release, acquisition: a stage without each (`task_costs.py`)
    python -m benchmarks.tasks --models            decode step, recurrence, chain of small products: grid_level off and always
    python -m benchmarks.tasks --models --only 12  one of them; processes with one BENCHMARK_TURNS compile side by side and time in turns

A chain of stages that do next to nothing is one kernel: each task reads an element of the stage before and writes one. Its time over the
number of stages is a wait and a task; with several tasks a block, a stage of independent tasks gives the task alone. The same chain as
kernels of their own, replayed as one graph, gives a launch. Results are checked: every element has been counted up once a stage.
"""
from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks import turns
from benchmarks.timing import time_calls
from tilefuse.ir.affine import axis
from tilefuse.ir.dtype import F32, I32
from tilefuse.ir.scalar import Bound, call, const
from tilefuse.kernel.ir import Buffer, Group, If, Kernel, Let, Load, Member, Store
from tilefuse.kernel.launch_contract import pointer_parameters
from tilefuse.kernel.tasks.extract import TASK, program_of
from tilefuse.kernel.tasks.order import COUNTER_WORDS, OWN_COUNTERS, Segment, TaskOrder
from tilefuse.kernel.tasks.proof import prove
from tilefuse.kernel.tasks.statements import Await, Publish
from tilefuse.printers.cuda import print_cuda
from tilefuse.printers.host import print_host
from tilefuse.runtime.program import Program
from tilefuse.runtime.spec import KernelCode, KernelStep, ProgramSpec, Value
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.target.launch import Launch

STAGES, THREADS = 64, 128
COUNTERS = "counters"
# Options of the plans that `--models` times.
VARIANTS: dict[str, dict[str, Any]] = {
    "off": {}, "always": {"grid_level": "always"}, "priced": {"grid_level": "priced"},
    "weights behind the wait": {"grid_level": "always", "task_ahead": False},
    "one stage at once": {"grid_level": "always", "task_stages": 1}, "three stages at once": {"grid_level": "always", "task_stages": 3}}


def chain_kernel(stages: int, tasks: int, workers: int, waits: bool = True) -> Kernel:
    """Stages of `tasks` tasks that count elements up, from x to a, from a to b, from b to a and so on; `waits`: each behind the one before.

    Without waits every stage reads x and writes rows of a of its own, so that its tasks depend on nothing.
    """
    size = tasks * (1 if waits else stages)
    values = ("x", "a", "b")[:3 if waits else 2]
    parameters = tuple(Buffer(v, F32, tasks if v == "x" else size, "global", "in" if v == "x" else "out", v) for v in values)
    counters = Buffer(COUNTERS, I32, (OWN_COUNTERS + stages) * COUNTER_WORDS, "global", "counter")
    slots = (Buffer("before", F32, size, "global", "in"), Buffer("after", F32, size, "global", "out"))
    members = []
    for n in range(stages):
        arguments = ("x" if n == 0 else "a" if n % 2 else "b", "b" if n % 2 else "a") if waits else ("x", "a")
        numbers = (OWN_COUNTERS + n, OWN_COUNTERS + max(n - 1, 0), tasks if n and waits else 0, 0 if waits else n)
        members.append(Member(arguments, tasks, numbers))
    names = (("own", OWN_COUNTERS + stages), ("from", OWN_COUNTERS + stages), ("count", tasks + 1), ("row", stages))
    element = Load("before", F32, axis("block"))
    body = (Await(COUNTERS, axis("from"), axis("count")), Let("block", axis(TASK), tasks),
            If((Bound(axis("thread"), 0, 1),),
               (Store("after", axis("block") + axis("row") * tasks, call("add", element, const(1, F32))),)),
            Publish(COUNTERS, axis("own")))
    order = TaskOrder(tuple(Segment(0, n, tasks) for n in range(stages)), COUNTERS, OWN_COUNTERS + stages, ("one element",))
    group = Group(0, slots, tuple(members), body, names)
    kernel = Kernel(f"k_chain_{stages}_{tasks}_{workers}_{int(waits)}", (*parameters, counters), Launch(workers, THREADS), (group,),
                    tasks=order)
    assert not prove(program_of(kernel))
    return kernel


def chain_program(kernel: Kernel, device: DeviceSpec, place: str, changed: Callable[[str], str] = str) -> Program:
    """The kernel as a program of one step; its result is the buffer that the last stage writes. changed: the source that is compiled."""
    source = changed(print_host(kernel) if device.kind == "host" else print_cuda(kernel, device))
    code = KernelCode(kernel.name, kernel.name, source, device.kind, device.arch, kernel.launch, pointer_parameters(kernel),
                      one_structure=True)
    assert kernel.tasks is not None
    last = "a" if len(kernel.tasks.segments) % 2 or len(kernel.parameters) == 3 else "b"
    roles = {"x": "input", last: "result"}
    values = tuple(Value(b.name, "f32", (b.num_elements,), (1,), roles.get(b.name, "intermediate"))
                   for b in kernel.parameters if b.name != COUNTERS)
    arguments = tuple("" if b.name == COUNTERS else b.name for b in kernel.parameters)
    spec = ProgramSpec("chain", device.kind, ("x",), (last,), values, (code,), (KernelStep(0, arguments),))
    return Program(spec, {}, place)


def chain_us(device: torch.device, stages: int, tasks: int, workers: int, waits: bool = True) -> float:
    """Time of a chain. Units: microseconds."""
    program = chain_program(chain_kernel(stages, tasks, workers, waits), H200, str(device))
    x = torch.arange(tasks, dtype=torch.float32, device=device)
    timing, result = time_calls([lambda: program(x)], device)
    counted = result[0] if isinstance(result, (list, tuple)) else result
    expected = x + stages if waits else (x + 1).repeat(stages)
    assert torch.equal(counted, expected), "every stage counts every element up once"
    return timing.median_us


def figures(device: torch.device) -> dict[str, float]:
    """The fitted figures, and times beside them. Units: microseconds."""
    workers = torch.cuda.get_device_properties(device).multi_processor_count
    one = chain_us(device, 1, workers, workers)
    wait_and_task = (chain_us(device, STAGES + 1, workers, workers) - one) / STAGES
    alone = (chain_us(device, STAGES + 1, 1, 1) - chain_us(device, 1, 1, 1)) / STAGES
    task = (chain_us(device, STAGES, workers, workers, waits=False) - one) / (STAGES - 1)
    programs = [chain_program(chain_kernel(1, workers, workers), H200, str(device)) for _ in range(1)]

    def launches(x: torch.Tensor) -> torch.Tensor:
        for _ in range(STAGES):
            x = programs[0](x)[0]
        return x

    x = torch.zeros(workers, device=device)
    timing, _ = time_calls([lambda: launches(x)], device)
    return {"wait_us": wait_and_task - task, "task_us": task, "wait and task of one block": alone, "kernel of one stage": one,
            "one launch of a graph": timing.median_us / STAGES, "blocks": float(workers)}


def models(device: torch.device, only: str = "", variants: Sequence[str] = tuple(VARIANTS)) -> Iterator[dict[str, object]]:
    """Times of whole models without the grid level, and with it in several forms. only: part of a model's name. Units: microseconds."""
    import tilefuse
    from tests.unit.templates.tasks.task_models import decode_step, normed_chain, recurrence

    cases = {"decode, 4 layers": decode_step(4), "LSTM, 32 steps": recurrence(32), "12 products": normed_chain()}
    for name, (model, inputs) in cases.items():
        if only not in name:
            continue
        model, moved = model.to(device), tuple(x.to(device) for x in inputs)
        with torch.no_grad():
            expected = model(*moved)
            for variant in variants:
                program = tilefuse.compile(model, moved, device=str(device), **VARIANTS[variant])
                kernels = len(program.explain(json=True)["kernels"])
                with turns.held():
                    timing, result = time_calls([partial(program, *moved)], device)
                first, wanted = (r[0] if isinstance(r, (list, tuple)) else r for r in (result, expected))
                torch.testing.assert_close(first, wanted, rtol=1e-3, atol=1e-4)
                yield {"model": name, "variant": variant, "us": timing.median_us, "kernels": kernels}


def main() -> None:
    """Prints one line of JSON for each measurement."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks", description=__doc__)
    parser.add_argument("--models", action="store_true", help="whole models, in place of the figures")
    parser.add_argument("--costs", action="store_true", help="what each part of a stage costs, in place of the figures")
    parser.add_argument("--only", default="", help="with --models: the models whose names contain this")
    parser.add_argument("--variant", choices=tuple(VARIANTS), action="append", help="with --models: this variant, again for others")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("tasks are timed on a GPU, and there is none")
    device = torch.device("cuda", torch.cuda.current_device())
    if arguments.models:
        rows: Iterable[dict[str, object]] = models(device, arguments.only, arguments.variant or tuple(VARIANTS))
    elif arguments.costs:
        from benchmarks.task_costs import costs
        rows = costs(device)
    else:
        rows = [{"device": torch.cuda.get_device_name(device), **figures(device)}]
    for row in rows:
        print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}), flush=True)


if __name__ == "__main__":
    main()
