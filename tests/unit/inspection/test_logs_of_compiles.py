"""What the logs tell while models are compiled and called; a call pays nothing while they are off."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import tilefuse
from tests.unit.inspection.test_subject import Block, line_of
from tilefuse.driver import torch_backend
from tilefuse.runtime.program import Program


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TILEFUSE_LOGS", raising=False)
    torch_backend.reset()
    yield
    torch_backend.reset()


def test_breaks_recompiles_sizes_kernels_and_calls(capsys: pytest.CaptureFixture[str]) -> None:
    tilefuse.set_logs("graph_breaks,+recompiles,sizes,kernels,cache,+calls,plan")
    model = torch.compile(Block(), backend="tilefuse", options={"in_background": False})
    with torch.no_grad():
        for rows in (4, 4, 5):
            model(torch.randn(rows, 8))
    err = capsys.readouterr().err
    for wanted in (f"[tilefuse graph_breaks] {torch_place('the break')}: Call to `torch._dynamo.graph_break()`",
                   "[tilefuse recompiles] Block.forward at ", "size mismatch at index 0", "[tilefuse kernels] graph0_inference: k_",
                   "[tilefuse plan] ", "[tilefuse calls] graph0_inference: call 2, "):
        assert wanted in err, f"{wanted}\n{err}"


def torch_place(comment: str) -> str:
    import tests.unit.inspection.test_subject as module

    return f"{module.__file__}:{line_of(comment)}"


def test_calls_pay_only_while_their_log_is_shown() -> None:
    program = tilefuse.compile(lambda x: x * 2 + 1, (torch.randn(4),)).program
    assert isinstance(program, Program) and "_call" not in vars(program)
    tilefuse.set_logs("+calls")
    assert "_call" in vars(program)
    tilefuse.set_logs()
    assert "_call" not in vars(program)
