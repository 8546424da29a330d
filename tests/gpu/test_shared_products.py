"""Products of one row with several matrices in one kernel on a device: blocks in turns, first rows that set out early, parts with norms."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.unit.templates.shared_products import in_turns, packed, products_of_one_row
from tilefuse.base.options import Options
from tilefuse.driver.compile import present_device
from tilefuse.driver.measure.lone_kernel import lone_program
from tilefuse.ir.interpret import interpret
from tilefuse.runtime.calls.library import TORCH_DTYPES
from tilefuse.templates.packed.packed import Packed
from tilefuse.templates.packed.template import takes_turns
from tilefuse.templates.rows.shared.queue import waits_once

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
                                                  reason="needs a CUDA device with bulk copies")]


@pytest.mark.parametrize(("dtype", "rows", "length", "norm", "residual"), [
    ("bf16", (2048, 512, 512), 2048, "rms", False), ("bf16", (2048, 512, 512), 2048, "", True),
    ("f16", (4096, 1031, 77), 1032, "layer", True), ("f16", (37, 11, 11), 776, "", True),
    ("f32", (1500, 333, 41), 1028, "layer", False), ("bf16", (9000, 3), 4096, "rms", True),
])
def test_parts_compute_their_products(dtype: str, rows: tuple[int, ...], length: int, norm: str, residual: bool) -> None:
    """Results are equal from call to call, and within the bounds of rounding."""
    pattern = products_of_one_row(rows, length, dtype, norm=norm, residual=residual)
    device, place = present_device()
    program = in_turns(packed(pattern.graph, device), device)
    assert isinstance(program.choice, Packed) and takes_turns(program.choice)
    lone = lone_program(program, device, place, Options.from_environment())
    arrays = pattern.inputs(np.random.default_rng(11))
    given = [torch.from_numpy(np.asarray(arrays[v], dtype=np.float64)).to(TORCH_DTYPES[pattern.graph.type_of(v).dtype.name]).cuda()
             for v in lone.spec.inputs]
    results = [[r.clone() for r in lone(*given)] for _ in range(20)]
    assert all(torch.equal(a, b) for others in results[1:] for a, b in zip(results[0], others, strict=True))
    assert pattern.bounds is not None
    wanted = interpret(pattern.graph, arrays)
    for result, value, bound in zip(results[0], wanted, pattern.bounds(arrays), strict=True):
        difference = np.abs(result.double().cpu().numpy() - np.asarray(value, dtype=np.float64))
        assert (difference <= 2 * bound).all()


LAYERS, WIDTH, KEYS = 4, 2048, 512


def layers(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """Each layer: an RMS norm, three products of its row, and a product back to the row."""
    for n in range(LAYERS):
        scale, queries, keys, values, back = weights[5 * n:5 * n + 5]
        wide = x.float()
        row = (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * scale
        k, v = row @ keys.T, row @ values.T
        x = x + torch.tanh(row @ queries.T + torch.cat([k, v, k, v], -1)) @ back.T
    return x


def inputs(seed: int) -> list[torch.Tensor]:
    """A row and the weights of all layers, bf16."""
    made = torch.Generator(device="cuda").manual_seed(seed)
    shapes = [(1, WIDTH), *(((WIDTH,), (WIDTH, WIDTH), (KEYS, WIDTH), (KEYS, WIDTH), (WIDTH, WIDTH)) * LAYERS)]
    return [(torch.randn(s, device="cuda", generator=made) * (WIDTH**-0.5 if len(s) == 2 and s[0] > 1 else 1.0)).to(torch.bfloat16)
            for s in shapes]


@pytest.mark.parametrize("graph", [False, True], ids=["launches", "graph"])
def test_changed_weights_are_seen(graph: bool) -> None:
    """Weights and the row are written on the same stream right before each call; calls with equal inputs give equal results."""
    import tilefuse

    given = inputs(0)
    program = tilefuse.compile(layers, given, cuda_graph=graph)
    assert sum("_early" in k.name for k in program.spec.kernels) > 1
    for n in range(20):
        for tensor, other in zip(given, inputs(n + 1), strict=True):
            tensor.copy_(other)
        result = program(*given).clone()
        assert all(torch.equal(result, program(*given)) for _ in range(3))
        exact = layers(*(t.double() for t in given))
        # Values are rounded to 8 bits a few times a layer; a weight that was not seen changes all of a result.
        assert (result.double() - exact).norm() <= 16 * LAYERS * 2.0**-8 * exact.norm()


def test_the_plan_has_one_kernel_for_norm_and_products() -> None:
    """Behind the first layer's the kernels are all in turns."""
    from tilefuse.driver.compile import generate, import_model

    device, _ = present_device()
    imported = import_model(layers, tuple(inputs(0)))
    plan = generate(imported.graph, constants=imported.constants, input_layouts=imported.layouts, device=device, options=Options()).plan
    packs = [k.program.choice for k in plan.kernels if isinstance(k.program.choice, Packed)]
    assert sum(takes_turns(choice) and all(waits_once(g.program.choice) for g in choice.groups) for choice in packs) == LAYERS
