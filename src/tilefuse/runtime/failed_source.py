"""Keeps the source of a kernel that a compiler refused, so that an error can name it."""
from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path


def keep_failed_source(name: str, suffix: str, source: str, log: str) -> Path:
    """Writes source and log to the system's temporary folder; the path of the source.

    The name depends on the text alone: failing again writes the same two files again.
    """
    folder = Path(tempfile.gettempdir()) / "tilefuse-failed"
    short = hashlib.sha256(source.encode()).hexdigest()[:10]
    path = folder / f"{name[:80]}-{short}{suffix}"
    try:
        folder.mkdir(exist_ok=True)
        path.write_text(source, encoding="utf-8")
        path.with_suffix(".log").write_text(log, encoding="utf-8")
    except OSError:
        # Another user's folder, or a full disk: the log still travels in the error itself.
        return Path(f"{name}{suffix} (source not kept)")
    return path
