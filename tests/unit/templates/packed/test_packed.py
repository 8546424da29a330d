"""Packing: what counts as independent, which parts share a body, the common number of threads, and what is refused."""
from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.templates.packed_graphs import side_by_side, total, update
from tests.unit.templates.pattern_graphs import column_sum, layer_norm, row_sum, softmax, transpose
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.domain import find_domain
from tilefuse.domain.parts import connected_parts, structure_of
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import axis
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.templates import schedule_pattern
from tilefuse.templates.flat.flat_form import FLAT, flat_form, flat_key
from tilefuse.templates.neighbours import common_threads, with_threads
from tilefuse.templates.packed.packed import MAX_OPERANDS, Packed
from tilefuse.templates.pattern import schedule_graph

LOOSE = """graph @loose(%s: f32[], %a: f32[8], %b: f32[5]) -> (f32[8], f32[5]) {
  %r: f32[] = map [] { mul(%s[], 3.0:f32) }
  %x: f32[8] = map [i] { mul(%a[i], %r[]) }
  %y: f32[5] = map [i] { mul(%b[i], %r[]) }
  return %x, %y
}"""


def pack(graph: Graph, device: DeviceSpec = H200) -> TileProgram | Rejected:
    return schedule_pattern(graph, [n.name for n in graph.nodes], {}, device, packing=True)


def packed(graph: Graph) -> Packed:
    """The packed choice. Fails where there is none."""
    found = pack(graph)
    assert isinstance(found, TileProgram), found
    assert isinstance(found.choice, Packed)
    return found.choice


def test_parts_are_what_no_edge_connects() -> None:
    graph = side_by_side([update(5), row_sum(3, 8), update(7)], shared=("rate",)).graph
    assert [[n.name for n in p.nodes] for p in connected_parts(graph)] == [["n_0", "q_0"], ["s_1"], ["n_2", "q_2"]]
    assert [p.results for p in connected_parts(graph)] == [("q_0", "n_0"), ("s_1",), ("q_2", "n_2")]


def test_internal_maps_connect_unless_they_are_recomputed() -> None:
    graph = parse_graph(LOOSE)
    assert len(connected_parts(graph)) == 1
    assert [[n.name for n in p.nodes] for p in connected_parts(graph, recompute=True)] == [["r", "x"], ["r", "y"]]
    written = replace(graph, results=("r", "x", "y"))
    assert len(connected_parts(written, recompute=True)) == 1, "a value that is written has one writer"


def test_parts_that_share_an_internal_map_are_packed() -> None:
    """One walk cannot hold two lengths; as two parts both compute the scalar for themselves."""
    choice = packed(parse_graph(LOOSE))
    assert [[p.nodes for p in g.parts] for g in choice.groups] == [[("r", "x"), ("r", "y")]]


def test_equal_structure_means_equal_up_to_names() -> None:
    one, two, other = connected_parts(side_by_side([update(5), update(5), update(6)]).graph)
    assert structure_of(one, {}) == structure_of(two, {}) != structure_of(other, {})
    assert structure_of(one, {one.inputs[0].name: (2,)}) != structure_of(two, {})


def domain_of(text: str) -> Domain:
    found = find_domain(parse_graph(text), {})
    assert isinstance(found, Domain)
    return found


def test_flat_form_has_one_axis_and_forgets_shapes() -> None:
    forms = []
    for part in connected_parts(side_by_side([update(3, 5), update(64), update(2, 2, 2)]).graph):
        found = find_domain(part, {})
        assert isinstance(found, Domain)
        flat = flat_form(found, found.kept + found.reduced)
        assert flat is not None
        assert {offset for _, _, offset in flat.outputs} == {axis(FLAT)}
        forms.append((flat.extents[FLAT], flat_key(flat, part)))
    assert [size for size, _ in forms] == [15, 64, 8]
    assert len({key for _, key in forms}) == 1


@pytest.mark.parametrize("text", [
    "graph @g(%x: f32[3, 5], %b: f32[5]) -> (f32[3, 5]) { %y: f32[3, 5] = map [i, j] { add(%x[i, j], %b[j]) } return %y }",
    "graph @g(%x: f32[5, 3]) -> (f32[3, 5]) { %y: f32[3, 5] = map [i, j] { mul(%x[j, i], 2.0:f32) } return %y }",
    "graph @g(%x: f32[3, 5]) -> (f32[3]) { %y: f32[3] = reduce.sum [i] over [k < 5] { %x[i, k] } return %y }",
])
def test_what_depends_on_more_than_the_position_has_no_flat_form(text: str) -> None:
    graph = parse_graph(text.replace("{ %y", "{\n  %y").replace(" return %y }", "\n  return %y\n}"))
    found = find_domain(graph, {})
    assert isinstance(found, Domain)
    assert flat_form(found, found.kept + found.reduced) is None


def test_alike_parts_are_one_group_and_larger_groups_come_first() -> None:
    choice = packed(side_by_side([row_sum(4, 64), update(1000), update(30, 3), row_sum(4, 64)], shared=("rate",)).graph)
    assert [(g.any_size, len(g.parts)) for g in choice.groups] == [(True, 2), (False, 2)]
    assert [p.num_elements for p in choice.groups[0].parts] == [1000, 90]


def test_all_parts_have_the_same_number_of_threads() -> None:
    """Also where each alone has another: a walk of 128, tiles of 512, columns of 256."""
    graph = side_by_side([update(4096), transpose(256, 256), column_sum(512, 256), row_sum(64, 2048)]).graph
    alone = set()
    for part in connected_parts(graph):
        program = schedule_graph(part, {}, H200)
        assert isinstance(program, TileProgram)
        alone.add(program.choice.num_threads)
    assert len(alone) > 1
    choice = packed(graph)
    assert {g.program.choice.num_threads for g in choice.groups} == {choice.threads}


@pytest.mark.parametrize("threads", [64, 128, 256, 512])
def test_a_changed_schedule_still_covers_its_rows(threads: int) -> None:
    for pattern in (row_sum(40, 3000), softmax(9, 1000), layer_norm(33, 768), column_sum(700, 48)):
        program = schedule_graph(pattern.graph, {}, H200)
        assert isinstance(program, TileProgram)
        assert isinstance(program.internal, Domain)
        wanted = with_threads(program, threads, H200)
        if wanted is None:
            continue
        again = schedule_graph(pattern.graph, {}, H200, wanted)
        assert isinstance(again, TileProgram)
        assert again.launch.num_threads == threads


def test_no_common_number_of_threads_is_a_reason() -> None:
    """Columns held on chip by 1024 threads cannot have fewer; a host schedule has one."""
    many, one = schedule_graph(softmax(9, 4096).graph, {}, H200), schedule_graph(column_sum(64, 8).graph, {}, H200)
    assert isinstance(many, TileProgram)
    assert isinstance(one, TileProgram)
    odd = replace(many, choice=replace(many.choice, threads=480, rows=1))  # type: ignore[type-var]
    found = common_threads((odd, replace(one, choice=replace(one.choice, threads_x=7, threads_y=1))), H200)  # type: ignore[type-var]
    assert isinstance(found, Rejected)
    assert found.reason is Reason.REGISTERS


def test_clusters_and_persistent_grids_are_not_packed() -> None:
    found = pack(side_by_side([softmax(512, 131072, "f16"), update(100)]).graph)
    assert isinstance(found, Rejected)
    assert "clusters" in found.detail


def test_more_tensors_than_a_launch_can_take_are_refused() -> None:
    count = MAX_OPERANDS // 6 + 1
    found = pack(side_by_side([update(3) for _ in range(count)]).graph)
    assert isinstance(found, Rejected)
    assert found.reason is Reason.TOO_MANY_OPERANDS


def test_one_part_is_scheduled_as_ever() -> None:
    found = pack(update(300).graph)
    assert isinstance(found, TileProgram)
    assert found.template == "pointwise"


def test_empty_parts_get_no_blocks_and_sums_over_nothing_do() -> None:
    choice = packed(side_by_side([update(0), update(12), update(4), total(0)]).graph)
    assert sorted(len(p.nodes) for g in choice.groups for p in g.parts) == [1, 2, 2]


def test_a_packed_program_accounts_for_all_its_parts() -> None:
    patterns = [update(1000), row_sum(16, 256), update(64, 3)]
    whole = pack(side_by_side(patterns).graph)
    assert isinstance(whole, TileProgram)
    alone = [schedule_graph(p.graph, {}, H200) for p in patterns]
    programs = [p for p in alone if isinstance(p, TileProgram)]
    assert whole.bytes_read == sum(p.bytes_read for p in programs)
    assert whole.bytes_written == sum(p.bytes_written for p in programs)
    assert whole.flops == sum(p.flops for p in programs)
    assert {(e.producer, e.user) for e in whole.levels} == {("n_0", "q_0"), ("n_2", "q_2")}
    assert isinstance(whole.choice, Packed)
    assert whole.launch.num_blocks == sum(g.num_blocks for g in whole.choice.groups)


def test_readers_of_one_input_stay_one_part() -> None:
    """Two results of one tensor in one walk read it once; a part beside them does not change that."""
    graph = parse_graph("""graph @siblings(%a: f32[64], %b: f32[9]) -> (f32[64], f32[64], f32[9]) {
      %x: f32[64] = map [i] { tanh(%a[i]) }
      %y: f32[64] = map [i] { exp(%a[i]) }
      %z: f32[9] = map [i] { exp(%b[i]) }
      return %x, %y, %z
    }""")
    found = packed(graph)
    assert sorted(p.nodes for g in found.groups for p in g.parts) == [("x", "y"), ("z",)]
