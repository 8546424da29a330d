"""Measured times on disk: one line per kernel, one file per device, shared by processes and complete after a crash.

    <cache>/measured/<device>.jsonl      {"key": ..., "label": ..., "predicted_us": ..., "us": ..., "spread_us": ..., "repeats": ...}

Lines are only appended; the last one of a key counts. Each has a checksum: a truncated or damaged line is skipped.
"""
from __future__ import annotations

import json
import os
import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilefuse.base.errors import UserError
from tilefuse.runtime.stores.cache import CacheWarning

FOLDER = "measured"
CHECKSUM = "crc"


class Journal:
    """Records of one kind on one device: plain mappings by key, in memory and, with a path, on disk."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._rows: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            try:
                self._rows = read_rows(path)
            except UserError as error:
                warnings.warn(f"{error.message}; what was measured before is not used", CacheWarning, stacklevel=2)

    def find(self, key: str) -> Mapping[str, Any] | None:
        """The row of a key."""
        return self._rows.get(key)

    def rows(self) -> tuple[Mapping[str, Any], ...]:
        """All rows, in the order in which their keys first came."""
        return tuple(self._rows.values())

    def keep(self, key: str, row: Mapping[str, Any]) -> None:
        """Adds or replaces the row of a key. A file that cannot be written costs a warning; the row stays in memory."""
        full = {"key": key, **row}
        self._rows[key] = full
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # One write of one line to a file opened for appending, so that lines of several processes do not mix.
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                # A truncated line must not absorb this one.
                line = json.dumps({**full, CHECKSUM: _checksum(full)})
                os.write(handle, (b"" if _ends_whole(self.path) else b"\n") + f"{line}\n".encode())
            finally:
                os.close(handle)
        except OSError as error:
            warnings.warn(f"{self.path} cannot be written ({error.strerror or error}); measured times are kept for this process only",
                          CacheWarning, stacklevel=2)

    def clear(self) -> int:
        """Forgets all rows; the number forgotten."""
        count = len(self._rows)
        self._rows.clear()
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        return count


def _checksum(row: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(row).encode())


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of a journal by key; lines that are no rows are skipped. Raises: UserError when the file cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    rows: dict[str, dict[str, Any]] = {}
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if not isinstance(row, dict) or not isinstance(row.get("key"), str):
            continue
        checksum = row.pop(CHECKSUM, None)
        if checksum is None or checksum == _checksum(row):  # a file written by hand has none
            rows[row["key"]] = row
    return rows


def journal_path(folder: Path | None, kind: str, device: str) -> Path | None:
    """The path of a device's journal of a kind ("measured", "tuned"); None without a cache folder."""
    return None if folder is None else folder / kind / f"{device}.jsonl"
