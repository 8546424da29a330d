"""Lines of C-family text with indentation, and the mapping of our names to legal C++ identifiers.

The only place where braces are written; printers say what stands inside them.
"""
from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from tilefuse.base.printable import one_line
from tilefuse.ir.custom_expression import C_FLOAT_FUNCTIONS, C_FUNCTIONS
from tilefuse.ir.ops import SCALAR_OPS

# Words that C++ or CUDA reserves, and names that the printers themselves define in a kernel.
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
    check homes home holds last lanes group launched scratch cluster_memory memcpy
    arguments report report_size linux unix NULL assert errno _Complex _Pragma
"""
# Macros of the standard headers; words that headers and compilers keep for theirs.
_MACRO = re.compile(r"""((U?INT\w*|SIZE|SIG_ATOMIC|PTRDIFF|WCHAR|WINT)_(MAX|MIN|WIDTH)
    | M_(1_PI|2_PI|2_SQRT|E|PI|LN|LOG|SQRT)\w* | FP_[A-Z]\w+ | S?NAN\w* | HUGE_VAL\w* | INFINITY | MAXFLOAT | MATH_ERR\w+ | math_errhandling
    | (RAND|MB_CUR|TMP|FOPEN|FILENAME)_MAX | EXIT_(SUCCESS|FAILURE) | (SEEK|RENAME)_[A-Z]+ | L_(tmpnam|ctermid|cuserid) | P_tmpdir
    | EOF | BUFSIZ | NFDBITS | FD_SETSIZE | W(NOHANG|UNTRACED|STOPPED|EXITED|CONTINUED|NOWAIT)
    | (BYTE|PDP|BIG|LITTLE)_(ORDER|ENDIAN))(?<!_)\Z""", re.VERBOSE)
_COMPILERS_MACRO = re.compile(r"_[A-Z][A-Z0-9_]*\Z")
# A value under the name of a function would hide it: a graph's node for atan2 is called atan2.
_CALLED = re.compile(r"(?<![\w:])([A-Za-z_]\w*)\(")
_FUNCTIONS = frozenset(
    name for op in SCALAR_OPS.values() for text in (*op.cuda.values(), *op.host.values()) for name in _CALLED.findall(text))
_RESERVED = frozenset(_RESERVED_TEXT.split()) | C_FUNCTIONS | C_FLOAT_FUNCTIONS | _FUNCTIONS
_NOT_IDENTIFIER = re.compile(r"[^0-9A-Za-z_]")


def identifier(name: str) -> str:
    """`name` as a C++ identifier: illegal characters become "_", reserved words get a "_" behind.

    Requires: two names of one kernel have two identifiers (composers take theirs from `free_identifier`).
    """
    text = _NOT_IDENTIFIER.sub("_", name)
    while "__" in text:
        text = text.replace("__", "_")  # C++ keeps names with two underscores for itself
    if not text or text[0].isdigit() or _COMPILERS_MACRO.match(text):
        text = "v" + text
    return text + "_" if text in _RESERVED or _MACRO.match(text) else text


def free_identifier(wanted: str, taken: set[str]) -> str:
    """`wanted`, or with the first number behind it that makes a name whose identifier nothing has yet; both join `taken`.

        wanted:   a__b   a_b     float    float_
        printed:  a_b    a_b_1   float_   float_1

    Of two names that differ, `identifier` may make one.
    """
    name, count = wanted, 0
    while name in taken or identifier(name) in taken:
        count += 1
        name = f"{wanted}_{count}"
    taken |= {name, identifier(name)}
    return name


def comment_text(text: str) -> str:
    """`text` as the rest of a `//` comment: one line that no character of it ends, and that does not take the next line with it."""
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
        """Comment lines; the text may have several, none of which can end the comment or continue it."""
        for part in text.splitlines() or [""]:
            self.line("// " + comment_text(part))

    @contextlib.contextmanager
    def block(self, head: str, tail: str = "") -> Iterator[None]:
        """`head { ... } tail`, the body one step deeper."""
        self.line(head + " {" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}" + tail)

    @contextlib.contextmanager
    def otherwise(self) -> Iterator[None]:
        """Turns the block that was just closed into `} else { ... }`."""
        self.lines[-1] = "  " * self.depth + "} else {"
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    def text(self) -> str:
        """All lines."""
        return "\n".join(self.lines) + "\n"
