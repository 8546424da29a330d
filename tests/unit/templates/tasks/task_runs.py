"""Plans for a GPU whose kernels are tasks, run by the host printer: every kernel of a plan on arrays, in any order of its tasks."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import nn

from tests.unit.templates.host_build import CHECKED_FLAGS, FLAGS, build, call
from tests.unit.templates.tasks.task_models import decode_step, normed_chain, recurrence
from tilefuse.driver.compile import Generated, generate_sources
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.kernel.ir import Kernel
from tilefuse.kernel.tasks.extract import program_of
from tilefuse.kernel.tasks.proof import happens_before
from tilefuse.printers.host import print_host
from tilefuse.runtime.spec import KernelStep, Value
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose

MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "decode": lambda: decode_step(1), "recurrence": lambda: recurrence(4), "chain": lambda: normed_chain(4)}


@dataclass(frozen=True)
class TaskCase:
    """A model with its plan for an H200 at the grid level, and its results in f64."""

    generated: Generated
    inputs: tuple[torch.Tensor, ...]
    expected: tuple[torch.Tensor, ...]

    @property
    def kernels(self) -> list[Kernel]:
        """Kernel IR of the plan's kernels, in order."""
        return [compose(k.program, H200) for k in self.generated.plan.kernels]


@cache
def task_case(name: str) -> TaskCase:
    """The case of a model."""
    model, inputs = MODELS[name]()
    with torch.no_grad():
        generated = generate_sources(model, inputs, device="h200", grid_level="always")
        out = model.double()(*(x.double() for x in inputs))
    return TaskCase(generated, inputs, out if isinstance(out, tuple) else (out,))


def legal_order(kernel: Kernel, draw: Random) -> list[int]:
    """A random order of a kernel's tasks in which each comes behind those that it waits for."""
    behind = happens_before(program_of(kernel))
    ready, done, order = [n for n, b in enumerate(behind) if not b], 0, []
    waiting = [n for n, b in enumerate(behind) if b]
    while ready:
        n = ready.pop(draw.randrange(len(ready)))
        order.append(n)
        done |= 1 << n
        ready += [w for w in waiting if not behind[w] & ~done]
        waiting = [w for w in waiting if behind[w] & ~done]
    return order


def run_case(case: TaskCase, kernels: Sequence[Kernel], folder: Path, check: bool = False,
             orders: Sequence[Sequence[int] | None] | None = None, counters: int = 0) -> tuple[list[np.ndarray], list[str]]:
    """Results of the plan with these kernels, and the reports of kernels that did not end well. counters: their contents before."""
    spec = case.generated.spec
    by_name = {v.name: v for v in spec.values}
    given = dict(zip(spec.inputs, case.inputs, strict=True)) | dict(case.generated.constants)
    memory = {v.name: _initial(v, given.get(v.name)) for v in spec.values if v.role != "view"}
    reports = []
    for step, kernel, order in zip(spec.steps, kernels, orders or [None] * len(kernels), strict=True):
        assert isinstance(step, KernelStep)
        library = build(print_host(kernel, check, order), folder, CHECKED_FLAGS if check else FLAGS)
        arrays = {}
        for name, b in zip(step.arguments, kernel.parameters, strict=True):
            if b.role == "counter":
                arrays[b.name] = np.full(b.num_elements, counters, np.int32)
            if name:
                base = by_name[name].base or name
                arrays[b.name] = memory[base][by_name[name].offset:][:b.num_elements]
        after, status, report = call(getattr(library, kernel.name), kernel, arrays)
        if status:
            reports.append(report)
        for name, b in zip(step.arguments, kernel.parameters, strict=True):
            if name and b.role != "in":
                memory[name][:b.num_elements] = after[b.name]
            if b.role == "counter" and not status:
                assert not after[b.name].any(), "counters are zero again"
    return [_tensor(by_name[r], by_name, memory) for r in spec.results], reports


def _initial(v: Value, data: object) -> np.ndarray:
    size = 1 + sum((e - 1) * s for e, s in zip(v.shape, v.strides, strict=True)) if 0 not in v.shape else 0
    array = np.zeros(size, NUMPY_DTYPES[v.dtype])
    if isinstance(data, torch.Tensor):
        data = data.detach().numpy()
    if data is not None:
        _strided(array, v)[...] = np.asarray(data).reshape(v.shape)
    return array


def _strided(array: np.ndarray, v: Value) -> np.ndarray:
    return np.lib.stride_tricks.as_strided(array, v.shape, [s * array.itemsize for s in v.strides])


def _tensor(v: Value, by_name: dict[str, Value], memory: dict[str, np.ndarray]) -> np.ndarray:
    return _strided(memory[v.base or v.name][v.offset:], v).copy()


def largest_error(results: Sequence[np.ndarray], expected: Sequence[torch.Tensor]) -> float:
    """Largest absolute error over all results."""
    return max(float(np.abs(r.astype(np.float64).reshape(e.shape) - e.numpy()).max()) for r, e in zip(results, expected, strict=True))
