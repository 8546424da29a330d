"""The catalog: every number has an origin, names are found, a present device is described by its driver."""
from __future__ import annotations

from itertools import pairwise

import pytest

from tilefuse.base.errors import OptionError
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F32
from tilefuse.plan.price.products import matrix_products
from tilefuse.target.capabilities import NO_CAPABILITIES, arch_of, capabilities_of, capability_of, runs_on
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
    found = describe_device("NVIDIA H200", (9, 0), 70 << 30, {"num_multiprocessors": 60, "major": 9, "minor": 0})
    assert (found.name, found.num_multiprocessors, found.memory_bytes) == ("h200", 60, 70 << 30)
    assert found.transfer_curve == H200.transfer_curve


def test_an_unknown_device_is_planned_for_as_its_nearest_relative() -> None:
    found = describe_device("NVIDIA A30", (8, 0), 48 << 30, {"num_multiprocessors": 84, "shared_bytes_per_block": 101376})
    assert found.name == "nvidia-a30" and found.arch == "sm_80"
    assert found.num_multiprocessors == 84 and found.shared_bytes_per_block == 101376
    assert found.max_cluster_blocks == 1
    assert dict(found.origins)["name"].endswith("a100")


def test_the_host_is_one_device_for_the_whole_process() -> None:
    assert host_device() is host_device() and host_device().max_cluster_blocks == 1


@pytest.mark.parametrize(("name", "capability", "alike"), [
    ("NVIDIA GeForce RTX 5090", (12, 0), "rtx-5090"), ("NVIDIA L40S", (8, 9), "l40s"), ("NVIDIA B200", (10, 0), "b200"),
    ("NVIDIA GB200", (10, 0), "b200"), ("NVIDIA B300", (10, 3), "b200"), ("NVIDIA A40", (8, 6), "a100"), ("NVIDIA L4", (8, 9), "l40s"),
    ("NVIDIA GB10", (12, 1), "rtx-5090"), ("Tesla T4", (7, 5), "a100"), ("NVIDIA R100", (13, 0), "rtx-5090")])
def test_capabilities_are_those_of_the_number_and_never_of_a_name(name: str, capability: tuple[int, int], alike: str) -> None:
    """Ten is more than nine: compared as text, "sm_100a" is less than "sm_90"."""
    found = describe_device(name, capability, 24 << 30, {"num_multiprocessors": 48})
    assert found.capabilities == capabilities_of(capability) and found.arch == arch_of(capability)
    assert found.name == alike or dict(found.origins)["name"].endswith(alike)
    hopper = capability >= (9, 0)
    assert (found.capabilities.bulk_copies, found.capabilities.clusters, found.starts_early) == (hopper,) * 3
    assert (found.max_cluster_blocks > 1) is hopper and found.has_matrix_unit is (capability >= (8, 0))


def test_every_record_has_the_capabilities_of_its_architecture() -> None:
    for spec in known_devices().values():
        capability = spec.capabilities.compute_capability
        assert spec.capabilities == (capabilities_of(capability) if spec.kind == "cuda" else NO_CAPABILITIES), spec.name
        assert capability_of(spec.arch) == (capability if spec.kind == "cuda" else None), spec.name
        assert spec.capabilities.clusters or spec.max_cluster_blocks == 1, spec.name


@pytest.mark.parametrize(("capability", "arch"), [((7, 5), "sm_75"), ((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"),
                                                  ((10, 0), "sm_100a"), ((10, 3), "sm_103a"), ((12, 0), "sm_120a")])
def test_architecture_names(capability: tuple[int, int], arch: str) -> None:
    assert arch_of(capability) == arch and capability_of(arch) == capability


@pytest.mark.parametrize(("compiled", "device", "runs"), [
    ("sm_90a", "sm_90a", True), ("sm_90a", "sm_100a", False), ("sm_80", "sm_86", True), ("sm_86", "sm_80", False),
    ("sm_80", "sm_90a", False), ("sm_100a", "sm_103a", False), ("sm_100", "sm_103", True), ("sm_80", "sm_89", True),
    ("sm_100", "sm_120", False)])
def test_machine_code_and_gpu(compiled: str, device: str, runs: bool) -> None:
    assert runs_on(compiled, device) is runs


def test_a_device_without_matrix_instructions_leaves_products_to_the_library() -> None:
    turing = describe_device("Tesla T4", (7, 5), 16 << 30, {"num_multiprocessors": 40})
    build = TensorBuilder("product")
    graph = build.finish([build.matmul(build.input("x", F32, (32, 64)), build.input("w", F32, (64, 64)))])
    product = next(n for n in graph.nodes if n.category == "library")
    assert matrix_products(graph, H200).fusible(product) and not matrix_products(graph, turing).fusible(product)
    assert not turing.copies_async and host_device().copies_async
