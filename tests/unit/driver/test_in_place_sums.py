"""Updates by kernels that walk rows or columns once: a bias that is added to every element, and changed by the sum of their gradients."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.unit.templates.composed_cases import columns, rows
from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tilefuse.base.candidate import Rejected
from tilefuse.base.options import Options
from tilefuse.domain.domain import find_domain
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Choice
from tilefuse.driver.compile import compile_graph, generate
from tilefuse.driver.lowering.in_place import alias_buffers
from tilefuse.driver.lowering.in_place_walks import Walks
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph
from tilefuse.plan.pattern import Cost, Pattern, PlannedKernel
from tilefuse.runtime.spec import CopyStep
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose
from tilefuse.templates.pattern import schedule_graph

# Rows: a channel's elements lie one after the other. The bias decides which elements count, the square and the mean are slots.
BIAS = """graph @bias(%x: f32[6, 700], %g: f32[6, 700], %b: f32[6], %m: f32[6]) -> (f32[6, 700]) {
  %a: f32[6, 700] = map [c, k] { add(%x[c, k], %b[c]) }
  %d: f32[6, 700] = map [c, k] { select(le(%a[c, k], 0.0:f32), 0.0:f32, %g[c, k]) }
  %s: f32[6] = reduce.sum [c] over [k < 700] { %d[c, k] }
  %m1: f32[6] = map [c] { add(%m[c], mul(%s[c], %s[c])) }
  %b1: f32[6] = map [c] { sub(%b[c], %m1[c]) }
  update %b = %b1
  update %m = %m1
  return %d
}"""
DOWN = """graph @down(%x: f32[300, 44], %g: f32[300, 44], %b: f32[44], %m: f32[44]) -> (f32[300, 44]) {
  %a: f32[300, 44] = map [k, c] { add(%x[k, c], %b[c]) }
  %d: f32[300, 44] = map [k, c] { select(le(%a[k, c], 0.0:f32), 0.0:f32, %g[k, c]) }
  %s: f32[44] = reduce.sum [c] over [k < 300] { %d[k, c] }
  %m1: f32[44] = map [c] { add(%m[c], mul(%s[c], %s[c])) }
  %b1: f32[44] = map [c] { sub(%b[c], %m1[c]) }
  update %b = %b1
  update %m = %m1
  return %d
}"""
# The elements are walked again when the sum is known: by then others may have updated.
AGAIN = BIAS.replace("return %d", "return %y").replace(
    "%m1: f32[6] =", "%y: f32[6, 700] = map [c, k] { mul(%a[c, k], %s[c]) }\n  %m1: f32[6] =")
CASES: dict[str, tuple[str, Callable[[Domain], Choice]]] = {
    "split": (BIAS, rows(4, 64, 1, split=3, on_chip=False, lanes=4, batch=1)),
    "block": (BIAS, rows(4, 64, 3, on_chip=False, lanes=4, batch=1)),
    "rows-of-blocks": (BIAS, rows(4, 64, 3, rows=3, on_chip=False, lanes=4, batch=1)),
    "on-chip": (BIAS.replace("-> (f32[6, 700])", "-> ()").replace("return %d", "return"), rows(4, 64, 3)),
    "columns": (DOWN, columns(4, 11, 8, 38, batch=4)),
    "one-tile": (DOWN, columns(4, 16, 8, 38, batch=4)),
    "split-columns": (DOWN, columns(4, 11, 8, 10, split=4, batch=4)),
}


def kernel_of(text: str, choice: Callable[[Domain], Choice] | None) -> PlannedKernel:
    """All nodes of a graph as one kernel."""
    graph = parse_graph(text)
    pattern = Pattern(tuple(n.name for n in graph.nodes), tuple(dict.fromkeys((*graph.results, *(v for _, v in graph.updates)))))
    own = pattern.graph(graph)
    domain = find_domain(own, {})
    assert isinstance(domain, Domain)
    program = schedule_graph(own, {}, H200, choice(domain) if choice else None)
    assert not isinstance(program, Rejected), program
    names = (*(i.name for i in graph.inputs), *pattern.written)
    return PlannedKernel("k0", pattern, program, tuple((v, v) for v in names), "text", Cost(0.0, "launch"), 0.0)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", list(CASES))
def test_a_bias_is_updated_where_it_lies(name: str, tmp_path: Path, seed: int = 3) -> None:
    """Whole numbers, so that sums are exact; the checking mode finds elements that are read when others have overwritten them."""
    text, choice = CASES[name]
    graph, planned = parse_graph(text), kernel_of(text, choice)
    assert all(Walks(graph).may_overwrite(planned, value, target) for target, value in graph.updates)
    kernel = compose(planned.program, H200)
    buffer_of = {b.origin: b.name for b in kernel.parameters if b.origin}
    kernel = alias_buffers(kernel, {buffer_of[value]: buffer_of[target] for target, value in graph.updates})
    draw = np.random.default_rng(seed)
    given = {i.name: draw.integers(-3, 4, i.type.shape).astype(np.float32) for i in graph.inputs}
    wanted = dict(zip(planned.pattern.written, interpret(planned.pattern.graph(graph), given), strict=True))
    library = build_together([(kernel, True)], tmp_path, CHECKED_FLAGS)
    memory, status, report = call(getattr(library, f"{kernel.name}_0"), kernel, {buffer_of[n]: a.ravel().copy() for n, a in given.items()})
    assert status == 0, report
    lies_in = {value: target for target, value in graph.updates}
    for value, expected in wanted.items():
        assert np.array_equal(memory[buffer_of[lies_in.get(value, value)]].reshape(expected.shape), expected), f"%{value}, seed {seed}"


def test_elements_that_are_walked_again_keep_what_they_read() -> None:
    """Also without a second walk: where elements on chip are written last, where a warp alone has nothing that all threads wait at, and
    where threads without columns of their own read another block's."""
    graph = parse_graph(AGAIN)
    assert not Walks(graph).may_overwrite(kernel_of(AGAIN, rows(4, 64, 3)), "b1", "b")
    assert Walks(graph).may_overwrite(kernel_of(AGAIN, rows(4, 64, 3)), "m1", "m")
    assert not Walks(parse_graph(BIAS)).may_overwrite(kernel_of(BIAS, rows(4, 32, 6, on_chip=False, lanes=4, batch=1)), "b1", "b")
    assert not Walks(parse_graph(BIAS)).may_overwrite(kernel_of(BIAS, rows(4, 64, 3)), "b1", "b")
    assert not Walks(parse_graph(DOWN)).may_overwrite(kernel_of(DOWN, columns(4, 4, 8, 38, batch=4)), "b1", "b")


def test_tiles_of_columns_that_have_a_vector_in_common_overwrite_nothing() -> None:
    """Rows that begin between vectors: a tile reads columns that the next one updates."""
    text = """graph @middle(%x: f32[4, 40, 35], %b: f32[4, 35]) -> () {
      %a: f32[4, 40, 35] = map [i, k, c] { add(%x[i, k, c], %b[i, c]) }
      %s: f32[4, 35] = reduce.sum [i, c] over [k < 40] { %a[i, k, c] }
      %b1: f32[4, 35] = map [i, c] { sub(%b[i, c], %s[i, c]) }
      update %b = %b1
      return
    }"""
    graph = parse_graph(text)
    assert not Walks(graph).may_overwrite(kernel_of(text, columns(4, 5, 8, 5, batch=5)), "b1", "b")
    assert Walks(graph).may_overwrite(kernel_of(text, columns(1, 20, 8, 5, batch=5)), "b1", "b")


@pytest.mark.parametrize("text", (BIAS.replace("700", "70000"), DOWN.replace("300", "30000").replace("44", "64")))
def test_a_bias_needs_no_copy(text: str) -> None:
    """As the planner makes it for a device."""
    spec = generate(parse_graph(text), constants={}, device=H200, options=Options()).spec
    assert not any(isinstance(s, CopyStep) for s in spec.steps)


@pytest.mark.parametrize(("shape", "index"), (("6, 999", "i, k"), ("999, 6", "k, i")))
def test_results_are_computed_before_one_overwrites_what_another_needs(shape: str, index: str) -> None:
    """The sum itself takes the old value's place, and another result still needs that."""
    graph = parse_graph(f"""graph @b(%p: f32[6], %g: f32[{shape}]) -> (f32[6]) {{
      %n: f32[6] = reduce.sum [i] over [k < 999] {{ %g[{index}] }}
      %r: f32[6] = map [i] {{ add(%p[i], %n[i]) }}
      update %p = %n
      return %r
    }}""")
    p = torch.arange(6.0)
    r, = compile_graph(graph, constants={}, device="host", options=Options())(p, torch.ones([int(n) for n in shape.split(",")]))
    assert torch.equal(p, torch.full((6,), 999.0)) and torch.equal(r, torch.arange(6.0) + 999)
