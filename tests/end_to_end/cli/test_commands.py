"""The commands on real models, in this process: what a user types, what comes out, what lies on disk afterwards."""
from __future__ import annotations

import errno
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import tilefuse
from tilefuse.tools import cli
from tilefuse.tools.inputs import random_array

ROOT = Path(__file__).resolve().parents[3]
SOFTMAX = str(ROOT / "examples" / "softmax.txt")
Capture = pytest.CaptureFixture[str]


def output_of(arguments: list[str], capsys: Capture, status: int = 0) -> tuple[str, str]:
    """Text that a command printed on standard output and on standard error."""
    found = cli.main(arguments)
    out, err = capsys.readouterr()
    assert found == status, f"{out}\n{err}"
    return out, err


def test_run_prints_ranges_and_saves_results(tmp_path: Path, capsys: Capture) -> None:
    saved, inputs = tmp_path / "out.npz", tmp_path / "in.npz"
    x = random_array("f16", (128, 1024), seed=5)
    np.savez(inputs, x=x)
    out, err = output_of(["run", SOFTMAX, "--device", "host", "--inputs", str(inputs), "--save-outputs", str(saved), "--json"], capsys)
    facts = json.loads(out)
    assert facts["results"]["y"]["shape"] == [128, 1024] and facts["median_us"] > 0
    wanted = torch.softmax(torch.from_numpy(x).double(), -1).numpy()
    np.testing.assert_allclose(np.load(saved)["y"].astype(np.float64), wanted, rtol=2.0**-9, atol=2.0**-20)


def test_run_says_which_array_does_not_fit(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, x=np.zeros((2, 3), np.float16))
    _, err = output_of(["run", SOFTMAX, "--device", "host", "--inputs", str(path)], capsys, 2)
    assert "[2, 3]" in err and "[128, 1024]" in err
    np.savez(path, y=np.zeros((2, 3), np.float16))
    _, err = output_of(["run", SOFTMAX, "--device", "host", "--inputs", str(path)], capsys, 2)
    assert "no array 'x'" in err


def test_explain_as_json_has_what_tools_read(capsys: Capture) -> None:
    out, _ = output_of(["explain", SOFTMAX, "--target", "h200", "--json"], capsys)
    explanation = json.loads(out)
    kernel = explanation["kernels"][0]
    assert {"name", "nodes", "edges", "bytes_read", "bytes_written", "limit_us"} <= set(kernel)
    assert {"library", "fallbacks", "rejected"} <= set(explanation)
    assert kernel["bytes_read"] == kernel["bytes_written"] == 128 * 1024 * 2
    assert all({"producer", "user", "level"} <= set(edge) for edge in kernel["edges"])


def test_sources_for_a_device_that_is_not_here_build_alone(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "emitted"
    output_of(["compile", SOFTMAX, "--target", "h200", "--emit", str(folder)], capsys)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (folder / "plan.txt").read_text().startswith("plan @softmax for h200")
    for kernel in manifest["kernels"]:
        source = folder / kernel["file"]
        assert kernel["entry"] in source.read_text() and kernel["num_blocks"] > 0
        if shutil.which("nvcc"):
            command = ["nvcc", "-arch=sm_90a", "-cubin", str(source), "-o", str(tmp_path / "k.cubin")]
            assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_target_needs_a_folder_and_is_not_saved(tmp_path: Path, capsys: Capture) -> None:
    _, err = output_of(["compile", SOFTMAX, "--target", "h200"], capsys, 2)
    assert "--emit" in err
    _, err = output_of(["compile", SOFTMAX, "--target", "h200", "--emit", str(tmp_path), "--save", str(tmp_path / "p")], capsys, 2)
    assert "--save" in err
    _, err = output_of(["compile", SOFTMAX, "--target", "h20", "--emit", str(tmp_path)], capsys, 2)
    assert "h200" in err


def test_a_saved_program_is_loaded_and_runs(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "softmax.tilefuse"
    output_of(["compile", SOFTMAX, "--device", "host", "--save", str(path)], capsys)
    x = torch.randn(128, 1024).half()
    torch.testing.assert_close(tilefuse.load(path)(x)[0], torch.softmax(x, -1), rtol=2e-3, atol=1e-5)


def test_a_factory_of_a_module_runs_and_is_timed_against_eager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    text = "import torch\ndef make():\n    return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.GELU())\n"
    (tmp_path / "zoo_of_one.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    out, _ = output_of(["bench", "zoo_of_one:make", "--shapes", "input:3x8", "--device", "host", "--repeat", "3", "--json"], capsys)
    assert json.loads(out)["ratio"] > 0
    _, err = output_of(["run", "zoo_of_one:make", "--device", "host"], capsys, 2)
    assert "--shapes input:" in err
    _, err = output_of(["run", "zoo_of_one:mkae", "--device", "host"], capsys, 2)
    assert "make" in err


def test_models_with_numbers_and_mappings_among_their_inputs_run(tmp_path: Path, capsys: Capture) -> None:
    """An array file gives the tensors; numbers and structure stay the model's own."""
    source, arrays = tmp_path / "scaled.py", tmp_path / "in.npz"
    source.write_text("import torch\ndef scaled(d, n): return d['a'] * n\ndef make(): return scaled, ({'a': torch.ones(4)}, 3)\n")
    out, _ = output_of(["run", f"{source}:make", "--device", "host", "--json"], capsys)
    (name,) = (found := json.loads(out))["inputs"]
    assert [r["max"] for r in found["results"].values()] == [3.0]
    np.savez(arrays, **{name: np.full(4, 5, np.float32)})
    out, _ = output_of(["run", f"{source}:make", "--device", "host", "--inputs", str(arrays), "--json"], capsys)
    assert [r["max"] for r in json.loads(out)["results"].values()] == [15.0]
    output_of(["bench", f"{source}:make", "--device", "host", "--repeat", "2"], capsys)


def test_results_are_told_in_the_types_of_inputs(tmp_path: Path, capsys: Capture) -> None:
    """Also complex ones, by their magnitudes."""
    source = tmp_path / "spectrum.py"
    source.write_text("import torch\ndef spectrum(x): return x.half(), torch.complex(x, x) * 2j\n"
                      "def make(): return spectrum, (torch.full((4,), 3.0),)\n")
    out, _ = output_of(["run", f"{source}:make", "--device", "host", "--json"], capsys)
    found = json.loads(out)
    assert [i["dtype"] for i in found["inputs"].values()] == ["f32"]
    halved, product = found["results"].values()
    assert (halved["dtype"], halved["max"], product["dtype"]) == ("f16", 3.0, "c64")
    assert product["min"] == pytest.approx(6 * 2 ** 0.5)


def test_an_exported_program_runs(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(torch.nn.LayerNorm(16).eval(), (torch.randn(4, 16),)), str(path))
    out, _ = output_of(["run", str(path), "--device", "host", "--json"], capsys)
    assert [r["shape"] for r in json.loads(out)["results"].values()] == [[4, 16]]


def test_view_writes_one_page(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "plan.html"
    output_of(["view", SOFTMAX, "--target", "h200", "--out", str(path)], capsys)
    text = path.read_text()
    assert text.startswith("<!doctype html>") and "extern" in text and "softmax" in text
    _, err = output_of(["view", SOFTMAX, "--target", "h200", "--out", str(tmp_path / "no" / "plan.html")], capsys, 2)
    assert "cannot write" in err


def test_the_cache_travels_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("TILEFUSE_CACHE_DIR", str(tmp_path / "first"))
    out, _ = output_of(["cache", "why", SOFTMAX, "--device", "host", "--json"], capsys)
    assert [answer["cached"] for answer in json.loads(out)] == [False]
    output_of(["compile", SOFTMAX, "--device", "host"], capsys)
    out, _ = output_of(["cache", "export", str(tmp_path / "kernels.bin"), "--json"], capsys)
    assert json.loads(out) == {"kernels": 1, "file": str(tmp_path / "kernels.bin")}
    monkeypatch.setenv("TILEFUSE_CACHE_DIR", str(tmp_path / "second"))
    out, _ = output_of(["cache", "import", str(tmp_path / "kernels.bin"), "--json"], capsys)
    assert json.loads(out)["kernels"] == 1
    out, _ = output_of(["cache", "why", SOFTMAX, "--device", "host", "--json"], capsys)
    assert [answer["cached"] for answer in json.loads(out)] == [True]
    out, _ = output_of(["cache", "clear", "--json"], capsys)
    assert json.loads(out) == {"kernels": 1, "folder": str(tmp_path / "second")}


def test_every_command_on_graphs_and_plans_has_json(capsys: Capture) -> None:
    out, _ = output_of(["opt", SOFTMAX, "--passes", "remove-dead-nodes", "--json"], capsys)
    assert (found := json.loads(out))["nodes"] > 0 and found["graph"].startswith("graph @softmax")
    out, _ = output_of(["opt", "--list", "--json"], capsys)
    assert "remove-dead-nodes" in json.loads(out)
    out, _ = output_of(["explain", SOFTMAX, "--target", "h200", "--plan-text", "--json"], capsys)
    assert json.loads(out)["plan"].startswith("plan @softmax for h200")


def test_a_device_and_a_target_exclude_each_other(tmp_path: Path, capsys: Capture) -> None:
    """Else one of them would be left out of account in silence."""
    for command in (["explain"], ["compile", "--emit", str(tmp_path / "out")], ["view", "--out", str(tmp_path / "plan.html")]):
        _, err = output_of([command[0], SOFTMAX, "--target", "h200", "--device", "host", *command[1:]], capsys, 2)
        assert "--device host and --target h200" in err
    assert list(tmp_path.iterdir()) == []


def test_why_a_kernel_is_not_cached_is_asked_under_other_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Options decide sources, compilers and the cache itself, so `cache why` takes them as compile does."""
    monkeypatch.setenv("TILEFUSE_CACHE_DIR", str(tmp_path / "first"))
    output_of(["compile", SOFTMAX, "--device", "host"], capsys)

    def cached(*options: str) -> tuple[bool, str]:
        flags = [word for option in options for word in ("-O", option)]
        (answer,) = json.loads(output_of(["cache", "why", SOFTMAX, "--device", "host", "--json", *flags], capsys)[0])
        return answer["cached"], answer["why"]

    assert cached()[0] and not cached(f"cache_dir={tmp_path / 'second'}")[0]
    hit, why = cached("fast_math")
    assert not hit and "flags" in why
    hit, why = cached("cxx=c++")
    assert not hit and "compiler" in why
    monkeypatch.setenv("TILEFUSE_CACHE", "0")
    assert "the cache is off" in output_of(["cache", "clear"], capsys)[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_asking_for_a_gpu_that_is_not_there(capsys: Capture) -> None:
    _, err = output_of(["run", SOFTMAX, "--device", "cuda"], capsys, 4)
    assert "--device host" in err
    assert "unknown device 'cuda:x'" in output_of(["run", SOFTMAX, "--device", "cuda:x"], capsys, 2)[1]


FACTORIES = """
import numpy
import torch

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x, scale=None):
        y = torch.relu(self.linear(x))
        return y if scale is None else y * scale

def three():
    return Scaled(), (torch.randn(3, 8),), {"scale": torch.randn(4)}

def keywords():
    return Scaled(), {"x": torch.randn(3, 8)}

def arrays():
    return Scaled(), (numpy.ones((3, 8), numpy.float32),)

def wrong_shape():
    return Scaled(), (torch.randn(3, 7),)

def wrong_type():
    return Scaled(), (torch.ones(3, 8, dtype=torch.int64),)

def too_few():
    return Scaled(), ()

def four():
    return Scaled(), (), {}, 4
"""


@pytest.mark.parametrize("name", ["three", "keywords", "arrays"])
def test_every_form_of_a_factory_runs(name: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / f"forms_{name}.py"
    path.write_text(FACTORIES)
    facts = json.loads(output_of(["run", f"{path}:{name}", "--device", "host", "--json"], capsys)[0])
    assert next(iter(facts["results"].values()))["shape"] == [3, 4]
    assert json.loads(output_of(["bench", f"{path}:{name}", "--device", "host", "--repeat", "2", "--json"], capsys)[0])["ratio"] > 0


@pytest.mark.parametrize(("name", "said"), [("wrong_shape", "cannot be multiplied"), ("wrong_type", "dtype"), ("too_few", "'x'"),
                                            ("four", "(Scaled, tuple, dict, int)")])
def test_a_factory_that_is_wrong_is_no_fault_of_ours(name: str, said: str, tmp_path: Path, capfd: Capture) -> None:
    """A few lines that name the user's own, no log of torch's insides; through a linked environment as well."""
    path = tmp_path / f"wrong_{name}.py"
    path.write_text(FACTORIES)
    _, err = output_of(["run", f"{path}:{name}", "--device", "host"], capfd, 2)
    assert said in err and "fault of tilefuse" not in err and len(err.splitlines()) <= 4
    assert not name.startswith("wrong") or f"{path.name}:" in err


def test_a_script_is_searched_and_emitted_in_one_document(tmp_path: Path, capsys: Capture) -> None:
    """A file's name need be no identifier; the build line is one that a shell takes."""
    script = ROOT / "examples" / "bicgk.blas"
    sizes = ["--shapes", "A:64x48,p:48,r:64"]
    out, _ = output_of(["blas", str(script), *sizes, "--emit", str(tmp_path / "1 two-é.cu"), "--table", "2", "--json"], capsys)
    facts = json.loads(out)
    assert facts["programs"] and facts["kernels"] and "'1 two-é.cu'" in facts["build"]
    header = (tmp_path / "1 two-é.h").read_text()
    assert "cudaError_t v_1_two__(" in header
    _, err = output_of(["blas", str(script), *sizes, "--shapes", "z:4", "--device", "host"], capsys, 2)
    assert "no input 'z'" in err


def test_matrices_of_a_script_may_have_a_leading_dimension(tmp_path: Path, capsys: Capture) -> None:
    """From row to row or from column to column, as declared; in what is written and in what runs."""
    script = tmp_path / "product.blas"
    # With the mark that some editors put ahead of UTF-8, and their ends of lines.
    script.write_text("\ufeffmatrix A; matrix B column major; vector x;\r\ninput A, B, x; y = dgemv(A, x); z = dgemv(B, x); return y, z;",
                      encoding="utf-8")
    sizes = ["blas", str(script), "--shapes", "A:33x20,B:33x20,x:20"]
    output_of([*sizes, "--leading", "A:24,B:40", "--sizes", "fixed", "--emit", str(tmp_path / "out.cu")], capsys)
    header = (tmp_path / "out.h").read_text()
    assert "shape [33, 20], strides [24, 1]" in header and "shape [33, 20], strides [1, 40]" in header
    output_of([*sizes, "--leading", "A:24,B:40", "--emit", str(tmp_path / "out.cu")], capsys)
    header = (tmp_path / "out.h").read_text()
    assert "leading_A" in header and "leading_B" in header
    dense, _ = output_of([*sizes, "--device", "host", "--json"], capsys)
    apart, _ = output_of([*sizes, "--device", "host", "--json", "--leading", "A:24,B:40"], capsys)
    norms = [[r["norm"] for r in json.loads(text)["results"].values()] for text in (dense, apart)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-12)
    for given, said in (("A:19", "a row of A has 20 words"), ("B:20", "a column of B has 33 words"), ("x:30", "x is a vector"),
                        ("A", "NAME:1008"), ("C:50", "no input 'C'")):
        assert said in output_of([*sizes, "--leading", given], capsys, 2)[1]
    assert "the type f32, the script's functions take f64" in output_of([*sizes[:3], "A:33x20@f32,B:33x20,x:20"], capsys, 2)[1]


def test_a_script_is_searched_for_a_device_that_is_not_there(tmp_path: Path, capsys: Capture) -> None:
    """Listed for the target; timed only where the target is: that ended in a fault of our own."""
    script = [str(ROOT / "examples" / "bicgk.blas"), "--shapes", "A:64x48,p:48,r:64"]
    out, _ = output_of(["blas", *script, "--target", "a100", "--table", "2", "--json"], capsys)
    assert json.loads(out)["device"] == "a100"
    _, err = output_of(["blas", *script, "--emit", str(tmp_path / "out.cu"), "--search", "1", "--target", "a100"], capsys, 2)
    assert "which is no a100" in err
    _, err = output_of(["blas", *script, "--target", "a100"], capsys, 2)
    assert "but no code is generated" in err


def test_figures_that_cannot_be_kept_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("tilefuse.runtime.calibrate.calibrate", lambda *_, **__: pytest.fail("measured in vain"))
    arguments = ["calibrate", "--device", "host", "--out", str(tmp_path / "file" / "figures.json")]
    _, err = output_of(arguments, capsys, 2)
    assert "cannot write" in err


def test_a_full_disk_leaves_no_half_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    _, err = output_of(["compile", SOFTMAX, "--target", "h200", "--emit", str(tmp_path / "out")], capsys, 2)
    assert "No space left" in err and list((tmp_path / "out").iterdir()) == []


def test_results_are_compared_and_the_exit_status_tells(tmp_path: Path, capsys: Capture) -> None:
    """With the definition of the graph, with results in a file, and with another model; a difference is status 5."""
    golden, changed = tmp_path / "golden.npz", tmp_path / "changed.txt"
    out, _ = output_of(["run", SOFTMAX, "--device", "host", "--compare", "interpreter,unfused", "--save-outputs", str(golden),
                        "--save-inputs", str(tmp_path / "in.npz")], capsys)
    assert "against interpreter on host: 1 of 1 outputs agree" in out and "against unfused" in out
    again = ["run", SOFTMAX, "--device", "host", "--inputs", str(tmp_path / "in.npz"), "--compare"]
    output_of([*again, str(golden)], capsys)
    arrays = dict(np.load(golden))
    arrays["y"][3, 5] += 0.25
    np.savez(golden, **arrays)
    out, _ = output_of([*again, str(golden)], capsys, 5)
    assert "y: f16[128, 1024]  DIFFERS" in out and "worst at [3, 5]" in out and "theirs is off" in out
    output_of([*again, str(golden), "--atol", "0.5"], capsys)
    changed.write_text(Path(SOFTMAX).read_text().replace("div(", "add("))
    found = json.loads(output_of([*again, str(changed), "--json"], capsys, 5)[0])
    assert found["comparisons"][0]["outputs"][0]["num_outside"] > 0


@pytest.mark.parametrize(("against", "says"), [("eager", "a graph in text form cannot be compared with eager"),
                                               ("no.npz", "there is no file"), (",", "--compare names nothing"),
                                               ("uncased", "did you mean unfused")])
def test_what_cannot_be_compared_is_said_before_anything_is_compiled(against: str, says: str, capsys: Capture) -> None:
    assert says in output_of(["run", SOFTMAX, "--device", "host", "--compare", against], capsys, 2)[1]


def test_bench_tells_percentiles_noise_and_every_call(tmp_path: Path, capsys: Capture) -> None:
    times = tmp_path / "times.csv"
    out, _ = output_of(["bench", SOFTMAX, "--device", "host", "--compare", "unfused", "--iterations", "14", "--warmup", "0",
                        "--export-times", str(times), "--profile"], capsys)
    assert "measured: one call, from entering it until its results are ready" in out and "p99" in out and "by round" in out
    assert "kernel" in out and "spread" in out
    rows = times.read_text().splitlines()
    assert rows[0] == "what,round,us" and len(rows) == 29
    output_of(["bench", SOFTMAX, "--device", "host", "--iterations", "2", "--export-times", str(tmp_path / "t.json")], capsys)
    assert {"what", "round", "us"} == set(json.loads((tmp_path / "t.json").read_text())[0])
    assert "--measure" not in output_of(["bench", SOFTMAX, "--device", "host", "--measure", "replay"], capsys, 2)[0]
    assert ".json or .csv" in output_of(["bench", SOFTMAX, "--export-times", "t.txt"], capsys, 2)[1]


def test_saved_programs_run_and_are_timed_like_models(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "softmax.tilefuse"
    output_of(["compile", SOFTMAX, "--device", "host", "--save", str(path)], capsys)
    out, _ = output_of(["run", str(path), "--compare", SOFTMAX], capsys)
    assert "1 of 1 outputs agree" in out and "loaded in" in out
    output_of(["bench", str(path), "--iterations", "2", "--compare", SOFTMAX], capsys)
    assert "does not hold its model" in output_of(["run", str(path), "--compare", "eager"], capsys, 2)[1]
    assert "compiled already" in output_of(["run", str(path), "-O", "fuse=0"], capsys, 2)[1]
    assert "takes [128, 1024]" in output_of(["run", str(path), "--shapes", "x:2x2"], capsys, 2)[1]
    assert "holds plan and kernels" in output_of(["opt", str(path)], capsys, 3)[1]
