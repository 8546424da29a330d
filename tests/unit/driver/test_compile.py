"""The whole pipeline on the host executor, against the interpreter and torch."""
from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import tilefuse
from tests.unit.plan.graphs import layers, softmax
from tilefuse.base.errors import OptionError, UnsupportedDeviceError, UserError, VerifyError
from tilefuse.base.options import Options
from tilefuse.driver.compile import compile_graph, generate_sources, import_model, present_device
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph
from tilefuse.runtime.compilers.host import compile_host, compiler_command

OPTIONS = Options()


def weights(graph: Graph, seed: int = 3) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {i.name: draw.standard_normal(i.type.shape, dtype=np.float32) / 8 for i in graph.inputs if i.constant}


def test_softmax_matches_torch() -> None:
    program = tilefuse.compile(softmax(), device="host")
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).half()
    found, = program(x)
    # Both round the same f32 value to f16 once; the f32 values differ by a few units in their last place.
    assert torch.allclose(found.float(), x.float().softmax(-1), rtol=2**-10, atol=2**-24)


def test_repeated_layers_compile_one_layers_kernels_and_match_the_interpreter() -> None:
    graph = layers(6, rows=8)
    constants = weights(graph)
    program = compile_graph(graph, constants=constants, device="host", options=OPTIONS)
    x = np.random.default_rng(0).standard_normal((8, 64), dtype=np.float32)
    wanted = interpret(graph, {"x0": x} | constants)
    found, = program(torch.from_numpy(x))
    expected = np.asarray(next(iter(wanted.values())) if isinstance(wanted, dict) else wanted[0])
    # Six products of length 64 of values below about 4: Higham 2002, 3.1, first order in eps, with room for the sums' growth.
    assert np.abs(found.numpy() - expected).max() <= 6 * 64 * np.finfo(np.float32).eps * 64
    assert len(program.kernels) == 3
    explanation = program.explain(json=True)
    assert explanation["num_kernels"] == 7 and explanation["unfused_kernels"] == 18
    assert explanation["bytes"] < explanation["unfused_bytes"]


@pytest.mark.parametrize("device", [{"device": "host"}, {"target": "h200", "stitch": False}], ids=str)
def test_totals_hold_library_calls(device: dict[str, object]) -> None:
    """A product and a convolution: both are in the totals, the convolution with what its bytes take at least."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 512)).eval()
    facts = tilefuse.compile(model, (torch.randn(4, 3, 8, 8),), **device).explain(json=True)
    totals, calls = facts["totals"], facts["library"]
    assert {c["operator"]: c["at_least"] for c in calls} == {"convolution": True, "matmul": False}
    assert totals["library_bytes"] == sum(c["bytes"] for c in calls) > 4 * 8 * 36 * 512
    assert totals["us"] == pytest.approx(sum(k["predicted_us"] for k in facts["kernels"]) + sum(c["predicted_us"] for c in calls), abs=0.01)
    assert totals["bytes"] == facts["bytes"] + totals["library_bytes"] + totals["copy_bytes"] and totals["num_at_least"] == 1
    assert totals["us"] <= totals["unfused_us"] and totals["bytes"] <= totals["unfused_bytes"]
    text = tilefuse.compile(model, (torch.randn(4, 3, 8, 8),), **device).explain()
    assert f"predicted {totals['us']:.1f} us" in text and "library calls" in text and "of 1 call only launch and bytes" in text


def test_a_product_inside_a_kernel_counts_as_a_call_where_nothing_is_fused() -> None:
    graph = parse_graph((Path(__file__).parents[3] / "examples" / "attention.txt").read_text())
    facts = tilefuse.compile(graph, target="h200").explain(json=True)
    assert not facts["library"] and facts["totals"]["unfused_bytes"] > facts["unfused_bytes"]
    assert facts["totals"]["unfused_us"] == pytest.approx(facts["unfused_us"], abs=0.01), "the planner compared with the same"


def test_shared_memory_is_told_as_allocated_and_as_requested() -> None:
    """Four layers of 64: the tile of one lies where that of two before it was, so less is allocated than their tiles ask for together."""
    weights = [torch.randn(64, 64) for _ in range(4)]

    def layers(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.tanh(x @ weight)
        return x

    def launch_of(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> dict[str, int]:
        kernel, = tilefuse.compile(function, list(inputs), target="h200").explain(json=True)["kernels"]
        return kernel["launch"]

    stitched = launch_of(layers, torch.randn(4096, 64), *weights)
    assert 0 < stitched["shared_bytes"] < stitched["shared_requested_bytes"]
    rows = launch_of(lambda x: torch.softmax(x, -1), torch.randn(64, 8192))
    assert rows["shared_bytes"] == rows["shared_requested_bytes"]


def test_the_explanation_has_what_readers_rely_on() -> None:
    explanation = tilefuse.compile(softmax(), device="host").explain(json=True)
    kernel, = explanation["kernels"]
    assert {"name", "nodes", "edges", "template", "bytes_read", "bytes_written", "limit_us", "launch"} <= set(kernel)
    assert {e["level"] for e in kernel["edges"]} <= {"register", "warp", "shared", "cluster"}
    assert {"library", "views", "fallbacks", "rejected", "unfused_kernels", "unfused_bytes"} <= set(explanation)
    text = tilefuse.compile(softmax(), device="host").explain()
    assert "1 kernels" in text and kernel["name"] in text


def test_a_torch_module_keeps_its_signature_and_structure() -> None:
    class Pair(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(16, 16)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            h = torch.relu(self.linear(x)) + y
            return {"sum": h.sum(-1), "turned": h.t()}

    torch.manual_seed(0)
    model, x, y = Pair().eval(), torch.randn(8, 16), torch.randn(8, 16)
    program = tilefuse.compile(model, (x, y), device="host")
    found, wanted = program(x, y), model(x, y)
    assert set(found) == {"sum", "turned"}
    for name, tensor in wanted.items():
        assert torch.allclose(found[name], tensor, atol=1e-5), name
        assert found[name].stride() == tensor.stride(), name


def test_a_function_is_compiled_like_a_module() -> None:
    x = torch.linspace(-3, 3, 100)
    program = tilefuse.compile(lambda x: torch.tanh(x) * 2, (x,), device="host")
    assert torch.allclose(program(x), torch.tanh(x) * 2, atol=1e-6)


def test_saving_and_loading_runs_without_the_compiler(tmp_path: Path) -> None:
    path = tmp_path / "softmax.tilefuse"
    tilefuse.compile(softmax(), device="host").save(path)
    code = ("import sys, torch, tilefuse; p = tilefuse.load(sys.argv[1]); y, = p(torch.zeros(4, 8, dtype=torch.float16)); "
            "assert (y == 0.125).all(); "
            "rooms = ('tilefuse.plan', 'tilefuse.driver', 'tilefuse.templates', 'tilefuse.kernel', 'tilefuse.printers'); "
            "bad = [m for m in sys.modules if m.startswith(rooms)]; "
            "assert not bad, bad; assert p.explain(json=True)['num_kernels'] == 1")
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=120)


def test_importing_tilefuse_loads_neither_torch_nor_the_compiler() -> None:
    code = "import sys, tilefuse; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_sources_for_a_device_that_is_not_present() -> None:
    made = generate_sources(softmax(), device="h200")
    assert [k.arch for k in made.spec.kernels] == ["sm_90a"]
    assert 'extern "C" __global__' in made.spec.kernels[0].source
    assert made.spec.plan_text.startswith("plan @softmax for h200")
    assert tilefuse.compile(softmax(), target="h200").spec == made.spec
    assert made.source(made.kernels[0].name) == made.source() == made.kernels[0].source
    for misuse in (made, made.save):
        with pytest.raises(UnsupportedDeviceError, match="softmax was generated for h200"):
            misuse("x")


def test_equal_requests_give_equal_bytes() -> None:
    first, second = (generate_sources(layers(3), device="h200").spec for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("options", "says"), [({"fuze": True}, "did you mean fuse"), ({"debug": "x"}, "not a whole number")])
def test_unknown_options_are_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        tilefuse.compile(softmax(), device="host", **options)


def test_unknown_passes_and_devices_are_refused() -> None:
    with pytest.raises(OptionError, match="did you mean remove-dead-nodes"):
        tilefuse.compile(softmax(), device="host", passes="remove-dead-node")
    with pytest.raises(UserError, match="there is no device 'tpu'"):
        tilefuse.compile(softmax(), device="tpu")
    with pytest.raises(OptionError, match="unknown target"):
        tilefuse.compile(softmax(), target="h20000")


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(UserError, match="cannot compile an object of type int"):
        tilefuse.compile(7)
    with pytest.raises(UserError, match="example inputs"):
        tilefuse.compile(torch.nn.ReLU())
    with pytest.raises(UserError):
        import_model("/nowhere/model.onnx")


def test_an_error_names_the_request_once() -> None:
    good = softmax()
    bad = Graph(good.name, good.inputs, tuple(reversed(good.nodes)), good.results)
    with pytest.raises(VerifyError) as caught:
        compile_graph(bad, constants={}, device="host", options=Options(verify=0, fuse=False))
    assert caught.value.__notes__.count("while compiling graph @softmax for host with fuse=False, verify=0") == 1


def test_a_compile_dumps_every_stage(tmp_path: Path) -> None:
    tilefuse.compile(softmax(), device="host", dump_dir=str(tmp_path), trace=str(tmp_path / "trace.json"))
    folder, = (p for p in tmp_path.iterdir() if p.is_dir())
    assert {"0_given.txt", "1_passed.txt", "2_plan.txt", "explanation.json", "kernels", "trace.json"} <= {p.name for p in folder.iterdir()}
    assert parse_graph((folder / "0_given.txt").read_text()) == softmax()
    names = {e["name"] for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert {"passes", "plan", "sources", "build"} <= names


def test_the_host_is_present_everywhere() -> None:
    spec, place = present_device("cpu")
    assert (spec.kind, place) == ("host", "host")


def test_progress_is_told_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bar on standard error where the option asks for it, and nothing else."""
    for progress in (True, False):
        compile_graph(softmax(), constants={}, device="host", options=Options(progress=progress, cache_dir=str(tmp_path / str(progress))))
        shown = capsys.readouterr()
        assert ("compiling kernels" in shown.err and "1/1" in shown.err) == progress and not shown.out


def test_indices_beyond_32_bits_build_on_the_host() -> None:
    """Divisions of a wide index by what fits into 32 bits: nothing of the tensors' size is allocated by compiling."""
    graph = parse_graph("""graph @wide(%x: f32[70001, 1], %w: f32[40003]) -> (f32[70001, 40003]) {
      %y: f32[70001, 40003] = map [i, j] { add(%x[i, 0], %w[j]) }
      return %y
    }""")
    made = generate_sources(graph, device="host")
    assert "tf_index_rem" in made.source() and "long long" in made.source()
    assert len(compile_host(made.kernels, compiler_command())) == 1
