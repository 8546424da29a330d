"""Pipelined walks between products: forms that are one, their tiles as text, and their kernels on the checking host executor."""
from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.walked.walk_cases import CASES, drawn
from tests.unit.templates.stitched_cases import in_double
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.target.device import H200
from tilefuse.templates.staged.walked.compose import compose_walk

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The checked kernels of all cases, compiled together."""
    kernels = [(compose_walk(case.program(), H200), True) for case in CASES.values()]
    return build_together(kernels, tmp_path_factory.mktemp("walks"), CHECKED_FLAGS)


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_kernel_computes_the_walk(name: str, library: ctypes.CDLL) -> None:
    """Every element of every result, with every access of the kernel checked, against f64."""
    case = CASES[name]
    program = case.program()
    graph, kernel = program.graph, compose_walk(program, H200)
    values = {v.name: drawn(case, graph)[v.name].astype(NUMPY_DTYPES[v.type.dtype.name]) for v in graph.inputs}
    given = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    memory, status, report = call(getattr(library, f"{kernel.name}_{list(CASES).index(name)}"), kernel, given)
    assert status == 0, report
    wide = {n: v.astype(np.float64) if v.dtype.kind not in "bi" else v for n, v in values.items()}
    wanted = interpret(in_double(graph), wide)
    name_by_origin = {b.origin: b.name for b in kernel.parameters}
    for result, value in zip(graph.results, wanted, strict=True):
        got, expected = memory[name_by_origin[result]].astype(np.float64), np.asarray(value).ravel()
        assert (np.isnan(got) == np.isnan(expected)).all()
        error = np.nanmax(np.abs(got - expected), initial=0.0)
        assert error <= case.tolerance * max(np.nanmax(np.abs(expected), initial=0.0), 1.0)
