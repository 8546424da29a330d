"""The compiler of test runs (`tests/precompiled/g++`): the same bytes and the same errors as without precompiled headers."""
from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.processes import ROOT

COMPILER = os.environ.get("REAL_GXX") or shutil.which("g++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++")
HEADERS = "#include <cstdlib>\n#undef _GLIBCXX_USE_STD_SPEC_FUNCS\n#include <cmath>\n"
BODY = 'extern "C" double f(double x) { return std::erf(x) + std::abs(x); }\n'


def compiled(folder: Path, source: str, command: str, *flags: str) -> bytes | str:
    """The object file, or the compiler's log."""
    (folder / "unit.cpp").write_text(source, encoding="utf-8")
    environment = {**os.environ, "REAL_GXX": str(COMPILER), "PRECOMPILED": str(folder / "precompiled")}
    done = subprocess.run([command, "-O1", "-std=c++17", *flags, "-c", "-o", "unit.o", "unit.cpp"], cwd=folder, env=environment,
                          capture_output=True, text=True, check=False)
    return (folder / "unit.o").read_bytes() if done.returncode == 0 else done.stderr


def test_headers_are_precompiled_when_they_come_again(tmp_path: Path) -> None:
    """The third source with the same lines and flags finds them; its code is the compiler's own."""
    (tmp_path / "precompiled").mkdir()
    ours = str(ROOT / "tests" / "precompiled" / "g++")
    for times, number in ((1, 0), (2, 1), (3, 1)):
        source = f"// kernel {times}\n{HEADERS}\n{BODY}"
        assert compiled(tmp_path, source, ours) == compiled(tmp_path, source, str(COMPILER))
        assert len(list((tmp_path / "precompiled").glob("*.gch"))) == number
    # Warnings are the same too.
    wrong = HEADERS + "int f(int x) { int y; return x; }\n"
    assert "unused variable" in str(compiled(tmp_path, wrong, ours, "-Wall", "-Werror"))


def test_a_header_that_is_missing_stays_missing(tmp_path: Path) -> None:
    """Headers come from the source's own lines alone, also where others of the run have more."""
    (tmp_path / "precompiled").mkdir()
    ours = str(ROOT / "tests" / "precompiled" / "g++")
    for _ in range(3):
        assert isinstance(compiled(tmp_path, HEADERS + BODY, ours), bytes)
        log = compiled(tmp_path, "#include <cstring>\n" + BODY, ours)
        assert isinstance(log, str) and "erf" in log
