"""Pipelined products and chains that begin before the kernel ahead of them ends: their work until then, and faults that are found."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.templates.host_build import Library, compiler, library_of
from tests.unit.templates.staged.chain.chain_graphs import layers
from tests.unit.templates.staged.pipelined.product_graphs import gated, looked_up, of_bytes, pair, plain, queries_keys_values
from tests.unit.templates.staged.pipelined.swapped_cases import swapped
from tests.unit.templates.staged.pipelined.test_pipelined import ROUNDOFF, drawn
from tests.unit.templates.stitched_cases import in_double
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import generate
from tilefuse.ir.affine import number
from tilefuse.ir.dtype import F16
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import const
from tilefuse.ir.text import parse_graph
from tilefuse.kernel.asynchronous import AwaitEarlier, Prefetch
from tilefuse.kernel.early import PrefetchOnly, before_waiting, fetched_early, untimely
from tilefuse.kernel.ir import Kernel, Stmt, Store
from tilefuse.kernel.pipeline_rules import pipeline_faults
from tilefuse.kernel.tensor_map import TensorCopy, TensorStore
from tilefuse.kernel.visit import statements
from tilefuse.printers.cuda import print_cuda
from tilefuse.runtime.spec import KernelStep, LibraryStep
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose
from tilefuse.templates.staged.chain.template import schedule_chain
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import schedule_product


def product(graph: Graph, wanted: Pipelined | None = None, strides: dict[str, tuple[int, ...]] | None = None) -> TileProgram:
    """The program of a pipelined product."""
    made = schedule_product(graph, strides or {}, H200, wanted)
    assert isinstance(made, TileProgram), made
    return made


def chain(graph: Graph) -> TileProgram:
    """The program of a chain of products."""
    made = schedule_chain(graph, {}, H200)
    assert isinstance(made, TileProgram), made
    return made


# A program, its settled inputs, and those that it prefetches: both as words.
CASES: dict[str, tuple[Callable[[], TileProgram], str, str]] = {
    "weights and bias": (lambda: product(gated(200, 136, 72)), "w bias", "w bias"),
    "weights": (lambda: product(gated(200, 136, 72)), "w", "w"),
    "more lines than threads": (lambda: product(plain(64, 264, 520), Pipelined(64, 64, 64, 2, 1, 1, 1)), "w", "w"),
    "in turn": (lambda: product(gated(200, 136, 200), Pipelined(64, 64, 64, 3, 2, 1, 3, pingpong=True)), "w bias", "w bias"),
    "a pair": (lambda: product(pair(72, 136, 136)), "gate up", "gate up"),
    "one weight of three products": (lambda: product(queries_keys_values(66, 3, 24, 72, joined=True)), "w", "w"),
    "rows of a table": (lambda: product(looked_up(70, 136, 72)), "b table", "b"),
    "rows far apart": (lambda: product(plain(66, 72, 40), None, {"w": (48, 1)}), "w", ""),
    "a chain": (lambda: chain(layers(67, (72, 104, 40, 16), biased=True)), "w0 w1 b2", "w0 w1 b2"),
}


def kernel_of(name: str) -> tuple[Kernel, frozenset[str]]:
    """The kernel of a case, and its settled inputs."""
    made, settled, _ = CASES[name]
    return compose(made(), H200, frozenset(settled.split())), frozenset(settled.split())


@pytest.mark.parametrize("name", CASES)
def test_settled_operands_are_prefetched_before_the_wait(name: str) -> None:
    """All of their lines, once; no other statement stands before the wait."""
    kernel, settled = kernel_of(name)
    assert untimely(kernel, settled) == []
    wanted = frozenset(CASES[name][2].split())
    assert fetched_early(kernel) == wanted
    assert all(isinstance(s, Prefetch) for s in statements(before_waiting(kernel)) if hasattr(s, "buffer"))
    plain_kernel = compose(CASES[name][0](), H200)
    assert before_waiting(plain_kernel) == () and not any(isinstance(s, AwaitEarlier) for s in statements(plain_kernel.body))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("prefetches", [True, False])
def test_barriers_are_made_before_the_wait_and_nothing_is_read_there(name: str, prefetches: bool) -> None:
    """The text of every kernel waits once: behind the setup of the block, before the roles begin."""
    kernel = kernel_of(name)[0] if prefetches else compose(CASES[name][0](), H200)
    text = print_cuda(kernel, H200)
    before, wait, after = text[text.index('extern "C"'):].partition("  tf_wait_for_earlier_kernel();")
    assert wait and "tf_wait_for_earlier_kernel();" not in after
    assert "tf_rings_ready();" in before and "tf_tensor_prefetch(" in before and "tf_lower_registers" not in before
    assert not any(word in before for word in ("tf_slot_copy(", "tf_tensor_copy<", "tf_tensor_store<", "tf_vector_load<"))
    late = print_cuda(replace(kernel, launch=replace(kernel.launch, early=False)), H200)
    assert "  tf_wait_for_earlier_kernel();" not in late


def faults(kernel: Kernel, settled: frozenset[str]) -> dict[str, tuple[Kernel, frozenset[str]]]:
    """Kernels that begin too early, and what is settled."""
    place = len(before_waiting(kernel))
    wait, rest = kernel.body[place], [s for s in kernel.body if not isinstance(s, AwaitEarlier)]
    (copy, *_) = (s for s in statements(kernel.body) if isinstance(s, TensorCopy))
    store = next((s for s in statements(kernel.body) if isinstance(s, TensorStore)), None)
    out = next(b for b in kernel.parameters if b.role == "out")
    ahead: list[Stmt] = [copy] + ([store] if store is not None else []) + [Store(out.name, number(0), const(0, F16))]
    found = {
        "waits behind the pipeline": (replace(kernel, body=(*rest, wait)), settled),
        "waits twice": (replace(kernel, body=(wait, *kernel.body)), settled),
        "weights are written": (kernel, settled - {min(settled)}),
    }
    copied = kernel.addressed[kernel.map_named(copy.map).buffer].origin
    for s in ahead:
        found[f"{type(s).__name__} before the wait"] = replace(kernel, body=(s, *kernel.body)), settled - {copied}
    return found


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case[2]])
def test_too_early_accesses_are_found(name: str) -> None:
    """Each planted fault, and none in the kernel as it is."""
    kernel, settled = kernel_of(name)
    silent = [fault for fault, (faulty, known) in faults(kernel, settled).items() if not untimely(faulty, known)]
    assert silent == []


def test_large_weights_are_not_prefetched() -> None:
    """Weights beyond the share of L2 that pending operands may take would displace what the kernel ahead still uses."""
    limit = int(H200.l2_bytes * H200.fitted.traffic.pending_l2_share)
    for rows, prefetched in ((limit // 2 // 4096, True), (limit // 2 // 4096 + 8, False)):
        kernel = compose(product(plain(128, rows, 4096)), H200, frozenset({"w"}))
        assert (fetched_early(kernel) == {"w"}) is prefetched


# -- few rows, whose weights fill the slots ahead ------------------------------------------------------------------------------

FEW_ROWS: dict[str, tuple[Callable[[], TileProgram], str]] = {
    "parts of a cluster": (lambda: product(plain(5, 200, 264), swapped(8, blocks=4, split=2, cluster=2)), "w"),
    "several tiles a block": (lambda: product(gated(5, 200, 264), swapped(8, blocks=2)), "w"),
    "columns contiguous": (lambda: product(plain(5, 200, 264, F16, (False, False)), swapped(8)), "w"),
    "fewer fillings than slots": (lambda: product(plain(5, 72, 64), swapped(8, slots=3)), "w"),
    "weights of 8 bits": (lambda: product(of_bytes(5, 72, 272), swapped(8, 128)), "w"),
    "single warps": (lambda: product(of_bytes(5, 136, 272), swapped(8, 128, 2, 2, by_warps=True)), "w"),
    "a pair": (lambda: product(pair(7, 72, 136), swapped(8)), "gate up"),
}


@pytest.mark.parametrize("name", FEW_ROWS)
def test_weights_of_few_rows_fill_the_slots_before_the_wait(name: str) -> None:
    """Producers start these copies, wait, and start the others; consumers wait at their head, and nobody waits in between."""
    made, weights = FEW_ROWS[name][0](), frozenset(FEW_ROWS[name][1].split())
    kernel = compose(made, H200, weights | {"bias"})
    assert fetched_early(kernel) == weights and untimely(kernel, weights) == []
    assert untimely(kernel, frozenset()) and untimely(kernel, PrefetchOnly(weights))
    text = print_cuda(kernel, H200)
    producers, _, consumers = text[text.index('extern "C"'):].partition("tf_raise_registers")
    before, wait, after = producers.partition("tf_wait_for_earlier_kernel();")
    assert wait and after.count("tf_wait_for_earlier_kernel();") == 0 and consumers.count("tf_wait_for_earlier_kernel();") == 1
    assert all(f", {w}_map, " in before for w in weights) and ", x_map, " not in before
    assert "goto tf_begun;" in before and "_ahead == 0)" in after
    late = print_cuda(replace(kernel, launch=replace(kernel.launch, early=False)), H200)
    assert "tf_wait_for_earlier_kernel();" not in late and "tf_begun" not in late
    waits_first = compose(made, H200)
    assert before_waiting(waits_first) == () and not any(isinstance(s, TensorCopy) and s.ahead for s in statements(waits_first.body))


def test_copies_that_begin_ahead_stand_at_the_head_of_a_filling() -> None:
    """A wait beside them, and a pipeline that does not begin early, are found."""
    kernel = compose(FEW_ROWS["several tiles a block"][0](), H200, frozenset({"w"}))
    pipeline = kernel.pipeline
    assert pipeline is not None and not pipeline_faults(kernel)
    assert untimely(replace(kernel, body=(AwaitEarlier(), *kernel.body)), frozenset({"w"}))
    late = replace(kernel, body=(*kernel.body[:-1], replace(pipeline, early=False)))
    assert any("begins ahead" in fault for fault in pipeline_faults(late))


PREFETCHING, AHEAD = ("more lines than threads", "in turn"), ("several tiles a block", "weights of 8 bits")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """Kernels that prefetch, and kernels whose weights come ahead, with every access checked."""
    kernels = {name: kernel_of(name)[0] for name in PREFETCHING}
    kernels |= {name: compose(FEW_ROWS[name][0](), H200, frozenset({"w"})) for name in AHEAD}
    return library_of(kernels, tmp_path_factory.mktemp("early"))


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", [*PREFETCHING, *AHEAD])
def test_kernels_that_begin_early_compute_their_products(name: str, library: Library) -> None:
    """No finding of the checking mode, which tests each prefetched address too, and every element of every result."""
    made = (CASES[name][0] if name in PREFETCHING else FEW_ROWS[name][0])()
    kernel, values = library.kernels[name], drawn(made.graph)
    inputs = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    memory, status, report = library.run(name, inputs)
    assert status == 0, report
    doubled = {n: v if v.dtype.kind in "iu" else v.astype(np.float64) for n, v in values.items()}
    name_by_origin = {b.origin: b.name for b in kernel.parameters}
    for result, value in zip(made.graph.results, interpret(in_double(made.graph), doubled), strict=True):
        error = np.abs(memory[name_by_origin[result]].astype(np.float64) - np.asarray(value).ravel()).max()
        assert error <= 4 * ROUNDOFF[made.graph.type_of(result).dtype.name] * max(np.abs(value).max(), 1.0)


# -- in programs -------------------------------------------------------------------------------------------------------------


def two_steps(rows: int, update: bool = False) -> Graph:
    """A map, then a product of its result with weights; update: a map of the program writes them before."""
    shape = f"f16[{rows}, 768]"
    scaled = "  %v: f16[768, 768] = map [i, j] { f16(mul(f32(%w[i, j]), f32(%x[0, 0]))) }\n  update %w = %v\n" if update else ""
    return parse_graph(f"""graph @steps(%x: {shape}, %w: f16[768, 768], %b: f16[768]) -> ({shape}, {shape}) {{
  %h: {shape} = map [i, j] {{ f16(tanh(f32(%x[i, j]))) }}
  %p: {shape} = library.matmul (%h, %w)
  %y: {shape} = map [i, j] {{ f16(add(f32(%p[i, j]), f32(%b[j]))) }}
{scaled}  return %y, %h
}}""")


PLAN = """plan @steps for h200 objective 1us unfused 1us {
  kernel k0 = {%h} -> {%h} by hand cost 1us from bandwidth as k0
  kernel k1 = {%p, %y} -> {%y} by hand cost 1us from bandwidth as k1
  edge %p -> %y in k1 register
}"""


@pytest.mark.parametrize(("rows", "option", "early", "fetches"), [
    (512, "inputs", True, True), (512, "ready", True, False), (512, "off", False, False), (8192, "inputs", True, True),
    (65536, "inputs", False, False)])
def test_products_begin_early_and_prefetch_weights(rows: int, option: str, early: bool, fetches: bool) -> None:
    """But large ones, which gain nothing. Weights are inputs that no kernel of the program writes."""
    spec = generate(two_steps(rows), constants={}, device=H200, options=Options(plan=PLAN, early_start=option)).spec
    kernel = spec.kernels[[s.kernel for s in spec.steps if isinstance(s, KernelStep)][-1]]
    assert kernel.launch.early is early and kernel.name.endswith("_early") is fetches
    assert ("  tf_wait_for_earlier_kernel();" in kernel.source) is early
    assert ("tf_prefetch(w" in kernel.source, "tf_prefetch(b" in kernel.source) == (fetches, fetches)
    assert "tf_prefetch(h" not in kernel.source


def test_behind_a_library_call_a_product_prefetches_nothing() -> None:
    """A call may begin before the kernels ahead of it end, so that earlier writers of an input may still run."""
    text = """graph @called(%x: f16[768, 768], %w: f16[768, 768]) -> (f16[768, 768]) {
  %q: f16[768, 768] = library.matmul (%x, %x)
  %p: f16[768, 768] = library.matmul (%q, %w)
  %y: f16[768, 768] = map [i, j] { f16(tanh(f32(%p[i, j]))) }
  return %y
}"""
    plan = """plan @called for h200 objective 1us unfused 1us {
  library matmul {%x, %x} -> {0: %q}
  kernel k1 = {%p, %y} -> {%y} by hand cost 1us from bandwidth as k1
  edge %p -> %y in k1 register
}"""
    spec = generate(parse_graph(text), constants={}, device=H200, options=Options(plan=plan)).spec
    assert [type(s) for s in spec.steps] == [LibraryStep, KernelStep]
    (kernel,) = spec.kernels
    assert kernel.launch.early and "tf_prefetch(" not in kernel.source

