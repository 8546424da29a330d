"""Faults planted in kernels, passes and between kernels are found where they were planted, and leave a graph that still fails."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tilefuse
from tests.mutation.faults import mutants
from tests.unit.templates.host_build import compiler
from tilefuse.driver.lowering import lower
from tilefuse.ir.graph import Graph
from tilefuse.ir.scalar import Call, Expr, transform
from tilefuse.ir.text import parse_graph
from tilefuse.kernel.ir import Kernel
from tilefuse.passes.manager import PASSES, PassContext
from tilefuse.runtime.program import Program
from tilefuse.tools import cli

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
# Two kernels around a product: a softmax over rows of 50, and a bias with an exponential.
GRAPH = """graph @g(%x: f32[6, 50], %w: f32[50, 8], %b: f32[8]) -> (f32[6, 8]) {
  %m: f32[6] = reduce.max [i] over [k < 50] { %x[i, k] }
  %e: f32[6, 50] = map [i, j] { exp(sub(%x[i, j], %m[i])) }
  %s: f32[6] = reduce.sum [i] over [k < 50] { %e[i, k] }
  %p: f32[6, 50] = map [i, j] { div(%e[i, j], %s[i]) }
  %y: f32[6, 8] = library.matmul (%p, %w)
  %z: f32[6, 8] = map [i, j] { tanh(add(%y[i, j], %b[j])) }
  return %z
}
"""


def inputs() -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(11)
    return [torch.randn(shape, generator=draw) for shape in ((6, 50), (50, 8), (8,))]


def planted(monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str]) -> None:
    """Every kernel's text passes through `change`."""
    print_host = lower.print_host
    monkeypatch.setattr(lower, "print_host", lambda kernel, check=False: change(print_host(kernel, check=check)))


def test_without_a_fault_every_step_is_as_defined() -> None:
    found = tilefuse.bisect(parse_graph(GRAPH), inputs(), device="host", stitch=False)
    assert found.is_none and found.first is None and len(found.steps) == 3
    assert max(s.own_error for s in found.steps) < 1e-5 and max(s.from_start for s in found.steps) < 1e-5
    assert "library matmul (y)" in found.table()


@pytest.mark.parametrize(("function", "kernel", "node"), [("tf_exp(", 0, "e"), ("tf_tanh(", 2, "z")])
def test_the_kernel_with_a_wrong_function_is_named(function: str, kernel: int, node: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    """And the command of its reproducer ends with status 5, and with 0 once the fault is gone."""
    with monkeypatch.context() as context:
        planted(context, lambda text: text.replace(f"= {function}", f"= {function}1.01f * "))
        found = tilefuse.bisect(parse_graph(GRAPH), inputs(), device="host", stitch=False)
        assert (found.stage, found.first.number) == ("kernel", kernel) and node in found.first.nodes
        assert [n.name for n in found.failing.graph.nodes] == [node]
        assert all(e == 1 for n in found.failing.graph.nodes for e in n.type.shape)
        command = found.save(tmp_path / "fault").split()
        assert cli.main(command[1:]) == 5
    assert cli.main(command[1:]) == 0
    assert "DIFFERS" in capsys.readouterr().out and (tmp_path / "fault" / "README").exists()


def test_a_loop_that_ends_early_is_found_in_the_kernel_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the kernel's structure: the reduced graph keeps the reduction, and rows long enough for the loop to matter."""
    compose = lower.compose

    def faulty(program: object, device: object, settled: object) -> Kernel:
        kernel = compose(program, device, settled)
        shorter = [changed for fault, changed in mutants(kernel) if "one step less" in fault]
        is_softmax = any(n.kind == "reduce.max" for n in program.graph.nodes)  # type: ignore[attr-defined]
        return shorter[-1] if is_softmax and shorter else kernel

    monkeypatch.setattr(lower, "compose", faulty)
    found = tilefuse.bisect(parse_graph(GRAPH), inputs(), device="host", stitch=False, seconds=20)
    assert found.stage == "kernel" and found.first.number == 0
    assert found.failing is not None and len(found.failing.graph.nodes) < 4


def _subtracting(e: Expr) -> Expr:
    return Call("sub", e.args) if isinstance(e, Call) and e.fn == "add" else e


def test_a_pass_that_changes_the_meaning_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = PASSES["simplify-scalar"]
    run = kind.run

    def faulty(self: object, graph: Graph, ctx: PassContext) -> Graph:
        graph = run(self, graph, ctx)
        swapped = tuple(dataclasses.replace(n, body=transform(n.body, _subtracting)) if n.name == "z" else n for n in graph.nodes)
        return graph if swapped == graph.nodes else dataclasses.replace(graph, nodes=swapped)

    monkeypatch.setattr(kind, "run", faulty)
    found = tilefuse.bisect(parse_graph(GRAPH), inputs(), device="host", stitch=False)
    assert (found.stage, found.name) == ("pass", "simplify-scalar")
    assert [n.name for n in found.failing.graph.nodes] == ["z"]


def test_a_pass_behind_normal_form_that_changes_the_meaning_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes for the device are looked through like those before them."""
    kind = PASSES["order-updates"]

    def faulty(self: object, graph: Graph, ctx: PassContext) -> Graph:
        swapped = tuple(dataclasses.replace(n, body=transform(n.body, _subtracting)) if n.name == "z" else n for n in graph.nodes)
        return graph if swapped == graph.nodes else dataclasses.replace(graph, nodes=swapped)

    monkeypatch.setattr(kind, "run", faulty)
    found = tilefuse.bisect(parse_graph(GRAPH), inputs(), device="host", stitch=False)
    assert (found.stage, found.name) == ("pass", "order-updates")
    assert [n.name for n in found.failing.graph.nodes] == ["z"]


def test_a_fault_that_waiting_hides_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are right one by one, and a call whose result is not."""
    call = Program.__call__
    monkeypatch.setattr(Program, "__call__", lambda self, *tensors: [r + 1 for r in call(self, *tensors)])
    found = tilefuse.bisect(parse_graph(GRAPH), inputs(), device="host", stitch=False)
    assert found.stage == "overlap" and "early_start" in str(found)


def test_a_compile_that_fails_is_reduced_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    """Kernel text that no compiler takes: the error names the command that shows it with the smallest graph."""
    model, folder = tmp_path / "model.txt", tmp_path / "fault"
    model.write_text(GRAPH)
    planted(monkeypatch, lambda text: text.replace("= tf_tanh(", "= no_such_function("))
    monkeypatch.setenv("TILEFUSE_CACHE_DIR", str(tmp_path / "cache"))
    assert cli.main(["run", str(model), "--device", "host", "--bisect", str(folder)]) == 4
    assert f"the smallest graph whose compile fails: tilefuse run {folder}/graph.txt" in capsys.readouterr().err
    graph = parse_graph((folder / "graph.txt").read_text())
    assert [n.name for n in graph.nodes] == ["z"] and graph.type_of("z").shape == (1, 1)
    assert cli.main(["run", str(folder / "graph.txt"), "--inputs", str(folder / "inputs.npz"), "--device", "host"]) == 4
