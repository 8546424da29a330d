"""Calls of torch.compile that are replays of CUDA graphs, on a GPU: right beside eager whatever the caller does between calls."""
from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tilefuse.driver.torch_backend import backend, compiled_parts, list_mode_options, reset
from tilefuse.runtime.calls.replay import CALLS_BEFORE_RECORDING
from tilefuse.runtime.kept_weights import KeptWeights

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

MODES = (None, "reduce-overhead")
CALLS = CALLS_BEFORE_RECORDING + 4


class Small(nn.Module):
    """A convolution, a product and norms: library calls between kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.conv(x)).mean((2, 3))
        for _ in range(12):
            y = self.linear(torch.tanh(self.norm(self.linear(y))[:, :8]))[:, :8]
        return y


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    reset()
    yield
    reset()


def compiled(function: Callable[..., Any], mode: str | None) -> Callable[..., Any]:
    """The function with all of its variants compiled at their first calls."""
    options = {"strict": mode is None, "sizes_at_once": 64, **list_mode_options(mode or "default")}
    return torch.compile(function, backend=backend, dynamic=False, options=options)


def images(number: int = 0) -> torch.Tensor:
    return torch.randn(2, 3, 16, 16, device="cuda", generator=torch.Generator("cuda").manual_seed(number))


def replays(kind: str = "inference") -> int:
    return sum(p.replayed.num_replays for p in compiled_parts(kind) if p.replayed is not None)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("mode", MODES)
def test_inputs_that_move_and_results_that_are_kept(mode: str | None) -> None:
    model = Small().cuda().eval()
    made, kept = compiled(model, mode), []
    with torch.no_grad():
        for n in range(CALLS + 4):
            kept.append((made(images(n)), images(n)))
        assert replays() > 0
        for y, x in kept:
            close(y, model(x))


@pytest.mark.parametrize("mode", MODES)
def test_the_result_of_one_call_survives_the_next(mode: str | None) -> None:
    model = Small().cuda().eval()
    made = compiled(model, mode)
    with torch.no_grad():
        for n in range(CALLS + 6):
            before = None if n == 0 else y  # noqa: F821
            kept = None if before is None else before.clone()
            y = made(images(n))
            close(y, model(images(n)))
            assert before is None or torch.equal(before, kept)
        (part,) = compiled_parts("inference")
        assert part.replayed is not None and part.replayed.num_recordings <= 3


@pytest.mark.parametrize("mode", MODES)
def test_parameters_change_in_place_and_are_replaced(mode: str | None) -> None:
    model = Small().cuda().eval()
    made, x = compiled(model, mode), images()
    with torch.no_grad():
        for _ in range(CALLS):
            close(made(x), model(x))
        for change in (lambda p: p.add_(0.01), lambda p: p.data.mul_(1.5), lambda p: setattr(p, "data", p.data * 0.5)):
            for p in model.parameters():
                change(p)
            for _ in range(CALLS):
                close(made(x), model(x))
        model.load_state_dict(Small().cuda().state_dict(), assign=True)
        for _ in range(CALLS):
            close(made(x), model(x))
        # By default recordings are dropped where the second replay, timed on a device that others use too, takes longer than a call.
        assert replays() > (CALLS if mode else 1)


@pytest.mark.parametrize("mode", MODES)
def test_views_and_aliases(mode: str | None) -> None:
    made = compiled(lambda x, y: (torch.softmax(x, -1) + y.tanh(), (x * y).sum(-1), x.sigmoid() @ y.mT), mode)
    base = torch.randn(9 * 64 * 64 + 1, device="cuda")
    views = [base[n * 4096 : (n + 1) * 4096].view(64, 64) for n in range(9)] + [base[1:4097].view(64, 64)]
    for n in range(3 * len(views)):
        x, y = views[n % len(views)], views[(n * n) % len(views)]
        for found, expected in zip(made(x, y), (torch.softmax(x, -1) + y.tanh(), (x * y).sum(-1), x.sigmoid() @ y.mT)):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_a_cache_that_is_updated_in_place(mode: str | None) -> None:
    def step(cache: torch.Tensor, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(0, place, x.tanh())
        return torch.softmax(cache @ x.mT, 0) * 2

    made = compiled(step, mode)
    mine, theirs = torch.zeros(32, 64, device="cuda"), torch.zeros(32, 64, device="cuda")
    for n in range(CALLS + 4):
        x, place = torch.randn(1, 64, device="cuda"), torch.tensor([n], device="cuda")
        close(made(mine, x, place), step(theirs, x, place))
        close(mine, theirs)


def shared_model(mode: str | None) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """A compiled model that was called once, and what it gives for `images(0)` to `images(3)`."""
    model = Small().cuda().eval()
    made = compiled(model, mode)
    with torch.no_grad():
        expected = [model(images(n)) for n in range(4)]
        made(images())
    return made, expected


def in_threads(work: Callable[[int], None]) -> None:
    """Runs `work(0)` to `work(3)` at the same time."""
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("mode", MODES)
def test_threads_and_streams(mode: str | None) -> None:
    made, expected = shared_model(mode)
    wrong: list[str] = []
    torch.cuda.synchronize()

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
            for n in range(40):
                y = made(images((number + n) % 4))
                torch.cuda.current_stream().synchronize()
                if not torch.allclose(y, expected[(number + n) % 4], rtol=2e-4, atol=2e-4):
                    wrong.append(f"thread {number} call {n}")

    in_threads(work)
    assert wrong == []
    with torch.no_grad():
        for n in range(20):
            close(made(images(n % 4)), expected[n % 4])


@pytest.mark.parametrize("mode", MODES)
def test_inside_a_graph_of_the_callers_own(mode: str | None) -> None:
    model = Small().cuda().eval()
    made, x = compiled(model, mode), images()
    with torch.no_grad():
        for _ in range(CALLS):
            made(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = made(x)
        for n in range(3):
            x.copy_(images(n))
            graph.replay()
            close(y, model(x))
            close(made(x), model(x))


@pytest.mark.parametrize("mode", MODES)
def test_beside_graphs_and_workspaces_of_others(mode: str | None) -> None:
    """A caller's graph with products, recorded on the stream it was warmed up on; and torch giving up cuBLAS's workspaces."""
    model, a = Small().cuda().eval(), torch.randn(512, 4096, device="cuda")
    made, side, graph = compiled(model, mode), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        expected = a @ a.mT
        with torch.cuda.graph(graph, stream=side):
            product = a @ a.mT
    torch.cuda.synchronize()
    with torch.no_grad():
        for n in range(CALLS):
            close(made(images(n)), model(images(n)))
        for clears in (False, True):
            if clears:
                torch._C._cuda_clearCublasWorkspaces()
            fill = [torch.full((1 << 22,), 7.0, device="cuda") for _ in range(24)]
            for n in range(4):
                if not clears:
                    graph.replay()
                    torch.testing.assert_close(product, expected, rtol=1e-3, atol=1e-2)
                close(made(images(n)), model(images(n)))
            assert all(bool((f == 7.0).all()) for f in fill)


@pytest.mark.parametrize("mode", MODES)
def test_inference_mode_and_back(mode: str | None) -> None:
    model = Small().cuda().eval()
    made = compiled(model, mode)
    for manager in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        with manager():
            for n in range(CALLS):
                close(made(images(n)), model(images(n)))


@pytest.mark.parametrize("mode", MODES)
def test_two_models_share_a_streams_memory(mode: str | None) -> None:
    models = [Small().cuda().eval() for _ in range(3)]
    mades = [compiled(m, mode) for m in models]
    with torch.no_grad():
        for n in range(CALLS + 3):
            found = [made(images(n)) for made in mades]
            for model, y in zip(models, found):
                close(y, model(images(n)))


@pytest.mark.parametrize("mode", MODES)
def test_layers_compiled_one_by_one(mode: str | None) -> None:
    """One program with the parameters of every layer in turn."""
    layers = [nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU()).cuda().eval() for _ in range(6)]
    mades = [compiled(layer, mode) for layer in layers]
    with torch.no_grad():
        for _ in range(CALLS):
            x = y = torch.randn(4, 32, device="cuda")
            for layer, made in zip(layers, mades):
                x, y = made(x), layer(y)
            close(x, y)


@pytest.mark.parametrize("mode", MODES)
def test_autocast(mode: str | None) -> None:
    model = Small().cuda().eval()
    made = compiled(model, mode)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        for n in range(CALLS):
            torch.testing.assert_close(made(images(n)).float(), model(images(n)).float(), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("mode", MODES)
def test_training_steps(mode: str | None) -> None:
    torch.manual_seed(3)
    mine, theirs = Small().cuda(), Small().cuda()
    theirs.load_state_dict(mine.state_dict())
    made = compiled(mine, mode)
    optimisers = [torch.optim.SGD(m.parameters(), 1e-2, momentum=0.9) for m in (mine, theirs)]
    for n in range(CALLS + 2):
        for network, optimiser in zip((made, theirs), optimisers):
            # Every third step adds to the gradients of the one before.
            if n % 3:
                optimiser.zero_grad()
            network(images(n)).square().mean().backward()
            optimiser.step()
    for p, q in zip(mine.parameters(), theirs.parameters()):
        torch.testing.assert_close(p, q, rtol=2e-3, atol=2e-4)


def test_a_replayed_training_step_copies_no_saved_values() -> None:
    """The backward part's recording reads what the forward part's keeps where it lies."""
    model = Small().cuda()
    made = compiled(model, "reduce-overhead")
    for n in range(CALLS):
        model.zero_grad()
        made(images(n)).square().mean().backward()
    (part,) = compiled_parts("backward")
    run = part.replayed
    assert run is not None and run.num_replays >= CALLS - 3 and run.num_recordings == 1
    (recording,) = run._recordings.values()
    assert sum(len(sources) for _, sources in recording._copies) <= 2


def test_attention_without_dropout_waits_for_nothing() -> None:
    """The state of a generator that attention keeps for its gradient lies on the host, and stays there."""
    attention = nn.MultiheadAttention(32, 2, batch_first=True, device="cuda")
    made, x = compiled(attention, None), torch.randn(2, 16, 32, device="cuda", requires_grad=True)
    made(x, x, x, need_weights=False)[0].sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        made(x, x, x, need_weights=False)[0].sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def kernels_of(call: Callable[[], object]) -> list[str]:
    """Names of the kernels that one call starts, without copies of inputs and results."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    names = [e.name for e in seen.events() if str(e.device_type).endswith("CUDA")]
    return sorted(n for n in names if not n.startswith(("Memcpy", "Memset")) and "multi_tensor_apply" not in n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_recording_starts_the_kernels_of_a_direct_call(dtype: torch.dtype, transposed: bool) -> None:
    """A library must not choose another algorithm, for want of a workspace, say, while it is recorded."""
    layer = nn.ConvTranspose2d(64, 128, 3, 2, 1, 1) if transposed else nn.Conv2d(64, 128, 3, 2, 1)
    model, x = nn.Sequential(layer, nn.Softmax(1)).to("cuda", dtype).eval(), torch.randn(16, 64, 64, 64, device="cuda", dtype=dtype)
    found = []
    with torch.no_grad():
        for graphs in (False, True):
            reset()
            made = torch.compile(model, backend=backend, dynamic=False, options={"replay": "never", "cuda_graph": graphs})
            for _ in range(CALLS):
                made(x)
            assert (replays() > 0) is graphs
            found.append(kernels_of(lambda made=made: made(x)))
    assert found[0] == found[1] and found[0]


@pytest.mark.parametrize("graphs", [False, True])
def test_packed_and_padded_weights_are_kept(graphs: bool) -> None:
    """They are made again when a parameter changes in place, is replaced, or lies elsewhere; other streams wait for them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 64, 3, padding=1), nn.ReLU(), nn.AvgPool2d(8), nn.Flatten(), nn.Linear(256, 4097),
                          nn.ReLU(), nn.Linear(4097, 1001)).cuda().half().eval()
    made = torch.compile(model, backend=backend, dynamic=False, options={"strict": True, "keep_weights": True, "cuda_graph": graphs})

    def agree() -> None:
        for _ in range(CALLS):
            x = torch.randn(64, 16, 16, 16, device="cuda", dtype=torch.half)
            torch.testing.assert_close(made(x), model(x), rtol=2e-2, atol=2e-2)
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
                y = made(x)
                torch.cuda.current_stream().synchronize()
            torch.testing.assert_close(y, model(x), rtol=2e-2, atol=2e-2)

    with torch.no_grad():
        agree()
        (part,) = compiled_parts("inference")
        assert isinstance(part._run, KeptWeights) and part._run.num_prepared == 1
        for p in model.parameters():
            p.mul_(0.5)
        agree()
        assert part._run.num_prepared == 2
        model.load_state_dict({k: v * 2 for k, v in model.state_dict().items()}, assign=True)
        agree()
        assert part._run.num_prepared == 3
        x = torch.randn(64, 16, 16, 16, device="cuda", dtype=torch.half)
        prepared = {k.name for k in part._run._weights.kernels}
        assert len(prepared) > 0 and prepared.isdisjoint(kernels_of(lambda: made(x)))


@pytest.mark.parametrize("mode", MODES)
def test_a_result_is_the_next_calls_input(mode: str | None) -> None:
    """A state that is handed on lies where the replay writes the next one, unless it is moved."""
    weight = torch.randn(64, 64, device="cuda") / 8

    def step(state: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.tanh(state @ weight), -1) + state.flip(0)

    made, first = compiled(step, mode), torch.randn(32, 64, device="cuda")
    mine = theirs = first
    for _ in range(2 * CALLS):
        mine, theirs = made(mine), step(theirs)
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
        close(made(made(first)), step(step(first)))
    assert replays() > 0


@pytest.mark.parametrize("mode", MODES)
def test_an_input_that_is_updated_and_a_view_of_it(mode: str | None) -> None:
    def step(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        a.mul_(0.5).add_(x)
        return torch.softmax(b * 2 + a.sum(), -1)

    made = compiled(step, mode)
    mine, theirs = (torch.ones(8, 64, device="cuda") for _ in range(2))
    for _ in range(CALLS + 4):
        x = torch.randn(8, 64, device="cuda")
        close(made(mine, mine[2:4], x), step(theirs, theirs[2:4], x))
        close(mine, theirs)


@pytest.mark.parametrize("mode", MODES)
def test_inputs_of_other_layouts(mode: str | None) -> None:
    """Turned, expanded, with gaps, and one tensor given twice; each layout stays for a few calls."""
    def mix(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1) @ y + x.sum(-1, keepdim=True)

    made, base = compiled(mix, mode), torch.randn(8, 64, 128, device="cuda")
    makers: list[Callable[[int], torch.Tensor]] = [
        lambda n: base[n % 8, :, :64], lambda n: base[n % 8, :, :64].mT, lambda n: base[n % 8, :, ::2],
        lambda n: base[n % 8, :1, :64].expand(64, 64), lambda n: base[n % 8, :, 64:].contiguous()]
    for make in makers:
        for n in range(CALLS + 2):
            x, y = make(n), make(n + 1)
            torch.testing.assert_close(made(x, y), mix(x, y), rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(made(x, x), mix(x, x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_autocast_comes_and_goes(mode: str | None) -> None:
    """Autocast keeps narrowed weights while it lasts: a replay must not read those of an earlier time."""
    model = Small().cuda().eval()
    made = compiled(model, mode)
    with torch.no_grad():
        for n in range(3 * CALLS):
            with torch.autocast("cuda", (torch.bfloat16, torch.float16)[n % 2], enabled=n % 3 != 0):
                x = images(n)
                torch.testing.assert_close(made(x).float(), model(x).float(), rtol=0.1, atol=0.1)
            for p in model.parameters():
                p.mul_(1.01)


@pytest.mark.parametrize("mode", MODES)
def test_threads_on_one_stream(mode: str | None) -> None:
    made, expected = shared_model(mode)
    wrong: list[str] = []

    def work(number: int) -> None:
        kept = []
        with torch.no_grad():
            for n in range(30):
                kept.append((made(images((number + n) % 4)), (number + n) % 4))
            torch.cuda.synchronize()
        wrong.extend(f"thread {number}" for y, k in kept if not torch.allclose(y, expected[k], rtol=2e-4, atol=2e-4))

    in_threads(work)
    assert wrong == []


@pytest.mark.parametrize("mode", MODES)
def test_results_outlive_the_compiled_model(mode: str | None) -> None:
    model = Small().cuda().eval()
    made = compiled(model, mode)
    with torch.no_grad():
        for n in range(CALLS):
            y = made(images(n))
        expected = model(images(CALLS - 1))
        del made
        reset()
        gc.collect()
        torch.cuda.empty_cache()
        fill = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(16)]
        close(y, expected)
        assert all(bool((f == 7.0).all()) for f in fill)


def test_values_are_written_over_values_that_die() -> None:
    """A device-bound call holds no more than torch.compile's program: an activation of the whole width lies over its product, if one is
    stored at all."""
    from benchmarks.timing import peak_bytes

    model = nn.Sequential(nn.Linear(256, 4096), nn.GELU(), nn.Linear(4096, 256)).cuda().half().eval()
    x = torch.randn(16384, 256, device="cuda", dtype=torch.half)
    made = torch.compile(model, backend=backend, dynamic=False, options={"strict": True, "replay": "never"})
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(made(x), model(x), rtol=2e-2, atol=2e-2)
        held = peak_bytes(lambda: made(x), torch.device("cuda"))
    wide = 16384 * 4096 * 2
    assert held < 1.2 * wide


def test_draws_differ_from_call_to_call() -> None:
    made = compiled(lambda x: nn.functional.dropout(x, 0.5) * 2, None)
    x = torch.ones(4096, device="cuda")
    drawn = [made(x) for _ in range(CALLS)]
    assert all(not torch.equal(a, b) for a, b in zip(drawn, drawn[1:]))
    assert replays() == 0


def test_a_call_that_the_device_takes_long_for_is_no_replay() -> None:
    """A large copy: the host is ready long before the device, and a graph would only hold memory."""
    made = compiled(lambda x: x.sigmoid() * 2, None)
    x = torch.randn(1 << 28, device="cuda")
    for _ in range(CALLS):
        made(x)
    torch.cuda.synchronize()
    for _ in range(4):
        made(x)
        torch.cuda.synchronize()
    (part,) = compiled_parts("inference")
    assert part.replayed is not None and part.replayed.why_not


def test_settings_of_the_library_are_those_of_the_call() -> None:
    """Replays at any cost: elsewhere the device's time decides, which other processes lengthen."""
    model = Small().cuda().eval()
    made, x = compiled(model, "reduce-overhead"), images()
    with torch.no_grad():
        for _ in range(CALLS):
            made(x)
        before = replays()
        with torch.backends.cudnn.flags(enabled=True, deterministic=True):
            for _ in range(CALLS):
                close(made(x), model(x))
        (part,) = compiled_parts("inference")
        assert part.replayed is not None and part.replayed.num_recordings >= 2 and replays() > before


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ending", ["", "raise SystemExit(0)", "import torch._dynamo; torch._dynamo.reset()"])
def test_a_program_ends_with_its_own_status(mode: str | None, ending: str) -> None:
    """A compiled model that lives to the end, with its graphs: the interpreter destroys modules when CUDA may be half gone."""
    program = f"""
import torch
from tilefuse.driver.torch_backend import backend
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3)).cuda().eval()
fast = torch.compile(model, backend=backend, mode={mode!r})
with torch.no_grad():
    for _ in range({CALLS}):
        y = fast(torch.randn(2, 3, 16, 16, device="cuda"))
print(float(y.sum()))
{ending}
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout
