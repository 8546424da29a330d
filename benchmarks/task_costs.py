"""Costs inside a stage of tasks, one by one: the chain of `benchmarks.tasks` with one thing changed in its generated text.

    python -m benchmarks.tasks --costs

Each row is a chain of stages of one task a multiprocessor; its time over the number of stages is a stage. Some changes give up what makes
a kernel right (the release of a publication, the acquisition of a wait): their rows say what these cost, no result is compared. Two rows
are other ways to hand values on: kernels that start early, and values that carry a stamp, so that readers poll the values themselves and
need neither counters nor fences.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.tasks import STAGES, THREADS, chain_kernel, chain_program
from benchmarks.timing import time_calls
from tilefuse.ir.affine import axis
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Bound, call, const
from tilefuse.kernel.ir import Buffer, If, Kernel, Load, Store
from tilefuse.kernel.launch_contract import pointer_parameters
from tilefuse.printers.cuda import print_cuda
from tilefuse.runtime.program import Program
from tilefuse.runtime.spec import KernelCode, KernelStep, ProgramSpec, Value
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.target.launch import Launch, Parameter

_TAKE = "    tf_next = tf_take_task(tf_counters);\n"
_PASS_ON = "if (threadIdx.x == 0) tf_taken[tf_place ^ 1] = tf_next;"


@dataclass(frozen=True)
class Change:
    """A change of a kernel of tasks: texts that replace others, blocks a multiprocessor, whether results stay right."""

    edits: tuple[tuple[str, str], ...] = ()
    blocks: int = 1
    is_right: bool = True

    def applied(self, source: str) -> str:
        """The source with the change. Raises: AssertionError where the source has not what the change replaces."""
        for old, new in self.edits:
            assert old in source, f"the generated text has no {old!r}"
            source = source.replace(old, new)
        return source


CHANGES = {
    "as generated": Change(),
    "number taken behind the task": Change(((_TAKE, ""), (_PASS_ON, "tf_next = tf_take_task(tf_counters);\n" + _PASS_ON))),
    "number without a counter": Change(((_TAKE, "    tf_next = tf_number + (int)gridDim.x;\n"),)),
    "counters in one line": Change((("tf_counter_words = 32;", "tf_counter_words = 1;"),)),
    "sleep of 20 ns between polls": Change((("< value) {}", "< value) __nanosleep(20);"),)),
    "two blocks a multiprocessor": Change(blocks=2),
    "four blocks a multiprocessor": Change(blocks=4),
    "publication without release": Change((("red.release.gpu", "red.relaxed.gpu"),), is_right=False),
    "wait without acquire": Change((("ld.acquire.gpu", "ld.relaxed.gpu"),), is_right=False),
    "neither release nor acquire": Change((("red.release.gpu", "red.relaxed.gpu"), ("ld.acquire.gpu", "ld.relaxed.gpu")), is_right=False),
}


def costs(device: torch.device) -> Iterator[dict[str, object]]:
    """One row for each change and for each other way. Units: microseconds a stage."""
    workers = torch.cuda.get_device_properties(device).multi_processor_count
    for name, change in CHANGES.items():
        short, long = (_chain_us(device, n, workers, change) for n in (1, STAGES + 1))
        alone = (_chain_us(device, STAGES + 1, 1, change) - _chain_us(device, 1, 1, change)) / STAGES if change.blocks == 1 else None
        yield {"change": name, "stage_us": (long - short) / STAGES, "stage of one block": alone, "kernel of one stage": short}
    yield {"change": "kernels that start early", "stage_us": _launches_us(device, workers) / STAGES}
    yield {"change": "values with stamps, each block reads all", "stage_us": _stamped_us(device, workers) / STAGES}


def _chain_us(device: torch.device, stages: int, workers: int, change: Change) -> float:
    program = chain_program(chain_kernel(stages, workers, workers * change.blocks), H200, str(device), change.applied)
    x = torch.arange(workers, dtype=torch.float32, device=device)
    timing, result = time_calls([lambda: program(x)], device, budget_s=0.1)
    counted = result[0] if isinstance(result, (list, tuple)) else result
    assert not change.is_right or torch.equal(counted, x + stages), "every stage counts every element up once"
    return timing.median_us


def early_chain(blocks: int, device: DeviceSpec, place: str) -> Program:
    """The chain as kernels that start early: each copies one element a block, one higher."""
    buffers = tuple(Buffer(name, F32, blocks, "global", role, name) for name, role in (("before", "in"), ("after", "out")))
    element = Load("before", F32, axis("block"))
    step = If((Bound(axis("thread"), 0, 1),), (Store("after", axis("block"), call("add", element, const(1, F32))),))
    kernel = Kernel("k_count", buffers, Launch(blocks, THREADS, early=device.starts_early), (step,))
    code = KernelCode("k_count", "k_count", print_cuda(kernel, device), "cuda", device.arch, kernel.launch, pointer_parameters(kernel))
    names = ["x", *("b" if n % 2 else "a" for n in range(STAGES))]
    roles = {"x": "input", names[-1]: "result"}
    values = tuple(Value(v, "f32", (blocks,), (1,), roles.get(v, "intermediate")) for v in ("x", "a", "b"))
    steps = tuple(KernelStep(0, pair) for pair in zip(names, names[1:], strict=False))
    return Program(ProgramSpec("early_chain", "cuda", ("x",), (names[-1],), values, (code,), steps), {}, place)


def _launches_us(device: torch.device, blocks: int) -> float:
    program = early_chain(blocks, H200, str(device))
    x = torch.arange(blocks, dtype=torch.float32, device=device)
    timing, result = time_calls([lambda: program(x)], device, budget_s=0.1)
    assert torch.equal(result[0] if isinstance(result, (list, tuple)) else result, x + STAGES)
    return timing.median_us


# Values of 4 bytes with stamps of 4 bytes in one word, which is stored and loaded as a whole. Two places by turns: a block writes stage
# s + 2 once it has read all of stage s + 1, whose writers had read all of stage s. Stamps of a call begin where those of the last ended.
STAMPED = """
struct k_stamped_operands { void* at[3]; };
extern "C" __global__ void __launch_bounds__(%(threads)d) k_stamped(const __grid_constant__ k_stamped_operands tf_operands) {
  const float* x = static_cast<const float*>(tf_operands.at[0]);
  float* y = static_cast<float*>(tf_operands.at[1]);
  unsigned long long* words = static_cast<unsigned long long*>(tf_operands.at[2]);
  asm volatile("griddepcontrol.wait;\\n\\tgriddepcontrol.launch_dependents;" ::: "memory");
  volatile unsigned long long* call = words + 2 * %(blocks)d;
  __shared__ float own;
  const unsigned int first = (unsigned int)*call * (%(stages)d + 1);
  for (int stage = 0; stage < %(stages)d; ++stage) {
    const unsigned long long* before = words + ((stage + 1) & 1) * %(blocks)d;
    for (int n = threadIdx.x; n < %(blocks)d; n += blockDim.x) {
      unsigned long long word;
      if (!stage) word = __float_as_uint(x[n]);
      else do asm volatile("ld.relaxed.gpu.global.u64 %%0, [%%1];" : "=l"(word) : "l"(before + n) : "memory");
      while ((unsigned int)(word >> 32) != first + stage);
      if (n == blockIdx.x) own = __uint_as_float((unsigned int)word) + 1.0f;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      const unsigned long long word = (unsigned long long)(first + stage + 1) << 32 | __float_as_uint(own);
      asm volatile("st.relaxed.gpu.global.u64 [%%0], %%1;" :: "l"(words + (stage & 1) * %(blocks)d + blockIdx.x), "l"(word) : "memory");
      if (stage + 1 == %(stages)d) y[blockIdx.x] = own;
      if (stage + 1 == %(stages)d && !blockIdx.x) *call = *call + 1;
    }
  }
}
"""


def _stamped_us(device: torch.device, blocks: int) -> float:
    """Every block reads the values of all blocks of the stage before. Requires: all blocks are resident."""
    source = STAMPED % {"threads": THREADS, "blocks": blocks, "stages": STAGES}
    parameters = (Parameter("x", "f32", blocks, "in"), Parameter("y", "f32", blocks, "out"),
                  Parameter("words", "i64", 2 * blocks + 1, "counter"))
    code = KernelCode("k_stamped", "k_stamped", source, "cuda", H200.arch, Launch(blocks, THREADS, early=True), parameters,
                      one_structure=True)
    values = tuple(Value(v, "f32", (blocks,), (1,), role) for v, role in (("x", "input"), ("y", "result")))
    program = Program(ProgramSpec("stamped", "cuda", ("x",), ("y",), values, (code,), (KernelStep(0, ("x", "y", "")),)), {}, str(device))
    x = torch.arange(blocks, dtype=torch.float32, device=device)
    timing, result = time_calls([lambda: program(x)], device, budget_s=0.1)
    assert torch.equal(result[0] if isinstance(result, (list, tuple)) else result, x + STAGES)
    return timing.median_us
