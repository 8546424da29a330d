"""Products of one row with several matrices in one kernel: each has a share of the blocks, whose first rows set out early."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.host_build import compiler, run
from tests.unit.templates.shared_products import in_turns, packed, products_of_one_row
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import generate
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph
from tilefuse.kernel.asynchronous import AwaitEarlier, BulkCopy, Prefetch
from tilefuse.kernel.early import PrefetchOnly, before_waiting, fetched_early, untimely
from tilefuse.kernel.visit import statements
from tilefuse.target.device import H200
from tilefuse.templates.by_hand import program_by_hand
from tilefuse.templates.compose import compose
from tilefuse.templates.neighbours import neighbours, program_with
from tilefuse.templates.notation import parse_template
from tilefuse.templates.packed.packed import Packed
from tilefuse.templates.packed.template import takes_turns

# A device so small that three matrices of a few rows each take several turns.
SMALL = replace(H200, num_multiprocessors=5)


def blocks_of(program: TileProgram) -> list[tuple[int, ...]]:
    """Blocks of the parts of each group."""
    assert isinstance(program.choice, Packed)
    return [tuple(p.num_blocks for p in g.parts) for g in program.choice.groups]


@pytest.mark.parametrize("norm", ["rms", "layer", ""])
@pytest.mark.parametrize(("rows", "blocks"), [
    ((2048, 512, 512), [(86,), (22, 22)]), ((4096, 1024), [(103,), (26,)]), ((2900, 250), [(121,), (11,)]),
])
def test_shares_follow_the_bytes(norm: str, rows: tuple[int, ...], blocks: list[tuple[int, ...]]) -> None:
    """All blocks run at once, and none has more turns than the others need."""
    program = packed(products_of_one_row(rows, 2048, "bf16", norm=norm).graph)
    assert isinstance(program.choice, Packed) and takes_turns(program.choice)
    assert blocks_of(program) == blocks and program.launch.num_blocks <= H200.num_multiprocessors
    assert program.launch.num_blocks == sum(map(sum, blocks))


@pytest.mark.parametrize(("rows", "length", "dtype"), [((2048, 512, 512), 2049, "bf16"), ((64, 32), 128, "bf16")])
def test_rows_that_no_queue_brings_have_blocks_of_one_round(rows: Sequence[int], length: int, dtype: str) -> None:
    """Copies take whole words of 16 bytes; small rows have a warp each."""
    choice = packed(products_of_one_row(rows, length, dtype, norm="").graph).choice
    assert isinstance(choice, Packed) and not takes_turns(choice)


def test_nothing_is_fetched_early_where_the_option_forbids_it() -> None:
    """Rows beside a vector as it is gain nothing else by a queue; a norm is prepared all the same."""
    for norm in ("rms", "layer", ""):
        choice = packed(products_of_one_row((2048, 512, 512), 2048, "bf16", norm=norm).graph, fetches_early=False).choice
        assert isinstance(choice, Packed) and takes_turns(choice) is bool(norm)


def test_settled_rows_of_all_parts_set_out_before_the_wait() -> None:
    """A part of which one member's rows are not settled waits first; every part waits once."""
    program = packed(products_of_one_row((2048, 512, 512), 2048, "bf16").graph)
    for settled, early in (({"w0", "w1", "w2"}, {"w0", "w1", "w2"}), ({"w0", "w1"}, {"w0"}), ({"w1", "w2"}, {"w1", "w2"}), ({"x"}, set())):
        kernel = compose(program, H200, frozenset(settled))
        assert fetched_early(kernel) == early and untimely(kernel, frozenset(settled)) == []
        assert all(sum(isinstance(s, AwaitEarlier) for s in g.body) == bool(early) for g in kernel.groups)
        assert any(isinstance(s, BulkCopy) for s in statements(before_waiting(kernel))) is bool(early)
        if early:
            assert untimely(kernel, frozenset()) and untimely(kernel, PrefetchOnly(settled))
            group, *others = kernel.groups
            waiting = replace(group, body=tuple(s for s in group.body if not isinstance(s, AwaitEarlier)))
            assert untimely(replace(kernel, body=(waiting, *others)), frozenset(settled))
    prefetching = compose(program, H200, PrefetchOnly({"w0", "w1", "w2"}))
    ahead = list(statements(before_waiting(prefetching)))
    assert any(isinstance(s, Prefetch) for s in ahead) and not any(isinstance(s, BulkCopy) for s in ahead)


def test_a_plan_computes_the_norm_in_every_part() -> None:
    """One kernel; its text waits once in each branch."""
    made = generate(products_of_one_row((2048, 512, 512), 2048, "bf16").graph, constants={}, device=H200, options=Options())
    (kernel,) = made.spec.kernels
    body = kernel.source[kernel.source.index('extern "C"'):]
    assert kernel.launch.early and body.count("tf_wait_for_earlier_kernel();") == 2
    (planned,) = made.plan.kernels
    assert planned.program.notation.startswith("pack {") and "cta_num=86" in planned.program.notation


def test_a_row_that_is_a_result_has_a_kernel_of_its_own() -> None:
    """The norm behind it is computed in every part all the same."""
    products = products_of_one_row((2048, 512, 512), 2048, "bf16").graph
    added = parse_graph("""graph @added(%a: bf16[1, 2048], %b: bf16[1, 2048]) -> (bf16[1, 2048]) {
      %x: bf16[1, 2048] = map [i, j] { bf16(add(f32(%a[i, j]), f32(%b[i, j]))) }
      return %x
    }""")
    inputs = (*added.inputs, *(i for i in products.inputs if i.name != "x"))
    graph = Graph("layer", inputs, (*added.nodes, *products.nodes), (*added.results, *products.results))
    plan = generate(graph, constants={}, device=H200, options=Options()).plan
    first, second = (k.program.choice for k in plan.kernels)
    assert isinstance(second, Packed) and takes_turns(second) and not isinstance(first, Packed)
    assert [k.pattern.nodes for k in plan.kernels] == [("x",), tuple(n.name for n in products.nodes)]


def test_the_notation_gives_the_program_back() -> None:
    """Other numbers of blocks and slots too, but no more blocks than a part's share."""
    program = packed(products_of_one_row((2048, 512, 512), 2048, "bf16").graph)
    again = program_by_hand(program, parse_template(program.notation), H200)
    assert again.notation == program.notation and again.choice == program.choice
    text = program.notation.replace("GRID_22", "GRID_20").replace("cta_num=22", "cta_num=20")
    fewer = program_by_hand(program, parse_template(text), H200)
    assert blocks_of(fewer) == [(86,), (20, 20)]


def test_neighbours_are_programs() -> None:
    """Bodies of parts by other slots and threads a row among them."""
    program = packed(products_of_one_row((2048, 512, 512), 2048, "bf16").graph)
    others = neighbours(program, H200)[1:]
    made = [program_with(program, choice, H200) for choice in others]
    assert made and all(isinstance(p, TileProgram) for p in made)
    assert any(isinstance(choice, Packed) and takes_turns(choice) for choice in others)


def test_the_price_decides() -> None:
    """One row more than fits three turns is a fourth one for some blocks; without a norm blocks of one round take less time then."""
    for rows, turns in (((2900, 250), True), ((3000, 200), False)):
        choice = packed(products_of_one_row(rows, 2048, "bf16", norm="").graph).choice
        assert isinstance(choice, Packed) and takes_turns(choice) is turns


def test_single_rows_have_blocks_of_one_round() -> None:
    """A matrix of one row, or of two, has no rows to take in turns."""
    for count in (1, 2):
        choice = packed(products_of_one_row((count, 900), 2048, "bf16", norm="").graph).choice
        assert isinstance(choice, Packed) and not takes_turns(choice)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize(("settled", "dtype", "rows", "length", "norm", "residual"), [
    (frozenset({"w0", "w1", "w2"}), "bf16", (37, 11, 5), 512, "rms", True),
    (frozenset({"w0", "w1", "w2"}), "f16", (37, 11, 11), 776, "", True),
    (PrefetchOnly({"w0", "w1", "w2"}), "f32", (41, 3, 17), 260, "layer", False),
    (frozenset({"w0"}), "f16", (3, 90), 1000, "", False),
    (frozenset({"w0", "w1"}), "f16", (29, 13), 520, "layer", True),
    (frozenset(), "bf16", (23, 50, 9, 3), 264, "rms", False),
])
def test_kernels_compute_their_products(settled: frozenset[str], dtype: str, rows: tuple[int, ...], length: int, norm: str, residual: bool,
                                        tmp_path: Path) -> None:
    """No finding of the checking mode, and every result within its bound."""
    pattern = products_of_one_row(rows, length, dtype, norm=norm, residual=residual)
    graph, program = pattern.graph, in_turns(packed(pattern.graph, SMALL), SMALL)
    assert isinstance(program.choice, Packed) and takes_turns(program.choice)
    kernel = compose(program, SMALL, settled)
    assert fetched_early(kernel) == settled and untimely(kernel, settled) == []
    values = pattern.inputs(np.random.default_rng(3))
    inputs = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    memory, status, report = run(kernel, inputs, tmp_path, check=True)
    assert status == 0, report
    assert pattern.bounds is not None
    for name, bound, wanted in zip(graph.results, pattern.bounds(values), interpret(graph, values), strict=True):
        out = next(b.name for b in kernel.parameters if b.origin == name)
        difference = np.abs(memory[out].astype(np.float64) - np.asarray(wanted, dtype=np.float64).ravel())
        assert (difference <= 2 * bound.ravel()).all(), name
