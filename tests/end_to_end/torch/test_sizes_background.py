"""Sizes that return are compiled in the background: calls never wait, results stay right, and the programs are swapped in."""
from __future__ import annotations

import copy
import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.end_to_end.torch.strict import strict
from tests.end_to_end.torch.test_sizes import Language, close, generated, in_torch
from tilefuse.base import trace
from tilefuse.driver import torch_backend
from tilefuse.driver.reuse import background, known_programs
from tilefuse.driver.torch_backend import compiled_parts, sized_parts

pytestmark = pytest.mark.usefixtures("fresh")

# The default, which calls of these tests depend on.
ONE = {"sizes_at_once": 1}


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are handed over through a cache folder of this test."""
    monkeypatch.setattr(known_programs, "enabled", True)
    monkeypatch.setenv("TILEFUSE_CACHE_DIR", str(tmp_path))


def test_tokens_stay_right_while_programs_are_swapped_in() -> None:
    """Lengths that return are compiled while torch runs them; in the end none runs in torch."""
    model = Language().eval()
    compiled = torch.compile(model, backend=strict, options=ONE)
    prompt = torch.randint(0, 50, (2, 7))
    wanted = generated(model, prompt, 6)
    assert torch.equal(generated(compiled, prompt, 6), wanted) and len(compiled_parts()) == 1 and in_torch() == 5
    for _ in range(5):
        before = in_torch()
        assert torch.equal(generated(compiled, prompt, 6), wanted)
        assert torch_backend.settle(120)
    assert in_torch() == before and len(compiled_parts()) == 6
    assert "sizes in torch" not in torch_backend.explain()


def test_training_in_the_background_is_eagers() -> None:
    """Forward and backward programs are made apart: each is swapped in when it is ready, whatever runs the other."""
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend=strict, options=ONE)
    for number, n in enumerate((4, 5, 5, 5, 5, 5)):
        x = torch.randn(n, 6)
        with trace.tracing(trace.Trace()) as told:
            losses = [run(x).pow(2).mean() for run in (compiled, eager)]
            close(losses[0], losses[1])
            for loss in losses:
                loss.backward()
        # Both programs of the size that returns are planned there, and found here.
        assert number == 0 or "plan" not in told.seconds_by_name()
        close([p.grad for p in model.parameters()], [p.grad for p in eager.parameters()])
        assert torch_backend.settle(120)
    assert {kind: len(sized_parts(kind)[0].compiled) for kind in ("forward", "backward")} == {"forward": 1, "backward": 1}


def test_what_fails_there_is_compiled_here_with_the_reason(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(background, "_PROCESS", [background.BackgroundProcess(("/no/such/python",))])
    fn = torch.compile(lambda x: (x * 3).softmax(-1), backend=strict, options=ONE)
    with caplog.at_level(logging.WARNING, logger="tilefuse"):
        for n in (3, 4, 4, 4, 4):
            x = torch.randn(n, 5)
            close(fn(x), (x * 3).softmax(-1))
            assert torch_backend.settle(60)
    assert "while its call waits: the background process does not start" in caplog.text
    assert len(compiled_parts()) == 2 and in_torch() == 2


def test_the_call_waits_where_the_option_says_so() -> None:
    fn = torch.compile(lambda x: (x * 5).softmax(-1), backend=strict, options={**ONE, "in_background": False})
    for n in (3, 4, 4):
        x = torch.randn(n, 5)
        with trace.tracing(trace.Trace()) as told:
            close(fn(x), (x * 5).softmax(-1))
    assert "plan" in told.seconds_by_name() and len(compiled_parts()) == 2
