"""Random gradients of attention as walks: in checking mode, without findings, against f64; tiles are drawn by lot too."""
from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.recomputed.back_graphs import Gradient
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import BF16, F16
from tilefuse.target.device import H200
from tilefuse.templates.staged.recomputed.compose import compose_back
from tilefuse.templates.staged.recomputed.form import BackForm, back_form
from tilefuse.templates.staged.recomputed.record import WalkedBack
from tilefuse.templates.staged.recomputed.template import schedule_back

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
TOGETHER = 6
# All drawn gradients have the form; tiles of most of them fit.
LEAST_ACCEPTED = TOGETHER - 3
SCORES = ("cap", "dense", "hidden", "causal", "window", "prefix")


def drawn(random: Random) -> tuple[Gradient, WalkedBack]:
    """A gradient and tiles for it."""
    of = random.choice(("keys", "queries"))
    scores = tuple(s for s in SCORES if random.random() < 0.25)
    gradient = Gradient(of, scores, random.choice((1, 2, 3)), random.randint(2, 150), random.randint(2, 150),
                        8 * random.randint(1, 16), random.choice((F16, BF16)), random.randint(1, 60),
                        random.choice((1, 1, 2, 4)) if of == "keys" and not {"dense", "hidden"} & set(scores) else 1,
                        random.choice(((), (), ("elements",), ("elements", "sums"), ("sums",))))
    return gradient, WalkedBack(16 * random.randint(1, 5), random.randint(1, 2), random.randint(1, 2), random.randint(2, 4), 1,
                                random.randint(1, 6), bool({"dense", "hidden"} & set(scores)) and random.random() < 0.7)


@pytest.mark.parametrize("first", range(0, 2 * TOGETHER, TOGETHER))
def test_gradients_agree_with_f64(first: int, tmp_path: Path) -> None:
    """Every element within the rounding of powers and results to 16 bits."""
    cases: list[tuple[int, Gradient, TileProgram]] = []
    for seed in range(first, first + TOGETHER):
        gradient, choice = drawn(Random(seed))
        graph = gradient.graph()
        form = back_form(graph, {})
        assert isinstance(form, BackForm), f"seed {seed}: {form}\n{gradient}"
        program = schedule_back(graph, {}, H200, choice)
        if isinstance(program, TileProgram):
            cases.append((seed, gradient, program))
    assert len(cases) >= LEAST_ACCEPTED
    kernels = [compose_back(program, H200) for *_, program in cases]
    library = build_together([(k, True) for k in kernels], tmp_path, CHECKED_FLAGS)
    for number, ((seed, gradient, program), kernel) in enumerate(zip(cases, kernels, strict=True)):
        what = f"seed {seed}: {gradient}\n{program.choice}"
        values, expected = gradient.drawn(seed)
        arrays = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
        memory, status, report = call(getattr(library, f"{kernel.name}_{number}"), kernel, arrays)
        assert status == 0, f"{report}\n{what}"
        name_by_origin = {b.origin: b.name for b in kernel.parameters}
        for result, name in zip(program.graph.results, gradient.names, strict=True):
            got, exact = memory[name_by_origin[result]].astype(np.float64), expected[name].ravel()
            bound = (2.0**-8 if gradient.dtype == F16 else 2.0**-5) * max(np.abs(exact).max(), 1.0)
            assert np.abs(got - exact).max() <= bound, what
