"""Lines of the first-level cache that the warps of a register tile read."""
from __future__ import annotations

from math import prod

import numpy as np

from tilefuse.domain.access import accesses
from tilefuse.domain.resolved import Domain
from tilefuse.ir.affine import evaluate
from tilefuse.target.capabilities import WARP
from tilefuse.target.memory import LINE_BYTES


def line_bytes(domain: Domain, order: tuple[str, ...]) -> int:
    """Bytes of the lines that all warps read, each access of a warp by itself. Units: bytes; domain: of tiles.

        neighbouring tiles read neighbouring elements      32 elements of f32: one line
        every fourth element                               four lines
        elements of other channels, row-major              32 lines

    Exact: for the first warp, as which all others are taken.
    """
    extents = [domain.extents[a] for a in order]
    tiles = prod(extents)
    if not tiles:
        return 0
    places = dict(zip(order, np.unravel_index(np.arange(min(WARP, tiles)), extents), strict=True)) if order else {}
    lines = 0
    for access in accesses(domain):
        if not access.written:
            lines += np.unique(np.asarray(evaluate(access.offset, places)) * access.itemsize // LINE_BYTES).size
    return int(lines * LINE_BYTES * -(-tiles // WARP))
