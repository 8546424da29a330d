"""The array standard's own test suite on the host (`tests/array_standard.py`), where `make test` could fetch it."""
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.array_standard import COMMIT, EXAMPLES, FILE_S, OTHERWISE, REPOSITORY, TESTS, fetch, files, run_file, suite

FOLDER = suite()
A_TEST = "def test_adding(): assert 1 + 1 == 2\n"


@pytest.mark.timeout(FILE_S)
@pytest.mark.slow
@pytest.mark.parametrize("name", files(FOLDER) if FOLDER else ["all"])
def test_the_suite_passes(name: str) -> None:
    """Every test of what is offered passes, and what is expected to have another result does."""
    if FOLDER is None:
        pytest.skip(f"the suite is not here: commit {COMMIT[:12]} of {REPOSITORY} could not be fetched "
                    "(python -m tests.array_standard --fetch tells why; ARRAY_API_TESTS names a folder that has it)")
    pytest.importorskip("ndindex")
    pytest.importorskip("pytest_jsonreport")
    done = run_file(FOLDER, name, EXAMPLES, is_repeated=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "xpassed" not in done.stdout
    if name == "test_special_cases.py":
        assert f"{len(OTHERWISE)} xfailed" in done.stdout


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
