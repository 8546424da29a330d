"""The process that compiles CUDA text for another one (see `nvrtc_processes`). It runs as a file and loads only NVRTC.

    arguments    version architecture library [library ...]
    output       (version)      once, when it can compile
    input        (name, source, flag, flag, ...)
    output       (status, log, cubin)

A message is the number of its fields, their lengths, then the fields. The process ends when its input does, even while it compiles.
"""
from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import sys
import threading
from collections.abc import Sequence
from typing import IO

NUMBER = struct.Struct("<q")
# Compiled before the first request, so that the compiler's tables exist then.
FIRST = b'extern "C" __global__ void first(float* a) { a[threadIdx.x] += 1.0f; }'


def send(pipe: IO[bytes], fields: Sequence[bytes]) -> None:
    """Writes a message. Raises: OSError where the reader has ended."""
    pipe.write(b"".join([NUMBER.pack(len(fields)), *(NUMBER.pack(len(f)) for f in fields), *fields]))
    pipe.flush()


def receive(pipe: IO[bytes]) -> list[bytes]:
    """The next message. Raises: EOFError at the end of the pipe. Requires: the writer is a process of this package."""
    lengths = [_number(pipe) for _ in range(_number(pipe))]
    return [_exactly(pipe, n) for n in lengths]


def _number(pipe: IO[bytes]) -> int:
    return int(NUMBER.unpack(_exactly(pipe, NUMBER.size))[0])


def _exactly(pipe: IO[bytes], count: int) -> bytes:
    data = pipe.read(count)
    if len(data) < count:
        raise EOFError
    return data


def compiled(library: ctypes.CDLL, name: bytes, source: bytes, flags: Sequence[bytes]) -> tuple[int, bytes, bytes]:
    """NVRTC's status for a text, its log, and the machine code ("" where the status is not 0)."""
    program = ctypes.c_void_p()
    status = library.nvrtcCreateProgram(ctypes.byref(program), source, name, 0, None, None)
    if status:
        return status, b"", b""
    status = library.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
    log = _text(library, program, "ProgramLog").strip(b"\0\n ")
    cubin = b"" if status else _text(library, program, "CUBIN")
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return status, log, cubin


def _text(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    if getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)):
        return b""
    data = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, data)
    return data.raw


def version_of(library: ctypes.CDLL) -> str:
    """NVRTC's version, as in "13.0"."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def main(version: str, arch: str, *paths: str) -> None:
    """Serves requests until the input ends. Ends at once where no library has the version."""
    # Replies use a pipe of their own, so that printed text cannot mix with them.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    threading.Thread(target=end_with_parent, daemon=True).start()
    library = next((candidate for candidate in map(ctypes.CDLL, paths) if version_of(candidate) == version), None)
    if library is None:
        return
    compiled(library, b"first.cu", FIRST, [f"--gpu-architecture={arch}".encode()])
    # A parent that ended reads nothing any more.
    with contextlib.suppress(EOFError, OSError):
        send(replies, [version.encode()])
        while True:
            name, source, *flags = receive(sys.stdin.buffer)
            status, log, cubin = compiled(library, name, source, flags)
            send(replies, [str(status).encode(), log, cubin])


def end_with_parent() -> None:
    """Ends this process as soon as its input is closed, also during a compile."""
    poll = select.poll()
    poll.register(0, 0)
    poll.poll()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
