"""Names of a graph's values in kernels: legal, readable where free, and never one for two values."""
from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.composed_cases import Case, rows
from tests.unit.templates.host_build import compiler, run
from tests.unit.templates.pattern_graphs import Pattern, softmax
from tilefuse.ir.interpret import interpret
from tilefuse.ir.rewrite import rename_values
from tilefuse.ir.text import parse_graph
from tilefuse.kernel.writer import free_identifier, identifier
from tilefuse.printers.check import CheckedPrinter
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200, DeviceSpec

ALIKE = """graph @alike(%a__b: f32[5], %a_b: f32[5], %float_: f32[5], %num_vectors: f32[5]) -> (f32[5], f32[5], f32[]) {
  %float: f32[5] = map [i] { add(%a__b[i], mul(%a_b[i], %float_[i])) }
  %exp_: f32[5] = map [i] { exp(mul(%float[i], %num_vectors[i])) }
  %exp: f32[] = reduce.sum [] over [k < 5] { mul(%exp_[k], %float[k]) }
  return %float, %exp_, %exp
}"""
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


def agrees(case: Case, folder: Path, check: bool) -> None:
    """Runs a case's kernel on the host; its results are those of the interpreter, and checking finds nothing."""
    kernel, graph = case.kernel(), case.pattern.graph
    inputs = case.pattern.inputs(np.random.default_rng(3))
    place = {b.origin: b.name for b in kernel.parameters}
    memory, status, report = run(kernel, {place[name]: value.ravel() for name, value in inputs.items()}, folder, check)
    assert status == 0, report
    for name, wanted in zip(graph.results, interpret(graph, inputs), strict=True):
        np.testing.assert_allclose(memory[place[name]], np.ravel(wanted), rtol=1e-5, atol=1e-5, err_msg=name)


def test_no_two_names_have_one_identifier() -> None:
    """Reserved words, pairs of underscores and odd characters all end in a name that another value may have."""
    taken: set[str] = set()
    wanted = ["float", "float_", "float_1", "a__b", "a_b", "a___b", "exp_", "exp", "exp_1", "x", "x", "x_1", "M_E", "M_E_"]
    given = [free_identifier(name, taken) for name in wanted]
    assert len({identifier(name) for name in given}) == len(wanted)
    assert [identifier(name) for name in given if name in ("float", "a__b", "exp_", "x", "M_E")] == ["float_", "a_b", "exp_", "x", "M_E_"]


@needs_compiler
@pytest.mark.parametrize("device", [host_device(), H200], ids=["host", "h200"])
def test_values_of_names_alike_are_told_apart(device: DeviceSpec, tmp_path: Path) -> None:
    """`float` is printed as float_ and `a__b` as a_b: neither is the value that is called so."""
    case = Case("alike", Pattern(parse_graph(ALIKE), lambda rng, name, shape: rng.standard_normal(shape)), {}, device)
    agrees(case, tmp_path, True)
    text = print_cuda(case.kernel(), H200)
    parameters = re.findall(r"(\w+)[,)]", text[text.index("__global__"):text.index("{", text.index("__global__"))])
    assert len(parameters) >= 7 and len(set(parameters)) == len(parameters)


@needs_compiler
@pytest.mark.parametrize("check", [False, True], ids=["plain", "checked"])
def test_registers_of_all_threads_take_no_values_name(check: bool, tmp_path: Path) -> None:
    """Register m of every thread is the array m_of on the host; a parameter of that name would be read from there."""
    plain = softmax(3, 256)
    pattern = Pattern(rename_values(plain.graph, {"x": "m_of", "y": "s_of"}), plain.fill)
    agrees(Case("spread", pattern, {}, H200, rows(4, 64, 1)), tmp_path, check)


@needs_compiler
def test_no_value_is_called_as_a_macro() -> None:
    """A tensor M_E or INT8_MAX would be a number in the source."""
    headers = "".join(f"#include <{name}>\n" for name in CheckedPrinter.includes)
    found = subprocess.run([compiler() or "", "-std=c++17", "-fopenmp", "-march=native", "-dM", "-E", "-x", "c++", "-"], input=headers,
                           capture_output=True, text=True, check=True).stdout
    macros = [name for name in re.findall(r"^#define (\w+) ", found, re.MULTILINE) if "__" not in name]
    assert "M_E" in macros
    assert [name for name in macros if identifier(name) == name and name not in ("stdin", "stdout", "stderr")] == []
