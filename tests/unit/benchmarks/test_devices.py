"""Which devices a run measures on, and what their measuring processes see."""
from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import devices, turns
from benchmarks.devices import Place, child_environment, places_of, visible_gpus


def test_one_device_unless_more_are_asked_for() -> None:
    """The first GPU, or the host; all means every visible one."""
    assert places_of("", ["0", "1"]) == [Place("0", "0")]
    assert places_of("", []) == [Place("cpu", "")]
    assert places_of("all", ["4", "7"]) == [Place("0", "4"), Place("1", "7")]
    assert places_of("all", []) == [Place("cpu", "")]


def test_devices_by_number_and_the_host_several_times() -> None:
    """Numbers count what the process sees; hosts have names of their own."""
    assert places_of("1,0", ["GPU-a", "GPU-b"]) == [Place("1", "GPU-b"), Place("0", "GPU-a")]
    assert places_of("cpu,cpu", ["0"]) == [Place("cpu", ""), Place("cpu-2", "")]


@pytest.mark.parametrize(("text", "reason"), [("2", "no device '2'; there are 0, 1, cpu"), ("0,x", "no device 'x'"),
                                              ("0,0", "named twice")])
def test_devices_that_are_not_there(text: str, reason: str) -> None:
    """The message names the word and what there is."""
    with pytest.raises(ValueError, match=reason):
        places_of(text, ["0", "1"])


def test_visible_gpus_keep_their_names() -> None:
    """A process that sees a part of the machine hands on names of that part."""
    assert visible_gpus(2, {}) == ["0", "1"]
    assert visible_gpus(2, {"CUDA_VISIBLE_DEVICES": "5, GPU-1,7"}) == ["5", "GPU-1"]


def test_a_child_has_caches_of_its_own_and_its_share_of_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured figures come along, compiled kernels do not; what the user set stays, but not the caches."""
    monkeypatch.setattr(devices, "num_cores", lambda: 64)
    known = tmp_path / "known"
    for folder in ("devices", "entries"):
        (known / folder).mkdir(parents=True)
        (known / folder / "a.json").write_text("{}")
    given = {"OMP_NUM_THREADS": "3", "TRITON_CACHE_DIR": "/elsewhere"}
    first, second = (child_environment(Place(n, v), 4, tmp_path / "run", known, given) for n, v in (("0", "5"), ("1", "7")))
    assert (first["CUDA_VISIBLE_DEVICES"], second["CUDA_VISIBLE_DEVICES"]) == ("5", "7")
    assert first["TORCHINDUCTOR_COMPILE_THREADS"] == "16" and first["TILEFUSE_JOBS"] == "16" and first["OMP_NUM_THREADS"] == "3"
    assert all(first[c] != second[c] and Path(first[c]).is_dir() and not first[c].startswith("/elsewhere") for c in devices.CACHES)
    assert [p.name for p in Path(first["TILEFUSE_CACHE_DIR"]).rglob("*")] == ["devices", "a.json"]


def test_a_single_child_chooses_its_threads_itself(tmp_path: Path) -> None:
    """Only side by side are cores shared out."""
    made = child_environment(Place("cpu", ""), 1, tmp_path, None, {})
    assert not set(made) & set(devices.THREADS) and made["CUDA_VISIBLE_DEVICES"] == ""


def test_processes_on_one_device_have_caches_of_their_own_and_one_lock(tmp_path: Path) -> None:
    """A lock that the caller set stays: other runs on the device know it."""
    places = devices.with_workers([Place("0", "5"), Place("1", "7")], 2)
    assert [(p.visible, p.label) for p in places] == [("5", "0"), ("7", "1"), ("5", "0.1"), ("7", "1.1")]
    first, other, second, _ = (child_environment(p, 4, tmp_path, None, {}, shares_device=True) for p in places)
    assert first[turns.VARIABLE] == second[turns.VARIABLE] != other[turns.VARIABLE]
    assert all(first[c] != second[c] for c in devices.CACHES)
    assert child_environment(places[0], 4, tmp_path, None, {turns.VARIABLE: "/a"}, shares_device=True)[turns.VARIABLE] == "/a"
    assert turns.VARIABLE not in child_environment(places[0], 4, tmp_path, None, {})


def test_caches_that_stay_are_those_of_all_processes(tmp_path: Path) -> None:
    """Also XLA's, which keeps nothing unless it is told to."""
    first, second = (child_environment(p, 2, tmp_path, None, {}, shares_device=True, is_kept=True)
                     for p in devices.with_workers([Place("0", "5")], 2))
    assert all(first[c] == second[c] and Path(first[c]).is_dir() for c in devices.KEPT_CACHES)
    assert first["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "0"
