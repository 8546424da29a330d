"""torch.compile(backend="tilefuse") against eager torch, on the host executor: what a user relies on."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.end_to_end.torch.strict import strict
from tilefuse.base.errors import InternalError, OptionError
from tilefuse.driver import torch_backend
from tilefuse.driver.torch_backend import backend, compiled_parts, given_strides

pytestmark = pytest.mark.usefixtures("fresh")


def close(a: Any, b: Any, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def check(fn: Callable[..., Any], *inputs: Any, tolerance: float = 1e-4) -> Any:
    """Compiled and eager agree, results' strides too, and something was compiled."""
    with torch.no_grad():
        wanted = fn(*(x.clone() if isinstance(x, torch.Tensor) and x.is_contiguous() else x for x in inputs))
        made = torch.compile(fn, backend=strict)(*inputs)
    close(made, wanted, tolerance)
    for a, b in zip(flat(made), flat(wanted), strict=True):
        # Strides of a tensor without elements mean nothing, and versions of torch differ.
        assert a.stride() == given_strides(b) or not a.numel()
    assert compiled_parts()
    return made


def flat(x: Any) -> list[torch.Tensor]:
    leaves, _ = torch.utils._pytree.tree_flatten(x)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def train_step(model: nn.Module, loss: Callable[..., torch.Tensor], *inputs: Any, tolerance: float = 1e-3) -> None:
    """Two steps of gradient descent, compiled and eager: losses, gradients, parameters and buffers agree."""
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend=strict)
    for _ in range(2):
        for module, run in ((model, compiled), (eager, eager)):
            module.zero_grad()
            loss(run(*inputs)).backward()
            with torch.no_grad():
                for p in module.parameters():
                    p -= 0.1 * p.grad
    for (name, a), b in zip(model.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")
    close(dict(model.named_buffers()), dict(eager.named_buffers()), tolerance)
    assert compiled_parts("forward") and compiled_parts("backward")


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2)
        self.norm_1, self.norm_2, self.last = nn.BatchNorm2d(8), nn.BatchNorm2d(16), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm_1(self.first(x))), 2)
        x = F.relu(self.norm_2(self.second(x)))
        return self.last(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.rms, self.norm, self.group = nn.Embedding(60, 16), nn.RMSNorm(16), nn.LayerNorm(16), nn.GroupNorm(4, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        x = self.norm(x + F.gelu(self.rms(x)))
        x = self.group(x.transpose(1, 2)).transpose(1, 2)
        return F.cross_entropy((x @ self.table.weight.t()).flatten(0, 1), tokens.flatten())


# Inference


def test_the_entry_point_is_found() -> None:
    y = torch.compile(lambda x: x * 2 + 1, backend="tilefuse")(torch.arange(5.0))
    close(y, torch.arange(5.0) * 2 + 1)
    assert len(compiled_parts("inference")) == 1


def test_encoder_layer() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    check(layer, torch.randn(2, 7, 32), tolerance=1e-4)


def test_convolutions() -> None:
    check(Convolutions().eval(), torch.randn(2, 3, 17, 18))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_types(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8), nn.Softmax(-1)).to(dtype).eval()
    check(model, torch.randn(5, 16).to(dtype), tolerance={torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float64: 1e-9}[dtype])


def test_layouts_of_inputs() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return (x + y).exp() * z.sum(0)

    check(fn, torch.randn(6, 5).t(), torch.randn(5, 13)[:, 1::2], torch.randn(4, 1, 6).expand(4, 5, 6))
    check(fn, torch.randn(31)[1:31].view(5, 6), torch.randn(5, 6), torch.randn(2, 5, 6))


def test_layouts_of_results() -> None:
    x = torch.randn(3, 4, 5, 6)
    check(
        lambda x: (
            x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
            (x + 1).transpose(0, 3),
            x.sum(0, keepdim=True).expand(3, 4, 5, 6),
        ),
        x,
    )
    check(lambda x: x.relu(), x.to(memory_format=torch.channels_last))


def test_results_do_not_share_memory_with_inputs() -> None:
    x = torch.randn(4, 5)
    for fn in (
        lambda x: x.clone(),
        lambda x: x.t().contiguous().t(),
        lambda x: x.t().clone(),
        lambda x: x * 1,
        lambda x: x.to(torch.float32) + 0,
    ):
        y = torch.compile(fn, backend=strict)(x)
        before = x.clone()
        y.add_(1)
        close(x, before)
        torch_backend.reset()


def test_results_of_every_kind() -> None:
    def fn(x: torch.Tensor) -> Any:
        return {"a": x, "b": [x + 1, 3, None], "c": (x + 1, x.view(-1), x.shape[0]), "d": x.sum().item() if False else 2.5}

    made = torch.compile(fn, backend=strict)(torch.arange(6.0).view(2, 3))
    wanted = fn(torch.arange(6.0).view(2, 3))
    assert made["b"][1:] == [3, None] and made["c"][2] == 2 and made["d"] == 2.5
    close([made["a"], made["b"][0], *made["c"][:2]], [wanted["a"], wanted["b"][0], *wanted["c"][:2]])


def test_empty_and_single_elements() -> None:
    check(lambda x, y: (x + 1, x.sum(0), torch.cat([x, x]), y.exp(), y.softmax(0)), torch.randn(0, 3), torch.randn(1))


def test_numbers_as_arguments() -> None:
    fn = torch.compile(lambda x, a, n: x * a + n, backend=strict)
    for a, n in ((1.5, 2), (2.5, 3), (3.5, 4)):
        close(fn(torch.ones(4), a, n), torch.ones(4) * a + n)


def test_mutation_and_aliasing() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        y[1:, ::2] = 5.0
        view = x[0]
        view.mul_(2)
        return view, x.t(), x + y

    a, b = torch.randn(4, 6), torch.randn(4, 6)
    x, y, u, v = a.clone(), b.clone(), a.clone(), b.clone()
    made, wanted = torch.compile(fn, backend=strict)(x, y), fn(u, v)
    close([x, y, *made], [u, v, *wanted])
    made[0].fill_(0)
    wanted[0].fill_(0)
    close(x, u)


def test_swapped_inputs() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> None:
        kept = x.clone()
        x.copy_(y)
        y.copy_(kept)

    x, y = torch.randn(5), torch.randn(5)
    a, b = x.clone(), y.clone()
    torch.compile(fn, backend=strict)(x, y)
    close([x, y], [b, a])


# Training


def test_training_encoder() -> None:
    train_step(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0), lambda y: (y * y).mean(), torch.randn(2, 7, 32))


def test_training_convolutions() -> None:
    train_step(Convolutions(), lambda y: F.cross_entropy(y, torch.tensor([1, 2])), torch.randn(2, 3, 17, 18))


def test_training_language_model() -> None:
    train_step(Language(), lambda y: y, torch.randint(0, 60, (3, 6)))


def test_training_recommender() -> None:
    class Recommender(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(20, 8), nn.Embedding(30, 8, padding_idx=3)
            self.top = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.top(torch.cat([self.users(a), self.items(b)], 1)).squeeze(1)

    train_step(
        Recommender(),
        lambda y: F.binary_cross_entropy_with_logits(y, torch.ones(9)),
        torch.randint(0, 20, (9,)),
        torch.randint(0, 30, (9,)),
    )


def test_training_autoencoder() -> None:
    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.code = nn.Conv2d(1, 4, 3, 2, 1), nn.Linear(4 * 7 * 7, 8)
            self.decode, self.up = nn.Linear(4, 4 * 7 * 7), nn.ConvTranspose2d(4, 1, 3, 2, 1, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mean, spread = self.code(F.silu(self.down(x)).flatten(1)).chunk(2, 1)
            y = torch.sigmoid(self.up(F.relu(self.decode(mean + torch.exp(0.5 * spread) * 0.3)).view(-1, 4, 7, 7)))
            return F.binary_cross_entropy(y, x.sigmoid()) - 0.5 * (1 + spread - mean * mean - spread.exp()).mean()

    train_step(Autoencoder(), lambda y: y, torch.randn(2, 1, 14, 14))


def test_optimizer_step() -> None:
    for make in (
        lambda p: torch.optim.Adam(p, foreach=False),
        lambda p: torch.optim.SGD(p, momentum=0.9, foreach=True),
        lambda p: torch.optim.AdamW(p, foreach=True),
    ):
        torch.manual_seed(1)
        a, b = nn.Linear(5, 4), nn.Linear(5, 4)
        b.load_state_dict(a.state_dict())
        first, second = make(a.parameters()), make(b.parameters())
        step = torch.compile(first.step, backend=strict)
        for _ in range(3):
            x = torch.randn(3, 5)
            for model, run in ((a, step), (b, second.step)):
                model.zero_grad()
                model(x).square().sum().backward()
                run()
        close(a.state_dict(), b.state_dict())
        torch_backend.reset()


# Random numbers


def test_dropout_is_reproducible_and_scaled() -> None:
    fn = torch.compile(lambda x: F.dropout(x, 0.25, True), backend=strict)
    x = torch.ones(100, 101)
    torch.manual_seed(7)
    a, b = fn(x), fn(x)
    torch.manual_seed(7)
    c = fn(x)
    assert torch.equal(a, c) and not torch.equal(a, b)
    assert set(a.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert abs((a != 0).float().mean().item() - 0.75) < 0.02


def test_dropout_agrees_between_forward_and_backward() -> None:
    x = torch.randn(64, 65, requires_grad=True)
    y = torch.compile(lambda x: F.dropout(x * 3, 0.5, True).sin(), backend=strict)(x)
    y.sum().backward()
    kept = y != 0
    close(x.grad[~kept], torch.zeros_like(x.grad[~kept]))
    close(x.grad[kept], (6 * torch.cos(6 * x.detach()))[kept], 1e-3)


def test_random_operators() -> None:
    def fn(x: torch.Tensor) -> Any:
        return (
            torch.rand(1000),
            torch.randn_like(x),
            torch.bernoulli(torch.full((1000,), 0.3)),
            torch.randint(3, 9, (1000,)),
            torch.rand(5),
            torch.empty(1000).uniform_(2, 4),
            torch.empty(1000).normal_(1, 2),
        )

    u, n, b, i, v, w, z = torch.compile(fn, backend=strict)(torch.zeros(1000))
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.05
    assert abs(n.mean()) < 0.15 and abs(n.std() - 1) < 0.1
    assert abs(b.mean() - 0.3) < 0.06 and set(b.unique().tolist()) == {0.0, 1.0}
    assert set(i.unique().tolist()) == {3, 4, 5, 6, 7, 8}
    assert not torch.equal(u[:5], v)
    assert w.min() >= 2 and w.max() < 4 and abs(z.mean() - 1) < 0.3 and abs(z.std() - 2) < 0.2


# Programs that cannot be compiled


def test_an_operator_without_lowering_is_called_in_torch(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tilefuse"):
        check(lambda x: torch.sort(x * 2, 1)[0] + torch.median(x + 1, 1)[0].unsqueeze(1), torch.randn(4, 5))
    lines = [r.getMessage() for r in caplog.records if r.name == "tilefuse"]
    assert len(lines) == 1 and "aten.median.dim" in lines[0] and "sort" not in lines[0]


@torch.library.custom_op("tilefuse_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_custom_operator() -> None:
    check(lambda x: twice(x + 1).exp(), torch.randn(5))


@torch.library.custom_op("tilefuse_tests::neighbours", mutates_args=())
def neighbours(x: torch.Tensor) -> torch.Tensor:
    """Twice x, for tensors whose last dimension is dense: others are refused, as attention's kernels do."""
    assert x.stride() == (x.shape[1], 1), x.stride()
    return x * 2


@neighbours.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape)


def test_operands_of_a_custom_operator_lie_as_in_eager() -> None:
    """A transpose is a view here, also where eager made it contiguous for the call."""
    check(lambda x: neighbours((x + 1).t().contiguous()).exp(), torch.randn(5, 3))
    check(lambda x: neighbours(x.t().clone(memory_format=torch.contiguous_format)), torch.randn(5, 3))


def test_data_dependent_sizes() -> None:
    x = torch.tensor([1.0, -1.0, 2.0])
    close(torch.compile(lambda x: (x + 1)[x > 0] * 2, backend=strict)(x), (x + 1)[x > 0] * 2)


def test_our_own_error_falls_back_with_a_reproducer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise InternalError("a planted slip")

    monkeypatch.setattr(torch_backend, "compile_imported", broken)
    x = torch.randn(4)
    with caplog.at_level(logging.ERROR, "tilefuse"):
        made = torch.compile(lambda x: x.exp(), backend="tilefuse", options={"dump_dir": str(tmp_path)})(x)
    close(made, x.exp())
    folder = next(tmp_path.iterdir())
    assert {p.name for p in folder.iterdir()} == {"README", "graph.txt", "fx.py", "inputs.txt", "error.txt"}
    assert "a planted slip" in (folder / "error.txt").read_text() and str(folder) in caplog.text
    torch_backend.reset()
    with pytest.raises(Exception, match="a planted slip"):
        torch.compile(lambda x: x.exp(), backend=strict)(x)


# Settings


def test_modes_and_options() -> None:
    for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
        close(torch.compile(lambda x: x + 1, backend="tilefuse", mode=mode)(torch.ones(3)), torch.full((3,), 2.0))
        torch_backend.reset()
    close(torch.compile(lambda x: x + 1, backend="tilefuse", options={"fuse": False})(torch.ones(3)), torch.full((3,), 2.0))


def test_unknown_settings_offer_the_nearest() -> None:
    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(OptionError, match="did you mean reduce-overhead"):
        backend(gm, [torch.ones(3)], mode="reduce-overheads")
    with pytest.raises(OptionError, match="did you mean .*strict"):
        backend(gm, [torch.ones(3)], options={"strickt": True})
    with pytest.raises(OptionError, match="strict is bool"):
        backend(gm, [torch.ones(3)], options={"strict": "perhaps"})


def test_lists_of_settings() -> None:
    assert {"strict", "fuse", "cuda_graph"} <= set(torch_backend.list_options())
    assert set(torch_backend.list_mode_options()) == {"default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"}
    with pytest.raises(OptionError):
        torch_backend.list_mode_options("fastest")


def test_reset_restores_the_recompile_limit() -> None:
    before = torch._dynamo.config.recompile_limit
    torch.compile(lambda x: x + 1, backend="tilefuse")(torch.ones(3))
    assert torch._dynamo.config.recompile_limit >= 64
    torch_backend.reset()
    assert torch._dynamo.config.recompile_limit == before and not compiled_parts()


def test_sizes_declared_dynamic() -> None:
    """`mark_dynamic` forbids torch to guard on a size: each is compiled once, by the backend, and trains and mutates as ever."""
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU())
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend=strict, options={"sizes_at_once": 2})
    for rows in (6, 9, 6):
        x = torch.randn(rows, 4)
        torch._dynamo.mark_dynamic(x, 0)
        made, wanted = compiled(x), eager(x)
        close(made, wanted)
        made.pow(2).sum().backward()
        wanted.pow(2).sum().backward()
    close([p.grad for p in model.parameters()], [p.grad for p in eager.parameters()], 1e-3)
    close(dict(model.named_buffers()), dict(eager.named_buffers()))
    assert len(compiled_parts("forward")) == 2 and len(compiled_parts("backward")) == 2

    def doubled(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.view(-1) * x.shape[0]

    run = torch.compile(doubled, backend=strict)
    for rows in (2, 5):
        x = torch.randn(rows, 4)
        torch._dynamo.mark_dynamic(x, 0)
        y = x.clone()
        close(run(x), doubled(y))
        close(x, y)


WINDOWS = {"row": lambda y: y[0], "turned": lambda y: y.t(), "repeated": lambda y: y[:1].expand(5, 3), "all": lambda y: y}


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_a_window_onto_a_result_asks_for_no_gradient(window: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A detached tensor stays so, also where it lies in the memory of a result that has a gradient."""
    layer, x = torch.nn.Linear(3, 3), torch.randn(4, 3)
    compiled = torch.compile(lambda x: (lambda y: (y, window(y.detach())))(layer(x)), backend="tilefuse", options={"strict": True})
    y, seen = compiled(x)
    assert y.requires_grad and not seen.requires_grad
    torch.testing.assert_close(seen, window(y.detach()))
    y.sum().backward()
