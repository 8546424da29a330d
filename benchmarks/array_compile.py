"""Time of a new process from a network to its compiled training step, as one JSON line: `python -m benchmarks.array_compile cuda:0`.

Imports, weights and the libraries' own start are not counted. benchmarks/arrays.py runs this twice, with an empty cache and a full one.
"""
from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

import tilefuse.array as ta
from benchmarks.array_networks import Plan, ResNet
from tilefuse import nn, optim

# One block a stage: about a thousand nodes with the updates of all parameters.
PLAN = Plan((1, 1, 1, 1), 64, False)
BATCH = 64


def main(arguments: list[str]) -> None:
    """Print the times. Units: seconds."""
    device, tiny = torch.device(arguments[0]), "--tiny" in arguments
    batch, side = (2, 32) if tiny else (BATCH, 224)
    model = ResNet(Plan((1, 1), 8, False, 10) if tiny else PLAN)
    x, classes = torch.zeros((batch, 3, side, side), device=device), torch.zeros((batch,), dtype=torch.int64, device=device)
    first = nn.TrainingStep(nn.Sequential(nn.Flatten(), nn.Linear(4, 4)), nn.mse, optim.SGD(0.1), device=device)
    first(torch.zeros((2, 4), device=device), torch.zeros((2, 4), device=device))
    step = nn.TrainingStep(model, nn.cross_entropy, optim.Adam(), device=device)
    arguments_of: tuple[Any, ...] = (model.parameters(), step.state, model.statistics(), step.seed, ta.asarray(x), ta.asarray(classes))
    ta.evaluate(*step.state["mean"].values(), *step.state["square"].values(), step.state["step"], *arguments_of[0].values(),
                *arguments_of[2].values())
    started = time.perf_counter()
    graph = step.compiled.lower(*arguments_of)
    traced = time.perf_counter()
    step.compiled.program_of(*arguments_of)
    ended = time.perf_counter()
    # The first call traces again what `lower` traced; a user's first call does so once.
    trace_s = traced - started
    print(json.dumps({"num_nodes": len(graph.nodes), "trace_s": round(trace_s, 4), "total_s": round(ended - traced, 4)}))


if __name__ == "__main__":
    main(sys.argv[1:])
