"""Fusions of a script, their implementations, predicted times, combinations."""
