"""Left operands whose rows begin anywhere in memory: kernels on the checking host executor, neighbours that are no numbers, choices."""
from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.templates.host_build import CHECKED_PIPELINE_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.pipelined.product_graphs import gated, pair, plain
from tests.unit.templates.staged.pipelined.test_pipelined import ROUNDOFF, Case, drawn
from tests.unit.templates.stitched_cases import in_double
from tilefuse.ir.dtype import BF16, F16, F8E4M3
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import plan_of

ALONG = (False, False)
SHIFTED_CASES = {
    "odd rows, more than whole steps": Case(lambda: plain(135, 72, 71, F16, ALONG), Pipelined(64, 64, 64, 3, 1, 2, 3)),
    "odd rows, whole steps": Case(lambda: plain(136, 72, 67, BF16, ALONG), Pipelined(64, 64, 64, 3, 1, 2, 3)),
    "odd rows and columns": Case(lambda: plain(301, 133, 131, BF16, ALONG), Pipelined(128, 128, 64, 3, 2, 1, 3)),
    "odd rows and columns, in turn": Case(lambda: plain(301, 133, 131, F16, ALONG), Pipelined(64, 128, 64, 3, 2, 2, 3, pingpong=True)),
    "two rows of instructions, two panels": Case(lambda: plain(1100, 64, 203, BF16, ALONG), Pipelined(128, 64, 128, 2, 1, 1, 3)),
    "fewer rows than a step": Case(lambda: plain(5, 72, 131, F16, ALONG), Pipelined(64, 64, 64, 3, 1, 1, 3)),
    "rows of four bytes": Case(lambda: plain(70, 72, 66, F16, ALONG), Pipelined(64, 64, 64, 3, 1, 1, 3)),
    "an inner axis shorter than a slot": Case(lambda: plain(70, 72, 37, BF16, ALONG), Pipelined(64, 64, 64, 3, 1, 1, 3)),
    "an inner axis that ends with a slot": Case(lambda: plain(70, 72, 121, BF16, ALONG), Pipelined(64, 64, 64, 3, 1, 1, 3)),
    "a batch of odd elements": Case(lambda: plain(67, 72, 35, F16, ALONG, lead=(3,)), Pipelined(64, 64, 64, 3, 1, 1, 2)),
    "parts of the inner axis": Case(lambda: plain(70, 136, 331, F16, ALONG), Pipelined(64, 128, 64, 2, 1, 1, 12, cluster=2, split=2)),
    "parts in a workspace": Case(lambda: plain(70, 133, 331, F16, ALONG), Pipelined(64, 64, 64, 2, 1, 1, 9, split=3)),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All kernels with every access checked, in one source."""
    kernels = [(compose_product(c.program(), H200), True) for c in SHIFTED_CASES.values()]
    return build_together(kernels, tmp_path_factory.mktemp("shifted"), CHECKED_PIPELINE_FLAGS)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", SHIFTED_CASES)
def test_kernel_computes_every_element(name: str, library: ctypes.CDLL) -> None:
    """Every element of every result against f64, with every access checked."""
    program = SHIFTED_CASES[name].program()
    assert plan_of(program).form.shifted is not None
    graph, kernel = program.graph, compose_product(program, H200)
    values = drawn(graph)
    arrays = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    memory, status, report = call(getattr(library, f"{kernel.name}_{[*SHIFTED_CASES].index(name)}"), kernel, arrays)
    assert status == 0, report
    double = in_double(graph)
    wanted = interpret(double, {i.name: values[i.name].astype(NUMPY_DTYPES[i.type.dtype.name]) for i in double.inputs})
    for result, want in zip(graph.results, wanted, strict=True):
        got = memory[next(b.name for b in kernel.parameters if b.origin == result)]
        bound = ROUNDOFF[graph.type_of(result).dtype.name] * max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(np.asarray(got, np.float64).reshape(want.shape), want, atol=bound, rtol=0)
