"""Measuring on the host executor: kernels really run; a fake clock where the time itself is the question."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import tilefuse
from tests.unit.plan.graphs import softmax
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import InternalError
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.measure.lone_kernel import drawn_inputs, index_extents, lone_program
from tilefuse.driver.measure.measure import (
    INPUT_SETS,
    MOST_INPUT_SETS,
    DiskRecords,
    KernelMeasurer,
    num_input_sets,
    same,
    time_program,
)
from tilefuse.ir.affine import row_major_strides
from tilefuse.ir.text import parse_graph
from tilefuse.plan.price.lone_call import LoneCall
from tilefuse.plan.price.measure import Timing
from tilefuse.runtime.stores.measurements import Journal
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200
from tilefuse.templates.pattern import schedule_pattern

HOST = host_device()


def fused() -> TileProgram:
    graph = softmax()
    made = schedule_pattern(graph, [n.name for n in graph.nodes], {}, HOST)
    assert isinstance(made, TileProgram)
    return made


def test_a_kernel_alone_is_a_program_with_inputs_of_its_own() -> None:
    program = lone_program(fused(), HOST, "host", Options())
    inputs = drawn_inputs(program, 3)
    assert torch.allclose(program(*inputs)[0], torch.softmax(inputs[0], -1))
    assert all(torch.equal(a, b) for a, b in zip(inputs, drawn_inputs(program, 3)))


def test_inputs_have_the_strides_that_the_kernel_wants() -> None:
    graph = parse_graph("graph @t(%x: i32[4, 8]) -> (i32[4, 8]) {\n  %y: i32[4, 8] = map [i, j] { add(%x[i, j], 1:i32) }\n  return %y\n}")
    made = schedule_pattern(graph, ["y"], {"x": (1, 4)}, HOST)
    assert isinstance(made, TileProgram)
    (given,) = drawn_inputs(lone_program(made, HOST, "host", Options()), 0)
    assert given.stride() == (1, 4) != row_major_strides((4, 8)) and given.dtype == torch.int32


def test_a_host_kernel_is_timed_by_the_clock() -> None:
    ticks = iter(range(1000))
    found = KernelMeasurer(HOST, "host", Options(), clock=lambda: next(ticks) * 1e-6).measure(fused())
    assert found == Timing(pytest.approx(1.0), pytest.approx(0.0, abs=1e-6), 11)
    real = KernelMeasurer(HOST, "host", Options()).measure(fused())
    assert isinstance(real, Timing) and real.median_us > 0


def test_a_call_of_the_library_is_timed_by_itself() -> None:
    graph = parse_graph("""graph @g(%x: f32[24, 16], %w: f32[16, 8]) -> (f32[24, 8]) {
      %p: f32[24, 8] = library.matmul (%x, %w) {precision = "default", transpose_a = false, transpose_b = false}
      return %p
    }""")
    found = KernelMeasurer(HOST, "host", Options()).measure_call(LoneCall(graph, {"x": (1, 24)}))
    assert isinstance(found, Timing) and found.median_us > 0


def test_another_result_than_the_first_kernels_is_rejected() -> None:
    """The second program of the same pattern writes something else."""
    measurer = KernelMeasurer(HOST, "host", Options())
    good = fused()
    assert isinstance(measurer.measure(good), Timing)
    other = softmax()
    inputs = ", ".join(f"%{i.name}: {i.type}" for i in other.inputs)
    changed = parse_graph(f"graph @o({inputs}) -> ({other.type_of(other.results[0])}) {{\n"
                          f"  %y: {other.type_of('y')} = map [i, j] {{ f16(add(f32(%x[i, j]), 1.0:f32)) }}\n  return %y\n}}")
    wrong = schedule_pattern(changed, ["y"], {}, HOST)
    assert isinstance(wrong, TileProgram)
    key = (good.graph.inputs, good.graph.nodes, good.graph.results)
    measurer._references = {(wrong.graph.inputs, wrong.graph.nodes, wrong.graph.results): measurer._references[key]}
    found = measurer.measure(wrong)
    assert isinstance(found, Rejected) and found.reason is Reason.WRONG_RESULT


def test_what_does_not_compile_is_rejected_with_the_compilers_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    options = Options(cxx="no-such-compiler", cache=False)
    measurer = KernelMeasurer(HOST, "host", options)
    measurer.prepare([fused()])
    found = measurer.measure(fused())
    assert isinstance(found, Rejected) and found.reason is Reason.DOES_NOT_COMPILE and "no-such-compiler" in found.detail


def test_results_of_timed_calls_take_turns_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many calls' results live at a time as are asked for: a call's stores find no lines of the call before in a cache."""
    places: list[int] = []

    class OnDevice:
        device = torch.device("cuda", 0)

        def __call__(self, x: torch.Tensor) -> list[torch.Tensor]:
            result = x + 1
            places.append(result.data_ptr())
            return [result]

    def replayed(calls_on: Callable[[int], Sequence[Callable[[], object]]], device: torch.device, repeats: int) -> list[float]:
        for call in calls_on(0):
            call()
        return [1.0] * repeats

    monkeypatch.setattr("tilefuse.runtime.calls.replay_times.replay_samples_us", replayed)
    sets = [[torch.zeros(1 << 12)] for _ in range(4)]
    assert time_program(OnDevice(), sets, 8, kept=4).median_us == 1.0
    assert all(len(set(places[n:n + 4])) == 4 for n in range(5))


@dataclass(frozen=True)
class Unregistered:
    """A choice of a template that the registry does not know."""

    num_threads: int = 32
    resident: int = 0
    streams_results: bool = False
    template: ClassVar[str] = "unregistered"


def test_a_fault_of_a_composer_is_not_taken_for_a_candidate_that_is_not_legal() -> None:
    """Legality is judged before composing: a composer that cannot write a kernel is a fault of ours."""
    broken = replace(fused(), choice=Unregistered())
    measurer = KernelMeasurer(HOST, "host", Options())
    for ask in (lambda: measurer.prepare([broken]), lambda: measurer.measure(broken)):
        with pytest.raises(InternalError, match="no template is registered for Unregistered"):
            ask()


@pytest.mark.parametrize(("got", "want", "agree"), [
    ([1.0, 2.0], [1.0, 2.001], True), ([1.0, 2.0], [1.0, 2.1], False), ([float("nan"), 1.0], [float("nan"), 1.0], True),
    ([float("nan"), 1.0], [0.0, 1.0], False), ([float("inf"), 1.0], [float("inf"), 1.0], True)])
def test_results_agree_within_the_size_of_the_whole(got: list[float], want: list[float], agree: bool) -> None:
    assert same(torch.tensor(got), torch.tensor(want), 4e-3) is agree


def test_a_measured_compile_keeps_its_records_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEFUSE_CACHE_DIR", str(tmp_path))
    program = tilefuse.compile(softmax(), device="host", measure=True)
    x = torch.rand(4, 8).half()
    assert torch.allclose(program(x)[0], torch.softmax(x, -1), atol=1e-3)
    (path,) = (tmp_path / "measured").iterdir()
    kept = DiskRecords(Journal(path)).all()
    assert len(kept) >= 5 and all(r.predicted_us > 0 and r.timing.median_us > 0 for r in kept)


EMBEDDING_GRADIENT = """graph @rows(
    %table: f32[5000, 4], %g: f32[300, 4], %where: i64[300], %labels: i64[300], %scale: i32[300]) -> (f32[5000, 4], f32[300]) {
  %wrapped: i64[300] = map [i] { select(lt(%where[i], 0:i64), add(%where[i], 5000:i64), %where[i]) }
  %h: f32[300, 4] = map [i, j] { mul(%g[i, j], f32(%scale[i])) }
  %t: f32[5000, 4] = scatter.sum over [i < 300, j < 4] into %table at [%wrapped[i], index(j)] { %h[i, j] }
  %y: f32[300] = gather [i] { lookup(%g, index(i), select(eq(%labels[i], -100:i64), 0:i64, %labels[i])) }
  return %t, %y
}"""


def scattering() -> TileProgram:
    graph = parse_graph(EMBEDDING_GRADIENT)
    made = schedule_pattern(graph, [n.name for n in graph.nodes], {}, HOST, packing=True)
    assert isinstance(made, TileProgram)
    return made


def test_indices_are_spread_over_what_they_index() -> None:
    """Also those that are wrapped or ignored before, and never beyond, which would mean the last place; what is no index stays small."""
    program = scattering()
    assert index_extents(program.graph) == {"wrapped": 5000, "where": 5000, "labels": 4}
    lone = lone_program(program, HOST, "host", Options())
    drawn = dict(zip(lone.spec.inputs, drawn_inputs(lone, 1, index_extents(program.graph)), strict=True))
    assert 0 <= int(drawn["where"].min()) < 200 and 4800 < int(drawn["where"].max()) < 5000 and drawn["where"].unique().numel() > 270
    assert sorted(drawn["labels"].unique().tolist()) == [0, 1, 2, 3]
    assert int(drawn["scale"].max()) < 100


def test_a_scatter_is_timed_over_its_table_and_without_a_copy() -> None:
    """As a plan runs it, where nothing else needs the old table; that copy would be most of the time."""
    program = scattering()
    apart = lone_program(program, HOST, "host", Options())
    over = lone_program(program, HOST, "host", Options(), over_inputs=True)
    assert [type(s).__name__ for s in apart.spec.steps] == ["CopyStep", "KernelStep"]
    assert [type(s).__name__ for s in over.spec.steps] == ["KernelStep"] and over.spec.updates == ("table",)
    inputs = drawn_inputs(apart, 2, index_extents(program.graph))
    table, y = apart(*inputs)
    (again,) = over(*inputs)
    updated = inputs[over.spec.inputs.index("table")]
    assert torch.equal(again, y) and torch.allclose(updated, table) and not torch.allclose(table, torch.zeros_like(table))
    measurer = KernelMeasurer(HOST, "host", Options())
    assert isinstance(measurer.measure(program), Timing) and isinstance(measurer.measure(program), Timing)
    ((_, reference),) = measurer._references.values()
    assert reference.shape == (5000, 4), "what a kernel writes over its input is compared too"


def test_inputs_rotate_through_as_many_bytes_as_asked() -> None:
    """Two sets where nothing is asked; else others until the bytes have moved, but no more sets than a graph has launches."""
    assert num_input_sets(0, 1 << 20) == INPUT_SETS
    assert num_input_sets(4 * H200.l2_bytes, 8 << 20) == -(-4 * H200.l2_bytes // (8 << 20))
    assert num_input_sets(4 * H200.l2_bytes, 1 << 30) == INPUT_SETS
    assert num_input_sets(4 * H200.l2_bytes, 12) == MOST_INPUT_SETS
