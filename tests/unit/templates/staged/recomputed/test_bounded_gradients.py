"""Gradients of attention whose masks read data: walks that summaries bound, on the checking host executor beside the gradients in f64."""
from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.compile_only.assembler import assembled, without_spills
from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.recomputed.back_graphs import Gradient
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import BF16, F16
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.kernel.widths import with_index_bits
from tilefuse.plan.pattern import Pattern
from tilefuse.plan.rewrites.mask_summaries import clauses_of, with_bounds
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200
from tilefuse.templates.staged.recomputed.compose import compose_back
from tilefuse.templates.staged.recomputed.record import WalkedBack
from tilefuse.templates.staged.recomputed.template import schedule_back, walked_back_of

CASES = {
    "keys": (Gradient(scores=("documents",), rows=310, keys=330), WalkedBack(32, 1, 2, 3, 1, 3)),
    "keys, causal": (Gradient(scores=("documents", "causal"), rows=300, keys=300, inner=64), WalkedBack(32, 2, 2, 2, 1, 2)),
    "keys, mask": (Gradient(scores=("hidden",), rows=200, keys=200, dtype=BF16), WalkedBack(48, 1, 1, 2, 1, 2)),
    "queries": (Gradient("queries", ("documents",), rows=310, keys=330), WalkedBack(32, 1, 1, 2, 1, 3)),
    "queries, causal": (Gradient("queries", ("causal", "documents"), rows=300, keys=300, dtype=BF16), WalkedBack(64, 2, 2, 2, 2, 2)),
    "queries, fewer keys": (Gradient("queries", ("documents",), rows=300, keys=130), WalkedBack(32, 1, 1, 2, 1, 2)),
}


def parted(of: Gradient) -> tuple[Graph, Graph]:
    """The summaries of a gradient's mask, and the walk that reads them."""
    # The comparison of documents is a map of its own, which the keys' kernel reads across.
    graph, turned = of.graph(), of.of == "keys" and "documents" in of.scores
    bounded, summaries = with_bounds(graph, [n.name for n in graph.nodes if clauses_of(n, graph)], False, turned)
    rest = tuple(n.name for n in bounded.nodes if n.name not in summaries)
    return Pattern(summaries, summaries).graph(bounded), Pattern(rest, graph.results).graph(bounded)


def scheduled(of: Gradient, choice: WalkedBack | None) -> TileProgram:
    """The tile program of the walk."""
    made = schedule_back(parted(of)[1], {}, H200, choice)
    assert isinstance(made, TileProgram), made
    return made


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The checked kernels of all cases, compiled together."""
    kernels = [(compose_back(scheduled(*case), H200), True) for case in CASES.values()]
    return build_together(kernels, tmp_path_factory.mktemp("bounded_back"), CHECKED_FLAGS)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", CASES)
def test_kernel_computes_the_gradients(name: str, library: ctypes.CDLL) -> None:
    """Every element of every result, with every access of the kernel checked."""
    of, choice = CASES[name]
    program = scheduled(of, choice)
    limit = walked_back_of(program).form.limit
    assert limit is not None and limit.is_of_blocks
    kernel, (values, expected), summaries = compose_back(program, H200), of.drawn(seed=len(name)), parted(of)[0]
    found = interpret(summaries, {v.name: values[v.name] for v in summaries.inputs})
    values |= dict(zip(summaries.results, map(np.asarray, found), strict=True))
    given = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    memory, status, report = call(getattr(library, f"{kernel.name}_{list(CASES).index(name)}"), kernel, given)
    assert status == 0, report
    name_by_origin = {b.origin: b.name for b in kernel.parameters}
    for result, gradient in zip(program.graph.results, ("dk", "dv") if of.of == "keys" else ("dq",), strict=True):
        got, exact = memory[name_by_origin[result]].astype(np.float64), expected[gradient].ravel()
        assert np.abs(got - exact).max() <= (2.0**-9 if of.dtype == F16 else 2.0**-6) * max(np.abs(exact).max(), 1.0)


@pytest.mark.parametrize("of", ["keys", "queries"])
@pytest.mark.parametrize("inner", [64, 128])
def test_nothing_spills(of: str, inner: int) -> None:
    """The tiles that plans take, for an H200."""
    program = scheduled(Gradient(of, ("documents", "causal"), heads=64, rows=4096, keys=4096, inner=inner, dtype=BF16), None)
    _, report = assembled(print_cuda(with_index_bits(compose_back(program, H200)), H200), "sm_90a")
    assert without_spills(report), report
    assert "serialized" not in report
