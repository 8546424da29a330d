"""Sums down a concatenation: parts are vectors in memory, loaded before their rows are used, into registers that they share."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.composed_cases import Case, columns
from tests.unit.templates.host_build import call, compiler
from tests.unit.templates.pattern_graphs import Pattern
from tests.unit.templates.test_compose import buffer_of, build_group
from tilefuse.emit.vector_operands import Path as Guards
from tilefuse.emit.vector_operands import exclude_each_other
from tilefuse.ir.affine import axis
from tilefuse.ir.scalar import Bound
from tilefuse.ir.text import parse_graph
from tilefuse.kernel.ir import Declare, VectorLoad
from tilefuse.kernel.visit import statements
from tilefuse.target.device import H200

ROWS = 100
# Gradients of queries and keys, scaled, and of values, side by side as in a packed projection; and the gradient of its bias.
PARTS = "guard(0 <= j < 32 ? guard(0 <= j < 16 ? mul(%q[i, j], 0.5:f32) : mul(%k[i, j + -16], 0.5:f32)) : %v[i, j + -32])"
GRAPH = parse_graph(f"""graph @packed(%q: f32[{ROWS}, 16], %k: f32[{ROWS}, 16], %v: f32[{ROWS}, 16]) -> (f32[{ROWS}, 48], f32[48]) {{
  %y: f32[{ROWS}, 48] = map [i, j] {{ {PARTS} }}
  %s: f32[48] = reduce.sum [j] over [i < {ROWS}] {{ %y[i, j] }}
  return %y, %s
}}""")


def packed(batch: int) -> Case:
    """The sums with `batch` rows of a thread in flight, in two parts of the rows."""
    return Case("packed", Pattern(GRAPH, lambda rng, name, shape: rng.standard_normal(shape)), {}, H200,
                columns(4, 3, 4, -(-ROWS // 8), 2, False, batch))


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_parts_are_loaded_as_vectors_ahead_of_their_use(batch: int) -> None:
    """Three loads of a vector, one array of as many vectors as rows are in flight; nothing is loaded element by element."""
    kernel = packed(batch).kernel()
    inputs = {buffer_of(kernel, name).name for name in "qkv"}
    loads = [s for s in statements(kernel.body) if isinstance(s, VectorLoad) and s.buffer in inputs]
    assert len(loads) == 3 and {s.width for s in loads} == {4} and len({s.array for s in loads}) == 1
    array, = (s for s in statements(kernel.body) if isinstance(s, Declare) and s.name == loads[0].array)
    assert array.size == 4 * batch


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_sums_of_parts(batch: int, tmp_path: Path) -> None:
    """Each part where it belongs, on the checking host executor."""
    case = packed(batch)
    kernel, library, number = build_group([case], tmp_path)["packed"]
    values = {name: x.astype(np.float32) for name, x in case.pattern.inputs(np.random.default_rng(3)).items()}
    given = {buffer_of(kernel, name).name: x.ravel().copy() for name, x in values.items()}
    memory, status, report = call(getattr(library, f"{kernel.name}_{number}"), kernel, given)
    assert status == 0, report
    wanted = np.concatenate([values["q"] * 0.5, values["k"] * 0.5, values["v"]], 1)
    assert np.array_equal(memory[buffer_of(kernel, "y").name].reshape(ROWS, 48), wanted)
    assert np.allclose(memory[buffer_of(kernel, "s").name], wanted.astype(np.float64).sum(0), rtol=0, atol=1e-4)


def test_only_sides_of_one_guard_share_registers() -> None:
    """The same guard with opposite sides, also behind another; other guards may both hold."""
    low, high = (Bound(axis("j"), 0, 16),), (Bound(axis("j"), 0, 32),)
    inner: Guards = ((high, True), (low, True))
    assert exclude_each_other(inner, ((high, True), (low, False))) and exclude_each_other(inner, ((high, False),))
    assert not exclude_each_other(((low, True),), ((high, False),)) and not exclude_each_other(inner, ((high, True),))
