"""Exported programs built with the system's compiler: the demo's models, without Python's packages, in C, by the loader and the example."""
from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilefuse
from tests.unit.standalone.built import build_host, loader
from tilefuse.standalone.export import Exported
from tilefuse.tools import cli

ROOT = Path(__file__).resolve().parents[2]
# A process that must not import them; NumPy alone is left.
ALONE = """
import sys
for name in ("torch", "tilefuse", "ml_dtypes", "onnx"):
    sys.modules[name] = None
sys.path.insert(0, sys.argv[1])
import numpy as np
import encoder
program = encoder.Program()
np.save(sys.argv[3], program(np.load(sys.argv[2]))[0])
"""


def _encoder() -> tuple[torch.nn.Module, torch.Tensor]:
    """The demo's encoder, smaller."""
    torch.backends.mha.set_fastpath_enabled(False)
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, activation="gelu", batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(3, 20, 32)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The exported encoder, built; an input; torch's result in f64."""
    model, x = _encoder()
    with torch.no_grad():
        expected = model.double()(x.double())
        made = tilefuse.export(model.float(), tmp_path_factory.mktemp("encoder"), (x,), device="host", name="encoder")
    build_host(made)
    return made, x.numpy(), expected.numpy()


def test_the_encoder_runs_with_numpy_alone(encoder: Any, tmp_path: Path) -> None:
    """In a process in which torch and tilefuse cannot be imported."""
    made, x, expected = encoder
    np.save(tmp_path / "x.npy", x)
    done = subprocess.run([sys.executable, "-c", ALONE, str(made.folder), str(tmp_path / "x.npy"), str(tmp_path / "y.npy")],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected, atol=1e-5)


def test_calls_of_the_loader(encoder: Any) -> None:
    """Inputs by name and in any layout; what does not fit is told; a second handle is another program."""
    made, x, expected = encoder
    module = loader(made)
    program, other = module.Program(), module.Program()
    name = program.inputs[0].name
    assert (program.inputs[0].shape, program.inputs[0].dtype, program.results[0].shape) == (x.shape, "f32", expected.shape)
    first = program(x)[0]
    turned = np.asfortranarray(x)
    assert np.array_equal(first, program(**{name: turned})[0]) and np.array_equal(first, other(x)[0])
    for bad, told in ((x[:1], "shape (1, 20, 32), expected (3, 20, 32)"), (x.astype("f8"), "is float64, expected float32")):
        with pytest.raises(ValueError, match=told.replace("(", r"\(").replace(")", r"\)")):
            program(bad)
    with pytest.raises(ValueError, match="takes 1 inputs"):
        program()
    with pytest.raises(ValueError, match="no input 'z'"):
        program(z=x)


def test_errors_of_the_c_interface(encoder: Any, tmp_path: Path) -> None:
    """Null and misaligned pointers, weights that are missing, damaged or of another program: a status and a text, never a crash."""
    import ctypes

    made, x, _ = encoder
    module = loader(made)
    program = module.Program()
    call = ctypes.CDLL(str(made.folder / "libencoder.so"))
    call.encoder_last_error.restype = ctypes.c_char_p
    call.encoder_workspace_bytes.restype = ctypes.c_size_t
    handle = ctypes.c_void_p()

    def told(path: Path) -> tuple[int, str]:
        return call.encoder_create(str(path).encode(), ctypes.byref(handle)), call.encoder_last_error().decode()

    data = (made.folder / "weights.bin").read_bytes()
    cases = {"cut": (data[:-100], "ends too early"), "other": (b"x" * 100, "no file of weights"), "short": (b"", "no file of weights"),
             "changed": (data[:500] + bytes([data[500] ^ 1]) + data[501:], "damaged"),
             "another": (data[:24] + b"\0\0\0\0" + data[28:], "weights of another program"),
             "turned": (data[:12] + data[12:16][::-1] + data[16:], "other byte order")}
    for name, (content, text) in cases.items():
        (tmp_path / name).write_bytes(content)
        status, message = told(tmp_path / name)
        assert status == 2 and text in message and name in message and not handle.value
    assert told(tmp_path / "missing")[0] == 2
    assert call.encoder_create(None, ctypes.byref(handle)) == 1 and call.encoder_create(b"x", None) == 1
    assert call.encoder_input(1) is None or not call.encoder_input(1)
    assert call.encoder_run(None, None, None, None, None) == 1 and b"handle" in call.encoder_last_error()
    y = program.results[0].empty()
    workspace = np.empty(program.workspace_bytes + 64, np.uint8)
    address = workspace.ctypes.data + -workspace.ctypes.data % 64
    for inputs, space, text in (([0], address, "input 0 (src) is a null pointer"), ([x.ctypes.data + 4], address, "is not 16-byte aligned"),
                                ([y.ctypes.data], 0, "the workspace is a null pointer")):
        with pytest.raises(RuntimeError) as raised:
            program.run(inputs, [y.ctypes.data], space)
        assert text in str(raised.value)
    program.run([program.inputs[0].empty().ctypes.data], [y.ctypes.data], address)


def test_one_handle_runs_in_several_threads(encoder: Any) -> None:
    """Each with a workspace of its own: no run sees another's values."""
    made, x, _ = encoder
    program = loader(made).Program()
    inputs = [np.ascontiguousarray(x * (n + 1)) for n in range(4)]
    expected = [program(x)[0] for x in inputs]

    def repeat(number: int) -> bool:
        workspace = np.empty(program.workspace_bytes + 64, np.uint8)
        given, found = program.inputs[0].empty(), program.results[0].empty()
        given[...] = inputs[number]
        for _ in range(20):
            program.run([given.ctypes.data], [found.ctypes.data], workspace.ctypes.data + -workspace.ctypes.data % 64)
            if not np.array_equal(found, expected[number]):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(repeat, range(4)))


def test_the_header_is_c(encoder: Any) -> None:
    made, *_ = encoder
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", "c",
               str(made.folder / "include/encoder.h")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_example_reads_and_writes_arrays(encoder: Any, tmp_path: Path) -> None:
    """As the page says: inputs from .npy files, results into such; without inputs some are drawn."""
    made, x, expected = encoder
    np.save(tmp_path / "x.npy", x)
    example = tmp_path / "example"
    command = ["g++", "-O0", "-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{made.folder / 'include'}",
               str(made.folder / "src/example.cpp"), str(made.folder / "libencoder.so"), f"-Wl,-rpath,{made.folder}", "-o", str(example)]
    assert subprocess.run(command, check=False).returncode == 0
    weights = str(made.folder / "weights.bin")
    done = subprocess.run([example, weights, str(tmp_path / "x.npy"), "--out", str(tmp_path / "y"), "--repeat", "2"], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0 and "us a run" in done.stdout, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "y-0.npy"), expected, atol=1e-5)
    assert subprocess.run([example, weights], capture_output=True, check=False).returncode == 0
    np.save(tmp_path / "x.npy", x[:1])
    done = subprocess.run([example, weights, str(tmp_path / "x.npy")], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "no .npy file of input src" in done.stderr


TYPES = """graph @types(%h: f16[5, 6], %b: bf16[6], %i: i64[4], %t: f32[7, 3], %m: bool[4, 3], %w: f64[4, 3], %n: i8[4, 3])
    -> (f16[5, 6], bf16[6], f32[4, 3], i8[4, 3], bool[4, 3], i64[4], f64[3, 4]) {
  %u: f16[5, 6] = map [r, c] { f16(add(f32(%h[r, c]), f32(%b[c]))) }
  %v: bf16[6] = map [c] { bf16(mul(f32(%b[c]), 3.0:f32)) }
  %g: f32[4, 3] = gather [r, c] { select(%m[r, c], lookup(%t, in_range(%i[r], 7:i64), index(c)), f32(%w[r, c])) }
  %o: i8[4, 3] = map [r, c] { i8(add(i32(%n[r, c]), 1:i32)) }
  %p: bool[4, 3] = map [r, c] { logical_not(%m[r, c]) }
  %q: f64[3, 4] = map [r, c] { %w[c, r] }
  update %n = %o
  return %u, %v, %g, %o, %p, %i, %q
}"""


def test_a_graph_of_many_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command on a graph text: halves, integers, booleans, an input given back, one updated, a bad index."""
    graph = tmp_path / "types.txt"
    graph.write_text(TYPES)
    status = cli.main(["export", str(graph), "--out", str(tmp_path / "out"), "--device", "host", "--name", "types", "--json"])
    out, err = capsys.readouterr()
    assert status == 0, err
    shown = json.loads(out)
    made = Exported(tmp_path / "out", "types", tuple(shown["files"]))
    assert shown["inputs"][0] == {"name": "h", "dtype": "f16", "shape": [5, 6]} and len(shown["results"]) == 7
    build_host(made, "-O0")
    generator = torch.Generator().manual_seed(1)
    given = [torch.randn(5, 6, generator=generator).half(), torch.randn(6, generator=generator).bfloat16(), torch.tensor([6, 0, 3, 3]),
             torch.randn(7, 3, generator=generator), torch.tensor([[True, False, True]] * 4),
             torch.randn(4, 3, generator=generator).double(), torch.arange(12, dtype=torch.int8).reshape(4, 3)]
    arrays = [(x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy().copy() for x in given]
    expected = tilefuse.compile(str(graph), device="host")(*given)
    program = loader(made).Program()
    found = program(*arrays)
    assert [x.updated for x in program.inputs] == [False] * 6 + [True]
    for x, want in zip(found, expected, strict=True):
        assert np.array_equal(x, (want.view(torch.uint16) if want.dtype == torch.bfloat16 else want).numpy())
    assert np.array_equal(arrays[6], given[6].numpy()) and arrays[6][0, 0] == 1
    arrays[2][1] = 7
    with pytest.raises(RuntimeError, match="index 7 at element 1 of i is out of range for dimension 0 of t: legal are 0 to 6"):
        program(*arrays)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")
def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/export.md: export, CMake, the example, the loader, as they are written."""
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    shell, python = (re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL) for language in ("sh", "python"))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    lines = shell[0].splitlines()
    assert cli.main(shlex.split(lines[0])[1:]) == 0
    for line in lines[1:]:
        done = subprocess.run(shlex.split(line), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run([sys.executable, "-c", python[0] + "assert abs(y.sum() - 128) < 1"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
