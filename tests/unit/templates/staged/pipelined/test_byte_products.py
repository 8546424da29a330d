"""Pipelined products of 8-bit floats and integers: kernels on the checking host executor against f64, tiles, refusals, prices."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.unit.templates.host_build import Library, compiler, library_of
from tests.unit.templates.staged.pipelined.byte_graphs import scaled, sums
from tests.unit.templates.staged.pipelined.test_pipelined import Case
from tests.unit.templates.stitched_cases import in_double
from tilefuse.base.candidate import Rejected
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, F8E4M3, F8E5M2, F16, F32, I8, I32, U8
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.kernel.ir import Assign
from tilefuse.kernel.pipeline import WarpgroupProduct
from tilefuse.kernel.visit import statements
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import plan_of, schedule_product

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
# Relative rounding errors of results, and of a sum of up to 300 exact products in f32. Source: Higham 2002, section 3.1.
ROUNDOFF = {"f8e4m3": 2.0**-4, "f8e5m2": 2.0**-3, "f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "i32": 0.0}
SUMS = 300 * 2.0**-24
# Half of the smallest positive number.
LEAST = {"f8e4m3": 2.0**-10, "f8e5m2": 2.0**-17}

BYTE_CASES = {
    "e4m3, scales of a tensor": Case(lambda: scaled(130, 136, 272)),
    "e4m3 by e5m2, scales of rows and columns, bias": Case(lambda: scaled(72, 200, 144, (F8E4M3, F8E5M2), F16, True, True)),
    "e5m2 by e4m3, fast sums": Case(lambda: scaled(136, 72, 400, (F8E5M2, F8E4M3), F32, precision="fast")),
    "e4m3 as the result": Case(lambda: scaled(200, 144, 144, result=F8E4M3), Pipelined(128, 128, 128, 3, 2, 1, 2)),
    "e4m3 as the result, in turn": Case(lambda: scaled(200, 144, 144, result=F8E4M3, per_row=True),
                                        Pipelined(64, 128, 128, 3, 2, 1, 2, pingpong=True)),
    "odd rows in memory, 8-bit floats": Case(lambda: scaled(67, 33, 71, result=F32), by_threads=2),
    "sums of 8-bit floats of a batch": Case(lambda: sums(66, 72, 144, (F8E4M3, F8E4M3), (3,))),
    "int8": Case(lambda: sums(136, 200, 272)),
    "int8 by uint8": Case(lambda: sums(70, 72, 144, (I8, U8)), Pipelined(64, 64, 128, 2, 1, 1, 2)),
    "int8 with scales of rows and columns, bias": Case(lambda: scaled(72, 200, 144, (I8, I8), BF16, True, True)),
    "int8, tiles in turn": Case(lambda: scaled(264, 136, 272, (I8, I8), BF16), Pipelined(64, 128, 128, 3, 2, 1, 2, pingpong=True)),
    "int8, odd sizes": Case(lambda: sums(67, 33, 71), by_threads=2),
}


def drawn(graph: Graph) -> dict[str, np.ndarray]:
    """Seeded inputs: integers over the whole range of their type, floats about 1."""
    random = np.random.default_rng(7)
    values: dict[str, np.ndarray] = {}
    for v in graph.inputs:
        dtype = v.type.dtype
        low, high = (0, 256) if dtype == U8 else (-128, 128)
        values[v.name] = (random.integers(low, high, v.type.shape) if dtype.is_integer else random.standard_normal(v.type.shape)).astype(
            NUMPY_DTYPES[dtype.name])
    return values


@dataclass(frozen=True)
class Expected:
    """The results in f64 and the bound of each element's error."""

    value: np.ndarray
    bound: np.ndarray


def expected(graph: Graph, values: dict[str, np.ndarray]) -> Expected:
    """The one result of a graph. bound: sums of products in f32, then a rounding of the result; sums of integers are exact."""
    double = in_double(graph)

    def of(inputs: dict[str, np.ndarray]) -> np.ndarray:
        typed = {i.name: inputs[i.name].astype(NUMPY_DTYPES[i.type.dtype.name]) for i in double.inputs}
        return np.asarray(interpret(double, typed)[0], np.float64)

    value, dtype = of(values), graph.type_of(graph.results[0]).dtype
    is_float = graph.inputs[0].type.dtype.is_float
    terms = of({n: np.abs(v) for n, v in values.items()}) if is_float else 4 * np.abs(value)
    return Expected(value, 2 * ROUNDOFF[dtype.name] * np.abs(value) + (dtype != I32) * (SUMS * terms + LEAST.get(dtype.name, 0.0)))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """The kernels of all cases with every access checked."""
    return library_of({name: compose_product(c.program(), H200) for name, c in BYTE_CASES.items()}, tmp_path_factory.mktemp("bytes"))


@needs_compiler
@pytest.mark.parametrize("name", BYTE_CASES)
def test_kernel_computes_the_product(name: str, library: Library) -> None:
    """Every element, with every access of the kernel checked; integers exactly."""
    program = BYTE_CASES[name].program()
    graph, kernel = program.graph, library.kernels[name]
    values = drawn(graph)
    arrays = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    memory, status, report = library.run(name, arrays)
    assert status == 0, report
    want = expected(graph, values)
    (result,) = (b.name for b in kernel.parameters if b.role == "out")
    error = np.abs(memory[result].astype(np.float64) - want.value.ravel())
    assert (error <= want.bound.ravel()).all(), (error - want.bound.ravel()).max()


def test_sums_of_8_bit_floats_are_added_in_f32() -> None:
    """Each product of a slot overwrites its accumulator, and an addition follows; fast sums and integers stay in the accumulator."""
    for name, adds in (("e4m3, scales of a tensor", True), ("e5m2 by e4m3, fast sums", False), ("int8", False)):
        kernel = compose_product(BYTE_CASES[name].program(), H200)
        (product,) = (s for s in statements(kernel.body) if isinstance(s, WarpgroupProduct))
        assert product.term is not None and product.term.is_const == adds
        own = [s for s in statements(kernel.body) if isinstance(s, Assign) and s.target.name.endswith("_sum")]
        assert bool(own) == adds


def test_operands_that_are_not_contiguous_along_the_inner_axis_are_refused() -> None:
    """Warpgroup instructions take 8-bit operands in one layout."""
    b = TensorBuilder("turned")
    x, w = b.input("x", I8, (128, 128)), b.input("w", I8, (128, 128))
    refused = schedule_product(b.finish([b.matmul(x, w, dtype=I32)]), {}, H200)
    assert isinstance(refused, Rejected) and "%w" in str(refused) and "not contiguous along the inner axis" in str(refused)


def test_results_of_one_byte_leave_by_tensor_stores() -> None:
    """A stage of 64 columns of one byte has panels of 64 bytes."""
    (stage,) = plan_of(BYTE_CASES["e4m3 as the result"].program()).staged
    assert (stage.swizzle, stage.width, stage.num_panels) == (64, 64, 1)


def test_products_of_bytes_are_twice_as_fast_as_those_of_16_bits() -> None:
    """Where the tensor cores decide, as predicted. Sums in the accumulators are no slower, within what the choice leaves out."""
    from tests.unit.templates.staged.pipelined.product_graphs import plain
    from tilefuse.domain.roofline import price_work
    narrow = plan_of(Case(lambda: plain(8192, 8192, 8192, BF16)).program())
    integers, fast, exact = (plan_of(Case(lambda g=g: g).program()) for g in (  # type: ignore[misc]
        sums(8192, 8192, 8192), scaled(8192, 8192, 8192, precision="fast"), scaled(8192, 8192, 8192)))
    us = [price_work(p.work, H200).us for p in (narrow, integers, fast, exact)]
    assert us[1] < 0.65 * us[0] and us[2] < 0.65 * us[0] and us[2] < 1.01 * us[3] and us[3] < us[0]
    assert exact.all_sums + exact.sums <= 2 * 255
