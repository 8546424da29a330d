"""Composed kernels compute what their graphs mean: those for the device in checking mode, those for the host as users run them."""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.composed_cases import Case, all_cases, pointwise
from tests.unit.templates.host_build import FLAGS, SHORT_CHECKED_FLAGS, build_together, call, compiler, run
from tests.unit.templates.pattern_graphs import ROUNDOFF, Pattern, max_pool, row_sum
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Choice
from tilefuse.emit.cascade import nested_counts
from tilefuse.ir.affine import row_major_strides
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.text import parse_graph
from tilefuse.kernel.ir import Buffer, Kernel
from tilefuse.printers.host import print_host
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.templates.rows.modes import Rows

CASES = {c.name: c for c in all_cases()}
pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

Built = dict[str, tuple[Kernel, ctypes.CDLL, int]]


def build_group(cases: list[Case], folder: Path) -> Built:
    """The kernels of one pattern in one shared object: (kernel, library, its number in it) by case."""
    kernels = [(c.kernel(), c.checked) for c in cases]
    library = build_together(kernels, folder, SHORT_CHECKED_FLAGS if cases[0].checked else FLAGS)
    return {c.name: (kernel, library, n) for n, (c, (kernel, _)) in enumerate(zip(cases, kernels, strict=True))}


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, bool], Future[Built]]]:
    """Every pattern that some selected test needs, being built in the background, by its name and whether it is checked."""
    folder = tmp_path_factory.mktemp("composed")
    own = [item for item in request.session.items if item.module is request.module and hasattr(item, "callspec")]  # type: ignore[attr-defined]
    names = {item.callspec.params.get("name") for item in own}
    groups: dict[tuple[str, bool], list[Case]] = {}
    for name, case in CASES.items():
        if name in names:
            groups.setdefault((case.group, case.checked), []).append(case)
    with ThreadPoolExecutor(2) as pool:
        yield {group: pool.submit(build_group, cases, folder) for group, cases in groups.items()}


def seen(memory: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> np.ndarray:
    """The value that lies in a buffer with these element strides."""
    found = strides or row_major_strides(shape)
    return np.lib.stride_tricks.as_strided(memory, shape, tuple(s * memory.itemsize for s in found))


def laid_out(case: Case, kernel: Kernel, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(buffers by name, the values that lie in them by value name). What lies between the elements is NaN or -1."""
    drawn = case.pattern.inputs(rng)
    values, buffers = {}, {}
    for name, value in drawn.items():
        strides = case.layouts.get(name)
        size = 1 + sum((e - 1) * s for e, s in zip(value.shape, strides or row_major_strides(value.shape), strict=True))
        memory = np.full(size, np.nan if value.dtype.kind not in "iu" else -1).astype(value.dtype)
        seen(memory, value.shape, strides)[...] = value
        values[name] = seen(memory, value.shape, strides)
        for b in kernel.parameters:
            if b.origin == name or b.role == "inout" and name in case.pattern.graph.node_by_name[b.origin].operands:
                buffers[b.name] = memory.copy()
    return buffers, values


def buffer_of(kernel: Kernel, value: str) -> Buffer:
    """The parameter that holds a value."""
    return next(b for b in kernel.parameters if b.origin == value)


def assert_within(got: np.ndarray, wanted: np.ndarray, bound: np.ndarray | None, what: str) -> None:
    """Infinities and NaNs at the same places, and everything else within its bound."""
    if bound is None:
        np.testing.assert_array_equal(got, wanted, err_msg=what)
        return
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    ordinary = np.isfinite(b)
    np.testing.assert_array_equal(np.where(ordinary, 0, a), np.where(ordinary, 0, b), err_msg=what)
    # The reference itself is rounded within half the bound.
    limit = np.broadcast_to(2 * bound, b.shape)
    excess = np.where(ordinary, np.abs(a - b) - limit, 0)
    worst = np.unravel_index(np.argmax(np.nan_to_num(excess, nan=np.inf)), excess.shape) if excess.size else ()
    assert not (~(excess <= 0)).any(), f"{what} at {worst}: {a[worst]} instead of {b[worst]}, allowed {limit[worst]}"


@pytest.mark.parametrize("name", sorted(CASES))
def test_composed_kernel_computes_its_graph(name: str, built: dict[tuple[str, bool], Future[Built]], seed: int = 3) -> None:
    """No finding of the checking mode, every result within its rounding bound, nothing written between a result's elements."""
    case = CASES[name]
    graph = case.pattern.graph
    kernel, library, number = built[case.group, case.checked].result()[name]
    buffers, values = laid_out(case, kernel, np.random.default_rng(seed))
    with np.errstate(all="ignore"):
        wanted = interpret(graph, values)
        bounds = case.pattern.bounds(values) if case.pattern.bounds else [None] * len(wanted)
    memory, status, report = call(getattr(library, f"{kernel.name}_{number}"), kernel, buffers)
    assert status == 0, report
    for result, value, bound in zip(graph.results, wanted, bounds, strict=True):
        written = memory[buffer_of(kernel, result).name]
        strides = case.layouts.get(result)
        assert_within(seen(written, value.shape, strides), value, bound, f"{name} %{result}, seed {seed}, {case.program().notation}")
        if strides:
            untouched = np.ones(written.shape, bool)
            seen(untouched, value.shape, strides)[...] = False
            assert (written[untouched].view(np.uint8) == 0xEE).all(), f"%{result} is written between its elements"
    for b in kernel.parameters:
        if b.role == "counter":
            assert not memory[b.name].any(), "a counter is not zero again"


@pytest.mark.parametrize("name", [n for n in sorted(CASES) if CASES[n].wanted is not None])
def test_schedules_by_hand_are_what_they_say(name: str) -> None:
    """Clusters and splits of a schedule made by hand reach the launch."""
    program = CASES[name].program()
    choice = program.choice
    cluster, split = getattr(choice, "cluster", 1), getattr(choice, "split", 1)
    assert program.launch.cluster == cluster
    assert program.launch.num_blocks >= cluster * split
    assert program.launch.num_blocks % (cluster * split) == 0


def test_long_sums_of_one_thread_are_blocked(tmp_path: Path, length: int = 1 << 20) -> None:
    """Equal terms round the same way each time, so that a plain running sum drifts; stretches keep to the blocked bound.

    Source: Higham 2002, section 4.2: the terms that one partial sum takes, plus the partial sums that a total takes.
    """
    case = Case("long", row_sum(1, length), {}, host_device())
    kernel = case.kernel()
    memory, status, report = run(kernel, {"x": np.full(length, 0.1, np.float32)}, tmp_path)
    assert status == 0, report
    wanted = float(np.float32(0.1)) * length
    choice = case.program().choice
    assert isinstance(choice, Rows) and choice.lanes > 1
    depth = sum(nested_counts(choice.chunks)) + choice.lanes + choice.split
    assert abs(memory[buffer_of(kernel, "s").name][0] - wanted) <= depth * ROUNDOFF["f32"] * wanted
    assert abs(np.cumsum(np.full(choice.chunks, 0.1, np.float32))[-1] / choice.chunks / np.float32(0.1) - 1) > depth * ROUNDOFF["f32"]


@pytest.mark.parametrize(("length", "num_exponentials"), [(512, 1), (509, 4), (1 << 16, 2)], ids=["kept", "tail", "too-long"])
def test_the_host_keeps_a_rows_exponentials(length: int, num_exponentials: int, tmp_path: Path, seed: int = 8) -> None:
    """A row's sum and its quotients share them, up to 128 KiB a row of whole vectors; beyond, they are computed again."""
    graph = parse_graph(f"""graph @softmax(%x: f16[3, {length}]) -> (f16[3, {length}]) {{
      %m: f32[3] = reduce.max [i] over [k < {length}] {{ f32(%x[i, k]) }}
      %e: f32[3, {length}] = map [i, j] {{ exp(sub(f32(%x[i, j]), %m[i])) }}
      %s: f32[3] = reduce.sum [i] over [k < {length}] {{ %e[i, k] }}
      %y: f16[3, {length}] = map [i, j] {{ f16(div(%e[i, j], %s[i])) }}
      return %y
    }}""")
    kernel = Case("softmax", Pattern(graph, lambda rng, name, shape: rng.standard_normal(shape)), {}, host_device()).kernel()
    assert print_host(kernel).partition('extern "C"')[2].count("tf_exp(") == num_exponentials
    x = np.random.default_rng(seed).standard_normal((3, length)).astype(np.float16)
    for check in {False, num_exponentials == 1}:
        memory, status, report = run(kernel, {"x": x.ravel()}, tmp_path, check)
        assert status == 0, report
        wanted = interpret(graph, {"x": x})[0].astype(np.float64).ravel()
        assert np.abs(memory["y"].astype(np.float64) - wanted).max() <= 2.0**-10 * wanted.max(), f"seed {seed}"


@pytest.mark.parametrize("length", [256, 261, 100, 16, 16 * 130, 16 * 193 + 1])
def test_moments_on_the_host_keep_a_small_spread(length: int, tmp_path: Path, seed: int = 9) -> None:
    """Squared deviations far from 0: two passes over a stretch lose no more than the sum of squares does; each join of stretches, and each
    element past the last vector, may lose roundoff * (norm of x / spread).

    Source: Chan, Golub and LeVeque 1983, table 1: length * roundoff for the corrected two-pass algorithm, the factor above for updating.
    """
    graph = parse_graph(f"""graph @spread(%x: f32[3, {length}]) -> (f32[3]) {{
      %v: f32[3] = reduce.m2 [i] over [k < {length}] {{ %x[i, k] }}
      return %v
    }}""")
    kernel = Case("spread", Pattern(graph, lambda rng, name, shape: rng.standard_normal(shape)), {}, host_device()).kernel()
    stretches = prod(nested_counts(length // 16)[:-1])
    x = (np.random.default_rng(seed).standard_normal((3, length)) * 1e-3 + 7.0).astype(np.float32)
    memory, status, report = run(kernel, {"x": x.ravel()}, tmp_path, True)
    assert status == 0, report
    wide = x.astype(np.float64)
    wanted = ((wide - wide.mean(1, keepdims=True))**2).sum(1)
    updates = stretches - 1 + (length % 16 if stretches > 1 else 0)
    bound = ROUNDOFF["f32"] * (length + updates * np.sqrt((wide**2).sum(1) / wanted))
    assert (np.abs(memory["v"] - wanted) <= bound * wanted).all(), f"seed {seed}"


@pytest.mark.parametrize("device", [host_device(), H200], ids=["host", "h200"])
def test_nothing_is_loaded_of_values_without_elements(device: DeviceSpec, tmp_path: Path) -> None:
    """A step of 0 between no elements gives every load the same place, which no loop keeps it from; nor may a vector stand there."""
    graph = parse_graph("""graph @none(%x: f32[64, 0], %z: f32[0]) -> (f32[64]) {
      %r: f32[64] = reduce.sum [i] over [k < 0] { mul(%x[i, k], %z[k]) }
      return %r
    }""")
    kernel = Case("none", Pattern(graph, lambda rng, name, shape: np.zeros(shape)), {"x": (1, 0), "z": (0,)}, device).kernel()
    memory, status, report = run(kernel, {"x": np.zeros(0, np.float32), "z": np.zeros(0, np.float32)}, tmp_path, True)
    assert status == 0, report
    assert not memory[buffer_of(kernel, "r").name].any()


def centred_groups(channels: int, group: int, rows: int, columns: int) -> Graph:
    """Images less the maximum of each group of channels, times a weight a channel. Exact: bit for bit."""
    shape = f"f32[3, {channels}, {rows}, {columns}]"
    return parse_graph(f"""graph @centred(%x: {shape}, %w: f32[{channels}]) -> ({shape}) {{
      %m: f32[3, {channels // group}] = reduce.max [n, g] over [c < {group}, h < {rows}, v < {columns}] {{ %x[n, {group}*g + c, h, v] }}
      %y: {shape} = map [n, c, h, v] {{ mul(sub(%x[n, c, h, v], %m[n, (c // {group})]), %w[c]) }}
      return %y
    }}""")


CHANNEL_MAXIMA = parse_graph("""graph @channel_maxima(%x: f32[3, 6, 9, 7]) -> (f32[18]) {
  %m: f32[18] = reduce.max [j] over [h < 9, v < 7] { %x[(j // 6), (j % 6), h, v] }
  return %m
}""")
LAST = {"x": (378, 1, 42, 6)}


@pytest.mark.parametrize(("graph", "layouts", "wanted"), [
    (centred_groups(8, 4, 4, 33), {}, None), (centred_groups(6, 3, 9, 7), LAST, None), (CHANNEL_MAXIMA, LAST, None),
    (max_pool(2, 3, 10, 14).graph, {}, pointwise(1, 64, 4, True)),
], ids=["run-on", "channels-last", "channels", "windows"])
def test_images_are_walked_in_any_order(graph: Graph, layouts: Layouts, wanted: Callable[[Domain], Choice] | None, tmp_path: Path) -> None:
    """Vectors that run on from channel to channel, groups of channels that lie last, several results a thread."""
    case = Case("images", Pattern(graph, lambda rng, name, shape: rng.standard_normal(shape)), layouts, H200, wanted)
    kernel = case.kernel()
    buffers, values = laid_out(case, kernel, np.random.default_rng(5))
    memory, status, report = run(kernel, buffers, tmp_path)
    assert status == 0, report
    for result, value in zip(graph.results, interpret(graph, values), strict=True):
        np.testing.assert_array_equal(memory[buffer_of(kernel, result).name].reshape(value.shape), value)
