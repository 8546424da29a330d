"""The common chooser: every registered template is asked, in order of priority; equal ones are compared by predicted time."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from tests.unit.templates.pattern_graphs import softmax
from tests.unit.templates.staged.pipelined.product_graphs import plain
from tests.unit.templates.stitched_graphs import attention
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import F16
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200
from tilefuse.templates.choose import choose_program
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.flat.template import FlatTemplate
from tilefuse.templates.pattern import schedule_graph
from tilefuse.templates.registry import kernel_template, registered
from tilefuse.templates.request import Request
from tilefuse.templates.staged.online.record import Online
from tilefuse.templates.staged.stitched.choose import Search
from tilefuse.templates.staged.walked.record import PipelinedWalk

MAP = parse_graph("graph @g(%x: f32[64, 96]) -> (f32[64, 96]) {\n  %y: f32[64, 96] = map [i, j] { exp(%x[i, j]) }\n  return %y\n}")


@dataclass(frozen=True, slots=True)
class Mine(Pointwise):
    """A record of its own."""

    template: ClassVar[str] = "mine"


class MineTemplate(FlatTemplate):
    """A template added from outside, which answers as it is told."""

    record = Mine

    def __init__(self, priority: int, answer: Callable[[Request], TileProgram | Rejected]) -> None:
        self.answer = answer
        self._priority = priority

    @property
    def priority(self) -> int:
        """As given."""
        return self._priority

    def propose(self, request: Request) -> TileProgram | Rejected:
        """As given."""
        return self.answer(request)


def program_of(share: float) -> Callable[[Request], TileProgram | Rejected]:
    """An answer: the flat walk of the request, with another record and that share of its operations."""
    def answer(request: Request) -> TileProgram | Rejected:
        flat = FlatTemplate().propose(request)
        if isinstance(flat, Rejected):
            return flat
        assert isinstance(flat.choice, Pointwise)
        choice = flat.choice
        return replace(flat, choice=Mine(choice.order, choice.vector, choice.threads, choice.steps, choice.unrolled),
                       flops=int(share * flat.flops))
    return answer


def chosen(request: Request) -> str:
    """Name of the template that takes a request."""
    program = choose_program(request)
    assert isinstance(program, TileProgram), program
    return program.template


def test_a_lower_priority_number_is_asked_first() -> None:
    """A template from outside takes patterns before the flat walk does, or after it and so never."""
    request = Request(MAP, {}, H200)
    with registered(MineTemplate(0, program_of(2.0))):
        assert chosen(request) == "mine"
    with registered(MineTemplate(3, program_of(0.0))):
        assert chosen(request) == "pointwise"
    assert chosen(request) == "pointwise"


def test_templates_of_one_priority_are_compared_by_price() -> None:
    """The cheaper program is taken, and of equal ones the first registered."""
    request = Request(MAP, {}, H200)
    priority = kernel_template(Pointwise(("i",), 1, 32, 1, True)).priority
    for share, name in ((0.0, "mine"), (1.0, "pointwise"), (1000.0, "pointwise")):
        with registered(MineTemplate(priority, program_of(share))):
            assert chosen(request) == name, share


def test_a_packing_request_asks_templates_that_pack_only() -> None:
    """Other templates are asked for each part, and are told that it is one."""
    asked: list[Request] = []

    def answer(request: Request) -> Rejected:
        asked.append(request)
        return Rejected(Reason.OTHER_TEMPLATE, "never mine")

    with registered(MineTemplate(0, answer)):
        assert chosen(Request(MAP, {}, H200, packing=True)) == "pointwise"
    assert [(r.packing, r.is_part) for r in asked] == [(False, True)]


def test_the_refusal_of_the_templates_own_kind_is_told() -> None:
    """Templates of another kind say so, and their answer is nobody's reason."""
    long_rows = softmax(2, 1 << 22).graph
    refused = schedule_graph(long_rows, {}, H200)
    assert isinstance(refused, Rejected) and refused.reason is Reason.NEEDS_GRID_SYNC, refused
    with registered(MineTemplate(0, lambda request: Rejected(Reason.OTHER_TEMPLATE, "never mine"))):
        assert schedule_graph(long_rows, {}, H200) == refused
    with registered(MineTemplate(0, lambda request: Rejected(Reason.REGISTERS, "mine, and too large"))):
        assert schedule_graph(long_rows, {}, H200) == Rejected(Reason.REGISTERS, "mine, and too large")


@pytest.mark.parametrize("heads", [2, 16, 96])
def test_few_blocks_of_stages_are_compared_by_their_stages(heads: int) -> None:
    """64 queries a head: a walk of 64 rows by one warpgroup; others would have no rows."""
    scores, out = f"f16[{heads}, 64, 1024]", f"f16[{heads}, 64, 64]"
    graph = parse_graph(f"""graph @g(%q: {out}, %k: f16[{heads}, 1024, 64], %v: f16[{heads}, 1024, 64]) -> ({out}) {{
      %s: {scores} = library.matmul (%q, %k) {{precision = "default", transpose_a = false, transpose_b = true}}
      %m: f32[{heads}, 64] = reduce.max [i, j] over [l < 1024] {{ f32(%s[i, j, l]) }}
      %e: f32[{heads}, 64, 1024] = map [i, j, l] {{ exp(sub(f32(%s[i, j, l]), %m[i, j])) }}
      %z: f32[{heads}, 64] = reduce.sum [i, j] over [l < 1024] {{ %e[i, j, l] }}
      %p: {scores} = map [i, j, l] {{ f16(div(%e[i, j, l], %z[i, j])) }}
      %o: {out} = library.matmul (%p, %v) {{precision = "default", transpose_a = false, transpose_b = false}}
      return %o
    }}""")
    program = choose_program(Request(graph, {}, H200))
    # One warpgroup alone hides little: the online kernel may be the cheaper walk.
    assert isinstance(program, TileProgram) and isinstance(program.choice, PipelinedWalk | Online)
    assert program.choice.rows == 64


@pytest.mark.parametrize("name", ["walk", "product"])
def test_prices_of_other_templates_change_no_choice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that leaves out tiles which cost more than another template's program gives the same program, and prices fewer tiles."""
    graph = attention(64, 1024, 64, F16) if name == "walk" else plain(4096, 4096, 256)
    counts: list[int] = []
    priced = Search.priced

    def counted(self: Search, *arguments: Any) -> Any:
        counts[-1] += 1
        return priced(self, *arguments)

    monkeypatch.setattr(Search, "priced", counted)
    programs: list[TileProgram | Rejected] = []
    for has_ceiling in (True, False):
        if not has_ceiling:
            monkeypatch.setattr(Request, "ceiling", None)
        counts.append(0)
        programs.append(choose_program(Request(graph, {}, H200)))
    assert isinstance(programs[0], TileProgram) and programs[0] == programs[1]
    assert counts[0] < counts[1]
