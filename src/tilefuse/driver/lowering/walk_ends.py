"""Chooses kernels that walk through memory backwards: those that begin with data that earlier kernels left in the cache.

    kernel 1   reads A   first block ............... last block      the second-level cache holds A's end
    kernel 2   reads A   last block  ............... first block     finds it there; walking as kernel 1 did, it would displace it

Blocks start in the order of their numbers, so numbering them backwards reverses a walk. Results do not depend on the order.
"""
from __future__ import annotations

from tilefuse.plan.pattern import LibraryCall, Plan
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.registry import kernel_template

# Share of the L2 cache that holds data of earlier walks; smaller data stay there in both directions.
# Source: one H200, 2026-11-21, two products with one f32 matrix, in us forwards and alternating: 16 MiB 14.7 and 14.7; 64 MiB 40.0 and
# 36.1; 256 MiB 128.5 and 124.8; 1 GiB 479.2 and 476.3. The gains are 14 to 18 MiB of 60.
KEPT_SHARE = 0.3
FORWARD, BACKWARD = 1, -1


def backward_steps(plan: Plan, device: DeviceSpec) -> frozenset[int]:
    """Numbers of the plan's steps whose kernels walk backwards.

    Cost: linear in the values that kernels touch.
    """
    kept_bytes = int(device.l2_bytes * KEPT_SHARE)
    if device.kind != "cuda" or not kept_bytes:
        return frozenset()
    backward: set[int] = set()
    # Large values of earlier walks: the direction of the last walk, and the bytes moved since. Units: bytes.
    walked: dict[str, tuple[int, int]] = {}
    base_of = {v.value: v.base for v in plan.windows}
    for number, step in enumerate(plan.steps):
        if isinstance(step, LibraryCall):
            walked.clear()  # its order of reads and its traffic are unknown
            continue
        touched = dict.fromkeys(base_of.get(v, v) for _, v in step.binding if plan.graph.type_of(v).num_bytes > kept_bytes)
        waiting = {FORWARD: 0, BACKWARD: 0}
        for v in touched:
            direction, since = walked.get(v, (FORWARD, kept_bytes))
            waiting[direction] += max(kept_bytes - since, 0)
        overlaps = kernel_template(step.program.choice).overlaps(step.program.choice)
        turns = overlaps.turns and waiting[FORWARD] > waiting[BACKWARD]
        if turns:
            backward.add(number)
        moved = step.program.bytes_moved
        walked = {v: (direction, since + moved) for v, (direction, since) in walked.items() if since + moved < kept_bytes}
        if overlaps.walks_memory:
            walked |= dict.fromkeys(touched, (BACKWARD if turns else FORWARD, 0))
        else:
            walked = {v: known for v, known in walked.items() if v not in touched}
    return frozenset(backward)
