"""Plants faults in composed kernels: what composers emit holds nothing that could be dropped or moved unseen."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.mutation.faults import silent_faults
from tests.unit.templates.composed_cases import Case, ahead, columns, rows, tiles
from tests.unit.templates.host_build import call, compiler
from tests.unit.templates.pattern_graphs import (
    Pattern,
    column_sum,
    cross_entropy,
    layer_norm,
    middle_statistics,
    norm_backward,
    row_sum,
    row_sums,
    running_sum,
    running_sum_behind_zero,
    transpose,
)
from tests.unit.templates.test_compose import assert_within, buffer_of, laid_out
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Choice
from tilefuse.ir.interpret import interpret
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import H200

CASES: dict[str, tuple[Pattern, Callable[[Domain], Choice]]] = {
    "cluster": (layer_norm(2, 100), rows(2, 32, 1, cluster=2)),
    "warps": (layer_norm(3, 70), rows(1, 64, 2)),
    "queue": (layer_norm(5, 128), rows(4, 32, 1, stages=2, groups=2)),
    "carried": (norm_backward(11, 64, 2), rows(4, 16, 1, rows=2, lanes=2, stages=2, groups=2, span=6)),
    "from the queue": (norm_backward(9, 64, 2), rows(4, 8, 2, rows=2, on_chip=False, stages=2, groups=2, span=5)),
    "teams": (norm_backward(21, 64, 2), rows(4, 16, 1, rows=4, lanes=2, stages=2, groups=2, span=11)),
    "ahead in a cluster": (layer_norm(7, 256), ahead(4, 32, 1, 2, 2, cluster=2)),
    "packed cluster": (row_sums(2, 400), rows(1, 160, 2, cluster=2)),
    "packed": (row_sums(3, 200), rows(1, 160, 2)),
    "online": (cross_entropy(5, 200), rows(2, 32, 2, split=2, on_chip=False, batch=2)),
    "split": (row_sum(3, 160), rows(2, 64, 1, split=2, on_chip=False, lanes=2)),
    "columns": (column_sum(60, 10), columns(2, 4, 4, 4, split=4, batch=2)),
    "columns between vectors": (middle_statistics(2, 32, 21), columns(4, 4, 8, 2, split=2, batch=2)),
    "moments": (layer_norm(2, 128), rows(2, 32, 1, cluster=2)),
    "moments of warps": (layer_norm(2, 192), rows(1, 64, 3)),
    "scan": (running_sum(3, 100), rows(1, 64, 2)),
    "scan between vectors": (running_sum_behind_zero(4, 508), rows(4, 64, 2)),
    "tiles": (transpose(9, 14), tiles("r0", "r1", (8, 4), 32, (1, 1))),
}
# Faults that change nothing, and how many of them a kernel holds.
HARMLESS = {
    # Another origin of a thread's distances changes how they round.
    "cluster": {"narrow above 0": 1, "narrow below 0": 1},
    "carried": {"at the place of x_queue": 1, "at the place of g_queue": 1},  # the walk over the rows is done: the queues are free
    "from the queue": {"at the place of x_queue": 1, "at the place of g_queue": 1},
    "teams": {"at the place of x_queue": 1, "at the place of g_queue": 1},
    "columns": {"widen above 0": 2},  # in the last round only the first thread's sum is used, so a second one may be made
    # A vector at the tensor's end may be loaded lane by lane, and threads without columns may walk: their sums are joined to none.
    "columns between vectors": {"widen above 1": 1, "narrow above 0": 1, "narrow below 0": 1},
    "scan": {"narrow above 0": 1},  # the row's last vector comes before none: its total is not needed
    # That total may have an element more or less, and the row's first element is zero. A vector of results may be stored lane by lane; what
    # is loaded and computed for lanes outside of the row is stored nowhere.
    "scan between vectors": {"widen above 0": 1, "widen below 0": 1, "narrow above 0": 2, "narrow below 0": 3, "one step more": 1},
}
pytestmark = [pytest.mark.skipif(compiler() is None, reason="no C++ compiler"), pytest.mark.slow]


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_planted_fault_shows(name: str, tmp_path: Path, seed: int = 7) -> None:
    """No mutant of a composed kernel passes silently; the unchanged kernel does."""
    pattern, wanted = CASES[name]
    case = Case(name, pattern, {}, H200, wanted)
    kernel = case.kernel()
    buffers, values = laid_out(case, kernel, np.random.default_rng(seed))
    with np.errstate(all="ignore"):
        expected = interpret(pattern.graph, values)
        bounds = pattern.bounds(values) if pattern.bounds else [None] * len(expected)

    def shows(function: Callable[..., int], changed: Kernel) -> bool:
        memory, status, _ = call(function, changed, buffers)
        if status:
            return True
        try:
            for result, value, bound in zip(pattern.graph.results, expected, bounds, strict=True):
                assert_within(memory[buffer_of(changed, result).name].reshape(value.shape), value, bound, result)
        except AssertionError:
            return True
        return any(memory[b.name].any() for b in changed.parameters if b.role == "counter")

    silent, planted = silent_faults(kernel, shows, tmp_path)
    kinds = Counter(fault.split(" ", 1)[1] for fault in silent)
    assert kinds == HARMLESS.get(name, {}), f"{len(silent)} of {planted} mutants pass silently: {silent}"
    assert planted >= 10
