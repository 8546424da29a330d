"""Training steps of networks on a device: losses of torch, layouts and memory, replays that go on training, windows read as vectors."""
from __future__ import annotations

import pytest
import torch

import tilefuse.array as ta
from benchmarks.array_networks import NETWORKS
from benchmarks.arrays import ArrayStep, batches_of, losses_of, torch_step
from tilefuse import nn, optim
from tilefuse.runtime.spec import CopyStep, LibraryStep

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("fuse", [True, False])
def test_losses_are_those_of_torch(network: str, dtype: str, fuse: bool) -> None:
    """As close to eager f32 as torch's own step in that type and the library's tf32 are, with the slack of a few roundings."""
    batches = batches_of(NETWORKS[network].image(True), NETWORKS[network].classes(True), 8, CUDA)
    reference = losses_of(torch_step(network, "f32", "eager", CUDA, True, exact=True), batches)
    rounded = losses_of(torch_step(network, dtype, "eager", CUDA, True), batches)
    found = losses_of(ArrayStep(network, dtype, CUDA, True, fuse), batches)
    allowed = 2 * max(abs(a - b) for a, b in zip(rounded, reference, strict=True)) + (0.02 if dtype == "bf16" else 0.005)
    assert max(abs(a - b) for a, b in zip(found, reference, strict=True)) < allowed, (found, rounded, reference)


def test_weights_lie_channels_last_and_stay_where_they_are() -> None:
    step = ArrayStep("resnet18", "f32", CUDA, True, True)
    batch, *_ = batches_of((3, 32, 32), 10, 8, CUDA)
    step(*batch)
    model = step.step.model
    before = {name: a.buffer().data_ptr() for name, a in model.parameters().items()}
    step(*batch)
    assert before == {name: a.buffer().data_ptr() for name, a in model.parameters().items()}
    weight = model.parameters()["inner.layers.0.conv1.weight"].buffer()
    assert weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
    spec = step.step.compiled.programs[0].spec
    copied = {s.target for s in spec.steps if isinstance(s, CopyStep)}
    assert not any("conv" in name for name in copied), copied
    assert not any(isinstance(s, LibraryStep) and s.operator not in ("convolution", "convolution_backward", "matmul") for s in spec.steps)


def test_a_recorded_step_goes_on_training() -> None:
    """Replays of one CUDA graph update the same memory: the loss on one batch falls from replay to replay."""
    step = ArrayStep("lenet", "f32", CUDA, True, True)
    (x, classes), *_ = batches_of((1, 28, 28), 10, 16, CUDA)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(x, classes)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(x, classes)
    losses = []
    for _ in range(20):
        graph.replay()
        losses.append(loss.item())
    assert losses[-1] < losses[0] and len(set(losses)) == 20


def test_pooling_and_its_gradient_channels_last() -> None:
    """Odd sizes, channels that are no multiple of a vector, ties: equal to torch's, where the first maximum of a window gets all."""
    draws = torch.Generator(CUDA).manual_seed(5)
    for channels in (8, 6, 5):
        x = torch.randint(-2, 3, (3, channels, 15, 17), device=CUDA, generator=draws).float().contiguous(memory_format=torch.channels_last)
        pull = torch.randn((3, channels, 8, 9), device=CUDA, generator=draws).contiguous(memory_format=torch.channels_last)
        given = x.clone().requires_grad_()
        wanted = torch.nn.functional.max_pool2d(given, 3, 2, 1)
        expected, = torch.autograd.grad((wanted * pull).sum(), given)
        array = ta.asarray(x)
        pooled = nn.max_pool(array, 3, stride=2, padding=1)
        gradient = ta.grad(ta.sum(pooled * ta.asarray(pull)), array)
        ta.evaluate(pooled, gradient)
        assert torch.equal(pooled.buffer(), wanted)
        assert torch.allclose(gradient.buffer(), expected, atol=1e-5)


def test_adam_over_many_tensors_is_few_kernels() -> None:
    # A generator of its own: torch's default one refuses to draw after another test's recording was broken off.
    draws = torch.Generator(CUDA).manual_seed(6)
    parameters = {f"p{n}": ta.asarray(torch.randn(64, 3 + n, device=CUDA, generator=draws)) for n in range(40)}
    gradients = {name: ta.asarray(torch.randn(p.shape, device=CUDA, generator=draws)) for name, p in parameters.items()}
    update = ta.compile(optim.Adam().update, donate=(0, 2))
    update(parameters, gradients, optim.Adam().init(parameters))
    assert update.programs[0].explain(json=True)["num_kernels"] <= 3
