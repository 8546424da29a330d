"""Matrix products inside torch models: biases in the library's epilogue, windows onto products without copies; gradients of tables."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.end_to_end.torch.strict import strict
from tilefuse.driver.torch_backend import compiled_parts

pytestmark = pytest.mark.usefixtures("fresh")


def steps(kind: str) -> list[str]:
    """Operators of a part's library calls; "kernel" for a kernel, "copy" for a copy."""
    (part,) = compiled_parts(kind)
    assert part.program.counts.library_copies == 0
    return [getattr(s, "operator", type(s).__name__.removesuffix("Step").lower()) for s in part.program.spec.steps]


def attend(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    q, k, v = F.linear(x, w, b).view(2, 8, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
    return q, F.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("graded", [False, True])
def test_queries_keys_and_values_are_windows_onto_one_product(graded: bool) -> None:
    x, w, b = (torch.randn(s, requires_grad=True) for s in ((2, 8, 64), (192, 64), (192,)))
    with torch.set_grad_enabled(graded):
        made, wanted = torch.compile(attend, backend=strict)(x, w, b), attend(x, w, b)
    for a, e in zip(made, wanted, strict=True):
        torch.testing.assert_close(a, e)
        assert a.stride() == e.stride()
    assert "kernel" not in steps("forward" if graded else "inference")
    if graded:
        loss = [sum(t.square().sum() for t in r) for r in (made, wanted)]
        for a, e in zip(*(torch.autograd.grad(n, (x, w, b)) for n in loss), strict=True):
            torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-4)


def test_a_bias_is_added_once_where_the_sum_is_kept_for_the_gradient() -> None:
    x, w, b = (torch.randn(s, requires_grad=True) for s in ((8, 16), (32, 16), (32,)))
    made = torch.compile(lambda *a: F.gelu(F.linear(*a)), backend=strict)(x, w, b)
    torch.testing.assert_close(made, F.gelu(F.linear(x, w, b)))
    assert steps("forward") == ["matmul", "kernel"]
    (part,) = compiled_parts("forward")
    (call,) = (s for s in part.program.spec.steps if getattr(s, "operator", "") == "matmul")
    assert len(call.operands) == 3


def test_a_bias_shares_the_kernel_of_what_follows_where_nothing_else_needs_the_sum() -> None:
    x, w, b = (torch.randn(s) for s in ((8, 16), (32, 16), (32,)))
    torch.compile(lambda *a: F.gelu(F.linear(*a)), backend=strict)(x, w, b)
    (part,) = compiled_parts("inference")
    (call,) = (s for s in part.program.spec.steps if getattr(s, "operator", "") == "matmul")
    assert len(call.operands) == 2


@pytest.mark.parametrize("table", [2, 4, 50])
def test_gradients_of_tables(table: int) -> None:
    """Tables of a few rows sum down columns, larger ones scatter into zeros that are not copied first."""
    ids, w = torch.randint(0, table, (6, 40)), torch.randn(table, 24, requires_grad=True)

    def run(ids: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, w).square().sum()

    (made,) = torch.autograd.grad(torch.compile(run, backend=strict)(ids, w), w)
    (wanted,) = torch.autograd.grad(run(ids, w), w)
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-4)
    assert "copy" not in steps("backward")


def test_a_padding_row_of_a_small_table_has_no_gradient() -> None:
    ids, w = torch.randint(0, 3, (6, 40)), torch.randn(3, 24, requires_grad=True)
    (made,) = torch.autograd.grad(torch.compile(lambda i, t: F.embedding(i, t, padding_idx=1).sum(), backend=strict)(ids, w), w)
    (wanted,) = torch.autograd.grad(F.embedding(ids, w, padding_idx=1).sum(), w)
    torch.testing.assert_close(made, wanted)
