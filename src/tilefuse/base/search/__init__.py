"""Bounds of searches, the same on every device: candidates tried, depths followed, sizes of generated code. `limits.py` has the record."""
