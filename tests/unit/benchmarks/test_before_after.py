"""Two trees side by side: cases of equal code are counted and not timed, digests count only for the tree they were made from."""
from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import planned_side, program_code, turns
from benchmarks.before_after import CODES, Times, main, table
from benchmarks.equal_code import EQUAL, Codes, tree_digest
from benchmarks.supervise import ROOT
from tilefuse.runtime.calls.library import LIBRARY
from tilefuse.runtime.spec import KernelCode, KernelStep, LibraryStep, ProgramSpec, Value
from tilefuse.target.launch import Launch, Parameter

NAME, OTHER = ("blas", "scal/f32/33"), ("blas", "vadd/f32/33")
TREES = {"before": "b", "after": "a"}


def _spec(entry: str, value: str, *, comment: str = "", constant: str = "2.0f", threads: int = 32) -> ProgramSpec:
    source = (f"struct {entry}_operands {{ int n; }};\n// {comment}\n"
              f'extern "C" __global__ void {entry}(float* {value}, {entry}_operands o) {{\n    {value}[threadIdx.x] *= {constant};\n}}\n')
    kernel = KernelCode(entry, entry, source, "cuda", "sm_90a", Launch(1, threads), (Parameter(value, "f32", 32, "inout"),), names=(value,))
    return ProgramSpec(f"p_{value}", "cuda", (value,), (value,), (Value(value, "f32", (32,), (1,), "input"),), (kernel,),
                       (KernelStep(0, (value,)),))


def _digest(spec: ProgramSpec) -> str:
    return program_code.digest_of([spec], LIBRARY)


def test_names_and_comments_are_no_code() -> None:
    """A kernel's own name also occurs in names of its structures; constants and launches count."""
    same = _digest(_spec("k_1a", "x")), _digest(_spec("k_2b", "threads", comment="other"))
    assert same[0] == same[1]
    assert len({same[0], _digest(_spec("k_1a", "x", constant="3.0f")), _digest(_spec("k_1a", "x", threads=64))}) == 3
    assert program_code.digest_of([], LIBRARY) == ""


def test_library_calls_are_their_operator_operands_and_function() -> None:
    """The same operator run by another function is other code."""
    spec = ProgramSpec("p", "cuda", ("x",), ("y",), (Value("x", "f32", (4,), (1,), "input"), Value("y", "f32", (4,), (1,), "result")), (),
                       (LibraryStep("sort", ("x",), ("y",)),))
    assert program_code.digest_of([spec], {}) != program_code.digest_of([spec], {"sort": _spec})
    assert program_code.digest_of([spec], {"sort": _spec}) != program_code.digest_of([spec], {"sort": _digest})


def test_machine_code_is_equal_where_only_support_text_differs() -> None:
    """NVRTC needs no device: an unused helper changes the source and not the machine code."""
    pytest.importorskip("cuda.bindings.nvrtc")
    plain, helped = _spec("k_1a", "x"), _spec("k_2b", "y", comment="\n__device__ int unused() { return 1; }\n")
    assert _digest(plain) != _digest(helped)
    machine_code, known = program_code.machine_code_but(()), program_code.machine_code_but(program_code.source_digests([plain]))
    wider, faster = _spec("k_1a", "x", threads=64), _spec("k_1a", "x", constant="3.0f")
    assert len({program_code.digest_of([s], LIBRARY, machine_code) for s in (plain, helped, faster)}) == 2
    assert len({program_code.digest_of([s], LIBRARY, program_code.nothing_of) for s in (plain, helped, wider)}) == 2
    assert program_code.digest_of([plain], LIBRARY, known) != program_code.digest_of([plain], LIBRARY, machine_code)


def test_inputs_without_data_have_the_types_of_the_case() -> None:
    """Shapes, strides and types are those of the case."""
    def make(device: object, generator: object) -> list[object]:
        import torch

        return [torch.randn(3, 4, device=device, generator=generator).t(), torch.randint(0, 9, (2,), device=device)]  # type: ignore[call-overload]

    first, second = planned_side.empty_inputs(make)  # type: ignore[arg-type]
    assert (tuple(first.shape), first.stride(), str(second.dtype)) == ((4, 3), (1, 4), "torch.int64")


def test_digests_count_for_one_state_of_a_tree(tmp_path: Path) -> None:
    """Equal sources or equal machine code; a failure equals nothing; another state of a tree has no digests."""
    codes = Codes(tmp_path / CODES)
    for side, tree in TREES.items():
        codes.keep(NAME, side, tree, False, {"status": "ok", "code": side, "launches": "same", "sources": ["one", side]})
        codes.keep(OTHER, side, tree, False, {"status": "failed", "reason": "no"})
    read = Codes.load(tmp_path / CODES)
    assert not read.is_equal(NAME, TREES) and not read.is_equal(OTHER, TREES)
    assert read.may_be_equal(NAME, TREES) and not read.may_be_equal(OTHER, TREES) and read.shared_sources(NAME, TREES) == ["one"]
    for side, tree in TREES.items():
        read.keep(NAME, side, tree, True, {"status": "ok", "code": "same"})
    assert read.is_equal(NAME, TREES) and not read.is_equal(NAME, TREES | {"after": "later"})
    assert read.has(NAME, "after", "a", True) and not read.has(NAME, "after", "later", True)
    assert read.table([NAME, OTHER], TREES).splitlines()[1].split() == ["blas", "2", "1", "0", "1"]


def test_the_table_counts_cases_of_equal_code_apart() -> None:
    """They are 1 in the mean of all, and a timed case that ran equal code is marked."""
    times = Times()
    for name, ratio in ((NAME, 2.0), (OTHER, 1.0)):
        for side, us, code in (("before", 10.0, "c"), ("after", 10.0 * ratio, "c" if name is OTHER else "d")):
            times.add(name, side, {"status": "ok", "us": us, "code": code})
    for number in range(2):
        times.add(("blas", f"equal{number}"), "both", {"status": EQUAL})
    lines = table(times).splitlines()
    assert lines[1].split() == ["blas", "2", f"{2**0.5:.4f}", "2", f"{2**0.25:.4f}", "1", "0", "0"]
    assert "1 timed cases ran the same code in both trees: geomean 1.0000" in lines
    assert [line.endswith("equal code") for line in lines if line.startswith("  blas/vadd")] == [True]


@pytest.mark.slow
def test_two_trees_are_planned_without_a_device(tmp_path: Path) -> None:
    """A changed kernel of one tree differs, the others are equal, and timing leaves those out."""
    before = tmp_path / "tree"
    for folder in ("src", "benchmarks"):
        shutil.copytree(ROOT / folder, before / folder, ignore=shutil.ignore_patterns("__pycache__", "results"))
    cases = before / "benchmarks" / "blas.py"
    cases.write_text(cases.read_text().replace("x = svadd(t, z); return x", "x = swaxpby(0.25, t, 1.0, z); return x"))
    assert tree_digest(before) != tree_digest(ROOT)
    arguments = ["--before", str(before), "--out", str(tmp_path), "--suites", "blas", "--tiny", "--processes", "1", "--each", "0.01"]
    assert main(["codes", *arguments, "--only", "/f32/33"]) == 0
    trees = {"before": tree_digest(before), "after": tree_digest(ROOT)}
    codes = Codes.load(tmp_path / CODES)
    assert codes.is_equal(NAME, trees) and not codes.is_equal(OTHER, trees)
    assert main(["time", *arguments, "--only", "add/f32/33"]) == 0
    assert not turns.is_shared(), "its measuring processes take turns, and nobody else"
    rows = [json.loads(line) for line in (tmp_path / "times.jsonl").read_text().splitlines()]
    timed = {(r["case"], r["side"]) for r in rows if r["status"] == "ok"}
    assert timed == {("vadd/f32/33", "before"), ("vadd/f32/33", "after")}
    assert {r["case"] for r in rows if r["status"] == EQUAL} == {"madd/f32/33x33"}
