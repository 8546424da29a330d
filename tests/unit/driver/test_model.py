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
    with pytest.raises(UserError, match=r"compiled for 1 argument \(tensor\), and is called with 2 arguments \(tensor, tensor\)"):
        model(x, x)
    torch.testing.assert_close(model(x), x * 2)


def test_numbers_are_those_of_the_example_inputs() -> None:
    """They are part of the program: another number would be a wrong answer, also one that only its type tells apart."""
    x = torch.ones(3)
    model = tilefuse.compile(lambda t, n: t * n, (x, 3))
    assert model(x, 3).tolist() == model(n=3, t=x).tolist() == [3.0, 3.0, 3.0]
    for other in (4, 3.0, True, x):
        with pytest.raises(UserError, match="argument 1 is .* but the model was compiled for 3"):
            model(x, other)
    for arguments in ((x,), (x, 3, 4), ([x, 3],)):
        with pytest.raises(UserError, match="the model was compiled for 2 arguments"):
            model(*arguments)


def test_arguments_belong_to_parameters_and_keys_by_name() -> None:
    x = torch.ones(3)
    model = tilefuse.compile(lambda a, b: a - b, (x, x))
    assert model(b=x, a=3 * x).tolist() == model(3 * x, b=x).tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(UserError, match="multiple values for argument 'a'"):
        model(x, a=x)
    model = tilefuse.compile(lambda d: d["a"] - d["b"], ({"a": x, "b": x},))
    assert model({"b": x, "a": 3 * x}).tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(UserError, match="'a': tensor, 'c': tensor"):
        model({"a": x, "c": x})


def test_an_exported_program_is_called_as_it_was_exported() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, *, mask: torch.Tensor, scale: float) -> torch.Tensor:
            return x * mask * scale

    x = torch.ones(3)
    model = tilefuse.compile(torch.export.export(Scaled(), (x,), {"mask": x + 1, "scale": 2.0}))
    assert model(x, scale=2.0, mask=3 * x).tolist() == [6.0, 6.0, 6.0]
    with pytest.raises(UserError, match="is 3.0, but the model was compiled for 2.0"):
        model(x, scale=3.0, mask=x)


def _steps(model: torch.nn.Module, x: torch.Tensor, *, fused: bool) -> None:
    model(x).sum().backward()
    torch.optim.Adam(model.parameters(), lr=0.1, fused=fused).step()


@pytest.mark.parametrize("form", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("change", ["step", "fused step", "data", "numpy", "load_state_dict"])
def test_weights_are_those_of_the_compile(change: str, form: torch.memory_format) -> None:
    """Packed, padded, folded and plain ones alike. A write that moves no version counter once left packed weights as they were and
    changed the others."""
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3), torch.nn.Flatten(),
                                torch.nn.Linear(36, 5), torch.nn.Linear(5, 40)).to(memory_format=form)
    x = torch.randn(2, 4, 5, 5).to(memory_format=form)
    compiled, expected = tilefuse.compile(model, (x,)), model(x).detach()
    torch.testing.assert_close(compiled(x), expected)
    match change:
        case "step" | "fused step":
            _steps(model, x, fused=change == "fused step")
        case "data":
            for p in model.parameters():
                p.data.mul_(2)
        case "numpy":
            for p in model.parameters():
                p.detach().numpy()[...] = 0.5
        case _:
            model.load_state_dict({name: 3 * t for name, t in model.state_dict().items()})
    assert not torch.allclose(model(x), expected)
    torch.testing.assert_close(compiled(x), expected)


def test_weights_of_torch_compile_follow_the_model() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.ReLU()).to(memory_format=torch.channels_last)
    x = torch.randn(2, 4, 5, 5).to(memory_format=torch.channels_last)
    compiled = torch.compile(model, backend="tilefuse", dynamic=False)
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))
        _steps(model, x, fused=True)
