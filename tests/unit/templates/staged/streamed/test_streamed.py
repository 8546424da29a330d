"""Streamed products: forms that are some, their choices as text, and their kernels on the checking host executor."""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.pipelined.product_graphs import gated, heads, of_bytes, of_halves, padded, plain
from tests.unit.templates.staged.streamed.stream_graphs import (
    gated_pair,
    halves_of_one,
    layer_normed,
    normed,
    siblings,
)
from tests.unit.templates.stitched_cases import in_double
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import NameLookupError, OptionError, UserError
from tilefuse.domain.roofline import price_work
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import BF16, F16, F32
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.ir.text import parse_graph
from tilefuse.kernel.asynchronous import AsyncCopy, AwaitEarlier
from tilefuse.kernel.early import before_waiting, untimely
from tilefuse.kernel.ir import MatrixProduct
from tilefuse.kernel.visit import statements
from tilefuse.target.catalog import A100, host_device
from tilefuse.target.device import H200
from tilefuse.templates.neighbours import neighbours, program_with
from tilefuse.templates.notation import parse_template
from tilefuse.templates.registry import registered
from tilefuse.templates.staged.streamed.compose import compose_stream
from tilefuse.templates.staged.streamed.program import schedule_stream, stream_by_hand
from tilefuse.templates.staged.streamed.record import Streamed
from tilefuse.templates.staged.streamed.template import StreamedTemplate, plan_of

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
# Roundings on the way through the longest pattern, relative to the largest element.
ROUNDOFF = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-22}


@dataclass(frozen=True)
class Case:
    """A pattern, strides of its values where they are not dense, and a choice made by hand (None: chosen).

    copied: whether asynchronous copies bring the weights
    """

    graph: Callable[[], Graph]
    wanted: Streamed | None = None
    layouts: Layouts = field(default_factory=dict)
    copied: bool = True

    def program(self) -> TileProgram:
        """The tile program."""
        made = schedule_stream(self.graph(), self.layouts, H200, self.wanted)
        assert isinstance(made, TileProgram), made
        return made


CASES = {
    "one row": Case(lambda: plain(1, 40, 264, BF16), Streamed(1, 1, 2, 1, 3)),
    "rows of two instructions, a cluster": Case(lambda: plain(13, 40, 264), Streamed(2, 1, 2, 2, 3)),
    "warps side by side": Case(lambda: plain(3, 72, 128, BF16), Streamed(1, 2, 1, 1, 4)),
    "columns contiguous": Case(lambda: plain(3, 72, 136, F16, (False, False)), Streamed(1, 1, 2, 1, 3)),
    "f32": Case(lambda: plain(3, 37, 264, F32), Streamed(2, 1, 2, 1, 2)),
    "f32, columns contiguous": Case(lambda: plain(2, 132, 70, F32, (False, False)), Streamed(1, 1, 2, 2, 3)),
    "odd rows in memory": Case(lambda: plain(5, 19, 71), Streamed(1, 1, 2, 1, 3), copied=False),
    "words of four bytes": Case(lambda: plain(2, 17, 66), Streamed(1, 1, 1, 1, 3), copied=False),
    "rows far apart": Case(lambda: plain(2, 24, 64), Streamed(1, 1, 2, 1, 3), layouts={"x": (80, 1), "w": (68, 1)}),
    "left turned": Case(lambda: plain(3, 24, 72, F16, (True, True)), Streamed(1, 1, 2, 1, 3)),
    "batch": Case(lambda: plain(2, 24, 40, F16, lead=(2, 3)), Streamed(1, 1, 2, 1, 3)),
    "bias, activation, residual": Case(lambda: gated(9, 40, 72), Streamed(1, 1, 2, 1, 3)),
    "heads before rows": Case(lambda: heads(3, 3, 24, 64), Streamed(1, 1, 2, 1, 3)),
    "a window of a padded product": Case(lambda: padded(3, 37, 45), Streamed(1, 1, 2, 1, 3)),
    "norm, product, residual": Case(lambda: normed(1, 40, 264), Streamed(1, 1, 4, 1, 4)),
    "norm in f32": Case(lambda: normed(3, 20, 136, "f32"), Streamed(2, 1, 2, 2, 3)),
    "layer norm": Case(lambda: layer_normed(9, 72, 136), Streamed(1, 1, 4, 1, 3)),
    "gated pair": Case(lambda: gated_pair(2, 40, 264), Streamed(1, 1, 2, 2, 3)),
    "halves of one weight": Case(lambda: halves_of_one(1, 24, 72), Streamed(1, 1, 2, 1, 3)),
    "siblings": Case(lambda: siblings(2, 24, 72), Streamed(1, 1, 2, 1, 3)),
    "weights of 8 bits": Case(lambda: of_bytes(11, 40, 272), Streamed(1, 1, 2, 1, 3)),
    "weights of 8 bits, columns contiguous": Case(lambda: of_bytes(2, 144, 40, "f16", False), Streamed(1, 1, 2, 1, 3)),
    "weights of 4 bits": Case(lambda: of_halves(2, 24, 256, 64), Streamed(1, 1, 2, 1, 3)),
    "fewer inner elements than an access": Case(lambda: plain(1, 3, 5), Streamed(1, 1, 1, 1, 2), copied=False),
}


@needs_compiler
def test_kernels_compute_the_products(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every element of every result, with every access of the kernels checked; sums in f32 against f64."""
    programs = {name: case.program() for name, case in CASES.items()}
    kernels = {name: compose_stream(program, H200) for name, program in programs.items()}
    library = build_together([(k, True) for k in kernels.values()], tmp_path_factory.mktemp("streamed"), CHECKED_FLAGS)
    for number, (name, kernel) in enumerate(kernels.items()):
        graph, layouts = programs[name].graph, CASES[name].layouts
        values = drawn(graph)
        arrays = {b.name: _in_memory(values[b.origin], b.num_elements, layouts.get(b.origin)) for b in kernel.parameters if b.role == "in"}
        memory, status, report = call(getattr(library, f"{kernel.name}_{number}"), kernel, arrays)
        assert status == 0, f"{name}: {report}"
        wide = {n: v if v.dtype.kind in "iu" else v.astype(np.float64) for n, v in values.items()}
        name_by_origin = {b.origin: b.name for b in kernel.parameters}
        for result, value in zip(graph.results, interpret(in_double(graph), wide), strict=True):
            got = memory[name_by_origin[result]].astype(np.float64)
            error = np.abs(got - np.asarray(value).ravel()).max()
            assert error <= 4 * ROUNDOFF[graph.type_of(result).dtype.name] * max(np.abs(value).max(), 1.0), name


def drawn(graph: Graph) -> dict[str, np.ndarray]:
    """Seeded inputs in the inputs' types."""
    random = np.random.default_rng(7)
    values = {}
    for v in graph.inputs:
        dtype = NUMPY_DTYPES[v.type.dtype.name]
        if v.type.dtype.is_integer:
            low = -100 if v.type.dtype.name == "i8" else 0
            values[v.name] = random.integers(low, low + 200, v.type.shape).astype(dtype)
        else:
            values[v.name] = random.standard_normal(v.type.shape).astype(dtype)
    return values


def _in_memory(value: np.ndarray, num_elements: int, strides: tuple[int, ...] | None) -> np.ndarray:
    if strides is None:
        return value.ravel()
    memory = np.full(num_elements, np.nan).astype(value.dtype)
    np.lib.stride_tricks.as_strided(memory, value.shape, tuple(s * memory.itemsize for s in strides))[...] = value
    return memory


@pytest.mark.parametrize("name", CASES)
def test_weights_come_by_asynchronous_copies_where_their_alignment_allows(name: str) -> None:
    """Weights at multiples of four bytes are copied; 16-bit products multiply on the matrix unit."""
    program = CASES[name].program()
    listed = list(statements(compose_stream(program, H200).body))
    assert any(isinstance(s, AsyncCopy) for s in listed) == CASES[name].copied
    assert any(isinstance(s, MatrixProduct) for s in listed) == (plan_of(program).form.left_dtype != F32)


# -- the kernel ahead --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["norm, product, residual", "gated pair", "weights of 8 bits"])
def test_copies_of_settled_weights_begin_before_the_kernel_ahead_has_ended(name: str) -> None:
    """Nothing but whole copies of weights stands before the wait."""
    program = CASES[name].program()
    weights = frozenset(s.value for s in plan_of(program).form.streams)
    kernel = compose_stream(program, H200, weights)
    assert not untimely(kernel, weights)
    assert any(isinstance(s, AsyncCopy) for s in statements(before_waiting(kernel)))
    assert not any(isinstance(s, AwaitEarlier) for s in compose_stream(program, H200, frozenset({"x"})).body)


def test_copies_of_fewer_bytes_wait_for_the_kernel_ahead() -> None:
    """They go through the first-level cache, which may hold what was there before."""
    program = CASES["rows far apart"].program()
    assert not before_waiting(compose_stream(program, H200, frozenset({"w"})))


# -- texts -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_template_gives_its_program_back(name: str) -> None:
    """The program's own notation, parsed."""
    program = CASES[name].program()
    again = stream_by_hand(program, parse_template(program.notation), H200)
    assert (again.choice, again.notation) == (program.choice, program.notation)


def test_settings_by_hand_decide_tiles_and_launch() -> None:
    """Twice the warps along the inner axis are twice the step."""
    program = CASES["norm, product, residual"].program()
    made = stream_by_hand(program, parse_template("y [CTA_1,GRID-CTA_32,LOOP_256]R; wide=2; along=8; cluster=2;"), H200)
    assert made.choice == Streamed(2, 1, 8, 2, 4) and made.launch.num_threads == 256 and made.launch.cluster == 2


@pytest.mark.parametrize(("text", "error", "message"), [
    ("z [CTA_1,GRID-CTA_16,LOOP_128]R;", NameLookupError, "%z has no schedule"),
    ("y [CTA_1,GRID-CTA_16,LOOP_128]R; slits=3;", OptionError, "no setting"),
    ("y [CTA_1,GRID-CTA_48,LOOP_128]R;", UserError, "none that a streamed product has"),
    ("y [CTA_1,GRID-CTA_16,LOOP_128]R; slots=1;", UserError, "another beside it"),
    ("y [CTA_1,GRID-CTA_16,LOOP_128]R; slots=4000;", UserError, "bytes of rows and weights"),
    ("y [CTA_1,GRID-CTA_16,LOOP_128]R; cta_size=99;", UserError, "give 128"),
])
def test_what_contradicts_the_product_is_refused(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        stream_by_hand(CASES["norm, product, residual"].program(), parse_template(text), H200)


def test_neighbours_are_kernels() -> None:
    """None comes twice, and most of them fit."""
    program = schedule_stream(normed(1, 4096, 4096), {}, H200)
    assert isinstance(program, TileProgram)
    with registered(StreamedTemplate()):
        others = neighbours(program, H200)[1:]
        assert program.choice not in others and len(set(others)) == len(others)
        assert sum(isinstance(program_with(program, c, H200), TileProgram) for c in others) >= len(others) // 2 > 1


# -- prices ------------------------------------------------------------------------------------------------------------------

RECORD = Path(__file__).parents[5] / "benchmarks" / "results" / "streamed-h200-20261123.txt"
TIMED = re.compile(r"^   (\d+)x(\d+)x(\d+) bf16 \[([\d ]+)\].*: ([\d.]+) us", re.MULTILINE)


def test_prices_follow_the_times_of_the_record() -> None:
    """Products of at most 16 rows whose inner axis is contiguous: predicted over measured, in geometric mean and for most of them."""
    ratios = []
    for rows, columns, inner, numbers, us in TIMED.findall(RECORD.read_text(encoding="utf-8")):
        if int(rows) <= 16:
            program = schedule_stream(plain(int(rows), int(columns), int(inner), BF16), {}, H200, Streamed(*map(int, numbers.split())))
            assert isinstance(program, TileProgram)
            ratios.append(price_work(plan_of(program).work, H200).us / float(us))
    assert len(ratios) > 20 and abs(np.log(ratios).mean()) < 0.1
    assert sum(abs(np.log(r)) < 0.2 for r in ratios) > 0.7 * len(ratios)


# -- choices -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "columns", "inner"), [(1, 4096, 4096), (16, 11008, 4096), (8, 1024, 4096), (1, 50304, 768),
                                                        (16, 4096, 14336)])
def test_tiles_fill_the_device_and_its_memory_pipes(rows: int, columns: int, inner: int) -> None:
    """Most multiprocessors have a block, and enough bytes are in flight to keep the memory busy."""
    program = schedule_stream(plain(rows, columns, inner, BF16), {}, H200)
    assert isinstance(program, TileProgram)
    loads = plan_of(program).work.loads
    assert program.launch.num_blocks >= 0.9 * H200.num_multiprocessors and loads is not None
    running = min(program.launch.num_blocks, loads.resident_blocks * H200.num_multiprocessors)
    assert running * program.launch.num_threads * loads.flight_bytes > H200.saturating_bytes


def test_rows_that_fit_no_block_are_shared_by_a_cluster() -> None:
    """Sixteen rows of 14336 elements are twice a block's shared memory; a device without clusters has no such kernel."""
    program = schedule_stream(plain(16, 4096, 14336, BF16), {}, H200)
    assert isinstance(program, TileProgram) and program.launch.cluster > 1
    refused = schedule_stream(plain(16, 4096, 14336, BF16), {}, A100)
    assert isinstance(refused, Rejected) and refused.reason in (Reason.SHARED_MEMORY, Reason.ILLEGAL_TEMPLATE)


def _with_row_sum_of_weights() -> Graph:
    return parse_graph("""graph @g(%x: f16[2, 32], %w: f16[24, 32]) -> (f16[2, 24]) {
      %s: f32[24] = reduce.sum [j] over [k < 32] { f32(%w[j, k]) }
      %v: f16[24, 32] = map [j, k] { f16(mul(f32(%w[j, k]), %s[j])) }
      %y: f16[2, 24] = library.matmul (%x, %v) {transpose_a = false, transpose_b = true}
      return %y
    }""")


def _of_two_left_operands() -> Graph:
    return parse_graph("""graph @g(%x: f16[2, 32], %z: f16[2, 32], %w: f16[24, 32]) -> (f16[2, 24]) {
      %a: f16[2, 24] = library.matmul (%x, %w) {transpose_a = false, transpose_b = true}
      %b: f16[2, 24] = library.matmul (%z, %w) {transpose_a = false, transpose_b = true}
      %y: f16[2, 24] = map [i, j] { f16(mul(f32(%a[i, j]), f32(%b[i, j]))) }
      return %y
    }""")


def _reduced_behind() -> Graph:
    return parse_graph("""graph @g(%x: f16[2, 32], %w: f16[24, 32]) -> (f32[2]) {
      %y: f16[2, 24] = library.matmul (%x, %w) {transpose_a = false, transpose_b = true}
      %s: f32[2] = reduce.sum [i] over [j < 24] { f32(%y[i, j]) }
      return %s
    }""")


@pytest.mark.parametrize(("graph", "message"), [
    (lambda: plain(65, 24, 32), "65 rows"), (lambda: plain(1, 1, 1), "no neighbours"),
    (_with_row_sum_of_weights, "%s, which the right operand reads"),
    (_of_two_left_operands, "different left operands"), (_reduced_behind, "%s reads %y at another element than the one at hand"),
])
def test_other_patterns_are_refused_with_a_reason(graph: Callable[[], Graph], message: str) -> None:
    refused = schedule_stream(graph(), {}, H200)
    assert isinstance(refused, Rejected) and message in refused.detail


def test_the_host_has_no_streamed_products() -> None:
    refused = schedule_stream(plain(1, 24, 32), {}, host_device())
    assert isinstance(refused, Rejected) and refused.reason is Reason.OTHER_TEMPLATE


def test_explanations_name_rows_and_rings() -> None:
    """Places of a gated pair: the rows once, a ring for each product, inside the block's shared memory."""
    program = CASES["gated pair"].program()
    template = StreamedTemplate()
    staging = template.staging(program)
    assert [p.value for p in staging.places] == ["rows of %x", "ring of %gate", "ring of %up"]
    assert max(p.offset_bytes + p.num_bytes for p in staging.places) <= program.launch.shared_bytes
    assert [t.level for t in template.tiles(program, program.launch)] == ["grid", "block", "warp"]
