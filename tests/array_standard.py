"""The array standard's own test suite on `tilefuse.array`: `python -m tests.array_standard [--suite FOLDER] [--examples 100] [FILES]`.

The suite (data-apis/array-api-tests) is in no package index, so git fetches the commit below, once, into `.tilefuse`. `make test` tries
that too, and where the repository cannot be reached the suite's tests are skipped and say so. ARRAY_API_TESTS names a folder that has it.
Each of its files is run by a process of its own: the suite takes what it tests from the environment. Exit status 1 where a test fails.
"""
from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from tests.processes import ROOT

REPOSITORY = "https://github.com/data-apis/array-api-tests"
COMMIT = "41379d15d26d67a1e66c840e775d41a8a7fb1516"  # release v2026.02.26
FETCHED = ROOT / ".tilefuse" / f"array-api-tests-{COMMIT[:12]}"
STANDARD = "2024.12"
TESTS = "array_api_tests"
EXAMPLES = 20
FETCH_S, FILE_S = 180, 900
# Tests of what is not offered, and why.
COMPLEX = "complex numbers are not offered"
LEFT_OUT = {
    "test_has_names.py::test_has_names[elementwise-imag]": COMPLEX,
    "test_signatures.py::test_func_signature[imag]": COMPLEX,
    "test_inspection_functions.py::TestInspection::test_capabilities":
        "an array has any number of dimensions, which the standard writes as None and the suite does not know",
}
# Floor division with infinities has the results of numpy, array-api-strict and torch, which the standard allows ("may be"), not these.
OF_FLOOR_DIVISION = ("x1_i is +infinity and isfinite(x2_i) and x2_i > 0) -> +infinity",
                     "x1_i is +infinity and isfinite(x2_i) and x2_i < 0) -> -infinity",
                     "x1_i is -infinity and isfinite(x2_i) and x2_i > 0) -> -infinity",
                     "x1_i is -infinity and isfinite(x2_i) and x2_i < 0) -> +infinity",
                     "isfinite(x1_i) and x1_i > 0 and x2_i is -infinity) -> -0",
                     "isfinite(x1_i) and x1_i < 0 and x2_i is +infinity) -> -0")
OTHERWISE = tuple(f"test_special_cases.py::{form}({case}]" for case in OF_FLOOR_DIVISION
                  for form in ("test_binary[floor_divide", "test_binary[__floordiv__", "test_iop[__ifloordiv__"))


def suite() -> Path | None:
    """The folder of the suite; None where it was not fetched. Raises: FileNotFoundError where ARRAY_API_TESTS names another folder."""
    if named := os.environ.get("ARRAY_API_TESTS"):
        if not Path(named, TESTS).is_dir():
            raise FileNotFoundError(f"ARRAY_API_TESTS is {named!r}, which has no folder {TESTS}; it should be a checkout of {REPOSITORY}")
        return Path(named)
    return FETCHED if FETCHED.is_dir() else None


def files(folder: Path) -> list[str]:
    """The suite's files of tests, by name."""
    return sorted(p.name for p in Path(folder, TESTS).glob("test_*.py"))


def fetch(repository: str = REPOSITORY, commit: str = COMMIT, folder: Path = FETCHED) -> str | None:
    """Fetches a commit of the suite and of the specification that it reads; what git said where that failed, else None."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"), tempfile.TemporaryDirectory(dir=folder.parent) as made:
        if folder.is_dir():
            return None
        whole = Path(made, "suite")
        whole.mkdir()
        git = ["git", "-C", str(whole), "-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=20", "-c", "advice.detachedHead=false"]
        for step in (["init", "--quiet"], ["fetch", "--quiet", "--depth", "1", repository, commit], ["checkout", "--quiet", "FETCH_HEAD"],
                     ["submodule", "--quiet", "update", "--init", "--depth", "1"]):
            try:
                done = subprocess.run([*git, *step], capture_output=True, text=True, timeout=FETCH_S,
                                      env={**os.environ, "GIT_TERMINAL_PROMPT": "0"})
            except (OSError, subprocess.TimeoutExpired) as error:
                return str(error)
            if done.returncode:
                return done.stderr.strip()
        whole.rename(folder)
    return None


def run_file(folder: Path, name: str, examples: int, is_repeated: bool) -> subprocess.CompletedProcess[str]:
    """Runs one file of the suite. examples: how many a test draws; is_repeated: the same ones at each run, else fresh ones."""
    with tempfile.TemporaryDirectory() as lists:
        skips, fails = Path(lists, "skips.txt"), Path(lists, "fails.txt")
        for path, tests in ((skips, LEFT_OUT), (fails, OTHERWISE)):
            path.write_text("".join(f"{TESTS}/{test}\n" for test in tests if test.startswith(f"{name}::")), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", f"{TESTS}/{name}", "-q", "--tb=short", "-p", "no:cacheprovider", "--disable-deadline",
                   "--max-examples", str(examples), "--skips-file", str(skips), "--xfails-file", str(fails)]
        environment = {**os.environ, "ARRAY_API_TESTS_MODULE": "tilefuse.array", "ARRAY_API_TESTS_VERSION": STANDARD,
                       "ARRAY_API_TESTS_SKIP_DTYPES": "complex64,complex128", "PYTHONDONTWRITEBYTECODE": "1",
                       "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(folder), os.environ.get("PYTHONPATH", "")])}
        return subprocess.run([*command, *(["--derandomize"] if is_repeated else [])], cwd=folder, env=environment, capture_output=True,
                              text=True, timeout=FILE_S)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch the suite if need be and run it. Exit status: 0 where all passed, 1 where some failed, 2 without a suite."""
    parser = argparse.ArgumentParser(prog="python -m tests.array_standard", description=__doc__)
    parser.add_argument("files", nargs="*", help="files of the suite (default: all)")
    parser.add_argument("--suite", help="a folder that has the suite")
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="inputs that each test draws, fresh ones at every run")
    parser.add_argument("--fetch", action="store_true", help="fetch the suite and stop; a failure is told, not an error")
    options = parser.parse_args(arguments)
    if options.suite:
        os.environ["ARRAY_API_TESTS"] = options.suite
    said = None if os.environ.get("ARRAY_API_TESTS") else fetch()
    folder = suite()
    if folder is None or options.fetch:
        print(f"the array standard's test suite: {folder or f'not fetched, its tests are skipped ({said})'}")
        return 0 if options.fetch else 2
    failed = 0
    for name in options.files or files(folder):
        done = run_file(folder, name, options.examples, is_repeated=False)
        failed += done.returncode != 0
        print(name, done.stdout if done.returncode else done.stdout.strip().rpartition("\n")[2], done.stderr, flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
