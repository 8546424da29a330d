"""Candidates for tuning: the chosen template first, none twice, all composable, and their kernels give the same results."""
from __future__ import annotations

import pytest

from tests.golden.workloads import WORKLOADS, tile_program
from tests.unit.templates.test_by_hand import softmax
from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import InternalError, UserError
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.measure.measure import KernelMeasurer
from tilefuse.ir.text import parse_graph
from tilefuse.plan.price.measure import Timing
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200
from tilefuse.templates.by_hand import program_by_hand
from tilefuse.templates.compose import compose
from tilefuse.templates.neighbours import neighbours, program_with
from tilefuse.templates.notation import parse_template
from tilefuse.templates.staged.stitched.template import schedule_stitched

HOST = host_device()


@pytest.mark.parametrize("device", [H200, HOST], ids=lambda d: d.name)
@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_neighbours_are_kernels_and_have_templates(name: str, device) -> None:  # type: ignore[no-untyped-def]
    program = tile_program(name, device)
    if not isinstance(program, TileProgram):
        pytest.skip("no schedule on this device")
    found = neighbours(program, device)
    assert found[0] == program.choice and all(a != b for n, a in enumerate(found) for b in found[:n])
    for choice in found[1::5]:
        made = program_with(program, choice, device)
        if isinstance(made, Rejected):
            continue
        assert compose(made, device).launch.num_threads <= device.max_threads_per_block
        assert program_by_hand(program, parse_template(made.notation), device).choice == made.choice


ATTENTION = parse_graph("""graph @attention(%q: f32[2, 24, 16], %k: f32[2, 24, 16], %v: f32[2, 24, 16]) -> (f32[2, 24, 16], f32[2, 24]) {
  %p: f32[2, 24, 24] = reduce.sum [b, i, j] over [t < 16] { mul(%q[b, i, t], %k[b, j, t]) }
  %m: f32[2, 24] = reduce.max [b, i] over [t < 24] { %p[b, i, t] }
  %e: f32[2, 24, 24] = map [b, i, j] { exp(sub(%p[b, i, j], %m[b, i])) }
  %s: f32[2, 24] = reduce.sum [b, i] over [t < 24] { %e[b, i, t] }
  %n: f32[2, 24, 24] = map [b, i, j] { div(%e[b, i, j], %s[b, i]) }
  %o: f32[2, 24, 16] = reduce.sum [b, i, j] over [t < 24] { mul(%n[b, i, t], %v[b, t, j]) }
  return %o, %s
}""")


def test_stitched_kernels_vary_their_tiles() -> None:
    """Every tile is a kernel with a template of its own."""
    program = schedule_stitched(ATTENTION, {}, H200)
    assert isinstance(program, TileProgram)
    assert program_by_hand(program, parse_template(program.notation), H200) == program
    made = [m for c in neighbours(program, H200) if isinstance(m := program_with(program, c, H200), TileProgram)]
    assert made[0] == program and len(made) > 4
    for other in made[1:]:
        assert program_by_hand(program, parse_template(other.notation), H200).choice == other.choice


@pytest.mark.parametrize(("text", "message"), [
    ("zz [GRID];", "%zz has no stage"), ("n [GRID]; tile_1=4000;", "does not fit a result"), ("n [GRID]; tile_7=4;", "did you mean tile_"),
    ("n [GRID]; cta_size=33;", "cta_size=33 is no number of threads")])
def test_a_wrong_template_of_a_stitched_kernel_is_named(text: str, message: str) -> None:
    program = schedule_stitched(ATTENTION, {}, H200)
    assert isinstance(program, TileProgram)
    with pytest.raises(UserError, match=message):
        program_by_hand(program, parse_template(text), H200)


def test_a_program_without_parameters_is_its_only_neighbour() -> None:
    """A transposition in tiles is not tuned on the host."""
    program = tile_program("transpose", H200)
    assert isinstance(program, TileProgram)
    assert neighbours(program, HOST) == (program.choice,)


def test_a_choice_of_no_template_is_refused() -> None:
    program = softmax()
    object.__setattr__(program, "choice", None)
    with pytest.raises(InternalError, match="no template is registered"):
        neighbours(program, H200)


def test_every_host_neighbour_gives_the_results_of_the_first() -> None:
    program = softmax(HOST)
    measurer = KernelMeasurer(HOST, "host", Options())
    made = [program_with(program, c, HOST) for c in neighbours(program, HOST)]
    programs = [m for m in made if isinstance(m, TileProgram)]
    assert len(programs) > 2
    measurer.prepare(programs)
    assert all(isinstance(measurer.measure(p), Timing) for p in programs)
