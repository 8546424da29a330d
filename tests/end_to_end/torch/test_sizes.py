"""Sizes that change from call to call: torch traces a graph once for all of them, and a size is compiled when it is worth it."""
from __future__ import annotations

import copy
import logging
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.end_to_end.torch.strict import strict
from tilefuse.base.errors import OptionError
from tilefuse.driver import torch_backend
from tilefuse.driver.torch.settings import settings_of
from tilefuse.driver.torch_backend import compiled_parts, sized_parts

pytestmark = pytest.mark.usefixtures("fresh")

# The default, which calls of these tests depend on.
ONE = {"sizes_at_once": 1}


def close(made: Any, wanted: Any, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(made, wanted, rtol=tolerance, atol=tolerance / 10)


def num_traced() -> int:
    """Graphs that dynamo traced since the last reset."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


@pytest.fixture(autouse=True)
def counted(fresh: None) -> None:
    """Counts of this test alone."""
    torch._dynamo.utils.counters.clear()


def in_torch() -> int:
    """Calls that torch ran because their size was new."""
    return sum(part.num_in_torch for part in sized_parts())


def test_a_size_is_compiled_at_once_or_when_it_returns(caplog: pytest.LogCaptureFixture) -> None:
    """With three at once, others run in torch and are compiled at the second call. Torch traces twice."""
    fn = torch.compile(lambda x: F.softmax(x * 2, -1), backend=strict, options={"sizes_at_once": 3})
    inputs = [torch.randn(3, n) for n in range(2, 8)]
    with caplog.at_level(logging.WARNING, logger="tilefuse"):
        for x in inputs:
            close(fn(x), F.softmax(x * 2, -1))
    assert len(compiled_parts()) == 3 and in_torch() == 3 and num_traced() == 2
    assert caplog.text.count("runs a new size in torch") == 1, "said once"
    for _ in range(2):
        for x in inputs[1:]:
            close(fn(x), F.softmax(x * 2, -1))
    assert len(compiled_parts()) == len(inputs) and in_torch() == 3 and num_traced() == 2
    assert {part.sizes.partition("=")[2] for part in compiled_parts()} == {"", "3", "4", "5", "6", "7"}
    told = torch_backend.explain()
    assert "for x.shape[" in told and "compiles it at call 2" in told and "3 calls with other sizes ran in torch" in told


def test_the_first_size_is_compiled_and_others_are_explained() -> None:
    """By default a second size is no reason for a compile; the explanation tells which sizes ran in torch, how often and why."""
    assert settings_of(None, None).sizes_at_once == 1
    fn = torch.compile(lambda x: F.softmax(x * 2, -1), backend=strict, options={"sizes_at_once": 1})
    for n in (2, 3, 4, 4, *range(5, 16)):
        x = torch.randn(3, n)
        close(fn(x), F.softmax(x * 2, -1))
    assert len(compiled_parts()) == 2 and in_torch() == 13
    told = torch_backend.explain()
    assert "sizes compiled: x.shape[1]=4;" in told and "x.shape[1]=3 (1 call, compiled at call 2)" in told and "; and 4 more" in told


def test_how_often_is_an_option() -> None:
    inputs = [torch.randn(n, 3) for n in (2, 3, 4, 5)]
    fn = torch.compile(lambda x: x.exp().sum(0), backend=strict, options={"compile_at_call": 3, "sizes_at_once": 1})
    for turn, num_compiled in enumerate((1, 1, 4)):
        for x in inputs:
            close(fn(x), x.exp().sum(0))
        assert len(compiled_parts()) == num_compiled, turn
    torch_backend.reset()
    fn = torch.compile(lambda x: x.exp().sum(0), backend=strict, options={"compile_at_call": 0, "sizes_at_once": 0})
    for x in inputs * 3:
        close(fn(x), x.exp().sum(0))
    assert not compiled_parts() and "it is never compiled" in torch_backend.explain()
    with pytest.raises(OptionError, match="compile_at_call is -1"):
        settings_of(None, {"compile_at_call": -1})


def test_even_the_first_size_may_run_in_torch_until_it_returns() -> None:
    """A graph of fixed sizes is then compiled at its second call, which waits; its gradient, too."""
    model = MODELS["images"][0]()
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend=strict, options={"sizes_at_once": 0})
    batches = [torch.randn(2, 3, 8, 8) for _ in range(4)]
    for n, x in enumerate(batches):
        close(_trained(model, compiled, [x]), _trained(eager, eager, [x]), 1e-3)
        assert len(compiled_parts()) == (2 if n else 0)
    assert in_torch() == 2 and num_traced() == 1
    assert "graph0_forward ran in torch at 1 call; it is compiled at call 2" in torch_backend.explain()
    with torch.no_grad():
        for x in batches[:3]:
            close(compiled(x), eager(x), 1e-3)
    assert len(compiled_parts("inference")) == 1 and in_torch() == 3


def test_a_declared_dynamic_model_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """`dynamic=True` is no request that is ignored in silence: from the first size on, a size is compiled when it returns."""
    with caplog.at_level(logging.WARNING, logger="tilefuse"):
        fn = torch.compile(lambda x: x.sin() + x.shape[0], backend=strict, dynamic=True)
        for n in (5, 6, 7, 5, 5):
            close(fn(torch.ones(n, 3)), torch.ones(n, 3).sin() + n)
    assert "dynamic=True" in caplog.text and num_traced() == 1
    assert [part.sizes.split("=")[-1] for part in compiled_parts()] == ["3"], "the second size of an axis of 3 is a size, too"
    assert in_torch() == 3


def test_static_is_a_graph_a_size() -> None:
    """And graphs of one function are counted as sizes are: the first few are compiled at once."""
    fn = torch.compile(lambda x: x.cos().sum(), backend=strict, dynamic=False, options={"sizes_at_once": 2})
    for turn in range(3):
        for n in (3, 4, 5, 6):
            close(fn(torch.ones(n)), torch.ones(n).cos().sum())
        assert num_traced() == 4 and len(compiled_parts()) == (4 if turn else 2) and in_torch() == 2


def test_another_kind_of_call_is_compiled_when_it_returns() -> None:
    """A prompt, then tokens with a cache: the second graph is worth no compile before it comes again."""
    model = Language().eval()
    prompt = torch.randint(0, 50, (2, 7))
    compiled = torch.compile(model, backend=strict, options=ONE)
    wanted = generated(model, prompt, 2)
    for turn in range(3):
        assert torch.equal(generated(compiled, prompt, 2), wanted)
        assert len(compiled_parts()) == (2 if turn else 1) and in_torch() == 1
    torch._dynamo.reset()
    kept = compiled_parts()
    assert torch.equal(generated(compiled, prompt, 1), wanted[:, :1])
    assert not in_torch() and compiled_parts()[-1] not in kept, "graphs that torch forgot are not counted"


def test_models_of_one_class_count_apart() -> None:
    """Their code is the same, as torch sees it; their parameters are not. Neither are settings."""
    compiled = [torch.compile(nn.Sequential(nn.Linear(n, 3), nn.GELU()), backend=strict, options=ONE) for n in (4, 5)]
    for model, n in zip(compiled, (4, 5)):
        model(torch.randn(2, n))
    assert len(compiled_parts()) == 2 and not sized_parts()
    fn = [torch.compile(_twice, backend=strict, options={**ONE, **more}) for more in ({}, {"fuse": False})]
    for run in fn:
        close(run(torch.ones(3)), torch.full((3,), 2.0))
    assert len(compiled_parts()) == 4 and not sized_parts()


def _twice(x: Tensor) -> Tensor:
    return x + x


def _sizes_of_every_kind(x: Tensor, n: int) -> Any:
    rows, columns = x.shape
    y = x.reshape(-1)[: rows * columns // 2 * 2].view(2, -1) / math.sqrt(rows) + n % 3
    z = torch.cat([x, x[: rows // 2], torch.arange(columns).expand(n, columns)])
    return y, z.transpose(0, 1), rows, n * 2, x.sum() * (rows / columns), (rows + n,), torch.full((rows, n), 0.5)


def test_sizes_and_numbers_in_results_and_operators() -> None:
    """Sizes as numbers of operators, in shapes, and as results: the same in torch, compiled, and in eager mode."""
    fn = torch.compile(_sizes_of_every_kind, backend=strict)
    calls = [(torch.randn(rows, columns), n) for rows, columns, n in ((4, 6, 3), (5, 6, 4), (7, 6, 5), (8, 10, 6), (9, 11, 7), (9, 11, 8))]
    for x, n in calls * 3:
        close(fn(x, n), _sizes_of_every_kind(x, n))
    assert in_torch() and num_traced() == 3 and compiled_parts()


def test_strides_that_change_with_the_size() -> None:
    """Turned, sliced and expanded inputs; extents of one and none have graphs of their own."""
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.softmax(-1) @ x.mT, x.cumsum(0)

    compiled = torch.compile(fn, backend=strict)
    views: list[Callable[[int], Tensor]] = [
        lambda n: torch.randn(6, n).t(), lambda n: torch.randn(n, 12)[:, ::2], lambda n: torch.randn(1, 6).expand(n, 6)]
    for n in (4, 5, 7, 8, 1, 0, 8, 7):
        for view in views:
            x = view(n)
            close(compiled(x), fn(x))


def test_inputs_that_are_changed_or_given_back() -> None:
    def fn(x: Tensor, state: Tensor) -> Any:
        state.add_(x.sum(0))
        x[1:] *= 2
        return x, x[0], state.view(-1), x + state

    compiled = torch.compile(fn, backend=strict, options={"sizes_at_once": 3})
    for n in (3, 4, 5, 6, 7, 6, 7, 7):
        x, state = torch.randn(n, 5), torch.randn(5)
        mine, theirs = (x.clone(), state.clone()), (x.clone(), state.clone())
        close(compiled(*mine), fn(*theirs))
        close(mine, theirs)
    assert num_traced() == 2 and in_torch() == 2


def test_operators_that_torch_runs() -> None:
    """A graph in parts, and one with a library call of our own, are so for every size."""
    def fn(a: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.solve(a @ a.mT + 3 * torch.eye(a.shape[0]), b.exp()).softmax(0)

    compiled = torch.compile(fn, backend=strict)
    for n in (3, 4, 5, 6, 6):
        a, b = torch.randn(n, n), torch.randn(n, 2)
        close(compiled(a, b), fn(a, b), 1e-3)


def _trained(model: nn.Module, run: Callable[..., Tensor], batches: Sequence[Tensor]) -> list[Tensor]:
    losses = []
    for x in batches:
        loss = run(x).float().pow(2).mean()
        loss.backward()
        losses.append(loss.detach())
    return [*losses, *(p.grad for p in model.parameters() if p.grad is not None), *model.buffers()]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "rows": (lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)), (6,)),
    "images": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.AvgPool2d(2)),
               (3, 8, 8)),
    "tokens": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (5, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_training_with_other_batches(name: str) -> None:
    """Losses, gradients and running statistics are eager's, whichever batches are compiled; the last batch of an epoch is smaller."""
    make, shape = MODELS[name]
    model = make()
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend=strict, options={"sizes_at_once": 2})
    batches = [torch.randn(n, *shape) for n in (4, 3, 6, 2, 6, 2, 6)]
    close(_trained(model, compiled, batches), _trained(eager, eager, batches), 1e-3)
    assert {part.kind for part in compiled_parts()} == {"forward", "backward"}
    assert num_traced() == 2 and in_torch() == 4


def test_the_backward_of_one_size_runs_elsewhere_than_its_forward() -> None:
    """A forward pass without a gradient counts as a call: its program's results then go to torch's backward, and the reverse."""
    model = MODELS["images"][0]()
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend=strict, options={"sizes_at_once": 1})
    compiled(torch.randn(2, 3, 8, 8)).sum().backward()
    eager(torch.randn(2, 3, 8, 8))
    model.zero_grad()
    eager.load_state_dict(model.state_dict())
    x = torch.randn(5, 3, 8, 8)
    compiled(x), eager(x)
    compiled(x), eager(x)
    for _ in range(3):
        compiled(x).pow(2).mean().backward()
        eager(x).pow(2).mean().backward()
    close([p.grad for p in model.parameters()], [p.grad for p in eager.parameters()], 1e-3)
    forward, backward = sized_parts("forward"), sized_parts("backward")
    assert forward[0].num_in_torch == 1 and backward[0].num_in_torch == 1 and backward[0].compiled


def test_programs_kept_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """A program that was not called since the last call of another size makes room for it, and is compiled again when it returns."""
    fn = torch.compile(lambda x: x.tanh() * 2, backend=strict, options={"recompile_limit": 2, "sizes_at_once": 3})
    with caplog.at_level(logging.INFO, logger="tilefuse.sizes"):
        for n in (2, 3, 4, 3, 5, 3, 5, 4, 4):
            close(fn(torch.ones(n)), torch.ones(n).tanh() * 2)
    assert caplog.text.count("is forgotten") == 2 and [key[0] for key in sized_parts()[0].compiled] == [(5,), (4,)]


def test_more_sizes_in_turn_than_are_kept() -> None:
    """Some keep their programs and the others run in torch: none is compiled twice."""
    fn = torch.compile(lambda x: x.tanh() * 3, backend=strict, options={"recompile_limit": 3, "sizes_at_once": 3})
    for _ in range(4):
        for n in (2, 3, 4, 5, 6, 7):
            close(fn(torch.ones(n)), torch.ones(n).tanh() * 3)
    assert len(compiled_parts()) == 4 and [key[0] for key in sized_parts()[0].compiled] == [(3,), (4,), (5,)]


def test_threads_with_sizes_of_their_own() -> None:
    fn = torch.compile(lambda x: (x * 3).softmax(-1), backend=strict)
    for n in (2, 3):
        fn(torch.randn(n, 4))
    failures: list[str] = []

    def work(seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        for _ in range(20):
            x = torch.randn(int(torch.randint(2, 7, (), generator=draw)), 4, generator=draw)
            if not torch.allclose(fn(x), (x * 3).softmax(-1), atol=1e-5):
                failures.append(str(x.shape))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(compiled_parts()) == 6


class Attention(nn.Module):
    """One layer of a language model with a cache that grows by a token a call."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.joint, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch, length, width = x.shape
        q, k, v = (y.view(batch, length, self.heads, -1).transpose(1, 2) for y in self.joint(self.norm(x)).split(width, 2))
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        return x + self.out(seen.transpose(1, 2).reshape(x.shape)), (k, v)


class Language(nn.Module):
    """A small language model, two layers."""

    def __init__(self, width: int = 16, vocabulary: int = 50) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(64, width)
        self.layers = nn.ModuleList(Attention(width, 2) for _ in range(2))

    def forward(self, ids: Tensor, caches: list[tuple[Tensor, Tensor]] | None = None) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        past = 0 if caches is None else caches[0][0].shape[2]
        x = self.tokens(ids) + self.places(torch.arange(past, past + ids.shape[1]))
        grown = []
        for n, layer in enumerate(self.layers):
            x, cache = layer(x, None if caches is None else caches[n])
            grown.append(cache)
        return F.linear(x[:, -1], self.tokens.weight), grown


@torch.no_grad()
def generated(model: Callable[..., Any], ids: Tensor, count: int) -> Tensor:
    """The tokens that follow, each the likeliest."""
    scores, caches = model(ids)
    made = [scores.argmax(-1, keepdim=True)]
    for _ in range(count - 1):
        scores, caches = model(made[-1], caches)
        made.append(scores.argmax(-1, keepdim=True))
    return torch.cat(made, 1)


def test_generating_tokens_with_a_growing_cache() -> None:
    """As many traces as torch needs for itself, four programs, and eager's tokens; the same prompt again runs compiled."""
    model = Language().eval()
    compiled = torch.compile(model, backend=strict, options={"sizes_at_once": 3})
    prompt = torch.randint(0, 50, (2, 7))
    wanted = generated(model, prompt, 24)
    assert torch.equal(generated(compiled, prompt, 24), wanted)
    assert num_traced() == 3 and len(compiled_parts()) == 4 and in_torch() == 20
    assert torch.equal(generated(compiled, prompt, 10), wanted[:, :10])
    assert in_torch() == 20 and num_traced() == 3
