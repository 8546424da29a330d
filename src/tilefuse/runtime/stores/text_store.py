"""Texts on disk under digests, shared by processes: results of a compile, looked up by its inputs.

    <cache>/<kind>/ab/abcd....bin     checksum line, then the compressed text

A file appears whole or not at all; a damaged one is a miss. This file does not know what a digest covers.
"""
from __future__ import annotations

import contextlib
import hashlib
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tilefuse.base.errors import UserError
from tilefuse.runtime.stores.cache import CacheWarning, write_whole

Read = TypeVar("Read")

# Maximum entries of a folder; above it the oldest tenth is removed. Units: files.
MAX_ENTRIES = 4000


class TextStore:
    """The texts of one kind in one cache folder; without a folder nothing is stored."""

    def __init__(self, folder: Path | None, kind: str, form: str) -> None:
        """kind: the folder's name below the cache's. form: name and version of the texts' format; texts of another format are misses."""
        self.folder = None if folder is None else folder / kind
        self._form = f"tilefuse {form} ".encode()
        self._called = form.rsplit(" ", 1)[0]

    def get(self, digest: str, read: Callable[[str], Read]) -> Read | None:
        """Result of `read` for the text of a digest, or None. A file that is damaged or cannot be read in this form is removed, with a
        warning."""
        if self.folder is None:
            return None
        path = self._path(digest)
        try:
            head, _, body = path.read_bytes().partition(b"\n")
            if head != self._form + hashlib.sha256(body).hexdigest().encode():
                raise ValueError("checksum differs")
            return read(zlib.decompress(body).decode())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, zlib.error, UserError) as error:
            warnings.warn(f"damaged {self._called} {path} in the cache ({error}); it is removed and made again", CacheWarning, stacklevel=3)
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return None

    def put(self, digest: str, text: str) -> None:
        """Stores a text. In a folder that cannot be written nothing is stored: the kernel cache has already warned."""
        if self.folder is None:
            return
        body = zlib.compress(text.encode(), 1)
        with contextlib.suppress(OSError):
            write_whole(self._path(digest), self._form + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            self._prune(self._path(digest).parent)

    def paths(self) -> list[Path]:
        """The files of all texts, sorted by name."""
        return [] if self.folder is None else sorted(self.folder.rglob("*.bin"))

    def clear(self) -> int:
        """Removes all texts; the number removed."""
        paths = self.paths()
        for path in paths:
            path.unlink(missing_ok=True)
        return len(paths)

    def _prune(self, grown: Path) -> None:
        # Estimated from the folder that grew, one of 256: listing all of them would cost more than the entry.
        paths = self.paths() if len(list(grown.iterdir())) * 256 > MAX_ENTRIES else []
        if len(paths) > MAX_ENTRIES:
            for path in sorted(paths, key=lambda p: p.stat().st_mtime)[:MAX_ENTRIES // 10]:
                path.unlink(missing_ok=True)

    def _path(self, digest: str) -> Path:
        assert self.folder is not None
        return self.folder / digest[:2] / f"{digest}.bin"
