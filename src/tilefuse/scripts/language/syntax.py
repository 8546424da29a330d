"""Scripts over elementary functions: from text to declarations, inputs, calls and results, each with its place in the text.

    TILE32x32 A;  subvector32 p, q, r, s;     or:  matrix A;  vector p, q, r, s;  scalar alpha;  matrix B column major;
    input A, p, r;
    q = sgemv(A, p);                          several results:  a, b = srot(x, y, c, s);
    s = sgemtv(A, r);
    return q, s;

Comments are `//`, `#` and `/* */`. `scripts/language/lower.py` looks functions up.
"""
from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from tilefuse.base.errors import ParseError, nearest
from tilefuse.base.source import Span

KINDS = ("scalar", "vector", "matrix")
WORDS = (*KINDS, "input", "return", "column", "row", "major")
_ELEMENT = re.compile(r"(?:(TILE)\d+x\d+|(subvector)\d+)\Z", re.IGNORECASE)
_TOKEN = re.compile(r"""
    (?P<space>\s+)
  | (?P<comment>//[^\n]*|\#[^\n]*|/\*.*?\*/)
  | (?P<number>[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
  | (?P<word>[A-Za-z_]\w*)
  | (?P<symbol>[=(),;])
""", re.VERBOSE | re.DOTALL)
_NO_NUMBER = re.compile(r"[-+]?\s*[\d.][\w.]*")
T = TypeVar("T")


@dataclass(frozen=True)
class Name:
    """A name with its place in the text."""

    text: str
    span: Span


@dataclass(frozen=True)
class Number:
    """A number as an argument, with its place in the text."""

    value: float
    span: Span


@dataclass(frozen=True)
class Declaration:
    """Names of one kind (scalar, vector, matrix). column_major: the declared order; None without one."""

    kind: str
    names: tuple[Name, ...]
    column_major: bool | None = None


@dataclass(frozen=True)
class Statement:
    """results = function(arguments)"""

    results: tuple[Name, ...]
    function: Name
    arguments: tuple[Name | Number, ...]


@dataclass(frozen=True)
class Script:
    """A parsed script: kinds by name as declared, inputs in order, calls in order, results in order."""

    source: str
    declarations: tuple[Declaration, ...]
    inputs: tuple[Name, ...]
    statements: tuple[Statement, ...]
    results: tuple[Name, ...]

    @property
    def declared(self) -> dict[str, tuple[str, bool | None]]:
        """Name -> (kind, whether column-major)."""
        return {n.text: (d.kind, d.column_major) for d in self.declarations for n in d.names}


def parse_script(text: str, source: str = "script") -> Script:
    """The script of a text. Raises: ParseError with line and caret."""
    return _Parser(text, source).script()


def parse_calls(text: str, source: str) -> tuple[Statement, ...]:
    """The statements of a text that is nothing but calls. Raises: ParseError with the place."""
    return _Parser(text, source).calls()


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int


class _Parser:
    def __init__(self, text: str, source: str) -> None:
        self.text, self.source = text, source
        self.line_starts = [0, *(m.end() for m in re.finditer("\n", text))]
        self.tokens = self._cut()
        self.position = 0
        self.declarations: list[Declaration] = []
        self.inputs: list[Name] = []
        self.statements: list[Statement] = []
        self.results: tuple[Name, ...] = ()
        self.first_seen: dict[str, Name] = {}

    # -- tokens

    def _cut(self) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        while at < len(self.text):
            match = _TOKEN.match(self.text, at)
            if match is None:
                if self.text.startswith("/*", at):
                    self.fail("the comment is not closed", at, "end it with */")
                if (wrong := _NO_NUMBER.match(self.text, at)) is not None:
                    self.fail(f"{wrong[0]} is no number", at, "for example 2, -0.5 or 1e-3")
                self.fail(f"unexpected character {self.text[at]!r}", at, "a script has names, numbers and = ( ) , ;")
            kind = str(match.lastgroup)
            if kind not in ("space", "comment"):
                tokens.append(_Token(kind, match[0], at))
            at = match.end()
        return [*tokens, _Token("end", "the end of the script", len(self.text))]

    def span(self, at: int) -> Span:
        line = bisect_right(self.line_starts, at)
        start = self.line_starts[line - 1]
        return Span(self.source, line, at - start + 1, self.text[start:].partition("\n")[0])

    def fail(self, message: str, at: int, hint: str | None = None) -> NoReturn:
        raise ParseError(message, where=self.span(at), hint=hint)

    @property
    def token(self) -> _Token:
        return self.tokens[self.position]

    def after_last(self) -> int:
        """The end of the token before the current one: the place of a missing token."""
        last = self.tokens[self.position - 1] if self.position else None
        return last.at + len(last.text) if last is not None else 0

    def accept(self, text: str) -> bool:
        if self.token.text != text or self.token.kind not in ("symbol", "word"):
            return False
        self.position += 1
        return True

    def current_token_text(self) -> str:
        """The current token, as messages name it."""
        return self.token.text if self.token.kind == "end" else repr(self.token.text)

    def expect(self, symbol: str, context: str, hint: str | None = None) -> None:
        if not self.accept(symbol):
            at = self.after_last() if symbol == ";" else self.token.at
            self.fail(f"expected {symbol!r} {context}, found {self.current_token_text()}", at, hint)

    def name(self, role: str) -> Name:
        token = self.token
        if token.kind != "word":
            self.fail(f"expected {role}, found {self.current_token_text()}", token.at)
        if token.text in WORDS:
            self.fail(f"{token.text!r} is a word of the language and cannot be {role}", token.at, "choose another name")
        self.position += 1
        return Name(token.text, self.span(token.at))

    def listed(self, item: Callable[[], T]) -> tuple[T, ...]:
        items = [item()]
        while self.accept(","):
            items.append(item())
        return tuple(items)

    # -- statements

    def script(self) -> Script:
        returned: Span | None = None
        while self.token.kind != "end":
            token = self.token
            if returned is not None:
                self.fail("nothing may follow `return`", token.at, "make `return` the last statement")
            if token.kind != "word":
                self.fail(f"expected a declaration, `input`, a call or `return`, found {token.text!r}", token.at)
            if token.text == "return":
                returned = self.span(token.at)
            self.statement(token)
        if not self.results:
            self.fail("the script returns nothing", len(self.text), "end it with `return <names>;`")
        return Script(self.source, tuple(self.declarations), tuple(self.inputs), tuple(self.statements), self.results)

    def calls(self) -> tuple[Statement, ...]:
        while self.token.kind != "end":
            self.call()
        return tuple(self.statements)

    def statement(self, token: _Token) -> None:
        kind = _kind_of(token.text)
        following = self.tokens[self.position + 1]
        if kind is not None and following.kind == "word":
            self.position += 1
            self.declaration(kind)
        elif self.accept("input"):
            for name in self.listed(lambda: self.name("an input")):
                if name.text in {n.text for n in self.inputs}:
                    self.fail_at(name, f"{name.text} is an input already")
                self.inputs.append(name)
            self.expect(";", "after the inputs")
        elif self.accept("return"):
            self.results = self.listed(lambda: self.name("a result"))
            self.expect(";", "after the results")
        elif following.kind == "word":
            self.fail(f"{token.text!r} is no kind of variable and no statement", token.at,
                      nearest(token.text, WORDS) or "scalar, vector, matrix, TILE32x32, subvector32, input, return")
        else:
            self.call()

    def fail_at(self, name: Name, message: str, hint: str | None = None) -> NoReturn:
        raise ParseError(message, where=name.span, hint=hint)

    def declaration(self, kind: str) -> None:
        names: list[Name] = []
        column_major: bool | None = None
        for name in self.listed(lambda: self.name("a variable")):
            first = self.first_seen.setdefault(name.text, name)
            if first is not name:
                self.fail_at(name, f"{name.text} is declared twice, first in line {first.span.line}", "declare each name once")
            names.append(name)
        if self.token.text in ("column", "row"):
            order = self.token
            self.position += 1
            if kind != "matrix":
                self.fail(f"a {kind} has no order of rows and columns", order.at, "only matrices are column major or row major")
            self.expect("major", f"after {order.text!r}")
            column_major = order.text == "column"
        order_meant = nearest(self.token.text, ("column", "row")) if self.token.kind == "word" else None
        self.expect(";", "after the declaration", order_meant)
        self.declarations.append(Declaration(kind, tuple(names), column_major))

    def call(self) -> None:
        results = self.listed(lambda: self.name("a result"))
        self.expect("=", "after the results", "a statement is `result = function(arguments);`")
        function = self.name("a function")
        self.expect("(", f"after {function.text}", "a statement is `result = function(arguments);`")
        arguments = () if self.token.text == ")" else self.listed(self.argument)
        self.expect(")", "after the arguments")
        self.expect(";", "after the call")
        self.statements.append(Statement(results, function, arguments))

    def argument(self) -> Name | Number:
        token = self.token
        if token.kind == "number":
            self.position += 1
            return Number(float(token.text), self.span(token.at))
        name = self.name("an argument")
        if self.token.text == "(":
            self.fail("a call cannot be an argument", self.token.at, f"write `t = {name.text}(...);` and pass t")
        return name


def _kind_of(word: str) -> str | None:
    """scalar, vector or matrix, for the words that declare; None for others."""
    if word in KINDS:
        return word
    element = _ELEMENT.match(word)
    return None if element is None else "matrix" if element[1] else "vector"
