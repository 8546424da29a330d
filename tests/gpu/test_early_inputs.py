"""Programs whose kernels fetch inputs while the kernel ahead still runs, on a device: inputs that change between calls are seen."""
from __future__ import annotations

import pytest
import torch

import tilefuse

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

STEPS, ROWS, WIDTH = 12, 32, 128


def steps(x: torch.Tensor, h: torch.Tensor, into: torch.Tensor, back: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A recurrence whose steps multiply their part of the input and the state."""
    outputs = []
    for step in x.unbind(0):
        gates = step @ into + h @ back + bias
        new, forget = gates.chunk(2, 1)
        h = torch.sigmoid(forget) * h + torch.tanh(new)
        outputs.append(h)
    return torch.stack(outputs)


def inputs(seed: int = 0) -> list[torch.Tensor]:
    """On the device, f32."""
    made = torch.Generator(device="cuda").manual_seed(seed)
    shapes = ((STEPS, ROWS, WIDTH), (ROWS, WIDTH), (WIDTH, 2 * WIDTH), (WIDTH, 2 * WIDTH), (2 * WIDTH,))
    return [torch.randn(s, device="cuda", generator=made) / WIDTH**0.5 for s in shapes]


def error_bound(x: torch.Tensor, h: torch.Tensor, into: torch.Tensor, back: torch.Tensor, bias: torch.Tensor) -> float:
    """Bound on the rounding of a step's gates, for all steps; a gate moves the state by at most its own error.

    States are about one. Source: Higham 2002, ch. 3: the terms of a sum times their absolute sum and the unit roundoff of f32. An input
    that was not seen changes far more.
    """
    largest = (x.abs() @ into.abs()).amax() + (torch.ones_like(h) @ back.abs()).amax() + bias.abs().amax()
    return float(STEPS * (2 * WIDTH + 8) * 2.0**-24 * largest)


@pytest.mark.parametrize("joined", [True, False], ids=["input-product-joined", "each-step-its-own"])
@pytest.mark.parametrize("graph", [False, True], ids=["launches", "graph"])
def test_changed_inputs_are_seen(joined: bool, graph: bool) -> None:
    """Weights are written on the same stream right before each call, and the call's own results are its next input."""
    passes = {} if joined else {"passes": "decompose,remove-dead-nodes,inline-views,simplify-index,simplify-scalar,remove-dead-nodes"}
    given = inputs()
    program = tilefuse.compile(steps, given, cuda_graph=graph, **passes)
    assert any("_early" in k.name for k in program.spec.kernels)
    for n in range(40):
        noise = inputs(n + 1)
        for tensor, other in zip(given, noise, strict=True):
            tensor.copy_(other)
        found = program(*given)
        found = found.clone()
        given[1].copy_(found[-1])
        again = program(*given)
        exact = [t.double() for t in noise]
        bound = error_bound(*noise)
        torch.testing.assert_close(found.double(), steps(*exact), rtol=0, atol=bound)
        torch.testing.assert_close(again.double(), steps(exact[0], found[-1].double(), *exact[2:]), rtol=0, atol=bound)


def test_calls_one_after_another_give_the_same_bits() -> None:
    """Many calls without a pause between them: none reads what another one is still writing."""
    given = inputs()
    program = tilefuse.compile(steps, given)
    first = program(*given).clone()
    found = [program(*given) for _ in range(200)]
    assert all(torch.equal(first, f) for f in found)


def layers(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """Layers of unlike widths with activations between them: one product after the other, each a kernel with what follows it."""
    for n in range(0, len(weights), 2):
        x = torch.nn.functional.gelu(x @ weights[n] + weights[n + 1])
    return x


@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs warpgroup products")
@pytest.mark.parametrize("graph", [False, True], ids=["launches", "graph"])
@pytest.mark.parametrize("rows", [197, 4000])
def test_products_that_begin_early_see_what_changed(rows: int, graph: bool) -> None:
    """Weights and inputs are written right before each call; every kernel's operand is the result of the kernel ahead of it."""
    widths = (768, 1024, 520, 1536, 768)
    drawn = torch.Generator(device="cuda").manual_seed(3)
    given = [torch.randn(rows, widths[0], device="cuda", dtype=torch.float16, generator=drawn)]
    for wide, out in zip(widths, widths[1:]):
        given += [torch.empty(wide, out, device="cuda", dtype=torch.float16), torch.empty(out, device="cuda", dtype=torch.float16)]
    program = tilefuse.compile(layers, given, cuda_graph=graph)
    assert any("tf_slot_copy" in k.source and "tf_wait_for_earlier_kernel();" in k.source for k in program.spec.kernels)
    for _ in range(20):
        for n, tensor in enumerate(given):
            tensor.copy_(torch.randn(tensor.shape, device="cuda", generator=drawn) / (tensor.shape[0] ** 0.5 if n % 2 else 1))
        found = program(*given).clone()
        exact = layers(*(t.double() for t in given))
        # Four layers, each of which rounds sums and results to 11 digits; a layer that was not seen is wrong by about its own size.
        assert float((found.double() - exact).norm() / exact.norm()) < 16 * 2.0**-11
        given[0].copy_(found)
        again = program(*given)
        exact = layers(*(t.double() for t in given))
        assert float((again.double() - exact).norm() / exact.norm()) < 16 * 2.0**-11
