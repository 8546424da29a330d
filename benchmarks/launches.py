"""Kernels that the device ran in one call, as torch's profiler saw them: with their times, sorted into products and memory-bound ones.

The counts of the paper's tables. A host has no kernels to count: there the list is None.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

# Inductor names a kernel after all operators inside: only its templates hold the product or convolution itself.
INDUCTOR_LOOP = re.compile(r"^triton_(poi|per|red|for|mix|cpu)_")
ATTENTION = re.compile(r"flash|fmha|attention|sdpa", re.IGNORECASE)
CONVOLUTION = re.compile(r"conv|cudnn|winograd|implicit|dgrad|wgrad", re.IGNORECASE)
PRODUCT = re.compile(r"gemm|gemv|xmma|cutlass|cublas|nvjet|split_?k|wgmma|dot_kernel|triton_tem_|_mm_|bmm", re.IGNORECASE)
COPY = re.compile(r"^(Memcpy|Memset)")
HOST_TRANSFER = re.compile(r"^Memcpy (HtoD|DtoH)")
OURS = re.compile(r"^k_")

SHOWN = 30


@dataclass(frozen=True)
class Launches:
    """Launches of one name in one call. Units: microseconds of all `count` together, without the time in which one ahead still ran."""

    name: str
    count: float
    us: float
    kind: str


def kind_of(name: str, categories: Mapping[str, str] | None = None) -> str:
    """product, convolution, attention, copy or memory. categories: those of our own kernels, by name."""
    if categories and name in categories:
        return "product" if categories[name] == "product" else "memory"
    if COPY.search(name):
        return "copy"
    if INDUCTOR_LOOP.search(name) or OURS.search(name):
        return "memory"
    for kind, pattern in (("attention", ATTENTION), ("convolution", CONVOLUTION), ("product", PRODUCT)):
        if pattern.search(name):
            return kind
    return "memory"


def launches_of(call: Callable[[], object], device: torch.device, categories: Mapping[str, str] | None = None,
                rounds: int = 3) -> list[Launches] | None:
    """Everything that one call starts on the device, by name; None on a host."""
    if device.type != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(rounds):
            call()
        torch.cuda.synchronize()
    events = [(e.name, float(e.time_range.start), float(e.time_range.end)) for e in seen.events() if _on_device(e)]
    return gather(advances(events), rounds, categories)


def _on_device(event: Any) -> bool:
    return str(getattr(event, "device_type", "")).endswith("CUDA") and not getattr(event, "is_user_annotation", False)


def advances(events: Iterable[tuple[str, float, float]]) -> list[tuple[str, float]]:
    """Events (name, start, end) as (name, time by which each lets the device advance), in the order of their ends.

    A kernel that begins early waits for the one ahead of it: what passes until that one has ended is not its own time, and the times of
    all add up to those of the device.
    """
    found, ended = [], float("-inf")
    on_device = [event for event in events if not HOST_TRANSFER.search(event[0])]
    for name, start, end in sorted(on_device, key=lambda event: (event[2], event[1])):
        found.append((name, max(end - max(start, ended), 0.0)))
        ended = max(ended, end)
    return found


def gather(events: Iterable[tuple[str, float]], rounds: int, categories: Mapping[str, str] | None = None) -> list[Launches]:
    """Events (name, microseconds) of several equal calls as launches of one, longest first; transfers from and to the host left out."""
    count: dict[str, int] = {}
    total: dict[str, float] = {}
    for name, us in events:
        if HOST_TRANSFER.search(name):
            continue
        count[name] = count.get(name, 0) + 1
        total[name] = total.get(name, 0.0) + us
    found = [Launches(name, n / rounds, total[name] / rounds, kind_of(name, categories)) for name, n in count.items()]
    return sorted(found, key=lambda launch: (-launch.us, launch.name))


def facts_of(found: list[Launches] | None) -> dict[str, Any]:
    """Figures for the record: kernels and copies a call, their time, the share of memory-bound kernels, the longest kernels.

    Units: microseconds; a copy is a copy or fill on the device that is no kernel.
    """
    if found is None:
        return {}
    kernels = [x for x in found if x.kind != "copy"]
    kernel_us = sum(x.us for x in kernels)
    return {
        "launched_kernels": round(sum(x.count for x in kernels), 2),
        "launched_copies": round(sum(x.count for x in found if x.kind == "copy"), 2),
        "kernel_us": kernel_us,
        "memory_share": sum(x.us for x in kernels if x.kind == "memory") / kernel_us if kernel_us else None,
        "launches": [{"name": x.name[:120], "count": round(x.count, 2), "us": round(x.us, 3), "kind": x.kind} for x in found[:SHOWN]],
    }
