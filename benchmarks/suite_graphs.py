"""Graphs of the suites' cases without a device: workloads, stitched cases, patterns and models, as the compiler gets them.

Models are captured from the graphs that torch's own partition gives, so a training step may save other values than on a device.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from benchmarks import models, patterns, planned_kernels
from benchmarks.architectures import ARCHITECTURES
from benchmarks.case import DTYPES, as_tuple
from tilefuse.driver.compile import import_model
from tilefuse.frontends.imported import Imported

SUITES = ("workloads", "stitched", "patterns", "models")
Source = tuple[str, Callable[[], list[Imported]]]


def graph_sources(suites: str, only: str) -> Iterator[Source]:
    """(name, how to get the graphs) of every case of the suites."""
    for suite in suites.split(","):
        for name, graphs_of in {"workloads": _planned, "stitched": _planned, "patterns": _patterns, "models": _models}[suite](suite):
            if re.search(only, name):
                yield name, graphs_of


def _planned(suite: str) -> Iterator[Source]:
    names = {f"plan-{w.name}" for w in planned_kernels.workloads.WORKLOADS}
    for name, graph_of in planned_kernels.sources("", quick=False, tiny=False):
        if (name in names) == (suite == "workloads"):
            yield name, lambda g=graph_of: [g()]  # type: ignore[misc]


def _patterns(_suite: str) -> Iterator[Source]:
    for case in patterns.cases():
        if case.script:
            continue
        # Inputs without data: only their types count.
        yield case.name, lambda c=case: [import_model(c.function, tuple(  # type: ignore[misc]
            c.inputs(torch.device("cpu"), torch.Generator().manual_seed(planned_kernels.SEED))))]


class _Captured(Exception):
    """Every graph of a model was captured: nothing has to run."""


def _models(_suite: str) -> Iterator[Source]:
    for case in models.listed():
        if case["rank"] == 0:
            yield case["name"], lambda n=case["name"]: _model_graphs(n)  # type: ignore[misc]


def _model_graphs(name: str) -> list[Imported]:
    """Graphs of a model: forward, and backward in training. Nothing of them runs."""
    model_name, mode, dtype_name, batch = name.split("/")
    architecture, dtype, host = ARCHITECTURES[model_name], DTYPES[dtype_name], torch.device("cpu")
    model = architecture.build(False).to(dtype)
    model = model.train() if mode == "training" else model.eval()
    inputs = architecture.inputs(int(batch), False, host, dtype, torch.Generator().manual_seed(planned_kernels.SEED))

    def run(*arguments: torch.Tensor) -> Any:
        found = as_tuple(model(*arguments))
        return architecture.loss(*found) if mode == "training" else found

    return captured_graphs(run, inputs, mode == "training")


def backward_at_once() -> AbstractContextManager[None]:
    """Torch hands over the backward graph together with the forward graph, and not when a gradient is first asked for."""
    import torch._functorch.config as settings

    at_once: AbstractContextManager[None] = settings.patch(force_non_lazy_backward_lowering=True)
    return at_once


def captured_graphs(run: Callable[..., Any], inputs: Sequence[torch.Tensor], is_training: bool = False) -> list[Imported]:
    """Graphs that torch.compile hands over for a call of `run`: forward, and backward in training. Nothing of the last one runs."""
    from torch._dynamo.backends.common import aot_autograd

    from tilefuse.frontends.torch.decompositions import decompositions
    from tilefuse.frontends.torch.fx import import_fx

    captured: list[Imported] = []

    def keep(last: bool) -> Callable[..., Any]:
        def compiler(gm: torch.fx.GraphModule, _inputs: Any) -> Any:
            captured.append(import_fx(gm, "step"))
            if last:
                raise _Captured
            return gm.forward
        return compiler

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=keep(not is_training), bw_compiler=keep(True), inference_compiler=keep(True),
                           decompositions=decompositions(), keep_inference_input_mutations=True)
    try:
        with torch.set_grad_enabled(is_training), backward_at_once():
            torch.compile(run, backend=backend, dynamic=False, fullgraph=True)(*inputs)
    except Exception as error:  # torch wraps what its compilers raise
        if not captured or "_Captured" not in f"{error!r}{error.__cause__!r}":
            raise
    return captured
