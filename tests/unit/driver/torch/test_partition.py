"""Values that a training step keeps between forward and backward, as the cut of its joint graph decides it."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from tilefuse.base.options import Options
from tilefuse.driver.torch.partition import DEFAULTS, prepare
from tilefuse.frontends.torch.decompositions import decompositions_with_gradients
from tilefuse.frontends.torch.own.near_places import NEAR_BACKWARD, Windows, places_in_image
from tilefuse.frontends.torch.own.random_numbers import RANDOM_SEED
from tilefuse.target.device import H200

TOKENS, WIDTH = (4, 256), 128


class Block(nn.Module):
    """A layer of a language model: norms, attention, dropout, and a GELU written as elementwise operators."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attended, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [t.view(*TOKENS, 4, WIDTH // 4).transpose(1, 2) for t in self.attended(self.first(x)).split(WIDTH, 2)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).reshape(*TOKENS, WIDTH)
        x = x + F.dropout(self.joined(mixed), 0.1)
        y = self.wide(self.second(x))
        y = 0.5 * y * (1.0 + torch.tanh(0.79788 * (y + 0.044715 * torch.pow(y.float(), 3.0))))
        return x + F.dropout(self.narrow(y), 0.1)


class Images(nn.Module):
    """Convolutions with batch norms, whose running statistics the forward writes into."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.second(torch.relu(self.norm(self.first(x))))).mean()


def language() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return nn.Sequential(Block(), Block()), (torch.randn(*TOKENS, WIDTH),)


def images() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Images(), (torch.randn(8, 3, 32, 32),)


class Pooled(nn.Module):
    """A convolution and a norm whose result is pooled: places of maxima would be eight times as large as bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.max_pool2d(torch.relu(self.norm(self.first(x))), 3, 2, 1)).mean()


def pooled() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Pooled(), (torch.randn(8, 3, 34, 34),)


Step = Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]


def kept_by(step: Step, how: str, wrap: Callable[[nn.Module], Any] = lambda m: m, dynamic: bool = False,
            options: Options = DEFAULTS, narrow: bool = True) -> list[torch.fx.Node]:
    """Values that the forward part of a step gives the backward, besides arguments. how: "ours", or "torch's" with Inductor's pieces;
    narrow: products in bf16."""
    found: list[torch.fx.Node] = []

    def divide(joint: torch.fx.GraphModule, inputs: Any, **settings: Any) -> Any:
        if how == "ours":
            prepare(joint, settings["num_fwd_outputs"], settings.get("static_lifetime_input_indices") or (), H200, options)
        parts = min_cut_rematerialization_partition(joint, inputs, **settings)
        outputs = parts[0].graph.output_node().args[0]
        assert isinstance(outputs, list | tuple)
        found.extend(dict.fromkeys(n for n in outputs[settings["num_fwd_outputs"]:]
                                   if isinstance(n, torch.fx.Node) and n.op != "placeholder"))
        return parts

    if how == "ours":
        table = decompositions_with_gradients()
    else:
        from torch._inductor.decomposition import select_decomp_table

        table = select_decomp_table()

    def run(part: torch.fx.GraphModule, _inputs: Any) -> Any:
        return make_boxed_func(part.forward)

    torch._dynamo.reset()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, inputs = step()
        compiled = torch.compile(wrap(model), dynamic=dynamic, backend=aot_autograd(
            fw_compiler=run, bw_compiler=run, decompositions=table, partition_fn=divide))
        with torch.autocast("cpu", torch.bfloat16, narrow):
            compiled(*inputs)
    return found


def num_bytes(nodes: list[torch.fx.Node]) -> int:
    return sum(v.numel() * v.element_size() for v in (n.meta.get("val") for n in nodes) if isinstance(v, torch.Tensor))


@pytest.mark.parametrize("step", [language, images, pooled])
def test_no_more_is_kept_than_torch_compile_keeps(step: Step) -> None:
    """Within a hundredth: sums of rows are kept here that its pieces compute again."""
    ours, theirs = num_bytes(kept_by(step, "ours")), num_bytes(kept_by(step, "torch's"))
    assert 0 < ours <= 1.01 * theirs


def test_symbols_count_as_the_sizes_of_the_traced_call() -> None:
    known, symbols = kept_by(images, "ours"), kept_by(images, "ours", dynamic=True)
    assert len([n for n in symbols if isinstance(n.meta["val"], torch.Tensor)]) == len(known)


def test_elementwise_results_are_made_again_and_residual_sums_are_kept() -> None:
    kept = kept_by(language, "ours")
    names = [str(n.meta.get("original_aten", n.target)) for n in kept]
    assert not any("tanh" in n or "detach" in n or "pow" in n for n in names)
    # The tanh is twice as wide as what it was made of; a residual sum made again would need all layers before it.
    assert any("aten.add.Tensor" in n for n in names)
    # Dropouts keep one seed for all of them.
    assert [str(n.target) for n in kept if n.meta["val"].dtype in (torch.bool, torch.int64)] == [str(RANDOM_SEED)]


def test_a_checkpointed_step_is_divided_as_the_user_asks() -> None:
    def wrapped(model: nn.Module) -> Callable[..., Any]:
        return lambda x: checkpoint(model, x, use_reentrant=False)

    plain, checkpointed = kept_by(images, "ours"), kept_by(images, "ours", wrapped)
    assert num_bytes(checkpointed) < num_bytes(plain)


def test_what_the_forward_writes_over_is_not_read_by_the_backward() -> None:
    """A buffer that is read, then written: the backward needs the value that was read."""
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.full((64,), 2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert isinstance(self.scale, torch.Tensor)
            factor = self.scale.tanh()
            result = x * factor
            self.scale.mul_(3.0)
            return result

    model, x = Scaled(), torch.randn(8, 64, requires_grad=True)
    torch._dynamo.reset()
    torch.compile(model, backend="tilefuse", dynamic=False)(x).sum().backward()
    assert x.grad is not None and torch.allclose(x.grad, torch.full((8, 64), 2.0).tanh())
    assert torch.equal(model.scale, torch.full((64,), 6.0))


def test_gradients_see_the_mask_that_the_forward_drew() -> None:
    torch._dynamo.reset()
    weight = torch.randn(64, requires_grad=True)
    x = torch.randn(32, 64, requires_grad=True)
    y = torch.compile(lambda a, w: F.dropout(torch.tanh(a) * w, 0.5), backend="tilefuse", dynamic=False)(x, weight)
    y.sum().backward()
    mask = (y != 0).float() * 2
    assert x.grad is not None and weight.grad is not None
    expected = (mask * weight * (1 - torch.tanh(x) ** 2)).detach()
    assert torch.allclose(x.grad, expected, atol=1e-5)
    assert torch.allclose(weight.grad, (mask * torch.tanh(x)).sum(0).detach(), atol=1e-4)


def test_detached_results_are_still_results() -> None:
    torch._dynamo.reset()
    x, weight = torch.randn(4, 5), torch.randn(5, 6, requires_grad=True)

    def both(a: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.tanh(a @ w)
        seen = y.detach()
        return (seen * 2 + y).sum(), seen

    total, seen = torch.compile(both, backend="tilefuse", dynamic=False)(x, weight)
    assert not seen.requires_grad and torch.allclose(seen, torch.tanh(x @ weight), atol=1e-6)
    total.backward()
    expected = torch.autograd.grad(both(x, weight)[0], weight)[0]
    assert weight.grad is not None and torch.allclose(weight.grad, expected, atol=1e-5)


POOLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "padded": lambda x: F.max_pool2d(torch.relu(x), 3, 2, 1, ceil_mode=True),
    "uneven": lambda x: F.max_pool2d(x, (2, 5), (1, 3), (1, 2), (3, 2)),
    "most places": lambda x: F.max_pool2d(x, 16, 1),
    "more places": lambda x: F.max_pool2d(x, 17, 1),
    "three": lambda x: F.max_pool3d(x[:, None], (2, 3, 3), (1, 2, 2), (1, 1, 0)),
    "one": lambda x: F.max_pool1d(x.flatten(1, 2), 4, 3, 1),
}


def test_gradients_of_pools_go_where_the_maxima_are() -> None:
    """Also those of windows with NaN, or of nothing but -inf."""
    x = torch.randn(3, 4, 17, 19, generator=torch.Generator().manual_seed(0))
    x[0, 0, 3, 4], x[1] = float("nan"), float("-inf")

    def all_pools(x: torch.Tensor) -> torch.Tensor:
        found = torch.cat([pool(x).flatten() for pool in POOLS.values()]).clamp(-9, 9)
        return (found * torch.arange(1.0, found.numel() + 1.0).cos()).sum()

    given, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch._dynamo.reset()
    torch.compile(all_pools, backend="tilefuse", dynamic=False)(given).backward()
    all_pools(other).backward()
    assert given.grad is not None and other.grad is not None
    torch.testing.assert_close(given.grad, other.grad)
    kept = kept_by(lambda: (nn.Module(), (torch.randn(3, 4, 17, 19, requires_grad=True),)), "ours", lambda _: all_pools)
    assert sum(n.meta["val"].dtype == torch.uint8 for n in kept) == len(POOLS) - 1


def test_places_that_are_read_elsewhere_stay() -> None:
    def both(x: torch.Tensor) -> torch.Tensor:
        top, places = F.max_pool2d(x, 2, return_indices=True)
        return (top * places).sum()

    kept = kept_by(lambda: (nn.Module(), (torch.randn(1, 2, 8, 8, requires_grad=True),)), "ours", lambda _: both)
    assert [n.meta["val"].dtype for n in kept] == [torch.int64]


@pytest.mark.parametrize(("pool", "backward"), [
    (F.max_pool2d, torch.ops.aten.max_pool2d_with_indices_backward), (F.max_pool3d, torch.ops.aten.max_pool3d_with_indices_backward)])
def test_places_in_windows_name_those_in_the_image(pool: Callable[..., Any], backward: Callable[..., Any]) -> None:
    """The operator as torch runs it where a part is not compiled."""
    rank = 2 if pool is F.max_pool2d else 3
    x = torch.randn(2, 3, *(9, 8, 7)[:rank])
    size, stride, padding, dilation = ([n] * rank for n in (3, 2, 1, 2))
    top, places = pool(x, size, stride, padding, dilation, return_indices=True)
    near = torch.zeros_like(top, dtype=torch.uint8)
    windows = Windows(tuple(x.shape[2:]), tuple(size), tuple(stride), tuple(padding), tuple(dilation))
    for candidate in range(3**rank):
        near[places_in_image(torch.full_like(near, candidate), windows) == places] = candidate
    assert torch.equal(places_in_image(near, windows), places)
    expected = backward(top, x, size, stride, padding, dilation, False, places)
    assert torch.equal(NEAR_BACKWARD(top, near, list(x.shape), size, stride, padding, dilation, False), expected)
