"""A template that no file of the package knows is planned, packed, lowered, updated in place and explained like the others."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilefuse.base.candidate import Rejected
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import generate
from tilefuse.driver.explain.explain import explanation_of
from tilefuse.ir.text import parse_graph
from tilefuse.runtime.spec import CopyStep
from tilefuse.target.device import H200
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.flat.template import FlatTemplate
from tilefuse.templates.registry import kernel_template, registered
from tilefuse.templates.request import Request

OPTIONS = replace(Options(), plan_cache=False, tuned=False)
# Two updates of unlike size and kind that do not depend on each other.
UPDATES = parse_graph("""graph @updates(%p: f32[512], %g: f32[512], %q: f32[96], %h: f32[96]) -> () {
  %p1: f32[512] = map [i] { sub(%p[i], %g[i]) }
  %q1: f32[96] = map [i] { mul(%q[i], exp(%h[i])) }
  update %p = %p1
  update %q = %q1
  return
}""")


@dataclass(frozen=True, slots=True)
class Mine(Pointwise):
    """A record that only this file knows."""

    template: ClassVar[str] = "mine"


class MineTemplate(FlatTemplate):
    """Flat walks under another name, asked before all others."""

    record = Mine
    priority = -1

    def propose(self, request: Request) -> TileProgram | Rejected:
        """The flat walk's program, with this template's record."""
        flat = super().propose(request)
        if isinstance(flat, Rejected):
            return flat
        c = flat.choice
        assert isinstance(c, Pointwise)
        return replace(flat, choice=Mine(c.order, c.vector, c.threads, c.steps, c.unrolled, c.across, c.side))


def test_a_template_from_outside_goes_through_planning_lowering_and_explanation() -> None:
    """Both updates share one launch as parts of the new template, overwrite what they read, and show its tiles."""
    flat = generate(UPDATES, constants={}, input_layouts={}, device=H200, options=OPTIONS)
    with registered(MineTemplate()):
        mine = generate(UPDATES, constants={}, input_layouts={}, device=H200, options=OPTIONS)
        (kernel,) = mine.plan.kernels
        groups = kernel_template(kernel.program.choice).groups(kernel.program)
        assert [(g.program.template, len(g.parts)) for g in groups] == [("mine", 1), ("mine", 1)]
        assert not any(isinstance(s, CopyStep) for s in mine.spec.steps)
        explained = explanation_of(mine.plan, mine.spec, (), {}, H200)["kernels"][0]
    before = explanation_of(flat.plan, flat.spec, (), {}, H200)["kernels"][0]
    assert [g["template"] for g in explained["groups"]] == ["mine", "mine"]
    assert [g["tiles"] for g in explained["groups"]] == [g["tiles"] for g in before["groups"]]
    assert [k.source for k in mine.spec.kernels] == [k.source for k in flat.spec.kernels]
