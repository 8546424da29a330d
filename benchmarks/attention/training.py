"""Training steps of attention in plain PyTorch, with and without dropout: times and memory of the forward and backward part together.

    python -m benchmarks.attention.training                            all cases on the device at hand
    python -m benchmarks.attention.training 4x16x1024x64/0.1 --record FILE

Each case runs four ways: kernels from logarithms (`attention_gradients=kernels`), torch's derivative with the softmax in memory
(`library`), torch.compile in its default mode, and the operator `scaled_dot_product_attention` in eager torch. Gradients are compared with
double precision and the mask of the same seed by `tests/gpu/test_attention_steps.py`.
"""
from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.launches import launches_of
from benchmarks.timing import time_calls
from tilefuse.driver.torch_backend import backend

CASES = ("4x16x1024x64/0.1", "4x16x1024x64/0.0", "64x12x128x64/0.1", "16x12x512x64/0.1", "8x12x1024x64/0.1", "4x16x2048x128/0.1")
# Characters of a kernel's name that a record keeps.
SHOWN = 60
NAME = re.compile(r"(\d+)x(\d+)x(\d+)x(\d+)/(0\.\d+)")
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Step:
    """Attention of [batch, heads, length, width] in bf16. drop: probability of its dropout."""

    batch: int
    heads: int
    length: int
    width: int
    drop: float

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Products with a softmax and a dropout between them."""
        p = torch.softmax(q @ k.mT * self.width**-0.5, -1, dtype=torch.float32).to(q.dtype)
        return F.dropout(p, self.drop) @ v

    def called(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Torch's operator."""
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.drop)


def step_of(name: str) -> Step:
    """The case of a name such as 4x16x1024x64/0.1. Raises: SystemExit for another text."""
    match = NAME.fullmatch(name)
    if match is None:
        raise SystemExit(f"no case {name!r}: a case is BATCHxHEADSxLENGTHxWIDTH/PROBABILITY")
    batch, heads, length, width = (int(n) for n in match.groups()[:4])
    return Step(batch, heads, length, width, float(match.group(5)))


def ways_of(step: Step, with_peers: bool = True) -> dict[str, Attention]:
    """The ways that a case runs, by name. with_peers: torch.compile and the operator among them."""
    ours = {taken: torch.compile(step.attention, backend=backend, dynamic=False, options={"attention_gradients": taken})
            for taken in ("kernels", "library")}
    return ours if not with_peers else {**ours, "torch.compile": torch.compile(step.attention, dynamic=False), "operator": step.called}


def measured(step: Step, attention: Attention, device: torch.device) -> dict[str, Any]:
    """Microseconds of a step and of its kernels, and megabytes between its parts beside arguments and result."""
    q, k, v = (torch.randn(step.batch, step.heads, step.length, step.width, device=device, dtype=torch.bfloat16).requires_grad_()
               for _ in range(3))
    g = torch.randn_like(q)

    def run() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(attention(q, k, v), (q, k, v), g)

    run()
    before = memory_bytes(device)
    y = attention(q, k, v)
    saved = memory_bytes(device) - before - y.numel() * y.element_size()
    del y
    # Steps draw a seed at each call, so they are no CUDA graph.
    timing, _ = time_calls([run], device, capture=False)
    kernels = launches_of(run, device) or []
    return {"us": round(timing.median_us, 2), "device_us": round(sum(k.us for k in kernels), 2), "kept_mb": saved / 2**20,
            "kernels": [(k.name[:SHOWN], round(k.us, 2)) for k in kernels]}


def memory_bytes(device: torch.device) -> int:
    """Memory that tensors have now; 0 on a CPU."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each case and way."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.attention.training", description=__doc__)
    options.add_argument("cases", nargs="*", metavar="CASE")
    options.add_argument("--device", default="cuda", help="where the steps run")
    options.add_argument("--record", type=Path, help="file for the lines as JSON")
    asked = options.parse_args(arguments)
    for name in asked.cases or CASES:
        step = step_of(name)
        torch._dynamo.reset()
        for way, attention in ways_of(step, asked.device != "cpu").items():
            row = {"case": name, "way": way, **measured(step, attention, torch.device(asked.device))}
            print(json.dumps({k: v for k, v in row.items() if k != "kernels"}), flush=True)
            if asked.record is not None:
                with asked.record.open("a", encoding="utf-8") as record:
                    record.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
