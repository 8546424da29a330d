"""The array standard's own test suite on `tilefuse.array`: `python -m tests.array_standard [--suite FOLDER] [--examples 100] [FILES]`.

The suite (data-apis/array-api-tests) is in no package index, so git fetches the commit below, once, into `.tilefuse`. ARRAY_API_TESTS names
a folder that has it. `make test-array-standard` runs it; `make test` does not, because it stays off the network.
Each of its files is run by a process of its own: the suite takes what it tests from the environment. Exit status 1 where a test fails.
"""
from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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
LEFT_OUT = {
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
                       "PYTHONDONTWRITEBYTECODE": "1",
                       "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(folder), os.environ.get("PYTHONPATH", "")])}
        return subprocess.run([*command, *(["--derandomize"] if is_repeated else [])], cwd=folder, env=environment, capture_output=True,
                              text=True, timeout=FILE_S)


def fault(done: subprocess.CompletedProcess[str]) -> str | None:
    """Why a file's run does not count as passed; None where it does. A file whose tests are all skipped tests nothing."""
    if done.returncode:
        return f"exit status {done.returncode}"
    if " passed" not in done.stdout:
        return "no test passed"
    return "a test passes that is listed as failing" if "xpassed" in done.stdout else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch the suite if need be and run it. Exit status: 0 where all passed, 1 where some failed, 2 without a suite."""
    parser = argparse.ArgumentParser(prog="python -m tests.array_standard", description=__doc__)
    parser.add_argument("files", nargs="*", help="files of the suite (default: all)")
    parser.add_argument("--suite", help="a folder that has the suite")
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="inputs that each test draws, fresh ones at every run")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="files that run at the same time")
    options = parser.parse_args(arguments)
    if options.suite:
        os.environ["ARRAY_API_TESTS"] = options.suite
    said = None if os.environ.get("ARRAY_API_TESTS") else fetch()
    folder = suite()
    if folder is None:
        print(f"the array standard's test suite is not here and cannot be fetched: {said}", file=sys.stderr)
        return 2
    names = options.files or files(folder)
    failed: list[str] = []
    with ThreadPoolExecutor(max(options.processes, 1)) as pool:
        runs = pool.map(lambda name: run_file(folder, name, options.examples, is_repeated=False), names)
        for name, done in zip(names, runs, strict=True):
            why = fault(done)
            failed += [name] if why else []
            print(name, f"FAILED ({why})\n{done.stdout}" if why else done.stdout.strip().rpartition("\n")[2], done.stderr, flush=True)
    print(f"{len(names)} files of the array standard's suite, failed: {', '.join(failed) or 'none'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
