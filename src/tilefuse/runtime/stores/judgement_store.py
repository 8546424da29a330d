"""Judgements of planning on disk: texts by digest, of one family (a device, its options, a compiler) a folder, shared by processes.

    <cache>/judgements/<family>/<content>.bin     checksum line, then compressed lines: digest, space, text

A process adds one file per compile, which appears whole or not at all; files never change, so processes need no locks. A damaged file is
skipped and removed. Many files of a family are merged into one, and the oldest are removed when all together are too large.
"""
from __future__ import annotations

import contextlib
import hashlib
import threading
import warnings
import zlib
from pathlib import Path

from tilefuse.base.bounded import Bounded
from tilefuse.runtime.stores.cache import JUDGEMENTS, CacheWarning, write_whole

FORMAT = b"tilefuse judgements 1 "
# Files of one family that are read one by one; above this number they are merged into one.
MAX_FILES = 32
# Maximum bytes of all families together on disk, and entries of one family in memory and in its files. One entry takes 80 bytes on disk; a
# training graph of a thousand nodes has about a thousand. Units: bytes, entries.
MAX_BYTES = 32 << 20
MAX_ENTRIES = 100_000


class JudgementStore:
    """The texts of one family: in memory, and in a folder of the cache where there is one. Use by several threads is safe."""

    def __init__(self, folder: Path | None, family: str) -> None:
        """folder: the cache's. Reading starts with the first request."""
        self._all = None if folder is None else folder / JUDGEMENTS
        self._folder = None if self._all is None else self._all / family
        self._texts: dict[str, str] = {}
        self._new: dict[str, str] = {}
        self._read: set[str] = set()
        self._guard = threading.Lock()
        self._is_read = False

    def get(self, digest: str) -> str | None:
        """The text of a digest, or None."""
        if not self._is_read:
            self.refresh()
        return self._texts.get(digest)

    def put(self, digest: str, text: str) -> None:
        """Stores a text, on disk from the next `save` on. Requires: no line break in it."""
        with self._guard:
            self._texts[digest] = self._new[digest] = text

    def refresh(self) -> None:
        """Reads the entries that other processes have added since."""
        with self._guard:
            self._is_read = True
            added: dict[str, str] = {}
            for path in self._paths():
                if path.name not in self._read:
                    self._read.add(path.name)
                    added = _read(path) | added
            if added:
                self._texts = added | self._texts

    def save(self) -> None:
        """Writes the new texts. In a folder that cannot be written nothing is stored: the kernel cache has already warned."""
        with self._guard:
            if not self._new or self._folder is None:
                self._new.clear()
                return
            if len(self._texts) > MAX_ENTRIES:
                # The newest are at the end.
                self._texts = dict(list(self._texts.items())[-MAX_ENTRIES // 2:])
            with contextlib.suppress(OSError):
                old = self._paths()
                if len(old) >= MAX_FILES:
                    self._write(self._texts)
                    for path in old:
                        if path.name in self._read:
                            path.unlink(missing_ok=True)
                else:
                    self._write(self._new)
                self._prune()
            self._new.clear()

    def _write(self, texts: dict[str, str]) -> None:
        assert self._folder is not None
        body = zlib.compress("\n".join(f"{digest} {text}" for digest, text in texts.items()).encode(), 1)
        checksum = hashlib.sha256(body).hexdigest()
        write_whole(self._folder / f"{checksum[:32]}.bin", FORMAT + checksum.encode() + b"\n" + body)
        self._read.add(f"{checksum[:32]}.bin")

    def _paths(self) -> list[Path]:
        try:
            return [] if self._folder is None else sorted(self._folder.glob("*.bin"))
        except OSError:
            return []

    def _prune(self) -> None:
        assert self._all is not None
        files = [(path.stat().st_mtime, path.stat().st_size, path) for path in sorted(self._all.rglob("*.bin"))]
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files, key=lambda row: row[0]):
            if total <= MAX_BYTES:
                return
            path.unlink(missing_ok=True)
            total -= size


def _read(path: Path) -> dict[str, str]:
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        if head != FORMAT + hashlib.sha256(body).hexdigest().encode():
            raise ValueError("checksum differs")
        lines = zlib.decompress(body).decode().split("\n")
        return {digest: text for digest, _, text in (line.partition(" ") for line in lines)}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, zlib.error) as error:
        warnings.warn(f"damaged judgements {path} in the cache ({error}); the file is removed and its patterns are judged again",
                      CacheWarning, stacklevel=4)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return {}


# Families kept in memory: a process compiles for few devices with few choices of options.
MAX_FAMILIES = 16
_stores: Bounded[tuple[str, str], JudgementStore] = Bounded(MAX_FAMILIES)


def store_of(folder: Path | None, family: str) -> JudgementStore:
    """The store of a family; one object a folder and process."""
    key = (str(folder or ""), family)
    store = _stores.get(key)
    if store is None:
        return _stores.put(key, JudgementStore(folder, family))
    store.refresh()
    return store
