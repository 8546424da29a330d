"""Stitched kernels compute what their graphs mean, in checking mode on the host."""
from __future__ import annotations

import ctypes
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.online_cases import ONLINE_CASES
from tests.unit.templates.stitched_cases import CASES, StitchedCase
from tests.unit.templates.test_compose import assert_within, buffer_of
from tilefuse.kernel.ir import If, Kernel, VectorLoad, VectorStore
from tilefuse.kernel.visit import statements

ALL = (*CASES, *ONLINE_CASES)
BY_NAME = {c.name: c for c in ALL}
# Compiling is most of the time.
PER_LIBRARY = 9
pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

Built = dict[str, tuple[Kernel, ctypes.CDLL, int]]


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Built]]]:
    """The kernels of the selected tests, several in one shared object, being built in the background; by name of the case."""
    folder = tmp_path_factory.mktemp("stitched")
    names = {item.callspec.params["name"] for item in request.session.items if item.module is request.module and hasattr(item, "callspec")}  # type: ignore[attr-defined]
    cases = [c for c in ALL if c.name in names]

    def build(part: list[StitchedCase]) -> Built:
        kernels = [c.kernel() for c in part]
        library = build_together([(k, True) for k in kernels], folder, CHECKED_FLAGS)
        return {c.name: (k, library, n) for n, (c, k) in enumerate(zip(part, kernels, strict=True))}

    with ThreadPoolExecutor(2) as pool:
        parts = [cases[n:n + PER_LIBRARY] for n in range(0, len(cases), PER_LIBRARY)]
        futures = [(part, pool.submit(build, part)) for part in parts]
        yield {c.name: future for part, future in futures for c in part}


@pytest.mark.parametrize("name", list(BY_NAME))
def test_accesses_are_words_that_a_device_has(name: str) -> None:
    """1, 2, 4, 8 or whole 16 bytes: a thread with five columns loads and stores them one by one."""
    kernel = BY_NAME[name].kernel()
    itemsize = {b.name: b.dtype.itemsize for b in kernel.buffers}
    for s in statements(kernel.body):
        if isinstance(s, (VectorLoad, VectorStore)):
            num_bytes = s.width * itemsize[s.buffer]
            assert num_bytes in (1, 2, 4, 8) or num_bytes % 16 == 0, s


@pytest.mark.parametrize("name", list(BY_NAME))
def test_stitched_kernel_computes_its_graph(name: str, built: dict[str, Future[Built]], seed: int = 3) -> None:
    """No finding of the checking mode, and every result within its bound."""
    case = BY_NAME[name]
    kernel, library, number = built[name].result()[name]
    inputs = case.inputs(np.random.default_rng(seed))
    buffers = {b.name: inputs[b.origin].ravel() for b in kernel.parameters if b.origin in inputs}
    memory, status, report = call(getattr(library, f"{kernel.name}_{number}"), kernel, buffers)
    assert status == 0, report
    for result, (value, bound) in zip(case.graph.results, case.wanted(inputs), strict=True):
        found = memory[buffer_of(kernel, result).name].reshape(value.shape)
        assert_within(found, value, bound, f"{name} %{result}, seed {seed}, {kernel.header[1]}")


@pytest.mark.parametrize(("name", "wide"), [("joined operand", {"x0", "x1", "x2"}), ("operand joined within vectors", set())])
def test_parts_side_by_side_are_loaded_in_vectors_where_each_vector_lies_in_one(name: str, wide: set[str]) -> None:
    """The choice of the part is made once a vector; a vector that two parts share is read element by element."""
    kernel = BY_NAME[name].kernel()
    branches = [s for s in statements(kernel.body) if isinstance(s, If)]
    guarded = {s.buffer for b in branches for s in statements((*b.body, *b.otherwise)) if isinstance(s, VectorLoad)}
    assert {kernel.addressed[b].origin for b in guarded if kernel.addressed[b].space == "global"} == wide
