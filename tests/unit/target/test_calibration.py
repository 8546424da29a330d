"""Calibration files: they round-trip, enter a device's record with their origin, and a damaged one is named."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tilefuse.base.errors import UserError
from tilefuse.target.calibration import Calibration, CalibrationWarning, calibrated, calibration_path, parse_calibration, with_calibration
from tilefuse.target.device import H200

FIGURES = Calibration("h200", 132, "2026-01-02", 5.0, 1.25, ((4096, 0.5), (1 << 30, 250.0)), ((4096, 0.25), (1 << 24, 2.0)), 1 << 20, 5e13)


def test_text_and_back() -> None:
    assert parse_calibration(FIGURES.text(), "text") == FIGURES


def test_figures_enter_the_record_with_their_origin() -> None:
    found = calibrated(H200, FIGURES)
    assert found.launch_us == 5.0 and found.transfer_curve == FIGURES.transfer_curve and found.num_multiprocessors == 132
    assert found.global_bytes_per_s == pytest.approx((1 << 30) / 250e-6)
    told = dict(found.origins)
    assert "2026-01-02" in told["transfer_curve"] and told["matrix_flops_per_s"] == dict(H200.origins)["matrix_flops_per_s"]


def test_a_present_file_is_used_and_only_for_its_device(tmp_path: Path) -> None:
    assert with_calibration(H200, tmp_path) is H200 and with_calibration(H200, None) is H200
    path = calibration_path(tmp_path, H200)
    path.parent.mkdir()
    path.write_text(FIGURES.text())
    assert with_calibration(H200, tmp_path).launch_us == 5.0
    half = replace(H200, num_multiprocessors=60)
    assert with_calibration(half, tmp_path) is half


def changed(old: str, new: str) -> str:
    assert old in FIGURES.text()
    return FIGURES.text().replace(old, new)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"7", b"\xff{}", *(text.encode() for text in (
    changed('format": 1', 'format": 9'), changed("250.0", "-1"), changed("0.5", "900"), changed('"when"', '"whence"'),
    changed("250.0", "NaN"), changed("5.0,", "Infinity,")))])
def test_what_is_no_calibration_is_named_with_its_remedy_and_not_used(data: bytes, tmp_path: Path) -> None:
    path = calibration_path(tmp_path, H200)
    path.parent.mkdir()
    path.write_bytes(data)
    with pytest.raises(UserError, match="no calibration"):
        parse_calibration(data, str(path))
    with pytest.warns(CalibrationWarning, match="no calibration") as told:
        assert with_calibration(H200, tmp_path) is H200
    assert str(path) in str(told[0].message) and "tilefuse calibrate" in str(told[0].message)
