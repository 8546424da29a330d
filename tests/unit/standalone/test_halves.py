"""Conversions of halves in exported sources, also without a compiler's type for them: all 65536, f32 numbers around every border."""
from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from tilefuse.runtime.compilers.host import find_compiler
from tilefuse.runtime.spec import LibraryStep, ProgramSpec, Value
from tilefuse.standalone.export import export_program

PROGRAM = """
#include <cstdio>
#include "host_tiles.h"
using namespace halves_parts;
int main(int, char** argv) {
  std::FILE* const in = std::fopen(argv[1], "rb");
  std::FILE* const out = std::fopen(argv[2], "wb");
  for (unsigned n = 0; n < 65536; ++n) {
    const float wide[2] = {widened(Half{uint16_t(n)}), widened(Bfloat{uint16_t(n)})};
    std::fwrite(wide, 4, 2, out);
  }
  for (float x; std::fread(&x, 4, 1, in) == 1;) {
    Half half;
    Bfloat bfloat;
    narrow(x, half);
    narrow(x, bfloat);
    std::fwrite(&half, 2, 1, out);
    std::fwrite(&bfloat, 2, 1, out);
  }
  std::fclose(out);
}
"""


@pytest.mark.parametrize("flag", ["-U__FLT16_MAX__", "-DOTHER"])
def test_halves_are_converted_exactly(flag: str, tmp_path: Path) -> None:
    """To f32 and back as torch does it: subnormals, ties to even, overflow, infinities, NaN."""
    value = [Value(n, "f32", (1, 1), (1, 1), role) for n, role in (("x", "input"), ("y", "result"))]
    spec = ProgramSpec("halves", "host", ("x",), ("y",), tuple(value), (), (LibraryStep("matmul", ("x", "x"), ("y",)),))
    folder = export_program(spec, {}, tmp_path / "out").folder
    (tmp_path / "main.cpp").write_text(PROGRAM)
    command = [*find_compiler(), "-std=c++20", "-O0", flag, "-Wno-unused", f"-I{folder / 'src'}", str(tmp_path / "main.cpp"), "-o",
               str(tmp_path / "main")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    halves = torch.arange(65536, dtype=torch.int32).to(torch.uint16)
    borders = torch.cat([halves.view(t).float() for t in (torch.float16, torch.bfloat16)])
    bits = borders.view(torch.int32)
    near = torch.cat([bits, bits + 1, bits - 1, bits + 0x1000, bits + 0x8000, bits + 0xfff, bits + 0x1001, bits + 0x7fff, bits + 0x8001])
    numbers = near.view(torch.float32)
    (tmp_path / "in").write_bytes(numbers.numpy().tobytes())
    assert subprocess.run([tmp_path / "main", tmp_path / "in", tmp_path / "result"], check=False).returncode == 0
    found = (tmp_path / "result").read_bytes()
    wide = np.frombuffer(found[:65536 * 8], np.float32).reshape(-1, 2)
    for column, dtype in enumerate((torch.float16, torch.bfloat16)):
        np.testing.assert_array_equal(wide[:, column], halves.view(dtype).float().numpy())
    narrow = np.frombuffer(found[65536 * 8:], np.uint16).reshape(-1, 2)
    for column, dtype in enumerate((torch.float16, torch.bfloat16)):
        made = torch.from_numpy(narrow[:, column].copy()).view(dtype)
        expected = numbers.to(dtype)
        same = (made.view(torch.int16) == expected.view(torch.int16)) | (made.isnan() & expected.isnan())
        assert bool(same.all()), (numbers[~same][:5], made[~same][:5], expected[~same][:5])
