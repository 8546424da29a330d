"""A model in parts as one file: the ONNX model, how it was split, and the programs of its parts as they were compiled so far.

Loading compiles nothing. Sizes that had no program when the file was written run by the reference implementation of ONNX.
"""
from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import onnx
import torch
from google.protobuf.message import DecodeError, EncodeError

from tilefuse.base.errors import UnsupportedError, UserError
from tilefuse.base.options import Options
from tilefuse.driver.onnx.split import SplitModel
from tilefuse.runtime.archive import PURPOSE, SPLIT, load_program, save_program
from tilefuse.runtime.stores.cache import DAMAGE, new_part
from tilefuse.runtime.stores.signature import read_key, reserve_signature, sign_file, verified_file

FORMAT = 1
_MODEL = "model.onnx"


def save_split(model: SplitModel, path: Path | str, sign: Path | str | None = None) -> None:
    """Writes a model in parts to one file; it appears whole or not at all.

    sign: file with the key that signs it; None: the one of the options, if they name one.
    Raises: UserError when it cannot be written or the key cannot be read; UnsupportedError for a model of more than 2 GB.
    """
    target = Path(path)
    named = sign or Options.from_environment().sign
    key = read_key(named) if named else None
    try:
        data = model.proto.SerializeToString()
    except (ValueError, EncodeError) as error:
        raise UnsupportedError(f"{model.title} is too large to be saved in parts: {error}") from error
    facts, programs = model.facts()
    try:
        with new_part(target.parent) as part, tempfile.TemporaryDirectory() as folder:
            with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
                archive.writestr(SPLIT, json.dumps({"format": FORMAT, **facts}), zipfile.ZIP_DEFLATED)
                archive.writestr(_MODEL, data, zipfile.ZIP_DEFLATED)
                for number, program in enumerate(programs):
                    held = Path(folder) / "program"
                    save_program(program, held)
                    archive.write(held, f"programs/{number}")
                reserve_signature(archive, PURPOSE, key)
            sign_file(part, key)
            part.replace(target)
    except OSError as error:
        raise UserError(f"cannot write the program to {target}: {error.strerror or error}") from error


def load_split(path: Path | str, device: Any = None, require_signature: Path | str | None = None) -> SplitModel:
    """The saved model in parts, ready to run. Its machine code runs in this process: load what you trust.

    Raises: as `load_program`.
    """
    options = Options.from_environment()
    named = require_signature or options.require_signature
    key = read_key(named) if named else None
    unsigned = options.with_overrides(require_signature="")  # the whole file is verified, its programs are signed with it
    programs: list[Any] = []
    try:
        with verified_file(path, PURPOSE, key) as file, zipfile.ZipFile(file) as archive, tempfile.TemporaryDirectory() as folder:
            facts = json.loads(archive.read(SPLIT))
            if facts["format"] != FORMAT:
                raise ValueError("another format")
            model = onnx.ModelProto.FromString(archive.read(_MODEL))
            for number in range(facts["programs"]):
                held = Path(folder) / str(number)
                held.write_bytes(archive.read(f"programs/{number}"))
                programs.append(load_program(held, device, unsigned))
        where = torch.device("cpu" if str(device or facts["place"]) in ("host", "cpu") else str(device or facts["place"]))
        return SplitModel(model, facts["shapes"], None, where, facts["device"], known=(facts, programs))
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}") from error
    except (*DAMAGE, KeyError, TypeError, OSError, DecodeError) as error:
        raise UserError(f"{path} is not a readable saved program: {error}", hint="compile and save it again") from error
