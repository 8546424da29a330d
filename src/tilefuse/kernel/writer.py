"""Lines of C-family text with indentation, and the mapping of our names to legal C++ identifiers.

This is the only place that writes braces. Printers write the statements between them.
"""
from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from tilefuse.base.printable import one_line
from tilefuse.ir.custom_expression import C_FLOAT_FUNCTIONS, C_FUNCTIONS
from tilefuse.ir.ops import SCALAR_OPS

# Words that C++ or CUDA reserves, and names that the printers define in a kernel.
_RESERVED_TEXT = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class compl concept const
    consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do double dynamic_cast
    else enum explicit export extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq
    nullptr operator or or_eq private protected public register reinterpret_cast requires return short signed sizeof static
    static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename union unsigned
    using virtual void volatile wchar_t while xor xor_eq
    threadIdx blockIdx blockDim gridDim warpSize uint4 uint2 float2 float4 int4 half
    abs acos asin atan cbrt ceil cos cosh erf erfc exp exp2 expm1 fabs floor fma fmax fmin fmod hypot log log10 log1p log2 lgamma
    max min pow rint round rsqrt sin sinh sqrt tan tanh trunc y0 y1 yn j0 j1 jn gamma signbit isnan isinf main printf std
    check task_waits homes home holds last lanes group launched scratch cluster_memory memcpy
    arguments report report_size linux unix NULL assert errno _Complex _Pragma
"""
# Macros of the standard headers.
_MACRO = re.compile(r"""((U?INT\w*|SIZE|SIG_ATOMIC|PTRDIFF|WCHAR|WINT)_(MAX|MIN|WIDTH)
    | M_(1_PI|2_PI|2_SQRT|E|PI|LN|LOG|SQRT)\w* | FP_[A-Z]\w+ | S?NAN\w* | HUGE_VAL\w* | INFINITY | MAXFLOAT | MATH_ERR\w+ | math_errhandling
    | (RAND|MB_CUR|TMP|FOPEN|FILENAME)_MAX | EXIT_(SUCCESS|FAILURE) | (SEEK|RENAME)_[A-Z]+ | L_(tmpnam|ctermid|cuserid) | P_tmpdir
    | EOF | BUFSIZ | NFDBITS | FD_SETSIZE | W(NOHANG|UNTRACED|STOPPED|EXITED|CONTINUED|NOWAIT)
    | (BYTE|PDP|BIG|LITTLE)_(ORDER|ENDIAN))(?<!_)\Z""", re.VERBOSE)
# Identifiers that the language reserves for the compiler and its library.
_COMPILERS_MACRO = re.compile(r"_[A-Z][A-Z0-9_]*\Z")
# Functions that printed expressions call. A value of the same name would hide the function: a graph may have a node named atan2.
_CALLED = re.compile(r"(?<![\w:])([A-Za-z_]\w*)\(")
_FUNCTIONS = frozenset(
    name for op in SCALAR_OPS.values() for text in (*op.cuda.values(), *op.host.values()) for name in _CALLED.findall(text))
_RESERVED = frozenset(_RESERVED_TEXT.split()) | C_FUNCTIONS | C_FLOAT_FUNCTIONS | _FUNCTIONS
_NOT_IDENTIFIER = re.compile(r"[^0-9A-Za-z_]")


def identifier(name: str) -> str:
    """`name` as a C++ identifier: illegal characters become "_", reserved words end in an extra "_".

    Requires: different names of one kernel have different identifiers (composers take them from `free_identifier`).
    """
    text = _NOT_IDENTIFIER.sub("_", name)
    while "__" in text:
        text = text.replace("__", "_")  # C++ reserves names with two underscores
    if not text or text[0].isdigit() or _COMPILERS_MACRO.match(text):
        text = "v" + text
    return text + "_" if text in _RESERVED or _MACRO.match(text) else text


def free_identifier(stem: str, taken: set[str]) -> str:
    """`stem`, or `stem` with the smallest number that gives an unused identifier. The name and its identifier join `taken`.

        stem:     a__b   a_b     float    float_
        printed:  a_b    a_b_1   float_   float_1

    The check is on identifiers, because `identifier` may map two names to one.
    """
    name, count = stem, 0
    while name in taken or identifier(name) in taken:
        count += 1
        name = f"{stem}_{count}"
    taken |= {name, identifier(name)}
    return name


def comment_text(text: str) -> str:
    """`text` as the rest of a `//` comment: a single line without a backslash, which would continue the comment."""
    return one_line(text).replace("\\", "/")


class Writer:
    """Lines of C-family text with indentation; the only place where braces are written."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def line(self, text: str = "") -> None:
        """One line at the current depth."""
        self.lines.append("  " * self.depth + text if text else "")

    def directive(self, text: str) -> None:
        """One preprocessor or pragma line, at the current depth."""
        self.line(text)

    def comment(self, text: str) -> None:
        """One comment line for each line of the text."""
        for part in text.splitlines() or [""]:
            self.line("// " + comment_text(part))

    @contextlib.contextmanager
    def block(self, head: str, tail: str = "") -> Iterator[None]:
        """`head { ... } tail`, with the body indented by one level."""
        self.line(head + " {" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}" + tail)

    @contextlib.contextmanager
    def otherwise(self) -> Iterator[None]:
        """An else branch for the block that was just closed."""
        self.lines[-1] = "  " * self.depth + "} else {"
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    def text(self) -> str:
        """All lines."""
        return "\n".join(self.lines) + "\n"
