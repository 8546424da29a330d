"""Folders that other users cannot write: sources that a compiler refused, and the work of running compilers.

    <temporary folder>/tilefuse-<user>/     0700, ours: a link, a file or another user's folder of that name is never followed
        work-1a2b.lock    locked by the process that works in the folder beside it
        work-1a2b/

The system releases a process's lock in every case, so a lock that can be acquired shows that its folder is abandoned.
"""
from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

WORK = "work-"


def private_folder(path: Path) -> Path:
    """`path` as a folder of this user that no other user can read or write; created if it is missing.

    Raises: OSError where the path is a link, a file, or another user's folder.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "not a folder of this user", str(path))
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.chmod(path, 0o700)
    return path


def user_temporary_folder() -> Path:
    """This user's folder below the system's temporary one. Raises: OSError where its name is in use or nothing can be written."""
    return private_folder(Path(tempfile.gettempdir()) / f"tilefuse-{os.geteuid()}")


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """An empty private folder, deleted after the body.

    A folder left by a killed process is removed when the next one begins. Where this user's folder is unavailable or has no locks, the
    folder is created beside it under a random name.
    Raises: OSError when nothing can be written.
    """
    try:
        parent = user_temporary_folder()
        handle, lock = new_locked_file(parent, WORK, ".lock")
    except OSError:
        with tempfile.TemporaryDirectory(prefix="tilefuse-") as folder:
            yield Path(folder)
        return
    work = lock.with_suffix("")
    try:
        remove_abandoned_work(parent)
        os.mkdir(work, 0o700)
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        with contextlib.suppress(OSError):
            lock.unlink()
        os.close(handle)


def remove_abandoned_work(parent: Path) -> int:
    """Removes the work folders whose processes have ended; returns their number. Folders of running processes stay."""
    removed = 0
    for lock in sorted(parent.glob(f"{WORK}*.lock")):
        with abandoned_file(lock) as abandoned:
            if abandoned:
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                with contextlib.suppress(OSError):
                    lock.unlink()
                removed += 1
    return removed


def new_locked_file(folder: Path, prefix: str, suffix: str = "", mode: int = 0o600) -> tuple[int, Path]:
    """A new file, locked while its descriptor is open: the descriptor and the path. Raises: OSError where there are no file locks."""
    while True:
        path = folder / f"{prefix}{secrets.token_hex(8)}{suffix}"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file_of(handle, path):
                return handle, path
        except BlockingIOError:
            pass  # another process takes the new file for an abandoned one: it removes this name, and the next one is tried
        except OSError:
            os.close(handle)
            path.unlink(missing_ok=True)
            raise
        os.close(handle)


@contextlib.contextmanager
def abandoned_file(path: Path) -> Iterator[bool]:
    """Whether no process holds the file made by `new_locked_file`; if so, none can acquire it before the body has ended."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield False  # gone, or not ours
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            abandoned = _is_file_of(handle, path)
        except OSError:
            abandoned = False
        yield abandoned
    finally:
        os.close(handle)


def _is_file_of(handle: int, path: Path) -> bool:
    """Whether `path` still names the open file, and not one that replaced it after another process removed it."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False
