"""C text of routines: cut to the definitions that are called, macros replaced; size of a struct of partial values.

    #define nothing; TF_ROUTINE void f(const REAL* x, ...) { ... BX ... }    ->    TF_ROUTINE void f(const float* x, ...) { ... 32 ... }

Only top-level definitions are parsed. Source: Filipovic et al., "Optimizing CUDA Code by Kernel Fusion", section 4.3.1.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilefuse.base.errors import UserError

_WORD = re.compile(r"\b[A-Za-z_]\w*\b")
_FUNCTION = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_STRUCT = re.compile(r"^(?:typedef\s+)?(?:struct|union|enum)\s+([A-Za-z_]\w*)")
_FIELD = re.compile(r"^([A-Za-z_][\w ]*?)\s+([A-Za-z_]\w*(?:\s*\[\d+\])?(?:\s*,\s*[A-Za-z_]\w*(?:\s*\[\d+\])?)*)$")

# Bytes of the C types that a struct of partial values may have, after REAL and INDEX are replaced.
FIELD_BYTES = {"float": 4, "int": 4, "unsigned": 4, "unsigned int": 4, "double": 8, "long long": 8, "unsigned long long": 8}


@dataclass(frozen=True, slots=True)
class _Piece:
    """A top-level definition; `name` is "" for preprocessor lines, which every cut has."""

    name: str
    text: str


def cut_routines(source: str, macros: Mapping[str, str], names: Iterable[str]) -> str:
    """The part of a source that the functions `names` need, in its order, with macros replaced.

    Raises: UserError when one of the functions is not defined.
    """
    pieces = _pieces(without_comments(source))
    by_name = {p.name: p for p in pieces if p.name}
    to_visit, needed = list(names), set[str]()
    for name in to_visit:
        if name not in by_name:
            raise UserError(f"the routine text defines no function {name}; it defines {', '.join(by_name) or 'nothing'}")
        if name not in needed:
            needed.add(name)
            to_visit.extend(n for n in dict.fromkeys(_WORD.findall(by_name[name].text)) if n in by_name and n not in needed)
    return replace_macros("\n".join(p.text for p in pieces if not p.name or p.name in needed), macros)


def replace_macros(text: str, macros: Mapping[str, str]) -> str:
    """`text` with the names of macros replaced, also those inside replacements."""
    for _ in range(4):
        new = _WORD.sub(lambda m: macros.get(m.group(), m.group()), text)
        if new == text:
            break
        text = new
    return text


def without_comments(text: str) -> str:
    """C text without comments."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    return re.sub(r"[ \t]*//[^\n]*", "", text)


def enclosing_routine(text: str, line: int) -> str:
    """Name of the definition around a line of a text, lines counted from 0; "" for none."""
    at = 0
    for piece in _pieces(text):
        begin = text.find(piece.text, at)
        at = begin + len(piece.text)
        if line <= text.count("\n", 0, at):
            return piece.name if line >= text.count("\n", 0, begin) else ""
    return ""


def routine_line(source: str, name: str) -> int:
    """Number of the line that defines a function or a struct in a library's text, from 1; 0 if the text does not define it."""
    line = name and re.search(rf"^(?:TF_ROUTINE|TF_INLINE|(?:typedef\s+)?struct)\b[^;{{}}()]*?\b{name}\b", source, re.MULTILINE)
    return source.count("\n", 0, line.start()) + 1 if line else 0


def _pieces(text: str) -> list[_Piece]:
    """Top-level definitions in order: a preprocessor line, or everything up to a `;` or closing brace outside of all brackets."""
    pieces: list[_Piece] = []
    current: list[str] = []
    depth = 0
    for line in text.splitlines():
        if not depth and not current and line.lstrip().startswith("#"):
            pieces.append(_Piece("", line))
            continue
        if not line.strip() and not current:
            continue
        current.append(line)
        code = "" if line.lstrip().startswith("#") else line
        depth += sum(code.count(c) for c in "({[") - sum(code.count(c) for c in ")}]")
        if depth == 0 and code.rstrip().endswith((";", "}")):
            piece = "\n".join(current)
            pieces.append(_Piece(_defined_name(piece), piece))
            current = []
    return pieces


def _defined_name(piece: str) -> str:
    head = piece.strip()
    struct = _STRUCT.match(head)
    if struct:
        return struct.group(1)
    function = _FUNCTION.search(head.split("{")[0])
    if function:
        return function.group(1)
    constant = re.search(r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\])?\s*=", head)
    return constant.group(1) if constant else ""


def state_bytes(text: str, struct: str) -> int:
    """Size of a struct in `text`, macros replaced already. Units: bytes, a multiple of 4.

    Raises: UserError when the struct is not there or holds anything but numbers of 4 or 8 bytes.
    """
    definition = re.search(rf"struct\s+{struct}\s*\{{(.*?)\}}", text, re.DOTALL)
    if not definition:
        raise UserError(f"the routine text defines no struct {struct}",
                        hint="the combine routine's partial values need a struct of numbers")
    end, widest = 0, 4
    for declaration in filter(None, (d.strip() for d in definition.group(1).split(";"))):
        field = _FIELD.match(" ".join(declaration.split()))
        if not field or field.group(1) not in FIELD_BYTES:
            raise UserError(f"struct {struct} has a field that is not a number: {declaration}", hint=f"known are {', '.join(FIELD_BYTES)}")
        size = FIELD_BYTES[field.group(1)]
        widest = max(widest, size)
        for name in field.group(2).split(","):
            length = re.search(r"\[(\d+)\]", name)
            end = -(-end // size) * size + size * (int(length.group(1)) if length else 1)
    return -(-end // widest) * widest
