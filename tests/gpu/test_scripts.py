"""BLAS scripts on a device: programs written as CUDA C++, built with nvcc and run; CuPy arrays; implementations of the search."""
from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.blas import SEQUENCES, Linear, doubled
from tests.laws.script_bounds import Bounded, drawn, reference
from tilefuse import blas
from tilefuse.driver.compile import present_device
from tilefuse.runtime.program import Program
from tilefuse.tools import cli

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SIZES = (97, 130)
BICGK = "TILE32x32 A; subvector32 p, q, r, s; input A, p, r; q = sgemv(A, p); s = sgemtv(A, r); return q, s;"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEFUSE_CACHE_DIR", str(tmp_path / "cache"))


def driver_words(count: int, seed: int) -> np.ndarray:
    """Data with which an emitted driver fills an input."""
    words = np.empty(count, np.float64)
    for n in range(count):
        seed = (seed * 1664525 + 1013904223) & 0xFFFFFFFF
        words[n] = (seed >> 8) / 16777216.0 - 0.5
    return words


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("kind", ["template", "routines"])
def test_an_emitted_program_computes_what_the_script_says(kind: str, dtype: str, tmp_path: Path,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    """Two products with one matrix: the sums that the driver prints are NumPy's within the roundings of their terms.

    Kernels of routines take the sizes as arguments, and are right at others than they were chosen for.
    """
    m, n = 203, 131
    script = tmp_path / "two.blas"
    script.write_text(BICGK if dtype == "f32" else doubled(BICGK))
    status = cli.main(["blas", str(script), "--shapes", f"A:{m}x{n},p:{n},r:{m}", "--kind", kind, "--emit", str(tmp_path / "two.cu"),
                       "--target", "h200"])
    assert status == 0, capsys.readouterr().err
    major, minor = torch.cuda.get_device_capability()
    arch = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
    command = ["nvcc", "-O3", f"-arch={arch}", "-o", "two", "two.cu", "two_main.cu"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    for rows, columns in ((m, n), (1, 1), (64, 1028), (1001, 77)) if kind == "routines" else ((m, n),):
        arguments = [str(rows), str(columns)] if kind == "routines" else []
        ran = subprocess.run(["./two", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        sums = {name: float(value) for name, value in re.findall(r"^(\w+): \d+ words, sum (\S+)$", ran.stdout, re.MULTILINE)}
        real = np.float32 if dtype == "f32" else np.float64
        drawn = ((rows * columns, 1), (columns, 2), (rows, 3))
        a, p, r = (driver_words(count, seed).astype(real).astype(np.float64) for count, seed in drawn)
        a = a.reshape(rows, columns)
        unit = 2.0**-24 if dtype == "f32" else 2.0**-53
        # Nine digits are printed.
        for name, words, sizes in (("q", a @ p, abs(a) @ abs(p)), ("s", a.T @ r, abs(a.T) @ abs(r))):
            assert abs(sums[name] - words.sum()) <= (rows + columns) * unit * sizes.sum() + 1e-8 * abs(words.sum()), (name, ran.stdout)


@pytest.mark.parametrize("order", ["C", "F"])
def test_cupy_arrays_come_in_and_go_out(order: str) -> None:
    """Without a copy to the host: results are CuPy arrays on the same device."""
    cupy = pytest.importorskip("cupy")
    rng = np.random.default_rng(5)
    a, p, r = rng.standard_normal((70, 45), np.float32), rng.standard_normal(45, np.float32), rng.standard_normal(70, np.float32)
    q, s = blas.compile(BICGK)(cupy.asarray(a, order=order), cupy.asarray(p), cupy.asarray(r))
    assert isinstance(q, cupy.ndarray) and isinstance(s, cupy.ndarray)
    for found, left, right in ((q, a, p), (s, a.T, r)):
        wide, bound = left.astype(np.float64) @ right, 2.0**-24 * (left.shape[1] + 2) * (abs(left.astype(np.float64)) @ abs(right))
        assert (abs(cupy.asnumpy(found) - wide) <= bound).all()


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("sequence", SEQUENCES, ids=lambda s: s.name)
def test_a_sample_of_implementations(sequence: Linear, dtype: str) -> None:
    """Every seventh of the first programs of the search, at sizes that no tile divides, within the bound of its roundings."""
    case = Bounded(sequence, dtype, SIZES)
    device, place = present_device()
    function = blas.compile(case.script, name=sequence.name)
    search = function.search(function.graph_for(case.shapes), device)
    arguments = drawn(case, seed=3)
    wanted, bounds = reference(case, arguments)
    for combination in itertools.islice(search.combinations(4), 0, 40, 7):
        choice = search.build(combination)
        program = Program(choice.spec, choice.constants, place, search.options)
        found = program(*(torch.from_numpy(arguments[n]).to(program.device) for n in choice.spec.inputs))
        for name, got, want, bound in zip(function.outputs, found, wanted, bounds, strict=True):
            assert (abs(got.double().cpu().numpy() - want) <= bound).all(), f"{name} by {choice.how}"


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", ["ssymv", "dsymv_upper"])
def test_symmetric_products_on_a_device(name: str, order: str, deterministic: bool) -> None:
    """By routines and as chosen, over sizes with and without tiles at the edge; what is beyond the triangle is NaN."""
    for size in (1, 97, 512, 1500):
        dtype, unit = (np.float32, 2.0**-24) if name[0] == "s" else (np.float64, 2.0**-53)
        rng = np.random.default_rng(size)
        whole = rng.standard_normal((size, size)).astype(dtype)
        whole, x = whole + whole.T, rng.standard_normal(size).astype(dtype)
        seen = np.tri(size, dtype=bool) if name == "ssymv" else np.tri(size, dtype=bool).T
        matrix = torch.from_numpy(np.where(seen, whole, np.nan).astype(dtype)).cuda()
        matrix = matrix.t().contiguous().t() if order == "F" else matrix
        wide, bound = whole.astype(np.float64) @ x, 2 * unit * (size + 3) * (abs(whole.astype(np.float64)) @ abs(x))
        for kind in ("routines", "auto"):
            function = blas.compile(f"matrix A; vector x; input A, x; y = {name}(A, x); return y;", kind=kind,  # type: ignore[arg-type]
                                    deterministic=deterministic)
            found = function(matrix, torch.from_numpy(x).cuda()).double().cpu().numpy()
            assert (abs(found - wide) <= bound).all(), f"{size} by {kind}"
            if deterministic:
                assert np.array_equal(found, function(matrix, torch.from_numpy(x).cuda()).double().cpu().numpy())
