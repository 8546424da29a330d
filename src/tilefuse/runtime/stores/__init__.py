"""Kernels, programs, judgements and measured times on disk."""
