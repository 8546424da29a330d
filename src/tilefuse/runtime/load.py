"""Programs from files: loading compiles nothing and uses no part of the compiler. `archive` describes the contents of a file."""
from __future__ import annotations

from pathlib import Path

import torch

from tilefuse.base.errors import UnsupportedDeviceError
from tilefuse.base.options import Options
from tilefuse.runtime.archive import SavedProgram, read_saved
from tilefuse.runtime.compilers.host import host_identity
from tilefuse.runtime.cuda_api import describe_device
from tilefuse.runtime.program import Program
from tilefuse.runtime.stores.signature import read_key
from tilefuse.target.capabilities import runs_on


def load_program(path: Path | str, device: str | torch.device | None = None, options: Options | None = None,
                 require_signature: Path | str | None = None) -> Program:
    """The saved program, ready to run; nothing is compiled. Its machine code runs in this process: load only trusted files.

    require_signature: file with the key with which it must be signed; None: the one of the options, if they name one. Such a file
    is verified before anything of it is unpacked.
    Raises: UserError when the file is missing, damaged, of another version, or not signed as required; UnsupportedDeviceError when
    its machine code is for another processor or GPU.
    """
    return load_saved(path, device, options, require_signature)[0]


def load_saved(path: Path | str, device: str | torch.device | None = None, options: Options | None = None,
               require_signature: Path | str | None = None) -> tuple[Program, str | None]:
    """The saved program as `load_program` gives it, and the text of the model around it; None where there is none."""
    options = Options.from_environment() if options is None else options
    named = require_signature or options.require_signature
    saved = read_saved(path, read_key(named) if named else None)
    where = saved.spec.device if device is None else device
    program_device = "host" if where in ("host", "cpu") or str(where).startswith("cpu") else where
    _check_processor(path, saved, program_device)
    return Program(saved.spec, saved.constants, program_device, options, binaries=saved.binaries), saved.model


def _check_processor(path: Path | str, saved: SavedProgram, device: object) -> None:
    """Raises: UnsupportedDeviceError where the machine code of a kernel is for another processor or GPU."""
    for kernel, processor in zip(saved.spec.kernels, saved.processors, strict=True):
        if kernel.target == "host" and processor != host_identity():
            raise UnsupportedDeviceError(f"{path} holds machine code for the processor {processor}, this one is {host_identity()}",
                                         hint="compile and save the program on this machine")
        if kernel.target == "cuda" and torch.cuda.is_available():
            index = torch.device(str(device)).index
            arch = describe_device(torch.cuda.current_device() if index is None else index).arch
            if not runs_on(kernel.arch, arch):
                raise UnsupportedDeviceError(f"{path} holds machine code for {kernel.arch}, this GPU is {arch}",
                                             hint=f"compile and save the program for {arch}")
