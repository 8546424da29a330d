"""The functions of arrays that methods of arrays call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilefuse.arrays.array import product
from tilefuse.arrays.functions import elementwise, manipulation, selection, statistics, writing

CALLED: dict[str, Callable[..., Any]] = {f.__name__: f for f in (
    statistics.sum, statistics.prod, statistics.mean, statistics.var, statistics.std, statistics.max, statistics.min, statistics.argmax,
    statistics.argmin, statistics.any, statistics.all, statistics.cumulative_sum, manipulation.reshape, manipulation.squeeze,
    manipulation.swapaxes, elementwise.astype, elementwise.clip, elementwise.round, selection.selected, writing.write, product)}
