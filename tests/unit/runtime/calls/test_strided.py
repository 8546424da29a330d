"""Operands of library calls lie where torch traced them, or as the operator takes them as well."""
from __future__ import annotations

import pytest
import torch

from tilefuse.runtime.calls.strided import as_traced


def laid(shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    made = torch.empty_strided(shape, strides)
    made.copy_(torch.arange(float(made.numel())).reshape(shape))
    return made


@pytest.mark.parametrize("exact", [True, False])
def test_traced_strides_are_no_copy(exact: bool) -> None:
    x, y = laid((2, 3, 4), (1, 2, 6)), torch.ones(5)
    assert [a is b for a, b in zip(as_traced((x, y), ((1, 2, 6), None), exact), (x, y), strict=True)] == [True, True]


def test_exact_strides_are_copied_into() -> None:
    x = torch.arange(12.0).reshape(3, 4).t()
    made, = as_traced((x,), ((3, 1),), True)
    assert made.stride() == (3, 1) and torch.equal(made, x)
    ones = torch.arange(4.0).reshape(1, 4)
    assert as_traced((ones,), ((77, 1),), True)[0] is ones


def test_neighbours_at_aligned_strides_will_do() -> None:
    rows = torch.arange(32.0).reshape(2, 4, 4).transpose(0, 1)
    assert as_traced((rows,), ((8, 4, 1),), False)[0] is rows
    turned = rows.transpose(1, 2)
    made, = as_traced((turned,), ((8, 2, 1),), False)
    assert made.stride() == (8, 2, 1) and torch.equal(made, turned)


def test_a_padded_and_expanded_bias_is_padded_and_expanded_again() -> None:
    """49 x 49 scores of a window are 2401 f32 apart, which no kernel loads by 16 bytes; torch traced them in rows of 56."""
    bias = torch.randn(1, 4, 49, 49)
    traced = (0, 49 * 56, 56, 1)
    made, = as_traced((bias.expand(3, 4, 49, 49),), (traced,), False)
    assert made.stride() == traced and torch.equal(made, bias.expand(3, 4, 49, 49))
    alone, = as_traced((bias,), ((4 * 49 * 56, 49 * 56, 56, 1),), False)
    assert alone.stride()[1:] == traced[1:] and torch.equal(alone, bias)


def test_nothing_is_asked_of_empty_tensors() -> None:
    x = torch.empty(0, 3).t()
    assert as_traced((x,), ((0, 1),), True)[0] is x
