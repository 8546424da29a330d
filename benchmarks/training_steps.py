"""A training step by several options of tilefuse, one after the other: times, errors, and the kernels that one step has and the other not.

    python -m benchmarks.training_steps bert-base gpt2 llama --options attention_gradients=library attention_gradients=kernels
    python -m benchmarks.training_steps bert-base --kernels         every kernel of each step with its time, by the profiler
    python -m benchmarks.training_steps llama --no-errors           times alone: a step in f64 takes longer than all others

A step is forward, loss and backward in bf16, recorded as a CUDA graph where it can be. `error` is that of loss and gradients together
against f64; a step is right where it is at most twice eager torch's. `benchmarks.training_plans` has the plans and predicted times, on any
machine. Units: microseconds.
"""
from __future__ import annotations

import argparse
import copy
import json
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks import planned_kernels
from benchmarks.architectures import ARCHITECTURES
from benchmarks.case import DTYPES, as_tuple
from benchmarks.launches import Launches, launches_of
from benchmarks.models import joint_error
from benchmarks.timing import time_calls
from tilefuse.driver import torch_backend
from tilefuse.tools.programs import parse_options

# Differences of a kernel's time between two options that are printed.
LEAST_US = 2.0


def step_of(network: Callable[..., Any], parameters: list[torch.Tensor], loss_of: Callable[..., torch.Tensor],
            inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Loss and gradients."""
    loss = loss_of(*as_tuple(network(*inputs)))
    return (loss, *torch.autograd.grad(loss, parameters))


def _on_host(results: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(t.detach().cpu() for t in results)


def _exact(model: torch.nn.Module, loss_of: Callable[..., torch.Tensor],
           inputs: tuple[torch.Tensor, ...]) -> tuple[tuple[torch.Tensor, ...], float]:
    """Loss and gradients in f64, and the error of eager torch's."""
    exact_model = copy.deepcopy(model).double()
    wide = tuple(t.double() if t.dtype.is_floating_point else t for t in inputs)
    exact = _on_host(step_of(exact_model, list(exact_model.parameters()), loss_of, wide))
    return exact, joint_error(_on_host(step_of(model, list(model.parameters()), loss_of, inputs)), exact)


def measure(name: str, texts: list[str], device: torch.device, batch: int, tiny: bool, rounds: int, kernels: bool, errors: bool) -> None:
    """Prints a line of JSON for each setting, then what their kernels differ in from those of the first."""
    architecture = ARCHITECTURES[name]
    torch.manual_seed(planned_kernels.SEED)
    model = architecture.build(tiny).to(device, DTYPES["bf16"]).train()
    generator = torch.Generator(device).manual_seed(planned_kernels.SEED)
    inputs = architecture.inputs(batch, tiny, device, DTYPES["bf16"], generator)
    parameters = list(model.parameters())
    exact, eager_error = _exact(model, architecture.loss, inputs) if errors else (None, 0.0)
    by_name: dict[str, dict[str, Launches]] = {}
    for text in texts:
        # Programs of the option before are gone then: one function has no two of them, of which the second is compiled behind its calls.
        torch._dynamo.reset()
        torch_backend.reset()
        options = {"strict": True} | parse_options(text.split(","))
        compiled = torch.compile(model, backend=torch_backend.backend, dynamic=False, options=options)
        step = partial(step_of, compiled, parameters, architecture.loss, inputs)
        step()
        us = [time_calls([step], device, budget_s=0.5)[0].median_us for _ in range(rounds)]
        row: dict[str, Any] = {"model": name, "options": text, "us": round(statistics.median(us), 1), "low": round(min(us), 1),
                               "high": round(max(us), 1)}
        if exact is not None:
            error = joint_error(_on_host(step()), exact)
            row |= {"error": float(f"{error:.2e}"), "eager": float(f"{eager_error:.2e}"), "right": error <= 2 * eager_error + 2.5e-3}
        print(json.dumps(row), flush=True)
        launches = launches_of(step, device) or []
        by_name[text] = {x.name: x for x in launches}
        for x in launches if kernels else ():
            print(f"{x.us:9.1f} in {x.count:6.1f}: {x.name[:120]}", flush=True)
    for text in texts[1:]:
        print_differences(by_name[texts[0]], by_name[text], texts[0], text)


def print_differences(first: dict[str, Launches], other: dict[str, Launches], first_text: str, other_text: str) -> None:
    """Kernels that take longer in one step than in the other, the largest differences first."""
    changes = {name: (other[name].us if name in other else 0.0) - (first[name].us if name in first else 0.0) for name in {**first, **other}}
    print(f"{other_text} beside {first_text}: {sum(changes.values()):+.1f} us of all kernels")
    for name, change in sorted(changes.items(), key=lambda item: -abs(item[1])):
        if abs(change) >= LEAST_US:
            counts = [x[name].count if name in x else 0.0 for x in (first, other)]
            print(f"  {change:+9.1f} us  {counts[0]:5.1f} -> {counts[1]:5.1f}  {name[:110]}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_steps", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=sorted(n for n, a in ARCHITECTURES.items() if a.train))
    parser.add_argument("--options", nargs="+", default=["attention_gradients=library", "attention_gradients=kernels"],
                        help="settings to compare: NAME=VALUE, several separated by commas")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tiny", action="store_true", help="small sizes, for trying the command")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--kernels", action="store_true", help="print every kernel")
    parser.add_argument("--errors", action=argparse.BooleanOptionalAction, default=True, help="compare each step with f64")
    asked = parser.parse_args()
    for name in asked.models:
        measure(name, asked.options, torch.device(asked.device), asked.batch, asked.tiny, asked.rounds, asked.kernels,
                asked.errors)
        if asked.device.startswith("cuda"):
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
