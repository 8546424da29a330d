"""The catalog: every number has an origin, names are found, a present device is described by its driver."""
from __future__ import annotations

from itertools import pairwise

import pytest

from tilefuse.base.errors import OptionError
from tilefuse.target.catalog import describe_device, device_by_name, host_device, known_devices
from tilefuse.target.device import H200


def test_names_find_their_records() -> None:
    assert device_by_name("H200") is H200
    assert {s.name for s in known_devices().values()} == set(known_devices())
    with pytest.raises(OptionError, match="did you mean h200"):
        device_by_name("h20")


def test_every_record_is_usable_and_says_where_its_numbers_come_from() -> None:
    for spec in known_devices().values():
        named = {name for name, _ in spec.origins}
        assert {"global_bytes_per_s", "launch_us"} <= named and named <= set(type(spec).__dataclass_fields__), spec.name
        assert spec.kind in ("cuda", "host") and spec.global_bytes_per_s > 1e9 and spec.flops_per_s > 1e9
        for curve in (spec.transfer_curve, spec.resident_curve):
            assert list(curve) == sorted(curve) and all(us > 0 for _, us in curve)
            assert all(long >= short for (_, short), (_, long) in pairwise(curve)), spec.name
        assert spec.shared_bytes_per_block <= spec.shared_bytes_per_multiprocessor


def test_a_known_device_keeps_its_measurements_and_takes_the_drivers_limits() -> None:
    """Half an H200 (a partition) has fewer multiprocessors but the same record."""
    found = describe_device("NVIDIA H200", "sm_90a", 70 << 30, {"num_multiprocessors": 60, "major": 9, "minor": 0})
    assert (found.name, found.num_multiprocessors, found.memory_bytes) == ("h200", 60, 70 << 30)
    assert found.transfer_curve == H200.transfer_curve


def test_an_unknown_device_is_planned_for_as_its_nearest_relative() -> None:
    found = describe_device("NVIDIA A40", "sm_80", 48 << 30, {"num_multiprocessors": 84, "shared_bytes_per_block": 101376})
    assert found.name == "nvidia-a40" and found.arch == "sm_80"
    assert found.num_multiprocessors == 84 and found.shared_bytes_per_block == 101376
    assert found.max_cluster_blocks == 1
    assert dict(found.origins)["name"].endswith("a100")


def test_the_host_is_one_device_for_the_whole_process() -> None:
    assert host_device() is host_device() and host_device().max_cluster_blocks == 1
