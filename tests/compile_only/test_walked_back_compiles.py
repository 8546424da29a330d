"""Gradients of attention compile for an H200: scores, elements and sums in registers, nothing spilled, no product waits for another."""
from __future__ import annotations

import pytest

from tests.compile_only.assembler import assembled, without_spills
from tests.compile_only.machine_code import products_in
from tests.unit.templates.staged.recomputed.back_graphs import Gradient
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import BF16, F16
from tilefuse.kernel.widths import with_index_bits
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200
from tilefuse.templates.staged.recomputed.compose import compose_back
from tilefuse.templates.staged.recomputed.record import WalkedBack
from tilefuse.templates.staged.recomputed.template import schedule_back


@pytest.mark.parametrize("scores", [(), ("causal",), ("hidden",)])
@pytest.mark.parametrize(("of", "width"), [("keys", 64), ("keys", 128), ("queries", 64), ("queries", 128)])
def test_random_numbers_spill_nothing(of: str, width: int, scores: tuple[str, ...]) -> None:
    """Lanes draw a turn's numbers for each other beside its products, in the tiles that plans take."""
    program = schedule_back(Gradient(of, scores, 64, 1024, 1024, width, BF16, drop=0.1).graph(), {}, H200)
    assert isinstance(program, TileProgram), program
    _, report = assembled(print_cuda(with_index_bits(compose_back(program, H200)), H200), "sm_90a")
    assert without_spills(report) and "serialized" not in report, report


@pytest.mark.parametrize(("of", "width", "scores", "choice"), [
    ("keys", 64, (), WalkedBack(64, 2, 2, 4, 1, 132)), ("keys", 64, ("causal",), WalkedBack(96, 2, 1, 3, 64, 132)),
    ("keys", 128, (), WalkedBack(48, 2, 1, 2, 1, 132)), ("keys", 128, ("causal",), WalkedBack(32, 2, 1, 3, 64, 132)),
    ("queries", 64, ("causal",), WalkedBack(64, 3, 2, 4, 64, 132)), ("queries", 64, (), WalkedBack(128, 2, 2, 4, 1, 132)),
    ("queries", 128, (), WalkedBack(96, 2, 1, 2, 1, 132)), ("queries", 128, ("window", "causal"), WalkedBack(64, 2, 1, 2, 1, 132)),
    ("keys", 64, ("cap", "causal"), WalkedBack(64, 2, 1, 3, 1, 132)), ("queries", 64, ("elements",), WalkedBack(64, 2, 2, 4, 1, 132)),
    ("queries", 64, ("dense", "elements"), WalkedBack(64, 2, 2, 4, 1, 132)), ("queries", 64, ("sums",), WalkedBack(96, 2, 2, 4, 1, 132)),
    ("queries", 128, ("dense", "elements"), WalkedBack(64, 2, 1, 2, 1, 132)),
    ("queries", 64, ("dense", "elements"), WalkedBack(128, 2, 2, 2, 1, 132, bias_ring=True)),
    ("keys", 64, ("dense",), WalkedBack(64, 2, 2, 3, 1, 132, bias_ring=True)),
])
def test_nothing_spills(of: str, width: int, scores: tuple[str, ...], choice: WalkedBack) -> None:
    """One instruction for 16 inner elements of each product, in every form of a turn; none serialised."""
    beside = tuple(s for s in scores if s in ("elements", "sums"))
    scores = tuple(s for s in scores if s not in beside)
    gradient = Gradient(of, scores, 64, 4096, 4096, width, BF16 if scores else F16, window=1024, beside=beside)
    program = schedule_back(gradient.graph(), {}, H200, choice)
    assert isinstance(program, TileProgram), program
    kernel = with_index_bits(compose_back(program, H200))
    code, report = assembled(print_cuda(kernel, H200), "sm_90a")
    assert without_spills(report), report
    assert "serialized" not in report
    # Two products of scores; of elements one or two. A length that no turn divides has a last turn of its own.
    of_turn = (2 * width + (2 if of == "keys" else 1) * choice.columns) // 16
    products = products_in(code, kernel.name)["HGMMA"]
    assert products % of_turn == 0 and products // of_turn in ((1, 2) if set(scores) <= {"dense"} else (2, 3, 4))


@pytest.mark.parametrize(("of", "width", "of_values"), [("keys", 192, 128), ("queries", 192, 128), ("keys", 64, 128)])
def test_values_of_another_width(of: str, width: int, of_values: int) -> None:
    """The cheapest tile of keys and values of different widths."""
    program = schedule_back(Gradient(of, ("causal",), 64, 4096, 4096, width, BF16, width=of_values).graph(), {}, H200)
    assert isinstance(program, TileProgram), program
    _, report = assembled(print_cuda(with_index_bits(compose_back(program, H200)), H200), "sm_90a")
    assert without_spills(report) and "serialized" not in report, report


@pytest.mark.parametrize("of", ["keys", "queries"])
def test_rows_beyond_the_end_are_read_without_branches(of: str) -> None:
    """A bias whose rows no turn and no tile divides: guards around its loads would serialise the products."""
    beside = ("elements",) if of == "queries" else ()
    program = schedule_back(Gradient(of, ("dense",), 768, 197, 197, 64, BF16, beside=beside).graph(), {}, H200)
    assert isinstance(program, TileProgram), program
    _, report = assembled(print_cuda(with_index_bits(compose_back(program, H200)), H200), "sm_90a")
    assert without_spills(report) and "serialized" not in report, report
