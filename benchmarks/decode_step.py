"""One decode step of a model of Llama 3.2 1B's kind, bf16: eager torch, torch.compile and tilefuse in CUDA graphs, and the bytes' time.

    python -m benchmarks.decode_step                                batch 1 with 512 places, batch 8 with 4096
    python -m benchmarks.decode_step --cases 1x512 --without inductor --options grid_level=priced
    python -m benchmarks.decode_step --cases 1x512 --without eager inductor --kernels      times of tilefuse's kernels, by the profiler
    python -m benchmarks.decode_step --plan h200                    kernels and predicted times of the plan, on any machine

The model is plain torch (`benchmarks.decoders.LlamaStep`); the last place of the cache is written. `error` is the largest difference from
f64 arithmetic over the largest score, of one step behind a cache of random keys and values.
"""
from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.decoders import LlamaStep
from benchmarks.launches import launches_of
from benchmarks.timing import copy_bytes_per_s, time_calls
from tilefuse.driver.torch_backend import backend
from tilefuse.tools.programs import parse_options

CASES = ((1, 512), (8, 4096))
DTYPE = torch.bfloat16
SEED = 3
# Bytes that the copy moves whose rate bounds a step.
COPIED_BYTES = 2 << 30


def built(batch: int, length: int, device: torch.device, **sizes: int) -> tuple[LlamaStep, tuple[Tensor, Tensor]]:
    """The model, whose cache is full but for the last place, and a token for each sequence."""
    torch.manual_seed(SEED)
    with device:
        model = LlamaStep(batch, length, **sizes).to(DTYPE).eval()
        return model, (torch.randint(0, model.words.num_embeddings, (batch, 1)), torch.tensor([length - 1]))


def num_bytes(model: LlamaStep) -> int:
    """What a step reads at least: every weight and the whole cache, once."""
    return sum(x.numel() * x.element_size() for x in (*model.parameters(), *model.buffers()))


def print_plan(batch: int, length: int, target: str, options: dict[str, Any], sizes: dict[str, int]) -> None:
    """Kernels of one name together: how many, their time by the model of time, which one they are."""
    from benchmarks.suite_graphs import captured_graphs
    from tilefuse.base.options import Options
    from tilefuse.driver.compile import generate
    from tilefuse.target.catalog import device_by_name

    model, inputs = built(batch, length, torch.device("cpu"), **sizes)
    device = device_by_name(target)
    imported = captured_graphs(model, inputs)[0]
    started = time.perf_counter()
    plan = generate(imported.graph, constants=imported.constants, input_layouts=imported.layouts, device=device,
                    options=Options().with_overrides(plan_cache=False, **options)).plan
    kernels: Counter[str] = Counter()
    us: Counter[str] = Counter()
    for k in plan.kernels:
        kernels[k.program.notation] += 1
        us[k.program.notation] += k.cost.us
    print(f"{batch}x{length}: {len(plan.kernels)} kernels, {sum(us.values()):.1f} us predicted, bytes alone "
          f"{num_bytes(model) / device.global_bytes_per_s * 1e6:.1f} us, planned in {time.perf_counter() - started:.1f} s")
    for notation, total in us.most_common():
        print(f"{total:9.1f} us in {kernels[notation]:3d}: {notation[:200]}")
    print(f"calls: {len(plan.steps) - len(plan.kernels)}")


def calls_of(model: LlamaStep, inputs: tuple[Tensor, Tensor], without: list[str],
             options: dict[str, Any]) -> dict[str, Callable[[], Callable[..., Any]]]:
    """How to make each competitor's step."""
    makers: dict[str, Callable[[], Callable[..., Any]]] = {
        "eager": lambda: model,
        "tilefuse": lambda: torch.compile(model, backend=backend, dynamic=False, fullgraph=True, options=options),
        "inductor": lambda: torch.compile(model, mode="max-autotune-no-cudagraphs", dynamic=False, fullgraph=True)}
    return {name: make for name, make in makers.items() if name not in without}


def measure(batch: int, length: int, without: list[str], options: dict[str, Any], kernels: bool) -> None:
    """Prints a line of JSON for each competitor."""
    device = torch.device("cuda", torch.cuda.current_device())
    model, inputs = built(batch, length, device)
    limit_bytes = num_bytes(model)
    with torch.no_grad():
        exact = _in_double(model, inputs)
        for name, make in calls_of(model, inputs, without, options).items():
            torch._dynamo.reset()
            started = time.perf_counter()
            step = make()
            scores = step(*inputs)
            cold_s = time.perf_counter() - started
            error = float((scores.double() - exact).abs().max() / exact.abs().max())
            timing, _ = time_calls([partial(step, *inputs)], device, budget_s=0.5)
            row = {"case": f"{batch}x{length}", "who": name, "us": round(timing.median_us, 1), "error": float(f"{error:.1e}"),
                   "first call, s": round(cold_s, 1), "TB/s": round(limit_bytes / timing.median_us / 1e6, 2)}
            print(json.dumps(row), flush=True)
            if kernels and name == "tilefuse":
                for x in launches_of(partial(step, *inputs), device) or ():
                    print(f"{x.us:9.1f} us in {x.count:6.1f}: {x.name[:120]}", flush=True)
    limit_us = limit_bytes / copy_bytes_per_s(COPIED_BYTES, device) * 1e6
    print(json.dumps({"case": f"{batch}x{length}", "bytes": limit_bytes, "us at the copy rate": round(limit_us, 1)}), flush=True)


def _in_double(model: LlamaStep, inputs: tuple[Tensor, Tensor]) -> Tensor:
    import copy

    exact = copy.deepcopy(model).double()
    scores: Tensor = exact(*inputs)
    return scores


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode_step", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=[f"{b}x{n}" for b, n in CASES], help="BATCHxPLACES")
    parser.add_argument("--without", nargs="*", default=[], choices=("eager", "tilefuse", "inductor"))
    parser.add_argument("--options", default="", help="of tilefuse: NAME=VALUE, separated by commas")
    parser.add_argument("--kernels", action="store_true", help="print times of tilefuse's kernels")
    parser.add_argument("--plan", default="", help="name of a device whose plan is printed")
    parser.add_argument("--layers", type=int, default=16, help="of --plan")
    asked = parser.parse_args()
    options = parse_options([x for x in asked.options.split(",") if x])
    for case in asked.cases:
        batch, length = map(int, case.split("x"))
        if asked.plan:
            print_plan(batch, length, asked.plan, options, {"layers": asked.layers})
        else:
            measure(batch, length, asked.without, options, asked.kernels)


if __name__ == "__main__":
    main()
