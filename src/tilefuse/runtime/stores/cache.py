"""The kernel cache: compiled kernels, looked up by everything that decided them.

An entry is a small JSON file with every field of its key; the compiled bytes lie beside it under their own checksum, so several entries may
share one file. Files appear whole (written aside, then renamed), so a crash leaves no partial file, and a damaged file is a miss. This file
knows neither kernels nor compilers.
"""
from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import struct
import tempfile
import threading
import time
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from tilefuse.base.errors import UserError
from tilefuse.runtime.stores.cache_key import FORMAT, CacheKey
from tilefuse.runtime.stores.cache_miss import explain_miss
from tilefuse.runtime.stores.private_folder import abandoned_file, new_locked_file

PART = ".part-"
# Error codes of a file system without file locks.
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
LOCK_TIMEOUT_S = 600.0
# Time after which a folder is searched again for abandoned parts.
SWEEP_S = 60.0
# The folders of planned programs (see `program_store`) and of torch's graphs that were traced (see `driver.reuse.known_traces`).
PROGRAMS = "programs"
TRACES = "traces"
# The folder of planning's judgements of patterns (see `judgement_store`).
JUDGEMENTS = "judgements"
# The folder of plans from which planning of other sizes starts (see `driver.reuse.known_seeds`).
SEEDS = "seeds"
TEXTS = (PROGRAMS, TRACES, JUDGEMENTS, SEEDS)
# Errors from reading a damaged archive; which one depends on the damaged byte.
DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, OverflowError, RuntimeError, ValueError)


class CacheWarning(UserWarning):
    """The cache could not be used as requested; the work continues without it."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A compiled kernel. Units: `compile_s` seconds. `symbol` is its name in `payload`; `log` the compiler's output."""

    payload: bytes
    symbol: str
    log: str = ""
    compile_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """Properties of an entry for a listing. Units: bytes; `created` in seconds since the epoch."""

    digest: str
    label: str
    fields: tuple[tuple[str, str], ...]
    num_bytes: int
    created: float


def default_folder(environment: Mapping[str, str] | None = None) -> Path | None:
    """The cache's folder: TILEFUSE_CACHE_DIR, else $XDG_CACHE_HOME/tilefuse, else ~/.cache/tilefuse; None if TILEFUSE_CACHE=0."""
    env = os.environ if environment is None else environment
    if env.get("TILEFUSE_CACHE", "1").strip().lower() in ("0", "off", "false", "no"):
        return None
    if env.get("TILEFUSE_CACHE_DIR"):
        return Path(env["TILEFUSE_CACHE_DIR"]).expanduser()
    base = env.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tilefuse"


_warned: set[str] = set()
# When this process last looked through a folder. Units: seconds.
_swept_s: dict[str, float] = {}


def _warn_once(key: str, message: str) -> None:
    if key not in _warned:
        _warned.add(key)
        warnings.warn(message, CacheWarning, stacklevel=3)


class KernelCache:
    """Compiled kernels in a folder shared by processes, or only in memory (`folder` None, or not writable)."""

    def __init__(self, folder: Path | str | None) -> None:
        self.folder = None if folder is None else Path(folder)
        self._memory: dict[str, CacheEntry] = {}
        self._guard = threading.Lock()
        if self.folder is not None:
            self._open(self.folder)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> KernelCache:
        """The cache that the environment names (see `default_folder`)."""
        return cls(default_folder(environment))

    def _open(self, folder: Path) -> None:
        try:
            for part in ("entries", "payloads", "locks"):
                (folder / part).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder / "entries"):
                pass
        except OSError as error:
            _warn_once(f"unwritable {folder}", f"kernel cache folder {folder} cannot be written ({error.strerror or error}); "
                       "kernels are kept in memory for this process. Set TILEFUSE_CACHE_DIR to a writable folder, or TILEFUSE_CACHE=0.")
            self.folder = None

    def get(self, key: CacheKey) -> CacheEntry | None:
        """The entry of `key`, or None. A damaged entry is removed with a warning and is a miss."""
        digest = key.digest
        with self._guard:
            in_memory = self._memory.get(digest)
        if in_memory is not None or self.folder is None:
            return in_memory
        path = self._entry_path(digest)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            payload = self._payload_path(record["payload"]).read_bytes()
            if hashlib.sha256(payload).hexdigest() != record["payload"]:
                raise ValueError("checksum differs")
            entry = CacheEntry(payload, record["symbol"], record["log"], record["compile_s"])
        except FileNotFoundError as error:
            if path.exists():
                self._drop(path, f"{error.filename} is missing")
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._drop(path, str(error))
            return None
        with self._guard:
            self._memory[digest] = entry
        return entry

    def put(self, key: CacheKey, entry: CacheEntry) -> None:
        """Stores `entry` under `key`. A folder that cannot be written costs a warning, once."""
        with self._guard:
            self._memory[key.digest] = entry
        if self.folder is None:
            return
        sha = hashlib.sha256(entry.payload).hexdigest()
        record = {"format": FORMAT, "label": key.label, "fields": dict(key.fields), "source_sha": key.source_sha, "source": key.source,
                  "payload": sha, "num_bytes": len(entry.payload), "symbol": entry.symbol, "log": entry.log,
                  "compile_s": entry.compile_s, "created": time.time()}
        try:
            payload_path = self._payload_path(sha)
            # An existing file is written again: it may be the damaged one that caused this miss.
            write_whole(payload_path, entry.payload)
            write_whole(self._entry_path(key.digest), json.dumps(record, indent=1).encode())
        except OSError as error:
            _warn_once(f"write {self.folder}", f"kernel cache folder {self.folder} cannot be written ({error.strerror or error}); "
                       "newly compiled kernels are kept in memory for this process only.")

    @contextlib.contextmanager
    def locked(self, keys: Iterable[CacheKey]) -> Iterator[None]:
        """Holds the entries of `keys` against other threads and processes, so that each kernel is compiled once.

        Without a lock (no file locks on this file system, or after ten minutes) the work continues: at worst a kernel is compiled twice.
        """
        with contextlib.ExitStack() as stack:
            if self.folder is not None:
                # The same order in all processes, or two of them could wait for each other.
                for digest in sorted({k.digest for k in keys}):
                    lock = FileLock(self.folder / "locks" / f"{digest}.lock")
                    try:
                        stack.enter_context(lock.acquire(timeout=LOCK_TIMEOUT_S))
                    except (OSError, NotImplementedError, Timeout) as error:
                        _warn_once(f"lock {self.folder}", f"no lock in kernel cache folder {self.folder} ({error}); "
                                   "processes that run at the same time may compile a kernel twice.")
                        break
            yield

    def entries(self) -> list[EntryRecord]:
        """All readable entries of the folder, oldest first."""
        return sorted((_listing(digest, record) for digest, record in self._records()), key=lambda e: (e.created, e.digest))

    def size_bytes(self) -> int:
        """Bytes of all files of the folder. Units: bytes."""
        if self.folder is None:
            return sum(len(e.payload) for e in self._memory.values())
        return sum(_file_bytes(p) for part in ("entries", "payloads", *TEXTS) for p in (self.folder / part).rglob("*"))

    def clear(self) -> int:
        """Removes all entries, the plans of programs, judgements of patterns and refused sources; the number of entries removed."""
        with self._guard:
            num_entries = len(self._memory)
            self._memory.clear()
        if self.folder is None:
            return num_entries
        paths = list((self.folder / "entries").rglob("*.json"))
        texts = (p for name in TEXTS for p in (self.folder / name).rglob("*.bin"))
        parts = (p for name in ("entries", "payloads", *TEXTS) for p in (self.folder / name).rglob(f"{PART}*"))
        failed = (p for p in (self.folder / "failed").glob("*"))
        for path in (*paths, *(self.folder / "payloads").glob("*.bin"), *(self.folder / "locks").glob("*.lock"),
                     *texts, *parts, *failed):
            path.unlink(missing_ok=True)
        return len(paths)

    def why(self, key: CacheKey) -> str:
        """The reason why `key` is a hit or a miss: the first field in which it differs from the nearest entry."""
        if self.get(key) is not None:
            return f"{key.label}: in the cache"
        if self.folder is None:
            return f"{key.label}: the cache is off"
        return explain_miss(key, [record for _, record in self._records()])

    def _records(self) -> Iterator[tuple[str, dict[str, object]]]:
        if self.folder is None:
            return
        for path in sorted((self.folder / "entries").rglob("*.json")):
            with contextlib.suppress(OSError, ValueError):
                record = json.loads(path.read_text(encoding="utf-8"))
                if isinstance(record, dict) and {"label", "fields", "source", "payload", "num_bytes", "created"} <= set(record):
                    yield path.stem, record

    def _drop(self, path: Path, cause: str) -> None:
        message = f"damaged kernel cache entry {path} ({cause}); it is removed and the kernel compiled again"
        warnings.warn(message, CacheWarning, stacklevel=3)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)

    def _entry_path(self, digest: str) -> Path:
        assert self.folder is not None
        return self.folder / "entries" / digest[:2] / f"{digest}.json"

    def _payload_path(self, sha: str) -> Path:
        assert self.folder is not None
        if not isinstance(sha, str) or len(sha) != 64 or not sha.isalnum():
            raise ValueError(f"{sha!r} is not a checksum")
        return self.folder / "payloads" / f"{sha}.bin"


def _listing(digest: str, record: Mapping[str, object]) -> EntryRecord:
    fields = record["fields"]
    assert isinstance(fields, dict)
    return EntryRecord(digest, str(record["label"]), tuple((str(k), str(v)) for k, v in fields.items()),
                       int(str(record["num_bytes"])), float(str(record["created"])))


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file so that others see all of it or nothing: a part aside first, then renamed to `path`.

    A part that a killed process left in the folder is removed. Raises: OSError as the file system does; the file aside is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_part(path.parent) as part:
        # No fsync, which costs milliseconds per file: after a power failure the checksum reveals missing data.
        part.write_bytes(data)
        os.replace(part, path)


@contextlib.contextmanager
def new_part(folder: Path) -> Iterator[Path]:
    """A new empty file for writing aside, gone after the body unless it was renamed.

    Others may read it as the umask allows, unlike temporary files. Its lock shows other processes that it is in use.
    Raises: OSError as the file system does.
    """
    try:
        handle, path = new_locked_file(folder, PART, mode=0o666)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        # A file system without locks: no process knows of this part, and none removes it.
        path = folder / f"{PART}{secrets.token_hex(8)}"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        yield path
        _remove_abandoned_parts(folder)
    finally:
        # Already renamed on success; an error or an interrupt must leave nothing behind.
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(handle)


def _remove_abandoned_parts(folder: Path) -> None:
    """Removes the parts of processes that were killed; looks again after a while. Cost: linear in the folder's files."""
    now, name = time.monotonic(), str(folder)
    if now - _swept_s.get(name, -SWEEP_S) < SWEEP_S:
        return
    _swept_s[name] = now
    with contextlib.suppress(OSError):
        for part in [Path(entry.path) for entry in os.scandir(folder) if entry.name.startswith(PART)]:
            with abandoned_file(part) as abandoned, contextlib.suppress(OSError):
                if abandoned:
                    part.unlink()


def require_folder(cache: KernelCache) -> Path:
    """The cache's folder. Raises: UserError when the cache is off."""
    if cache.folder is None:
        raise UserError("the kernel cache is off or its folder cannot be written", hint="set TILEFUSE_CACHE_DIR and unset TILEFUSE_CACHE")
    return cache.folder


_caches: dict[str, KernelCache] = {}


def cache_of(enabled: bool, folder: str) -> KernelCache:
    """The cache that the options name: off, in `folder`, or in the user's default folder. One object per folder and process."""
    named = {"TILEFUSE_CACHE_DIR": folder} if folder else {}
    where = default_folder({**os.environ, **named}) if enabled else None
    name = "" if where is None else str(where)
    if name not in _caches:
        _caches[name] = KernelCache(where)
    return _caches[name]
