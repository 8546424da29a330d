"""Fitted numbers decide choices through the device's record, and a device with others is another device."""
from __future__ import annotations

from dataclasses import replace

from tilefuse.domain.tile import TileProgram
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200
from tilefuse.target.fitted.evidence import figures_of
from tilefuse.templates.pattern import schedule_pattern

OTHER = replace(H200, fitted=replace(H200.fitted, flat=replace(H200.fitted.flat, threads=256)))


def test_a_choice_reads_the_devices_own_figures() -> None:
    graph = parse_graph("""graph @g(%x: f32[64, 1024]) -> (f32[64, 1024]) {
  %y: f32[64, 1024] = map [i, j] { tanh(%x[i, j]) }
  return %y
}
""")
    made = [schedule_pattern(graph, [n.name for n in graph.nodes], {}, d) for d in (H200, OTHER)]
    assert [p.launch.num_threads for p in made if isinstance(p, TileProgram)] == [128, 256]


def test_devices_with_other_figures_share_no_judgement() -> None:
    """Judgements and programs on disk are found by the record's text."""
    assert H200 != OTHER and repr(H200) != repr(OTHER)


def test_figures_are_named_by_their_path() -> None:
    value_by_name = {f.name: f.value for f in figures_of(OTHER.fitted)}
    assert value_by_name["flat.threads"] == 256 and value_by_name["columns.round_trip_us"] == H200.fitted.columns.round_trip_us
