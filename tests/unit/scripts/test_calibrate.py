"""Routines benchmarked one by one: rows that predictions find again, resumption, what a fusion is predicted by then."""
from __future__ import annotations

from pathlib import Path

import pytest

from tilefuse import blas
from tilefuse.base.options import Options
from tilefuse.base.search.scripts import ScriptLimits
from tilefuse.driver.compile import present_device
from tilefuse.scripts import calibrate as calibration
from tilefuse.scripts.language.routine_library import read_library
from tilefuse.target.catalog import device_by_name

FUNCTIONS = read_library().functions


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    monkeypatch.setattr(ScriptLimits, "host_probe_words", 1 << 12)
    monkeypatch.setattr(ScriptLimits, "probes_built_together", 2)
    return Options(cache_dir=str(tmp_path))


def test_a_calibration_goes_on_where_it_stood(options: Options) -> None:
    device, place = present_device("host")
    names: list[str] = []
    num_timed = calibration.calibrate_routines([FUNCTIONS["saxpy"]], device, place, options, most=3,
                                               report=lambda name, n: names.append(name))
    assert num_timed == len(names) == 3 and all("saxpy" in name for name in names)
    first = {str(r["key"]) for r in calibration.routine_journal(device, options).rows()}
    assert calibration.calibrate_routines([FUNCTIONS["saxpy"]], device, place, options, most=2) == 2
    assert first < {str(r["key"]) for r in calibration.routine_journal(device, options).rows()}


def test_equal_routines_are_timed_once(options: Options) -> None:
    """A routine that loads x also loads y: both routines of every implementation that shares the text get the row."""
    device, place = present_device("host")
    assert calibration.calibrate_routines([FUNCTIONS["saxpy"], FUNCTIONS["svadd"]], device, place, options, most=1) == 1
    rows = calibration.routine_journal(device, options).rows()
    routines = {tuple(str(r["key"]).split("|"))[0::2] for r in rows}
    timed = [FUNCTIONS[name].timed_name for name in ("saxpy", "svadd")]
    assert routines == {(function, f"load {name}") for function in timed for name in "xy"}
    assert len({r["ratio"] for r in rows}) == 1


def test_predictions_read_what_was_measured(options: Options) -> None:
    device, place = present_device("host")
    assert calibration.routine_times(device, options) is None
    calibration.calibrate_routines([FUNCTIONS["saxpy"]], device, place, options, most=4)
    times = calibration.routine_times(device, options)
    assert times is not None
    names = {*times.transfers, *times.computes}
    assert {n[0] for n in names} == {FUNCTIONS["saxpy"].timed_name} and {n[2] for n in names} <= {"load x", "load y", "compute", "store z"}
    assert all(0 < ratio <= 1.5 for rows in times.transfers.values() for _, ratio in rows)


def test_every_routine_of_a_product_is_probed() -> None:
    found = list(calibration.probes([FUNCTIONS["sgemv"]], device_by_name("h200"), Options()))
    routines = {name[2] for p in found for name in p.names}
    assert {"load A", "compute"} <= routines
    assert all((p.num_bytes > 0) == (p.names[0][2] != "compute") for p in found)
    assert len({k for p in found for k in p.keys}) == sum(len(p.keys) for p in found)
    assert all(p.spec.kernels[0].target == "cuda" for p in found)


def test_scripts_use_the_rows_of_their_device(options: Options) -> None:
    device, place = present_device("host")
    calibration.calibrate_routines([FUNCTIONS["saxpy"]], device, place, options, most=2)
    function = blas.compile("vector x, y, z; input x, y; z = saxpy(2.0, x, y); return z;", cache_dir=options.cache_dir)
    assert function.search(function.graph_for({"x": (64,), "y": (64,)}), device).times is not None
