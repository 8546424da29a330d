"""Tensors that are no plain array of numbers: nested, sparse, quantised, masked, of users' classes. What torch cannot give a compiler as
plain tensors runs in torch; nothing crashes, and every result is eager's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.masked import masked_tensor
from torch.utils._pytree import tree_map

import tilefuse
from tests.end_to_end.torch.strict import strict
from tilefuse.base.errors import UnsupportedError
from tilefuse.driver.torch_backend import backend, compiled_parts

pytestmark = [pytest.mark.usefixtures("fresh"), pytest.mark.filterwarnings("ignore")]

A = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
B = torch.randn(5, 4, generator=torch.Generator().manual_seed(2))
W = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))


class Named(torch.Tensor):
    """A class that goes its own way for functions, and changes nothing."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapped(torch.Tensor):
    """A class that holds another tensor; `flat` ones tell torch which."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)  # type: ignore[no-any-return]

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tree_map(lambda x: x.inner if isinstance(x, Wrapped) else x, (args, kwargs or {}))
        return tree_map(lambda x: cls(x) if isinstance(x, torch.Tensor) else x, func(*given[0], **given[1]))


class Flat(Wrapped):
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inside: Any, meta: Any, shape: Any, strides: Any) -> Flat:
        return Flat(inside["inner"])


def jagged(*parts: torch.Tensor, **how: Any) -> torch.Tensor:
    return torch.nested.nested_tensor(list(parts), layout=torch.jagged, **how)


def dense(x: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor of any kind."""
    if isinstance(x, Wrapped):
        return x.inner
    if type(x).__name__ == "MaskedTensor":
        return x.to_tensor(0.0)  # type: ignore[attr-defined, no-any-return]
    if x.is_nested:
        return x.values() if x.layout == torch.jagged else x.to_padded_tensor(0.0)
    return x.dequantize() if x.is_quantized else x.to_dense() if x.layout != torch.strided else x


def quantised(x: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)


# A function and what makes its arguments, so that each run has its own.
INFERENCE: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "jagged": (lambda x, w: torch.relu(x @ w) * 2, lambda: (jagged(A, B), W)),
    "jagged inside": (lambda v, o: torch.nested.nested_tensor_from_jagged(v * 2, o).sin().values() + 1,
                      lambda: (torch.cat([A, B]), torch.tensor([0, 3, 8]))),
    "strided nested": (lambda x: torch.relu(x) * 2, lambda: (torch.nested.nested_tensor([A, B]),)),
    "coordinates": (lambda x, y: torch.sparse.mm(x, y) + 1, lambda: (A.relu().to_sparse(), W)),
    "coordinates inside": (lambda x, y: (x * 2).to_sparse() @ y + 1, lambda: (A.relu(), W)),
    "rows": (lambda x, y: x @ y + 1, lambda: (A.relu().to_sparse_csr(), W)),
    "own functions": (lambda x: torch.relu(x) * 2 + 1, lambda: (A.as_subclass(Named),)),
    "own dispatch": (lambda x: torch.relu(x) * 2 + 1, lambda: (Flat(A),)),
    "own dispatch, closed": (lambda x: torch.relu(x) * 2 + 1, lambda: (Wrapped(A),)),
    "quantised": (lambda x: x.dequantize() * 2 + 1, lambda: (quantised(A),)),
    "quantised inside": (lambda x: quantised(x * 2).dequantize() + 1, lambda: (A,)),
    "quantised result": (lambda x: quantised(x * 2), lambda: (A,)),
    "masked": (lambda x: x * 2 + 1, lambda: (masked_tensor(A, A > 0),)),
    "masked inside": (lambda x: masked_tensor(x * 2, x > 0).to_tensor(0.0) + 1, lambda: (A,)),
}


@pytest.mark.parametrize("name", INFERENCE)
def test_results_are_eagers(name: str) -> None:
    fn, given = INFERENCE[name]
    wanted = fn(*given())
    found = torch.compile(fn, backend=backend)(*given())
    assert type(found) is type(wanted)
    torch.testing.assert_close(dense(found), dense(wanted))


TRAINING: dict[str, tuple[Callable[..., torch.Tensor], Callable[[], tuple[Any, ...]]]] = {
    "jagged": (lambda x, w: torch.tanh(x @ w).values().sum(), lambda: (jagged(A, B, requires_grad=True), W.clone().requires_grad_())),
    "coordinates": (lambda x, y: (torch.sparse.mm(x, y) * 2).sum(), lambda: (A.relu().to_sparse(), W.clone().requires_grad_())),
    "rows": (lambda x, y: (x @ y * 2).sum(), lambda: (A.relu().to_sparse_csr(), W.clone().requires_grad_())),
    "own functions": (lambda x, y: (x @ y).relu().sum(), lambda: (A.as_subclass(Named), W.clone().requires_grad_())),
    "quantised": (lambda x, y: (x.dequantize() @ y).sum(), lambda: (quantised(A), W.clone().requires_grad_())),
}


@pytest.mark.parametrize("name", TRAINING)
def test_gradients_are_eagers(name: str) -> None:
    fn, given = TRAINING[name]
    ours, theirs = given(), given()
    torch.compile(fn, backend=backend)(*ours).backward()
    fn(*theirs).backward()
    for x, y in zip(ours, theirs):
        if x.requires_grad:
            torch.testing.assert_close(dense(x.grad), dense(y.grad))


def test_a_jagged_layer_is_compiled_for_every_raggedness() -> None:
    """Torch hands jagged tensors on as their values, whose number differs from call to call."""
    project, norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)

    def layer(x: torch.Tensor) -> torch.Tensor:
        y = norm(project(x)) + x
        heads = y.unflatten(-1, [2, 4]).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2).softmax(-1)

    compiled = torch.compile(layer, backend=strict)
    for count in (3, 4, 6, 3):
        x = jagged(torch.randn(count, 8), torch.randn(5, 8))
        torch.testing.assert_close(compiled(x).values(), layer(x).values())
    assert compiled_parts()


def test_what_runs_in_torch_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        torch.compile(lambda x: quantised(x * 2), backend=backend)(A)
    assert "quantize_per_tensor" in caplog.text and "to torch" in caplog.text and "Please report" not in caplog.text


def test_a_model_as_a_whole_refuses_them_in_a_line() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    for given in (jagged(A, B), A.to_sparse()):
        with pytest.raises(UnsupportedError):
            tilefuse.compile(Model(), (given,), device="host")
