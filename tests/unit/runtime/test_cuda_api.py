"""The CUDA driver's interface, as far as it can be tested without a driver."""
from __future__ import annotations

import ctypes

import pytest

from tilefuse.base.errors import DeviceError
from tilefuse.runtime import cuda_api
from tilefuse.runtime.cuda_api import LaunchAttribute, LaunchConfig, has_device, launch_config, num_devices
from tilefuse.target.launch import Launch


def test_structures_lie_as_the_driver_expects() -> None:
    """Against the layout that cuda.bindings builds for the same launch."""
    driver = pytest.importorskip("cuda.bindings.driver")
    theirs = driver.CUlaunchConfig()
    theirs.gridDimX, theirs.gridDimY, theirs.gridDimZ = 7, 1, 1
    theirs.blockDimX, theirs.blockDimY, theirs.blockDimZ = 256, 1, 1
    theirs.sharedMemBytes = 4096
    theirs.hStream = driver.CUstream(0x1234)
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = 4, 1, 1
    theirs.attrs, theirs.numAttrs = [attribute], 1
    ours, cluster = launch_config(Launch(7, 256, cluster=4, shared_bytes=4096), 0x1234)
    size = ctypes.sizeof(LaunchConfig)
    their_bytes, our_bytes = ctypes.string_at(theirs.getPtr(), size), bytes(ours)
    # The attributes' address (bytes 40 to 47) differs, and the four bytes before the stream are padding.
    assert size == 56 and our_bytes[:28] == their_bytes[:28] and our_bytes[32:40] == their_bytes[32:40]
    assert our_bytes[48:52] == their_bytes[48:52]
    assert cluster is not None and ctypes.sizeof(LaunchAttribute) == 72
    their_attribute = ctypes.string_at(int.from_bytes(their_bytes[40:48], "little"), 72)
    assert bytes(cluster)[:4] == their_attribute[:4] and bytes(cluster)[8:20] == their_attribute[8:20]


def test_launch_without_cluster_has_no_attribute() -> None:
    config, attribute = launch_config(Launch(3, 64), 0)
    assert attribute is None and config.num_attributes == 0 and not config.attributes


def test_scattered_clusters_are_a_cooperative_launch() -> None:
    """Hardware makes no cluster of them, and starts all blocks or none."""
    config, attributes = launch_config(Launch(132, 384, cluster=6, scattered=True), 0)
    assert attributes is not None and config.num_attributes == 1
    assert (attributes[0].id, attributes[0].value[0]) == (cuda_api.COOPERATIVE, 1)


def test_no_driver_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    cuda_api.driver.cache_clear()
    try:
        assert not has_device()
        with pytest.raises(DeviceError, match="no CUDA driver.*\n.*install the NVIDIA driver"):
            num_devices()
    finally:
        cuda_api.driver.cache_clear()
