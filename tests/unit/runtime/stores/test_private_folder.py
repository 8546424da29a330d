"""Folders of one user: links and strangers' folders are not followed, and a killed process leaves nothing for long."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from tilefuse.runtime.compilers import failed_source
from tilefuse.runtime.compilers.failed_source import keep_failed_source
from tilefuse.runtime.stores import cache, private_folder
from tilefuse.runtime.stores.cache import PART, write_whole
from tilefuse.runtime.stores.private_folder import remove_abandoned_work, user_temporary_folder, work_folder

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder of this test."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TILEFUSE_CACHE", "0")
    return folder


def test_a_refused_source_is_private(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the user's cache, or where that is off in a folder of the user; a name with a path in it stays in the folder."""
    kept = keep_failed_source("../../k", ".cu", "source", "log")
    assert kept.read_text() == "source" and kept.with_suffix(".log").read_text() == "log"
    assert kept.parent == temporary / f"tilefuse-{os.geteuid()}" / "failed" and kept.parent.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("TILEFUSE_CACHE", "1")
    monkeypatch.setenv("TILEFUSE_CACHE_DIR", str(tmp_path / "cache"))
    assert keep_failed_source("k", ".cu", "source", "log").parent == tmp_path / "cache" / "failed"


@pytest.mark.parametrize("planted", ["link", "file"])
def test_a_planted_link_is_not_followed(temporary: Path, tmp_path: Path, planted: str) -> None:
    """Somebody else made the name first: the source is not written through it, and compiling still has a folder."""
    victim = tmp_path / "victim"
    victim.mkdir()
    place = temporary / f"tilefuse-{os.geteuid()}"
    if planted == "link":
        place.symlink_to(victim)
    else:
        place.write_text("")
    assert "not kept" in str(keep_failed_source("k", ".cu", "source", "log"))
    with work_folder() as folder:
        (folder / "unit.cpp").write_text("")
        assert folder.parent == temporary and folder.stat().st_mode & 0o777 == 0o700
    assert not list(victim.iterdir()) and not folder.exists()


def test_a_planted_link_for_the_source_itself_is_replaced(temporary: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = keep_failed_source("k", ".cu", "source", "log")
    path.unlink()
    path.symlink_to(victim)
    assert keep_failed_source("k", ".cu", "source", "log").read_text() == "source"
    assert victim.read_text() == "precious"


def test_old_sources_go(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_source, "MAX_FILES", 4)
    for n in range(6):
        kept = keep_failed_source("k", ".cu", f"source {n}", "log")
    assert len(list(kept.parent.iterdir())) == 4 and kept.exists()


HOLDING = """
import sys, time
from tilefuse.runtime.stores.private_folder import work_folder
with work_folder() as folder:
    (folder / "unit.cpp").write_text("half")
    print(folder, flush=True)
    time.sleep(60)
"""


def _holder() -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", HOLDING], stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_process_left_is_removed_and_nothing_else(temporary: Path) -> None:
    """Two processes hold a folder, one is killed: the next start removes that one's, and leaves the other's alone."""
    (killed, gone), (alive, kept) = _holder(), _holder()
    try:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        assert (gone / "unit.cpp").exists()
        with work_folder():
            assert not gone.exists() and not gone.with_name(f"{gone.name}.lock").exists()
            assert (kept / "unit.cpp").read_text() == "half"
    finally:
        alive.kill()
        alive.wait()
    assert remove_abandoned_work(user_temporary_folder()) == 1 and list(user_temporary_folder().iterdir()) == []


def test_folders_taken_and_left_at_the_same_time(temporary: Path) -> None:
    """Every thread removes abandoned folders while the others work: none loses its own."""
    wrong: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(40):
                with work_folder() as folder:
                    (folder / "a").write_text("a")
                    remove_abandoned_work(folder.parent)
                    assert (folder / "a").read_text() == "a"
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and list(user_temporary_folder().iterdir()) == []


def test_parts_of_killed_writers_go_with_the_next_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that no process holds goes; one that is being written stays. A folder of many files is not looked through at each write."""
    (tmp_path / f"{PART}abandoned").write_bytes(b"half")
    handle, held = private_folder.new_locked_file(tmp_path, PART)
    write_whole(tmp_path / "entry", b"data")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([held.name, "entry"])
    os.close(handle)
    write_whole(tmp_path / "entry", b"data")
    assert len(list(tmp_path.iterdir())) == 2, "looked through a moment ago"
    monkeypatch.setattr(cache, "SWEEP_S", 0.0)
    write_whole(tmp_path / "entry", b"data")
    assert [p.name for p in tmp_path.iterdir()] == ["entry"]


def test_a_file_system_without_locks_is_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(private_folder.fcntl, "flock", refuse)
    (tmp_path / f"{PART}other").write_bytes(b"half")
    write_whole(tmp_path / "entry", b"data")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([f"{PART}other", "entry"])
