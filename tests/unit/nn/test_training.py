"""Training steps: optimisers against torch's over some steps, one compiled function with everything updated in place, equal runs from
equal seeds."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tilefuse.array as ta
from tilefuse import nn, optim
from tilefuse.base.errors import UserError

STEPS = 4


def data(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """A batch of eight vectors and their classes."""
    draws = np.random.default_rng(seed)
    return draws.standard_normal((8, 6)).astype(np.float32), draws.integers(0, 3, 8)


def perceptron(dropout: float = 0.0) -> nn.Module:
    """Two linear layers with a batch norm between them (which would leave a bias before it nothing but rounding errors to follow)."""
    draws = nn.initialise.generator(5)
    return nn.Sequential(nn.Linear(6, 8, bias=False, seed=draws), nn.BatchNorm(8), nn.ReLU(), nn.Dropout(dropout),
                         nn.Linear(8, 3, seed=draws))


OPTIMISERS: dict[str, tuple[Any, Callable[[Any], torch.optim.Optimizer]]] = {
    "sgd": (optim.SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (optim.SGD(0.1, momentum=0.9, weight_decay=0.01), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01)),
    "nesterov": (optim.SGD(0.1, momentum=0.9, nesterov=True), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True)),
    "adam": (optim.Adam(0.01, weight_decay=0.02), lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.02)),
    "adamw": (optim.AdamW(0.01, weight_decay=0.1), lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1)),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_steps_are_those_of_torch(name: str) -> None:
    """Parameters, running statistics and losses after some steps. Sums of a dozen f32 products: 1e-5, and Adam's roots of small squares."""
    optimiser, theirs = OPTIMISERS[name]
    model = perceptron()
    reference = torch.nn.Sequential(torch.nn.Linear(6, 8, bias=False), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Dropout(0.0),
                                    torch.nn.Linear(8, 3))
    state = model.state_dict()
    reference.load_state_dict({k: torch.from_numpy(state[k]) if k in state else v for k, v in reference.state_dict().items()})
    other = theirs(reference.parameters())
    step = nn.TrainingStep(model, nn.cross_entropy, optimiser)
    x, classes = data()
    for _ in range(STEPS):
        other.zero_grad()
        wanted = F.cross_entropy(reference(torch.from_numpy(x)), torch.from_numpy(classes))
        wanted.backward()
        other.step()
        assert abs(float(step(x, classes)) - wanted.item()) < 1e-4
    for key, value in model.state_dict().items():
        assert np.abs(value - reference.state_dict()[key].numpy()).max() < 2e-4, key
    assert len(step.compiled.programs) == 1


def test_parameters_of_f64_move_with_its_precision() -> None:
    """The corrections of Adam's first steps too: in f32 they left 1e-8 of the parameters."""
    draws = np.random.default_rng(5)
    first, slopes = draws.standard_normal(4), draws.standard_normal((12, 4))
    theirs = torch.tensor(first, requires_grad=True)
    torch_steps, ours = torch.optim.AdamW([theirs], 1e-2, weight_decay=0.1), optim.AdamW(1e-2, weight_decay=0.1)
    mine = {"w": ta.asarray(first)}
    state = ours.init(mine)
    step = ta.compile(ours.update)
    for slope in slopes:
        theirs.grad = torch.tensor(slope)
        torch_steps.step()
        mine, state = step(mine, {"w": slope}, state)
    np.testing.assert_allclose(mine["w"].numpy(), theirs.detach().numpy(), rtol=1e-13, atol=1e-14)


def test_everything_is_updated_in_place() -> None:
    """No copy steps, the same memory after a step, and few kernels for many parameters."""
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.Tanh())))
    step = nn.TrainingStep(model, nn.mse, optim.Adam())
    x = np.ones((4, 16), np.float32)
    float(step(x, x))
    before = {name: a.buffer().data_ptr() for name, a in model.parameters().items()}
    float(step(x, x))
    assert before == {name: a.buffer().data_ptr() for name, a in model.parameters().items()}
    explained = step.compiled.programs[0].explain(json=True)
    assert not any(type(s).__name__ == "CopyStep" for s in step.compiled.programs[0].spec.steps)
    assert explained["num_kernels"] <= 14, explained["num_kernels"]


def test_a_seed_decides_the_whole_course() -> None:
    """Bit by bit, dropout included; another seed gives another course."""
    x, classes = data()
    courses = []
    for seed in (3, 3, 4):
        step = nn.TrainingStep(perceptron(0.5), nn.cross_entropy, optim.Adam(0.01), seed=seed)
        courses.append([float(step(x, classes)) for _ in range(STEPS)])
    assert courses[0] == courses[1] and courses[0] != courses[2]
    assert len(set(courses[0])) == STEPS  # each step drops others


def test_a_rate_may_follow_the_step() -> None:
    """One program, though the rate changes."""
    parameters, gradients = {"w": ta.ones((3,))}, {"w": ta.ones((3,))}
    optimiser = optim.SGD(lambda step: 0.5 / (step + 1.0))
    update = ta.compile(optimiser.update)
    state = optimiser.init(parameters)
    for _ in range(2):
        parameters, state = update(parameters, gradients, state)
    assert np.allclose(parameters["w"].numpy(), 1 - 0.5 - 0.25)
    assert len(update.programs) == 1


def test_a_step_written_out_by_hand() -> None:
    """The work of TrainingStep as a user may write it: any function of parameters."""
    w = {"w": ta.asarray(np.array([3.0, -2.0], np.float32))}
    optimiser = optim.Adam(0.5)

    @ta.compile(donate=(0, 1))
    def step(parameters: Any, state: Any) -> Any:
        loss, gradients = ta.value_and_grad(lambda p: ta.sum(p["w"] * p["w"]))(parameters)
        return *optimiser.update(parameters, gradients, state), loss

    state = optimiser.init(w)
    losses = []
    for _ in range(30):
        w, state, loss = step(w, state)
        losses.append(float(loss))
    assert losses[0] == 13.0 and losses[-1] < 0.5


@pytest.mark.parametrize("wrong", [
    lambda: optim.SGD(-1.0), lambda: optim.SGD(0.1, nesterov=True), lambda: optim.Adam(1e-3, decays=(1.0, 0.9)),
    lambda: optim.Adam(weight_decay=-1.0), lambda: optim.Adam().init({}),
])
def test_settings_out_of_range_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(UserError):
        wrong()
