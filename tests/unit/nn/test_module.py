"""Modules hold arrays by dotted name, hand out their state and are left alone by `apply`."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tilefuse.array as ta
from tilefuse import nn
from tilefuse.base.errors import NameLookupError, ShapeError, TypeMismatchError, UserError


class Net(nn.Module):
    """Parts as attributes, a list and a sequence, one that is left out."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        draws = nn.initialise.generator(seed)
        self.first = nn.Linear(3, 4, seed=draws)
        self.blocks = [nn.Linear(4, 4, bias=False, seed=draws), nn.BatchNorm(4)]
        self.short = None
        self.tail = nn.Sequential(nn.ReLU(), nn.Linear(4, 2, seed=draws))

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.tail(x if self.short is None else x + self.short(x))


def test_names_follow_the_order_of_definition() -> None:
    assert list(Net().parameters()) == ["first.weight", "first.bias", "blocks.0.weight", "blocks.1.weight", "blocks.1.bias",
                                        "tail.1.weight", "tail.1.bias"]
    assert list(Net().statistics()) == ["blocks.1.running_mean", "blocks.1.running_var"]


def test_an_optional_part_may_come_later() -> None:
    net = Net()
    net.short = nn.Linear(4, 4)
    assert "short.weight" in net.parameters() and net.short is not None


def test_a_seed_decides_all_weights() -> None:
    first, again, other = (Net(seed).state_dict() for seed in (1, 1, 2))
    assert all((first[k] == again[k]).all() for k in first)
    assert (first["first.weight"] != other["first.weight"]).any() and (first["tail.1.weight"] != other["tail.1.weight"]).any()


def test_state_goes_around() -> None:
    net, other = Net(1), Net(2)
    other.load_state_dict(net.state_dict())
    assert all((a == b).all() for a, b in zip(net.state_dict().values(), other.state_dict().values(), strict=True))


def test_a_loaded_state_is_a_copy() -> None:
    """The arrays that the state was read from may go on changing."""
    theirs, ours = torch.nn.Linear(2, 2), nn.Linear(2, 2)
    ours.load_state_dict({n: p.detach() for n, p in theirs.named_parameters()})
    wanted = theirs.weight.detach().numpy().copy()
    with torch.no_grad():
        theirs.weight.fill_(7.0)
    assert np.array_equal(ours.state_dict()["weight"], wanted)


@pytest.mark.parametrize("wrong", (
    lambda: nn.BatchNorm2d(3)(ta.ones((1, 2, 5, 5))), lambda: nn.LayerNorm(3)(ta.ones((2, 2))), lambda: nn.Dropout(1.5),
    lambda: nn.mse(ta.ones((2, 2)), ta.ones((2,))), lambda: nn.cross_entropy(ta.ones((2,)), ta.ones((2,), dtype=ta.int64)),
    lambda: nn.Conv2d(3, 4, 3, groups=2), lambda: nn.Linear(2, 2).load_state_dict({}), lambda: nn.Module()(1),
))
def test_errors_name_the_users_line(wrong: Callable[[], Any]) -> None:
    """The line that uses the layer, and not one of the layers' own."""
    with pytest.raises(UserError) as caught:
        wrong()
    assert str(caught.value.where).startswith(f"{__file__}:{wrong.__code__.co_firstlineno}:"), caught.value


def test_a_foreign_state_is_refused() -> None:
    state = Net().state_dict()
    with pytest.raises(UserError, match=r"missing \['first.bias'\]"):
        Net().load_state_dict({k: v for k, v in state.items() if k != "first.bias"})
    with pytest.raises(NameLookupError, match="weigth"):
        Net().load({"first.weigth": ta.zeros((4, 3))})
    with pytest.raises(ShapeError, match="weight"):
        Net().load({"first.weight": ta.zeros((3, 4))})
    with pytest.raises(TypeMismatchError):
        Net().load({"first.weight": ta.zeros((4, 3), dtype=ta.float64)})


def test_apply_leaves_the_module_as_it_was() -> None:
    net = Net()
    before = net.parameters() | net.statistics()
    zeros = {k: ta.zeros_like(v) for k, v in net.parameters().items()}
    result, after = nn.apply(net, zeros, ta.ones((5, 3)))
    assert (result.numpy() == 0).all()
    assert net.parameters() | net.statistics() == before or all(a is b for a, b in zip((net.parameters() | net.statistics()).values(),
                                                                                        before.values(), strict=True))
    assert after["blocks.1.running_var"] is not before["blocks.1.running_var"]


def test_a_compiled_call_of_a_network_follows_what_it_holds() -> None:
    """Weights that are replaced, loaded or trained, and the mode, are read at each call: they were those of the first call for ever."""
    draws = nn.initialise.generator(3)
    net = nn.Sequential(nn.Linear(3, 4, seed=draws), nn.Dropout(0.5), nn.Linear(4, 2, seed=draws)).eval()
    x = ta.asarray(np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32))
    closed, given = ta.compile(lambda x: net(x)), ta.compile(lambda model, x: model(x))
    slopes = ta.compile(lambda x: ta.grad(ta.sum(net(x) ** 2), net.parameters()))

    def check() -> None:
        wanted = net(x).numpy()
        assert np.allclose(closed(x).numpy(), wanted, atol=1e-6) and np.allclose(given(net, x).numpy(), wanted, atol=1e-6)
        made, eager = slopes(x), ta.grad(ta.sum(net(x) ** 2), net.parameters())
        assert all(np.allclose(made[n].numpy(), eager[n].numpy(), rtol=1e-5, atol=1e-6) for n in eager)

    check()
    first = getattr(net, "0")
    first.weight = first.weight * 2  # not computed yet
    check()
    net.load_state_dict({n: v * 0.5 for n, v in net.state_dict().items()})
    check()
    assert len(closed.programs) == 1
    net.train()
    assert not np.allclose(closed(x).numpy(), net.eval()(x).numpy(), atol=1e-6)
    check()
    assert len(closed.programs) == 2


def test_a_trace_leaves_nothing_in_a_network() -> None:
    """A batch norm in training mode would keep stand-ins of its running means."""
    norm = nn.BatchNorm2d(2)
    compiled = ta.compile(lambda x: norm(x))
    x = ta.asarray(np.random.default_rng(0).standard_normal((3, 2, 4, 4)).astype(np.float32))
    with pytest.raises(UserError, match="BatchNorm2d would change its running_mean"):
        compiled(x)
    norm(x)
    norm.eval()
    assert np.allclose(compiled(x).numpy(), norm(x).numpy(), atol=1e-6)


def test_modes_reach_all_parts() -> None:
    net = Net().eval()
    assert not any(m.training for _, m in net.modules())
    assert all(m.training for _, m in net.train().modules())


def test_a_module_must_be_begun() -> None:
    class Hasty(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.ReLU()

    with pytest.raises(UserError, match="super"):
        Hasty()


@pytest.mark.parametrize(("make", "deviation"), [
    (lambda s: nn.initialise.kaiming_normal((400, 300), seed=s), (2 / 300) ** 0.5),
    (lambda s: nn.initialise.kaiming_uniform((400, 300), seed=s), (2 / 300) ** 0.5),
    (lambda s: nn.initialise.xavier_uniform((400, 300), seed=s), (2 / 700) ** 0.5),
    (lambda s: nn.initialise.inverse_root((400, 300), 300, seed=s), (1 / 900) ** 0.5),
])
def test_first_values_have_the_spread_they_should(make: Any, deviation: float) -> None:
    found = make(3).numpy()
    assert abs(found.std() / deviation - 1) < 0.02 and abs(found.mean()) < 0.02 * deviation  # several standard errors of 120000 draws
    assert (found == make(3).numpy()).all() and found.dtype == np.float32


def test_inputs_come_from_anywhere_but_are_floats() -> None:
    """NumPy arrays and tensors go in; integers would round the weights, so they are refused at the user's line."""
    layer = nn.Linear(3, 2, seed=nn.initialise.generator(1))
    data = np.ones((4, 3), np.float32)
    assert layer(data).shape == layer(torch.from_numpy(data)).shape == (4, 2)
    for wrong in (lambda: layer(np.ones((4, 3), np.int64)), lambda: nn.Conv2d(1, 2, 3)(ta.ones((1, 1, 5, 5), dtype="int32"))):
        with pytest.raises(TypeMismatchError, match=r"is for floats, not for i\d+(.*\n)*.*test_module.py"):
            wrong()


def test_a_network_prints_its_parts() -> None:
    """With the shapes of what they hold."""
    text = repr(Net())
    assert "  first: Linear(weight: [4, 3], bias: [4])" in text and "    1: Linear(weight: [2, 4], bias: [2])" in text
    assert text.startswith("Net()") and "  blocks.1: BatchNorm(" in text
