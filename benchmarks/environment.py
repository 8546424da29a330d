"""What a run was made on: device, versions, commit. A figure without these says nothing."""
from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "triton", "jax", "jaxlib", "numpy", "onnx", "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "highspy")


def default_device() -> torch.device:
    """The GPU if there is one, else the host."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def describe(device: torch.device) -> dict[str, object]:
    """Device, driver, versions, commit and a digest of the sources, as JSON values."""
    found: dict[str, object] = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "num_cores": os.cpu_count(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "commit": _commit(),
        "source_digest": source_digest(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "device": properties.name, "num_multiprocessors": properties.multi_processor_count, "l2_bytes": properties.L2_cache_size,
            "memory_bytes": properties.total_memory, "cuda": torch.version.cuda,
        }
    else:
        found["device"] = platform.processor() or platform.machine()
    return found


def source_digest() -> str:
    """Digest of the package's files: tells two runs apart where there is no version control."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src" / "tilefuse").rglob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str:
    try:
        found = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("TILEFUSE_COMMIT", "unknown")
    return found.stdout.strip()
