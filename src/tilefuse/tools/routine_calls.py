"""Routines of elementary functions as host functions that Python calls: each is looped over the threads of one instance.

The text of every implementation is in a namespace of its own between its macros, as in generated kernels, and `#line` makes the compiler
refer to the library's files. No generated code is involved: every error here is the routine's own.
"""
from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tilefuse.base.errors import ToolchainError
from tilefuse.ir.ops import C_TYPES
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.printers.support import paste
from tilefuse.runtime.compilers.host import compiler_command
from tilefuse.runtime.stores.private_folder import work_folder
from tilefuse.scripts.language.elementary import ElementaryFunction, Implementation, Parameter, SharedPlace, ThreadMapping, routine_macros

FLAGS = ("-O0", "-std=c++17", "-fPIC", "-shared", "-w")
Array = np.ndarray


@dataclass(frozen=True)
class RoutineText:
    """An implementation to be compiled; `contiguous` is the value of CONTIGUOUS_<parameter>."""

    function: ElementaryFunction
    implementation: Implementation
    contiguous: bool


@dataclass
class Routines:
    """The compiled routines of one implementation. Requires: arrays have the function's element type and live through the call."""

    text: RoutineText
    library: ctypes.CDLL
    prefix: str
    _keep: list[Array] = field(default_factory=list)

    def entry(self, name: str) -> ctypes._NamedFuncPointer:
        """The C function of a wrapper."""
        function = self.library[f"{self.prefix}_{name}"]
        function.restype = None
        return function

    def padding(self, parameter: str) -> float:
        """The value of a parameter's words outside the data."""
        out = np.zeros(1, NUMPY_DTYPES[self.text.function.dtype.name])
        self.entry(f"pad_{parameter}")(_pointer(out))
        return float(out[0])

    def access(self, routine: str, memory: Array, strides: Sequence[int], element: Array, pitch: int, at: Sequence[int],
               shape: Sequence[int], backwards: bool = False) -> None:
        """Calls a load or store for every thread: tile at `at` of data of `shape`; thread t has its words at element[t * pitch]."""
        numbers = (*strides, pitch, *at, *shape, int(backwards))
        self.entry(routine.replace(" ", "_"))(_pointer(memory), _pointer(element), *map(ctypes.c_longlong, numbers))

    def compute(self, elements: Sequence[Array], pitches: Sequence[int], scalars: Array, positions: Sequence[int]) -> None:
        """Calls `compute` for every thread."""
        pointers = (ctypes.c_void_p * len(elements))(*(e.ctypes.data for e in elements))
        longs = (ctypes.c_longlong * len(pitches))(*pitches)
        places = (ctypes.c_longlong * max(len(positions), 1))(*positions)
        self.entry("compute")(pointers, longs, _pointer(scalars), places)

    def start(self) -> float:
        """Start of partial values of a reduction by an operator: its `neutral`."""
        out = np.zeros(1, NUMPY_DTYPES[self.text.function.dtype.name])
        self.entry("start")(_pointer(out))
        return float(out[0])

    def state_bytes(self) -> int:
        """Size of a partial value of the function's own type. Units: bytes."""
        out = ctypes.c_longlong()
        self.entry("state_bytes")(ctypes.byref(out))
        return int(out.value)

    def neutral(self, element: Array, count: int) -> None:
        """Sets `count` partial values to the neutral element."""
        self.entry("neutral")(_pointer(element), ctypes.c_longlong(count))

    def fold(self, element: Array, count: int, out: Array) -> None:
        """Combines `count` partial values into the first and finishes it."""
        self.entry("fold")(_pointer(element), ctypes.c_longlong(count), _pointer(out))


def _pointer(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def words_of(text: RoutineText, parameter: Parameter) -> tuple[int, int]:
    """(words of an element's memory in all, words from one thread's part to the next): (n, 0) in shared memory."""
    place = text.implementation.places[parameter.name]
    geometry = text.implementation.geometry
    threads = geometry.threads[0] * geometry.threads[1]
    if isinstance(place, ThreadMapping):
        return threads * place.words, place.words
    extents = [geometry.extents[e] for e in parameter.extents]
    assert isinstance(place, SharedPlace)
    return (extents[0] if len(extents) == 1 else extents[0] * (extents[1] + place.pad)), 0


def source_of(texts: Sequence[RoutineText]) -> str:
    """One translation unit with all implementations and their wrappers, number n under the prefix `k<n>`."""
    body = "\n".join(_one(text, f"k{n}") for n, text in enumerate(texts))
    return "#include <cmath>\n#include <cstdlib>\n#include <cstring>\n" + paste("host", body) + "\n" + body


def _one(text: RoutineText, prefix: str) -> str:
    function, implementation = text.function, text.implementation
    macros = routine_macros(function, implementation) | {"INDEX": "long long"}
    for p in (*function.inputs, *function.outputs):
        if p.extents:
            macros[f"CONTIGUOUS_{p.name}"] = str(int(text.contiguous))
    lines = [f"#define {name} {value}" for name, value in macros.items()]
    lines += [f"namespace {prefix} {{", f'#line 1 "{implementation.file}"', implementation.source,
              f'#line 1 "wrappers of {implementation.file}"']
    for p in (*function.inputs, *function.outputs):
        if p.extents:
            lines += [_access(function, implementation, p, prefix),
                      f'extern "C" void {prefix}_pad_{p.name}(REAL* out) {{ *out = PAD_{p.name}; }}']
    lines.append(_compute(function, implementation, prefix))
    if function.kind.reduces and not function.state:
        lines += [f'#line 1 "neutral of {function.name}"', f'extern "C" void {prefix}_start(REAL* out) {{ *out = {function.neutral}; }}']
    if function.state:
        state = function.state
        lines += [f'extern "C" void {prefix}_state_bytes(long long* out) {{ *out = sizeof({state}); }}',
                  f'extern "C" void {prefix}_neutral({state}* e, long long n) {{ for (long long k = 0; k < n; ++k) e[k] = '
                  f"{state}{function.neutral}; }}",
                  f'extern "C" void {prefix}_fold({state}* e, long long n, {_type(function, function.outputs[0])}* out) {{',
                  f"  for (long long k = 1; k < n; ++k) {implementation.routines['combine']}(e, e + k);",
                  f"  {implementation.routines['finish']}(e, out);", "}"]
    return "\n".join([*lines, "}", *(f"#undef {name}" for name in macros)])


def _type(function: ElementaryFunction, parameter: Parameter) -> str:
    return C_TYPES[(parameter.dtype or function.dtype).name]


_THREADS = "  for (int t = 0; t < BX * BY; ++t) {\n    const int k = backwards ? BX * BY - 1 - t : t, tx = k % BX, ty = k / BX;\n"


def _access(function: ElementaryFunction, implementation: Implementation, p: Parameter, prefix: str) -> str:
    """The wrapper of a parameter's load or store."""
    loads = p in function.inputs
    routine = f"{'load' if loads else 'store'} {p.name}"
    memory, element = ("const REAL* p", "REAL* e") if loads else ("REAL* p", "const REAL* e")
    if len(p.extents) == 1:
        names, call = "stride, pitch, first, count", "p, stride, e + k * pitch, tx, ty, first, count"
    else:
        names = "row_stride, column_stride, pitch, row, column, rows, columns"
        call = "p, row_stride, column_stride, e + k * pitch, tx, ty, row, column, rows, columns"
    longs = ", ".join(f"long long {n}" for n in names.split(", "))
    return (f'extern "C" void {prefix}_{routine.replace(" ", "_")}({memory}, {element}, {longs}, long long backwards) {{\n{_THREADS}'
            f"    {implementation.routines[routine]}({call});\n  }}\n}}")


def _compute(function: ElementaryFunction, implementation: Implementation, prefix: str) -> str:
    """The wrapper of `compute`: elements in signature order (those with extents, then the outputs), scalars apart."""
    arguments: list[str] = []
    elements = scalars = 0
    for p in (*function.inputs, *function.outputs):
        if p in function.inputs and not p.extents:
            arguments.append(f"scalars[{scalars}]")
            scalars += 1
            continue
        kind = (function.state or "REAL") if p in function.outputs else "const REAL"
        arguments.append(f"static_cast<{kind}*>(e[{elements}]) + k * pitch[{elements}]")
        elements += 1
    arguments += [f"positions[{n}]" for n in range(len(function.sizes)) if function.positions]
    return (f'extern "C" void {prefix}_compute(void** e, const long long* pitch, const REAL* scalars, const long long* positions) {{\n'
            f"  const bool backwards = false;\n{_THREADS}"
            f"    {implementation.routines['compute']}({', '.join([*arguments, 'tx', 'ty'])});\n  }}\n}}")


def build(texts: Sequence[RoutineText]) -> tuple[Routines, ...] | str:
    """The routines of all texts, or the compiler's log where it refuses them. Raises: ToolchainError when there is no compiler."""
    command = (*compiler_command(), *FLAGS)
    with work_folder() as folder:
        source, output = Path(folder, "routines.cpp"), Path(folder, "routines.so")
        source.write_text(source_of(texts), encoding="utf-8")
        try:
            done = subprocess.run([*command, "-o", str(output), str(source), "-lm"], capture_output=True, text=True, errors="replace",
                                  check=False)
        except OSError as error:
            raise ToolchainError(f"the C++ compiler {command[0]} does not run: {error}",
                                 hint="install g++ or clang++, or set CXX") from error
        if done.returncode:
            return done.stderr
        library = ctypes.CDLL(str(output))
    return tuple(Routines(text, library, f"k{n}") for n, text in enumerate(texts))
