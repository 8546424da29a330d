"""Grouped products: kernels on the checking host executor, the rows of tiles, texts, refusals."""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.mutation.test_pipeline_faults import changed
from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler, run
from tests.unit.templates.staged.pipelined.grouped_cases import (
    GROUPED_CASES,
    GroupedCase,
    computed_offsets,
    experts,
    grouped_inputs,
    summed_rows,
)
from tests.unit.templates.staged.pipelined.test_pipelined import ROUNDOFF, _in_memory
from tests.unit.templates.stitched_cases import in_double
from tilefuse.base.candidate import Rejected
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.kernel.ir import Barrier, If, Kernel, Let, Stmt
from tilefuse.kernel.tensor_map import TensorStore
from tilefuse.target.device import H200
from tilefuse.templates.notation import parse_template
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.grouped.tile_rows import most_tiles, tile_rows
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import plan_of, product_by_hand, schedule_product

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


def _arrays(case: GroupedCase, kernel: Kernel, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {b.name: _in_memory(values[b.origin], b.num_elements, case.layouts.get(b.origin)) for b in kernel.parameters if b.role == "in"}


def _wide(graph: Graph, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {n: v.astype(np.float64) if graph.type_of(n).dtype.is_float else v for n, v in values.items()}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All kernels with every access checked, in one source."""
    return build_together([(compose_product(c.program(), H200), True) for c in GROUPED_CASES.values()], tmp_path_factory.mktemp("grouped"),
                          CHECKED_FLAGS)


@needs_compiler
@pytest.mark.parametrize("name", GROUPED_CASES)
def test_kernel_multiplies_each_group(name: str, library: ctypes.CDLL) -> None:
    """Every element of every result against f64, with every access checked."""
    case = GROUPED_CASES[name]
    program = case.program()
    graph, kernel = program.graph, compose_product(program, H200)
    values = grouped_inputs(case, graph)
    entry = getattr(library, f"{kernel.name}_{list(GROUPED_CASES).index(name)}")
    memory, status, report = call(entry, kernel, _arrays(case, kernel, values))
    assert status == 0, report
    wanted = interpret(in_double(graph), _wide(graph, values))
    name_by_origin = {b.origin: b.name for b in kernel.parameters}
    for result, value in zip(graph.results, wanted, strict=True):
        got, value = memory[name_by_origin[result]].astype(np.float64), np.asarray(value).ravel()
        assert np.abs(got - value).max() <= 4 * ROUNDOFF[graph.type_of(result).dtype.name] * max(np.abs(value).max(), 1.0), result


@pytest.mark.parametrize("name", GROUPED_CASES)
def test_a_template_gives_its_program_back(name: str) -> None:
    """The program's own notation, parsed."""
    program = GROUPED_CASES[name].program()
    again = product_by_hand(program, parse_template(program.notation), H200)
    assert (again.choice, again.notation) == (program.choice, program.notation)


@pytest.mark.parametrize("seed", range(40))
def test_tiles_hold_every_row_once(seed: int) -> None:
    """Whatever the offsets are: sorted, falling, negative, beyond the rows."""
    random = np.random.default_rng(seed)
    groups, rows, height = int(random.integers(1, 40)), int(random.integers(1, 500)), int(random.choice([64, 128, 192, 256]))
    offsets = random.integers(-50, rows + 200, groups) if seed % 2 else np.sort(random.integers(0, rows + 1, groups))
    tiles = list(tile_rows([int(o) for o in offsets], rows, height))
    assert [r for t in tiles for r in range(t.first, t.end)] == list(range(rows))
    assert len(tiles) <= most_tiles(groups, rows, height)
    ends = np.maximum.accumulate(np.clip(offsets, 0, rows))
    for t in tiles:
        assert 0 < t.end - t.first <= height
        assert all(t.group == np.searchsorted(ends, r, side="right") for r in range(t.first, t.end))


# -- any offsets -------------------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("name", ["unlike groups", "the same in turn"])
def test_one_kernel_takes_any_offsets(name: str, library: ctypes.CDLL) -> None:
    """Sorted and unsorted draws for one kernel, with every access checked: two blocks that wrote one element would race."""
    case = GROUPED_CASES[name]
    program = case.program()
    graph, kernel = program.graph, compose_product(program, H200)
    entry = getattr(library, f"{kernel.name}_{list(GROUPED_CASES).index(name)}")
    values, groups, random = grouped_inputs(case, graph), len(case.offsets), np.random.default_rng(11)
    rows = graph.type_of("x").shape[0]
    result, = (b.name for b in kernel.parameters if b.role == "out")
    for draw in range(6):
        drawn = random.integers(-20, rows + 100, groups) if draw % 3 == 2 else np.sort(random.integers(0, rows + 1, groups))
        values["offsets"] = drawn.astype(np.int32)
        memory, status, report = call(entry, kernel, _arrays(case, kernel, values))
        assert status == 0, (drawn, report)
        wanted, = interpret(in_double(graph), _wide(graph, values))
        error = np.abs(memory[result].astype(np.float64) - np.asarray(wanted).ravel()).max()
        assert error <= 4 * ROUNDOFF[graph.type_of(graph.results[0]).dtype.name] * max(np.abs(wanted).max(), 1.0), drawn


# -- planted faults --------------------------------------------------------------------------------------------------------


def _boxes_beyond_groups(kernel: Kernel) -> Kernel:
    """Every tile leaves by tensor stores, also where it hangs over its group's end."""
    def whole(s: Stmt) -> tuple[Stmt, ...] | None:
        return s.body if isinstance(s, If) and any(isinstance(i, TensorStore) for i in s.body) else None
    return replace(kernel, body=changed(kernel.body, whole))


def _no_barrier(kernel: Kernel) -> Kernel:
    """Threads read the tables before others have written them."""
    return replace(kernel, body=tuple(s for s in kernel.body if s != Barrier()))


def _one_group_less(kernel: Kernel) -> Kernel:
    """The kernel claims fewer groups than its offsets have."""
    def less(s: Stmt) -> tuple[Stmt, ...] | None:
        return (replace(s, extent=3),) if isinstance(s, Let) and s.name == "end_row" else None
    return replace(kernel, body=changed(kernel.body, less))


@needs_compiler
@pytest.mark.parametrize(("fault", "told"), [(_boxes_beyond_groups, "race, two writes"), (_no_barrier, "race, read and write"),
                                             (_one_group_less, "index from memory beyond its extent")])
def test_planted_faults_are_found(fault: Callable[[Kernel], Kernel], told: str, tmp_path: Path) -> None:
    """Each by the rule that it breaks."""
    case = GROUPED_CASES["unlike groups"]
    kernel = compose_product(case.program(), H200)
    faulty = fault(kernel)
    assert faulty != kernel
    _, status, report = run(faulty, _arrays(case, kernel, grouped_inputs(case, case.graph())), tmp_path, check=True)
    assert status > 0 and told in report, report


# -- refusals --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("graph", "choice", "told"), [
    (lambda: experts(30000, 2048, 64, 64), Pipelined(64, 64, 64, 2, 1, 1, 4), "bytes of slots"),
    (lambda: experts(4, 200, 72, 72), Pipelined(64, 64, 64, 2, 1, 1, 4, split=2), "rows of groups in swapped operands, parts of the inner"),
    (lambda: experts(4, 200, 72, 72), Pipelined(64, 8, 64, 2, 1, 1, 4, swapped=True), "rows of groups in swapped operands, parts of the"),
    (lambda: computed_offsets(4, 200, 72, 72), None, "the ends of groups, is computed in the same kernel"),
    (lambda: summed_rows(4, 200, 72, 72), None, "a grouped product, are reduced"),
])
def test_products_that_are_none(graph: Callable[[], Graph], choice: Pipelined | None, told: str) -> None:
    """The reason names the number or the value."""
    refused = schedule_product(graph(), {}, H200, choice)
    assert isinstance(refused, Rejected) and told in str(refused), refused


def test_explanations_show_tiles_that_prices_count() -> None:
    """Sixteen groups of unlike size have half a tile each more than their rows fill."""
    program = schedule_product(experts(16, 8192, 256, 256), {}, H200, Pipelined(128, 256, 64, 4, 2, 16, 132))
    assert isinstance(program, TileProgram)
    plan = plan_of(program)
    assert (plan.row_tiles, plan.most_row_tiles) == (72, 80)
