"""A program as one file: spec, sources, machine code, constants. `load` makes a program of the contents.

The machine code of a file runs with all rights of the process that loads it, so a file from an unknown source is as dangerous as a program
from one. `signature` describes how files are signed and verified.

```text
program.json      the spec            kernels.json   symbol, payload and processor of each kernel
model.json        the model around it: arguments, numbers, structure of the results (driver/model_form.py)
sources/K.cu      for the reader      payloads/SHA   machine code, each once
constants.json    dtype, shape, strides, offset      constants.bin   their storage, 64-byte aligned
```
"""
from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from tilefuse.base.errors import UserError
from tilefuse.base.options import Options
from tilefuse.runtime.calls.call_plan import storage_span
from tilefuse.runtime.calls.library import DTYPE_NAMES, TORCH_DTYPES
from tilefuse.runtime.compilers.host import host_identity
from tilefuse.runtime.explanation import with_own_places
from tilefuse.runtime.spec import KernelCode, ProgramSpec
from tilefuse.runtime.spec_json import spec_from_json, spec_to_json
from tilefuse.runtime.stores.cache import DAMAGE, CacheEntry, new_part
from tilefuse.runtime.stores.signature import Key, read_key, reserve_signature, sign_file, verified_file

CONSTANT_ALIGNMENT_BYTES = 64
PURPOSE = "program"
PROGRAM = "program.json"
# Contents of a file that is a model in parts, with several programs.
SPLIT = "split.json"
# Text that describes the arguments of the model around the program, where they are more than positional tensors.
MODEL = "model.json"
_SUFFIX = {"cuda": ".cu", "host": ".cpp"}


class SaveableProgram(Protocol):
    """A program with its machine code, one entry for each kernel, and the data of its constants. options: those of its compile."""

    spec: ProgramSpec
    options: Options
    binaries: list[CacheEntry]

    @property
    def constants(self) -> Mapping[str, torch.Tensor]:
        """The constants' data."""


@dataclass(frozen=True, slots=True)
class SavedProgram:
    """Contents of a file: a program as plain data, its compiled kernels with the processor of each, and its constants.

    model: text that describes the arguments of the model around the program; None where there is none.
    """

    spec: ProgramSpec
    binaries: list[CacheEntry]
    processors: list[str]
    constants: dict[str, torch.Tensor]
    model: str | None


def save_program(program: SaveableProgram, path: Path | str, sign: Path | str | None = None, model: str | None = None) -> None:
    """Writes `program` to one file; it appears whole or not at all.

    model: text that describes the arguments of the model around the program; `read_saved` returns it.
    sign: file with the key that signs it; None: the key of the program's options, if they name one.
    Raises: UserError when it cannot be written, or the key cannot be read.
    """
    target = Path(path)
    named = sign or program.options.sign
    key = read_key(named) if named else None
    try:
        with new_part(target.parent) as part:
            with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
                _write(program, archive)
                if model is not None:
                    archive.writestr(MODEL, model, zipfile.ZIP_DEFLATED)
                reserve_signature(archive, PURPOSE, key)
            sign_file(part, key)
            part.replace(target)
    except OSError as error:
        raise UserError(f"cannot write the program to {target}: {error.strerror or error}") from error


def _write(program: SaveableProgram, archive: zipfile.ZipFile) -> None:
    archive.writestr(PROGRAM, spec_to_json(with_own_places(program.spec)), zipfile.ZIP_DEFLATED)
    rows: list[dict[str, Any]] = []
    written: set[str] = set()
    for kernel, binary in zip(program.spec.kernels, program.binaries, strict=True):
        sha = hashlib.sha256(binary.payload).hexdigest()
        rows.append({"name": kernel.name, "symbol": binary.symbol, "payload": sha, "log": binary.log,
                     "processor": host_identity() if kernel.target == "host" else kernel.arch})
        archive.writestr(f"sources/{kernel.name}{_SUFFIX.get(kernel.target, '.txt')}", kernel.source, zipfile.ZIP_DEFLATED)
        if sha not in written:
            written.add(sha)
            archive.writestr(f"payloads/{sha}", binary.payload, zipfile.ZIP_DEFLATED)
    archive.writestr("kernels.json", json.dumps(rows, indent=1), zipfile.ZIP_DEFLATED)
    _write_constants(program, archive)


def _write_constants(program: SaveableProgram, archive: zipfile.ZipFile) -> None:
    """Constants in sequence, so that loading is one read; a storage that several share is written once."""
    rows: dict[str, dict[str, Any]] = {}
    places: dict[tuple[int, tuple[int, ...], tuple[int, ...], str], int] = {}
    position = 0
    with archive.open("constants.bin", "w", force_zip64=True) as file:
        for name, tensor in program.constants.items():
            key = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype))
            row = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "strides": list(tensor.stride())}
            if key not in places:
                data = _storage(tensor)
                places[key] = position
                padding = -len(data) % CONSTANT_ALIGNMENT_BYTES
                file.write(data)
                file.write(b"\0" * padding)
                position += len(data) + padding
            rows[name] = {**row, "offset": places[key]}
    archive.writestr("constants.json", json.dumps(rows, indent=1), zipfile.ZIP_DEFLATED)


def _storage(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().as_strided((storage_span(tensor.shape, tensor.stride()),), (1,)).cpu()
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def is_saved(path: Path | str) -> bool:
    """Whether a file is a saved program or a saved model in parts, judged by its contents and not its name. False for an unreadable
    file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return not {PROGRAM, SPLIT}.isdisjoint(archive.namelist())
    except (*DAMAGE, OSError):
        return False


def holds_parts(path: Path | str) -> bool:
    """Whether a file holds a model in parts. False for an unreadable file; `load_program` reports its error."""
    try:
        with zipfile.ZipFile(path) as archive:
            return SPLIT in archive.namelist()
    except (*DAMAGE, OSError):
        return False


def read_saved(path: Path | str, key: Key | None = None) -> SavedProgram:
    """The contents of the file of a program. key: the key with which it must be signed; None: it need not be.

    Raises: UserError when the file is missing, damaged, of another version, or not signed as required.
    """
    try:
        with verified_file(path, PURPOSE, key) as file, zipfile.ZipFile(file) as archive:
            spec = spec_from_json(archive.read(PROGRAM).decode())
            binaries, processors = _read_binaries(archive, spec.kernels)
            constants = _read_constants(archive)
            model = archive.read(MODEL).decode() if MODEL in archive.namelist() else None
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}") from error
    except (*DAMAGE, KeyError, TypeError, OSError) as error:
        raise UserError(f"{path} is not a readable saved program: {error}", hint="compile and save it again") from error
    return SavedProgram(spec, binaries, processors, constants, model)


def read_program(path: Path | str) -> tuple[ProgramSpec, dict[str, torch.Tensor]]:
    """Spec and constants of a saved program, for machine code of any processor. Raises: UserError for an unreadable program."""
    try:
        with zipfile.ZipFile(path) as archive:
            return spec_from_json(archive.read(PROGRAM).decode()), _read_constants(archive)
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}") from error
    except (*DAMAGE, KeyError, TypeError, OSError) as error:
        raise UserError(f"{path} is not a readable saved program: {error}", hint="compile and save it again") from error


def _read_binaries(archive: zipfile.ZipFile, kernels: tuple[KernelCode, ...]) -> tuple[list[CacheEntry], list[str]]:
    """The compiled kernels, and the processor of each."""
    rows = json.loads(archive.read("kernels.json"))
    if [row["name"] for row in rows] != [k.name for k in kernels]:
        raise ValueError("its kernels are not those of its plan")
    payloads: dict[str, bytes] = {}
    for row in rows:
        sha = row["payload"]
        if sha not in payloads:
            payloads[sha] = archive.read(f"payloads/{sha}")
            if hashlib.sha256(payloads[sha]).hexdigest() != sha:
                raise ValueError(f"the machine code of kernel {row['name']} is damaged")
    return [CacheEntry(payloads[row["payload"]], row["symbol"], row["log"]) for row in rows], [row["processor"] for row in rows]


def _read_constants(archive: zipfile.ZipFile) -> dict[str, torch.Tensor]:
    rows = json.loads(archive.read("constants.json"))
    data = bytearray(archive.read("constants.bin"))
    # A fresh tensor is aligned as kernels need it; a Python buffer is not.
    storage = torch.empty(len(data), dtype=torch.uint8)
    if data:
        storage.copy_(torch.frombuffer(data, dtype=torch.uint8))
    constants: dict[str, torch.Tensor] = {}
    for name, row in rows.items():
        dtype, shape, strides = TORCH_DTYPES[row["dtype"]], tuple(row["shape"]), tuple(row["strides"])
        num_bytes = storage_span(shape, strides) * dtype.itemsize
        constants[name] = storage[row["offset"]:row["offset"] + num_bytes].view(dtype).as_strided(shape, strides)
    return constants
