"""Runs of checked walks on the host against f64."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.unit.templates.host_build import call
from tests.unit.templates.staged.walked.walk_cases import Case, drawn
from tests.unit.templates.stitched_cases import in_double
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.target.device import H200
from tilefuse.templates.staged.walked.compose import compose_walk


def assert_agrees_with_f64(case: Case, function_of: Callable[[str], Callable[..., int]]) -> None:
    """Every element of every result, with every access of the kernel checked; counters are zero again. function_of: by kernel name."""
    program = case.program()
    graph, kernel = program.graph, compose_walk(program, H200)
    values = {v.name: drawn(case, graph)[v.name].astype(NUMPY_DTYPES[v.type.dtype.name]) for v in graph.inputs}
    given = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    memory, status, report = call(function_of(kernel.name), kernel, given)
    assert status == 0, report
    assert not any(memory[b.name].any() for b in kernel.parameters if b.role == "counter")
    wide = {n: v.astype(np.float64) if v.dtype.kind not in "bi" else v for n, v in values.items()}
    wanted = interpret(in_double(graph), wide)
    name_by_origin = {b.origin: b.name for b in kernel.parameters}
    for result, value in zip(graph.results, wanted, strict=True):
        got, expected = memory[name_by_origin[result]].astype(np.float64), np.asarray(value).ravel()
        assert (np.isnan(got) == np.isnan(expected)).all()
        infinite = np.isinf(expected)
        assert (got[infinite] == expected[infinite]).all()
        got, expected = got[~infinite], expected[~infinite]
        error = np.nanmax(np.abs(got - expected), initial=0.0)
        assert error <= case.tolerance * max(np.nanmax(np.abs(expected), initial=0.0), 1.0)
