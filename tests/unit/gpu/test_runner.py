"""The runner of the GPU tests: processes share one list, every test runs once, the summary says what happened."""
from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.__main__ import main
from tests.gpu.claims import claimed, is_claimed

TESTS = """
import pytest

@pytest.mark.parametrize("n", range(5))
def test_passes(n):
    pass

def test_fails():
    assert 1 == 2, "one is not two"

@pytest.mark.skip(reason="not here")
def test_skipped():
    pass

@pytest.mark.alone
def test_alone(capsys):
    with capsys.disabled():
        pass
    print("a figure")
"""


def test_a_test_is_claimed_once(tmp_path: Path) -> None:
    """Whoever comes second gets the next one."""
    assert [is_claimed(tmp_path, n) for n in (0, 0, 1)] == [True, False, True]
    assert list(claimed(["a", "b", "c"], tmp_path, 0.0)) == ["c"]  # type: ignore[list-item]
    assert list(claimed(["a", "b", "c", "d"], tmp_path, 1.0)) == []  # type: ignore[list-item]


@pytest.mark.slow
def test_processes_share_the_tests_and_the_summary_counts_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counts, reasons, and what tests that run alone print; a failure is the exit status."""
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    assert main(["--workers", "2", "--summary", str(tmp_path / "summary.txt"), str(tmp_path / "test_some.py")]) == 1
    text = (tmp_path / "summary.txt").read_text(encoding="utf-8")
    assert text == capsys.readouterr().out
    assert "\n6 passed, 1 failed, 1 skipped\n" in text and "2 processes" in text
    assert "test_fails: AssertionError: one is not two" in text and "SKIPPED [1]" in text and "\na figure\n" in text


@pytest.mark.slow
def test_tests_that_did_not_run_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No time is left: nothing failed, and still the status says that something is missing."""
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    assert main(["--workers", "1", "--seconds", "0.001", str(tmp_path / "test_some.py")]) == 1
    assert "7 of 7 tests that run together did not run" in capsys.readouterr().out
