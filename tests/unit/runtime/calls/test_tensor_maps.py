"""Tensor maps of launches, with a driver that writes down what it is asked to encode."""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.unit.templates.tensor_samples import BoxCopy
from tilefuse.base.errors import DeviceError, InternalError
from tilefuse.ir.dtype import BF16, F32
from tilefuse.kernel.launch_contract import map_parameters
from tilefuse.kernel.tensor_map import TensorMap
from tilefuse.runtime import cuda_api
from tilefuse.runtime.calls import frame as frame_module
from tilefuse.runtime.calls.call_plan import plan_calls
from tilefuse.runtime.calls.frame import Counts, Frame, Prepared
from tilefuse.runtime.calls.tensor_maps import LaunchMaps
from tilefuse.runtime.compilers.nvrtc import cuda_key
from tilefuse.target.device import H200
from tilefuse.target.launch import Launch
from tilefuse.target.tensor_map import MapParameter

CASE = BoxCopy(F32, (3, 5, 6), (1, 4, 4), (0, 0, 0))
OUT_OF_CONTEXT, REFUSED = 201, 1


class Encoder:
    """The driver's function. `calls`: its arguments as numbers and lists; `code`: its next result."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.code = 0

    def __call__(self, place: int, kind: int, rank: int, address: int, extents: Any, strides: Any, box: Any, steps: Any, interleave: int,
                 swizzle: int, promotion: int, fill: int) -> int:
        self.calls.append({"place": place, "kind": kind, "address": address, "extents": list(extents), "strides": list(strides)[:rank - 1],
                           "box": list(box), "steps": list(steps), "modes": (interleave, swizzle, promotion, fill)})
        ctypes.memmove(place, address.to_bytes(8, "little"), 8)
        return self.code


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> Encoder:
    made = Encoder()
    monkeypatch.setattr(cuda_api, "_encode_call", lambda: made)
    monkeypatch.setattr(cuda_api, "_name", lambda library, code: f"code {code}")
    monkeypatch.setattr(cuda_api, "driver", lambda: None)
    return made


def table(*addresses: int) -> Any:
    """A table of pointer arguments."""
    return (ctypes.c_uint64 * len(addresses))(*addresses)


def test_the_driver_takes_dimensions_innermost_first_and_strides_in_bytes(encoder: Encoder) -> None:
    m = TensorMap("w", "y", BF16, (3, 5, 100), (800, 160, 1), (1, 4, 64), 128, first=16)
    kernel = replace(CASE.kernel(), maps=(m,))
    assert map_parameters(kernel) == (MapParameter("w", 1, 16, 2, (3, 5, 100), (800, 160), (1, 4, 64), 128),)
    code = replace(CASE.program(H200).kernels[0], maps=map_parameters(kernel))
    maps = LaunchMaps(code, table(0, 0, 4096), 1)
    assert maps.encode() == 0
    call, = encoder.calls
    assert call.pop("place") % 64 == 0
    assert call == {"kind": 1, "address": 4096 + 32, "extents": [100, 5, 3], "strides": [320, 1600], "box": [64, 4, 1], "steps": [1, 1, 1],
                    "modes": (0, 3, 2, 0)}


def test_numbers_are_the_drivers() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    kinds = driver.CUtensorMapDataType
    assert {n: int(getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_UINT{8 * n}")) for n in (1, 2, 4, 8)} == cuda_api._MAP_TYPES
    assert int(driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B) == 2
    swizzles = driver.CUtensorMapSwizzle
    assert [int(getattr(swizzles, f"CU_TENSOR_MAP_SWIZZLE_{n}")) for n in ("NONE", "32B", "64B", "128B")] == [0, 1, 2, 3]


def test_a_map_is_encoded_again_only_where_its_tensor_lies_elsewhere(encoder: Encoder) -> None:
    pointers = table(1024, 2048)
    maps = LaunchMaps(CASE.program(H200).kernels[0], pointers, 0)
    launches: list[list[int]] = []

    def launch() -> int:
        launches.append([int.from_bytes(ctypes.string_at(a, 8), "little") for a in maps.addresses])
        return 7

    start = maps.before(launch)
    assert [start(), start()] == [7, 7] and len(encoder.calls) == 2
    pointers[1] = 8192
    assert start() == 7 and [c["address"] for c in encoder.calls] == [1024, 2048, 8192]
    assert launches == [[1024, 2048], [1024, 2048], [1024, 8192]]


def test_a_thread_without_a_context_is_told_to_get_one(encoder: Encoder) -> None:
    """The program then makes its device current and tries again."""
    maps = LaunchMaps(CASE.program(H200).kernels[0], table(1024, 2048), 0)
    encoder.code = OUT_OF_CONTEXT
    assert maps.encode() == cuda_api.INVALID_CONTEXT
    encoder.code = 0
    assert maps.encode() == 0 and [c["address"] for c in encoder.calls] == [1024, 1024, 2048]


def test_a_refused_map_is_named_with_its_values(encoder: Encoder) -> None:
    maps = LaunchMaps(CASE.program(H200).kernels[0], table(1032, 2048), 0)
    encoder.code = REFUSED
    with pytest.raises(DeviceError, match=r"cuTensorMapEncodeTiled failed with code 1 .*kernel box_copy: .*name='x_map'.*memory at 0x408"):
        maps.encode()


def test_one_structure_of_pointers_has_no_maps() -> None:
    with pytest.raises(InternalError, match="takes its pointers as one structure"):
        LaunchMaps(replace(CASE.program(H200).kernels[0], one_structure=True), table(0, 0), 0)


def test_a_frame_launches_with_pointers_then_maps(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver finds the address of every argument; tensors that move are encoded before the launch that needs them."""
    seen: list[list[int]] = []

    def prepare(function: Any, launch: Launch, stream: int, parameters_address: int) -> tuple[Callable[[], int], object]:
        def call() -> int:
            places = (ctypes.c_uint64 * 4).from_address(parameters_address)
            seen.append([ctypes.c_uint64.from_address(a).value for a in places])
            return 0

        return call, None

    monkeypatch.setattr(frame_module, "prepare_launch", prepare)
    spec = CASE.program(H200)
    names = {v.name: i for i, v in enumerate(spec.values)}
    frame = Frame(Prepared(spec, plan_calls(spec), names, {}, [0], torch.device("cpu"), Counts(), True), 0)
    kept = []
    for _ in range(2):
        x = torch.zeros(200)
        kept.append(x)
        frame.point(frame.prepared.plan.slots_by_root["x"], x.data_ptr())
        assert not any(operation() for operation in frame.operations)
        y = frame.values[names["y"]]
        kept.append(y)
        assert seen[-1] == [x.data_ptr(), y.data_ptr()] * 2
        frame.clear()
    assert len(encoder.calls) == 4


def test_machine_code_serves_tensors_of_other_extents() -> None:
    """The extents are no part of a kernel's key in the cache; the maps' number is, by the parameters in the text."""
    pytest.importorskip("cuda.bindings.nvrtc")
    code = CASE.program(H200).kernels[0]
    longer = replace(code, maps=tuple(replace(m, extents=(9, 5, 6)) for m in code.maps))
    assert cuda_key(longer).digest == cuda_key(code).digest
