"""Stages of stitched kernels: what they are for known patterns, where barriers stand, how shared memory is used again, what is rejected."""
from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.templates.stitched_cases import CASES, tiles
from tests.unit.templates.stitched_graphs import (
    attention,
    clamped_layers,
    heads,
    lstm_cell,
    many_reductions,
    normed_chain,
    product_softmax,
    siblings,
    slice_of_a_tile,
    turned_product,
)
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import CompilerError, NameLookupError, OptionError, UserError
from tilefuse.domain.regions import within
from tilefuse.domain.tile import Level, TileProgram
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F16, F32, F64, I64
from tilefuse.ir.graph import Graph
from tilefuse.target.catalog import A100
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.templates.by_hand import program_by_hand
from tilefuse.templates.compose import compose
from tilefuse.templates.neighbours import neighbours, program_with
from tilefuse.templates.notation import parse_template, print_template
from tilefuse.templates.staged.stitched.plan import Piece, Stage, StitchPlan
from tilefuse.templates.staged.stitched.record import Stitched
from tilefuse.templates.staged.stitched.template import schedule_stitched


def made(graph: Graph, choice: Stitched | None = None, device: DeviceSpec = H200) -> tuple[TileProgram, StitchPlan]:
    """The stitched program of a graph and its stages."""
    program = schedule_stitched(graph, {}, device, choice)
    assert isinstance(program, TileProgram), program
    assert isinstance(program.internal, StitchPlan)
    return program, program.internal


def told(plan: StitchPlan) -> list[str]:
    """The stages in words: kind, and how many products' sums stay in its registers."""
    return [s.kind + (f" of {len(s.products)}" if s.products else "") for s in plan.stages]


def piece_of(plan: StitchPlan, value: str) -> Piece:
    """The tile of a value that has one."""
    (found,) = (p for p in plan.pieces if p.value == value)
    return found


# -- stages ----------------------------------------------------------------------------------------------------------------------

def test_attention_is_product_rows_product() -> None:
    """A softmax between two products is one stage of rows; the scores stay in registers up to their scale."""
    program, plan = made(attention(2, 20, 8), tiles(1, 8, 8))
    assert [s for s in told(plan) if s != "copy"] == ["product of 1", "rows", "product of 1"]
    assert plan.grid == (("tile0", 2), ("tile1", 3)) and program.launch.num_blocks == 6
    assert program.levels and {e.level for e in program.levels} <= {Level.SHARED, Level.REGISTER, Level.WARP}


def test_layers_keep_sums_in_registers() -> None:
    """Bias and clamp are evaluated on the sums; only what the next product reads is in shared memory."""
    graph = clamped_layers(256, (64, 64, 64, 64), F16)
    _, plan = made(graph, tiles(64, 64, threads=128))
    assert [s for s in told(plan) if s != "copy"] == ["product of 1"] * 3
    assert all(s.tiling is not None and s.tiling.unit == "mma" for s in plan.stages if s.products)
    products = [p for p in plan.pieces if p.kind == "product"]
    assert len(products) == 3 and not any(p.stored for p in products)
    last = piece_of(plan, graph.results[0])
    assert last.written and not last.stored


def test_the_matrix_unit_needs_whole_instructions_and_a_device() -> None:
    for graph, choice in ((clamped_layers(30, (16, 16), F16), tiles(10, 16)), (clamped_layers(32, (16, 16), F64), tiles(16, 16))):
        _, plan = made(graph, choice)
        assert all(s.tiling is not None and s.tiling.unit == "fma" for s in plan.stages if s.products)


@pytest.mark.parametrize("start", [0, 3, 8])
def test_the_matrix_unit_reads_whole_vectors(start: int) -> None:
    """Rows of 35 elements of 2 bytes start at no multiple of 16 bytes, wherever the operand starts in them."""
    _, plan = made(slice_of_a_tile(16, start, 16), tiles(16, 35))
    assert [s.tiling.unit for s in plan.stages if s.tiling is not None] == ["fma"]
    _, plan = made(heads(16, 2, 16), tiles(1, 2, 16, 16))
    assert [s.tiling.unit for s in plan.stages if s.tiling is not None] == ["mma"]


def test_norms_of_a_chain_are_rows() -> None:
    _, plan = made(normed_chain(6, 24, 3), tiles(2, 24))
    assert [s for s in told(plan) if s != "copy"] == ["product of 1", "rows"] * 3


def test_gates_of_one_product_are_four_slices() -> None:
    """The block's tile of the cell needs four tiles of the one product."""
    graph = lstm_cell(6, 16)
    _, plan = made(graph, tiles(3, 8))
    products = [p for p in plan.pieces if p.kind == "product"]
    starts = sorted(p.region[-1].offset.const for p in products)
    assert set(starts) == {0, 16, 32, 48} and all(p.region[-1].extent == 8 for p in products)
    assert all(graph.results.count(p.value) for p in plan.pieces if p.written)


def test_products_of_one_map_share_a_loop() -> None:
    _, plan = made(siblings(7, 6, 10), tiles(3, 5))
    assert told(plan).count("product of 2") == 1


def test_reductions_of_several_shapes_are_several_stages() -> None:
    """Rows of a warp, columns, and everything; the product they all read is kept once."""
    _, plan = made(many_reductions(6, 5, 16), tiles(6, 16))
    assert [s for s in told(plan) if s != "copy"] == ["product of 1", "rows", "reduce", "reduce", "map"]
    (product,) = (p for p in plan.pieces if p.kind == "product")
    assert product.stored


# -- barriers and shared memory --------------------------------------------------------------------------------------------------

BY_HAND = [c for c in CASES if c.choice is not None]


@pytest.mark.parametrize("case", BY_HAND, ids=lambda c: c.name)
def test_stages_wait_for_what_they_read_and_overwrite(case) -> None:  # type: ignore[no-untyped-def]
    """Between writing a tile and reading it, and between reading it and writing over it, there is a barrier. Own tiles lie apart.

    Where blocks copy the next tile ahead, each turn begins with a barrier behind all that was copied before.
    """
    program, plan = made(case.graph, case.choice)
    groups = program.choice.groups if isinstance(program.choice, Stitched) else 0
    before = [s for s in plan.stages if groups and (plan.is_once(s) or plan.is_ahead(s))]
    ahead = any(map(plan.is_ahead, plan.stages))
    stages = [*before, *(s for s in plan.stages if s not in before)]
    stored = {p.key for p in plan.pieces if p.stored}
    epoch, written, read = 0, {}, {}  # key -> epoch of its last access
    for n, stage in enumerate(stages):
        epoch += stage.barrier or ahead and n == len(before)
        reads = {k for p in (*stage.pieces, *stage.products) for k in plan.sources[p]} & stored - set(stage.pieces)
        writes = set(stage.pieces) & stored
        assert all(k in written and written[k] < epoch for k in reads), f"{stage} reads what was just written"
        for key in writes:
            for other, when in [*written.items(), *read.items()]:
                if other != key and overlap(plan.pieces[key], plan.pieces[other]) and plan.in_place.get(other) != key:
                    assert when < epoch, f"{stage} overwrites %{plan.pieces[other].value} too early"
        written |= dict.fromkeys(writes, epoch)
        read |= dict.fromkeys(reads, epoch)
    for p in plan.pieces:
        assert not p.stored or (p.offset_bytes % 16 == 0 and p.offset_bytes + p.num_bytes <= plan.shared_bytes)
    assert plan.shared_bytes <= H200.shared_bytes_per_block
    assert dict(program.parameters)["allocated_bytes"] == plan.shared_bytes


def test_every_block_of_a_walk_has_a_tile() -> None:
    """More blocks than tiles are not launched: they would copy what nobody waits for."""
    program, plan = made(clamped_layers(21, (8, 8, 8), F32), tiles(4, 8, groups=50))
    assert isinstance(program.choice, Stitched) and program.choice.groups == program.launch.num_blocks == 6
    (ahead,) = filter(plan.is_ahead, plan.stages)
    (piece,) = (plan.pieces[k] for k in ahead.pieces)
    assert piece.value == "x" and piece.num_bytes == 2 * piece.num_stored * 4 >= 2 * 4 * 8 * 4


def overlap(a: Piece, b: Piece) -> bool:
    return a.offset_bytes < b.offset_bytes + b.num_bytes and b.offset_bytes < a.offset_bytes + a.num_bytes


@pytest.mark.parametrize("case", BY_HAND, ids=lambda c: c.name)
def test_live_tiles_never_share_memory(case) -> None:  # type: ignore[no-untyped-def]
    """From the stage that writes a tile to the last one that reads it, nothing else lies there but what is made of it in place."""
    program, plan = made(case.graph, case.choice)
    groups = program.choice.groups if isinstance(program.choice, Stitched) else 0
    last = len(plan.stages)
    born = {k: n for n, s in enumerate(plan.stages) for k in s.pieces if plan.pieces[k].stored}
    dies = dict(born)
    for n, s in enumerate(plan.stages):
        for p in (*s.pieces, *s.products):
            dies |= {k: n for k in plan.sources[p] if k in born}
    for s in plan.stages:
        if groups and plan.is_once(s):
            born |= dict.fromkeys((k for k in s.pieces if k in born), 0)
            dies |= dict.fromkeys((k for k in s.pieces if k in dies), last)
    for a in born:
        for b in born:
            if a < b and born[a] <= dies[b] and born[b] <= dies[a] and overlap(plan.pieces[a], plan.pieces[b]):
                assert follows(plan, a, b), (plan.pieces[a], plan.pieces[b])


def follows(plan: StitchPlan, a: int, b: int) -> bool:
    """Whether one tile follows the other in a row of tiles that overwrite each other."""
    for first, then in ((a, b), (b, a)):
        while first in plan.in_place:
            first = plan.in_place[first]
            if first == then:
                return True
    return False


def test_rows_overwrite_what_they_are_computed_from() -> None:
    """Probabilities take the place of the scores, and memory is less than what all tiles ask for."""
    _, plan = made(attention(2, 20, 8), tiles(1, 8, 8))
    assert plan.in_place
    for old, new in plan.in_place.items():
        a, b = plan.pieces[old], plan.pieces[new]
        assert a.offset_bytes == b.offset_bytes and a.region == b.region and a.dtype == b.dtype and a.pad == b.pad
    _, long = made(clamped_layers(64, (64, 64, 64, 64), F16), tiles(32, 64, threads=128))
    assert long.shared_bytes < sum(p.num_bytes for p in long.pieces)


def test_rows_of_operands_start_in_different_banks() -> None:
    """Tiles that products read are padded by 16 bytes where their rows are whole vectors."""
    _, plan = made(clamped_layers(64, (64, 64), F16), tiles(32, 64, threads=128))
    padded = [p for p in plan.pieces if p.stored]
    assert padded and all(p.pad * p.dtype.itemsize == 16 for p in padded)


def test_what_every_tile_needs_is_brought_once() -> None:
    """Weights of blocks that walk tiles stay where they are; without a walk nothing is kept longer than needed."""
    graph = clamped_layers(100, (16, 16, 16), F16)
    program, plan = made(graph, tiles(16, 16, groups=3))
    assert program.launch.num_blocks == 3
    once = [s for s in plan.stages if plan.is_once(s)]
    assert sorted(plan.pieces[s.pieces[0]].value for s in once) == ["w0", "w1"]
    weights = [plan.pieces[s.pieces[0]] for s in once]
    others = [p for p in plan.pieces if p.stored and p not in weights]
    assert not any(overlap(w, p) for w in weights for p in (*others, *(x for x in weights if x is not w)))


def test_tiles_of_a_stage_hold_what_it_reads() -> None:
    """Regions of operands hold the points that a product's tile reads."""
    _, plan = made(turned_product(10, 6, 9, (True, False)), tiles(4, 3))
    left, right = piece_of(plan, "x"), piece_of(plan, "w")
    assert [s.extent for s in left.region] == [6, 4] and [s.extent for s in right.region] == [6, 3]
    extents = dict(plan.grid)
    assert within(left.region[1].offset + 3, left.region[1], extents) and not within(left.region[1].offset + 4, left.region[1], extents)


# -- rejections ------------------------------------------------------------------------------------------------------------------

def looks_up_a_product() -> Graph:
    b = TensorBuilder("looked")
    y = b.matmul(b.input("x", F32, (4, 5)), b.input("w", F32, (5, 6)))
    return b.finish([b.take(y, b.input("n", I64, (3,)), 0)])


def scanned_product() -> Graph:
    b = TensorBuilder("scanned")
    return b.finish([b.scan(b.matmul(b.input("x", F32, (4, 5)), b.input("w", F32, (5, 6))), "sum", 1)])


def integer_product() -> Graph:
    b = TensorBuilder("integers")
    y = b.matmul(b.input("x", I64, (4, 5)), b.input("w", I64, (5, 6)))
    return b.finish([b.elementwise("add", y, y)])


def empty_product() -> Graph:
    b = TensorBuilder("empty")
    y = b.matmul(b.input("x", F32, (0, 5)), b.input("w", F32, (5, 6)))
    return b.finish([b.elementwise("add", y, y)])


def convolution() -> Graph:
    b = TensorBuilder("convolution")
    y = b.convolution(b.input("x", F32, (1, 2, 6)), b.input("w", F32, (3, 2, 3)))
    return b.finish([b.elementwise("add", y, y)])


def product_and_sums() -> Graph:
    """Sums of the rows that a product reads, which it does not need."""
    b = TensorBuilder("beside")
    x = b.input("x", F32, (9, 5))
    y = b.matmul(x, b.input("w", F32, (5, 6)))
    return b.finish([b.elementwise("add", y, y), b.reduce(x, "sum", (1,))])


REJECTED: dict[str, tuple[Graph, Stitched | None, Reason, str]] = {
    "another library call": (convolution(), None, Reason.LIBRARY_CALL, "is a library call"),
    "integers": (integer_product(), None, Reason.UNSUPPORTED_OP, "a product of i64 and i64"),
    "a scan": (scanned_product(), None, Reason.UNSUPPORTED_OP, "is a scan"),
    "a look-up of what is inside": (looks_up_a_product(), None, Reason.NEEDS_GRID_SYNC, "looks up elements"),
    "a long inner axis": (turned_product(8, 5000, 8, (False, False)), None, Reason.SHARED_MEMORY, "a product over 5000 elements"),
    "rows that do not fit": (product_softmax(8, 16, 70000), tiles(8, 70000), Reason.SHARED_MEMORY, ""),
    "a result that only some blocks' axes reach": (product_and_sums(), tiles(4, 3), Reason.NEEDS_GRID_SYNC, "and none needs it"),
    "nothing": (empty_product(), None, Reason.LIBRARY_CALL, ""),
}


@pytest.mark.parametrize("name", list(REJECTED))
def test_what_no_stitched_kernel_holds_has_a_reason(name: str) -> None:
    graph, choice, reason, detail = REJECTED[name]
    found = schedule_stitched(graph, {}, H200, choice)
    assert isinstance(found, Rejected), found.notation
    assert found.reason is reason and detail in found.detail


def test_a_device_with_little_shared_memory_gets_smaller_tiles() -> None:
    small = replace(H200, shared_bytes_per_block=6000)
    _, plan = made(attention(2, 64, 16), None, small)
    assert plan.shared_bytes <= 6000
    found = schedule_stitched(product_softmax(8, 64, 512), {}, replace(H200, shared_bytes_per_block=600), None)
    assert isinstance(found, Rejected) and found.reason is Reason.SHARED_MEMORY


# -- by hand ---------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("device", [H200, A100], ids=lambda d: d.name)
@pytest.mark.parametrize("graph", [attention(2, 20, 8), clamped_layers(70, (16, 16), F16), lstm_cell(5, 8)], ids=lambda g: g.name)
def test_a_printed_template_gives_the_same_kernel(graph: Graph, device: DeviceSpec) -> None:
    program = schedule_stitched(graph, {}, device)
    assert isinstance(program, TileProgram)
    template = parse_template(program.notation)
    assert print_template(template) == program.notation
    again = program_by_hand(program, template, device)
    assert again.choice == program.choice and again.notation == program.notation


def test_settings_change_tile_threads_and_groups() -> None:
    program, _ = made(clamped_layers(100, (16, 16), F16), tiles(16, 16))
    again = program_by_hand(program, parse_template(f"{program.graph.results[0]} [GRID-CTA,CTA]; tile_0=32; cta_size=128; groups=2;"), H200)
    assert again.choice == Stitched((32, 16), 128, 2) and again.launch.num_blocks == 2 and again.launch.num_threads == 128
    assert replace(compose(again, H200).launch, early=False) == again.launch


@pytest.mark.parametrize(("text", "found"), [
    ("{r} [GRID-CTA_32,CTA,WARP];", (32, 16)), ("{r} [GRID-CTA_16,CTA,WARP];", (16, 16)), ("{r} [GRID-CTA_10,CTA,THREAD];", (10, 16)),
    ("{r} [GRID-CTA_48,CTA_16,WARP]; cta_num=3;", (48, 16)), ("{r} [GRID_4,CTA,THREAD];", (25, 16)),
    ("{r} [GRID_7-CTA_16,CTA]; x [GRID_7-CTA_16,CTA]S;", (16, 16))])
def test_the_schedule_of_the_largest_result_gives_its_tile(text: str, found: tuple[int, ...]) -> None:
    """A text that nobody read made another kernel than the template's."""
    program, _ = made(clamped_layers(100, (16, 16), F16), tiles(64, 16))
    again = program_by_hand(program, parse_template(text.format(r=program.graph.results[0])), H200)
    assert isinstance(again.choice, Stitched) and again.choice.tiles == found


@pytest.mark.parametrize(("text", "message"), [
    ("{r} [GRID-CTA_32,CTA,WARP]; x [GRID-CTA_16,CTA]S;", "schedule x contradicts"),
    ("x [GRID-CTA_16,CTA_8]S;", "schedule x contradicts"),
    ("{r} [GRID-CTA_32,CTA,WARP]; cta_num=3;", "cta_num=3, but the schedules give 4"),
    # Each of these was accepted, and another kernel was made.
    ("{r} [GRID-CTA_32,CTA,THREAD];", "THREAD computes an element, and WARP does"),
    ("{r} [GRID-CTA_10,CTA,WARP];", "WARP computes an element, and THREAD does"),
    ("{r} [GRID-CTA_32,CTA,CTA];", "CTA computes an element"),
    ("{r} [GRID-CTA_16,WARP,WARP];", "WARP shares the 16 steps of a block"),
    ("{r} [GRID-CTA_32,CTA]S;", "on chip, where nothing reads it"),
    ("{r} [GRID-CTA_32,CTA]; x [GRID-CTA_32,CTA]R;", "another stage reads it in shared memory"),
    ("{r} [GRID-CTA_32,CTA]; x [GRID-CTA_32,CTA]C;", "in shared memory (S) or in registers (R)"),
    ("{r} [GRID-CTA_32,CTA]; x [GRID-CTA_32,CTA]G;", "it is no result"),
    ("{r} [GRID_8-CTA_32,CTA];", "GRID_8 of 100, and tiles of 32 make 4 blocks"),
    ("{r} [GRID_128,CTA];", "GRID_128 of 100, and tiles of 1 make 100 blocks"),
    ("{r} [GRID-CTA_32,CTA]; tile_0=16;", "is 32 of 100 in a block, which has 16"),
    ("{r} [GRID-CTA_32,CTA,WARP,CTA];", "4 attributes for 2 dimensions")])
def test_schedules_that_say_other_loops_are_refused(text: str, message: str) -> None:
    program, _ = made(clamped_layers(100, (16, 16), F16), tiles(64, 16))
    with pytest.raises(UserError) as caught:
        program_by_hand(program, parse_template(text.format(r=program.graph.results[0])), H200)
    assert message in str(caught.value) and caught.value.where is not None and caught.value.hint


@pytest.mark.parametrize(("text", "kind", "message"), [
    ("q [GRID];", NameLookupError, "%q has no stage"), ("{r} [GRID]; tiles=3;", OptionError, "no setting"),
    ("{r} [GRID]; cta_size=48;", UserError, "cta_size=48 is no number of threads"),
    ("{r} [GRID]; cta_size=2048;", UserError, "cta_size=2048 is no number of threads"),
    ("{r} [GRID]; tile_0=101;", UserError, "does not fit a result"), ("{r} [GRID]; tile_1=0;", UserError, "does not fit a result"),
    ("{r} [GRID]; tile_0=true;", OptionError, "no setting")])
def test_a_wrong_template_says_what_to_do(text: str, kind: type[CompilerError], message: str) -> None:
    program, _ = made(clamped_layers(100, (16, 16), F16), tiles(16, 16))
    with pytest.raises(kind) as caught:
        program_by_hand(program, parse_template(text.format(r=program.graph.results[0])), H200)
    assert message in str(caught.value) and caught.value.where is not None and caught.value.hint


def test_neighbours_are_other_tiles_of_the_same_pattern() -> None:
    program, _ = made(attention(2, 20, 8), tiles(1, 8, 8, threads=128))
    found = neighbours(program, H200)
    assert found[0] == program.choice and len(found) == len(set(found)) > 3
    programs = [program_with(program, c, H200) for c in found]
    assert all(isinstance(p, TileProgram) and p.graph is program.graph for p in programs if not isinstance(p, Rejected))
    assert sum(isinstance(p, TileProgram) for p in programs) > 3


def test_a_schedule_is_the_same_every_time() -> None:
    graph = attention(3, 24, 8, probabilities=True)
    first, again = (made(graph)[0] for _ in range(2))
    assert first.notation == again.notation and first.parameters == again.parameters


def test_stages_are_values() -> None:
    """Frozen, so that a plan can be changed only through replacements."""
    with pytest.raises(AttributeError):
        Stage("map", ()).kind = "copy"  # type: ignore[misc]
