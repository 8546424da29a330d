"""Folders that nobody else can write: sources that a compiler refused, and the work of compilers while they run.

    <temporary folder>/tilefuse-<user>/     0700, ours: a link, a file or another user's folder of that name is never followed
        work-1a2b.lock    locked by the process that works in the folder beside it
        work-1a2b/

The system releases the lock of a process however it ends, so a lock that can be had says that its folder is nobody's any more.
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
    """`path` as a folder of this user that nobody else can read or write; it is made where it is missing.

    Raises: OSError where the place is taken by a link, by a file, or by another user's folder.
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
    """This user's folder below the system's temporary one. Raises: OSError where its name is taken or nothing can be written."""
    return private_folder(Path(tempfile.gettempdir()) / f"tilefuse-{os.geteuid()}")


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """An empty private folder that is gone after the body.

    One that a killed process left is removed when the next one begins. Where this user's folder cannot be had or has no locks, the
    folder is made beside it under a name that cannot be guessed.
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
    """Removes the work folders whose processes have ended; how many. Others' are left alone."""
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
    """Whether no process holds the file made by `new_locked_file`; if so, none takes it before the body has ended."""
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
    """Whether `path` still names the open file: it does not after another process has removed it."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False
