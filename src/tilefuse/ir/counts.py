"""Numbers that follow from sizes known only when a program is called: tiles, blocks, words of memory.

    ceil(m, 128)           tiles of 128 words that cover m words
    times(blocks, 4)       words that so many blocks hand on

A `Count` is computed by the function that launches kernels, once a call; its value in Python and its C text mean the same number.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Union

# Products stay at this number once they reach it, in Python and in C alike: no more memory than that is addressed by anything.
LIMIT = 1 << 60
# Functions of counts that C text calls, and their definitions.
C_FUNCTIONS = f"""static inline long long tf_times(long long a, long long b) {{
  return b > 0 && a > {LIMIT}ll / b ? {LIMIT}ll : a * b;
}}
static inline long long tf_plus(long long a, long long b) {{ return a + b > {LIMIT}ll ? {LIMIT}ll : a + b; }}
static inline long long tf_ceil(long long a, long long b) {{ return (a + b - 1) / b; }}
static inline long long tf_most(long long a, long long b) {{ return a > b ? a : b; }}
static inline long long tf_least(long long a, long long b) {{ return a < b ? a : b; }}
"""


@dataclass(frozen=True, slots=True)
class Count:
    """A number that is never negative: `function` of two operands ("times", "plus", "ceil" for a / b rounded up, "most", "least")."""

    function: str
    left: Operand
    right: Operand

    def value(self, sizes: Mapping[str, int]) -> int:
        """The number where the sizes are these."""
        return count_value(self, sizes)

    @property
    def sizes(self) -> frozenset[str]:
        """Names of the sizes that it depends on."""
        return sizes_of((self.left, self.right))


Operand = Union[Count, str, int]


def count_value(c: Operand, sizes: Mapping[str, int]) -> int:
    """The number that an operand is where the sizes are these."""
    if isinstance(c, str):
        return sizes[c]
    if isinstance(c, int):
        return c
    a, b = count_value(c.left, sizes), count_value(c.right, sizes)
    match c.function:
        case "times":
            return min(a * b, LIMIT)
        case "plus":
            return min(a + b, LIMIT)
        case "ceil":
            return -(-a // b)
        case "least":
            return min(a, b)
    return max(a, b)


def count_text(c: Operand, names: Mapping[str, str]) -> str:
    """C text of an operand, of type long long, with the functions of `C_FUNCTIONS`; `names`: name of each size in the text."""
    if isinstance(c, str):
        return names[c]
    if isinstance(c, int):
        return f"{c}ll"
    return f"tf_{c.function}({count_text(c.left, names)}, {count_text(c.right, names)})"


def sizes_of(operands: Iterable[Operand]) -> frozenset[str]:
    """Names of the sizes that operands depend on."""
    names: set[str] = set()
    for c in operands:
        if isinstance(c, str):
            names.add(c)
        elif isinstance(c, Count):
            names |= c.sizes
    return frozenset(names)


def times(*factors: Operand) -> Operand:
    """The product; a number where all factors are."""
    product: Operand = 1
    for f in factors:
        if isinstance(product, int) and isinstance(f, int):
            product *= f
        elif product == 0 or f == 0:
            product = 0
        else:
            product = f if product == 1 else product if f == 1 else Count("times", product, f)
    return product


def plus(a: Operand, b: Operand) -> Operand:
    """The sum; a number where both are."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return b if a == 0 else a if b == 0 else Count("plus", a, b)


def ceil(a: Operand, by: Operand) -> Operand:
    """a / by rounded up; a number where both are. Requires: `by` is positive."""
    if isinstance(a, int) and isinstance(by, int):
        return -(-a // by)
    return a if by == 1 else Count("ceil", a, by)


def most(a: Operand, b: Operand) -> Operand:
    """The larger of two; a number where both are."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return a if a == b else Count("most", a, b)


def least(a: Operand, b: Operand) -> Operand:
    """The smaller of two; a number where both are."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return a if a == b else Count("least", a, b)
