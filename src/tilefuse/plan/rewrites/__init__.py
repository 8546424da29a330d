"""Rewrites of graphs that need a device or memory layouts."""
