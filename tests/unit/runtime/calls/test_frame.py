"""Frames as a GPU uses them, with a driver that runs host code: the arguments' addresses arrive through two tables."""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.unit.runtime.handmade import host_kernel, value
from tilefuse.runtime.calls import frame as frame_module
from tilefuse.runtime.calls.call_plan import plan_calls
from tilefuse.runtime.calls.frame import Counts, Frame, Prepared, allocator
from tilefuse.runtime.compilers.host import compile_host, compiler_command, load_host
from tilefuse.runtime.spec import KernelStep, ProgramSpec
from tilefuse.target.launch import Launch

STREAM = 77


def fake_prepare_launch(function: Any, launch: Launch, stream: int, parameters_address: int) -> tuple[Callable[[], int], object]:
    """A launch that follows each argument's address, as the driver does, and calls the host kernel with what it finds."""
    assert stream == STREAM

    def call() -> int:
        addresses = (ctypes.c_void_p * 2).from_address(parameters_address)
        arguments = (ctypes.c_void_p * 2)(*[ctypes.c_void_p.from_address(a).value for a in addresses if a])
        return int(function(ctypes.addressof(arguments), None, 0))

    return call, None


def chain_frame(monkeypatch: pytest.MonkeyPatch) -> Frame:
    """x -> t -> u -> y, doubling each time, on the fake driver."""
    monkeypatch.setattr(frame_module, "prepare_launch", fake_prepare_launch)
    kernel = host_kernel("twice", "tf_twice(a[i])")
    names, roles = ("x", "t", "u", "y"), ("input", "intermediate", "intermediate", "result")
    spec = ProgramSpec("p", "cuda", ("x",), ("y",), tuple(value(n, r) for n, r in zip(names, roles)), (kernel,),
                       tuple(KernelStep(0, pair) for pair in zip(names, names[1:])))
    function = load_host(compile_host([kernel], compiler_command())[0])
    prepared = Prepared(spec, plan_calls(spec), {n: i for i, n in enumerate(names)}, {}, [function], torch.device("cpu"), Counts(), True)
    return Frame(prepared, STREAM)


def test_launches_see_the_pointers_of_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arena, argument and result move from call to call; the prepared launches follow."""
    frame = chain_frame(monkeypatch)
    kept = []
    for i in range(5):
        x = torch.full((4, 32), float(i))
        frame.values[0] = x
        frame.point(frame.prepared.plan.slots_by_root["x"], x.data_ptr())
        assert not any(operation() for operation in frame.operations)
        kept.append(frame.arena)
        assert torch.equal(frame.values[3], 8 * x)
        frame.clear()
        assert frame.arena is None and frame.values[3] is None
    assert len({arena.data_ptr() for arena in kept if arena is not None}) == 5


def test_allocator_follows_shape_strides_and_dtype() -> None:
    tensor = allocator(value("y", "result", (2, 3), (1, 2), dtype="bf16"), torch.device("cpu"))()
    assert tensor.shape == (2, 3) and tensor.stride() == (1, 2) and tensor.dtype == torch.bfloat16


def test_allocator_without_torchs_fast_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C._dynamo.guards, "_empty_strided_cpu", raising=False)
    tensor = allocator(value("y", "result", (2, 3), (1, 2), dtype="bf16"), torch.device("cpu"))()
    assert tensor.stride() == (1, 2) and tensor.dtype == torch.bfloat16
