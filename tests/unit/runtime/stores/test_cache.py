"""The kernel cache: hits, misses that say why, damage, folders that cannot be written, one-file export."""
from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import warnings
from pathlib import Path

import pytest

from tilefuse.base.errors import UserError
from tilefuse.runtime.stores import cache as cache_module
from tilefuse.runtime.stores.cache import CacheEntry, CacheWarning, KernelCache, default_folder, write_whole
from tilefuse.runtime.stores.cache_file import export_cache, import_cache
from tilefuse.runtime.stores.cache_key import CacheKey

KEY = CacheKey("softmax", "line one\nline two\n", (("target", "cuda"), ("arch", "sm_90a"), ("compiler", "nvrtc"), ("version", "13.0")))
ENTRY = CacheEntry(b"machine code", "softmax", "Used 14 registers", 0.25)


def test_entry_comes_back_in_another_process(tmp_path: Path) -> None:
    """A second cache object on the same folder (another process has one) finds all fields again."""
    KernelCache(tmp_path).put(KEY, ENTRY)
    assert KernelCache(tmp_path).get(KEY) == ENTRY
    assert KernelCache(tmp_path).get(dataclasses.replace(KEY, source="other")) is None


def test_label_is_not_part_of_the_key() -> None:
    assert dataclasses.replace(KEY, label="other").digest == KEY.digest


def test_equal_payloads_are_kept_once(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    cache.put(KEY, ENTRY)
    cache.put(dataclasses.replace(KEY, source="other"), ENTRY)
    assert len(list((tmp_path / "payloads").iterdir())) == 1 and len(cache.entries()) == 2


@pytest.mark.parametrize("part", ["entries", "payloads"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_damaged_file_is_a_miss_with_a_warning(tmp_path: Path, part: str, damage: str) -> None:
    """Whichever file of an entry is damaged: a warning, a miss, and the next put repairs it."""
    KernelCache(tmp_path).put(KEY, ENTRY)
    path = next(p for p in (tmp_path / part).rglob("*") if p.is_file())
    data = path.read_bytes()
    path.write_bytes({"truncated": data[: len(data) // 2], "flipped": b"#" + data[1:], "empty": b""}[damage])
    cache = KernelCache(tmp_path)
    with pytest.warns(CacheWarning, match="damaged"):
        assert cache.get(KEY) is None
    cache.put(KEY, ENTRY)
    assert KernelCache(tmp_path).get(KEY) == ENTRY


def test_lost_payload_is_a_miss(tmp_path: Path) -> None:
    KernelCache(tmp_path).put(KEY, ENTRY)
    next((tmp_path / "payloads").iterdir()).unlink()
    with pytest.warns(CacheWarning, match="missing"):
        assert KernelCache(tmp_path).get(KEY) is None


def test_record_of_a_strange_shape_is_a_miss(tmp_path: Path) -> None:
    """Valid JSON that is no entry: also a miss, whatever its type."""
    cache = KernelCache(tmp_path)
    path = tmp_path / "entries" / KEY.digest[:2] / f"{KEY.digest}.json"
    for text in ("[]", "3", '{"payload": "../../etc/passwd"}', '{"payload": 3}'):
        write_whole(path, text.encode())
        with pytest.warns(CacheWarning):
            assert cache.get(KEY) is None
    assert cache.entries() == []


def test_unwritable_folder_warns_once_and_memory_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file stands where the folder should be (permissions do not stop root): one warning, and the process still has its kernels."""
    monkeypatch.setattr(cache_module, "_warned", set())
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    with pytest.warns(CacheWarning, match="TILEFUSE_CACHE_DIR"):
        cache = KernelCache(blocked)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KernelCache(blocked)
    cache.put(KEY, ENTRY)
    assert cache.get(KEY) == ENTRY
    with cache.locked([KEY]):
        pass
    assert blocked.read_text() == "a file"


def test_folder_that_vanishes_costs_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_warned", set())
    cache = KernelCache(tmp_path / "c")

    def refuse(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module, "write_whole", refuse)
    with pytest.warns(CacheWarning, match="No space left"):
        cache.put(KEY, ENTRY)
    assert cache.get(KEY) == ENTRY


def test_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt comes between writing aside and renaming: neither the file nor the part remains."""
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "entry", b"data")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("change", "said"), [
    ({"fields": (("target", "cuda"), ("arch", "sm_80"), ("compiler", "nvrtc"), ("version", "13.0"))},
     "differs in arch: there 'sm_90a', here 'sm_80'"),
    ({"fields": (("target", "cuda"), ("arch", "sm_90a"), ("compiler", "nvrtc"), ("version", "13.1"))}, "differs in version"),
    ({"source": "line one\nline 2\n"}, "differs in source, line 2: there 'line two', here 'line 2'"),
    ({"source": "line one\nline two\nline three\n"}, "length: there 2 lines, here 3"),
    ({"fields": (("target", "cuda"), ("arch", "sm_90a"), ("compiler", "nvrtc"))}, "has a field version"),
])
def test_miss_names_the_first_differing_field(tmp_path: Path, change: dict[str, object], said: str) -> None:
    cache = KernelCache(tmp_path)
    cache.put(KEY, ENTRY)
    cache.put(CacheKey("far", "nothing alike", (("target", "host"),)), ENTRY)
    assert said in cache.why(dataclasses.replace(KEY, **change))  # type: ignore[arg-type]


def test_why_without_a_nearest_entry(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    assert "empty" in cache.why(KEY)
    cache.put(KEY, ENTRY)
    assert "in the cache" in cache.why(KEY)
    assert "off" in KernelCache(None).why(KEY)


def test_export_and_import_in_one_file(tmp_path: Path) -> None:
    """A kernel compiled on one machine is a hit on another; importing twice adds nothing."""
    there, here = KernelCache(tmp_path / "there"), KernelCache(tmp_path / "here")
    there.put(KEY, ENTRY)
    there.put(dataclasses.replace(KEY, source="other"), ENTRY)
    assert export_cache(there, tmp_path / "kernels.tfcache") == 2
    assert import_cache(here, tmp_path / "kernels.tfcache") == 2
    assert import_cache(here, tmp_path / "kernels.tfcache") == 0
    assert here.get(KEY) == ENTRY


def test_a_bit_that_is_wrong_in_the_file_is_no_crash(tmp_path: Path) -> None:
    """Any one bit: the file is refused, or what it hits is skipped with a warning, or nothing was hit."""
    there = KernelCache(tmp_path / "there")
    there.put(KEY, ENTRY)
    export_cache(there, tmp_path / "good")
    data = (tmp_path / "good").read_bytes()
    for place in range(0, len(data), 7):
        bad = bytearray(data)
        bad[place] ^= 1 << place % 8
        (tmp_path / "bad").write_bytes(bad)
        here = KernelCache(tmp_path / str(place))
        with contextlib.suppress(UserError), warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)
            import_cache(here, tmp_path / "bad")
        assert here.get(KEY) in (None, ENTRY)


def test_import_of_what_is_no_cache_file(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "c")
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(UserError, match="no file"):
        import_cache(cache, tmp_path / "absent")
    with pytest.raises(UserError, match="not a readable"):
        import_cache(cache, tmp_path / "text")
    with pytest.raises(UserError, match="off"):
        export_cache(KernelCache(None), tmp_path / "x")
    with pytest.raises(UserError, match="cannot write"):
        export_cache(cache, tmp_path / "text" / "below-a-file")


def test_clear_and_size(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    cache.put(KEY, ENTRY)
    assert cache.size_bytes() > len(ENTRY.payload)
    (tmp_path / "entries" / ".part-left").write_bytes(b"of a process that was killed while it wrote")
    assert cache.clear() == 1 and cache.size_bytes() == 0 and cache.get(KEY) is None


def test_files_may_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    """A temporary file's own mode is the writer's alone: a shared cache would be closed to everyone else."""
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "entry", b"data")
    finally:
        os.umask(before)
    assert (tmp_path / "entry").stat().st_mode & 0o777 == 0o640


def test_default_folder_follows_the_environment() -> None:
    assert default_folder({"TILEFUSE_CACHE": "0", "TILEFUSE_CACHE_DIR": "/x"}) is None
    assert default_folder({"TILEFUSE_CACHE_DIR": "/x"}) == Path("/x")
    assert default_folder({"XDG_CACHE_HOME": "/y"}) == Path("/y/tilefuse")
    assert default_folder({}) == Path.home() / ".cache" / "tilefuse"


def test_records_keep_the_key_fields(tmp_path: Path) -> None:
    KernelCache(tmp_path).put(KEY, ENTRY)
    record = json.loads(next((tmp_path / "entries").rglob("*.json")).read_text())
    assert record["fields"] == dict(KEY.fields) and record["source"] == KEY.source
