"""Planned programs on disk: what a compile decided and printed, found again by what decided it.

    <cache>/programs/ab/abcd....bin     checksum line, then the compressed text: constants that passes made, then the spec

A file appears whole or not at all, a damaged one is a miss. What goes into a key is not known here; machine code lies in the
kernel cache, which finds it by the sources that stand in the spec.
"""
from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tilefuse.base.errors import UserError
from tilefuse.runtime.arguments import as_tensor
from tilefuse.runtime.cache import PROGRAMS, CacheWarning, write_whole
from tilefuse.runtime.library import DTYPE_NAMES, TORCH_DTYPES
from tilefuse.runtime.spec import ProgramSpec
from tilefuse.runtime.spec_json import spec_from_json, spec_to_json

FORMAT = b"tilefuse program 1 "
# Entries that a folder keeps; the oldest tenth goes when there are more. Units: files.
MAX_ENTRIES = 4000


@dataclass(frozen=True)
class StoredProgram:
    """A program without its machine code. `constants`: data of the constants that passes computed; the caller has the others."""

    spec: ProgramSpec
    constants: Mapping[str, Any]


class ProgramStore:
    """The programs of one cache folder; None: nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = None if folder is None else folder / PROGRAMS

    def get(self, digest: str) -> StoredProgram | None:
        """The program of a digest, or None. A damaged file is removed with a warning and is a miss."""
        if self.folder is None:
            return None
        path = self._path(digest)
        try:
            head, _, body = path.read_bytes().partition(b"\n")
            if head != FORMAT + hashlib.sha256(body).hexdigest().encode():
                raise ValueError("checksum differs")
            constants, _, spec = zlib.decompress(body).decode().partition("\n")
            return StoredProgram(spec_from_json(spec), {name: _decoded(row) for name, row in json.loads(constants).items()})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, zlib.error, UserError) as error:
            warnings.warn(f"damaged program {path} in the cache ({error}); it is removed and the program planned again", CacheWarning,
                          stacklevel=2)
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return None

    def put(self, digest: str, program: StoredProgram) -> None:
        """Keeps a program. A folder that cannot be written keeps nothing: the kernel cache has said so already."""
        if self.folder is None:
            return
        constants = json.dumps({name: _encoded(data) for name, data in program.constants.items()})
        body = zlib.compress(f"{constants}\n{spec_to_json(program.spec)}".encode(), 1)
        with contextlib.suppress(OSError):
            write_whole(self._path(digest), FORMAT + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            self._prune(self._path(digest).parent)

    def paths(self) -> list[Path]:
        """The files of all programs, sorted by name."""
        return [] if self.folder is None else sorted(self.folder.rglob("*.bin"))

    def clear(self) -> int:
        """Removes all programs; the number removed."""
        paths = self.paths()
        for path in paths:
            path.unlink(missing_ok=True)
        return len(paths)

    def _prune(self, grown: Path) -> None:
        # Guessed from the folder that grew, one of 256: a listing of everything would cost more than the entry.
        paths = self.paths() if len(list(grown.iterdir())) * 256 > MAX_ENTRIES else []
        if len(paths) > MAX_ENTRIES:
            for path in sorted(paths, key=lambda p: p.stat().st_mtime)[:MAX_ENTRIES // 10]:
                path.unlink(missing_ok=True)

    def _path(self, digest: str) -> Path:
        assert self.folder is not None
        return self.folder / digest[:2] / f"{digest}.bin"


def _encoded(data: Any) -> dict[str, object]:
    tensor = as_tensor(data, "constant").detach().cpu().contiguous()
    octets = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "data": base64.b64encode(octets).decode()}


def _decoded(row: Mapping[str, Any]) -> torch.Tensor:
    octets, dtype = bytearray(base64.b64decode(row["data"])), TORCH_DTYPES[row["dtype"]]
    shape = tuple(row["shape"])
    return torch.frombuffer(octets, dtype=torch.uint8).view(dtype).reshape(shape) if octets else torch.empty(shape, dtype=dtype)
