"""Calibration asks a bench and tidies what it answers; the host's bench really measures."""
from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilefuse.runtime.calibrate import WALK_BYTES, bench_of, block_counts, calibrate, rising, sizes
from tilefuse.target.calibration import parse_calibration
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200
from tilefuse.tools import cli

Capture = pytest.CaptureFixture[str]


class FakeBench:
    """A device of 1 TB/s with launches of 2 us; 8 KiB copies are disturbed, and 40 blocks fill the memory."""

    def copy_us(self, num_bytes: int, resident: bool) -> float:
        return 2.0 + num_bytes / (4e6 if resident else 1e6) + (50.0 if num_bytes == 8192 else 0.0)

    def walk_us(self, num_bytes: int, num_blocks: int) -> float:
        return 2.0 + num_bytes / 1e6 * max(1.0, 40 / num_blocks)

    def empty_us(self, eager: bool) -> float:
        return 7.0 if eager else 2.0

    def flops_per_s(self) -> float:
        return 5e13


def test_the_curve_is_what_copies_take_beyond_a_launch() -> None:
    told: list[str] = []
    found = calibrate(H200, FakeBench(), progress=told.append)
    assert (found.launch_us, found.graph_launch_us) == (7.0, 2.0)
    curve = dict(found.transfer_curve)
    assert list(curve) == list(sizes()) and curve[1 << 20] == pytest.approx(1.0486, abs=1e-3)
    assert curve[8192] == curve[16384], "a disturbed point is cut down to the next one"
    assert max(size for size, _ in found.resident_curve) <= H200.l2_bytes // 2
    assert found.saturating_bytes == 40 * WALK_BYTES
    assert len(told) == len(found.transfer_curve) + len(found.resident_curve) + 3
    assert parse_calibration(found.text(), "text") == found


def test_points_rise_and_blocks_end_with_all_multiprocessors() -> None:
    assert rising([(1, 3.0), (2, 2.0), (4, 5.0)]) == ((1, 2.0), (2, 2.0), (4, 5.0))
    assert block_counts(132)[-1] == 132 and block_counts(1) == (1,) and len(block_counts(132)) < 20


def test_the_host_is_measured_and_its_file_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """The command writes the file that the next compile reads."""
    monkeypatch.setenv("TILEFUSE_CACHE_DIR", str(tmp_path))
    assert cli.main(["calibrate", "--device", "host", "--most-mib", "1", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert Path(written["file"]).is_file()
    from tilefuse.driver.compile import present_device

    used, _ = present_device("host")
    assert used.graph_launch_us == written["graph_launch_us"] and "calibrate" in dict(used.origins)["transfer_curve"]
    assert bench_of(host_device()).flops_per_s() > 1e8


def test_without_a_cache_a_file_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("TILEFUSE_CACHE", "0")
    assert cli.main(["calibrate", "--device", "host", "--most-mib", "1"]) == 2
    assert "--out" in capsys.readouterr().err
    assert cli.main(["calibrate", "--device", "host", "--most-mib", "1", "--out", str(tmp_path / "f.json")]) == 0
    assert parse_calibration((tmp_path / "f.json").read_text(), "f").device == "host"
