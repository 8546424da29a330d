"""A made explanation of any size, for tests of large pages."""
from __future__ import annotations

from typing import Any

LAUNCH = {"num_blocks": 1, "num_threads": 32, "cluster": 1, "shared_bytes": 0, "shared_requested_bytes": 0, "early": False}


def chain(num_nodes: int) -> dict[str, Any]:
    """A chain of kernels of five nodes, each with an edge from the kernel before the last; no two of 97 neighbours are alike."""
    nodes: list[dict[str, Any]] = []
    kernels: list[dict[str, Any]] = []
    last = before = "x"
    for number in range(num_nodes // 5):
        names = [f"n{number}_{i}" for i in range(5)]
        for i, name in enumerate(names):
            reads = [names[i - 1]] if i else [last]
            reads += [before] if i == 4 and before != last else []
            nodes.append({"name": name, "kind": f"map.{number % 97}", "type": "f32[8, 128]", "bytes": 4096, "reads": reads})
        kernels.append({
            "name": f"k_{number}", "step": f"k{number}", "nodes": names, "reads": [last, before], "writes": [names[-1]],
            "edges": [{"producer": a, "user": b, "level": "register"} for a, b in zip(names, names[1:], strict=False)],
            "template": "pointwise", "generator": "connect", "category": "elementwise", "bytes_read": 8192, "bytes_written": 4096,
            "flops": 1, "limit_us": 1.0, "predicted_us": 2.0, "bound_by": "bandwidth", "figures": {}, "tiles": [], "launch": LAUNCH})
        before, last = last, names[-1]
    return {"name": "large", "device": "h200", "options": {}, "num_kernels": len(kernels), "num_distinct_kernels": len(kernels),
            "unfused_kernels": len(nodes), "bytes": 0, "unfused_bytes": 0, "kernels": kernels, "library": [], "copies": [], "views": [],
            "rejected": [], "num_rejected": 0, "figures": {}, "fallbacks": [], "notes": [], "plan": {}, "totals": {}, "machine": {},
            "memory": [], "steps": [["kernels", n] for n in range(len(kernels))], "inputs": [["x", "x"]], "results": [[last, last]],
            "graph": {"inputs": [{"name": "x", "type": "f32[8, 128]", "bytes": 4096, "constant": False}], "nodes": nodes,
                      "results": [last], "updates": []}}
