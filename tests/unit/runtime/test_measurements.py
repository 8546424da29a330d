"""Journals: rows survive the process, a cut-off line is skipped, the last row of a key counts."""
from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from tilefuse.runtime.cache import CacheWarning
from tilefuse.runtime.measurements import Journal, journal_path, read_rows


def test_rows_come_back_and_the_last_one_counts(tmp_path: Path) -> None:
    path = journal_path(tmp_path, "measured", "host-2")
    assert path is not None
    first = Journal(path)
    first.keep("a", {"us": 1.0})
    first.keep("b", {"us": 2.0})
    first.keep("a", {"us": 3.0})
    again = Journal(path)
    assert [(r["key"], r["us"]) for r in again.rows()] == [("a", 3.0), ("b", 2.0)]
    assert again.find("c") is None
    assert again.clear() == 2 and not path.exists() and Journal(path).rows() == ()


def test_a_line_that_a_crash_cut_off_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path).keep("a", {"us": 1.0})
    with path.open("a") as file:
        file.write('{"key": "b", "us"')
    Journal(path).keep("c", {"us": 2.0})
    path.write_text(path.read_text() + "7\n[]\n{}\n")
    assert set(read_rows(path)) == {"a", "c"}


def test_without_a_folder_rows_stay_in_memory_and_an_unwritable_one_warns(tmp_path: Path) -> None:
    assert journal_path(None, "measured", "x") is None
    memory = Journal(None)
    memory.keep("a", {"us": 1.0})
    assert memory.find("a") == {"key": "a", "us": 1.0} and memory.clear() == 1
    (tmp_path / "file").write_text("")
    blocked = Journal(tmp_path / "file" / "j.jsonl")
    with pytest.warns(CacheWarning, match="for this process only"):
        blocked.keep("a", {"us": 1.0})
    assert blocked.find("a") is not None


def _write(path: str, start: int) -> None:
    journal = Journal(Path(path))
    for n in range(start, start + 50):
        journal.keep(f"k{n}", {"us": float(n), "text": "x" * 200})


def test_processes_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = str(tmp_path / "j.jsonl")
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(path, start)) for start in (0, 50)]
    for w in writers:
        w.start()
    for w in writers:
        w.join(60)
    assert len(read_rows(Path(path))) == 100
