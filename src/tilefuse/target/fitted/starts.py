"""Fitted figures of kernels that begin before the kernel ahead of them has ended (programmatic dependent launch)."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.evidence import measured

_ONE_LOAD = "one H200, one load a thread: 256 MiB 80 us with and 68 without an early start; 32 MiB 10.9 and 8.9"
_TWO_LOADS = ("one H200, at least two loads a thread, products and sums of 32 to 256 MiB: 0.4 to 0.7 us faster with an early start; larger "
              "ones no faster; beside library calls 1 to 2 % slower with the library's split of shared memory and cache")
_SIGNALS = ("one H200: blocks signal the next start at most 815 times a us; 65536 rows of 4 KiB by a block of 64 threads each 79.8 us with "
            "signals, 62.3 without")


@dataclass(frozen=True, slots=True)
class StartFigures:
    """Limits for an early start: it hides the launch, but every block then waits for the kernel ahead (`templates/early.py`)."""

    most_bytes: int = measured(16 << 20, "bytes", "Traffic up to which every kernel but one of a single wave begins early.", _ONE_LOAD)
    most_walked_bytes: int = measured(
        384 << 20, "bytes", "The same where each thread and block of a walk moves enough.", _TWO_LOADS)
    thread_bytes: int = measured(48, "bytes a thread", "Bytes that are enough for a thread.", _TWO_LOADS)
    block_bytes: int = measured(6 << 10, "bytes a block", "Bytes that are enough for a block.", _SIGNALS)
