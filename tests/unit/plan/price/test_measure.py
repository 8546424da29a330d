"""Costs by execution: the noise rule, which patterns are doubtful, the timed check and what the record learns."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.unit.plan.graphs import softmax
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.planning import plan_on_device
from tilefuse.ir.text import parse_graph, print_graph
from tilefuse.plan.pattern import Plan, PlannedKernel
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.price.cost import AnalyticCost
from tilefuse.plan.price.lone_call import LoneCall
from tilefuse.plan.price.measure import (
    MeasuredCost,
    Record,
    Timing,
    is_complex,
    is_faster,
    key_of,
    timed_check,
    timing_of,
    total,
)
from tilefuse.plan.price.products import library_product_us
from tilefuse.target.device import H200


class Memory:
    """Records that forget at the end of the test."""

    def __init__(self) -> None:
        self.by_key: dict[str, Record] = {}

    def find(self, key: str) -> Record | None:
        return self.by_key.get(key)

    def keep(self, record: Record) -> None:
        self.by_key[record.key] = record

    def all(self) -> Sequence[Record]:
        return list(self.by_key.values())


class Stopwatch:
    """Measures by a rule: so many microseconds for a kernel of so many nodes."""

    def __init__(self, us_by_nodes: dict[int, float | Rejected], spread_us: float = 0.1) -> None:
        self.us_by_nodes, self.spread_us = us_by_nodes, spread_us
        self.measured: list[int] = []
        self.calls: list[LoneCall] = []
        self.call_us = 1.0
        self.prepared = 0

    def prepare(self, programs: Sequence[TileProgram]) -> None:
        self.prepared += len(programs)

    def measure(self, program: TileProgram) -> Timing | Rejected:
        count = len(program.graph.nodes)
        self.measured.append(count)
        found = self.us_by_nodes.get(count, 1.0)
        return found if isinstance(found, Rejected) else Timing(found, self.spread_us, 11)

    def measure_call(self, call: LoneCall) -> Timing | Rejected:
        self.calls.append(call)
        return Timing(self.call_us, self.spread_us, 11)


def planned(stopwatch: Stopwatch, records: Memory, clock: Sequence[float] = ()):  # type: ignore[no-untyped-def]
    ticks = iter(clock)
    return plan_on_device(softmax(), {}, H200, Options(), result_layouts={}, layouts={}, measurer=stopwatch, records=records,
                          clock=lambda: next(ticks, 0.0))


def test_a_difference_within_the_spread_is_a_tie() -> None:
    assert timing_of([5.0, 1.0, 2.0, 3.0, 4.0]) == Timing(3.0, 2.0, 5)
    assert not is_faster(Timing(9.0, 2.0, 5), Timing(10.0, 0.1, 5)) and not is_faster(Timing(10.0, 0.1, 5), Timing(9.0, 2.0, 5))
    assert is_faster(Timing(9.0, 0.5, 5), Timing(10.0, 0.1, 5))
    assert total([Timing(3.0, 3.0, 5), Timing(4.0, 4.0, 7)]) == Timing(7.0, 5.0, 5)


def test_a_fused_kernel_that_is_faster_stays_and_is_measured_once() -> None:
    stopwatch, records = Stopwatch({4: 1.5}), Memory()
    made = planned(stopwatch, records)
    assert len(made.kernels) == 1 and made.notes == ()
    assert stopwatch.measured.count(4) == 1 and stopwatch.prepared == 5
    again = Stopwatch({})
    assert planned(again, records).kernels[0].cost.source == "measurement"
    assert again.measured == [], "the record remembers"


def test_a_fused_kernel_slower_than_its_parts_is_replaced_and_the_record_learns_it() -> None:
    """Whatever holds more than one node takes 50 us, every node alone 1 us."""
    slow: dict[int, float | Rejected] = {2: 50.0, 3: 50.0, 4: 50.0}
    records = Memory()
    made = planned(Stopwatch(slow), records)
    assert [len(k.pattern.nodes) for k in made.kernels] == [1, 1, 1, 1]
    assert any("50.00 us, 4 kernels 4.00 us" in note and note.startswith("replaced") for note in made.notes)
    assert {r.timing.median_us for r in records.by_key.values()} == {1.0, 50.0}
    assert all(r.predicted_us > 0 for r in records.by_key.values())


def test_a_tie_keeps_the_fused_kernel() -> None:
    made = planned(Stopwatch({2: 9.0, 3: 9.0, 4: 4.5}, spread_us=1.0), Memory())
    assert len(made.kernels) == 1
    assert made.objective_us > 0 and all("2 kernels" in n or "3 kernels" in n for n in made.notes)


def test_predictions_are_compared_with_measurements_at_the_records_scale() -> None:
    """A device ten times slower than its record: what was measured must not look worse than what was not."""
    records, stopwatch = Memory(), Stopwatch({1: 8.0, 2: 8.1, 3: 8.1, 4: 8.2})
    assert len(planned(stopwatch, records).kernels) == 1
    again = Stopwatch({})
    assert len(planned(again, records).kernels) == 1 and again.measured == []


def test_a_kernel_that_does_not_run_is_replaced() -> None:
    bad = Rejected(Reason.DOES_NOT_COMPILE, "error: 47")
    made = planned(Stopwatch({2: bad, 3: bad, 4: bad}), Memory())
    assert [len(k.pattern.nodes) for k in made.kernels] == [1, 1, 1, 1]


def test_when_the_time_is_over_nothing_more_is_measured() -> None:
    stopwatch = Stopwatch({4: 50.0})
    made = planned(stopwatch, Memory(), clock=[0.0, 1e9, 1e9, 1e9])
    assert stopwatch.measured == [] and len(made.kernels) == 1


def test_the_check_says_what_it_found() -> None:
    model, stopwatch = MeasuredCost(AnalyticCost(H200), Memory()), Stopwatch({4: 9.0})
    made = planned(Stopwatch({4: 1.0}), Memory())
    parts = [k.program for k in plan_on_device(softmax(), {}, H200, Options(fuse=False), result_layouts={}, layouts={}).kernels]
    found = timed_check(made, model, stopwatch, lambda _: parts, lambda: False)
    assert [(s.fused.median_us, s.apart.median_us) for s in found] == [(9.0, 4.0)]
    model.refuse(parts[0])
    assert model.cost(parts[0]).us == math.inf and model.knows(parts[0]) and model.limit_us(parts[0]) > 0


def test_complex_patterns_are_those_that_predictions_are_bad_at() -> None:
    rows_and_columns = parse_graph("""graph @g(%x: f32[64, 32]) -> (f32[64], f32[32]) {
      %r: f32[64] = reduce.sum [i] over [k < 32] { %x[i, k] }
      %c: f32[32] = reduce.sum [j] over [k < 64] { %x[k, j] }
      return %r, %c
    }""")
    product_and_rows = parse_graph("""graph @g(%x: f32[64, 32], %w: f32[32, 16]) -> (f32[64]) {
      %p: f32[64, 16] = reduce.sum [i, j] over [k < 32] { mul(%x[i, k], %w[k, j]) }
      %r: f32[64] = reduce.max [i] over [k < 16] { %p[i, k] }
      return %r
    }""")
    assert is_complex(rows_and_columns) and is_complex(product_and_rows)
    assert not is_complex(softmax())
    # Products of planned graphs are library operators that a kernel holds.
    assert is_complex(PRODUCT) and not is_complex(replace(PRODUCT, nodes=PRODUCT.nodes[:1], results=("p",)))


PRODUCT = parse_graph("""graph @g(%x: f32[4096, 64], %w: f32[64, 128]) -> (f32[4096, 128]) {
  %p: f32[4096, 128] = library.matmul (%x, %w) {precision = "default", transpose_a = false, transpose_b = false}
  %m: f32[4096] = reduce.max [i] over [k < 128] { %p[i, k] }
  %y: f32[4096, 128] = map [i, j] { exp(sub(%p[i, j], %m[i])) }
  return %y
}""")


def planned_product(stopwatch: Stopwatch, records: Memory) -> Plan:
    return plan_on_device(PRODUCT, {}, H200, Options(), result_layouts={}, layouts={}, measurer=stopwatch, records=records,
                          clock=lambda: 0.0)


def test_kernels_that_hold_products_are_compared_with_the_librarys_calls() -> None:
    """The product in a kernel of 50 us, the call in 1 us: the call comes back, and its record is that of a call, with its prediction."""
    assert not planned_product(Stopwatch({3: 0.5}), Memory()).library_calls, "taken where it is faster"
    records, stopwatch = Memory(), Stopwatch({2: 3.0, 3: 50.0})
    made = planned_product(stopwatch, records)
    assert [c.operator for c in made.library_calls] == ["matmul"] and any(n.startswith("replaced after timing") for n in made.notes)
    predicted_us = library_product_us(PRODUCT.nodes[0], PRODUCT, H200)
    assert len(stopwatch.calls) == 1 and [r.predicted_us for r in records.by_key.values() if r.is_call] == [predicted_us]
    dear = Stopwatch({2: 3.0, 3: 50.0})
    dear.call_us = 90.0
    assert not planned_product(dear, Memory()).library_calls, "a call of 90 us is no way out"


def test_a_call_is_known_by_its_operator_types_and_layouts() -> None:
    def key(name: str, layouts: Mapping[str, tuple[int, ...]]) -> str:
        graph = replace(PRODUCT, nodes=PRODUCT.nodes[:1], results=("p",))
        if name:
            graph = parse_graph(print_graph(graph).replace("%p", f"%{name}").replace("%x", "%other"))
        return key_of(LoneCall(graph, layouts))

    assert key("", {}) == key("q", {}) != key("", {"x": (1, 4096)})


def test_doubtful_patterns_come_first() -> None:
    """A product with a reduction is timed before a longer chain of maps."""
    text = print_graph(PRODUCT).replace("%w: f32[64, 128])", "%w: f32[64, 128], %z: f32[8388608])")
    text = text.replace("-> (f32[4096, 128])", "-> (f32[4096, 128], f32[8388608])").replace("  return %y", """
  %b: f32[8388608] = map [i] { exp(%z[i]) }
  %c: f32[8388608] = map [i] { tanh(%b[i]) }
  return %y, %c""")
    plan = plan_graph(parse_graph(text), {}, H200, Options())
    order: list[PlannedKernel] = []

    def parts(kernel: PlannedKernel) -> list[TileProgram | LoneCall | Rejected]:
        order.append(kernel)
        return []

    timed_check(plan, MeasuredCost(AnalyticCost(H200), Memory()), Stopwatch({}), parts, lambda: False)
    assert ["p" in k.pattern.nodes for k in order] == [True, False] and order[0].cost.us < order[1].cost.us


def test_equal_kernels_have_equal_keys_and_others_do_not() -> None:
    made = planned(Stopwatch({}), Memory())
    program = made.kernels[0].program
    parts = plan_on_device(softmax(), {}, H200, Options(fuse=False), result_layouts={}, layouts={}).kernels
    assert len({key_of(program), *(key_of(k.program) for k in parts)}) == 5
    assert key_of(program) == key_of(planned(Stopwatch({}), Memory()).kernels[0].program)
