"""Tensor maps of programs without Python: the C++ that encodes them, built by the host's compiler against a stand-in for the driver."""
from __future__ import annotations

import subprocess
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from tests.unit.templates.host_build import compiler
from tests.unit.templates.tensor_samples import BoxCopy
from tilefuse.ir.affine import axis
from tilefuse.ir.dtype import BF16, F32
from tilefuse.kernel.ir import Size
from tilefuse.runtime.calls.call_plan import plan_calls
from tilefuse.standalone.export import export_program
from tilefuse.standalone.program_text import tensor_shape
from tilefuse.target.device import H200
from tilefuse.target.tensor_map import MapParameter
from tilefuse.tools.emit.program import emit_program
from tilefuse.tools.emit.sized import map_statements

CASE = BoxCopy(F32, (3, 5, 6), (1, 4, 4), (0, 0, 0))

# Types and numbers of cuda.h and cuda_runtime_api.h, as far as the text uses them; the driver's function prints its arguments.
STUB = """#include <cstdio>
typedef unsigned int cuuint32_t;
typedef unsigned long long cuuint64_t;
struct alignas(64) CUtensorMap { cuuint64_t opaque[16]; };
enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };
enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0, CU_TENSOR_MAP_DATA_TYPE_UINT16 = 1, CU_TENSOR_MAP_DATA_TYPE_UINT32 = 2,
                           CU_TENSOR_MAP_DATA_TYPE_UINT64 = 4 };
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 };
enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_32B, CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_128B };
enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2 };
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 };
inline CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* memory, const cuuint64_t* extents,
                                       const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave,
                                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill) {
  std::printf("%d %d %d %lld:", (int)((unsigned long long)map % 64), (int)type, (int)swizzle, (long long)memory);
  for (cuuint32_t d = 0; d < rank; ++d) std::printf(" %llu", extents[d]);
  for (cuuint32_t d = 0; d + 1 < rank; ++d) std::printf(" /%llu", strides[d]);
  for (cuuint32_t d = 0; d < rank; ++d) std::printf(" [%u %u]", box[d], steps[d]);
  std::printf(" %d\\n", (int)promotion);
  return memory ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorNotSupported = 801 };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0, cudaDriverEntryPointSymbolNotFound = 1 };
enum { cudaEnableDefault = 0 };
#define CUDART_VERSION VERSION
#if VERSION >= 12050
inline cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                                    cudaDriverEntryPointQueryResult* status) {
#else
inline cudaError_t cudaGetDriverEntryPoint(const char*, void** function, unsigned long long, cudaDriverEntryPointQueryResult* status) {
#endif
  *function = reinterpret_cast<void*>(&cuTensorMapEncodeTiled);
  *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
"""


def printed(statements: str, folder: Path, version: int = 13000) -> list[str]:
    """Lines that a program of these statements prints."""
    text = (resources.files("tilefuse.standalone") / "sources" / "tensor_maps.inc").read_text(encoding="utf-8")
    source, program = folder / f"maps_{version}.cpp", folder / f"maps_{version}"
    source.write_text(f"{STUB}namespace {{\n{text}}}\ncudaError_t run(void** tf_pointers, long long tf_size_0) {{\n  (void)tf_size_0;\n"
                      f"{statements}\n  return cudaSuccess;\n}}\nint main() {{\n  void* pointers[] = {{(void*)4096, nullptr}};\n"
                      '  std::printf("%d\\n", (int)run(pointers, 77));\n}\n')
    cxx = compiler()
    assert cxx is not None
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-DVERSION={version}"]
    done = subprocess.run([cxx, *flags, str(source), "-o", str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("version", [12000, 13000])
def test_the_driver_is_told_the_same_as_by_the_runtime(version: int, tmp_path: Path) -> None:
    """Innermost dimension first, strides in bytes, elements as unsigned integers; a refusal is the call's error."""
    shapes = [MapParameter("w", 0, 16, 2, (3, 5, 100), (800, 160), (1, 4, 64), 128), MapParameter("v", 0, 0, 8, (7,), (), (4,)),
              MapParameter("u", 1, 0, 1, (7,), (), (16,))]
    statements = "".join(f"  const TensorShape tensor_{n} = {tensor_shape(m)};\n  CUtensorMap map_{n};\n"
                         f"  if (const cudaError_t refused = encode_tensor_map(&map_{n}, tensor_{n}, tf_pointers[{m.parameter}])) "
                         "return refused;\n" for n, m in enumerate(shapes))
    assert printed(statements, tmp_path, version) == [
        "0 1 3 4128: 100 5 3 /320 /1600 [64 1] [4 1] [1 1] 2", "0 4 0 4096: 7 [4 1] 2", "0 0 0 0: 7 [16 1] 2", "1"]


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_extents_that_the_call_decides(tmp_path: Path) -> None:
    """Sums of the kernel's sizes, which the function that launches has computed."""
    kernel = replace(CASE.kernel(), sizes=(Size("rows", 100, "rows"),))
    m = replace(kernel.maps[0], dtype=BF16, extents=(axis("rows") + 3, 24), strides=(2 * axis("rows"), 1), box=(4, 8))
    statements = "\n".join(map_statements(replace(kernel, maps=(m,))))
    assert printed(statements, tmp_path) == ["0 1 0 4096: 24 80 /308 [8 1] [4 1] 2", "0"]


def test_programs_name_every_map(tmp_path: Path) -> None:
    """An exported folder, and a program as one file."""
    spec = CASE.program(H200)
    assert plan_calls(spec).num_slots == 2
    export_program(spec, {}, tmp_path)
    text = (tmp_path / "src" / "program.cu").read_text()
    assert "{4, 3, 0, 0, {6, 5, 3}, {32, 160}, {4, 4, 1}},  // x_map" in text
    assert ("CUtensorMap maps[] = {tensor_map(\"box_copy\", maps_of_box_copy[0], pointers[0]), "
            "tensor_map(\"box_copy\", maps_of_box_copy[1], pointers[1])};\n"
            "    void* arguments[] = {&pointers[0], &pointers[1], &maps[0], &maps[1]};") in text
    assert "encode_tensor_map" in (tmp_path / "src" / "cuda_library.h").read_text()
    emitted = emit_program(spec, "boxes", "boxes", "sm_90a").cu
    assert "encode_tensor_map(&map_1, tensor_1, pointers[1])" in emitted and "{&pointers[0], &pointers[1], &map_0, &map_1};" in emitted


def test_programs_without_maps_need_no_driver_header(tmp_path: Path) -> None:
    spec = CASE.program(H200)
    export_program(replace(spec, kernels=(replace(spec.kernels[0], maps=()),)), {}, tmp_path)
    assert "<cuda.h>" not in (tmp_path / "src" / "cuda_library.h").read_text()
