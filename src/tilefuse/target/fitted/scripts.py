"""Fitted figures of the scripts' compiler: time of fused kernels of routines, of kernels from meanings beside them, and its choices."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.evidence import NO_RECORD, measured

_SEARCH = "python -m benchmarks search"
_KERNELS = ("one H200, 2026-11-21, 525 kernels: four scripts over vectors (2^16 to 2^24 words, f32 and f64), four over matrices (1024 x "
            "1024 to 16384 x 16384); logarithm of prediction over measurement: standard deviation 0.09 (0.18 before the fit)")
_STARTS = ("one H200, search-h200-20261122-075832, inputs rotating beyond L2: with 0.95, programs of routines took longer than predicted "
           "by 0.28 us a kernel (173 of 1024 x 1024), 0.31 (79 of 2^18 words), 0.32 (113 of 4096 x 4096), 0.41 (78 of 2^22 words); 99 of "
           "108 first programs at 0.95 of the best or more, 100 with 0.65")
_READ = "one H200, 1 GiB: read in 237 us, copied in 252 us"


@dataclass(frozen=True, slots=True)
class FlightFigures:
    """Kernels whose loads in flight are known: share of the bandwidth that these reach, and parts of the time that hide each other."""

    half_share: float = measured(
        0.19, "1", "Loads in flight at which half of the best rate is reached, as a share of DeviceSpec.saturating_bytes.", _KERNELS,
        _SEARCH)
    enough_share: float = measured(
        5.0, "1", "Loads in flight beyond which more gain nothing, as a multiple of DeviceSpec.saturating_bytes.", _KERNELS, _SEARCH)
    overlap_power: int = measured(
        6, "1", "Exponent of the norm that joins traffic, arithmetic and latency chains, which hide each other almost completely.",
        _KERNELS, _SEARCH)
    start_overlap_us: float = measured(
        0.65, "us", "Part of a kernel's start that passes while the kernel before it in a graph ends.", _STARTS, _SEARCH)
    multiprocessor_shares: float = measured(
        2.1, "1", "Largest rate of one multiprocessor's loads, as a multiple of its share when all load.", _KERNELS, _SEARCH)
    single_wave_us: float = measured(
        0.01, "us a KiB", "Time for the loads that a block has in flight, in a grid of one wave: no later block hides them.", _KERNELS,
        _SEARCH)


@dataclass(frozen=True, slots=True)
class ScriptFigures:
    """Programs of scripts: traffic, exchanges and endings of their kernels, and the search over them."""

    read_share: float = measured(0.93, "1", "Time of loads, as a share of the time of copies of as many bytes.", _READ)
    cached_share: float = measured(
        0.02, "1", "Share of the bytes of a vector that every block reads again: caches serve the others.", _KERNELS, _SEARCH)
    word_by_word_rate: float = measured(
        0.9, "1", "Share of the best rate that loads word by word reach.", "assumed: kernels measured beyond the caches had wide loads")
    half_rate_row_bytes: int = measured(
        64, "bytes", "Length of a tile's rows at which half of the best rate is reached: short rows change the DRAM page often.",
        "one H200, rows of 512 bytes reached 0.74 to 0.95 of the best rate")
    long_row_bytes: int = measured(
        4096, "bytes", "Length of a tile's rows from which on the best rate is reached.", "one H200, matrix kernels beyond the caches")
    walk_share: float = measured(
        0.008, "1", "Time that each doubling of a block's tiles adds to the traffic: a block loads nothing while it computes.",
        "one H200, four scripts: up to 0.02 of the time between walks", _SEARCH)
    register_share: float = measured(
        0.0004, "1 a register", "Time that each register beyond the free ones adds to the traffic; it decides between equal decisions.",
        _KERNELS, _SEARCH)
    free_registers: int = measured(60, "registers a thread", "Registers that do not lower occupancy.", _KERNELS, _SEARCH)
    ragged_share: float = measured(
        0.4, "1", "Time that uneven ends of a triangle's walks add to the traffic, for each share of a side that one block takes.",
        "one H200, symmetric products, us by the share of a side: 8192 x 8192 f64 74.9 (a 32nd), 83.4 (a 16th); 16384 x 16384 f32 132.5 "
        "(a 64th), 149.1 (a 33rd)", "python -m benchmarks blas --only symv")
    load_latency_us: float = measured(
        1.0, "us", "Latency of the first load of a group of tiles, on a busy device.", _KERNELS, _SEARCH)
    exchange_us: float = measured(
        0.3, "us", "Exchange within a block, for each group of tiles: barriers, shuffles, shared memory.", _KERNELS, _SEARCH)
    final_exchange_us: float = measured(
        0.00047, "us a block", "Last exchange of a block's partial values, while the block loads nothing.", _KERNELS, _SEARCH)
    half_hidden_bytes: int = measured(
        16 << 10, "bytes a block", "Bytes of a block at which other blocks hide half of its last exchange.", _KERNELS, _SEARCH)
    last_block_us: float = measured(
        1.7, "us", "Work of the last block of routines besides its loads and the arrivals it waits for.", _KERNELS, _SEARCH)
    last_load_us: float = measured(
        0.008, "us a load", "Load of a partial value by a thread of the last block, with many in flight.", _KERNELS, _SEARCH)
    extra_kernel_us: float = measured(
        0.7, "us", "Additional kernel of a fusion in a graph, beside its launch.", _KERNELS, _SEARCH)
    combining_us: float = measured(
        0.15, "us", "Further time of an additional kernel that combines partial values instead of clearing words.", _KERNELS, _SEARCH)
    atomics_per_us: float = measured(
        400000.0, "updates a us", "Rate of atomic additions to distinct words on the whole device.", _KERNELS, _SEARCH)
    persistent_us: float = measured(
        2.9, "us", "Start and end of a grid whose blocks take rows in turns: nothing is computed before its first rows arrive, and the "
        "kernel behind it has no room until its blocks end.",
        "one H200, A'(A x) of 1024 x 1024 to 8192 x 8192 words: time of the program over the sum of its kernels' costs")
    largest_probe_ratio: float = measured(
        1.1, "1", "Largest ratio of a timed routine's rate to the best rate: a larger one is an error of timing.",
        "calibrations of one H200", "tilefuse calibrate --blas")
    most_registers: int = measured(
        160, "registers a thread", "Most registers of a thread's elements: with more, fewer than a quarter of the threads are resident.",
        NO_RECORD)
    beside_registers: int = measured(6, "registers a thread", "Registers of a routine kernel beside its elements.", NO_RECORD)
    most_flight_bytes: int = measured(
        256, "bytes a thread", "Most bytes of loads that a thread has in flight: more take registers and gain nothing.", NO_RECORD)
    useful_flight_bytes: int = measured(
        160, "bytes a thread", "Bytes of loads in flight up to which more are preferred among equal predictions.",
        "one H200: the best measured kernel of each case had at most so many", _SEARCH)
    busy_threads: int = measured(
        1024, "threads a multiprocessor", "Threads of a grid that fills a multiprocessor once: half of a device's most.", NO_RECORD)
    few_groups: int = measured(
        4, "groups", "Tiles, in multiples of those that run at once, up to which blocks of a single group of tiles are tried.", NO_RECORD)
    combining_threads: int = measured(256, "threads a block", "Threads of a second kernel that combines partial values.", NO_RECORD)
    combining_words: int = measured(32, "words a block", "Words that a block of such a kernel completes.", NO_RECORD)
