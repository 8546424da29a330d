"""Bounds of searches for plans: sets of nodes that generators try, rounds of the solver, memory that packing may add, texts."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.base.search.bound import bound


@dataclass(frozen=True, slots=True)
class GeneratorLimits:
    """Generators of candidates, and rewrites that follow maps."""

    steps_apart: int = bound(
        4, "steps", "Difference in depth of two kernels that are joined because they read one value.",
        "the early kernel would wait too long: two directions of a recurrence that share an input would run one after the other and "
        "could no longer share launches")
    operands: int = bound(10, "operands", "Operands of an operator that exploratory fusion takes.",
                          "FusionStitching 4.2.2 leaves out operators with more")
    sets_a_seed: int = bound(24, "sets", "Sets of nodes that are tried from one seed.",
                             "BERT-base training: higher limits add no candidate that the integer program chooses")
    sets: int = bound(2048, "sets", "Sets of nodes that are tried from all seeds.",
                      "BERT-base training: higher limits add no candidate that the integer program chooses")
    alike_radius: int = bound(3, "edges", "Radius within which the neighbourhoods of two seeds must agree to be explored once.")
    visited: int = bound(
        4096, "units", "Units that one search for an order may visit. Beyond it the merge is refused.",
        "values between two patterns so far apart would rarely stay in cache, and unbounded searches make planning quadratic")
    products: int = bound(4, "products", "Products that a part between products is offered with.")
    growth: int = bound(8, "nodes", "Nodes that a walk absorbs around it.")
    between: int = bound(48, "nodes", "Nodes between two products of a chain, or of a walk between products.")
    crossed_maps: int = bound(12, "maps", "Maps between an operand and the tensors that it is computed from.")
    places_apart: int = bound(32, "places", "Places of a scatter that get a reduction each.", "each is a node of the graph")
    ordered_axes: int = bound(3, "axes", "Axes of a group whose orders are tried, because one of them may need no copy.",
                              "the orders are the factorial of their number")


@dataclass(frozen=True, slots=True)
class SelectionLimits:
    """The integer program, its budget of time, and the memory that it may add to the peak."""

    cycles_a_part: int = bound(32, "cycles", "Cycles reported of one strongly connected component at a time: each gives a cut.",
                               "the next solution shows the remaining ones")
    new_structures: int = bound(60, "structures", "Structures scheduled for each generator.",
                                "BERT-base: one takes 0.8 ms of a cold compile of 1.6 s")
    generator_share: float = bound(0.5, "1", "Share of the planning time after which generators stop.", "the solver needs the rest")
    peaks: int = bound(16, "peaks", "Peaks of memory at which packed kernels are removed, before packing is given up.")
    rounds_without_guides: int = bound(
        64, "rounds", "Solutions without the rows that are not exact, where these left no choice or one that is not proven best.")
    presolved_columns: int = bound(
        4096, "columns", "Programs of more columns are solved without presolve, symmetry detection and heuristics.",
        "programs for 10,000 nodes of attention, products and norms: 3.2 and 2.2 s with them, 0.5 and 0.4 s without, for the same columns")
    more_live_bytes: int = bound(
        16 << 20, "bytes", "Bytes that packing may add to the peak of live intermediate values: packed kernels wait for all their parts.",
        "torch's allocator takes device memory in pieces of 20 MiB, so that fewer bytes seldom show")
    more_live_share: float = bound(0.02, "1", "Share of the peak that packing may add beside `more_live_bytes`.")
    more_held_share: float = bound(
        0.002, "1", "The same as a share of the bytes that a backward part holds, gradients included: there a training step has its peak.",
        "50 layers of [64, 512], as planned for an H200: 56.6 MiB and 659 us without the limit; 50.5 MiB and 700 us from 0 to 4 %")
    steps_ahead: int = bound(
        64, "steps", "Steps ahead among which one is searched that releases more than it allocates.",
        "peaks as planned for an H200: six layers of ViT-S with 128 images 2113 MiB in the usual order, 2094.5 MiB with 2 to 128 steps "
        "or all; without a limit the search is quadratic")
    measured_rounds: int = bound(6, "rounds", "Rounds of planning, timing and planning again; the last one uses only timed kernels.",
                                 "each round compiles and times new kernels")
    least_records: int = bound(5, "records", "Timed kernels from which on their median corrects predictions.",
                               "the median of fewer is no estimate of a bias")


@dataclass(frozen=True, slots=True)
class TextLimits:
    """Lengths of names, and of lists in messages and explanations."""

    name_characters: int = bound(48, "characters", "Longest name of a kernel, before planning makes it unique.", "names stay readable")
    packed_name_characters: int = bound(56, "characters", "Longest name of a packed kernel.", "names stay readable")
    stem_characters: int = bound(40, "characters", "Longest part of a kernel's name that its nodes give.", "names stay readable")
    listed: int = bound(12, "names", "Names and findings that an error lists.", "messages stay readable")
    named_kernels: int = bound(4, "kernels", "Kernels that a reason names.", "messages stay readable")
    rejected: int = bound(2000, "candidates", "Rejected candidates that a search keeps for explanations.", "each holds a text in memory")
