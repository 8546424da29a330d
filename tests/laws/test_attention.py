"""Random variants of attention as pipelined walks: in checking mode, without findings, against f64; most of them in tiles drawn by lot."""
from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.laws.random_attention import random_tiles, random_variant
from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.walked.variants import Variant, variates
from tests.unit.templates.stitched_cases import in_double
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import F16
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.target.device import H200
from tilefuse.templates.staged.walked.compose import compose_walk
from tilefuse.templates.staged.walked.form import WalkForm, walk_form
from tilefuse.templates.staged.walked.template import schedule_walk

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
TOGETHER = 8
# All drawn variants have the form; tiles of most of them fit.
LEAST_ACCEPTED = TOGETHER - 2


def program_of(variant: Variant, seed: int) -> TileProgram | None:
    """The walk in tiles drawn by lot; None where they do not fit."""
    graph = variant.graph()
    form = walk_form(graph, {})
    assert isinstance(form, WalkForm), f"seed {seed}: {form}\n{variant}"
    program = schedule_walk(graph, {}, H200, random_tiles(Random(seed), variant, len(form.biases)))
    return program if isinstance(program, TileProgram) else None


@pytest.mark.parametrize("first", range(0, 4 * TOGETHER, TOGETHER))
def test_variants_agree_with_f64(first: int, tmp_path: Path) -> None:
    """NaN and infinities where the definition has them, every other element within rounding."""
    made = []
    for seed in range(first, first + TOGETHER):
        variant = random_variant(Random(seed))
        program = program_of(variant, seed)
        if program is not None:
            made.append((seed, variant, program, compose_walk(program, H200)))
    assert len(made) >= LEAST_ACCEPTED
    library = build_together([(k, True) for *_, k in made], tmp_path, CHECKED_FLAGS)
    for number, (seed, variant, program, kernel) in enumerate(made):
        what = f"seed {seed}: {variant}\n{program.choice}"
        random = np.random.default_rng(seed)
        values = {v.name: variates(random, v.name, v.type.shape).astype(NUMPY_DTYPES[v.type.dtype.name]) for v in program.graph.inputs}
        given = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
        memory, status, report = call(getattr(library, f"{kernel.name}_{number}"), kernel, given)
        assert status == 0, f"{report}\n{what}"
        wide = {n: v.astype(np.float64) if v.dtype.kind not in "bi" else v for n, v in values.items()}
        name_by_origin = {b.origin: b.name for b in kernel.parameters}
        for result, value in zip(program.graph.results, interpret(in_double(program.graph), wide), strict=True):
            got, expected = memory[name_by_origin[result]].astype(np.float64), np.asarray(value).ravel()
            odd = ~np.isfinite(expected)
            assert np.array_equal(got[odd], expected[odd], equal_nan=True), what
            bound = (2.0**-8 if variant.dtype == F16 else 2.0**-5) * max(np.abs(expected[~odd]).max(initial=0.0), 1.0)
            error = np.abs(got[~odd] - expected[~odd]).max(initial=0.0)
            assert error <= bound, f"off by {error}, {bound} at most\n{what}"
