"""Masks with a gap between the first columns and a window: turns of the gap are neither brought nor computed."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.walked.variants import Variant, variates
from tests.unit.templates.stitched_cases import in_double
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.target.device import H200
from tilefuse.templates.staged.walked.compose import compose_walk
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.template import pipelined_walk_of, schedule_walk
from tilefuse.templates.staged.walked.tree import walk_tree


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("scores", ["first_and_window", "ends_and_window"])
def test_columns_of_a_gap_reach_no_result(scores: str, tmp_path: Path) -> None:
    """NaN in the gap of the last rows is not multiplied by their powers of 0; rows whose window it is are NaN."""
    graph = Variant((scores,), heads=1, rows=320, keys=320).graph()
    program = schedule_walk(graph, {}, H200, PipelinedWalk(16, 1, 1, 2, 1, 2))
    assert isinstance(program, TileProgram)
    kernel, random = compose_walk(program, H200), np.random.default_rng(5)
    values = {i.name: variates(random, i.name, i.type.shape).astype(NUMPY_DTYPES[i.type.dtype.name]) for i in graph.inputs}
    if "ends" in values:
        values["ends"][:] = 10
    values["v"][..., 64:200, :] = np.nan
    given = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    library = build_together([(kernel, True)], tmp_path, CHECKED_FLAGS)
    memory, status, report = call(getattr(library, f"{kernel.name}_0"), kernel, given)
    assert status == 0, report
    (out,) = (b.name for b in kernel.parameters if b.role == "out")
    got = memory[out].astype(np.float64).reshape(320, -1)
    values["v"][..., 64:200, :] = 0
    wanted = np.asarray(interpret(in_double(graph), {n: v.astype(np.float64) if v.dtype.kind == "f" else v for n, v in values.items()})[0])
    np.testing.assert_allclose(got[256:], wanted.reshape(320, -1)[256:], atol=2.0**-8)
    assert np.isnan(got[100:200]).all()


def test_explanations_count_the_turns_that_are_left() -> None:
    """The tile of rows 256 .. 319 has a turn of first columns and those of columns 224 .. 319."""
    graph = Variant(("first_and_window",), heads=1, rows=320, keys=320).graph()
    program = schedule_walk(graph, {}, H200, PipelinedWalk(32, 1, 1, 2, 1, 2))
    assert isinstance(program, TileProgram)
    plan = pipelined_walk_of(program)
    assert plan.turns(4) == 4 and plan.all_turns == 2 + 4 + 4 + 4 + 4
    assert "18 of 50 turns of all tiles" in str(walk_tree(plan))
