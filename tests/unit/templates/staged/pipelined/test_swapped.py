"""Products of few rows: swapped operands on the checking host executor, as text, and where the price chooses them."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.mutation.test_pipeline_faults import changed
from tests.unit.templates.host_build import Library, compiler, library_of, run
from tests.unit.templates.staged.pipelined.product_graphs import (
    dequantised,
    of_bytes,
    of_bytes_and_floats,
    of_halves,
    plain,
    stacked,
)
from tests.unit.templates.staged.pipelined.swapped_cases import SWAPPED_CASES, swapped
from tests.unit.templates.staged.pipelined.test_pipelined import Case, check_results, drawn
from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import UserError
from tilefuse.ir.affine import axis
from tilefuse.ir.dtype import BF16, F16
from tilefuse.ir.graph import Graph
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import Assign, For, If, Load, Stmt, VectorLoad
from tilefuse.kernel.pipeline import Consume, Produce, WarpgroupProduct, WarpgroupWait
from tilefuse.kernel.visit import statements
from tilefuse.target.device import H200
from tilefuse.templates.notation import parse_template
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.plan import why_no_copies
from tilefuse.templates.staged.pipelined.template import plan_of, product_by_hand, schedule_product
from tilefuse.templates.staged.pipelined.thread_work import producing_cycles


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """The kernels of all cases with every access checked."""
    return library_of({name: compose_product(c.program(), H200) for name, c in SWAPPED_CASES.items()}, tmp_path_factory.mktemp("swapped"))


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", SWAPPED_CASES)
def test_kernel_computes_the_product(name: str, library: Library) -> None:
    """Every element of every result, with every access of the kernel checked; sums in f32 against f64."""
    check_results(SWAPPED_CASES[name], partial(library.run, name))


@pytest.mark.parametrize("name", SWAPPED_CASES)
def test_a_template_gives_its_program_back(name: str) -> None:
    """The program's own notation, parsed."""
    program = SWAPPED_CASES[name].program()
    again = product_by_hand(program, parse_template(program.notation), H200)
    assert (again.choice, again.notation) == (program.choice, program.notation)


@pytest.mark.parametrize("name", SWAPPED_CASES)
def test_operands_come_by_tensor_copies_where_a_map_describes_them(name: str) -> None:
    """As of products with many rows; the columns of each instruction are the rows of the product."""
    kernel = compose_product(SWAPPED_CASES[name].program(), H200)
    threads = {s.threads for s in statements(kernel.body) if isinstance(s, Produce)}
    assert (128 in threads) == bool(SWAPPED_CASES[name].by_threads)
    columns = plan_of(SWAPPED_CASES[name].program()).choice.columns
    assert {s.columns for s in statements(kernel.body) if isinstance(s, WarpgroupProduct)} == {columns}


@pytest.mark.parametrize(("rows", "columns"), [(1, 8), (16, 16), (17, 24)])
def test_few_rows_are_swapped(rows: int, columns: int) -> None:
    """All rows in one tile, in whole groups of eight."""
    choice = plan_of(Case(lambda: plain(rows, 4096, 4096, BF16)).program()).choice
    assert (choice.swapped, choice.columns) == (True, columns)


def test_many_rows_are_not_swapped() -> None:
    """Instructions of 64 rows are full, and results leave by tensor stores."""
    assert not plan_of(Case(lambda: plain(512, 4096, 4096, BF16)).program()).choice.swapped


def test_loops_are_written_over_the_axes_of_the_product() -> None:
    """16 rows and 128 columns a block, whichever operand the instructions call the left one."""
    program = Case(lambda: plain(16, 4096, 256, BF16), swapped(16, 128, 3, 2, 32)).program()
    assert program.notation.startswith("matmul [GRID-CTA_16,GRID-CTA_128,LOOP_128]")
    written = "matmul [GRID-CTA_24,GRID-CTA_64,LOOP_64]RG; slots=4; warpgroups=1; swapped=true; cta_num=3; cta_size=256;"
    assert product_by_hand(program, parse_template(written), H200).choice == swapped(24, 64, 4, 1, 3)


@pytest.mark.parametrize(("written", "told"), [("GRID-CTA_12,GRID-CTA_64,LOOP_64", "12 columns are no multiple of 8"),
                                               ("GRID-CTA_16,GRID-CTA_40,LOOP_64", "40 rows are no multiple of 64")])
def test_tiles_that_cannot_be_met(written: str, told: str) -> None:
    """The error names the number."""
    program = Case(lambda: plain(16, 512, 256)).program()
    with pytest.raises(UserError, match=told):
        product_by_hand(program, parse_template(f"matmul [{written}]; swapped=true;"), H200)


def test_panels_of_a_turned_left_operand_are_whole() -> None:
    """Its rows are contiguous, and a panel has 64 of them."""
    refused = schedule_product(plain(16, 128, 128, F16, (True, True)), {}, H200, swapped(16))
    assert isinstance(refused, Rejected) and "16 columns are no multiple of 64" in refused.detail


# -- weights of few bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("graph", "packing"), [(lambda: of_bytes(16, 4096, 2048), 1), (lambda: dequantised(16, 4096, 2048), 1),
                                                (lambda: of_halves(16, 4096, 2048, 64), 2)])
def test_consumers_expand_narrow_weights(graph: Callable[[], Graph], packing: int) -> None:
    """Slots hold the narrow elements; instructions take the expanded ones from registers."""
    program = Case(graph).program()
    plan = plan_of(program)
    (tile,) = plan.rights
    assert plan.choice.swapped and tile.operand.value in ("w", "q") and tile.packing == packing
    assert tile.slot_bytes == plan.choice.rows * plan.choice.depth // packing
    assert all(s.left_registers for s in statements(compose_product(program, H200).body) if isinstance(s, WarpgroupProduct))


@pytest.mark.parametrize(("graph", "elements"), [(lambda: of_bytes(16, 4096, 2048), 16), (lambda: of_halves(16, 4096, 2048, 64), 8)])
def test_a_lane_expands_neighbours_of_one_load(graph: Callable[[], Graph], elements: int) -> None:
    """16 neighbours along the inner axis, of whichever width. Warpgroups read the few rows beside them in the same order; single warps load
    a lane's piece of the rows, which tensor copies bring."""
    for by_warps in (True, False):
        program = Case(graph, swapped(16, 256, 3, by_warps=by_warps)).program()
        plan = plan_of(program)
        tile = plan.rights[0]
        inside = list(statements(compose_product(program, H200).body))
        widths = {s.width for s in inside if isinstance(s, VectorLoad) and s.buffer == f"{tile.operand.value}_slots"}
        assert plan.in_pieces and widths == {elements}
        assert all(s.in_pieces is by_warps for s in inside if isinstance(s, WarpgroupProduct))
        assert plan.left.by_lanes is not by_warps and ("in the order of lanes" in why_no_copies(plan.form, plan.left)) is not by_warps


@pytest.mark.parametrize("by_warps", [True, False])
def test_scales_of_groups_are_loaded_a_slot_ahead(by_warps: bool) -> None:
    """No load of a scale stands behind the wait for a slot; those in the main loop are of the next step, where there is one."""
    program = Case(lambda: of_halves(16, 512, 1024, 64), swapped(16, 256, 3, by_warps=by_warps)).program()
    kernel = compose_product(program, H200)
    (scale,) = (b.name for b in kernel.parameters if b.origin == "scale")

    def loads(body: Sequence[Stmt]) -> list[Load]:
        return [s.value for s in statements(body) if isinstance(s, Assign) and isinstance(s.value, Load) and s.value.buffer == scale]

    (step,) = (s for s in statements(kernel.body) if isinstance(s, For) and any(isinstance(i, Consume) for i in s.body))
    (use,) = (s for s in step.body if isinstance(s, Consume))
    later = [s for s in step.body if isinstance(s, If) and loads(s.body)]
    assert not loads((use,)) and len(later) == 1 and later[0].bounds == (Bound(axis(step.var) + 1, 0, 4),)
    assert len(loads(later[0].body)) == len(loads(kernel.body)) / 2 > 0


def test_order_of_lanes_needs_a_tensor_in_memory() -> None:
    """Computed elements, and rows of many tiles that tensor copies bring faster than threads, keep their order."""
    for graph in (lambda: of_bytes_and_floats(16, 4096, 2048), lambda: of_bytes(256, 11008, 4096)):
        assert not plan_of(Case(graph).program()).in_pieces


def test_few_rows_that_threads_compute_cost_a_wait_a_slot() -> None:
    """64 chunks of a slot are fewer than the threads: each slot waits for its loads once all the same, and longer than for a copy first."""
    plan = plan_of(Case(lambda: stacked(8, 4096, 1024), swapped(8, 64)).program())
    filling = producing_cycles(plan, H200)
    assert plan.left.elements // 8 == 64 and filling > H200.fitted.pipelined.load_cycles
    by_threads = max(cycles for path in plan.work.blocks[0].tile[0].paths for unit, cycles in path if unit == "threads")
    assert by_threads > (plan.fillings - 1) * filling


def test_consumers_expand_narrow_weights_for_many_rows_too() -> None:
    """Producing threads would compute each weight into shared memory first."""
    choice = plan_of(Case(lambda: of_bytes(256, 11008, 4096)).program()).choice
    assert choice.swapped and choice.columns >= 128 and choice.slots > 2


@pytest.mark.parametrize("graph", [lambda: of_bytes(16, 512, 512, turned=False), lambda: dequantised(16, 512, 500)],
                         ids=["columns contiguous", "rows of 500 bytes"])
def test_weights_that_no_copy_brings_are_computed_by_producers(graph: Callable[[], Graph]) -> None:
    """Their tiles hold expanded elements."""
    plan = plan_of(Case(graph, swapped(16, 128)).program())
    assert plan.rights[0].expanded is None and plan.rights[0].slot_bytes == 64 * 128 * 2


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_a_part_that_is_expanded_too_early_shows(tmp_path: Path) -> None:
    """A product still reads its left operand from registers that the next part is written to."""
    case = Case(lambda: of_bytes(8, 64, 256), swapped(8, 128, 2, blocks=1))
    kernel = compose_product(case.program(), H200)
    faulty = replace(kernel, body=changed(kernel.body, lambda s: () if isinstance(s, WarpgroupWait) and s.pending else None))
    values = drawn(case.graph())
    _, status, report = run(faulty, {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}, tmp_path, check=True)
    assert status > 0 and "product" in report, report
