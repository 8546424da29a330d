"""Judgements on disk: whole or not at all, shared, bounded, and never in the way."""
from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tilefuse.runtime.stores import judgement_store
from tilefuse.runtime.stores.cache import CacheWarning, KernelCache
from tilefuse.runtime.stores.cache_file import export_cache, import_cache
from tilefuse.runtime.stores.judgement_store import JudgementStore


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.bin"))


def kept(folder: Path | None, **texts: str) -> JudgementStore:
    """A store to which the texts were added and saved."""
    store = JudgementStore(folder, "family")
    for digest, text in texts.items():
        store.put(digest, text)
    store.save()
    return store


def test_what_is_saved_is_found_by_another(tmp_path: Path) -> None:
    kept(tmp_path, a="1", b='["x y", {"z": 2}]')
    again = JudgementStore(tmp_path, "family")
    assert (again.get("a"), again.get("b"), again.get("c")) == ("1", '["x y", {"z": 2}]', None)
    assert JudgementStore(tmp_path, "another family").get("a") is None


def test_nothing_new_writes_nothing(tmp_path: Path) -> None:
    kept(tmp_path, a="1")
    kept(tmp_path)
    assert len(files(tmp_path)) == 1


def test_what_another_process_adds_is_found_on_refresh(tmp_path: Path) -> None:
    store = JudgementStore(tmp_path, "family")
    assert store.get("a") is None
    kept(tmp_path, a="1")
    store.refresh()
    assert store.get("a") == "1"


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"tilefuse judgements 1 00\nabc"])
def test_a_damaged_file_is_skipped_and_removed(tmp_path: Path, damage: bytes) -> None:
    kept(tmp_path, a="1")
    kept(tmp_path, b="2")
    files(tmp_path)[0].write_bytes(damage)
    with pytest.warns(CacheWarning, match="damaged judgements"):
        store = JudgementStore(tmp_path, "family")
        found = [store.get("a"), store.get("b")]
    assert sorted(str(x) for x in found) in (["1", "None"], ["2", "None"])
    assert len(files(tmp_path)) == 1


def test_a_file_that_was_cut_off_is_damaged(tmp_path: Path) -> None:
    kept(tmp_path, a="1" * 1000)
    path = files(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.warns(CacheWarning, match="checksum"):
        assert JudgementStore(tmp_path, "family").get("a") is None


def test_without_a_folder_judgements_stay_in_memory() -> None:
    assert kept(None, a="1").get("a") == "1"


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    """A file stands where the folder should be: even root cannot write there."""
    (tmp_path / "judgements").write_text("")
    assert kept(tmp_path, a="1").get("a") == "1"


def test_many_files_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judgement_store, "MAX_FILES", 4)
    for n in range(4):
        kept(tmp_path, **{f"d{n}": str(n)})
    assert len(files(tmp_path)) == 4
    store = JudgementStore(tmp_path, "family")
    assert store.get("d0") == "0"
    store.put("d4", "4")
    store.save()
    assert len(files(tmp_path)) == 1
    again = JudgementStore(tmp_path, "family")
    assert [again.get(f"d{n}") for n in range(5)] == ["0", "1", "2", "3", "4"]


def test_the_oldest_go_when_all_are_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path, a=os.urandom(400).hex())
    old = files(tmp_path)[0]
    os.utime(old, (1, 1))
    monkeypatch.setattr(judgement_store, "MAX_BYTES", 900)
    kept(tmp_path, b=os.urandom(400).hex())
    assert len(files(tmp_path)) == 1 and files(tmp_path) != [old]


def test_entries_in_memory_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judgement_store, "MAX_ENTRIES", 10)
    store = kept(tmp_path, **{f"d{n}": str(n) for n in range(20)})
    assert [n for n in range(20) if store.get(f"d{n}") is not None] == list(range(15, 20))


def test_threads_may_add_at_once(tmp_path: Path) -> None:
    store = JudgementStore(tmp_path, "family")

    def add(first: int) -> None:
        for n in range(first, first + 50):
            store.put(f"d{n}", str(n))
            store.save()

    workers = [threading.Thread(target=add, args=(50 * k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    again = JudgementStore(tmp_path, "family")
    assert all(again.get(f"d{n}") == str(n) for n in range(200))


def test_clearing_the_cache_clears_judgements(tmp_path: Path) -> None:
    kept(tmp_path, a="1")
    cache = KernelCache(tmp_path)
    assert cache.size_bytes() > 0
    cache.clear()
    assert files(tmp_path) == []


def test_an_exported_cache_carries_them(tmp_path: Path) -> None:
    kept(tmp_path / "here", a="1")
    export_cache(KernelCache(tmp_path / "here"), tmp_path / "file.zip")
    import_cache(KernelCache(tmp_path / "there"), tmp_path / "file.zip")
    assert JudgementStore(tmp_path / "there", "family").get("a") == "1"
