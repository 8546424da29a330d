"""Conditions of a run: device, versions, commit. A figure without these says nothing."""
from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
COMMIT_DIGITS = 12
COMMIT_VARIABLE = "BENCHMARK_COMMIT"
PACKAGES = ("torch", "triton", "jax", "jaxlib", "numpy", "onnx", "cuda-bindings", "nvidia-cuda-nvrtc", "highspy")


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
        "commit": commit_of(),
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


def commit_of(root: Path = ROOT, environment: Mapping[str, str] | None = None) -> str:
    """The commit that the files under `root` belong to, shortened; "unknown" where nothing tells.

    The variable BENCHMARK_COMMIT goes first (one that begins with TILEFUSE_ would be an unknown option); then git, if `root` is the top of
    a working tree; then what `git archive` wrote into commit.txt.
    """
    told = (os.environ if environment is None else environment).get(COMMIT_VARIABLE, "").strip()
    if told:
        return told[:COMMIT_DIGITS]
    try:
        found = subprocess.run(["git", "rev-parse", "--show-toplevel", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
        top, commit = found.stdout.split("\n")[:2]
        if Path(top).resolve() == root.resolve():
            return commit[:COMMIT_DIGITS]
    except (OSError, subprocess.CalledProcessError):
        pass  # a copy without git, or no git at all: the archive's own note is left
    archived = root / "benchmarks" / "commit.txt"
    text = archived.read_text(encoding="utf-8").strip() if archived.exists() else ""
    return text[:COMMIT_DIGITS] if re.fullmatch(r"[0-9a-f]{40,64}", text) else "unknown"
