"""Random numbers of a training step: functions of a saved seed, which the backward part draws again."""
from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import tilefuse.driver.torch_backend as backend
from tests.unit.driver.torch.test_partition import kept_by
from tilefuse.driver.torch.partition import prepare
from tilefuse.frontends.torch.own.random_numbers import RANDOM_NORMAL, RANDOM_SEED, RANDOM_UNIFORM
from tilefuse.ir.meaning import random_normal, random_uniform
from tilefuse.target.device import H200

Function = Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]


@pytest.fixture(autouse=True)
def divided_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Steps are divided as for a device where drawing costs less than memory; kernels run here."""
    monkeypatch.setattr(backend, "prepare", lambda joint, results, static, device, options: prepare(joint, results, static, H200, options))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function: Function, dynamic: bool = False) -> Function:
    return torch.compile(function, backend="tilefuse", dynamic=dynamic)


@pytest.mark.parametrize(("seed", "number"), [(0, 1), (2**62 - 1, 7), (123456789012345678, 3)])
def test_torch_draws_the_numbers_of_the_definition(seed: int, number: int) -> None:
    """Bit by bit for uniform numbers; normal ones within roundings of f32."""
    key, counter = np.array([seed + number]), np.arange(3 * 7)
    drawn = RANDOM_UNIFORM(torch.tensor([seed]), number, [3, 7])
    np.testing.assert_array_equal(drawn.numpy().ravel(), random_uniform(key, counter))
    normal = RANDOM_NORMAL(torch.tensor([seed]), number, [3, 7])
    np.testing.assert_allclose(normal.numpy().ravel(), random_normal(key, counter), rtol=2e-6, atol=1e-7)
    torch.manual_seed(5)
    first = RANDOM_SEED(torch.device("cpu"))
    torch.manual_seed(5)
    assert torch.equal(first, RANDOM_SEED(torch.device("cpu"))) and first.shape == (1,) and not torch.equal(first, RANDOM_SEED("cpu"))


def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two dropouts of different probabilities and a third of their result."""
    a, b = F.dropout(torch.tanh(x), 0.25), F.dropout(torch.exp(-x * x), 0.5)
    return a, b, F.dropout(a * b + 1.0, 0.1)


def expected(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """The gradient of the sum of all results, in f64, with the masks that they show."""
    y = x.detach().double().requires_grad_()
    masks = [(r != 0).double() / (1 - p) for r, p in ((a, 0.25), (b, 0.5), (c, 0.1))]
    u, v = torch.tanh(y) * masks[0], torch.exp(-y * y) * masks[1]
    (u.sum() + v.sum() + ((u * v + 1.0) * masks[2]).sum()).backward()
    assert y.grad is not None
    return y.grad


@pytest.mark.parametrize("dynamic", [False, True])
@torch._functorch.config.patch(donated_buffer=False)  # a backward that runs twice may not take the memory of its arguments
def test_gradients_are_those_of_the_masks_that_the_forward_drew(dynamic: bool) -> None:
    """Of several dropouts, of calls whose backward comes later and in another order, of a backward that runs twice."""
    call = compiled(step, dynamic)
    xs = [torch.randn(24, n, requires_grad=True) for n in (64, 64, 32)]
    results = [call(x) for x in xs]
    assert not torch.equal(results[0][0] != 0, results[1][0] != 0)
    a, b, _ = results[0]
    assert 0.6 < (a != 0).float().mean() < 0.9 and not torch.equal(a != 0, b != 0)
    for x, of in reversed(list(zip(xs, results, strict=True))):
        total = sum(r.sum() for r in of)
        assert isinstance(total, torch.Tensor)
        once, = torch.autograd.grad(total, x, retain_graph=True)
        twice, = torch.autograd.grad(total, x)
        # The second one may be compiled where torch ran the first, with other roundings.
        torch.testing.assert_close(once, twice, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(once, expected(x, *of).float(), rtol=1e-5, atol=1e-6)


def test_equal_seeds_draw_equal_masks() -> None:
    call, x = compiled(step), torch.randn(8, 64, requires_grad=True)
    torch.manual_seed(3)
    first = [call(x) for _ in range(2)]
    torch.manual_seed(3)
    again = [call(x) for _ in range(2)]
    for one, two in zip(first, again, strict=True):
        assert all(torch.equal(r, s) for r, s in zip(one, two, strict=True))
    assert not torch.equal(first[0][0], first[1][0])


NOISES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rand": torch.rand_like, "randn": torch.randn_like, "bernoulli": lambda x: torch.bernoulli(torch.full(x.shape, 0.25)),
    "bernoulli of a number": lambda x: torch.empty_like(x).bernoulli_(0.25) * 2.0, "sizes": lambda x: torch.rand(x.shape),
    "uniform": lambda x: torch.empty_like(x).uniform_(-2.0, 3.0), "normal": lambda x: torch.empty_like(x).normal_(1.0, 0.5),
}


@pytest.mark.parametrize("name", list(NOISES))
def test_other_random_numbers_are_drawn_again_as_well(name: str) -> None:
    """The gradient of a product with noise is the noise, of which nothing but the seed is kept."""
    noise = NOISES[name]

    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x * noise(x)

    x = (torch.rand(16, 64) + 0.5).requires_grad_()
    y = compiled(noisy)(x)
    y.sum().backward()
    assert x.grad is not None and len(x.grad.unique()) > 1
    torch.testing.assert_close(x.grad, (y / x).detach(), rtol=1e-5, atol=1e-6)
    kept = kept_by(lambda: (nn.Module(), (torch.randn(16, 64, requires_grad=True),)), "ours", lambda _: noisy)
    assert [tuple(n.meta["val"].shape) for n in kept if isinstance(n.meta["val"], torch.Tensor)] == [(1,)]


def test_only_the_seed_of_masks_is_kept() -> None:
    """One seed for all of them. Masks whose rows begin within a call of the generator are kept: drawing them costs four times as much."""
    def kept(width: int) -> list[torch.dtype]:
        nodes = kept_by(lambda: (nn.Module(), (torch.randn(24, width, requires_grad=True),)), "ours", lambda _: lambda x: sum(step(x)))
        return sorted((n.meta["val"].dtype for n in nodes), key=str)

    assert kept(64) == [torch.int64]
    assert torch.bool in kept(63)


def test_a_checkpoint_draws_again_what_its_part_drew() -> None:
    """The part is computed again, the seed is not: no state of torch's generator is kept or restored."""
    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.tanh(x @ w), 0.5)

    def of(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = checkpoint(layer, x, w, use_reentrant=False)
        return y

    x, w = torch.randn(16, 32), torch.randn(32, 64, requires_grad=True)
    y = compiled(of)(x, w)
    y.sum().backward()
    given, v = (y != 0).double() * 2, w.detach().double().requires_grad_()
    (torch.tanh(x.double() @ v) * given).sum().backward()
    assert w.grad is not None and v.grad is not None
    torch.testing.assert_close(w.grad, v.grad.float(), rtol=1e-5, atol=1e-5)
    kept = kept_by(lambda: (nn.Module(), (x, w)), "ours", lambda _: of)
    assert [n.meta["val"].dtype for n in kept] == [torch.int64]


def test_numbers_that_no_gradient_reads_stay_operators_of_torch() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x * 2.0 + torch.rand_like(x)

    kept = kept_by(lambda: (nn.Module(), (torch.randn(16, 64, requires_grad=True),)), "ours", lambda _: noisy)
    assert not kept
