"""Figures of kernels of tasks: the time of a stage beside its body. Plans use the level only where an option asks for it."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.evidence import measured

_COMMAND = "python -m benchmarks.tasks"
_CHAIN_COMMAND = "python -m benchmarks.winograd_groups"
_CHAINS = ("one H200, c2247427, Winograd layers in f32, products of whole operands: (64, 64, 56) 203 us, (128, 128, 28) 192, (192, 48, 56) "
           "398, (32, 64, 208) 1590; products over counted cycles 1.24, 1.19, 1.10 and 1.18 "
           "(benchmarks/results/winograd-groups-h200-20261130.jsonl)")


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """Time that tasks take beside their bodies."""

    wait_us: float = measured(
        0.271, "us", "From the last publication of a stage to the first instruction behind the wait of the next one: a release, a poll "
        "that acquires, a barrier.", "one H200, 64 stages of 132 tasks behind each other against as many that wait for none: 0.939 us "
        "and 0.668 a stage (benchmarks/results/tasks-h200-20261129.txt)", _COMMAND)
    task_us: float = measured(
        0.668, "us a task", "Finding a task, its body and operands, one element read and written, its publication; on "
        "the critical path once a stage.", "one H200, 64 stages of 132 tasks on 132 blocks, none of which waits: 0.668 us a stage "
        "(benchmarks/results/tasks-h200-20261129.txt)", _COMMAND)
    product_share: float = measured(
        1.24, "1", "Most time of a product's blocks as tasks of a chain in groups over their counted cycles; the rest of the kernel's time "
        "is that of `walk_us` and `task_us`.", _CHAINS, _CHAIN_COMMAND)
    walk_us: float = measured(
        0.8, "us a block", "A block of a producer or a user in a chain in groups: loads of 36 elements a thread, and as many stores.",
        _CHAINS, _CHAIN_COMMAND)
    ring_l2_share: float = measured(
        0.5, "1", "Share of L2 that rings of values between tasks may take, beside the values that stream through it.",
        "assumption: rings of a chain in groups have not been timed beside L2's size")
