"""C expressions of users as calls of the operator table: the syntax of a registered operator's text, read for its adjoint.

    g * (x > 0 ? 1.0 : expf(x))    ->    mul(g, select(gt(x0, 0.0), 1.0, exp(x0)))

Also read: locals, assignments and choices before a `return`, and the older forms `a ** b`, `a if c else b`, `where(c, a, b)`.
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from tilefuse.base.errors import NameLookupError, UserError, nearest
from tilefuse.base.source import Span
from tilefuse.ir.ops import SCALAR_OPS

# Functions of one name for float and double that CUDA and the C++ library both have.
_C_FUNCTION_TEXT = """
    abs acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor fma fmax fmin fmod hypot
    isfinite isinf isnan ldexp lgamma log log10 log1p log2 max min nearbyint pow remainder rint round signbit sin sinh sqrt tan tanh tgamma
    trunc
"""
C_FUNCTIONS = frozenset(_C_FUNCTION_TEXT.split())
# Functions of float alone, as C names them.
C_FLOAT_FUNCTIONS = frozenset(f"{name}f" for name in C_FUNCTIONS - {"abs", "max", "min", "signbit", "isfinite", "isinf", "isnan"})
# C functions under the table's name. The table's own `round` takes halves to even, as C's `rint` does.
_TABLE_NAMES = {"fabs": "abs", "max": "fmax", "min": "fmin", "nearbyint": "round", "rint": "round", "where": "select"}
_PREDICATES = frozenset(name for name, op in SCALAR_OPS.items() if op.result == "bool")
_TYPES = frozenset(("T", "float", "double", "int", "long", "bool", "auto"))
_LEVELS = (("||",), ("&&",), ("==", "!=", "<", "<=", ">", ">="), ("+", "-"), ("*", "/", "%"))
_OPERATORS = {"||": "logical_or", "&&": "logical_and", "==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge", "+": "add",
              "-": "sub", "*": "mul", "/": "div", "%": "mod", "**": "pow"}
_TOKEN = re.compile(r"(?P<space>\s+|//[^\n]*|/\*.*?\*/)|"
                    r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fF]?(?![\w.]))|(?P<name>[A-Za-z_]\w*)|"
                    r"(?P<sign>\*\*|\|\||&&|[-+*/]=|[<>=!]=|[-+*/%<>=!?:(){},;])", re.DOTALL)
_ARITHMETIC = "+ - * /, comparisons, && || !, c ? a : b, and functions of C or of the operator table"
# A text beyond this comes from locals that use each other many times over. Units: characters.
MAX_CHARACTERS = 1 << 16


@dataclass(frozen=True, slots=True)
class _Value:
    """A part in the table's words. kind: "real", "int" (C would compute it in integers) or "bool"."""

    text: str
    kind: str = "real"

    def number(self) -> _Value:
        """The part as an operand of arithmetic: true is 1."""
        return _Value(f"select({self.text}, 1.0, 0.0)", "int") if self.kind == "bool" else self

    def truth(self) -> str:
        """The part as a condition: a number is true where it is not 0."""
        return self.text if self.kind == "bool" else f"ne({self.text}, 0.0)"


_Names = Mapping[str, _Value]


def table_text(text: str, names: Mapping[str, str], what: str, where: Span | None = None) -> str:
    """`g * y * (1 - y)` as the operator table writes it: `mul(mul(g, y), sub(1.0, y))`. `names`: name -> the table's name.

    Raises: UserError for text that is no such expression, NameLookupError for an unknown name.
    """
    if text.strip() == "0":
        return "0"
    reader = _Reader(text, what, where)
    known = {name: _Value(of) for name, of in names.items()}
    result = reader.body(known) if re.search(r"\breturn\b", text) else reader.whole(known)
    if len(result) > MAX_CHARACTERS:
        raise UserError(f"{what} becomes too long: its locals stand for each other {len(result) // MAX_CHARACTERS} times over", where=where,
                        hint="write it with fewer locals that are made of locals")
    return result


class _Reader:
    """Reads one text; positions are those of its tokens. Statements are read again for every choice before them."""

    def __init__(self, text: str, what: str, where: Span | None) -> None:
        self.given, self.what, self.where = text, what, where
        self.tokens: list[tuple[str, str]] = []
        self.at = 0
        place = 0
        while place < len(text):
            match = _TOKEN.match(text, place)
            if match is None:
                self._refuse(f"{text[place:].split()[0]!r} is no arithmetic", _ARITHMETIC)
            if match.lastgroup != "space":
                self.tokens.append((str(match.lastgroup), match.group()))
            place = match.end()
        self.names: _Names = {}

    def whole(self, names: _Names) -> str:
        """The text, one expression."""
        self.names = names
        value = self._choice()
        if self.at < len(self.tokens):
            self._refuse(f"{self._word()!r} follows a whole expression", _ARITHMETIC)
        return value.number().text

    def body(self, names: _Names) -> str:
        """The text, statements that return."""
        value = self._statements([(0, len(self.tokens))], names)
        return value.number().text

    # -- statements

    def _statements(self, ranges: list[tuple[int, int]], names: _Names) -> _Value:
        """The value that the statements in the ranges of tokens return, one range after the other."""
        while ranges:
            (self.at, end), self.names = ranges[0], names
            if self.at >= end:
                ranges = ranges[1:]
                continue
            word = self._word()
            if word == "return":
                self.at += 1
                value = self._choice()
                self._expect(";")
                return value
            if word == "if":
                self.at += 1
                self._expect("(")
                condition = self._choice().truth()
                self._expect(")")
                then = self._extent()
                otherwise = (then[1], then[1])
                if self._word() == "else":
                    self.at += 1
                    otherwise = self._extent()
                rest = [(otherwise[1], end), *ranges[1:]]
                first = self._statements([then, *rest], names)
                second = self._statements([otherwise, *rest], names)
                return _chosen(condition, first, second)
            if word in ("{", "}", ";"):
                ranges = [(self.at + 1, end), *ranges[1:]]
                continue
            names = self._definition(names)
            ranges = [(self.at, end), *ranges[1:]]
        self._refuse("not every way through it ends in a return")

    def _extent(self) -> tuple[int, int]:
        """The tokens of the statement that begins here; the reader stands behind it."""
        first, depth = self.at, 0
        if self._word() == "if":
            self.at += 2
            depth = 1
            while depth and self.at < len(self.tokens):
                depth += {"(": 1, ")": -1}.get(self._word(), 0)
                self.at += 1
            self._extent()
            if self._word() == "else":
                self.at += 1
                self._extent()
            return first, self.at
        while self.at < len(self.tokens):
            word = self._word()
            depth += {"{": 1, "}": -1}.get(word, 0)
            self.at += 1
            if depth == 0 and word in (";", "}"):
                return first, self.at
        self._refuse("a statement does not end")

    def _definition(self, names: _Names) -> _Names:
        """The names after a local or an assignment."""
        if self._word() == "const":
            self.at += 1
        of = self._word() if self._word() in _TYPES else ""
        if of:
            self.at += 1
        known = dict(names)
        while True:
            kind, name = self.tokens[self.at] if self.at < len(self.tokens) else ("", "the end")
            if kind != "name" or name in ("for", "while", "do", "switch"):
                self._refuse(f"{name!r} cannot be read here", "locals, assignments, if and return; no loops")
            if bool(of) == (name in known):
                self._refuse(f"{name} is {'declared twice' if of else 'assigned to and not declared'}")
            self.at += 1
            sign = self._word()
            if sign not in (("=",) if of else ("=", "+=", "-=", "*=", "/=")):
                self._refuse(f"{name} gets no value where it stands before {sign!r}", f"T {name} = ...;")
            self.at += 1
            value = self._choice()
            known[name] = self._typed(of, value) if sign == "=" else self._combined(sign[0], known[name], value)
            self.names = known
            if of and self._word() == ",":
                self.at += 1
                continue
            self._expect(";")
            return known

    # -- expressions

    def _choice(self) -> _Value:
        first = self._level(0)
        if self._word() == "?":
            self.at += 1
            then = self._choice()
            self._expect(":")
            return _chosen(first.truth(), then, self._choice())
        if self._word() == "if":
            self.at += 1
            condition = self._level(0).truth()
            self._expect("else")
            return _chosen(condition, first, self._choice())
        return first

    def _level(self, level: int) -> _Value:
        if level == len(_LEVELS):
            return self._unary()
        value = self._level(level + 1)
        compared = False
        while (sign := self._word()) in _LEVELS[level]:
            if compared:
                self._refuse("two comparisons in a row", "a < b && b < c")
            compared = level == 2
            self.at += 1
            value = self._combined(sign, value, self._level(level + 1))
        return value

    def _unary(self) -> _Value:
        sign = self._word()
        if sign in ("-", "+", "!"):
            self.at += 1
            value = self._unary()
            if sign == "!":
                return _Value(f"logical_not({value.truth()})", "bool")
            value = value.number()
            return value if sign == "+" else _Value(f"neg({value.text})", value.kind)
        value = self._primary()
        if self._word() == "**":
            self.at += 1
            return self._combined("**", value, self._unary())
        return value

    def _primary(self) -> _Value:
        if self.at >= len(self.tokens):
            self._refuse(f"is no expression: {self.given!r}", "it ends where an operand should stand")
        kind, word = self.tokens[self.at]
        self.at += 1
        if kind == "number":
            return _number(word)
        if word == "(":
            if self._word() in _TYPES and self.tokens[self.at + 1:self.at + 2] == [("sign", ")")]:
                of = self._word()
                self.at += 2
                return self._typed(of, self._unary())
            value = self._choice()
            self._expect(")")
            return value
        if kind == "name" and self._word() == "(":
            return self._call(word)
        if word in ("true", "false"):
            return _Value(f"eq(0.0, {0.0 if word == 'true' else 1.0})", "bool")
        if kind == "name" and word in self.names:
            return self.names[word]
        if kind == "name":
            raise NameLookupError(f"{self.what} has the unknown name {word}", where=self.where, hint=f"known: {', '.join(self.names)}")
        self._refuse(f"is no expression: {word!r} stands where an operand should", _ARITHMETIC)

    def _call(self, function: str) -> _Value:
        self.at += 1
        arguments = [self._choice()] if self._word() != ")" else []
        while self._word() == ",":
            self.at += 1
            arguments.append(self._choice())
        self._expect(")")
        if function in _TYPES and len(arguments) == 1:
            return self._typed(function, arguments[0])
        plain = function[:-1] if function in C_FLOAT_FUNCTIONS else function
        numbers = [a.number().text for a in arguments]
        if plain == "round" and len(numbers) == 1:  # C: halves away from zero
            x, = numbers
            return _Value(f"add(trunc({x}), select(ge(abs(sub({x}, trunc({x}))), 0.5), sign({x}), 0.0))")
        if plain == "fdim" and len(numbers) == 2:
            a, b = numbers
            return _Value(f"select(le({a}, {b}), 0.0, sub({a}, {b}))")
        name = _TABLE_NAMES.get(plain, plain)
        op = SCALAR_OPS.get(name)
        if op is None or op.arity != len(arguments):
            hint = f"{function} takes {op.arity} arguments" if op is not None else \
                f"C has {function}, the operator table has not" if plain in C_FUNCTIONS else nearest(function, {*SCALAR_OPS, *C_FUNCTIONS})
            raise NameLookupError(f"{self.what} calls {function} with {len(arguments)} arguments", where=self.where, hint=hint)
        if name == "select":
            return _chosen(arguments[0].truth(), arguments[1], arguments[2])
        if name.startswith("logical_"):
            numbers = [a.truth() for a in arguments]
        return _Value(f"{name}({', '.join(numbers)})", "bool" if name in _PREDICATES else "real")

    def _combined(self, sign: str, a: _Value, b: _Value) -> _Value:
        if sign in ("||", "&&"):
            return _Value(f"{_OPERATORS[sign]}({a.truth()}, {b.truth()})", "bool")
        a, b = a.number(), b.number()
        both = "int" if a.kind == b.kind == "int" else "real"
        if sign in ("/", "%") and both == "int":
            self._refuse("a quotient of two integers, which C cuts to an integer", "write 1.0 / 2, or 0.5")
        text = f"{_OPERATORS[sign]}({a.text}, {b.text})"
        return _Value(text, "bool" if sign in _LEVELS[2] else both)

    def _typed(self, of: str, value: _Value) -> _Value:
        """A value converted to a C type: reals all have the operands' type here."""
        match of:
            case "bool":
                return _Value(value.truth(), "bool")
            case "int" | "long":
                value = value.number()
                return value if value.kind == "int" else _Value(f"trunc({value.text})", "int")
            case "auto" | "":
                return value
        return _Value(value.number().text)

    # -- tokens

    def _word(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def _expect(self, word: str) -> None:
        if self._word() != word:
            self._refuse(f"is no expression: {word!r} is missing before {self._word() or 'the end'!r} in {self.given!r}")
        self.at += 1

    def _refuse(self, message: str, hint: str | None = None) -> NoReturn:
        raise UserError(f"{self.what}{' ' if message.startswith('is no') else ': '}{message}", where=self.where, hint=hint)


def _number(word: str) -> _Value:
    """A literal; one that ends in f is rounded to single precision."""
    number = float(np.float32(word[:-1])) if word[-1] in "fF" else float(word)
    return _Value(repr(number), "int" if word.isdigit() else "real")


def _chosen(condition: str, a: _Value, b: _Value) -> _Value:
    if a.kind == b.kind == "bool":
        return _Value(f"select({condition}, {a.text}, {b.text})", "bool")
    a, b = a.number(), b.number()
    return _Value(f"select({condition}, {a.text}, {b.text})", "int" if a.kind == b.kind == "int" else "real")
