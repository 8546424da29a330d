"""Packed kernels on a CUDA device: the structure of operands, last blocks of members, updates in place, replay as a graph."""
from __future__ import annotations

import pytest
import torch

from tilefuse.ir.text import parse_graph
from tilefuse.runtime.program import Program

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def adam(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """One step for parameters, gradients and both moments, a quarter of the arguments each."""
    count = len(tensors) // 4
    found = []
    for p, g, m, v in zip(*(tensors[n * count:(n + 1) * count] for n in range(4)), strict=True):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        found += [p - 1e-3 * m / (v.sqrt() + 1e-8), m, v]
    return tuple(found)


def sums(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows, columns, everything and a softmax of each."""
    return tuple(r for t in tensors for r in (t.sum(1), t.sum(0), t.sum(), t.softmax(-1)))


def updates(count: int) -> str:
    """A graph of so many updates x - g / 2, of a hundred lengths: tracing as many in torch takes far longer than all that is tested."""
    kinds = [f"f32[{n * 37 % 101 + 1}]" for n in range(count)]
    inputs = ", ".join(f"%x{n}: {kind}, %g{n}: {kind}" for n, kind in enumerate(kinds))
    nodes = "\n".join(f"  %y{n}: {kind} = map [i] {{ sub(%x{n}[i], mul(%g{n}[i], 0.5:f32)) }}" for n, kind in enumerate(kinds))
    return f"graph @updates({inputs}) -> ({', '.join(kinds)}) {{\n{nodes}\n  return {', '.join(f'%y{n}' for n in range(count))}\n}}"


@pytest.mark.parametrize(("count", "launches"), [(300, 1), (1500, 2)])
def test_more_tensors_than_a_launch_takes_are_several_launches(count: int, launches: int) -> None:
    """A launch takes 4095 operands; each update has three."""
    import tilefuse

    program = tilefuse.compile(parse_graph(updates(count)), device="cuda")
    assert isinstance(program, Program)
    assert len(program.spec.steps) == launches and all(k.one_structure for k in program.kernels)
    generator = torch.Generator("cuda").manual_seed(count)
    shape_by_name = {value.name: value.shape for value in program.spec.values}
    given = [torch.rand(shape_by_name[name], device="cuda", generator=generator) for name in program.spec.inputs]
    for x, g, y in zip(given[::2], given[1::2], program(*given), strict=True):
        assert torch.equal(y, x - g * 0.5)


@pytest.mark.parametrize("count", [2, 48])
def test_an_optimisers_step_over_many_tensors(count: int) -> None:
    """Every parameter, gradient and moment has a shape of its own; one launch updates all."""
    import tilefuse

    generator = torch.Generator("cuda").manual_seed(count)
    shapes = [((n * 37) % 101 + 1, (n * 13) % 67 + 1) for n in range(count)]
    given = [torch.rand(s, device="cuda", generator=generator) for _ in range(4) for s in shapes]
    made = tilefuse.compile(adam, given)
    for _ in range(2):
        for a, b in zip(made(*given), adam(*given), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    program = getattr(made, "program", made)
    assert isinstance(program, Program)
    assert len(program.spec.steps) == 1
    assert all(k.one_structure for k in program.kernels)


def test_reductions_of_several_tensors_share_launches() -> None:
    """Members have counters and workspaces of their own; a replayed graph finds them at zero."""
    import tilefuse

    generator = torch.Generator("cuda").manual_seed(1)
    given = [torch.randn(s, device="cuda", generator=generator) for s in ((300, 500), (300, 500), (7, 4000), (2000, 33), (1, 9))]
    made = tilefuse.compile(sums, given)
    program = getattr(made, "program", made)
    assert isinstance(program, Program)
    assert any(k.one_structure for k in program.kernels)
    captured = program.capture(*given)
    for run in (made, captured, captured):
        for a, b in zip(run(*given), sums(*given), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)
