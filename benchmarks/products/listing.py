"""All cases of the suite in the order of their importance, and as the plain facts that a record keeps of each."""
from __future__ import annotations

from typing import Any

from benchmarks.case import Case
from benchmarks.products import bare, fused, grouped

FUSED = "fused"
# Time of a fused product over that of its products alone by torch: the most that is asked.
MAX_OF_BARE = 1.08
# Cold compile of one case: the most that is asked, where one process has 16 cores. Units: seconds.
MAX_COMPILE_S = 2.0
# Peers that a case is held against unless others are asked for: templates of torch.compile for bare products take half a minute each and
# end at the library's time or above it; XLA runs fused products as a library call with kernels around it, as torch.compile does.
RIVALS = {FUSED: ("eager", "inductor"), grouped.GROUPED: ("eager", "inductor")}
BARE_RIVALS = ("eager", "jax")


def cases(tiny: bool = False) -> list[Case]:
    """Every case, those of rank 0 first; `tiny` shrinks the sizes to try the harness."""
    return sorted([*fused.cases(tiny), *grouped.cases(tiny), *bare.cases(tiny)], key=lambda case: case.rank)


def listed(tiny: bool = False) -> list[dict[str, Any]]:
    """The cases as plain facts."""
    max_us = fused.max_us_by_name()
    return [{"name": c.name, "family": c.family, "dtype": c.dtype, "rank": c.rank, "min_of_limit": c.min_of_limit, "flops": c.flops,
             "min_speedup": c.min_speedup, "against": "best" if c.bare is None else "inductor", "max_compile_s": MAX_COMPILE_S,
             "rivals": list(RIVALS.get(c.family, BARE_RIVALS))}
            | ({"max_of_bare": MAX_OF_BARE} if c.bare is not None and c.family == FUSED else {})
            | ({"max_us": max_us[c.name]} if c.name in max_us else {})
            for c in cases(tiny)]


def is_bare(name: str) -> bool:
    """Whether a case of this name is a product without neighbours."""
    return name.partition("/")[0] not in {grouped.GROUPED, *(pattern.name for pattern, _ in fused.PATTERNS)}


def dtypes() -> list[str]:
    """The types whose rate of a large product the limits need."""
    return sorted({case.dtype for case in cases() if case.flops})
