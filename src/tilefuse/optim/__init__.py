"""Optimisers for networks of symbolic arrays, written in array operations: `tilefuse.optim`."""
from __future__ import annotations

from tilefuse.optim.updates import SGD, Adam, AdamW

__all__ = ["SGD", "Adam", "AdamW"]
