"""Sources on disk: one file a kernel, the plan and the explanation as text, and a manifest that says how to launch each kernel."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tilefuse.base.errors import UserError
from tilefuse.runtime.stores.cache import write_whole

SUFFIXES = {"cuda": ".cu", "host": ".cpp"}


def write_sources(program: Any, folder: Path) -> list[Path]:
    """Write the kernels' sources, `plan.txt`, `explanation.json` and `manifest.json`; the paths written.

    Raises: UserError when the folder cannot be written.
    """
    spec = program.spec
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for kernel in spec.kernels:
            written.append(_write(folder / f"{kernel.name}{SUFFIXES.get(kernel.target, '.txt')}", kernel.source))
        written.append(_write(folder / "plan.txt", spec.plan_text))
        if spec.explanation:
            written.append(_write(folder / "explanation.json", spec.explanation))
        written.append(_write(folder / "manifest.json", json.dumps(manifest(spec), indent=2) + "\n"))
    except OSError as cause:
        raise UserError(f"cannot write sources to {folder}: {cause.strerror or cause}") from cause
    return written


def manifest(spec: Any) -> dict[str, Any]:
    """Facts that a caller must know to build and launch the kernels without tilefuse. Units: shared memory in bytes."""
    return {
        "name": spec.name,
        "device": spec.device,
        "inputs": list(spec.inputs),
        "results": list(spec.results),
        "source_names": {"inputs": list(spec.told_inputs), "results": list(spec.told_results)},
        "values": [{"name": v.name, "dtype": v.dtype, "shape": v.shape, "strides": v.strides, "role": v.role, "base": v.base,
                    "offset": v.offset} for v in spec.values],
        "kernels": [{
            "name": k.name, "file": k.name + SUFFIXES.get(k.target, ".txt"), "entry": k.entry, "target": k.target, "arch": k.arch,
            "num_blocks": k.launch.num_blocks, "num_threads": k.launch.num_threads, "cluster": k.launch.cluster,
            "shared_bytes": k.launch.shared_bytes, "early": k.launch.early, "nodes": list(k.nodes),
            "parameters": [{"name": p.name, "dtype": p.dtype, "num_elements": p.num_elements, "role": p.role} for p in k.parameters],
            "build": f"nvcc -arch={k.arch} -cubin {k.name}.cu" if k.target == "cuda" else f"g++ -O3 -fopenmp -shared -fPIC {k.name}.cpp",
        } for k in spec.kernels],
        "steps": [_step(step) for step in spec.steps],
    }


def _step(step: Any) -> dict[str, Any]:
    """One step of the program: a launch, a library call or a copy, by its own fields."""
    fields = {name: getattr(step, name) for name in step.__dataclass_fields__}
    return {"step": type(step).__name__, **fields}


def _write(path: Path, text: str) -> Path:
    write_whole(path, text.encode())
    return path
