"""How the array standard's own test suite is fetched and judged (`tests/array_standard.py`); `make test-array-standard` runs it."""
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.array_standard import TESTS, fault, fetch, files, suite
from tests.processes import ROOT

A_TEST = "def test_adding(): assert 1 + 1 == 2\n"


def finished(status: int, told: str) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(["pytest"], status, told, "")


def test_a_file_passes_where_a_test_did_and_none_passed_against_its_list() -> None:
    assert fault(finished(0, "3 passed, 2 skipped, 1 xfailed")) is None
    assert fault(finished(0, "14 skipped")) == "no test passed"
    assert fault(finished(0, "3 passed, 1 xpassed")) == "a test passes that is listed as failing"
    assert fault(finished(1, "1 failed, 3 passed")) == "exit status 1"


def test_the_checks_of_every_change_do_not_fetch() -> None:
    for name in ("run_all.sh", "__main__.py"):
        assert "array_standard" not in Path(ROOT, "tests", name).read_text(encoding="utf-8")
    assert "tests.array_standard" in Path(ROOT, "Makefile").read_text(encoding="utf-8")


def test_a_commit_is_fetched_whole_or_not_at_all(tmp_path: Path) -> None:
    theirs, here = tmp_path / "theirs", tmp_path / "here"
    (theirs / TESTS).mkdir(parents=True)
    Path(theirs, TESTS, "test_sum.py").write_text(A_TEST, encoding="utf-8")
    git = ["git", "-C", str(theirs), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for step in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "a suite"]):
        subprocess.run([*git, *step], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    said = fetch(str(theirs), "0" * 40, here)
    assert said and not here.exists()
    assert "missing" in (fetch(str(tmp_path / "missing"), commit, here) or "") and not here.exists()
    assert fetch(str(theirs), commit, here) is None
    assert files(here) == ["test_sum.py"]
    assert fetch(str(tmp_path / "missing"), commit, here) is None  # it is here already


def test_a_folder_that_is_no_suite_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARRAY_API_TESTS", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"has no folder array_api_tests; it should be a checkout of https://"):
        suite()
