"""Journals: rows survive the process, a cut-off line is skipped, the last row of a key counts."""
from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from tilefuse.runtime.stores.cache import CacheWarning
from tilefuse.runtime.stores.measurements import Journal, journal_path, read_rows


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


def test_no_damage_of_a_line_gives_a_row_that_was_not_written(tmp_path: Path) -> None:
    """A bit, wherever it is, costs its line: what reads a row need not doubt it."""
    path = tmp_path / "j.jsonl"
    written = {"a": {"key": "a", "label": "sum", "us": 1.25, "done": True}, "b": {"key": "b", "us": 2.0}}
    for key, row in written.items():
        Journal(path).keep(key, row)
    whole = path.read_bytes()
    for place in range(whole.index(b', "crc"')):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1:])
        assert Journal(path).rows() == (written["b"],), place


def test_what_cannot_be_read_warns_and_counts_as_nothing(tmp_path: Path) -> None:
    (tmp_path / "j.jsonl").mkdir()
    with pytest.warns(CacheWarning, match="cannot read"):
        journal = Journal(tmp_path / "j.jsonl")
    assert journal.rows() == ()
    with pytest.warns(CacheWarning, match="for this process only"):
        journal.keep("a", {"us": 1.0})
    assert journal.find("a") is not None


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
