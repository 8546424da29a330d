"""The sample that runs under compute-sanitizer: it has every template and variant, its launches are complete, findings are shown."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.gpu.kernel_samples import kinds, samples
from tests.gpu.sanitize import contents, main, prepare, told, verdict
from tilefuse.target.device import H200


def test_the_sample_has_every_template_and_variant() -> None:
    """Also kernels that update their inputs; names are unique, so that a finding can be run again alone."""
    listed = list(samples(H200))
    found = set().union(*map(kinds, listed))
    assert found >= {"pointwise", "transpose", "rows", "columns", "packed", "stitched", "in place", "rows in a warp", "rows in a block",
                     "rows in a cluster", "rows split", "rows persistent", "rows with columns", "rows in registers", "rows read again",
                     "columns split", "columns whole"}
    assert len({s.name for s in listed}) == len(listed)


def test_kernels_are_compiled_and_described(tmp_path: Path) -> None:
    """Machine code with line numbers, and what a launch needs."""
    pytest.importorskip("cuda.bindings")
    sample = next(s for s in samples(H200) if s.name == "columns")
    prepare([(sample.name, sample.code)], tmp_path)
    row, = json.loads((tmp_path / "kernels.json").read_text())
    assert row["entry"] == sample.code.entry and row["launch"][:2] == [sample.code.launch.num_blocks, sample.code.launch.num_threads]
    assert {role for _, _, role in row["parameters"]} == {"in", "out", "workspace", "counter"}
    assert b".debug_line" in (tmp_path / row["file"]).read_bytes()


@pytest.mark.parametrize(("dtype", "kind"), [("f64", np.float64), ("f32", np.float32), ("f16", np.float16)])
def test_floats_are_ordinary_numbers(dtype: str, kind: type) -> None:
    """Both signs, finite, none far from one."""
    data = np.frombuffer(contents(dtype, 2500), kind)
    assert len(data) == 2500 and np.isfinite(data).all() and data.min() < -0.5 and data.max() > 0.5 and abs(data).max() < 4


@pytest.mark.parametrize(("dtype", "kind", "most"), [("i64", np.int64, 4), ("i32", np.int32, 4), ("bool", np.uint8, 1)])
def test_integers_are_small(dtype: str, kind: type, most: int) -> None:
    """They may be positions."""
    data = np.frombuffer(contents(dtype, 2500), kind)
    assert data.min() == 0 and data.max() == most


def test_reports_stand_under_their_kernels() -> None:
    """Clean kernels are left out; the last line counts what ran."""
    output = "kernel a (k_1, 0.cubin)\nran a\nkernel b (k_2, 1.cubin)\n========= Invalid __global__ read of size 4 bytes\nran b\n"
    assert told(output) == "kernel b (k_2, 1.cubin)\n========= Invalid __global__ read of size 4 bytes"
    assert verdict(66, output) == "2 kernels ran, errors found" and verdict(0, output) == "2 kernels ran, nothing found"


def test_without_a_sanitizer_the_status_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is compiled first."""
    assert main(["--sanitizer", "/nowhere"]) == 2
    assert "CUDA toolkit" in capsys.readouterr().err
