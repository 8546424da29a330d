"""A registered function through the whole compiler: the same value from the interpreter, the host executor and folded constants."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import tilefuse
from tilefuse.arrays.evaluation.custom_meaning import HostMeaning
from tilefuse.ir.custom import register_function, unregister_function
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph
from tilefuse.runtime.compilers.nvrtc import compile_cuda

GRAPH = """graph @g(%x: TYPE[7, 130]) -> (TYPE[7, 130]) {
  %y: TYPE[7, 130] = map [i, j] { swish_of(%x[i, j], TO(0.5:f32)) }
  %s: TYPE[7] = reduce.sum [i] over [k < 130] { %y[i, k] }
  %z: TYPE[7, 130] = map [i, j] { add(%y[i, j], %s[i]) }
  return %z
}
"""


@pytest.fixture
def swish() -> Iterator[None]:
    """An operator of two arguments, one of them used twice in its text."""
    register_function("swish_of", "(x: float, b: float) -> float", "x / (1 + exp(-b * x))", meaning=HostMeaning("swish_of"))
    yield
    unregister_function("swish_of")


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_interpreter_and_host_executor_agree(swish: None, dtype: str) -> None:
    graph = parse_graph(GRAPH.replace("TYPE", dtype).replace("TO", dtype))
    x = np.random.default_rng(0).standard_normal((7, 130)).astype({"f32": np.float32, "f64": np.float64}[dtype])
    wanted = np.asarray(interpret(graph, {"x": x})[0])
    program = tilefuse.compile(graph, device="host", check=True)
    assert len(program.kernels) == 1 and "tf_custom_swish_of" in program.source()
    found = program(torch.from_numpy(x))[0].numpy()
    # Sums of 130 terms of size below 5 in another order: Higham 2002, section 4.2.
    assert np.abs(found - wanted).max() <= 130 * 130 * 5 * np.finfo(x.dtype).eps / 2
    exact = x / (1 + np.exp(-x / 2))
    assert np.allclose(HostMeaning("swish_of")(x, np.full_like(x, 0.5)), exact, rtol=16 * np.finfo(x.dtype).eps)


def test_constants_are_folded_by_the_text(swish: None) -> None:
    graph = parse_graph("""graph @g() -> (f32[2]) {
  %y: f32[2] = map [i] { swish_of(2.0:f32, 1.0:f32) }
  return %y
}""")
    found, = tilefuse.compile(graph, device="host")()
    assert torch.allclose(found, torch.full((2,), 2 / (1 + np.exp(-2.0)), dtype=torch.float32), rtol=2**-22)


def test_a_saved_program_needs_no_registration(swish: None, tmp_path: Path) -> None:
    graph = parse_graph(GRAPH.replace("TYPE", "f32").replace("TO", "f32"))
    program = tilefuse.compile(graph, device="host")
    program.save(str(tmp_path / "p.tilefuse"))
    x = torch.ones(7, 130)
    unregister_function("swish_of")
    try:
        assert torch.equal(tilefuse.load(str(tmp_path / "p.tilefuse"))(x)[0], program(x)[0])
    finally:
        register_function("swish_of", "(x: float, b: float) -> float", "x / (1 + exp(-b * x))", meaning=HostMeaning("swish_of"))


@pytest.mark.parametrize("arch", ["h200", "a100"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_the_device_takes_the_text(swish: None, dtype: str, arch: str) -> None:
    made = tilefuse.compile(parse_graph(GRAPH.replace("TYPE", dtype).replace("TO", dtype)), target=arch)
    for kernel in made.spec.kernels:
        assert "tf_custom_swish_of" in kernel.source and compile_cuda(kernel).payload
