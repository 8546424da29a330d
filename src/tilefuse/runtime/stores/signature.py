"""Signatures of files that hold machine code: saved programs and exported caches.

The file stays a zip archive; its comment, the last bytes of the file, is

    tilefuse-signature-1 PURPOSE KEY-NAME HMAC-SHA-256

over every byte before the last field. The key is symmetric: its holder can both verify and sign. A file is verified before any of it is
unpacked.
"""
from __future__ import annotations

import contextlib
import hashlib
import hmac
import io
import os
import re
import secrets
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tilefuse.base.errors import UserError

# Minimum and usual bytes of a key: the length of the digest; a shorter key would be easier to guess than the digest.
KEY_BYTES = 32
_DIGEST_DIGITS = 64
_FORM = re.compile(rb"tilefuse-signature-1 (program|cache) ([0-9a-f]{16}) ([0-9a-f]{64})\Z")
_FORM_BYTES = 128
_CHUNK_BYTES = 1 << 20


class Key:
    """A signing key. `name` identifies it in messages and reveals nothing about the key."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.name = hmac.new(secret, b"tilefuse key name", hashlib.sha256).hexdigest()[:16]

    def digest(self, file: BinaryIO, num_bytes: int) -> str:
        """HMAC-SHA-256 of the next `num_bytes` of a file, in hexadecimal digits."""
        mac = hmac.new(self._secret, digestmod=hashlib.sha256)
        while num_bytes > 0 and (chunk := file.read(min(_CHUNK_BYTES, num_bytes))):
            mac.update(chunk)
            num_bytes -= len(chunk)
        return mac.hexdigest()


def read_key(path: Path | str) -> Key:
    """The key in a file: all its bytes. Raises: UserError for a file that cannot be read or is shorter than a key."""
    try:
        secret = Path(path).expanduser().read_bytes()
    except OSError as cause:
        raise UserError(f"cannot read the signing key {path}: {cause.strerror or cause}", hint="tilefuse key FILE makes one") from cause
    if len(secret) < KEY_BYTES:
        raise UserError(f"the signing key {path} has {len(secret)} bytes, a key has at least {KEY_BYTES}",
                        hint="tilefuse key FILE makes one")
    return Key(secret)


def new_key(path: Path | str) -> Key:
    """Writes a new random key that only this user can read. Raises: UserError where the file exists or cannot be written."""
    secret = secrets.token_bytes(KEY_BYTES)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secret)
    except FileExistsError as cause:
        raise UserError(f"{path} exists: a key is never written over another file") from cause
    except OSError as cause:
        raise UserError(f"cannot write the signing key {path}: {cause.strerror or cause}") from cause
    return Key(secret)


def reserve_signature(archive: zipfile.ZipFile, purpose: str, key: Key | None) -> None:
    """Makes room for the signature in an archive that is being written; `sign_file` fills it when the archive is closed."""
    if key is not None:
        archive.comment = f"tilefuse-signature-1 {purpose} {key.name} ".encode() + b"0" * _DIGEST_DIGITS


def sign_file(path: Path, key: Key | None) -> None:
    """Fills the reserved signature. Without a key it does nothing."""
    if key is None:
        return
    with path.open("r+b") as file:
        num_bytes = file.seek(0, os.SEEK_END) - _DIGEST_DIGITS
        file.seek(0)
        digest = key.digest(file, num_bytes)
        file.seek(num_bytes)
        file.write(digest.encode())


@contextlib.contextmanager
def verified_file(path: Path | str, purpose: str, key: Key | None) -> Iterator[Path | str | BinaryIO]:
    """The file in the form that `zipfile` takes: its path without a key, else its bytes in memory, verified.

    Cost: with a key the whole file is read into memory first, so that the bytes that are loaded are the bytes that were verified.
    Raises: UserError for a file without signature, of another key or purpose, or changed since it was signed; OSError as reading does.
    """
    if key is None:
        yield path
        return
    data = Path(path).read_bytes()
    verify(data, path, purpose, key)
    yield io.BytesIO(data)


def signer(path: Path | str) -> str:
    """Name of the key that a file claims to be signed with, not verified; "" for a file that is not signed."""
    with Path(path).open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - _FORM_BYTES, 0))
        match = _FORM.search(file.read())
    return match[2].decode() if match is not None else ""


def verify(data: bytes, path: Path | str, purpose: str, key: Key) -> None:
    """Raises: UserError unless `data`, the bytes of `path`, were signed with `key` for `purpose`."""
    match = _FORM.search(data[-_FORM_BYTES:])
    if match is None:
        raise UserError(f"{path} is not signed, and only files signed with key {key.name} are loaded",
                        hint="write it with --sign KEYFILE (TILEFUSE_SIGN=KEYFILE), from a source that you trust")
    signed_for, name, digest = (part.decode() for part in match.groups())
    if name != key.name:
        raise UserError(f"{path} is signed with key {name}, and only files signed with key {key.name} are loaded")
    if signed_for != purpose or not hmac.compare_digest(digest, key.digest(io.BytesIO(data), len(data) - _DIGEST_DIGITS)):
        raise UserError(f"the signature of {path} does not fit: the file was changed after it was signed, or is not a signed {purpose}",
                        hint="do not load it; get it again from its source")
