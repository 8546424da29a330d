"""A model in parts as one file: the ONNX model, its split, and the compiled programs of its parts.

Loading compiles nothing. Sizes without a program in the file run by the reference implementation of ONNX.
"""
from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError, EncodeError

from tilefuse.base.errors import UnsupportedError, UserError
from tilefuse.base.options import Options
from tilefuse.runtime.archive import PURPOSE, SPLIT, save_program
from tilefuse.runtime.load import load_program
from tilefuse.runtime.stores.cache import DAMAGE, new_part
from tilefuse.runtime.stores.signature import read_key, reserve_signature, sign_file, verified_file

FORMAT = 1
_MODEL = "model.onnx"


# Errors that a damaged file raises while it is read.
UNREADABLE = (*DAMAGE, KeyError, TypeError, OSError, DecodeError)


@dataclass(frozen=True)
class SavedSplit:
    """Contents of the file of a model in parts.

    model     the whole ONNX model, weights included
    facts     its split, as plain data (`SplitModel.facts`)
    programs  the programs of its parts, in the order of their numbers in `facts`
    """

    model: onnx.ModelProto
    facts: Mapping[str, Any]
    programs: Sequence[Any]


def write_split(saved: SavedSplit, title: str, path: Path | str, sign: Path | str | None = None) -> None:
    """Writes a model in parts to one file; it appears whole or not at all.

    title: the model's name in messages. sign: file with the key that signs it; None: the key of the options, if they name one.
    Raises: UserError when it cannot be written or the key cannot be read; UnsupportedError for a model of more than 2 GB.
    """
    target = Path(path)
    named = sign or Options.from_environment().sign
    key = read_key(named) if named else None
    try:
        data = saved.model.SerializeToString()
    except (ValueError, EncodeError) as error:
        raise UnsupportedError(f"{title} is too large to be saved in parts: {error}") from error
    try:
        with new_part(target.parent) as part, tempfile.TemporaryDirectory() as folder:
            with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
                archive.writestr(SPLIT, json.dumps({"format": FORMAT, **saved.facts}), zipfile.ZIP_DEFLATED)
                archive.writestr(_MODEL, data, zipfile.ZIP_DEFLATED)
                for number, program in enumerate(saved.programs):
                    program_folder = Path(folder) / "program"
                    save_program(program, program_folder)
                    archive.write(program_folder, f"programs/{number}")
                reserve_signature(archive, PURPOSE, key)
            sign_file(part, key)
            part.replace(target)
    except OSError as error:
        raise UserError(f"cannot write the program to {target}: {error.strerror or error}") from error


def read_split(path: Path | str, device: Any = None, require_signature: Path | str | None = None) -> SavedSplit:
    """The contents of a file, its programs ready to run. Their machine code runs in this process: load only trusted files.

    Raises: as `load_program`.
    """
    options = Options.from_environment()
    named = require_signature or options.require_signature
    key = read_key(named) if named else None
    unsigned = options.with_overrides(require_signature="")  # the signature covers the whole file, including its programs
    programs: list[Any] = []
    try:
        with verified_file(path, PURPOSE, key) as file, zipfile.ZipFile(file) as archive, tempfile.TemporaryDirectory() as folder:
            facts = json.loads(archive.read(SPLIT))
            if facts["format"] != FORMAT:
                raise ValueError("another format")
            model = onnx.ModelProto.FromString(archive.read(_MODEL))
            for number in range(facts["programs"]):
                program_file = Path(folder) / str(number)
                program_file.write_bytes(archive.read(f"programs/{number}"))
                programs.append(load_program(program_file, device, unsigned))
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}") from error
    except UNREADABLE as error:
        raise unreadable(path, error) from error
    return SavedSplit(model, facts, programs)


def unreadable(path: Path | str, error: Exception) -> UserError:
    """The error for a damaged file."""
    return UserError(f"{path} is not a readable saved program: {error}", hint="compile and save it again")
