"""Kernels written by hand, so that the runtime is tested without the compiler that usually writes them."""
from __future__ import annotations

from tilefuse.runtime.spec import KernelCode, Value
from tilefuse.target.launch import Launch, Parameter

HOST = """#include <cmath>
#include <cstdio>
static inline float tf_twice(float x) { return x + x; }
extern "C" int %(name)s(void* const* arguments, char* report, long report_size) {
  const float* a = (const float*)arguments[0];
  %(more)s
  float* y = (float*)arguments[%(last)d];
  #pragma omp parallel for
  for (int i = 0; i < %(count)d; i++) { y[i] = %(body)s; }
  return 0;
}
"""


def value(name: str, role: str, shape: tuple[int, ...] = (4, 32), strides: tuple[int, ...] | None = None, dtype: str = "f32",
          base: str = "", offset: int = 0) -> Value:
    """A value, row-major unless strides are given."""
    if strides is None:
        found: list[int] = []
        step = 1
        for extent in reversed(shape):
            found.insert(0, step)
            step *= max(extent, 1)
        strides = tuple(found)
    return Value(name, dtype, shape, strides, role, base, offset)


def host_kernel(name: str, body: str, count: int = 128, num_inputs: int = 1, num_blocks: int = 1) -> KernelCode:
    """y[i] = body(a, b, i) for `count` f32 elements; inputs a, b."""
    more = "const float* b = (const float*)arguments[1];" if num_inputs > 1 else ""
    source = HOST % {"name": name, "more": more, "last": num_inputs, "count": count, "body": body}
    inputs = tuple(Parameter(n, "f32", count, "in") for n in "ab"[:num_inputs])
    return KernelCode(name, name, source, "host", "x86_64", Launch(num_blocks, 1), (*inputs, Parameter("y", "f32", count, "out")),
                      bytes_read=4 * count * num_inputs, bytes_written=4 * count)


CUDA = """extern "C" __global__ void %(name)s(const float* __restrict__ a, float* __restrict__ y) {
  int i = blockIdx.x * %(threads)d + threadIdx.x;
  if (i < %(count)d) y[i] = %(body)s;
}
"""


def cuda_kernel(name: str, body: str, count: int = 128, threads: int = 128, arch: str = "sm_90a") -> KernelCode:
    """y[i] = body(a, i) for `count` f32 elements."""
    source = CUDA % {"name": name, "threads": threads, "count": count, "body": body}
    parameters = (Parameter("a", "f32", count, "in"), Parameter("y", "f32", count, "out"))
    return KernelCode(name, name, source, "cuda", arch, Launch(-(-count // threads), threads), parameters,
                      bytes_read=4 * count, bytes_written=4 * count)
