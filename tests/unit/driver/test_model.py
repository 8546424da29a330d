"""Outputs of the source from results of the program: permuted, expanded, literal, or an argument given back."""
from __future__ import annotations

import pytest
import torch

import tilefuse
from tilefuse.base.errors import UserError
from tilefuse.driver.model import restore
from tilefuse.frontends.imported import Output


def test_every_kind_of_output_is_restored() -> None:
    result, argument = torch.arange(6.0).reshape(2, 3), torch.ones(4)
    assert restore(Output(argument=0), [result], [argument]) is argument
    assert restore(Output(literal=7), [result], [argument]) == 7
    assert restore(Output(result=0), [result], [argument]) is result
    turned = restore(Output(result=0, permutation=(1, 0)), [result], [])
    assert turned.shape == (3, 2) and turned.data_ptr() == result.data_ptr()
    row = torch.ones(1, 3)
    assert restore(Output(result=0, expanded=(5, 3)), [row], []).stride() == (0, 1)


def test_more_arguments_than_compiled_for() -> None:
    """They are named as a mistake; an argument that is not looked at would be a wrong answer."""
    x = torch.randn(3)
    model = tilefuse.compile(lambda t: t * 2, (x,))
    with pytest.raises(UserError, match="compiled for 1 arguments, got 2"):
        model(x, x)
    torch.testing.assert_close(model(x), x * 2)
