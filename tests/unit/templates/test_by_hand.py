"""Templates by hand: a printed template gives the same kernel back, a changed one another kernel, a wrong one a clear error."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from tests.golden.workloads import WORKLOADS, tile_program
from tests.unit.templates.pattern_graphs import bias_gelu, kept_and_turned
from tilefuse.base.errors import CompilerError, InternalError, NameLookupError, OptionError, UserError
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.text import parse_graph
from tilefuse.target.catalog import A100, host_device
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.templates.by_hand import program_by_hand
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.compose import compose
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.notation import parse_template, print_template
from tilefuse.templates.pattern import schedule_graph, schedule_pattern
from tilefuse.templates.rows.modes import Rows

SOFTMAX = parse_graph("""graph @softmax(%x: f32[64, 1024]) -> (f32[64, 1024]) {
  %m: f32[64] = reduce.max [i] over [k < 1024] { %x[i, k] }
  %e: f32[64, 1024] = map [i, j] { exp(sub(%x[i, j], %m[i])) }
  %s: f32[64] = reduce.sum [i] over [k < 1024] { %e[i, k] }
  %y: f32[64, 1024] = map [i, j] { div(%e[i, j], %s[i]) }
  return %y
}""")


def softmax(device: DeviceSpec = H200) -> TileProgram:
    made = schedule_pattern(SOFTMAX, [n.name for n in SOFTMAX.nodes], {}, device)
    assert isinstance(made, TileProgram)
    return made


def by_hand(text: str, program: TileProgram | None = None, device: DeviceSpec = H200) -> TileProgram:
    return program_by_hand(program or softmax(device), parse_template(text), device)


@pytest.mark.parametrize("device", [H200, A100, host_device()], ids=lambda d: d.name)
@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_what_is_printed_determines_the_same_kernel(name: str, device: DeviceSpec) -> None:
    program = tile_program(name, device)
    if not isinstance(program, TileProgram):
        pytest.skip("no schedule on this device")
    assert print_template(parse_template(program.notation)) == program.notation
    again = program_by_hand(program, parse_template(program.notation), device)
    assert again == program and again.choice == program.choice


def test_loops_and_settings_change_the_choice() -> None:
    made = by_hand("s [GRID-CTA_2,CTA_64]S; vector=4; batch=2;")
    assert isinstance(made.choice, Rows)
    assert (made.choice.threads, made.choice.rows, made.choice.chunks, made.choice.batch) == (64, 2, 4, 2)
    assert made.launch.num_blocks == 32 and made.launch.num_threads == 128
    assert compose(made, H200).launch.num_threads == 128
    clustered = by_hand("m [GRID,CLUSTER_2-CTA_64];")
    assert isinstance(clustered.choice, Rows) and clustered.choice.cluster == 2 and clustered.launch.cluster == 2
    lanes = by_hand("m [GRID-CTA_4,WARP];")
    assert isinstance(lanes.choice, Rows) and lanes.choice.threads == 32 and lanes.choice.rows == 4


FOUR = parse_graph("""graph @four(%x: f32[64, 8, 4, 256]) -> (f32[64, 8, 4, 256]) {
  %reduce_1: f32[64, 8, 4] = reduce.sum [i, j, k] over [l < 256] { %x[i, j, k, l] }
  %mul_1: f32[64, 8, 4, 256] = map [i, j, k, l] { mul(%x[i, j, k, l], %reduce_1[i, j, k]) }
  return %mul_1
}""")


@pytest.mark.parametrize(("text", "rows", "threads", "level"), [
    ("reduce_1 [GRID,WARP,WARP,CTA]S;", 32, 32, "W"),
    ("reduce_1 [GRID,WARP,WARP,CTA]S; mul_1 [GRID,WARP,WARP,CTA];", 32, 32, "W"),
    ("reduce_1 [GRID_32-WARP_2,WARP,WARP,CTA]S;", 64, 16, "W"),
    ("reduce_1 [GRID,CTA,CTA,THREAD];", 32, 1, "R"),
    ("reduce_1 [GRID,GRID,WARP,CTA]S;", 4, 32, "W"),
    ("reduce_1 [GRID,GRID,GRID,CTA]S; mul_1 [GRID,GRID,GRID,CTA];", 1, 64, "S"),
    ("reduce_1 [GRID,GRID,GRID,CTA]S; cta_size=128;", 1, 128, "S"),
    ("reduce_1 [GRID,GRID,GRID-WARP_2,CTA]S;", 2, 32, "W")])
def test_the_papers_forms_determine_kernels(text: str, rows: int, threads: int, level: str) -> None:
    """Dimensions that a block takes whole (5.2: [GRID,WARP,WARP,CTA]S), and CTA for what is left of the block."""
    base = schedule_pattern(FOUR, [n.name for n in FOUR.nodes], {}, H200)
    assert isinstance(base, TileProgram)
    made = by_hand(text, base)
    assert isinstance(made.choice, Rows) and (made.choice.rows, made.choice.threads) == (rows, threads)
    assert f"]{level};" in made.notation and compose(made, H200).launch.num_threads == rows * threads
    assert by_hand(made.notation, base) == made


MAPPED = parse_graph("""graph @mapped(%x: f32[64, 8, 300]) -> (f32[64, 8, 300]) {
  %add_1: f32[64, 8, 300] = map [i, j, k] { add(%x[i, j, k], 1.0:f32) }
  return %add_1
}""")


@pytest.mark.parametrize(("text", "threads", "steps", "blocks"), [
    ("add_1 [GRID,CTA,CTA];", 600, 1, 64),
    ("add_1 [GRID,GRID,CTA];", 75, 1, 512),
    ("add_1 [GRID,GRID,WARP];", 75, 1, 512),
    ("add_1 [GRID_32-WARP_2,WARP,CTA];", 600, 2, 32),
    ("add_1 [GRID_32-WARP_2,WARP,CTA]; cta_size=256;", 256, 5, 30),
    ("add_1 [GRID,CTA,CTA]; vector=2; steps=4; unrolled=false;", 600, 4, 32),
    ("add_1 [CTA,CTA,CTA];", 1011, 38, 1)])
def test_the_papers_forms_of_elementwise_values_determine_flat_walks(text: str, threads: int, steps: int, blocks: int) -> None:
    """Figure 5 (a) and (b): a block has whole dimensions, its threads share their elements."""
    base = schedule_pattern(MAPPED, ["add_1"], {}, H200)
    assert isinstance(base, TileProgram)
    made = by_hand(text, base)
    assert isinstance(made.choice, Pointwise) and (made.choice.threads, made.choice.steps) == (threads, steps)
    assert made.launch.num_blocks == blocks and made.choice.unrolled == (steps <= 8 and "unrolled" not in text)
    assert by_hand(made.notation, base) == made and compose(made, H200).launch.num_threads == threads


def test_a_reduction_by_one_thread_is_written_as_the_paper_writes_it() -> None:
    """5.2: [GRID,CTA,CTA,THREAD] where the reduced dimension is trivially small, which makes it a flat walk here."""
    graph = parse_graph("""graph @small(%x: f32[64, 80, 40, 3]) -> (f32[64, 80, 40]) {
      %reduce_1: f32[64, 80, 40] = reduce.sum [i, j, k] over [l < 3] { %x[i, j, k, l] }
      return %reduce_1
    }""")
    base = schedule_pattern(graph, ["reduce_1"], {}, H200)
    assert isinstance(base, TileProgram) and isinstance(base.choice, Pointwise)
    assert base.notation.startswith("reduce_1 [GRID,GRID,GRID-CTA_128,THREAD];")
    made = by_hand("reduce_1 [GRID,CTA,CTA,THREAD];", base)
    assert isinstance(made.choice, Pointwise) and (made.choice.threads, made.choice.steps, made.launch.num_blocks) == (800, 4, 64)
    for text in (base.notation, "reduce_1 [GRID,GRID,GRID-CTA,THREAD];"):
        assert by_hand(text, base) == base
    with pytest.raises(UserError, match="a flat walk spreads"):
        by_hand("reduce_1 [GRID,GRID,GRID-CTA_128,CTA];", base)


@pytest.mark.parametrize(("text", "rows", "threads", "cluster"), [
    ("m [GRID,CTA]S; y [GRID,CTA];", 1, 256, 1),
    ("m [GRID,CTA_64]S;", 1, 64, 1),
    ("m [GRID,CTA_64]SG;", 1, 64, 1),
    ("m [GRID,CTA_64]G; y [GRID,CTA_64]G;", 1, 64, 1),
    ("y [GRID,CTA_64];", 1, 64, 1),
    ("y [GRID,CTA]; cta_size=512;", 1, 512, 1),
    ("m [GRID-WARP,WARP];", 1, 32, 1),
    ("m [GRID-WARP,WARP]; cta_size=128;", 4, 32, 1),
    ("m [GRID-CTA,WARP_16]; cta_size=128;", 8, 16, 1),
    ("m [GRID,CLUSTER_4-CTA_32]C;", 1, 32, 4),
    ("m [GRID,CLUSTER_2-CTA]; y [GRID,CLUSTER_2-CTA];", 1, 128, 2)])
def test_what_follows_from_the_pattern_need_not_be_written(text: str, rows: int, threads: int, cluster: int) -> None:
    """That a shared value is a result as well, counts, and the schedules of other values."""
    graph = parse_graph("""graph @both(%x: f32[128, 1024]) -> (f32[128], f32[128, 1024]) {
      %m: f32[128] = reduce.max [i] over [k < 1024] { %x[i, k] }
      %y: f32[128, 1024] = map [i, j] { sub(%x[i, j], %m[i]) }
      return %m, %y
    }""")
    base = schedule_pattern(graph, ["m", "y"], {}, H200)
    assert isinstance(base, TileProgram)
    made = by_hand(text, base)
    assert isinstance(made.choice, Rows) and (made.choice.rows, made.choice.threads, made.choice.cluster) == (rows, threads, cluster)
    assert by_hand(made.notation, base) == made


@pytest.mark.parametrize(("text", "message", "hint"), [
    ("reduce_1 [GRID_20-WARP_2,WARP,WARP,CTA]S;", "20 x 2 steps do not cover dimension 0 of 64", "GRID-WARP_2"),
    ("reduce_1 [GRID,WARP,GRID,CTA]S;", "1 x 8 x 1 of 64 x 8 x 4, which do not lie one after another", "whole dimensions"),
    ("reduce_1 [GRID,CLUSTER_2,GRID,CTA]S;", "CLUSTER_2 is no way to take a kept dimension", "GRID_n-WARP_m"),
    ("reduce_1 [WARP,WARP,WARP,CTA]S;", "2048 threads a block, and h200 has at most 1024", "smaller")])
def test_blocks_of_rows_that_cannot_be(text: str, message: str, hint: str) -> None:
    base = schedule_pattern(FOUR, [n.name for n in FOUR.nodes], {}, H200)
    assert isinstance(base, TileProgram)
    with pytest.raises(UserError) as error:
        by_hand(text, base)
    assert message in error.value.message and hint in str(error.value)


@pytest.mark.parametrize(("text", "split", "threads"), [
    ("s [GRID_64,CTA];", 64, 256), ("s [GRID_64,CTA_128];", 64, 128), ("s [GRID,CTA]; cta_size=512;", 512, 512), ("s [CTA,CTA];", 1, 256)])
def test_a_sum_of_everything_spreads_its_dimensions(text: str, split: int, threads: int) -> None:
    base = tile_program("full-sum", H200)
    assert isinstance(base, TileProgram)
    made = by_hand(text, base)
    assert isinstance(made.choice, Rows) and (made.choice.split, made.choice.threads) == (split, threads)
    assert by_hand(made.notation, base) == made


def test_columns_and_flat_walks_take_templates_too() -> None:
    columns = tile_program("column-sum", H200)
    assert isinstance(columns, TileProgram)
    made = by_hand("s [GRID-CTA_8,GRID_2-CTA_32];", columns)
    assert isinstance(made.choice, Columns) and (made.choice.threads_x, made.choice.threads_y, made.choice.split) == (8, 32, 2)
    narrow = by_hand("s [GRID,CTA_32];", columns)
    assert isinstance(narrow.choice, Columns) and (narrow.choice.threads_x, narrow.choice.threads_y) == (1, 32)
    flat = tile_program("bias-gelu", H200)
    assert isinstance(flat, TileProgram)
    wide = by_hand("y [GRID,GRID-CTA_512]; steps=2;", flat)
    assert isinstance(wide.choice, Pointwise) and (wide.choice.threads, wide.choice.steps) == (512, 2)


@pytest.mark.parametrize(("text", "kind", "message", "hint"), [
    ("q [GRID,CTA_64];", NameLookupError, "%q has no schedule", "m, s, y"),
    ("e [GRID,CTA_64];", NameLookupError, "%e has no schedule", "m, s, y"),
    ("s [CTA_64];", UserError, "1 attributes, and the value 2 dimensions", "as in: s ["),
    ("s [GRID,CTA_2048];", UserError, "2048 threads a block, and h200 has at most 1024", "smaller CTA"),
    ("s [GRID-CTA_16,CTA_128];", UserError, "2048 threads a block", "smaller CTA"),
    ("s [GRID,CTA_48];", UserError, "48 threads a row are no whole warps", "multiple of 32"),
    ("s [GRID,WARP_24];", UserError, "24 lanes a row are no power of two", "1, 2, 4, 8, 16 or 32"),
    ("s [GRID,WARP_64];", UserError, "a warp has 32 lanes", "as in: s ["),
    ("s [GRID,CLUSTER_32-CTA_64];", UserError, "clusters of 32 blocks, and h200 has at most 16", "CLUSTER_16"),
    ("s [GRID-CTA_2,CLUSTER_2-CTA_64];", UserError, "leaves one row a block", "GRID without CTA"),
    ("s [CTA,CTA_64];", UserError, "4096 threads a block", "smaller CTA"),
    ("s [LOOP,CTA_64];", UserError, "LOOP is no way to take a kept dimension", "WARP or CTA"),
    ("s [GRID,GRID_4];", UserError, "names no threads", "as in: s ["),
    ("s [GRID,CTA_64-CLUSTER_2];", UserError, "CLUSTER_2 cannot stand there", "as in: s ["),
    ("s [GRID,GRID_2-CTA_64];", UserError, "split over the grid is not held on chip", "on_chip=false"),
    ("s [GRID,CTA_64]; y [GRID,CTA_32];", UserError, "schedule y contradicts", "y [GRID,CTA_64]"),
    ("s [GRID,CTA_64]C;", UserError, "cannot keep its result there", "s [GRID,CTA_64]S"),
    ("s [GRID,CTA_64]; cta_size=3;", UserError, "cta_size=3, but the schedules give 64", "leave it out"),
    ("s [GRID,CTA_64]; vectr=3;", OptionError, "no setting 'vectr'", "did you mean vector"),
    ("s [GRID,CTA_64]; vector=3;", UserError, "vector=3 is no vector width", "1, 2, 4 or 8"),
    ("s [GRID,CTA_64]; vector=0;", UserError, "vector=0 is no vector width", "1, 2, 4 or 8"),
    ("s [GRID,CTA_64]; vector=true;", OptionError, "is a whole number, not True", ""),
    ("s [GRID,CTA_64]; chunks=1;", UserError, "rows of 1024 elements on chip, but threads x chunks x vector are 256", "chunks=4 at least"),
    ("s [GRID,CTA_64]; ahead=true;", UserError, "reduced a turn ahead wait in a queue", "ahead=false"),
    ("s [GRID,CTA_64]; vector=4; lanes=2; vector=2;", UserError, "vector is given twice, as 2 too", "leave one out"),
    ("s [GRID,CTA_64]; lanes=0;", UserError, "lanes=0 is too small", "at least 1"),
])
def test_a_wrong_template_names_schedule_value_and_remedy(text: str, kind: type[CompilerError], message: str, hint: str) -> None:
    with pytest.raises(kind) as caught:
        by_hand(text)
    assert message in str(caught.value) and hint in str(caught.value)
    assert caught.value.where is not None and "<template>:1:" in str(caught.value.where)


TEN_COLUMNS = parse_graph("""graph @g(%x: f32[64, 10]) -> (f32[10]) {
  %s: f32[10] = reduce.sum [j] over [k < 64] { %x[k, j] }
  return %s
}""")


@pytest.mark.parametrize(("name", "text", "message", "hint"), [
    ("softmax", "s [GRID,CTA_64]; vector=4; chunks=3; on_chip=false;", "rows of 4096 elements, but threads x chunks x vector are 768",
     "chunks=16 at least"),
    ("10 columns", "s [GRID-CTA_4,CTA_64]; vector=8;", "10 columns are no whole vectors of 8", "vector=2"),
    ("transpose", "y [GRID,GRID-CTA_256]; read_vector=16;", "read_vector=16 does not fit how the values lie", "or a divisor"),
    ("transpose", "y [GRID,GRID-CTA_256]; depth=64;", "depth=64 does not fit", "or a divisor"),
    ("transpose", "y [GRID,GRID-CTA_256]; rows=3;", "no whole vectors", "powers of two"),
    ("transpose", "y [GRID,GRID-CTA_256]; depth=0;", "no runs of memory", ""),
    ("norm-backward", "a [GRID,CTA_256]; span=7;", "blocks of 7 rows each", "span="),
])
def test_walks_that_would_leave_elements_out_or_reach_beyond_are_refused(name: str, text: str, message: str, hint: str) -> None:
    program = tile_program(name, H200) if name in WORKLOADS else schedule_pattern(TEN_COLUMNS, ["s"], {}, H200)
    assert isinstance(program, TileProgram)
    with pytest.raises(UserError) as caught:
        by_hand(text, program)
    assert message in str(caught.value) and hint in str(caught.value)


@dataclass(frozen=True)
class Other:
    """A choice of no template."""

    num_threads: int = 32
    resident: int = 0
    streams_results: bool = False
    template: ClassVar[str] = "other"


def test_a_choice_of_no_template_reads_no_text() -> None:
    program = replace(softmax(), choice=Other())
    with pytest.raises(InternalError, match="no template is registered for Other"):
        by_hand("s [GRID,CTA_64];", program)


@pytest.mark.parametrize(("columns", "settings", "message"), [
    (40, "side=3;", "side=3 lanes are no part of a warp"),
    (40, "side=64;", "side=64 lanes are no part of a warp"),
    (36, "vector=8;", "36 elements are none of 8"),
])
def test_warps_across_two_axes_are_whole_ones(columns: int, settings: str, message: str) -> None:
    program = schedule_graph(kept_and_turned(2, 20, columns, "f16").graph, {}, H200)
    assert isinstance(program, TileProgram) and isinstance(program.choice, Pointwise) and program.choice.side == 16
    fewer = by_hand("y [GRID,GRID,GRID-CTA_64]; side=8;", program).choice
    assert isinstance(fewer, Pointwise) and (fewer.threads, fewer.side, fewer.across) == (64, 8, program.choice.across)
    with pytest.raises(UserError, match=message):
        by_hand(f"y [GRID,GRID,GRID-CTA_64]; {settings}", program)


def test_a_walk_along_memory_has_no_other_axis() -> None:
    program = schedule_graph(bias_gelu(64, 64).graph, {}, H200)
    assert isinstance(program, TileProgram)
    with pytest.raises(UserError, match="nothing that it touches runs along another axis"):
        by_hand("t [GRID,GRID-CTA_64]; side=16;", program)
