"""Tensor copies and stores on a GPU, in kernels written by hand: boxes of every form, changed pointers, CUDA graphs, saved programs."""
from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.gpu.apart import apart
from tests.unit.kernel.test_tensor_map import CASES
from tests.unit.templates.tensor_samples import BoxCopy, exchange, program_of, ring
from tilefuse.ir.dtype import BF16, F16, F32
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.runtime.calls.library import TORCH_DTYPES
from tilefuse.runtime.cuda_api import describe_device
from tilefuse.runtime.load import load_program
from tilefuse.runtime.program import Program
from tilefuse.runtime.spec import ProgramSpec
from tilefuse.runtime.stores.cache import KernelCache
from tilefuse.target.device import H200


def has_copy_engine() -> bool:
    """Whether the device at hand has tensor copies."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_copy_engine(), reason="needs a CUDA device of compute capability 9.0")]

LARGE = {
    "2-D odd": BoxCopy(F16, (517, 1003), (32, 64), (0, 0), threads=128),
    "2-D over every edge": BoxCopy(F32, (301, 77), (16, 32), (-3, -4), threads=128),
    "3-D odd": BoxCopy(BF16, (7, 65, 200), (2, 16, 64), (1, -1, 8), threads=128),
}


def spec_for_device(spec: ProgramSpec) -> ProgramSpec:
    """The program, compiled for the device at hand."""
    arch = describe_device(torch.cuda.current_device()).arch
    return replace(spec, kernels=tuple(replace(k, arch=arch) for k in spec.kernels))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> KernelCache:
    """One cache for the module, so that each kernel is compiled once."""
    return KernelCache(tmp_path_factory.mktemp("kernels"))


def program_for(case: BoxCopy, cache: KernelCache) -> Program:
    """The program of a case on the device at hand."""
    return Program(spec_for_device(case.program(H200)), {}, "cuda", cache=cache)


def operands(case: BoxCopy, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """An input on the GPU, with its strides, and the result as numpy computes it."""
    dtype = NUMPY_DTYPES[case.dtype.name]
    data = np.random.default_rng(seed).integers(0, 100, case.num_elements).astype(dtype)
    wanted = case.expected({"x": data, "y": np.zeros(case.num_elements, dtype)})
    kind = TORCH_DTYPES[case.dtype.name]
    x, y = (torch.from_numpy(a.view(np.uint8)).cuda().view(kind).as_strided(case.extents, case.strides) for a in (data, wanted))
    return x, y


@pytest.mark.parametrize("name", [*CASES, *LARGE])
@apart
def test_boxes_arrive_as_in_numpy(name: str, cache: KernelCache) -> None:
    """One to five dimensions, elements of 1 to 8 bytes, boxes over every edge and outside; a call and a call elsewhere in memory."""
    case = {**CASES, **LARGE}[name]
    program = program_for(case, cache)
    kept = []
    for seed in range(3):
        x, wanted = operands(case, seed)
        y, = program(x)
        kept.append((x, y))
        assert torch.equal(y, wanted), seed


@apart
def test_a_graph_keeps_its_maps_while_direct_calls_change_theirs(cache: KernelCache) -> None:
    """Replays read the recorded places; calls between them, of tensors elsewhere, encode maps of their own."""
    case = LARGE["3-D odd"]
    program = program_for(case, cache)
    (first, wanted_first), (second, wanted_second) = operands(case, 1), operands(case, 2)
    captured = program.capture(first)
    for _ in range(3):
        assert torch.equal(captured(first)[0], wanted_first)
        assert torch.equal(program(second)[0], wanted_second)
        assert torch.equal(captured(second)[0], wanted_second)


@apart
def test_a_graph_that_reads_in_place_is_recorded_for_each_address(cache: KernelCache) -> None:
    case = LARGE["2-D odd"]
    program = program_for(case, cache)
    pairs = [operands(case, seed) for seed in range(3)]
    captured = program.capture(pairs[0][0], zero_copy=("x",), copy_results=True)
    for _ in range(2):
        for x, wanted in pairs:
            assert torch.equal(captured(x)[0], wanted)
    assert captured.num_recordings == 3


@apart
def test_a_loaded_program_encodes_its_maps(cache: KernelCache, tmp_path: Path) -> None:
    case = LARGE["2-D over every edge"]
    program_for(case, cache).save(tmp_path / "boxes.tilefuse")
    loaded = load_program(tmp_path / "boxes.tilefuse", "cuda")
    x, wanted = operands(case, 5)
    assert torch.equal(loaded(x)[0], wanted)


@apart
def test_a_thread_that_never_used_the_gpu_encodes_maps(cache: KernelCache) -> None:
    case = LARGE["2-D odd"]
    program = program_for(case, cache)
    x, wanted = operands(case, 6)
    torch.cuda.synchronize()
    results: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: results.extend(program(x)))
    thread.start()
    thread.join()
    assert len(results) == 1 and torch.equal(results[0], wanted)


@pytest.mark.parametrize("rows", [8, 37, 1000])
@apart
def test_a_ring_of_copies_and_stores(rows: int, cache: KernelCache) -> None:
    """Three slots of loads and two of stores: no slot is overwritten early, over many turns."""
    layout = ((rows, 24), (24, 1))
    program = Program(spec_for_device(program_of(ring(rows), H200, {"x": layout, "y": layout})), {}, "cuda", cache=cache)
    x = torch.arange(rows * 24, dtype=torch.float32, device="cuda").reshape(rows, 24)
    for _ in range(5):
        assert torch.equal(program(x)[0], 2 * x)


@pytest.mark.parametrize("rows", [8, 29, 4003])
@apart
def test_clusters_receive_each_others_boxes(rows: int, cache: KernelCache) -> None:
    """Two blocks copy half of a tile each to both."""
    layouts = {"x": ((rows, 16), (16, 1)), "y": ((2, rows, 16), (rows * 16, 16, 1))}
    program = Program(spec_for_device(program_of(exchange(rows), H200, layouts)), {}, "cuda", cache=cache)
    x = torch.arange(rows * 16, dtype=torch.float32, device="cuda").reshape(rows, 16)
    for _ in range(5):
        assert torch.equal(program(x)[0], torch.stack([2 * x, 2 * x]))
