"""Training steps of attention with a learned bias: forward and gradients, by tilefuse with either option, eager torch, and Inductor.

    python -m benchmarks.attention.biases                         times and checks all cases on the device at hand
    python -m benchmarks.attention.biases --predict h200          predicted times of the forms that torch records on a CPU
    python -m benchmarks.attention.biases plain/bf16/table/32x12x512x64 --record FILE

A case names the form (plain: products and a softmax; call: scaled_dot_product_attention), the type, the bias (table: of buckets and heads;
heads: shared by batches; dense), and batch x heads x rows x width. Gradients are compared with double precision before a step is timed.
Times are those of calls, and of the kernels that a call starts.
"""
from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.launches import launches_of
from benchmarks.timing import num_input_sets, time_calls
from benchmarks.training_plans import planned_step
from tilefuse.base.options import Options
from tilefuse.driver.torch_backend import backend
from tilefuse.target.catalog import device_by_name

CASES = ("plain/bf16/table/32x12x512x64", "plain/bf16/heads/32x12x512x64", "call/bf16/heads/32x12x512x64", "call/bf16/dense/8x16x1024x64",
         "plain/f16/table/512x3x49x32", "call/f16/heads/512x6x49x32", "call/bf16/heads/64x12x197x64", "plain/bf16/heads/4x16x2048x128")
NAME = re.compile(r"(?P<form>plain|call)/(?P<dtype>f16|bf16)/(?P<bias>table|heads|dense)/(?P<shape>\d+x\d+x\d+x\d+)$")
TYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
BUCKETS = 32
# Characters of a kernel's name that a record keeps.
SHOWN = 60
# Largest difference from double precision over the largest element: roundings of operands, powers and results.
BOUND = {torch.float16: 8e-3, torch.bfloat16: 6e-2}


@dataclass(frozen=True)
class Step:
    """A case."""

    form: str
    dtype: torch.dtype
    bias: str
    shape: tuple[int, int, int, int]

    def inputs(self, device: torch.device) -> list[torch.Tensor]:
        """Queries, keys, values, the bias or its table, and the buckets of a table."""
        batch, heads, rows, width = self.shape
        draw = torch.Generator(device=device).manual_seed(0)
        shapes = {"table": (BUCKETS, heads), "heads": (1, heads, rows, rows), "dense": (batch, heads, rows, rows)}
        values = [torch.randn(s, device=device, generator=draw).to(self.dtype).requires_grad_()
                  for s in (*(self.shape for _ in range(3)), shapes[self.bias])]
        of_table = [torch.randint(BUCKETS, (rows, rows), device=device, generator=draw)] if self.bias == "table" else []
        return [*values, *of_table]

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, *buckets: torch.Tensor) -> torch.Tensor:
        """The attention."""
        if buckets:
            bias = bias[buckets[0]].permute(2, 0, 1)[None]
        if self.form == "call":
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(*q.shape[:-1], k.shape[-2]))
        return torch.softmax((q @ k.mT * q.shape[-1] ** -0.5 + bias).float(), -1).to(v.dtype) @ v


def step_of(name: str) -> Step:
    """The case of a name. Raises: ValueError for one that is none."""
    match = NAME.match(name)
    if match is None:
        raise ValueError(f"{name!r} is no case; one is {CASES[0]}")
    batch, heads, rows, width = map(int, match["shape"].split("x"))
    return Step(match["form"], TYPES[match["dtype"]], match["bias"], (batch, heads, rows, width))


def gradients(run: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor], g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Gradients of queries, keys, values and the bias."""
    return torch.autograd.grad(run(*inputs), list(inputs[:4]), g)


def error_of(step: Step, inputs: Sequence[torch.Tensor], g: torch.Tensor, of: Sequence[torch.Tensor]) -> float:
    """Largest difference from double precision over the largest element, of one head after another."""
    worst, exact_bias = 0.0, torch.zeros_like(inputs[3], dtype=torch.float64)
    plain = Step("plain", torch.float64, step.bias, step.shape)
    for batch in range(step.shape[0]):
        wide = [x[batch:batch + 1].detach().double().requires_grad_() for x in inputs[:3]]
        dense = step.bias == "dense"
        bias = (inputs[3][batch:batch + 1] if dense else inputs[3]).detach().double().requires_grad_()
        *exact, of_bias = gradients(plain.run, [*wide, bias, *inputs[4:]], g[batch:batch + 1].double())
        (exact_bias[batch:batch + 1] if dense else exact_bias).add_(of_bias)
        worst = max(worst, *(_difference(x[batch:batch + 1], y) for x, y in zip(of[:3], exact, strict=True)))
    return max(worst, _difference(of[3], exact_bias))


def _difference(x: torch.Tensor, exact: torch.Tensor) -> float:
    return float((x.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-3))


def contenders(step: Step) -> dict[str, Callable[..., torch.Tensor]]:
    """Executions of a step by name."""
    compiled = {f"tilefuse, gradients by {taken}": torch.compile(step.run, backend=backend, dynamic=False,
                                                                 options={"attention_gradients": taken}) for taken in ("auto", "library")}
    return compiled | {"eager": step.run, "inductor": torch.compile(step.run, dynamic=False)}


def time_case(name: str, record: Callable[[dict[str, Any]], None], each_s: float, place: torch.device) -> None:
    """Checks and times a case."""
    step = step_of(name)
    first = step.inputs(place)
    g = torch.randn(step.shape, device=place, generator=torch.Generator(device=place).manual_seed(1)).to(step.dtype)
    num_sets = num_input_sets(sum(x.numel() * x.element_size() for x in first), place, 4)
    sets = [first, *([x.detach().clone().requires_grad_(x.requires_grad) for x in first] for _ in range(num_sets - 1))]
    print(f"== {name}", flush=True)
    for label, run in contenders(step).items():
        torch._dynamo.reset()
        try:
            error = error_of(step, first, g, gradients(run, first, g))
            timed, _ = time_calls([partial(gradients, run, x, g) for x in sets], place, budget_s=each_s, capture=False)
        except Exception as problem:  # one contender that fails must not end the case
            print("      no", label, type(problem).__name__, str(problem)[:120], flush=True)
            continue
        right = error <= BOUND[step.dtype]
        kernels = launches_of(partial(gradients, run, first, g), place) or []
        device_us = sum(k.us for k in kernels)
        told = f"{label}, error {error:.1e}{'' if right else ' WRONG'}"
        print(f"  {timed.median_us:9.2f} us, {device_us:9.2f} us of kernels  {told}", flush=True)
        record({"case": name, "who": label, "us": round(timed.median_us, 2), "device_us": round(device_us, 2),
                "error": float(f"{error:.1e}"), "right": right, "kernels": [(k.name[:SHOWN], round(k.us, 2)) for k in kernels]})


def predict(name: str, device: str) -> None:
    """Prints predicted times of forward and backward with both options, of products: a CPU records calls as other products."""
    step = step_of(name)
    if step.form == "call":
        print(f"{name}: torch records a call on a GPU alone")
        return
    for taken in ("auto", "library"):
        options = Options().with_overrides(attention_gradients=taken, plan_cache=False)
        inputs = step.inputs(torch.device("cpu"))
        parts = planned_step(lambda *x: step.run(*x).float().square().mean(), inputs, device_by_name(device), options)
        print(f"{name} {taken}:", *(f"{p.kind} {p.us:.1f} us in {len(p.made.plan.steps)} steps" for p in parts), flush=True)


def main(words: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention.biases", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--predict", default="", help="a device's name: prints predictions, and times nothing")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--each", type=float, default=0.2, help="seconds for one step")
    chosen = parser.parse_args(words)
    if chosen.predict:
        for name in chosen.cases:
            predict(name, chosen.predict)
        return
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def record(line: dict[str, Any]) -> None:
        if chosen.record:
            with chosen.record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    for name in chosen.cases:
        time_case(name, record, chosen.each, place)


if __name__ == "__main__":
    main()
