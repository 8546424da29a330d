"""Training parts as the backend makes them: which inputs of a backward part lie where they lay at the call before."""
from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from tilefuse.driver import torch_backend
from tilefuse.driver.torch.part import CompiledPart


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch_backend.reset()
    yield
    torch_backend.reset()


def test_a_backward_part_reads_what_was_kept_and_parameters_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its recording must copy neither: only gradients of results and the batch move from call to call."""
    told: dict[str, tuple[str, ...]] = {}
    inner = CompiledPart.__init__

    def listening(self: CompiledPart, kind: str, program: object, imported: object, moved: object = (), static: tuple[str, ...] = (),
                  *rest: object) -> None:
        told[kind] = static
        inner(self, kind, program, imported, moved, static, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(CompiledPart, "__init__", listening)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    compiled = torch.compile(model, backend=torch_backend.backend, dynamic=False, options={"strict": True})
    compiled(torch.randn(3, 8, requires_grad=True)).square().sum().backward()
    (part,) = torch_backend.compiled_parts("backward")
    inputs = part.program.spec.inputs
    assert {"gradient_of_result_0", "input"} < set(inputs) and set(told["backward"]) == {*inputs} - {"gradient_of_result_0", "input"}
    kept = [name for name in told["backward"] if "weight" not in name]
    assert kept and len(told["backward"]) > len(kept)


def test_a_compiled_function_keeps_no_tensor_of_its_first_call() -> None:
    """Behind a graph break the inputs are intermediate values: logits of a language model are a gigabyte."""
    weight = torch.randn(11, 37, requires_grad=True)

    @torch.compile(backend=torch_backend.backend, options={"strict": True, "sizes_at_once": 3})
    def loss(x: torch.Tensor) -> torch.Tensor:
        scores = x @ weight
        torch._dynamo.graph_break()
        return scores.tanh().sum()

    for rows in (13, 13, 14):
        loss(torch.randn(rows, 11)).backward()
        with torch.no_grad():
            loss(torch.randn(rows, 11))
    gc.collect()
    assert [tuple(x.shape) for x in gc.get_objects() if type(x) is torch.Tensor and x.dim() == 2 and x.shape[1] == 37] == [(11, 37)] * 2
