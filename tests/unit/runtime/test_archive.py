"""Saved programs: the same results, nothing compiled, no part of the compiler imported, damage named."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from tests.unit.runtime.handmade import host_kernel, value
from tilefuse.base.errors import UnsupportedDeviceError, UserError
from tilefuse.runtime import archive, load
from tilefuse.runtime.archive import save_program
from tilefuse.runtime.load import load_program
from tilefuse.runtime.program import Program
from tilefuse.runtime.spec import KernelStep, ProgramSpec
from tilefuse.runtime.stores.cache import KernelCache

SPEC = ProgramSpec(
    "affine", "host", ("x",), ("y", "h"),
    (value("x", "input"), value("w", "constant"), value("v", "constant"), value("h", "constant", (3,), dtype="bf16"),
     value("e", "constant", (0, 2)), value("t", "intermediate"), value("y", "result")),
    (host_kernel("plus", "a[i] + b[i]", num_inputs=2),), (KernelStep(0, ("x", "w", "t")), KernelStep(0, ("t", "v", "y"))))


@pytest.fixture
def program(tmp_path: Path) -> Program:
    w = torch.arange(128.0).reshape(4, 32)
    constants = {"w": w, "v": w, "h": torch.tensor([1, 2, 3], dtype=torch.bfloat16), "e": torch.zeros(0, 2)}
    return Program(SPEC, constants, cache=KernelCache(tmp_path / "kernels"))


def test_saved_program_gives_the_same_bits(program: Program, tmp_path: Path) -> None:
    program.save(tmp_path / "p.tilefuse")
    loaded = load_program(tmp_path / "p.tilefuse")
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(3))
    assert all(torch.equal(a, b) for a, b in zip(program(x), loaded(x), strict=True))
    assert loaded.spec == program.spec and loaded.source("plus") == program.source("plus")
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".part")] == []


def test_equal_constants_are_written_once(program: Program, tmp_path: Path) -> None:
    program.save(tmp_path / "p")
    with zipfile.ZipFile(tmp_path / "p") as file:
        assert file.getinfo("constants.bin").file_size == 512 + 64
        rows = json.loads(file.read("constants.json"))
    assert rows["w"]["offset"] == rows["v"]["offset"] == 0


LOADING = """
import os, subprocess, sys
import torch
def refuse(*a, **k): raise AssertionError("a compiler was started")
subprocess.run = refuse
os.environ["TILEFUSE_CACHE_DIR"] = "/nowhere/at/all"
from tilefuse.runtime.load import load_program
y, _ = load_program(sys.argv[1])(torch.zeros(4, 32))
assert float(y[0, 1]) == 2.0, y
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("tilefuse.")}
assert rooms <= {"base", "target", "pages", "runtime"}, rooms
"""


def test_loading_needs_neither_compiler(program: Program, tmp_path: Path) -> None:
    """In a fresh process without a cache: no C++ compiler starts, and only base, target, pages and runtime are imported."""
    program.save(tmp_path / "p")
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", LOADING, str(tmp_path / "p")], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(root / "src")})
    assert done.returncode == 0, done.stderr


def test_other_processor_is_named(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program.save(tmp_path / "p")
    monkeypatch.setattr(load, "host_identity", lambda: "other-cpu")
    with pytest.raises(UnsupportedDeviceError, match="other-cpu"):
        load_program(tmp_path / "p")


def test_damaged_files(program: Program, tmp_path: Path) -> None:
    """Truncated, bit-flipped machine code, missing parts, another format, no file: each is the user's error."""
    path = tmp_path / "p"
    program.save(path)
    whole = path.read_bytes()
    with pytest.raises(UserError, match="no file"):
        load_program(tmp_path / "absent")
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="not a readable saved program"):
        load_program(path)
    for lost in ("program.json", "kernels.json", "constants.bin"):
        _rewrite(whole, path, drop=lost)
        with pytest.raises(UserError, match="not a readable saved program"):
            load_program(path)
    _rewrite(whole, path, swap=b"damaged")
    with pytest.raises(UserError, match="machine code of kernel plus is damaged"):
        load_program(path)


def _rewrite(whole: bytes, path: Path, drop: str = "", swap: bytes | None = None) -> None:
    source = path.with_suffix(".whole")
    source.write_bytes(whole)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            if name != drop:
                new.writestr(name, swap if swap is not None and name.startswith("payloads/") else old.read(name))


def test_path_that_cannot_be_written(program: Program, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write the program"):
        save_program(program, tmp_path / "absent-folder" / "p")


def test_failed_save_leaves_the_old_file(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program.save(tmp_path / "p")
    before = (tmp_path / "p").read_bytes()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(archive, "_write_constants", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_program(program, tmp_path / "p")
    assert (tmp_path / "p").read_bytes() == before and not list(tmp_path.glob(".part*"))
