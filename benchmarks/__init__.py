"""Measurements: patterns and models against the hardware's limit and against peers, and the compiler's own speed.

Run as `python -m benchmarks patterns|models|compiler`. Peers and tilefuse are timed in one run, by one method, on one machine.
"""
