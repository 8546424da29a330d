"""Convolutions over transformed tiles on a device: blocks with bias, residual and activation, against f64."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import tilefuse
from tilefuse.passes.device.minimal_filtering import minimal_filtering
from tilefuse.target.device import H200

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


class Block(torch.nn.Module):
    """relu(convolution(x) + r)."""

    def __init__(self, channels: int, features: int, padding: int) -> None:
        super().__init__()
        torch.manual_seed(channels + features)
        self.convolution = torch.nn.Conv2d(channels, features, 3, padding=padding)

    def forward(self, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        """The block."""
        return torch.relu(self.convolution(x) + r)


@pytest.fixture
def strict() -> Iterator[None]:
    """Convolutions and products of f32 without tf32."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(("channels", "features", "side", "padding", "batch"), [
    (64, 64, 56, 1, 4), (33, 20, 13, 1, 3), (128, 96, 14, 0, 2), (16, 48, 7, 2, 1)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["row-major", "channels last"])
def test_blocks_of_f32(channels: int, features: int, side: int, padding: int, batch: int, memory_format: torch.memory_format) -> None:
    """Errors are those of f32 with the growth of F(4x4, 3x3), far from those of tf32 (5e-4)."""
    model, places = Block(channels, features, padding).eval().cuda(), side + 2 * padding - 2
    x = torch.randn(batch, channels, side, side, device="cuda").to(memory_format=memory_format)
    r = torch.randn(batch, features, places, places, device="cuda").to(memory_format=memory_format)
    with torch.no_grad():
        program = tilefuse.compile(model, (x, r), winograd="always")
        ours = program(x, r)
        exact = Block(channels, features, padding).eval().cuda().double()(x.double(), r.double())
    assert "planned as F(" in program.explain()
    assert (ours.double() - exact).abs().max() < 2e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_blocks_of_sixteen_bits(dtype: torch.dtype) -> None:
    """F(2x2, 3x3): products are rounded to the type once more than a convolution's sum."""
    model = Block(64, 32, 1).eval().cuda().to(dtype)
    x, r = torch.randn(2, 64, 15, 14, device="cuda").to(dtype), torch.randn(2, 32, 15, 14, device="cuda").to(dtype)
    with torch.no_grad():
        program = tilefuse.compile(model, (x, r), winograd="always")
        ours, exact = program(x, r), Block(64, 32, 1).eval().cuda().to(dtype).double()(x.double(), r.double())
    assert "planned as F(2x2, 3x3)" in program.explain()
    assert (ours.double() - exact).abs().max() < 16 * torch.finfo(dtype).eps


def plain_error(x: torch.Tensor, weight: torch.Tensor, padding: int) -> float:
    """Largest error of F(4x4, 3x3) by torch's own f32 operations, without tf32: sums in another order, the same growth of roundings."""
    filtering = minimal_filtering(4)
    n, m = filtering.positions, filtering.results
    inputs, filters, outputs = (torch.tensor([[float(c) for c in row] for row in matrix], device=x.device)
                                for matrix in (filtering.inputs, filtering.filters, filtering.outputs))
    places = [side + 2 * padding - 2 for side in x.shape[2:]]
    more = [-p % m for p in places]
    padded = torch.nn.functional.pad(x, (padding, padding + more[1], padding, padding + more[0]))
    tiles = torch.einsum("pi,bctuij,qj->bctupq", inputs, padded.unfold(2, n, m).unfold(3, n, m), inputs)
    kernels = torch.einsum("pi,kcij,qj->kcpq", filters.double(), weight.double(), filters.double()).float()
    products = torch.einsum("bctupq,kcpq->bktupq", tiles, kernels)
    y = torch.einsum("ip,bktupq,jq->bktiuj", outputs, products, outputs)
    y = y.reshape(*y.shape[:2], y.shape[2] * m, y.shape[4] * m)[:, :, :places[0], :places[1]]
    return float((y.double() - torch.nn.functional.conv2d(x.double(), weight.double(), padding=padding)).abs().max())


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(("channels", "features", "side", "padding", "batch"), [
    (64, 64, 56, 1, 32), (32, 64, 41, 1, 9), (33, 20, 13, 1, 3), (128, 96, 28, 0, 8), (16, 48, 30, 2, 5)])
def test_chains_in_groups(channels: int, features: int, side: int, padding: int, batch: int) -> None:
    """One kernel for transforms and products, call after call, in a graph, and on several streams at once.

    Errors are at most twice those of the same algorithm by torch in f32; tf32 would make them 30 times as large.
    """
    model, places = Block(channels, features, padding).eval().cuda(), side + 2 * padding - 2
    last = torch.channels_last
    x = [torch.randn(batch, channels, side, side, device="cuda").to(memory_format=last) for _ in range(3)]
    r = torch.randn(batch, features, places, places, device="cuda").to(memory_format=last)
    with torch.no_grad():
        program = tilefuse.compile(model, (x[0], r), winograd="always", tile_groups="always", channels_last="always")
        wide = Block(channels, features, padding).eval().cuda().double()
        exact = [wide(image.double(), r.double()) for image in x]
        bound = 2 * max(plain_error(image, model.convolution.weight, padding) for image in x)
    assert "group_length" in str(program.explain(json=True))
    for _ in range(20):
        for image, expected in zip(x, exact, strict=True):
            assert (program(image, r).double() - expected).abs().max() < bound
    graph = torch.cuda.CUDAGraph()
    given = x[0].clone(memory_format=torch.preserve_format)
    with torch.cuda.graph(graph):
        captured = program(given, r)
    for image, expected in zip(x, exact, strict=True):
        given.copy_(image)
        graph.replay()
        assert (captured.double() - expected).abs().max() < bound
    streams = [torch.cuda.Stream() for _ in x]
    torch.cuda.synchronize()
    results = []
    for _ in range(5):
        for image, expected, stream in zip(x, exact, streams, strict=True):
            with torch.cuda.stream(stream):
                results.append((program(image, r), expected))
    torch.cuda.synchronize()
    assert all((result.double() - expected).abs().max() < bound for result, expected in results)


@pytest.mark.usefixtures("strict")
def test_rhythms_of_chains() -> None:
    """The least rings, groups side by side, wide distances: each wait ends, and rhythms of one product have the same results bit by bit."""
    from benchmarks.winograd import Layer
    from benchmarks.winograd_groups import GROUPS, facts, variant, with_code
    from tilefuse.driver.compile import generate

    layer = Layer("test", 32, 32, 57, 16)
    generated = generate(layer.graph(), device=H200, **facts(layer, GROUPS))
    x = torch.randn(layer.image_shape(), device="cuda").to(memory_format=torch.channels_last)
    variants = [v for n in range(14) if (v := variant(layer, n)) is not None]
    results = [(parameters["product"], with_code(generated, code)(x)[0].clone()) for parameters, code in variants]
    first = dict(reversed(results))
    assert len(results) - len(first) > 4, "most rhythms should have the same product"
    assert all(torch.equal(result, first[product]) for product, result in results), "a rhythm changed a sum"
    exact = torch.nn.functional.conv2d(x.double(), torch.from_numpy(layer.weight()).double().cuda(), padding=1)
    limit = 2 * plain_error(x, torch.from_numpy(layer.weight()).cuda(), 1)
    assert all((result.double() - exact).abs().max() < limit for _, result in results)
