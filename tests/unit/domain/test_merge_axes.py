"""Axes that run on into each other are one, and only those."""
from __future__ import annotations

from tilefuse.domain.domain import find_domain
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200
from tilefuse.templates.pattern import schedule_graph

CHANNEL_SUMS = """graph @g(%x: f16[6, 64, 28, 28]) -> (f32[64]) {
  %s: f32[64] = reduce.sum [c] over [n < 6, h < 28, w < 28] { f32(%x[n, c, h, w]) }
  return %s
}"""


def domain_of(text: str, layouts: dict[str, tuple[int, ...]] | None = None) -> Domain:
    found = find_domain(parse_graph(text), layouts or {})
    assert isinstance(found, Domain)
    return found


def extents(domain: Domain) -> list[int]:
    return [domain.extents[a] for a in domain.reduced]


def test_neighbours_in_memory_become_one_axis() -> None:
    assert extents(domain_of(CHANNEL_SUMS)) == [6, 784]


def test_channels_last_rows_become_one_axis() -> None:
    assert extents(domain_of(CHANNEL_SUMS, {"x": (28 * 28 * 64, 1, 28 * 64, 64)})) == [6 * 784]


def test_padded_lines_stay_apart() -> None:
    assert extents(domain_of(CHANNEL_SUMS, {"x": (64 * 28 * 32, 28 * 32, 32, 1)})) == [6, 28, 28]


def test_a_subscript_that_tells_the_axes_apart_keeps_them_so() -> None:
    text = """graph @g(%x: f32[8, 4, 6], %b: f32[6]) -> (f32[8]) {
      %s: f32[8] = reduce.sum [i] over [h < 4, w < 6] { mul(%x[i, h, w], %b[w]) }
      return %s
    }"""
    assert extents(domain_of(text)) == [4, 6]
    whole = text.replace("%b: f32[6]", "%b: f32[4, 6]").replace("%b[w]", "%b[h, w]")
    assert extents(domain_of(whole)) == [24]


def test_positions_of_a_maximum_count_in_the_order_of_the_reduction() -> None:
    ordered = """graph @g(%x: f32[8, 4, 6]) -> (i64[8]) {
      %p: i64[8] = reduce.argmax [i] over [h < 4, w < 6] { %x[i, h, w] }
      return %p
    }"""
    assert extents(domain_of(ordered)) == [24]
    assert sorted(extents(domain_of(ordered.replace("over [h < 4, w < 6]", "over [w < 6, h < 4]")))) == [4, 6]


def test_vectors_grow_with_the_piece() -> None:
    tile = schedule_graph(parse_graph(CHANNEL_SUMS), {}, H200)
    assert isinstance(tile, TileProgram) and tile.choice.vector == 8, "28 would allow 4"
