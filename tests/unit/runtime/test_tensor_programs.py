"""Programs whose kernel moves a tensor by tensor copies: called, saved and loaded on the host."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.unit.templates.host_build import compiler
from tests.unit.templates.tensor_samples import BoxCopy
from tilefuse.ir.dtype import F32
from tilefuse.runtime.load import load_program
from tilefuse.runtime.program import Program
from tilefuse.runtime.stores.cache import KernelCache
from tilefuse.target.catalog import host_device

CASE = BoxCopy(F32, (3, 5, 6), (1, 4, 4), (-1, 1, 4))
pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


def test_a_saved_program_keeps_its_maps(tmp_path: Path) -> None:
    """The file holds extents and strides, not addresses; the loaded program computes the same bits."""
    arrays = CASE.inputs(np.random.default_rng(3)) | {"y": np.zeros(CASE.num_elements, np.float32)}
    x = torch.from_numpy(arrays["x"]).as_strided(CASE.extents, CASE.strides)
    wanted = torch.from_numpy(CASE.expected(arrays)).as_strided(CASE.extents, CASE.strides)
    program = Program(CASE.program(host_device()), {}, cache=KernelCache(tmp_path / "kernels"))
    assert [(m.name, m.parameter, m.extents, m.strides) for m in program.kernels[0].maps] == [
        ("x_map", 0, (3, 5, 6), (40, 8)), ("y_map", 1, (3, 5, 6), (40, 8))]
    program.save(tmp_path / "boxes.tilefuse")
    loaded = load_program(tmp_path / "boxes.tilefuse")
    assert loaded.spec == program.spec
    for called in (program, loaded):
        y, = called(x)
        assert torch.equal(y, wanted)
