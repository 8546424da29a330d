"""The build file and the page of an exported folder."""
from __future__ import annotations

from collections.abc import Sequence

from tilefuse.runtime.spec import KernelStep, LibraryStep, ProgramSpec, Value
from tilefuse.standalone.program_text import ProgramText
from tilefuse.standalone.weights import Weights
from tilefuse.target.capabilities import number_of

HOST_FLAGS = "-O3 -std=c++20 -march=native -fopenmp -ffp-contract=off -fno-math-errno -fno-trapping-math -fPIC -fvisibility=hidden"
CUDA_FLAGS = "-O3 -std=c++20 -Xcompiler -fPIC,-fvisibility=hidden"


def build_text(spec: ProgramSpec, name: str, on_gpu: bool, sources: Sequence[str], kinds: frozenset[str]) -> str:
    """`CMakeLists.txt`: a shared library and the example."""
    listed = "\n".join(f"  {s}" for s in sources)
    return _cuda_build_text(_arch(spec), name, listed, kinds) if on_gpu else _host_build_text(name, listed)


def _host_build_text(name: str, listed: str) -> str:
    """listed: the sources, one a line."""
    return f"""cmake_minimum_required(VERSION 3.18)
project({name} LANGUAGES CXX)

option({name.upper()}_NATIVE "compile for the processor of this machine" ON)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
find_package(OpenMP REQUIRED)

add_library({name} SHARED
{listed})
target_include_directories({name} PUBLIC include PRIVATE src)
# Products and sums round separately in the kernels, as their definition says.
target_compile_options({name} PRIVATE -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math)
if({name.upper()}_NATIVE)
  target_compile_options({name} PRIVATE -march=native)
endif()
target_link_libraries({name} PRIVATE OpenMP::OpenMP_CXX)

add_executable({name}_example src/example.cpp)
target_link_libraries({name}_example PRIVATE {name})
"""


def _cuda_build_text(arch: str, name: str, listed: str, kinds: frozenset[str]) -> str:
    """As `_host_build_text`. kinds: the kinds of library calls in the program."""
    finds, links = "", "CUDA::cudart"
    if "product" in kinds:
        links += " CUDA::cublasLt"
    include = ""
    if "convolution" in kinds:
        links += " ${CUDNN_LIBRARY}"
        include = " ${CUDNN_INCLUDE}"
        finds = """# cuDNN stands beside CUDA, or where CUDNN_ROOT says: also the folder nvidia/cudnn of the Python package.
find_path(CUDNN_INCLUDE cudnn.h HINTS ${CUDNN_ROOT} $ENV{CUDNN_ROOT} PATH_SUFFIXES include REQUIRED)
find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${CUDNN_ROOT} $ENV{CUDNN_ROOT} PATH_SUFFIXES lib lib64 REQUIRED)
"""
    return f"""cmake_minimum_required(VERSION 3.18)
project({name} LANGUAGES CXX CUDA)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
find_package(CUDAToolkit REQUIRED)
{finds}
add_library({name} SHARED
{listed})
target_include_directories({name} PUBLIC include PRIVATE src{include})
set_target_properties({name} PROPERTIES CUDA_ARCHITECTURES {arch})
target_link_libraries({name} PRIVATE {links})

add_executable({name}_example src/example.cu)
set_target_properties({name}_example PROPERTIES CUDA_ARCHITECTURES {arch})
target_link_libraries({name}_example PRIVATE {name} CUDA::cudart)
"""


def _arch(spec: ProgramSpec) -> str:
    return number_of(spec.kernels[0].arch) if spec.kernels else "native"


def readme_text(spec: ProgramSpec, made: ProgramText, weights: Weights, name: str, on_gpu: bool, kinds: frozenset[str]) -> str:
    """The page: contents of the folder, build instructions, requirements."""
    calls = sum(isinstance(s, LibraryStep) for s in spec.steps)
    constants = sum(v.role == "constant" for v in spec.values)
    launches = sum(isinstance(s, KernelStep) for s in spec.steps)
    values = {v.name: v for v in spec.values}
    inputs = [_row("input", n, title, values[v]) for n, (v, title) in enumerate(zip(spec.inputs, spec.told_inputs))]
    results = [f"| result {n} | `{r.name}` | {r.dtype} | {list(r.shape)} | {list(r.strides)} |" for n, r in enumerate(made.places.results)]
    needs, command = _needs(spec, name, on_gpu, kinds)
    return f"""# {name}

A program that tilefuse wrote for {spec.device}: {launches} kernel launches ({len(spec.kernels)} kernels), {calls} library calls. It needs
{needs}; no Python, no torch, no tilefuse.

| | name | type | extents | strides |
| --- | --- | --- | --- | --- |
{chr(10).join([*inputs, *results])}

Halves (f16, bf16) travel as 16-bit words. Strides are in elements.

## Build

```sh
cmake -S . -B build && cmake --build build -j
```

or without CMake

```sh
{command}
```

## Run

```sh
./{name}_example weights.bin --repeat 20                # inputs drawn
./{name}_example weights.bin input.npy --out result     # writes result-0.npy ...
```

From C or C++: `include/{name}.h`. From Python with NumPy alone:

```python
import {name}

program = {name}.Program()            # finds the library and weights.bin beside {name}.py or in build/
results = program(*inputs)
```

## Files

| file | what it holds |
| --- | --- |
| `include/{name}.h` | the C interface |
| `src/program.{'cu' if on_gpu else 'cpp'}` | the plan as straight-line code: where every value lies, launches, library calls, copies |
| `src/kernels/` | one file a kernel |
| `src/*` | what the plan calls: weights, {'launches, cuBLASLt and cuDNN' if on_gpu else 'products, convolutions, attention'} |
| `weights.bin`, `weights.txt` | {constants} constants, {weights.num_bytes} bytes, and a table of them |
| `{name}.py` | a loader for Python with NumPy |
"""


def _row(kind: str, number: int, title: str, value: Value) -> str:
    return f"| {kind} {number} | `{title}` | {value.dtype} | {list(value.shape)} | {list(value.strides)} |"


def _needs(spec: ProgramSpec, name: str, on_gpu: bool, kinds: frozenset[str]) -> tuple[str, str]:
    """(requirements of a build, the commands that build without CMake)."""
    if on_gpu:
        arch = spec.kernels[0].arch if spec.kernels else "native"
        needs = f"an NVIDIA GPU of architecture {arch}, the CUDA toolkit" + "".join(
            f", {w}" for k, w in (("product", "cuBLASLt"), ("convolution", "cuDNN 9")) if k in kinds)
        libraries = " -lcublasLt" * ("product" in kinds) + " -lcudnn" * ("convolution" in kinds)
        command = (f"nvcc {CUDA_FLAGS} -arch={arch} -shared -Iinclude -Isrc src/[!e]*.c* src/kernels/*.cu{libraries} -o lib{name}.so\n"
                   f"nvcc -O3 -std=c++20 -arch={arch} -Iinclude src/example.cu lib{name}.so -o {name}_example")
    else:
        needs = "a C++20 compiler with OpenMP (g++ 11, clang++ 14)"
        command = (f"g++ {HOST_FLAGS} -shared -Iinclude -Isrc src/[!e]*.cpp src/kernels/*.cpp -o lib{name}.so\n"
                   f"g++ -O3 -std=c++20 -Iinclude src/example.cpp ./lib{name}.so -o {name}_example")
    return needs, command
