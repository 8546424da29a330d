"""Scans along rows that no cluster holds, as a device's schedule takes their pieces, run by the host: every sum is exact."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.passes.device.rewriting import rewritten
from tests.unit.passes.device.test_long_scans import scan
from tests.unit.templates.host_build import FLAGS, build_together, call, compiler
from tests.unit.templates.test_compose import buffer_of
from tilefuse.domain.tile import TileProgram
from tilefuse.passes.device.long_scans import SplitLongScans
from tilefuse.target.device import H200
from tilefuse.templates import schedule_pattern
from tilefuse.templates.compose import compose

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


def test_pieces_of_long_rows_add_up(tmp_path: Path) -> None:
    """Two rows of 2^20 and a few whole numbers."""
    length = (1 << 20) + 3
    graph = rewritten(SplitLongScans(), scan("sum", "i32", 2, length), H200)
    kernels = []
    for node in graph.nodes:
        program = schedule_pattern(graph, (node.name,), {}, H200)
        assert isinstance(program, TileProgram)
        kernels.append(compose(program, H200))
    library = build_together([(k, False) for k in kernels], tmp_path, FLAGS)
    memory = {"x": np.random.default_rng(4).integers(-9, 10, 2 * length).astype(np.int32)}
    for number, (node, kernel) in enumerate(zip(graph.nodes, kernels, strict=True)):
        given = {b.name: memory[b.origin] for b in kernel.parameters if b.role == "in"}
        written, status, report = call(getattr(library, f"{kernel.name}_{number}"), kernel, given)
        assert status == 0, report
        memory[node.name] = written[buffer_of(kernel, node.name).name]
    wanted = np.cumsum(memory["x"].reshape(2, length), axis=1, dtype=np.int32)
    np.testing.assert_array_equal(memory["y"].reshape(2, length), wanted)
