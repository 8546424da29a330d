"""The runtime on a GPU with kernels written by hand: launches, clusters, streams, capture, updates, memory, overhead.

Run it as a script to see the launch overhead: `python -m tests.gpu.test_runtime`.
"""
from __future__ import annotations

import dataclasses
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tilefuse
from tests.unit.runtime.handmade import cuda_kernel, value
from tilefuse.base.errors import DeviceError, OutOfMemoryError, UnsupportedError, UserError
from tilefuse.runtime.cuda_api import describe_device, function_resources, has_device
from tilefuse.runtime.load import load_program
from tilefuse.runtime.program import Program
from tilefuse.runtime.spec import CopyStep, KernelCode, KernelStep, LibraryStep, ProgramSpec
from tilefuse.runtime.stores.cache import KernelCache
from tilefuse.target.launch import Launch, Parameter

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

COUNT = 4096


def arch() -> str:
    """The architecture of the device at hand."""
    return describe_device(torch.cuda.current_device()).arch


def twice(count: int = COUNT) -> KernelCode:
    return cuda_kernel("twice", "a[i] + a[i]", count, 256, arch())


def chain(length: int, count: int = COUNT) -> ProgramSpec:
    """x -> t0 -> ... -> y, each step doubling."""
    names = ["x", *(f"t{i}" for i in range(length - 1)), "y"]
    roles = ["input", *(["intermediate"] * (length - 1)), "result"]
    steps = tuple(KernelStep(0, pair) for pair in zip(names, names[1:]))
    return ProgramSpec("chain", "cuda", ("x",), ("y",), tuple(value(n, r, (count,)) for n, r in zip(names, roles)), (twice(count),), steps)


def ramp(count: int = COUNT) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32, device="cuda")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> KernelCache:
    """One cache for the module, so that each kernel is compiled once."""
    return KernelCache(tmp_path_factory.mktemp("kernels"))


def test_device_description_agrees_with_torch() -> None:
    found, properties = describe_device(0), torch.cuda.get_device_properties(0)
    facts = dict(found.facts)
    assert has_device() and found.name == properties.name and facts["num_multiprocessors"] == properties.multi_processor_count
    assert (facts["major"], facts["minor"]) == torch.cuda.get_device_capability(0)


def test_chain_of_launches(cache: KernelCache) -> None:
    program = Program(chain(7), {}, "cuda", cache=cache)
    for _ in range(3):
        assert torch.equal(program(ramp())[0], 128 * ramp())
    assert program.memory.arena_bytes == 2 * 4 * COUNT


def test_load_without_compiling(cache: KernelCache, tmp_path: Path) -> None:
    Program(chain(2), {}, "cuda", cache=cache).save(tmp_path / "p")
    assert torch.equal(load_program(tmp_path / "p")(ramp())[0], 4 * ramp())


CLUSTER = """extern "C" __global__ void __launch_bounds__(64) total(const float* __restrict__ a, float* __restrict__ y) {
  // Each block sums its 64 elements; then each block reads the sums of all blocks of its cluster.
  extern __shared__ float tile[];
  unsigned rank; asm("mov.u32 %%0, %%%%cluster_ctarank;" : "=r"(rank));
  tile[threadIdx.x] = a[blockIdx.x * 64 + threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) { float s = 0; for (int i = 0; i < 64; i++) s += tile[i]; tile[0] = s; }
  asm volatile("barrier.cluster.arrive.aligned;\\nbarrier.cluster.wait.aligned;" ::: "memory");
  float sum = 0;
  unsigned local = (unsigned)__cvta_generic_to_shared(tile);
  for (unsigned r = 0; r < %(cluster)d; r++) {
    unsigned remote; float other;
    asm volatile("mapa.shared::cluster.u32 %%0, %%1, %%2;" : "=r"(remote) : "r"(local), "r"(r));
    asm volatile("ld.shared::cluster.f32 %%0, [%%1];" : "=f"(other) : "r"(remote));
    sum += other;
  }
  asm volatile("barrier.cluster.arrive.aligned;\\nbarrier.cluster.wait.aligned;" ::: "memory");
  y[blockIdx.x * 64 + threadIdx.x] = sum + rank;
}
"""


def cluster_kernel(cluster: int, shared_bytes: int = 256) -> KernelCode:
    parameters = (Parameter("a", "f32", COUNT, "in"), Parameter("y", "f32", COUNT, "out"))
    launch = Launch(COUNT // 64, 64, cluster, shared_bytes)
    return KernelCode("total", "total", CLUSTER % {"cluster": cluster}, "cuda", arch(), launch, parameters)


@pytest.mark.parametrize("cluster", [2, 8, 16])
def test_cluster_launch(cache: KernelCache, cluster: int) -> None:
    """Distributed shared memory over clusters, also of the non-portable size."""
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("clusters need compute capability 9.0")
    program = Program(dataclasses.replace(chain(1), kernels=(cluster_kernel(cluster),)), {}, "cuda", cache=cache)
    x = ramp() % 7
    ranks = torch.arange(COUNT // 64, device="cuda") % cluster
    expected = x.view(-1, cluster * 64).sum(1).repeat_interleave(cluster) + ranks
    assert torch.equal(program(x)[0].view(-1, 64), expected[:, None].expand(-1, 64))


def test_large_shared_memory_and_its_limit(cache: KernelCache) -> None:
    """200 KiB a block runs where the device has them; a megabyte is an error with the kernel's numbers."""
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("needs compute capability 9.0")
    spec = chain(1)
    large = Program(dataclasses.replace(spec, kernels=(cluster_kernel(1, 200 * 1024),)), {}, "cuda", cache=cache)
    assert torch.isfinite(large(ramp())[0]).all()
    assert function_resources(large._prepared.functions[0])["num_registers"] == large.resources["total"].num_registers
    with pytest.raises(DeviceError, match="1048576 bytes of shared memory"):
        Program(dataclasses.replace(spec, kernels=(cluster_kernel(1, 1 << 20),)), {}, "cuda", cache=cache)


def test_bad_launch_is_described(cache: KernelCache) -> None:
    kernel = dataclasses.replace(twice(), launch=Launch(4, 4096))
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE.*kernel twice: 4 blocks of 4096 threads"):
        Program(dataclasses.replace(chain(1), kernels=(kernel,)), {}, "cuda", cache=cache)(ramp())


def test_misaligned_and_strided_arguments(cache: KernelCache) -> None:
    program = Program(chain(1), {}, "cuda", cache=cache)
    for x in (ramp(COUNT + 1)[1:], ramp(2 * COUNT)[::2], ramp(1).expand(COUNT)):
        assert torch.equal(program(x)[0], 2 * x)
    assert program.counts.argument_copies == 3


def test_argument_on_the_wrong_device(cache: KernelCache) -> None:
    with pytest.raises(UserError, match=r"argument 0 \(x\) is on cpu, the program runs on cuda:0"):
        Program(chain(1), {}, "cuda", cache=cache)(ramp().cpu())


def update_spec() -> ProgramSpec:
    """x = 2 x, in the caller's memory."""
    values = (value("x", "input", (COUNT,)), value("t", "intermediate", (COUNT,)))
    return ProgramSpec("update", "cuda", ("x",), (), values, (twice(),), (KernelStep(0, ("x", "t")), CopyStep("t", "x")), updates=("x",))


def test_updates(cache: KernelCache) -> None:
    program = Program(update_spec(), {}, "cuda", cache=cache)
    for x in (ramp(), ramp(COUNT + 1)[1:], torch.nn.Parameter(ramp())):
        expected = 2 * x.detach()
        program(x)
        assert torch.equal(x, expected)


COUNTED = """extern "C" __global__ void counted(const float* __restrict__ a, unsigned* counter, float* work, float* __restrict__ y) {
  __shared__ bool last;
  work[blockIdx.x * 256 + threadIdx.x] = a[blockIdx.x * 256 + threadIdx.x];
  for (int i = 0; i < 2000; i++) __nanosleep(1);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(counter, 1u) == gridDim.x - 1;
  __syncthreads();
  if (last) {
    __threadfence();
    for (int i = threadIdx.x; i < %d; i += 256) y[i] = ((volatile float*)work)[i];
    if (threadIdx.x == 0) *counter = 0;
  }
}
"""


def counted_spec() -> ProgramSpec:
    """The last block to arrive copies all: wrong at once if two launches share a counter or workspace."""
    kernel = KernelCode("counted", "counted", COUNTED % COUNT, "cuda", arch(), Launch(COUNT // 256, 256), (
        Parameter("a", "f32", COUNT, "in"), Parameter("c", "u32", 1, "counter"), Parameter("w", "f32", COUNT, "workspace"),
        Parameter("y", "f32", COUNT, "out")))
    values = (value("x", "input", (COUNT,)), value("y", "result", (COUNT,)))
    return ProgramSpec("counted", "cuda", ("x",), ("y",), values, (kernel,), (KernelStep(0, ("x", "", "", "y")),))


def test_streams_do_not_share_counters(cache: KernelCache) -> None:
    """The same program in flight on four streams at a time."""
    program = Program(counted_spec(), {}, "cuda", cache=cache)
    streams = [torch.cuda.Stream() for _ in range(4)]
    arguments = [torch.full((COUNT,), float(i), device="cuda") for i in range(4)]
    torch.cuda.synchronize()
    found: list[tuple[int, torch.Tensor]] = []
    for _ in range(20):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                found.append((i, program(arguments[i])[0]))
    torch.cuda.synchronize()
    assert all(torch.equal(y, arguments[i]) for i, y in found)


def test_threads_that_never_touched_the_gpu(cache: KernelCache) -> None:
    """A new thread has no CUDA context of its own yet."""
    program = Program(chain(3), {}, "cuda", cache=cache)
    x, wrong = ramp(), []
    torch.cuda.synchronize()

    def work() -> None:
        wrong.extend(1 for _ in range(50) if not torch.equal(program(x)[0], 8 * x))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_peak_memory_is_the_planned_one(cache: KernelCache) -> None:
    count = 1 << 22
    program = Program(chain(8, count), {}, "cuda", cache=cache)
    x = ramp(count)
    program(x)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    program(x)
    peak = torch.cuda.max_memory_allocated() - before
    assert peak <= program.memory.peak_bytes + 4096 < 4 * 4 * count


def test_out_of_memory_carries_the_plan(cache: KernelCache) -> None:
    """Broadcast views make a program with a result larger than the device; only the result is ever asked for."""
    count = 1 << 40
    kernel = dataclasses.replace(twice(COUNT), parameters=(Parameter("a", "f32", COUNT, "in"), Parameter("y", "f32", count, "out")))
    spec = dataclasses.replace(chain(1), kernels=(kernel,), values=(value("x", "input", (COUNT,)), value("y", "result", (count,))))
    with pytest.raises(OutOfMemoryError, match=r"does not fit in the memory of cuda:0: .*results 4194304.00 MiB"):
        Program(spec, {}, "cuda", cache=cache)(ramp())
    assert torch.equal(Program(chain(1), {}, "cuda", cache=cache)(ramp())[0], 2 * ramp())


def test_capture_copies_arguments_in(cache: KernelCache) -> None:
    captured = Program(chain(5), {}, "cuda", cache=cache).capture(ramp())
    for i in range(3):
        x = ramp() + i
        assert torch.equal(captured(x)[0], 32 * x)
    assert torch.equal(captured(ramp(COUNT + 1)[1:])[0], 32 * ramp(COUNT + 1)[1:])
    captured.inputs[0].fill_(3)
    assert torch.equal(captured(captured.inputs[0])[0], torch.full((COUNT,), 96.0, device="cuda"))
    assert captured.num_recordings == 1


def test_capture_overwrites_results_unless_copied(cache: KernelCache) -> None:
    program = Program(chain(2), {}, "cuda", cache=cache)
    shared, own = program.capture(ramp()), program.capture(ramp(), copy_results=True)
    assert shared(ramp())[0].data_ptr() == shared(ramp())[0].data_ptr()
    first, _ = own(ramp())[0], own(ramp() + 1)
    assert torch.equal(first, 4 * ramp())


def test_capture_reads_parameters_in_place(cache: KernelCache) -> None:
    """A parameter changed in place needs nothing; another tensor records again."""
    x = ramp()
    captured = Program(chain(2), {}, "cuda", cache=cache).capture(x, zero_copy=("x",))
    x.add_(1)
    assert torch.equal(captured(x)[0], 4 * x) and captured.num_recordings == 1
    other = ramp() * 3
    assert torch.equal(captured(other)[0], 4 * other) and captured.num_recordings == 2
    assert torch.equal(captured(x)[0], 4 * x) and captured.num_recordings == 2
    misaligned = ramp(COUNT + 1)[1:]
    assert torch.equal(captured(misaligned)[0], 4 * misaligned) and captured.num_recordings == 2
    copied = captured.program.capture(misaligned, zero_copy=("x",))
    assert torch.equal(copied(misaligned + 1)[0], 4 * misaligned + 4) and copied.num_recordings == 1


@torch.library.custom_op("tilefuse_tests::waits_for_the_gpu", mutates_args=())
def waits_for_the_gpu(x: torch.Tensor) -> torch.Tensor:
    return x * float(x.sum().item())


@waits_for_the_gpu.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_a_recording_that_breaks_off_leaves_torch_whole() -> None:
    """A library call that waits for the GPU cannot be recorded; torch's random numbers, memory and later recordings still work."""
    x = ramp()
    program = tilefuse.compile(lambda x: waits_for_the_gpu(x + 1).sin(), [x], device="cuda")
    with pytest.raises(UnsupportedError, match="cannot be captured"):
        program.program.capture(x)
    assert torch.randn(8, device="cuda").isfinite().all() and torch.zeros(1 << 20, device="cuda").sum().item() == 0
    torch.testing.assert_close(program(x), ((x + 1) * (x + 1).sum()).sin(), rtol=1e-3, atol=1e-3)
    other = tilefuse.compile(lambda x: x.exp() * 2, [x], device="cuda").program.capture(x)
    torch.testing.assert_close(other(x)[0], x.exp() * 2)


def test_capture_with_updates_and_counters(cache: KernelCache) -> None:
    x = ramp()
    captured = Program(update_spec(), {}, "cuda", cache=cache).capture(x)
    assert torch.equal(x, ramp())
    captured(x)
    captured(x)
    assert torch.equal(x, 4 * ramp())
    in_place = Program(update_spec(), {}, "cuda", cache=cache).capture(x, zero_copy=("x",))
    assert torch.equal(x, 4 * ramp())
    in_place(x)
    assert torch.equal(x, 8 * ramp())
    counted = Program(counted_spec(), {}, "cuda", cache=cache).capture(ramp())
    assert all(torch.equal(counted(ramp() + i)[0], ramp() + i) for i in range(5))


def test_capture_gives_an_input_back_as_it_is(cache: KernelCache) -> None:
    spec = dataclasses.replace(chain(1), results=("y", "x"))
    x = ramp()
    y, same = Program(spec, {}, "cuda", cache=cache).capture(x)(x)
    assert same is x and torch.equal(y, 2 * x)


def test_capture_on_two_streams(cache: KernelCache) -> None:
    captured = Program(chain(3), {}, "cuda", cache=cache).capture(ramp(), copy_results=True)
    found = []
    for i in range(10):
        with torch.cuda.stream(torch.cuda.Stream()):
            x = ramp() + i
            found.append((x, captured(x)[0]))
    torch.cuda.synchronize()
    assert all(torch.equal(y, 8 * x) for x, y in found)


def test_library_call_between_kernels_and_in_a_graph(cache: KernelCache) -> None:
    side = 64
    shape = (side, side)
    values = (value("x", "input", shape), value("t", "intermediate", shape), value("m", "intermediate", shape), value("y", "result", shape))
    steps = (KernelStep(0, ("x", "t")), LibraryStep("matmul", ("t", "t"), ("m",)), KernelStep(0, ("m", "y")))
    program = Program(ProgramSpec("p", "cuda", ("x",), ("y",), values, (twice(side * side),), steps), {}, "cuda", cache=cache)
    x = (ramp(side * side) % 3).view(shape)
    expected = 8 * (x @ x)
    assert torch.equal(program(x)[0], expected)
    assert torch.equal(program.capture(x)(x)[0], expected)


def test_call_that_waits_cannot_be_captured(cache: KernelCache) -> None:
    values = (value("x", "input", (COUNT,)), value("y", "result", (COUNT, 1), dtype="i64"))
    step = LibraryStep("aten.nonzero.default", ("x",), ("y",), (("args", (("%", 0),)), ("kwargs", ())))
    program = Program(ProgramSpec("p", "cuda", ("x",), ("y",), values, (), (step,)), {}, "cuda", cache=cache)
    with pytest.raises(UnsupportedError, match="cannot be captured"):
        program.capture(ramp() + 1)
    assert torch.equal(ramp() + 1, ramp() + 1)


def test_profile_measures_bandwidth(cache: KernelCache) -> None:
    count = 1 << 26
    row, = Program(chain(1, count), {}, "cuda", cache=cache).profile(ramp(count), repeats=5)
    assert row.num_bytes == 8 * count and row.gb_per_s > 100


def seconds_per_call(call: Callable[[], object], calls: int = 2000) -> float:
    """Median over batches of the interval between calls, GPU work included. Units: seconds."""
    for _ in range(200):
        call()
    torch.cuda.synchronize()
    samples = []
    for _ in range(7):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - started) / calls)
    return statistics.median(samples)


def overhead_us(cache: KernelCache) -> dict[str, float]:
    """Microseconds a call: torch operators and our programs of one and fifty small kernels, eager and captured."""
    x, one, fifty = ramp(), Program(chain(1), {}, "cuda", cache=cache), Program(chain(50), {}, "cuda", cache=cache)
    graphed = fifty.capture(x)
    in_place = fifty.capture(x, zero_copy=("x",))
    replay = next(reversed(graphed._recordings.values())).graph.replay
    cases: dict[str, Callable[[], object]] = {
        "torch add": lambda: torch.add(x, x), "one kernel": lambda: one(x), "one kernel, launch alone": _launch_alone(one),
        "fifty kernels": lambda: fifty(x), "fifty kernels, graph": lambda: graphed(x), "fifty kernels, graph in place": lambda: in_place(x),
        "fifty kernels, bare replay": replay}
    return {name: 1e6 * seconds_per_call(call, 200 if "fifty" in name else 2000) for name, call in cases.items()}


def _launch_alone(program: Program) -> Callable[[], object]:
    """The prepared foreign call by itself, on buffers that stay."""
    frame = program.new_frame(torch.cuda.current_stream().cuda_stream)
    x, y = ramp(), ramp()
    frame.slots[0], frame.slots[1] = x.data_ptr(), y.data_ptr()
    operation = frame.operations[-1]
    # The frame owns the table of addresses that the call reads.
    return lambda: (operation(), x, y, frame)


@pytest.mark.alone
def test_launch_overhead(cache: KernelCache) -> None:
    """A one-kernel program within twice a torch operator; a captured program within a tenth of its graph's replay."""
    found = overhead_us(cache)
    print("".join(f"\n{name:32s} {us:8.2f} us" for name, us in found.items()))
    assert found["one kernel"] <= 2 * found["torch add"]
    assert found["fifty kernels, graph in place"] <= 1.10 * found["fifty kernels, bare replay"]


if __name__ == "__main__":
    for case, us in overhead_us(KernelCache(None)).items():
        print(f"{case:32s} {us:8.2f} us")
