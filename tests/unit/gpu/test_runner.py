"""The runner of the GPU tests: processes share one list, every test runs once, the summary says what happened."""
from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.__main__ import main as all_tests
from tests.claims import claimed, is_claimed, together
from tests.gpu.__main__ import main
from tests.processes import ROOT, run

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
    tests = [named(name) for name in "abcd"]
    assert list(claimed(tests[:3], tmp_path, 0.0)) == tests[2:3]
    assert list(claimed(tests, tmp_path, 1.0)) == []


def named(name: str, scope: str = "function") -> pytest.Item:
    """A test as pytest collects it, with a fixture of this scope."""
    fixtures = SimpleNamespace(name2fixturedefs={"made": (SimpleNamespace(scope=scope),)})
    return SimpleNamespace(nodeid=name, _fixtureinfo=fixtures)  # type: ignore[return-value]


def test_tests_that_share_what_their_module_makes_are_claimed_together(tmp_path: Path) -> None:
    """Another process would make it again."""
    tests = [named("a::1"), named("b::1", "module"), named("b::2", "module"), named("b::3"), named("c::1", "module")]
    assert [[t.nodeid for t in found] for found in together(tests)] == [["a::1"], ["b::1", "b::2"], ["b::3"], ["c::1"]]


@pytest.mark.slow
def test_all_tests_by_two_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The closing line counts every test; a failure is shown whole, a skip with its reason."""
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    assert all_tests(["--workers", "2", str(tmp_path / "test_some.py")]) == 1
    text = capsys.readouterr().out
    assert re.fullmatch(r"=+ 1 failed, 6 passed, 1 skipped in [\d.]+s \(0:\d\d:\d\d\) =+", text.splitlines()[-1]) and "2 processes" in text
    assert 'assert 1 == 2, "one is not two"' in text and "FAILED" in text and "SKIPPED [1]" in text and "not here" in text


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


@pytest.mark.slow
def test_a_run_that_is_ended_leaves_its_summary(tmp_path: Path) -> None:
    """A machine may end a run that takes too long; the tests that had finished by then were lost."""
    begun = tmp_path / "begun"
    (tmp_path / "test_some.py").write_text(
        f"import time\nfrom pathlib import Path\n\ndef test_first():\n    pass\n\ndef test_second():\n    Path({str(begun)!r}).touch()\n"
        "    time.sleep(600)\n", encoding="utf-8")
    summary = ("--summary", str(tmp_path / "summary.txt"))
    command = [sys.executable, "-m", "tests.gpu", "--workers", "1", *summary, str(tmp_path / "test_some.py")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    while not begun.exists() and time.monotonic() < until and process.poll() is None:
        time.sleep(0.1)
    process.terminate()
    process.communicate(timeout=60)
    text = (tmp_path / "summary.txt").read_text(encoding="utf-8")
    assert process.returncode == 1 and "\n1 passed, 0 failed, 0 skipped\n" in text
    assert "stopped while the tests that run together ran\n1 of 2 tests that run together did not run\n" in text


def test_the_phase_of_tests_that_run_alone_reads_only_their_files(tmp_path: Path) -> None:
    """Reading all test files takes half a minute; each read file writes its name here."""
    said = "from pathlib import Path\nwith Path(__file__).with_suffix('.read').open('a') as file:\n    file.write('read ')\n"
    (tmp_path / "test_some.py").write_text(said + TESTS, encoding="utf-8")
    (tmp_path / "test_others.py").write_text(said + "def test_one():\n    pass\n", encoding="utf-8")
    ended = run([("together", "not alone", 1), ("alone", "alone", 1)], (), 0.0, (), [str(tmp_path)])
    assert len(ended.reports) == 9 and not ended.missing
    assert {r.test.partition("::")[2] for r in ended.reports if r.printed} == {"test_alone"}
    assert [(tmp_path / f"test_{name}.read").read_text().split() for name in ("some", "others")] == [["read"] * 2, ["read"]]
