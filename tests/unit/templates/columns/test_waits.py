"""The price of columns whose threads wait for themselves: stages, batches, and operations on the results."""
from __future__ import annotations

import pytest

from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.text import parse_graph
from tilefuse.plan.price.cost import AnalyticCost
from tilefuse.target.device import H200
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.columns.waits import walk_cycles
from tilefuse.templates.pattern import schedule_graph

SUM = "  %s: f32[{0}] = reduce.sum [j] over [i < {1}] {{ %x[i, j] }}\n"


def price_us(columns: int, rows: int, lines: str, result: str) -> float:
    """Predicted time of reductions down columns. Units: microseconds."""
    text = f"graph @g(%x: f32[{rows}, {columns}]) -> (f32[{columns}]) {{\n{lines.format(columns, rows)}  return %{result}\n}}\n"
    program = schedule_graph(parse_graph(text), {}, H200)
    assert isinstance(program, TileProgram) and isinstance(program.choice, Columns), program
    return AnalyticCost(H200).cost(program).us


def test_every_stage_takes_its_own_round_trips() -> None:
    """One H200, a decode step's maximum, sum and mean by weights of 512 keys for 32 heads of 64: 14.4 us, where 3.1 were predicted."""
    program = schedule_graph(parse_graph("""graph @mean(%s: bf16[32, 512], %v: bf16[32, 512, 64]) -> (f32[32, 64]) {
      %m: f32[32, 64] = reduce.max [h, d] over [k < 512] { f32(%s[h, k]) }
      %e: f32[32, 64] = reduce.sum [h, d] over [k < 512] { exp(sub(f32(%s[h, k]), %m[h, d])) }
      %y: f32[32, 64] = reduce.sum [h, d] over [k < 512] { mul(div(exp(sub(f32(%s[h, k]), %m[h, d])), %e[h, d]), f32(%v[h, k, d])) }
      return %y
    }"""), {}, H200)
    assert isinstance(program, TileProgram) and isinstance(program.choice, Columns) and isinstance(program.internal, Domain)
    choice, parts = program.choice, AnalyticCost(H200).parts(program)
    assert not choice.on_chip and choice.split == 1
    batches = 512 // (choice.threads_y * choice.batch)
    assert batches > 1 and walk_cycles(program.internal, choice, H200) > 3 * batches * H200.fitted.stitch.cached_cycles
    assert parts.us > 2 * parts.moved_us and parts.us > 6.0


def test_blocks_of_many_waves_hide_each_others_waits() -> None:
    """What one wave waits for is no part of the time of large tensors: a sum of 256 MiB takes the time of its bytes."""
    large = price_us(4096, 16384, SUM, "s")
    assert large == pytest.approx(16384 * 4096 * 4 / H200.global_bytes_per_s * 1e6, rel=0.1)


def test_operations_on_results_come_behind_the_sum() -> None:
    """One H200, a sum of 100 x 256 and a step of Adam on it: 3.8 us, and 2.3 were predicted."""
    step = SUM + "  %y: f32[{0}] = map [j] {{ div(sqrt(add(mul(%s[j], %s[j]), 0.1:f32)), add(tanh(%s[j]), 2.0:f32)) }}\n"
    assert price_us(256, 100, step, "y") > price_us(256, 100, SUM, "s") + 0.1
