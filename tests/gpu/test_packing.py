"""Packed kernels on a CUDA device: the structure of operands, last blocks of members, updates in place, replay as a graph."""
from __future__ import annotations

import pytest
import torch

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


@pytest.mark.parametrize("count", [2, 96, 700])
def test_an_optimisers_step_over_many_tensors(count: int) -> None:
    """More tensors than one launch takes are several launches."""
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
    assert len(program.spec.steps) == (1 if count < 700 else 2)
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
