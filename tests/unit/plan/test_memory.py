"""Peak memory: of a choice of kernels, and the conditions that keep it below a ceiling."""
from __future__ import annotations

import random

import pytest

from tests.unit.plan.proposals import candidates_of
from tilefuse.ir.text import parse_graph
from tilefuse.plan.ilp import Column, IntegerProgram
from tilefuse.plan.memory import Life, PeakMemory, most_live, peak, stored_values

# Every value has 4096 bytes. Order: a b c d y.
GRAPH = """graph @g(%x: f32[32, 32], const %w: f32[32, 32]) -> (f32[32, 32]) {
  %a: f32[32, 32] = map [i, j] { add(%x[i, j], %x[j, i]) }
  %b: f32[32, 32] = library.matmul (%a, %w)
  %c: f32[32, 32] = map [i, j] { mul(%x[i, j], %x[j, i]) }
  %d: f32[32, 32] = library.matmul (%c, %w)
  %y: f32[32, 32] = map [i, j] { add(%b[i, j], %d[i, j]) }
  return %y
}"""


def test_values_live_from_writer_to_last_reader() -> None:
    units = candidates_of(parse_graph(GRAPH)).units
    stored = stored_values(units)
    assert [(v.name, v.num_bytes, v.writer, v.readers) for v in stored] == [
        ("a", 4096, 0, (1,)), ("b", 4096, 1, (4,)), ("c", 4096, 2, (3,)), ("d", 4096, 3, (4,))]
    found = peak(units, stored, [])
    assert found.num_bytes == 3 * 4096 and found.moment == 3 and {v.name for v in found.live} == {"b", "c", "d"}


def test_packing_the_first_maps_keeps_one_of_them_waiting() -> None:
    """a and c in one kernel: c lives while a is used."""
    units = candidates_of(parse_graph(GRAPH)).units
    stored = stored_values(units)
    assert peak(units, stored, [(0, 2)]).num_bytes == 3 * 4096
    memory = PeakMemory(units, [Column((0, 2), 1.0)], 4096)
    assert memory.change_bytes((0, 2), 1) == -4096, "a is written at the place of c, after moment 1"
    assert memory.change_bytes((3, 4), 3) == -4096, "d never leaves the kernel"


@pytest.mark.parametrize("seed", range(50))
def test_most_live_against_counting_at_every_step(seed: int) -> None:
    """Both ends of a life count; the first of several peaks is named."""
    draw = random.Random(seed)
    begins = [draw.randrange(20) for _ in range(draw.randrange(12))]
    lives = [Life(begin, begin + draw.randrange(6), draw.randrange(1, 4)) for begin in begins]
    counts = [sum(life.num_bytes for life in lives if life.written <= step <= life.freed) for step in range(26)]
    assert most_live(lives) == (max(counts), counts.index(max(counts)) if lives else 0), f"seed {seed}"


def test_a_value_inside_a_kernel_needs_no_memory() -> None:
    graph = parse_graph("""graph @g(%x: f32[32, 32]) -> (f32[32, 32]) {
      %a: f32[32, 32] = map [i, j] { exp(%x[i, j]) }
      %y: f32[32, 32] = map [i, j] { exp(%a[i, j]) }
      return %y
    }""")
    units = candidates_of(graph).units
    assert peak(units, stored_values(units), []).num_bytes == 4096
    assert peak(units, stored_values(units), [(0, 1)]).num_bytes == 0


@pytest.mark.parametrize(("ceiling", "taken"), [(1 << 30, ()), (4096, (0,))])
def test_a_kernel_that_saves_no_time_is_taken_where_it_saves_memory(ceiling: int, taken: tuple[int, ...]) -> None:
    """Two values live behind b; {b, c} keeps b on chip. Alone it would be slower than its parts."""
    graph = parse_graph("""graph @g(%x: f32[32, 32]) -> (f32[32, 32]) {
      %a: f32[32, 32] = map [i, j] { exp(%x[i, j]) }
      %b: f32[32, 32] = map [i, j] { exp(%a[i, j]) }
      %c: f32[32, 32] = map [i, j] { add(%a[i, j], %b[i, j]) }
      return %c
    }""")
    units = candidates_of(graph).units
    columns = [Column((1, 2), -1.0)]
    edges = [(a, b) for a, followers in units.contracted.successors.items() for b in followers]
    found = IntegerProgram(3, edges, columns, PeakMemory(units, columns, ceiling)).solve(10.0)
    assert found.taken == taken and found.objective_us == -1.0 * len(taken)
