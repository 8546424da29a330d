"""Stores the source of a kernel that a compiler refused, so that an error can name it."""
from __future__ import annotations

import hashlib
import re
from pathlib import Path

from tilefuse.runtime.stores.cache import default_folder, write_whole
from tilefuse.runtime.stores.private_folder import private_folder, user_temporary_folder

FAILED = "failed"
# Sources kept; the oldest go. Units: files.
MAX_FILES = 200


def keep_failed_source(name: str, suffix: str, source: str, log: str) -> Path:
    """Writes source and log to a private folder of the user's cache (of the temporary folder where that is off); returns the source's path.

    The name depends only on the text: a repeated failure writes the same two files again.
    """
    short = hashlib.sha256(source.encode()).hexdigest()[:10]
    stem = f"{re.sub(r'[^0-9A-Za-z_.-]', '_', name)[:80]}-{short}"
    try:
        folder = _folder()
        path = folder / f"{stem}{suffix}"
        write_whole(path, source.encode())
        write_whole(folder / f"{stem}.log", log.encode())
        _remove_oldest(folder)
    except OSError:
        # Another user's folder, or a full disk: the error still carries the log.
        return Path(f"{name}{suffix} (source not kept)")
    return path


def _folder() -> Path:
    cache = default_folder()
    if cache is not None:
        try:
            cache.mkdir(parents=True, exist_ok=True)
            return private_folder(cache / FAILED)
        except OSError:
            pass  # a cache that cannot be written
    return private_folder(user_temporary_folder() / FAILED)


def _remove_oldest(folder: Path) -> None:
    paths = [p for p in folder.iterdir() if not p.name.startswith(".")]
    if len(paths) > MAX_FILES:
        for path in sorted(paths, key=lambda p: p.stat().st_mtime)[:len(paths) - MAX_FILES]:
            path.unlink(missing_ok=True)
