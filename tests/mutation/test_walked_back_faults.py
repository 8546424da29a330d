"""Plants faults in the keys' kernel of gradients of attention: each must show, by the finding of the broken rule or by wrong results."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.mutation.test_pipeline_faults import changed
from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.recomputed.back_graphs import Gradient
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import number
from tilefuse.kernel.ir import For, Kernel, Let, Stmt
from tilefuse.kernel.pipeline import Consume, Produce, ReleaseSlots, WarpgroupProduct, WarpgroupWait
from tilefuse.kernel.tensor_map import TensorCopy
from tilefuse.kernel.visit import statements
from tilefuse.target.device import H200
from tilefuse.templates.staged.recomputed.compose import compose_back
from tilefuse.templates.staged.recomputed.record import WalkedBack
from tilefuse.templates.staged.recomputed.template import schedule_back

pytestmark = [pytest.mark.skipif(compiler() is None, reason="no C++ compiler"), pytest.mark.slow]

OF, CHOICE = Gradient(scores=("causal",), heads=1, rows=160, keys=160), WalkedBack(32, 1, 1, 2, 1, 2)
WRONG = "wrong results"
Change = Callable[[Stmt], tuple[Stmt, ...]]


def whole_turns(kernel: Kernel) -> For:
    """The loop over the turns that a mask hides nothing of: the second of three."""
    return [s for s in statements(kernel.body) if isinstance(s, For) and any(isinstance(i, Consume) for i in s.body)][1]


def changing(kind: type, change: Change, place: int, of_loop: bool = True) -> Callable[[Kernel], Kernel]:
    """Changes the statement of a kind with this number, in the loop over whole turns or in the kernel."""
    def mutant(kernel: Kernel) -> Kernel:
        target = [s for s in statements(whole_turns(kernel).body if of_loop else kernel.body) if isinstance(s, kind)][place]
        return replace(kernel, body=changed(kernel.body, lambda s: change(s) if s is target else None))
    return mutant


def uncut(kernel: Kernel) -> Kernel:
    """Only the last turn of a tile is cut by the mask at its far end, and none at its near end."""
    counts = next(s for s in statements(kernel.body) if isinstance(s, Let) and s.name == "count")
    return replace(kernel, body=changed(kernel.body, lambda s: (replace(s, value=counts.value),) if isinstance(s, Let)
                                        and s.name == "whole" else None))


FAULTS: dict[str, tuple[Callable[[Kernel], Kernel], str]] = {
    "powers before their scores are there": (changing(WarpgroupWait, lambda s: (WarpgroupWait(2),), 0), ""),
    "elements before the second scores are there": (changing(WarpgroupWait, lambda s: (WarpgroupWait(2),), 1), ""),
    "operands given back while products read them": (changing(WarpgroupWait, lambda s: (), 2),
                                                     "slot released while a product in flight reads it"),
    "rows' operands never given back": (changing(ReleaseSlots, lambda s: (), -1, of_loop=False), "slot filled before it is released"),
    "operands not filled": (changing(Produce, lambda s: (), 0), "slot used before it is full"),
    "operands filled twice": (changing(Produce, lambda s: (s, s), 0), "slot filled before it is released"),
    "scores added to those of the turn before": (changing(WarpgroupProduct, lambda s: (replace(s, term=number(1)),), 1), WRONG),
    "operand of the wrong slot": (changing(WarpgroupProduct, lambda s: (replace(s, right_index=number(0)),), 3), ""),
    "logarithms not copied": (changing(TensorCopy, lambda s: (), 2), ""),
    "turns of the mask without it": (uncut, ""),
}


def test_every_fault_shows(tmp_path: Path) -> None:
    """Checked kernels of all faults, compiled together: a status other than 0 with the finding, or results that are wrong."""
    program = schedule_back(OF.graph(), {}, H200, CHOICE)
    assert isinstance(program, TileProgram)
    kernel = compose_back(program, H200)
    mutants = [change(kernel) for change, _ in FAULTS.values()]
    assert all(m != kernel for m in mutants)
    library = build_together([(m, True) for m in (kernel, *mutants)], tmp_path, CHECKED_FLAGS)
    values, expected = OF.drawn(2)
    arrays = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    name_by_origin = {b.origin: b.name for b in kernel.parameters}
    results = dict(zip((name_by_origin[r] for r in program.graph.results), ("dk", "dv"), strict=True))
    findings: dict[str, str] = {}
    for n, name in enumerate(("", *FAULTS)):
        memory, status, report = call(getattr(library, f"{kernel.name}_{n}"), kernel, arrays)
        off = max(np.abs(memory[r].astype(np.float64) - expected[g].ravel()).max() / np.abs(expected[g]).max() for r, g in results.items())
        findings[name] = report if status else WRONG if not off <= 2.0**-8 else ""
    assert not findings[""]
    silent = {name: findings[name] for name, (_, rule) in FAULTS.items() if not findings[name] or rule not in findings[name]}
    assert not silent
