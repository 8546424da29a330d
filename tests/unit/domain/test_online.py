"""Axes that are walked between products: what has the form, templates written and read, tiles around the chosen ones."""
from __future__ import annotations

import pytest

from tests.unit.templates.online_graphs import logarithm_of_sum, merged_heads, two_of_each, with_logarithm, without_maximum
from tests.unit.templates.stitched_graphs import attention, normal, product_softmax
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import NameLookupError, OptionError, UserError
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, F16, F32
from tilefuse.ir.graph import Graph
from tilefuse.ir.scalar import Call, Read, walk
from tilefuse.target.device import H200
from tilefuse.templates.by_hand import program_by_hand
from tilefuse.templates.neighbours import neighbours, program_with
from tilefuse.templates.notation import parse_template, print_template
from tilefuse.templates.staged.online.products import OnlineForm, online_form
from tilefuse.templates.staged.online.record import Online
from tilefuse.templates.staged.online.template import schedule_online


def form(graph: Graph) -> OnlineForm:
    """The form of a graph that has one."""
    made = online_form(graph)
    assert isinstance(made, OnlineForm), made
    return made


def program(graph: Graph, choice: Online | None = None) -> TileProgram:
    """The tile program of a graph that has one."""
    made = schedule_online(graph, {}, H200, choice)
    assert isinstance(made, TileProgram), made
    return made


def refused(graph: Graph, reason: Reason) -> str:
    """Why a graph has no form."""
    made = online_form(graph)
    assert isinstance(made, Rejected) and made.reason is reason, made
    return made.detail


def test_attention_is_a_maximum_a_sum_and_a_product_divided_at_the_end() -> None:
    """The powers that are summed and those that are multiplied are the same expression; one over the sum waits for the end."""
    found = form(attention(2, 20, 8))
    assert (found.num_leads, found.num_rows, found.length) == (2, 20, 20)
    (top,), (total,), (product,) = found.tops, found.sums, found.weighted
    assert total.top == product.total.top == top.value
    assert total.body == product.total.body
    assert not total.late and [fn for fn, _ in product.total.late] == ["mul"]


def test_roundings_inside_fall_away() -> None:
    """No conversion to 16 bits is left in what is computed of the scores."""
    for dtype in (F16, BF16):
        found = form(attention(2, 20, 8, dtype, causal=True))
        for t in (*found.totals, *(w.total for w in found.weighted)):
            assert not any(isinstance(x, Call) and x.fn == dtype.name for x in walk(t.body))


def test_sums_without_a_maximum_are_relative_to_nothing() -> None:
    found = form(without_maximum(9, 37, 5, 7))
    assert not found.tops and not found.sums[0].top and not found.weighted[0].total.top


def test_infinite_maxima_are_conditions_of_the_whole_sum() -> None:
    """The log-sum-exp subtracts 0 where the maximum is infinite: the sum of a row is 0 or infinite there, when its walk is done."""
    (total,) = form(logarithm_of_sum(5, 4, 70)).sums
    assert isinstance(total.shift, Read) and total.shift.value == total.top
    assert [fn for fn, _ in total.late] == ["zero_where", "infinite_where"]


def test_lead_dimensions_may_be_merged_and_parted() -> None:
    assert form(merged_heads(10, 37, 6, 3)).num_leads == 6


def test_several_products_share_the_walk() -> None:
    found = form(two_of_each(11, 35, 4, 6))
    assert len(found.scores) == len(found.weighted) == 2


def test_results_beside_the_products() -> None:
    """Logarithms of sums and maxima are row results."""
    found = form(with_logarithm(3, 20, 35, 4, 9))
    assert len(found.row_results) == 2 and len(found.width_results) == 1


def test_what_has_no_form() -> None:
    """Scores that are written, one column, no product behind the rows, and sums that no factor makes good."""
    refused(attention(1, 20, 8, probabilities=True), Reason.DOMAIN_MISMATCH)
    assert "one column" in refused(with_logarithm(1, 5, 1, 3, 1), Reason.DOMAIN_MISMATCH)
    refused(product_softmax(5, 6, 40), Reason.DOMAIN_MISMATCH)
    b = TensorBuilder("squares")
    s = b.matmul(b.input("q", F32, (9, 4)), b.input("k", F32, (4, 70)))
    off = b.elementwise("sub", s, b.reduce(s, "max", (1,), keepdims=True))
    refused(normal(b, [b.reduce(b.elementwise("mul", off, off), "sum", (1,))]), Reason.REDUCTION_MISMATCH)


def test_template_is_read_back() -> None:
    made = program(attention(64, 4096, 64, F16), Online(128, 64, 128, 2, 2))
    template = parse_template(made.notation)
    assert print_template(template) == made.notation
    assert "LOOP_64" in made.notation and "CTA_128" in made.notation
    assert program_by_hand(made, template, H200).choice == made.choice


def test_template_by_hand_moves_the_tiles() -> None:
    made = program(attention(64, 4096, 64, F16))
    written = parse_template("matmul [GRID,GRID-CTA_64,LOOP_32-WARP]R; stages=1; cta_size=128;")
    assert program_by_hand(made, written, H200).choice == Online(64, 32, 128, 1)


@pytest.mark.parametrize("text, error", [
    ("nothing [GRID,GRID-CTA_64,LOOP_32-WARP];", NameLookupError),
    ("matmul [GRID,GRID-CTA_64,LOOP_32-WARP]; tile_0=3;", OptionError),
    ("matmul [GRID,GRID-CTA_64,LOOP_32-WARP]; softmax_max [GRID,GRID-CTA_64,LOOP_64-WARP];", UserError),
    ("matmul [GRID,GRID-CTA_63,LOOP_32-WARP];", UserError),
    ("matmul [GRID,GRID-CTA_1024,LOOP_128-WARP];", UserError),
    ("matmul [GRID,GRID-CTA_64,LOOP_32-WARP]; cta_size=16;", UserError),
    ("matmul [GRID,GRID-CTA_64,LOOP_32-WARP]; cta_size=0;", UserError),
    ("matmul [GRID,GRID-CTA_64,CTA];", UserError),
    ("softmax_max [GRID,CTA,THREAD];", UserError),
])
def test_template_that_cannot_be_met(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        program_by_hand(program(attention(64, 4096, 64, F16)), parse_template(text), H200)


def test_neighbours_are_other_tiles_of_the_same_pattern() -> None:
    """The choice itself first, none twice; those that fit have the same nodes and as many bytes."""
    made = program(attention(64, 4096, 64, F16))
    found = neighbours(made, H200)
    assert found[0] == made.choice and len(set(found)) == len(found) > 8
    others = [program_with(made, c, H200) for c in found]
    fitting = [o for o in others if isinstance(o, TileProgram)]
    assert len(fitting) > 4
    assert {(o.graph, o.bytes_read, o.bytes_written) for o in fitting} == {(made.graph, made.bytes_read, made.bytes_written)}


def test_wide_operands_need_smaller_tiles_or_do_not_fit() -> None:
    assert isinstance(schedule_online(attention(4, 512, 128, F16), {}, H200), TileProgram)
    assert isinstance(schedule_online(attention(4, 512, 2048, F16), {}, H200), Rejected)
