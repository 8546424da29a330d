"""Lists of tensors through tilefuse on the host executor: optimiser steps and gradient accumulation are one launch or a few."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.optim.adamw import adamw

import tilefuse
from tilefuse.driver import torch_backend
from tilefuse.driver.torch_backend import backend, compiled_parts
from tilefuse.runtime.program import Program

Tensors = list[torch.Tensor]
SHAPES = ((64, 32), (7,), (33, 5), (128,), (5, 41), (2,), (3, 10), (17,))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch_backend.reset()
    yield
    torch_backend.reset()


def drawn(count: int, seed: int = 0) -> list[Tensors]:
    """Parameters, gradients and both moments."""
    generator = torch.Generator().manual_seed(seed)
    made = [[torch.randn(SHAPES[n % len(SHAPES)], generator=generator) for n in range(count)] for _ in range(4)]
    return [*made[:3], [t.square() for t in made[3]]]


def adam(parameters: Tensors, gradients: Tensors, means: Tensors, squares: Tensors) -> tuple[Tensors, Tensors, Tensors]:
    """One step of Adam without changing anything in place."""
    found: tuple[Tensors, Tensors, Tensors] = ([], [], [])
    for p, g, m, v in zip(parameters, gradients, means, squares, strict=True):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        found[0].append(p - 1e-3 * (m / 0.1) / ((v / 0.001).sqrt() + 1e-8))
        found[1].append(m)
        found[2].append(v)
    return found


def kernels_of(compiled: Any) -> int:
    """Launches of one call."""
    program = getattr(compiled, "program", compiled)
    assert isinstance(program, Program)
    assert program.library_operators == ()
    return len(program.spec.steps)


def close(found: Any, wanted: Any) -> None:
    flat = torch.utils._pytree.tree_leaves
    for a, b in zip(flat(found), flat(wanted), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_adam_over_96_tensors_is_one_launch() -> None:
    arguments = drawn(96)
    compiled = tilefuse.compile(adam, arguments, device="host")
    assert kernels_of(compiled) == 1
    close(compiled(*arguments), adam(*arguments))
    again = drawn(96, seed=1)
    close(compiled(*again), adam(*again))


def test_gradient_accumulation_is_one_launch_in_checking_mode() -> None:
    def accumulate(kept: Tensors, new: Tensors) -> Tensors:
        return [p + g for p, g in zip(kept, new, strict=True)]

    kept, new, *_ = drawn(16)
    compiled = tilefuse.compile(accumulate, (kept, new), device="host", check=True)
    assert kernels_of(compiled) == 1
    close(compiled(kept, new), accumulate(kept, new))


def test_tensors_of_several_types_are_one_launch() -> None:
    """Bodies differ by type; tensors without elements need nothing."""
    def accumulate(kept: Tensors, new: Tensors) -> Tensors:
        return [p + 2 * g for p, g in zip(kept, new, strict=True)]

    def of_types(tensors: Tensors) -> Tensors:
        types = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
        return [torch.zeros(0, 3), *(t.to(types[n % 4]) for n, t in enumerate(tensors))]

    kept, new = (of_types(t) for t in drawn(12)[:2])
    compiled = tilefuse.compile(accumulate, (kept, new), device="host")
    assert kernels_of(compiled) == 1
    flat = torch.utils._pytree.tree_leaves
    for a, b in zip(flat(compiled(kept, new)), accumulate(kept, new), strict=True):
        torch.testing.assert_close(a, b)


def test_torchs_own_adamw_updates_in_place() -> None:
    """The optimiser's function through torch.compile: parameters, moments and step counts are written where they lie, without copies."""
    def step(parameters: Tensors, gradients: Tensors, means: Tensors, squares: Tensors, steps: Tensors) -> None:
        adamw(parameters, gradients, means, squares, [], steps, foreach=False, amsgrad=False, beta1=0.9, beta2=0.999, lr=1e-3,
              weight_decay=0.01, eps=1e-8, maximize=False)

    def arguments() -> list[Tensors]:
        return [*drawn(8), [torch.tensor(3.0) for _ in range(8)]]

    found, wanted = arguments(), arguments()
    places = [t.data_ptr() for group in found for t in group]
    compiled = torch.compile(step, backend=lambda *a, **k: backend(*a, **{**k, "options": {"strict": True}}))
    for _ in range(2):
        compiled(*found)
        step(*wanted)
    close(found, wanted)
    assert [t.data_ptr() for group in found for t in group] == places
    parts = compiled_parts()
    assert parts
    for part in parts:
        program = part if isinstance(part, Program) else part.program
        assert [type(s).__name__ for s in program.spec.steps] == ["KernelStep"] * len(program.spec.steps)
        assert len(program.spec.steps) <= 3


def test_a_saved_packed_program_runs_again(tmp_path: Any) -> None:
    """The table of operands survives the file."""
    from tilefuse.runtime.load import load_program

    arguments = drawn(8)
    compiled = tilefuse.compile(adam, arguments, device="host")
    program = compiled.program
    program.save(tmp_path / "adam.tilefuse")
    loaded = load_program(tmp_path / "adam.tilefuse")
    assert loaded.spec.kernels[0].one_structure
    flat = torch.utils._pytree.tree_leaves
    close(loaded(*flat(arguments)), flat(adam(*arguments)))
