"""Planned programs on disk: decisions and sources of a compile, looked up by its inputs.

The text of a program: constants computed by passes, then the spec. Machine code lies in the kernel cache, which is looked up by the sources
in the spec.
"""
from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tilefuse.runtime.calls.arguments import as_tensor
from tilefuse.runtime.calls.library import DTYPE_NAMES, TORCH_DTYPES
from tilefuse.runtime.spec import ProgramSpec
from tilefuse.runtime.spec_json import spec_from_json, spec_to_json
from tilefuse.runtime.stores.cache import PROGRAMS
from tilefuse.runtime.stores.text_store import TextStore


@dataclass(frozen=True)
class StoredProgram:
    """A program without its machine code. `constants`: data of the constants that passes computed; the caller has the others."""

    spec: ProgramSpec
    constants: Mapping[str, Any]


class ProgramStore:
    """The programs of one cache folder; None: nothing is stored."""

    def __init__(self, folder: Path | None) -> None:
        self._texts = TextStore(folder, PROGRAMS, "program 1")

    def get(self, digest: str) -> StoredProgram | None:
        """The program of a digest, or None. A damaged file is removed with a warning and is a miss."""
        return self._texts.get(digest, _read)

    def put(self, digest: str, program: StoredProgram) -> None:
        """Stores a program, if the folder can be written."""
        constants = json.dumps({name: _encoded(data) for name, data in program.constants.items()})
        self._texts.put(digest, f"{constants}\n{spec_to_json(program.spec, indent=None)}")

    def paths(self) -> list[Path]:
        """The files of all programs, sorted by name."""
        return self._texts.paths()

    def clear(self) -> int:
        """Removes all programs; the number removed."""
        return self._texts.clear()


def _read(text: str) -> StoredProgram:
    constants, _, spec = text.partition("\n")
    return StoredProgram(spec_from_json(spec), {name: _decoded(row) for name, row in json.loads(constants).items()})


def _encoded(data: Any) -> dict[str, object]:
    tensor = as_tensor(data, "constant").detach().cpu().contiguous()
    octets = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "data": base64.b64encode(octets).decode()}


def _decoded(row: Mapping[str, Any]) -> torch.Tensor:
    octets, dtype = bytearray(base64.b64decode(row["data"])), TORCH_DTYPES[row["dtype"]]
    shape = tuple(row["shape"])
    return torch.frombuffer(octets, dtype=torch.uint8).view(dtype).reshape(shape) if octets else torch.empty(shape, dtype=dtype)
