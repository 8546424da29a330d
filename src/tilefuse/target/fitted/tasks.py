"""Figures of kernels of tasks. None of them is measured yet: plans use the level only where an option asks for it."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.evidence import measured

_COMMAND = "python -m benchmarks.tasks"


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """Time that tasks take beside their bodies."""

    wait_us: float = measured(
        1.0, "us", "From the last publication of a stage to the first instruction behind the wait of the next one: a release, a poll that "
        "acquires, a barrier.", "assumed, not measured: two trips to the second-level cache of one H200 take about 0.6 us, a fence 0.3",
        _COMMAND)
    task_us: float = measured(
        0.3, "us a task", "Taking the number of a task, and finding its body and operands; on the critical path once a stage.",
        "assumed, not measured: one atomic addition with its result takes a trip to the second-level cache", _COMMAND)
