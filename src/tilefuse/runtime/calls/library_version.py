"""Name and version of the libraries that calls of a program reach: measured times hold for one version."""
from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=4)
def library_version(kind: str) -> str:
    """torch's version with that of the CUDA that it was built for, and cuDNN's on a GPU. kind: of the device, "cuda" or "host"."""
    import torch

    cudnn = torch.backends.cudnn.version() if kind == "cuda" and torch.backends.cudnn.is_available() else None
    return f"torch {torch.__version__}" + (f", cuDNN {cudnn}" if cudnn else "")
