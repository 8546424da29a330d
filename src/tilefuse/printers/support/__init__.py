"""C++ support text of generated kernels, as headers cut into chunks; a kernel's source contains only the chunks that it uses.

A chunk starts at a line `//@ name name ...` with the names that it defines. A chunk needs every chunk whose names its text mentions. All
names start with `tf_`. Functions that users registered come last.
"""
from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from importlib import resources

from tilefuse.base.errors import InternalError
from tilefuse.ir.custom import definition
from tilefuse.printers.support.warpgroup_text import instruction_text

# Headers of each target, in the order in which their chunks are pasted.
HEADERS: dict[str, tuple[str, ...]] = {
    "cuda": ("cuda_types.cuh", "float8.h", "cuda_float8.cuh", "scalar.h", "philox.h", "members.h", "cuda_narrow.cuh", "cuda_memory.cuh",
             "cuda_atomics.cuh", "cuda_tasks.cuh", "cuda_cluster.cuh", "cuda_tensor.cuh", "cuda_warpgroup.cuh", "cuda_matrix.cuh",
             "cuda_matrix_f32.cuh", "routine.h"),
    "host": ("host_types.h", "host_math.h", "float8.h", "host_float8.h", "scalar.h", "philox.h", "members.h", "host_memory.h",
             "host_tasks.h", "host_matrix.h", "host_tensor.h", "routine.h"),
    "checked": ("host_types.h", "host_math.h", "float8.h", "host_float8.h", "scalar.h", "philox.h", "members.h", "host_memory.h",
                "host_tasks.h", "host_matrix.h", "host_tensor.h", "routine.h", "checked.h", "checked_tensor.h", "checked_ring.h",
                "checked_tasks.h"),
}
_NAME = re.compile(r"\b(?:tf_\w+|TF_INLINE|TF_ROUTINE)\b")
_CALL = re.compile(r"\b(tf_\w+)(?=\()")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of support text: the names that it defines and the `tf_` names that it mentions."""

    names: tuple[str, ...]
    text: str
    mentions: frozenset[str]


@functools.cache
def chunks(target: str) -> tuple[Chunk, ...]:
    """All chunks of a target, in order of their headers."""
    pieces: list[Chunk] = []
    for header in HEADERS[target]:
        text = resources.files(__name__).joinpath(header).read_text(encoding="utf-8")
        for piece in re.split(r"^//@ ", text, flags=re.MULTILINE)[1:]:
            first, _, body = piece.partition("\n")
            pieces.append(Chunk(tuple(first.split()), body.strip("\n"), frozenset(_NAME.findall(body))))
    return tuple(pieces)


@functools.cache
def _by_name(target: str) -> dict[str, int]:
    return {name: number for number, chunk in enumerate(chunks(target)) for name in chunk.names}


def paste(target: str, text: str) -> str:
    """The support text that `text` needs, directly or through other chunks; "" if none.

    Raises: InternalError when `text` calls a `tf_` function that no header defines.
    """
    known = _by_name(target)
    needed: set[int] = set()
    names = frozenset(_NAME.findall(text))
    added = [custom for name in sorted(names) if (custom := definition(name, target)) is not None]
    instructions = [i for name in sorted(names) if target == "cuda" and (i := instruction_text(name)) is not None]
    todo = sorted(names.union(*(_NAME.findall(a) for a in (*added, *instructions))))
    for name in _CALL.findall(text):
        if name in known or definition(name, target) is not None or target == "cuda" and instruction_text(name) is not None:
            continue
        if not any(name in chunk.mentions for chunk in chunks(target)):
            raise InternalError(f"generated {target} code calls {name}, which no support header defines")
    while todo:
        number = known.get(todo.pop())
        if number is None or number in needed:
            continue
        needed.add(number)
        todo.extend(sorted(chunks(target)[number].mentions))
    return "\n\n".join([*(chunks(target)[number].text for number in sorted(needed)), *instructions, *added])
