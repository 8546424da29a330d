"""Bounds of the compiler of BLAS scripts: fusions and implementations that are tried, probes that calibrate it."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.base.search.bound import bound


@dataclass(frozen=True, slots=True)
class ScriptLimits:
    """Search over fusions of a script, and its probes."""

    sets: int = bound(1000, "sets", "Sets of calls to examine.", "scripts of the paper's sizes have far fewer")
    least_threads: int = bound(64, "threads a block", "Fewest threads of a block.", "fewer cannot hide latency")
    threads: int = bound(512, "threads a block", "Most threads of a block.", "more leave few blocks to balance")
    orders: int = bound(4, "orders", "Calling orders that are tried.", "each is a program that the search compiles")
    choices: int = bound(32, "choices", "Ways to choose implementations that are tried.", "each is a program that the search compiles")
    ordered_choices: int = bound(4096, "choices", "Ways to choose implementations that are ordered by price before.", "each is priced")
    grid_waves: tuple[int, ...] = bound((1, 2, 4), "waves", "Waves of blocks that grids with long walks are tried with.",
                                        "each is an implementation more")
    first_implementations: int = bound(2, "implementations", "Implementations of each fusion that the first program is chosen from.",
                                       "a search takes all of them")
    transfer_environments: tuple[tuple[int, int], ...] = bound(
        ((1, 0), (8, 0), (64, 0), (8, 48 << 10)), "tiles a block, bytes", "Tiles a block and added shared memory in which loads and "
        "stores are timed.", "each is a probe more of every routine")
    compute_environments: tuple[tuple[int, int], ...] = bound(
        ((8, 0),), "tiles a block, bytes", "The same for compute routines.", "each is a probe more of every routine")
    unlike_shared_bytes: int = bound(
        32 << 10, "bytes", "Difference in shared memory that counts as much as a factor e of tiles, between two environments.")
    unlike_direction: int = bound(4, "1", "Distance of two environments that differ in direction, in units of a factor e of tiles.")
    least_probe_us: float = bound(0.01, "us", "Least time of a probe beside its start.", "the resolution of clocks")
    probe_words: int = bound(1 << 25, "words", "Length of a probe's vector.", "more than the caches of any known device hold")
    probe_matrix: tuple[int, int] = bound((8192, 4096), "elements", "Extents of a probe's matrix.",
                                          "more than the caches of any known device hold")
    host_probe_words: int = bound(1 << 18, "words", "Length of a probe's vector on the host.", "the host is slow, and its probes many")
    host_probe_matrix: tuple[int, int] = bound((512, 512), "elements", "Extents of a probe's matrix on the host.",
                                               "the host is slow, and its probes many")
    probe_launches: int = bound(4, "launches", "Calls in one recorded graph of a probe.")
    probes_built_together: int = bound(32, "probes", "Probes compiled side by side.", "their sources are held in memory")
    programs_built_together: int = bound(16, "programs", "Programs whose kernels are compiled before the first of them is timed.",
                                         "their sources are held in memory")
    caches_filled: int = bound(4, "1", "Bytes of all sets of inputs, in multiples of L2.", "device memory")
    input_sets: int = bound(64, "sets", "Most sets of inputs.", "smaller data stay in L2 all the same")
    quoted_characters: int = bound(60, "characters", "Characters of a wrong value that an error quotes.", "messages stay readable")
