"""The sample that runs under compute-sanitizer: it has every template and variant, its launches are complete, findings are shown."""
from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from tests.gpu.kernel_samples import kinds, samples
from tests.gpu.sanitize import FAULTS, check, contents, faulty, main, prepare, run, told, tools_of, verdict
from tilefuse.target.device import H200


def test_the_sample_has_every_template_and_variant() -> None:
    """Also kernels that update their inputs; names are unique, so that a finding can be run again alone."""
    listed = list(samples(H200))
    found = set().union(*map(kinds, listed))
    assert found >= {"pointwise", "transpose", "rows", "columns", "packed", "stitched", "online", "in place", "early", "rows in a warp",
                     "rows in a block", "rows in a cluster", "rows split", "rows persistent", "rows with columns",
                     "rows in registers", "rows read again", "columns split", "columns whole", "pipelined",
                     "pipelined_walk", "product_chain", "tasks"}
    assert len({s.name for s in listed}) == len(listed)


def test_kernels_are_compiled_and_described(tmp_path: Path) -> None:
    """Machine code with line numbers, and what a launch needs."""
    pytest.importorskip("cuda.bindings")
    sample = next(s for s in samples(H200) if "columns split" in kinds(s))
    prepare([(sample.name, sample.code)], tmp_path)
    row, = json.loads((tmp_path / "kernels.json").read_text())
    assert row["entry"] == sample.code.entry and row["launch"] == asdict(sample.code.launch)
    assert {role for _, _, role in row["parameters"]} == {"in", "out", "workspace", "counter"}
    assert b".debug_line" in (tmp_path / row["file"]).read_bytes()


@pytest.mark.parametrize(("dtype", "kind"), [("f64", np.float64), ("f32", np.float32), ("f16", np.float16)])
def test_floats_are_ordinary_numbers(dtype: str, kind: type) -> None:
    """Both signs, finite, none far from one."""
    data = np.frombuffer(contents(dtype, 2500), kind)
    assert len(data) == 2500 and np.isfinite(data).all() and data.min() < -0.5 and data.max() > 0.5 and abs(data).max() < 4


@pytest.mark.parametrize(("dtype", "kind", "most"), [("i64", np.int64, 60), ("i32", np.int32, 60), ("bool", np.uint8, 1)])
def test_integers_are_small(dtype: str, kind: type, most: int) -> None:
    """They may be positions, a few beyond the end."""
    data = np.frombuffer(contents(dtype, 2500), kind)
    assert data.min() == 0 and data.max() == most


def test_reports_stand_under_their_kernels() -> None:
    """Clean kernels are left out; the last line counts what ran."""
    fault, summary = "========= Invalid __global__ read of size 4 bytes", "========= ERROR SUMMARY: 1 error"
    output = f"kernel a (k_1, 0.cubin)\nran a\nkernel b (k_2, 1.cubin)\n{fault}\nran b\nkernel c (k_3, 2.cubin)\nran c\n{summary}\n"
    assert told(output) == f"kernel b (k_2, 1.cubin)\n{fault}\n{summary}"
    assert verdict(66, output) == "3 kernels ran, errors found" and verdict(0, output) == "3 kernels ran, nothing found"


@pytest.mark.parametrize("tool", sorted(FAULTS))
def test_planted_faults_compile(tool: str, tmp_path: Path) -> None:
    """Each tool has one, and it is a kernel."""
    pytest.importorskip("cuda.bindings")
    prepare([("planted", faulty(tool, "sm_90a"))], tmp_path)
    assert (tmp_path / "0.cubin").stat().st_size > 0


@pytest.mark.parametrize(("planted", "code", "status"), [(66, 0, 0), (66, 66, 1), (0, 0, 1), (255, 255, 1)])
def test_a_tool_that_misses_the_planted_fault_proves_nothing(planted: int, code: int, status: int, tmp_path: Path,
                                                             capsys: pytest.CaptureFixture[str]) -> None:
    """A stand-in for the tool: its status is what lies in the folder."""
    (tmp_path / "memcheck").mkdir()
    (tmp_path / "memcheck" / "status").write_text(str(planted))
    (tmp_path / "status").write_text(str(code))
    tool = tmp_path / "tool"
    tool.write_text('#!/bin/sh\nfor last; do :; done\nread -r status < "$last/status"\nexit "$status"\n')
    tool.chmod(0o755)
    assert check(str(tool), "memcheck", tmp_path, 60.0) == status
    assert ("proves nothing" in capsys.readouterr().out) == (planted != 66)


def test_findings_without_a_status_count(tmp_path: Path) -> None:
    """The summary's number decides where the tool ends with 0."""
    tool = tmp_path / "tool"
    tool.write_text('#!/bin/sh\necho "========= RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)"\n')
    tool.chmod(0o755)
    assert run(str(tool), "racecheck", tmp_path, 60.0)[0] == 66


def test_tools_are_known_by_name() -> None:
    """Another word is refused before anything is compiled."""
    assert tools_of("memcheck,synccheck") == ["memcheck", "synccheck"]
    with pytest.raises(argparse.ArgumentTypeError, match="no tool leakcheck"):
        tools_of("leakcheck")


def test_without_a_sanitizer_the_status_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is compiled first."""
    assert main(["--sanitizer", "/nowhere"]) == 2
    assert "CUDA toolkit" in capsys.readouterr().err
