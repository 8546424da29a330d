"""Facts that are worked out once: caches of functions whose results follow from their arguments, of a size that long processes bear."""
from __future__ import annotations

from functools import lru_cache

# Results kept of each function: some thousands in a large graph, about a kilobyte each.
NUM_REMEMBERED = 1 << 14

remembered = lru_cache(maxsize=NUM_REMEMBERED)
