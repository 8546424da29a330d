"""A digest of everything that compiled programs launch: equal digests run the same machine code on the same memory.

    names of values and kernels, comments, blank space     do not count: no compiler keeps them
    sources or machine code                                 sources are free; machine code also equals where support text merely changed
    the runtime around launches                             does not count, except functions that run library operators

It takes programs as plain data (`runtime.spec.ProgramSpec`). It imports no module of a tree when it is loaded, because `one_side.py` loads
it beside another tree's `tilefuse`.
"""
from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any

# Text of a kernel, without names, to what stands for it in a digest.
Coded = Callable[[Any], str]

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_SPACE = re.compile(r"[ \t]+")
_QUOTED = re.compile(r'("[^"\n]*")')
# Members and names of a namespace are never values.
_WORD = re.compile(r"(?<![\w.])(?<!->)(?<!::)[A-Za-z_]\w*")
_FUNCTION_BEGINS = 'extern "C"'
_ENTRY = "tf_code"
# Fields of a kernel that do not reach the device, and its source.
_LEFT_OUT = ("name", "entry", "source", "nodes", "bytes_read", "bytes_written", "limit_us", "names", "tasks")


def without_names(kernel: Any) -> Any:
    """The same kernel with neutral names and without comments and blank space; it compiles to the same instructions."""
    lines = (_SPACE.sub(" ", line).strip() for line in _COMMENT.sub("", kernel.source).splitlines())
    source = re.sub(rf"\b{re.escape(kernel.entry)}", _ENTRY, "\n".join(line for line in lines if line))
    support, begin, function = source.partition(_FUNCTION_BEGINS)
    own, numbers = set(kernel.names), dict[str, str]()

    def numbered(match: re.Match[str]) -> str:
        word = match.group()
        return numbers.setdefault(word, f"tf_value{len(numbers)}") if word in own else word

    pieces = _QUOTED.split(function)
    pieces[::2] = (_WORD.sub(numbered, piece) for piece in pieces[::2])
    return replace(kernel, name=_ENTRY, entry=_ENTRY, source=support + begin + "".join(pieces), names=())


def source_of(kernel: Any) -> str:
    """A kernel's source."""
    return str(kernel.source)


def machine_code_but(sources: Collection[str]) -> Coded:
    """A digest of a CUDA kernel's machine code; of a kernel whose source's digest is one of `sources`, that digest."""
    def coded(kernel: Any) -> str:
        from tilefuse.runtime.compilers.nvrtc import compile_cuda

        known = _short(kernel.source.encode())
        return known if known in sources else _short(compile_cuda(kernel).payload)

    return coded


def nothing_of(_kernel: Any) -> str:
    """No code: what is left of a program are its launches, calls and values."""
    return ""


def source_digests(specs: Sequence[Any]) -> list[str]:
    """Digests of the sources of all kernels, without names."""
    return [_short(without_names(kernel).source.encode()) for spec in specs for kernel in spec.kernels]


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def code_parts(spec: Any, library: Mapping[str, Callable[..., object]], coded: Coded = source_of) -> list[str]:
    """What a program launches, as texts: one a step, then one a value that a step uses.

    library: the functions that run library operators; their own text counts, since the name alone would hide another call.
    """
    numbers: dict[str, str] = {"": "-"}

    def numbered(names: Sequence[str]) -> list[str]:
        return [numbers.setdefault(name, f"%{len(numbers)}") for name in names]

    parts = [f"{spec.device} {numbered(spec.inputs)} {numbered(spec.results)} {sorted(numbered(spec.updates))}"]
    for step in spec.steps:
        if hasattr(step, "kernel"):
            kernel = without_names(spec.kernels[step.kernel])
            parts.append(f"launch {numbered(step.arguments)} {_fields(kernel)}\n{coded(kernel)}")
        elif hasattr(step, "operator"):
            function = library.get(step.operator)
            text = "" if function is None else inspect.getsource(inspect.unwrap(function))
            parts.append(f"call {step.operator} {numbered(step.operands)} {numbered(step.results)} {step.attributes!r} {text}")
        else:
            parts.append(f"copy {numbered([step.source, step.target])}")
    value_by_name = {v.name: v for v in spec.values}
    waiting = list(numbers)
    for name in waiting:  # grows by the values whose memory views use
        if (v := value_by_name.get(name)) is not None:
            waiting += [v.base] if v.base and v.base not in numbers else []
            parts.append(f"value {numbered([name, v.base])} {v.dtype} {v.shape} {v.strides} {v.role} {v.offset}")
    return parts


def _fields(record: Any) -> str:
    """The fields of a record that reach the device and differ from their default: the other tree may not know those. Without names."""
    if isinstance(record, tuple):
        return f"({', '.join(map(_fields, record))})"
    if not is_dataclass(record):
        return repr(record)
    told = ((f.name, value) for f in fields(record) if (value := getattr(record, f.name)) != f.default and f.name not in _LEFT_OUT)
    return f"{type(record).__name__}({', '.join(f'{name}={_fields(value)}' for name, value in told)})"


def digest_of(specs: Sequence[Any], library: Mapping[str, Callable[..., object]], coded: Coded = source_of) -> str:
    """The digest of some programs in order; "" for none."""
    text = "\n".join(part for spec in specs for part in code_parts(spec, library, coded))
    return _short(text.encode()) if specs else ""


@contextmanager
def noted_programs() -> Iterator[list[Any]]:
    """The specifications of all programs that are built inside, in order."""
    from tilefuse.runtime.program import Program

    specs: list[Any] = []
    build = Program.__init__

    def noted(self: Any, spec: Any, *rest: Any, **named: Any) -> None:
        build(self, spec, *rest, **named)
        specs.append(spec)

    Program.__init__ = noted  # type: ignore[method-assign]
    try:
        yield specs
    finally:
        Program.__init__ = build  # type: ignore[method-assign]
