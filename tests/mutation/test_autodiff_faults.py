"""Plants faults in the rules of autodiff: each makes some gradient differ from central differences, or breaks a transposition."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.laws.differences import agree_with_differences
from tests.laws.test_transposed_reads import agree
from tilefuse.base.errors import CompilerError
from tilefuse.ir.affine import axis
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F64
from tilefuse.ir.graph import Graph
from tilefuse.ir.library.adjoint import LIBRARY_ADJOINTS, Request
from tilefuse.ir.ops import SCALAR_OPS
from tilefuse.ir.scalar import call
from tilefuse.passes.autodiff import nodes as autodiff_nodes
from tilefuse.passes.autodiff import scalar as autodiff_scalar
from tilefuse.passes.autodiff import sums as autodiff_sums
from tilefuse.passes.autodiff import transpose as autodiff_transpose

Plant = Callable[[pytest.MonkeyPatch], None]


def network() -> tuple[Graph, list[str]]:
    """A little of everything: a product, a broadcast, a pool, slices, a product over an axis, a scan."""
    b = TensorBuilder("network")
    x, w = b.input("x", F64, (2, 3, 6)), b.input("w", F64, (6, 4))
    h = b.triu(b.elementwise("tanh", b.matmul(x, w)))
    scales = b.select(w, 0, 0), b.elementwise("sin", b.select(w, 0, 1))
    h = b.expression(lambda v, s, t: call("mul", v, call("mul", s, t)), h, *scales, dtype=F64)
    top, _ = b.pool(b.elementwise("mul", h, b.select(h, 0, 0)), "max", (2,), (1,))
    parts = b.concatenate([b.slice(top, (0,), (1,), axes=(0,)), b.slice(b.elementwise("mul", top, top), (1,), (2,), axes=(0,))], 0)
    more = b.elementwise("add", b.reduce(b.elementwise("sub", h, 0.3), "prod", 2), b.reduce(b.scan(h, "sum", 2), "m2", 2))
    return b.finish([b.elementwise("add", b.reduce(parts, "sum"), b.reduce(b.softmax(more, 1), "max"))]), [x, w]


def checked() -> None:
    """Raises where a gradient of the network, or a transposition, is wrong."""
    graph, inputs = network()
    data = {x: np.random.default_rng(n).uniform(-0.8, 0.8, graph.type_of(x).shape) for n, x in enumerate(inputs)}
    agree_with_differences(graph, inputs, data)
    agree([axis("i") * 2 + axis("k") - 1], {"i": 4, "k": 3}, [7])


def adjoint_text(name: str, *texts: str) -> Plant:
    return lambda patch: patch.setitem(SCALAR_OPS, name, replace(SCALAR_OPS[name], adjoint=texts))


def without_limits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(autodiff_transpose._Solver, "_limit", lambda self, e, low, high: None)


def without_guards(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(autodiff_scalar, "guarded", lambda e, guards, otherwise: e)


def one_term_of_a_sum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(autodiff_sums.Gradients, "_total", lambda self, name, terms, work: terms[0])


def forgotten_factor(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(autodiff_sums, "_with_inner", lambda outside, part: part)


def all_that_attain(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(autodiff_nodes._REDUCTIONS, "max", autodiff_nodes._gradient_here)


def scan_from_the_wrong_end(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(autodiff_nodes._SCANS, "sum", autodiff_nodes._gradient_here)


def exchanged_operands(patch: pytest.MonkeyPatch) -> None:
    plain = LIBRARY_ADJOINTS["matmul"]

    def wrong(b: TensorBuilder, request: Request) -> tuple[str | None, ...]:
        first, *rest = plain(b, request)
        assert first is not None
        return (b.elementwise("neg", first), *rest)

    patch.setitem(LIBRARY_ADJOINTS, "matmul", wrong)


FAULTS: dict[str, Plant] = {
    "tanh without its square": adjoint_text("tanh", "mul(g, sub(1.0, y))"),
    "a difference with one sign": adjoint_text("sub", "neg(g)", "neg(g)"),
    "a product with itself": adjoint_text("mul", "mul(g, x0)", "mul(g, x0)"),
    "no bounds on windows": without_limits,
    "no guards around a triangle": without_guards,
    "one contribution of several": one_term_of_a_sum,
    "a factor left behind": forgotten_factor,
    "a maximum of all": all_that_attain,
    "a scan that is not turned": scan_from_the_wrong_end,
    "a product's sign": exchanged_operands,
}


def test_nothing_planted() -> None:
    checked()


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_shows(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[fault](monkeypatch)
    with pytest.raises((AssertionError, CompilerError)):
        checked()
