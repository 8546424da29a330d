"""A whole program as CUDA C++ that anyone can build: kernels with the function that launches them, a C header, and a driver that times it.

    nvcc -O3 -arch=sm_90a -o out out.cu out_main.cu
"""
from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from tilefuse.base.errors import UnsupportedError, UserError
from tilefuse.runtime.calls.call_plan import ITEMSIZE, CallPlan, plan_calls, storage_bytes
from tilefuse.runtime.spec import KernelStep, ProgramSpec, Value
from tilefuse.runtime.stores.cache import write_whole
from tilefuse.standalone.c_names import banner, identifier
from tilefuse.standalone.program_text import tensor_shape

C_TYPES = {"f64": "double", "f32": "float", "i64": "long long", "i32": "int", "u64": "unsigned long long", "u32": "unsigned int",
           "i16": "short", "u16": "unsigned short", "i8": "signed char", "u8": "unsigned char", "bool": "unsigned char"}
COUNTER_ALIGNMENT = 256
LAUNCH = """namespace {

cudaError_t launch(const void* kernel, int blocks, int threads, int cluster, int shared, bool early, bool scattered, void** arguments,
                   cudaStream_t stream) {
  cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (status == cudaSuccess && cluster > 8 && !scattered) {
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute attributes[3];
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = attributes;
  if (scattered) {  // blocks of a cluster lie anywhere and wait for each other: all blocks start at once
    attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
    attributes[config.numAttrs++].val.cooperative = 1;
  } else if (cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim.x = cluster;
    attributes[config.numAttrs].val.clusterDim.y = 1;
    attributes[config.numAttrs++].val.clusterDim.z = 1;
  }
  if (early) {  // may start before the kernel ahead has ended, and waits for it itself
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

}  // namespace
"""
DRIVER_HEAD = """#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                            \\
  do {                                                                         \\
    cudaError_t e = (call);                                                    \\
    if (e != cudaSuccess) {                                                    \\
      std::fprintf(stderr, "%s: %s\\n", #call, cudaGetErrorString(e));          \\
      std::exit(1);                                                            \\
    }                                                                          \\
  } while (0)

template <class T> T* filled(size_t count, unsigned seed) {
  std::vector<T> data(count);
  for (size_t n = 0; n < count; ++n) {
    seed = seed * 1664525u + 1013904223u;
    data[n] = T((seed >> 8) / 16777216.0 - 0.5);
  }
  T* place = nullptr;
  CHECK(cudaMalloc(&place, count * sizeof(T) + 16));
  CHECK(cudaMemcpy(place, data.data(), count * sizeof(T), cudaMemcpyHostToDevice));
  return place;
}

template <class T> void tell(const char* name, const T* place, size_t count) {
  std::vector<T> data(count);
  CHECK(cudaMemcpy(data.data(), place, count * sizeof(T), cudaMemcpyDeviceToHost));
  double sum = 0;
  for (const T& value : data) sum += double(value);
  std::printf("%s: %zu words, sum %.9g\\n", name, count, sum);
}

int main() {"""


@dataclass(frozen=True)
class EmittedProgram:
    """Texts of the three files: `cu` kernels and launches, `header` for C and C++, `main` the driver ("": none)."""

    cu: str
    header: str
    main: str

    def write(self, path: Path) -> list[Path]:
        """Write PATH, and beside it the header and the driver; the paths written. Raises: UserError when that fails."""
        files = {path: self.cu, path.with_suffix(".h"): self.header}
        files |= {path.with_name(path.stem + "_main.cu"): self.main} if self.main else {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for target, text in files.items():
                write_whole(target, text.encode())
        except OSError as cause:
            raise UserError(f"cannot write {path}: {cause.strerror or cause}") from cause
        return list(files)


def emit_program(spec: ProgramSpec, name: str, stem: str, arch: str, origin: str = "", inputs: Sequence[str] = (),
                 turned: Collection[str] = ()) -> EmittedProgram:
    """The program as a C function `name`, its arguments `inputs` (as the program has them if empty) and results.

    stem: the files' name without suffix. origin: a text that the sources begin with. turned: matrices that the program has transposed.

    Raises: UnsupportedError for a program with library calls or copies, or with element types that C lacks.
    """
    others = sorted({type(s).__name__ for s in spec.steps if not isinstance(s, KernelStep)})
    if others:
        raise UnsupportedError(f"{spec.name} needs more than kernels ({', '.join(others)}): it cannot be emitted as one file")
    values = {v.name: v for v in spec.values}
    spec = replace(spec, inputs=tuple(i for i in inputs if i in spec.inputs) or spec.inputs)
    unknown = sorted({v.dtype for v in spec.values} - set(C_TYPES))
    if unknown:
        raise UnsupportedError(f"values of type {', '.join(unknown)} have no C type", hint="C has f32, f64, integers and bool")
    plan = plan_calls(spec)
    names = _arguments(spec, name)
    signature = _signature(spec, name, values, names)
    return EmittedProgram(_cu(spec, signature, stem, plan, names, origin, arch),
                          _header(spec, name, signature, plan, values, names, origin, turned), _main(spec, name, stem, values, names))


def _arguments(spec: ProgramSpec, function: str) -> dict[str, str]:
    """Value -> the name of its argument: all different, and none the function's."""
    names: dict[str, str] = {}
    for value in (*spec.inputs, *spec.results):
        unique = identifier(value)
        while unique == function or unique in names.values():
            unique += "_"
        names[value] = unique
    return names


def _signature(spec: ProgramSpec, name: str, values: dict[str, Value], names: dict[str, str]) -> str:
    parts = [f"const {C_TYPES[values[v].dtype]}* {names[v]}" for v in spec.inputs]
    parts += [f"{C_TYPES[values[v].dtype]}* {names[v]}" for v in spec.results]
    return f"cudaError_t {name}({', '.join(parts)}, void* workspace, cudaStream_t stream)"


def _workspace(plan: CallPlan) -> tuple[int, int]:
    """Bytes of the counters, at the start, and of everything."""
    counters = -(-plan.memory.counter_bytes // COUNTER_ALIGNMENT) * COUNTER_ALIGNMENT
    return counters, counters + plan.memory.arena_bytes


def _header(spec: ProgramSpec, name: str, signature: str, plan: CallPlan, values: dict[str, Value], names: dict[str, str], origin: str,
            turned: Collection[str]) -> str:
    rows = []
    for v in (*spec.inputs, *spec.results):
        step = -1 if v in turned else 1
        rows.append(f" *   {names[v]:<12} {'in ' if v in spec.inputs else 'out'} {C_TYPES[values[v].dtype]}, "
                    f"shape {list(values[v].shape)[::step]}, strides {list(values[v].strides)[::step]}")
    counters, total = _workspace(plan)
    return "\n".join([
        banner(origin), "#pragma once", "#include <cuda_runtime_api.h>", "", "#ifdef __cplusplus", 'extern "C" {', "#endif", "",
        f"/* Workspace of one call at a time, in bytes; the first {counters} are zero before the first call (and again after each). */",
        f"#define {name.upper()}_WORKSPACE_BYTES {total}ull", f"#define {name.upper()}_ZERO_BYTES {counters}ull", "",
        "/* Device pointers, 16-byte aligned; strides in elements:", *rows, " */", f"{signature};", "",
        "#ifdef __cplusplus", "}", "#endif", ""])


def _cu(spec: ProgramSpec, signature: str, stem: str, plan: CallPlan, names: dict[str, str], origin: str, arch: str) -> str:
    lines = [banner(origin), f"// Build: nvcc -O3 -arch={arch} -c {stem}.cu", f'#include "{stem}.h"', "#include <cstdint>",
             "#include <cstring>", ""]
    if any(k.maps for k in spec.kernels):
        lines += map_functions()
    for number, kernel in enumerate(spec.kernels):
        lines += [f"namespace kernel_{number} {{", kernel.source.rstrip(), f"}}  // namespace kernel_{number}", ""]
    counters, _ = _workspace(plan)
    lines += [LAUNCH,
              f'extern "C" {signature} {{',
              "  unsigned char* const scratch = static_cast<unsigned char*>(workspace);",
              "  (void)scratch;"]
    pointer = _pointers(plan, counters, names)
    for number, step in enumerate(spec.steps):
        assert isinstance(step, KernelStep)
        kernel = spec.kernels[step.kernel]
        first, count = plan.step_slots[number]
        launch = kernel.launch
        if not launch.num_blocks:
            continue
        lines += ["  {", f"    void* pointers[] = {{{', '.join(pointer[first + n] for n in range(count))}}};"]
        pointers = "void* arguments[] = {pointers};" if kernel.one_structure else \
            f"void* arguments[] = {{{', '.join(f'&pointers[{n}]' for n in range(count))}}};"
        for n, m in enumerate(kernel.maps):
            encode = f"encode_tensor_map(&map_{n}, tensor_{n}, pointers[{m.parameter}])"
            lines += [f"    CUtensorMap map_{n};", f"    const TensorShape tensor_{n} = {tensor_shape(m)};  // {m.name}",
                      f"    if (const cudaError_t refused = {encode}) return refused;"]
            pointers = pointers.removesuffix("};") + f", &map_{n}}};"
        lines += [f"    {pointers}",
                  f"    const cudaError_t status = launch((const void*)kernel_{step.kernel}::{kernel.entry}, {launch.num_blocks}, "
                  f"{launch.num_threads}, {launch.cluster}, {launch.shared_bytes}, {str(launch.early).lower()}, "
                  f"{str(launch.scattered).lower()}, arguments, stream);",
                  "    if (status != cudaSuccess) return status;", "  }"]
    return "\n".join([*lines, "  return cudaGetLastError();", "}", ""])


def map_functions() -> list[str]:
    """Lines of C++ that encode tensor maps."""
    text = (resources.files("tilefuse.standalone") / "sources" / "tensor_maps.inc").read_text(encoding="utf-8")
    return ["#include <cuda.h>", "", "namespace {", "", text, "}  // namespace", ""]


def _pointers(plan: CallPlan, counters: int, names: dict[str, str]) -> dict[int, str]:
    """Slot -> the C expression of its address."""
    pointer_by_slot: dict[int, str] = {}
    for root, slots in plan.slots_by_root.items():
        for slot in slots:
            pointer_by_slot[slot.number] = f"(unsigned char*){names[root]} + {slot.offset_bytes}"
    for slot in plan.counter_slots:
        pointer_by_slot[slot.number] = f"scratch + {slot.offset_bytes}"
    for slot in plan.arena_slots:
        pointer_by_slot[slot.number] = f"scratch + {counters + slot.offset_bytes}"
    return pointer_by_slot


def _main(spec: ProgramSpec, name: str, stem: str, values: dict[str, Value], names: dict[str, str]) -> str:
    place = {v: f"d_{n}" for v, n in names.items()}  # the driver has names of its own
    moved = sum(storage_bytes(values[v]) for v in (*spec.inputs, *spec.results))
    lines = [f"// Driver: fills the inputs, runs and times {name}, prints the sum of each result.", f'#include "{stem}.h"',
             DRIVER_HEAD]
    for n, v in enumerate((*spec.inputs, *spec.results)):
        value = values[v]
        count = storage_bytes(value) // ITEMSIZE[value.dtype]
        lines.append(f"  auto* {place[v]} = filled<{C_TYPES[value.dtype]}>({count}, {n + 1}u);")
    arguments = ", ".join(place.values())
    lines += ["  void* workspace = nullptr;", f"  CHECK(cudaMalloc(&workspace, {name.upper()}_WORKSPACE_BYTES + 16));",
              f"  CHECK(cudaMemset(workspace, 0, {name.upper()}_WORKSPACE_BYTES));",
              f"  CHECK({name}({arguments}, workspace, 0));", "  CHECK(cudaDeviceSynchronize());",
              "  cudaEvent_t begin, end;", "  CHECK(cudaEventCreate(&begin));", "  CHECK(cudaEventCreate(&end));",
              "  const int repeats = 20;", "  CHECK(cudaEventRecord(begin));",
              f"  for (int n = 0; n < repeats; ++n) CHECK({name}({arguments}, workspace, 0));",
              "  CHECK(cudaEventRecord(end));", "  CHECK(cudaEventSynchronize(end));", "  float milliseconds = 0;",
              "  CHECK(cudaEventElapsedTime(&milliseconds, begin, end));", "  const double us = 1e3 * milliseconds / repeats;",
              f'  std::printf("{name}: %.2f us a call, %.1f GB/s of inputs and results\\n", us, {moved} / us * 1e-3);']
    for v in spec.results:
        value = values[v]
        lines.append(f'  tell("{names[v]}", {place[v]}, {storage_bytes(value) // ITEMSIZE[value.dtype]});')
    return "\n".join([*lines, "  return 0;", "}", ""])
