"""Calls that are replays: which recording serves a call, what is copied, what callers keep. The host plays the graph.

A stand-in for CUDA graphs records a call on its inputs' memory and results' memory, and runs the program again on both.
"""
from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.unit.runtime.handmade import host_kernel, value
from tilefuse.base.errors import UnsupportedError
from tilefuse.runtime.calls.graphs import Recorded, have_addresses
from tilefuse.runtime.calls.replay import CALLS_BEFORE_RECORDING, MAX_BACKWARD_RECORDINGS, MAX_RECORDINGS, ReplayedProgram, may_be_replayed
from tilefuse.runtime.calls.strided import places_once
from tilefuse.runtime.program import Program
from tilefuse.runtime.spec import CopyStep, KernelStep, LibraryStep, ProgramSpec
from tilefuse.runtime.stores.cache import KernelCache

COUNT = 32


class Clock:
    """A device that takes as long as it is told. Units: seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def elapsed_s(self) -> float:
        return self._seconds


class Pool:
    def __init__(self) -> None:
        self.guard = threading.Lock()


class HostGraphs:
    """Records by running the program; a replay runs it again on the same memory."""

    def __init__(self) -> None:
        self.now, self.is_ready, self.device_s, self.fails = 0, True, 0.0, False
        self.pools: dict[int, Pool] = {}
        self.same_addresses = have_addresses

    def stream(self) -> int:
        return self.now

    def may_replay(self) -> bool:
        return self.is_ready

    def pool(self, stream: int, shared: bool) -> Pool:
        return self.pools.setdefault(stream, Pool()) if shared else Pool()

    def clock(self) -> Clock:
        return Clock(self.device_s)

    def record(self, program: Program, inputs: list[torch.Tensor], pool: Pool) -> Recorded:
        if self.fails:
            raise UnsupportedError("a library call waits")
        before = [t.clone() for t in inputs]
        results = program(*inputs)
        for tensor, old in zip(inputs, before):
            # A recording computes nothing.
            once = places_once(tensor.shape, tensor.stride())
            tensor[once].copy_(old[once])
        read = [t.detach() for t in inputs]

        def replay() -> None:
            for target, source in zip(results, program(*read)):
                if target.data_ptr() != source.data_ptr():
                    target.copy_(source)

        return Recorded(replay, results, None)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> KernelCache:
    return KernelCache(tmp_path_factory.mktemp("kernels"))


def sum_spec() -> ProgramSpec:
    """y = x + w."""
    values = tuple(value(n, r, (COUNT,)) for n, r in (("x", "input"), ("w", "input"), ("y", "result")))
    return ProgramSpec("total", "host", ("x", "w"), ("y",), values, (host_kernel("total", "a[i] + b[i]", COUNT, 2),),
                       (KernelStep(0, ("x", "w", "y")),))


def update_spec() -> ProgramSpec:
    """x = x + w in the caller's memory; y = the new x."""
    values = (value("x", "input", (COUNT,)), value("w", "input", (COUNT,)), value("y", "result", (COUNT,)))
    return dataclasses.replace(sum_spec(), values=values, steps=(*sum_spec().steps, CopyStep("y", "x")), updates=("x",))


def tensor(number: float) -> torch.Tensor:
    return torch.full((COUNT,), float(number))


def replayed(cache: KernelCache, graphs: HostGraphs, spec: ProgramSpec | None = None, *, always: bool = False,
             copies_kept: bool = True) -> ReplayedProgram:
    program = Program(sum_spec() if spec is None else spec, {}, cache=cache)
    lent = range(len(program.spec.results)) if always else ()
    return ReplayedProgram(program, graphs, (1,), always=always, lent=lent, copies_kept=copies_kept)


def held(count: int) -> Iterator[torch.Tensor]:
    """Inputs that are alive together, so that no two lie at one place."""
    yield from [tensor(float(n)) for n in range(count)]


@pytest.mark.parametrize("always", [False, True])
def test_an_input_that_moves_is_copied_and_a_parameter_read_in_place(cache: KernelCache, always: bool) -> None:
    run, w = replayed(cache, HostGraphs(), always=always), tensor(10)
    for n, x in enumerate(held(10)):
        w.add_(1)
        assert torch.equal(run([x, w])[0], x + w)
        assert run.num_replays == max(0, n - (0 if always else CALLS_BEFORE_RECORDING - 1))
    assert run.num_recordings == 1 and run._moving == {0}


def test_an_input_that_stays_is_read_in_place_until_it_moves(cache: KernelCache) -> None:
    run, w, x = replayed(cache, HostGraphs(), always=True), tensor(1), tensor(2)
    for n in range(4):
        x.fill_(n)
        assert torch.equal(run([x, w])[0], tensor(n + 1))
    assert run.num_recordings == 1 and not run._moving
    other = tensor(7)
    assert torch.equal(run([other, w])[0], tensor(8)) and run.num_recordings == 2 and run._moving == {0}
    assert torch.equal(run([x, w])[0], tensor(4)) and run.num_recordings == 2


def test_other_parameters_are_another_recording_and_stay_known(cache: KernelCache) -> None:
    run, weights, x = replayed(cache, HostGraphs(), always=True), list(held(4)), tensor(5)
    for _ in range(3):
        for w in weights:
            assert torch.equal(run([x, w])[0], x + w)
    assert run.num_recordings == 4 and run.num_replays == 8


def test_parameters_that_are_new_at_every_call_are_never_recorded(cache: KernelCache) -> None:
    run, x = replayed(cache, HostGraphs()), tensor(5)
    for w in held(3 * MAX_RECORDINGS):
        assert torch.equal(run([x, w])[0], x + w)
    assert run.num_recordings == 0


@pytest.mark.parametrize("always", [False, True])
def test_results_that_a_caller_keeps_stay_as_they_are(cache: KernelCache, always: bool) -> None:
    run, w, kept = replayed(cache, HostGraphs(), always=always), tensor(1), []
    for x in held(9):
        kept.append((run([x, w])[0], x + w))
    assert run.num_replays >= 5 and all(torch.equal(y, z) for y, z in kept)


def test_results_are_lent_until_a_caller_keeps_one_and_copied_from_then_on(cache: KernelCache) -> None:
    run, w, places = replayed(cache, HostGraphs(), always=True), tensor(1), []
    for x in held(5):
        y = run([x, w])[0]
        assert torch.equal(y, x + 1)
        places.append(y.data_ptr())
        del y
    assert run.num_recordings == 1 and len(set(places[1:])) == 1
    for x in held(6):
        before = None if x[0] == 0 else y  # noqa: F821
        was = None if before is None else before.clone()
        y = run([x, w])[0]
        assert torch.equal(y, x + 1) and (before is None or torch.equal(before, was))
        del before
    assert run.num_recordings == 2 and not run._lent


def test_results_are_lent_one_by_one(cache: KernelCache) -> None:
    """Results that a forward part gives its caller are copied, those kept for the backward part are lent."""
    values = (*sum_spec().values, value("z", "result", (COUNT,)))
    spec = dataclasses.replace(sum_spec(), values=values, results=("z", "y"),
                               steps=(*sum_spec().steps, KernelStep(0, ("y", "w", "z"))))
    run = ReplayedProgram(Program(spec, {}, cache=cache), HostGraphs(), (1,), always=True, lent=(1,), copies_kept=False)
    w, kept = tensor(1), []
    for x in held(6):
        z, y = run([x, w])
        assert torch.equal(z, x + 2) and torch.equal(y, x + 1)
        kept.append((z, x + 2))
        del y
    assert all(torch.equal(a, b) for a, b in kept) and run.num_replays == 5 and not run.why_not


def test_a_part_that_must_not_copy_runs_directly_once_results_pile_up(cache: KernelCache) -> None:
    run, w = replayed(cache, HostGraphs(), always=True, copies_kept=False), tensor(1)
    kept = [(run([x, w])[0], x + 1) for x in held(6)]
    assert all(torch.equal(y, z) for y, z in kept) and "keeps the results" in run.why_not


def test_an_updated_input_is_read_and_written_in_place(cache: KernelCache) -> None:
    run, x, w = replayed(cache, HostGraphs(), update_spec()), tensor(0), tensor(1)
    for n in range(8):
        assert torch.equal(run([x, w])[0], tensor(n + 1)) and torch.equal(x, tensor(n + 1))
    assert run.num_replays == 5
    other = tensor(20)
    assert torch.equal(run([other, w])[0], tensor(21)) and torch.equal(other, tensor(21)) and torch.equal(x, tensor(8))
    assert "lies elsewhere" in run.why_not and torch.equal(run([x, w])[0], tensor(9))


def test_no_replay_while_the_caller_records_or_another_thread_replays(cache: KernelCache) -> None:
    graphs = HostGraphs()
    run, x, w = replayed(cache, graphs, always=True), tensor(2), tensor(1)
    for _ in range(3):
        run([x, w])
    graphs.is_ready = False
    assert torch.equal(run([x, w])[0], tensor(3)) and run.num_replays == 2
    graphs.is_ready = True
    with run._current[0].guard:
        assert torch.equal(run([x, w])[0], tensor(3)) and run.num_replays == 2
    run([x, w])
    assert run.num_replays == 3


def test_every_stream_has_recordings_of_its_own(cache: KernelCache) -> None:
    graphs = HostGraphs()
    run, x, w = replayed(cache, graphs, always=True), tensor(2), tensor(1)
    for n in range(12):
        graphs.now = n % 3
        assert torch.equal(run([x, w])[0], tensor(3))
    assert run.num_recordings == 3
    run = replayed(cache, graphs)
    for n in range(15):
        graphs.now = n % 3
        assert torch.equal(run([x, w])[0], tensor(3))
    assert run.num_recordings == 3 and len(graphs.pools) == 3


@pytest.mark.parametrize("reason", ["slow device", "cannot be recorded"])
def test_recordings_that_gain_nothing_are_dropped(cache: KernelCache, reason: str) -> None:
    graphs = HostGraphs()
    graphs.device_s, graphs.fails = (1.0, False) if reason == "slow device" else (0.0, True)
    run, x, w = replayed(cache, graphs), tensor(2), tensor(1)
    for _ in range(9):
        assert torch.equal(run([x, w])[0], tensor(3))
    assert run.why_not.startswith("the device takes" if reason == "slow device" else "a library call waits")
    assert not run._recordings and run.num_replays <= 3


def test_other_shapes_and_settings_are_not_served(cache: KernelCache) -> None:
    run, w = replayed(cache, HostGraphs(), always=True), tensor(1)
    for x in held(4):
        run([x, w])
    recording = run._current[0]
    assert recording.serves([tensor(0), w])
    assert not recording.serves([tensor(0)[:1], w]) and not recording.serves([tensor(0).double(), w])
    with torch.backends.cudnn.flags(enabled=True, deterministic=True):
        assert not recording.serves([tensor(0), w])
        assert torch.equal(run([tensor(4), w])[0], tensor(5)) and run.num_recordings == 2


def test_what_torch_made_for_a_part_needs_no_look(cache: KernelCache) -> None:
    run = ReplayedProgram(Program(sum_spec(), {}, cache=cache), HostGraphs(), always=True, lent=(0,), trusted=(0, 1))
    x, w = tensor(2), tensor(1)
    for _ in range(3):
        assert torch.equal(run([x, w])[0], tensor(3))
    assert run._current[0]._looked_at == [] and run.num_replays == 2


def test_the_bare_replay_copies_what_moves_and_computes(cache: KernelCache) -> None:
    run, w = replayed(cache, HostGraphs(), always=True), tensor(1)
    assert run.bare() is None
    results = [run([x, w])[0] for x in held(4)]
    bare = run.bare()
    assert bare is not None and len(run._current[0]._copies[0][0]) == 1
    before = run._current[0].results
    del results
    w.fill_(5)
    bare()
    # The last input's copy stood in.
    assert torch.equal(before.give()[0], tensor(3 + 5))


def test_an_expanded_input_that_moves_is_copied_once_a_place(cache: KernelCache) -> None:
    values = (dataclasses.replace(value("x", "input", (COUNT,)), strides=(0,)), *sum_spec().values[1:])
    kernel = host_kernel("one_to_all", "a[0] + b[i]", COUNT, 2)
    run, w = replayed(cache, HostGraphs(), dataclasses.replace(sum_spec(), values=values, kernels=(kernel,)), always=True), tensor(1)
    for x in [torch.full((1,), float(n)) for n in range(6)]:
        assert torch.equal(run([x.expand(COUNT), w])[0], tensor(float(x) + 1))
    assert run.num_replays == 5 and len(run._current[0]._expanded) == 1
    bare = run.bare()
    assert bare is not None
    bare()


def test_an_unaligned_input_is_copied(cache: KernelCache) -> None:
    run, w, base = replayed(cache, HostGraphs(), always=True), tensor(1), torch.arange(COUNT + 1.0)
    for _ in range(3):
        assert torch.equal(run([base[1:], w])[0], base[1:] + 1)
    assert run.num_replays == 2


def test_an_input_that_is_given_back_is_the_callers(cache: KernelCache) -> None:
    run, w = replayed(cache, HostGraphs(), dataclasses.replace(sum_spec(), results=("x", "y", "w")), always=True), tensor(1)
    for x in held(4):
        first, y, last = run([x, w])
        assert first is x and last is w and torch.equal(y, x + 1)


def with_call(operator: str, attributes: tuple[tuple[str, object], ...] = (), result: str = "y") -> ProgramSpec:
    step = LibraryStep(operator, ("x",), (result,), attributes)  # type: ignore[arg-type]
    return dataclasses.replace(sum_spec(), steps=(*sum_spec().steps, step))


@pytest.mark.parametrize(("operator", "args", "allowed"), [
    ("random_seed", (), False), ("convolution", (), True), ("aten.exp.default", (("%", 0),), True),
    ("aten.bernoulli.default", (("%", 0),), False), ("aten.nonzero.default", (("%", 0),), False),
    ("aten._scaled_dot_product_flash_attention.default", (("%", 0), ("%", 0), ("%", 0)), True),
    ("aten._scaled_dot_product_flash_attention.default", (("%", 0), ("%", 0), ("%", 0), 0.1), False),
])
def test_operators_with_a_state_are_not_replayed_unasked(cache: KernelCache, operator: str, args: tuple[object, ...],
                                                         allowed: bool) -> None:
    program = Program(sum_spec(), {}, cache=cache)
    program.spec = with_call(operator, (("args", args),))
    assert may_be_replayed(program, always=False) is allowed and may_be_replayed(program, always=True)


def test_a_window_onto_an_input_is_not_replayed(cache: KernelCache) -> None:
    window = value("v", "view", (4,), base="x")
    spec = dataclasses.replace(sum_spec(), values=(*sum_spec().values, window), results=("v", "y"))
    assert not may_be_replayed(Program(spec, {}, cache=cache), always=True)


def test_layouts_with_gaps_and_repeats_are_copied_as_they_lie() -> None:
    from tilefuse.runtime.calls.lent import CopiedResults

    base = torch.arange(24.0)
    results = [base.view(4, 6)[:, ::2], base.view(4, 6).mT, base[:3].expand(5, 3), base[:0], torch.arange(3), base[0]]
    given = CopiedResults(results).give()
    for found, expected in zip(given, results):
        assert torch.equal(found, expected) and found.stride() == expected.stride() and found.dtype is expected.dtype
        assert not found.numel() or found.untyped_storage().data_ptr() != expected.untyped_storage().data_ptr()


class Kept(torch.autograd.Function):
    """x, keeping another tensor for its gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(kept)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


def test_what_autograd_alone_sees_is_the_same_tensor_at_every_call(cache: KernelCache) -> None:
    run, w = replayed(cache, HostGraphs(), always=True, copies_kept=False), tensor(1)
    x = tensor(2)
    places = []
    for _ in range(5):
        (y,) = run([x, w])
        assert torch.equal(y, tensor(3))
        places.append(id(y))
        del y
    assert len(set(places[1:])) == 1 and run.num_replays == 4


@pytest.mark.parametrize("holder", ["autograd", "a view", "python"])
def test_what_is_still_kept_for_a_gradient_is_not_overwritten(cache: KernelCache, holder: str) -> None:
    """Of several forward parts before one backward part, each has values of its own."""
    run, w = replayed(cache, HostGraphs(), always=True, copies_kept=False), tensor(1)
    leaf = torch.zeros(1, requires_grad=True)
    for x in held(3):
        run([x, w])
    keep = {"autograd": lambda y: Kept.apply(leaf, y), "a view": lambda y: y[1:], "python": lambda y: y}[holder]
    kept = keep(run([tensor(7), w])[0])
    assert run.num_replays == 3
    assert torch.equal(run([tensor(9), w])[0], tensor(10)) and "keeps the results" in run.why_not
    found = kept.grad_fn.saved_tensors[0] if holder == "autograd" else kept
    assert torch.equal(found, tensor(8)[: found.numel()])


def test_a_released_gradient_frees_what_was_kept(cache: KernelCache) -> None:
    run, w = replayed(cache, HostGraphs(), always=True, copies_kept=False), tensor(1)
    leaf = torch.zeros(1, requires_grad=True)
    for n in range(5):
        kept = Kept.apply(leaf, run([tensor(n), w])[0])
        kept.sum().backward()
        assert torch.equal(leaf.grad, torch.ones(1))
        leaf.grad = None
        del kept
    assert run.num_replays == 4 and not run.why_not


def test_a_backward_part_is_recorded_for_few_places(cache: KernelCache) -> None:
    run = ReplayedProgram(Program(sum_spec(), {}, cache=cache), HostGraphs(), (0, 1), always=True, lent=(0,), trusted=(0, 1))
    w, kept = tensor(1), list(held(MAX_BACKWARD_RECORDINGS + 1))
    for x in (*kept, *kept):
        assert torch.equal(run([x, w])[0], x + 1)
    assert run.num_recordings == MAX_BACKWARD_RECORDINGS and "sets of parameters" in run.why_not
