"""Names and comments of C and C++ made from a user's texts."""
from __future__ import annotations

import re
from collections.abc import Collection

from tilefuse.base.printable import one_line

# Words of C and C++, and names of the emitted functions themselves.
_RESERVED = re.compile(r"""alignas|asm|auto|bool|break|case|catch|char|class|const|constexpr|continue|default|delete|do|double|else|enum|
    explicit|export|extern|false|float|for|friend|goto|if|inline|int|long|mutable|namespace|new|operator|private|protected|public|register|
    restrict|return|short|signed|sizeof|static|struct|switch|template|this|throw|true|try|typedef|typename|union|unsigned|using|virtual|
    void|volatile|while|and|or|not|xor|workspace|stream|scratch|pointers|arguments|status|launch|main|
    and_eq|or_eq|not_eq|xor_eq|bitand|bitor|compl|alignof|char8_t|char16_t|char32_t|wchar_t|concept|requires|const_cast|static_cast|
    dynamic_cast|reinterpret_cast|decltype|noexcept|nullptr|static_assert|thread_local|typeid|consteval|constinit|co_await|co_return|
    co_yield|linux|unix|NULL|NAN|INFINITY|EOF|errno|assert|stdin|stdout|stderr|cudaError_t|cudaStream_t""", re.VERBOSE)


def identifier(name: str) -> str:
    """`name` as a name that C and C++ take."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    if _RESERVED.fullmatch(plain):
        return f"{plain}_"
    return plain if plain[:1].isalpha() or plain[:1] == "_" else f"v_{plain}"


def distinct(name: str, taken: Collection[str]) -> str:
    """`identifier(name)`, with underscores appended until it is none of `taken`."""
    unique = identifier(name)
    while unique in taken:
        unique += "_"
    return unique


def banner(origin: str) -> str:
    """A text as comment lines."""
    # A backslash at the end would make the next line part of the comment.
    return "\n".join(f"// {one_line(line)}".rstrip("\\ \t") for line in origin.splitlines())


def c_string(text: str) -> str:
    """A text as a string of C, with all characters outside plain ASCII in octal."""
    parts = [f"\\{c:03o}" if c < 32 or c > 126 or c in b'"\\?' else chr(c) for c in text.encode()]
    return f'"{"".join(parts)}"'
