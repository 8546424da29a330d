"""Measured runs on a device: steps have the device's own times, and calls are replayed again afterwards."""
from __future__ import annotations

import pytest
import torch
from torch import nn

import tilefuse
from tilefuse.driver import torch_backend

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def test_steps_have_the_times_of_the_device() -> None:
    """A copy-like kernel of 512 MiB cannot be faster than its bytes allow, nor half as fast; and no call is shorter than its steps."""
    torch_backend.reset()
    model = torch.compile(nn.Sequential(nn.LayerNorm(4096), nn.GELU()).cuda(), backend=torch_backend.backend)
    x = torch.randn(16384, 4096, device="cuda")
    with torch.no_grad():
        found = tilefuse.profile(model, x, repeats=5).data
    assert found["timing"] == "device"
    step, = (s for part in found["parts"] for s in part["steps"])
    assert 0.5 < step["limit_share"] < 1.15
    assert 0.9 * step["us"] < found["call_us"]["least"]


def test_steps_of_a_replayed_model_are_told_one_by_one_and_calls_replay_again() -> None:
    torch_backend.reset()
    model = torch.compile(nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256)) for _ in range(4))).cuda(),
                          backend=torch_backend.backend, mode="reduce-overhead")
    x = torch.randn(32, 256, device="cuda")
    with torch.no_grad():
        wanted = model(x).clone()
        found = tilefuse.profile(model, x, repeats=3).data
        part, = torch_backend.compiled_parts()
        replays = part.replayed.num_replays
        torch.testing.assert_close(model(x), wanted)
    steps = found["parts"][0]["steps"]
    assert len(steps) == len(part.program.spec.steps) > 4 and all(0.5 < s["us"] < 1000 for s in steps)
    assert part.replayed.num_replays == replays + 1
