"""The graph's text form: one printer and one parser, side by side.

Laws (tests/laws): parse(print(g)) == g, print(parse(t)) == t for printed t, equal text if and only if equal graph. Printing
never raises, even on graphs that do not verify. The grammar is in `docs/`; `//` inside parentheses is floor division, elsewhere
a comment to the end of the line.
"""
from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable
from typing import NoReturn, TypeVar

from tilefuse.base.errors import ParseError, nearest
from tilefuse.base.source import Span
from tilefuse.ir.affine import Affine, Atom, FloorDiv, Mod, from_terms
from tilefuse.ir.dtype import BOOL, DTYPES, DType
from tilefuse.ir.graph import REDUCE_MONOIDS, SCAN_MONOIDS, SCATTER_MONOIDS, Attribute, Graph, Input, Node, Type
from tilefuse.ir.ops import SCALAR_OPS
from tilefuse.ir.scalar import Bound, Call, Const, Expr, Guard, Index, Lookup, Read, const
from tilefuse.ir.verify import Finding, verify

KINDS = ("map", "gather", *(f"reduce.{m}" for m in REDUCE_MONOIDS), *(f"scan.{m}" for m in SCAN_MONOIDS),
         *(f"scatter.{m}" for m in SCATTER_MONOIDS), "library.NAME")
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_.]+\Z")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
T = TypeVar("T")


# ---------------------------------------------------------------- printer

def value_text(name: str) -> str:
    """`%name`, quoted where the name has unusual characters."""
    return "%" + (name if _PLAIN_VALUE.match(name) else json.dumps(name))


def print_expr(e: Expr) -> str:
    """Text of a scalar expression."""
    match e:
        case Const(text, dtype):
            return f"{text}:{dtype}"
        case Read(value, index):
            return f"{value_text(value)}[{', '.join(map(str, index))}]"
        case Lookup(value, subscripts):
            return f"lookup({', '.join([value_text(value), *map(print_expr, subscripts)])})"
        case Index(affine):
            return f"index({affine})"
        case Call(fn, args):
            return f"{fn}({', '.join(map(print_expr, args))})"
        case Guard(bounds, then, otherwise):
            tests = ", ".join(f"{b.low} <= {b.index} < {b.high}" for b in bounds)
            return f"guard({tests} ? {print_expr(then)} : {print_expr(otherwise)})"
    return f"<{type(e).__name__}>"


def _attribute_text(value: Attribute) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case None:
            return "none"
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value)
        case tuple():
            return "(" + ", ".join(map(_attribute_text, value)) + ("," if len(value) == 1 else "") + ")"
    return f"<{type(value).__name__}>"


def _over_text(over: tuple[tuple[str, int], ...]) -> str:
    return "over [" + ", ".join(f"{name} < {extent}" for name, extent in over) + "]"


def print_node(node: Node) -> str:
    """Text of one node, on one line without indentation."""
    parts = [f"{value_text(node.name)}: {node.type} = {node.kind}"]
    category = node.category
    if category == "library":
        parts.append("(" + ", ".join(map(value_text, node.operands)) + ")")
        if node.attributes:
            parts.append("{" + ", ".join(f"{k} = {_attribute_text(v)}" for k, v in node.attributes) + "}")
        return " ".join(parts)
    if category != "scatter":
        parts.append(f"[{', '.join(node.axes)}]")
    if category in ("reduce", "scatter"):
        parts.append(_over_text(node.over))
    if category == "scan":
        parts.append(f"along {node.along}")
    if category == "scatter":
        parts.append("into " + ", ".join(map(value_text, node.operands)))
        parts.append("at [" + ", ".join(map(print_expr, node.target)) + "]")
    parts.append("{ " + (print_expr(node.body) if node.body is not None else "") + " }")
    return " ".join(parts)


def print_graph(graph: Graph) -> str:
    """Text of a graph; `parse_graph` reads it back. Ends with a newline."""
    inputs = ", ".join(f"{'const ' if i.constant else ''}{value_text(i.name)}: {i.type}" for i in graph.inputs)
    types = ", ".join(str(graph.type_by_name.get(r, "?")) for r in graph.results)
    name = graph.name if _PLAIN_NAME.match(graph.name) else json.dumps(graph.name)
    lines = [f"graph @{name}({inputs}) -> ({types}) {{"]
    lines += [f"  {print_node(node)}" for node in graph.nodes]
    lines += [f"  update {value_text(target)} = {value_text(value)}" for target, value in graph.updates]
    lines.append("  return" + "".join(f"{',' if n else ''} {value_text(r)}" for n, r in enumerate(graph.results)))
    return "\n".join([*lines, "}"]) + "\n"


# ---------------------------------------------------------------- parser

# The most frequent kinds come first: the order decides the time, and the kind only where two could begin alike (// / - -> <=).
_TOKEN = re.compile(r"""(?:
    (?P<word>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)
  | (?P<mark>[()\[\]{},:=])
  | (?P<value>%             # directly before a name; a remainder has a space before its divisor
    (?:[A-Za-z0-9_.]+|"(?:[^"\\]|\\.)*"))
  | (?P<comment>//[^\n]*)
  | (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<number>-?(?:inf\b|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?))
  | (?P<symbol>->|<=|[-+*/%@<>?])
)\s*""", re.VERBOSE)
_DIVISION = re.compile(r"(//)\s*(?=\d)")


class _Tokens:
    """The text cut into (kind, text, position) tokens, with a reading position. The last token has the kind "end"."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.line_starts = [0, *(m.end() for m in re.finditer("\n", text))]
        self.tokens: list[tuple[str, str, int]] = []
        self.position = 0
        self._cut()

    def _cut(self) -> None:
        text = self.text
        depth = 0
        add, match, length = self.tokens.append, _TOKEN.match, len(text)
        at = length - len(text.lstrip())
        while at < length:
            division = _DIVISION.match(text, at) if depth and text[at] == "/" else None
            lexeme = division or match(text, at)
            if lexeme is None:
                self.fail(f"unexpected character {text[at]!r}", at)
            kind = "symbol" if division else lexeme.lastgroup
            if kind == "mark":
                piece = text[at]
                add(("symbol", piece, at))
                depth += (piece == "(") - (piece == ")")
            elif kind != "comment":
                add((kind or "", lexeme[lexeme.lastindex or 0], at))
            at = lexeme.end()
        add(("end", "end of the text", length))

    def span(self, at: int) -> Span:
        """Source place of a text offset."""
        line = bisect_right(self.line_starts, at)
        start = self.line_starts[line - 1]
        end = self.text.find("\n", start)
        return Span(self.source, line, at - start + 1, self.text[start:end] if end >= 0 else self.text[start:])

    def fail(self, message: str, at: int | None = None, hint: str | None = None) -> NoReturn:
        """Raises: ParseError at `at`, by default at the current token."""
        raise ParseError(message, where=self.span(self.tokens[self.position][2] if at is None else at), hint=hint)

    @property
    def kind(self) -> str:
        """Kind of the current token."""
        return self.tokens[self.position][0]

    @property
    def piece(self) -> str:
        """Text of the current token."""
        return self.tokens[self.position][1]

    @property
    def at(self) -> int:
        """Offset of the current token."""
        return self.tokens[self.position][2]

    def next(self) -> str:
        """The current token's text; moves to the next token."""
        piece = self.tokens[self.position][1]
        self.position += 1
        return piece

    def accept(self, piece: str) -> bool:
        """Steps over the token if it is this symbol or word."""
        kind, text, _ = self.tokens[self.position]
        if text != piece or kind not in ("symbol", "word"):
            return False
        self.position += 1
        return True

    def expect(self, piece: str) -> None:
        """Skips a symbol. Raises: ParseError for another token."""
        if not self.accept(piece):
            self.fail(f"expected {piece!r}, found {self.piece!r}")

    def word(self, what: str) -> str:
        """The next word. Raises: ParseError for another token."""
        if self.kind != "word":
            self.fail(f"expected {what}, found {self.piece!r}")
        return self.next()

    def integer(self, what: str) -> int:
        """The next integer. Raises: ParseError for another token."""
        if self.kind != "number" or not re.fullmatch(r"-?\d+", self.piece):
            self.fail(f"expected {what}, an integer, found {self.piece!r}")
        return int(self.next())

    def value(self) -> str:
        """The name of the next value (%name). Raises: ParseError for another token."""
        if self.kind != "value":
            self.fail(f"expected a value like %name, found {self.piece!r}")
        name = self.next()[1:]
        return str(json.loads(name)) if name.startswith('"') else name

    def listed(self, item: Callable[[], T], close: str) -> tuple[T, ...]:
        """Items with commas between, up to and over `close`."""
        items: list[T] = []
        if self.accept(close):
            return ()
        while True:
            items.append(item())
            if self.accept(close):
                return tuple(items)
            self.expect(",")


class _Parser:
    def __init__(self, text: str, source: str) -> None:
        self.tokens = _Tokens(text, source)

    # -- types and index expressions

    def dtype(self) -> DType:
        """A data type. Raises: ParseError for an unknown name."""
        at = self.tokens.at
        name = self.tokens.word("a data type")
        if name not in DTYPES:
            self.tokens.fail(f"unknown data type {name!r}", at, nearest(name, DTYPES) or f"known: {' '.join(DTYPES)}")
        return DTYPES[name]

    def type(self) -> Type:
        """A data type with its extents."""
        dtype = self.dtype()
        self.tokens.expect("[")
        return Type(dtype, self.tokens.listed(lambda: self.tokens.integer("an extent"), "]"))

    def affine(self) -> Affine:
        """A sum of terms in normal form; divisions and remainders stay as written."""
        terms: list[tuple[Atom, int]] = []
        total = 0
        while True:
            t = self.tokens
            number = t.integer("a coefficient") if t.kind == "number" else None
            if number is not None and not t.accept("*"):
                total += number
            else:
                factor = 1 if number is None else number
                part = self.factor()
                terms.extend((atom, c * factor) for atom, c in part.terms)
                total += part.const * factor
            if not t.accept("+"):
                return from_terms(terms, total)

    def factor(self) -> Affine:
        """An axis, a sum in parentheses, or a division or remainder in parentheses."""
        t = self.tokens
        if not t.accept("("):
            return Affine(((t.word("an axis"), 1),))
        of = self.affine()
        if t.accept(")"):
            return of
        divides = t.accept("//")
        if not divides:
            t.expect("%")
        at = t.at
        by = t.integer("a divisor")
        if by <= 0:
            t.fail(f"division of an index by {by}: the divisor must be positive", at)
        t.expect(")")
        return Affine(((FloorDiv(of, by) if divides else Mod(of, by), 1),))

    def axis(self) -> str:
        """The name of an axis."""
        return self.tokens.word("an axis")

    # -- scalar expressions

    def expr(self) -> Expr:
        """A scalar expression."""
        t = self.tokens
        at = t.at
        if t.kind == "value":
            value = t.value()
            t.expect("[")
            return Read(value, t.listed(self.affine, "]"))
        if t.kind == "number" or (t.kind == "word" and t.piece in ("nan", "inf", "true", "false")):
            return self.constant()
        name = t.word("an expression")
        t.expect("(")
        if name == "lookup":
            value = t.value()
            if t.accept(")"):
                return Lookup(value, ())
            t.expect(",")
            return Lookup(value, t.listed(self.expr, ")"))
        if name == "index":
            affine = self.affine()
            t.expect(")")
            return Index(affine)
        if name == "guard":
            return self.guard()
        if name not in SCALAR_OPS and name not in DTYPES:
            t.fail(f"unknown function {name!r}", at, nearest(name, [*SCALAR_OPS, *DTYPES, "guard", "index", "lookup"]))
        return Call(name, t.listed(self.expr, ")"))

    def constant(self) -> Const:
        """A number with its data type."""
        t = self.tokens
        at = t.at
        text = t.next()
        if not t.accept(":"):
            t.fail(f"the constant {text} has no type", at, f"write it as {text}:f32, or with another data type")
        dtype = self.dtype()
        if (text in ("true", "false")) != (dtype == BOOL):
            t.fail(f"{text} is not a constant of {dtype}", at)
        if dtype == BOOL:
            return Const(text, dtype)
        if dtype.is_integer:
            if not re.fullmatch(r"-?\d+", text) or const(int(text), dtype).text != text:
                t.fail(f"{text} is not a constant of {dtype}", at)
            return Const(text, dtype)
        return const(float(text), dtype)

    def guard(self) -> Guard[Expr]:
        """A guard: bounds, the guarded expression and the alternative."""
        t = self.tokens
        bounds: list[Bound] = []
        while not t.accept("?"):
            if bounds:
                t.expect(",")
            low = t.integer("a lower bound")
            t.expect("<=")
            affine = self.affine()
            t.expect("<")
            bounds.append(Bound(affine, low, t.integer("an upper bound")))
        then = self.expr()
        t.expect(":")
        otherwise = self.expr()
        t.expect(")")
        return Guard(tuple(bounds), then, otherwise)

    # -- nodes

    def over(self) -> tuple[tuple[str, int], ...]:
        """Reduced axes with their extents."""
        def one() -> tuple[str, int]:
            name = self.axis()
            self.tokens.expect("<")
            return name, self.tokens.integer("an extent")

        self.tokens.expect("over")
        self.tokens.expect("[")
        return self.tokens.listed(one, "]")

    def attribute(self) -> Attribute:
        """One attribute's value."""
        t = self.tokens
        if t.kind == "string":
            return str(json.loads(t.next()))
        if t.accept("("):
            items: list[Attribute] = []
            while not t.accept(")"):
                items.append(self.attribute())
                if not t.accept(","):
                    t.expect(")")
                    break
            return tuple(items)
        if t.kind == "number":
            text = t.next()
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        at = t.at
        word = t.word("an attribute's value")
        words: dict[str, Attribute] = {"true": True, "false": False, "none": None, "inf": float("inf"), "nan": float("nan")}
        if word not in words:
            t.fail(f"{word!r} is not an attribute's value", at, "strings are quoted; other words: true false none inf nan")
        return words[word]

    def attributes(self) -> tuple[tuple[str, Attribute], ...]:
        """Attributes in braces, sorted by name."""
        def one() -> tuple[str, Attribute]:
            name = self.tokens.word("an attribute's name")
            self.tokens.expect("=")
            return name, self.attribute()

        pairs = self.tokens.listed(one, "}") if self.tokens.accept("{") else ()
        return tuple(sorted(pairs, key=lambda pair: pair[0]))

    def body(self) -> Expr:
        """An expression in braces."""
        self.tokens.expect("{")
        e = self.expr()
        self.tokens.expect("}")
        return e

    def node(self) -> Node:
        """One node of a graph."""
        t = self.tokens
        span = t.span(t.at)
        name = t.value()
        t.expect(":")
        type_ = self.type()
        t.expect("=")
        at = t.at
        kind = t.word("a node kind")
        category = kind.partition(".")[0]
        if kind not in KINDS and not (category == "library" and kind.partition(".")[2]):
            t.fail(f"unknown node kind {kind!r}", at, nearest(kind, KINDS) or f"known: {' '.join(KINDS)}")
        if category == "library":
            t.expect("(")
            operands = t.listed(t.value, ")")
            return Node(name, type_, kind, operands=operands, attributes=self.attributes(), span=span)
        if category == "scatter":
            over = self.over()
            t.expect("into")
            base = t.value()
            t.expect("at")
            t.expect("[")
            target = t.listed(self.expr, "]")
            return Node(name, type_, kind, over=over, body=self.body(), target=target, operands=(base,), span=span)
        t.expect("[")
        axes = t.listed(self.axis, "]")
        over = self.over() if category == "reduce" else ()
        along = ""
        if category == "scan":
            t.expect("along")
            along = self.axis()
        return Node(name, type_, kind, axes, over, along, self.body(), span=span)

    def input(self) -> Input:
        """One input of a graph."""
        constant = self.tokens.accept("const")
        name = self.tokens.value()
        self.tokens.expect(":")
        return Input(name, self.type(), constant)

    def graph(self) -> tuple[Graph, tuple[Type, ...], Span]:
        """A graph, the types of its results, and its source place."""
        t = self.tokens
        span = t.span(t.at)
        t.expect("graph")
        t.expect("@")
        if t.kind not in ("word", "string"):
            t.fail(f"expected the graph's name, found {t.piece!r}")
        quoted = t.kind == "string"
        name = str(json.loads(t.next())) if quoted else t.next()
        t.expect("(")
        inputs = t.listed(self.input, ")")
        t.expect("->")
        t.expect("(")
        types = t.listed(self.type, ")")
        t.expect("{")
        nodes: list[Node] = []
        updates: list[tuple[str, str]] = []
        while t.kind == "value":
            nodes.append(self.node())
        while t.accept("update"):
            target = t.value()
            t.expect("=")
            updates.append((target, t.value()))
        if not t.accept("return"):
            t.fail(f"expected a node, 'update' or 'return', found {t.piece!r}")
        results = t.listed(t.value, "}")
        return Graph(name, inputs, tuple(nodes), results, tuple(updates)), types, span

    def end(self) -> None:
        """Raises: ParseError where the text continues."""
        if self.tokens.kind != "end":
            self.tokens.fail(f"expected the end of the text, found {self.tokens.piece!r}")


def _raise_finding(finding: Finding, graph: Graph, span: Span) -> NoReturn:
    node = graph.node_by_name.get(finding.node)
    raise ParseError(f"{finding.message} (rule {finding.rule})", where=node.span if node is not None else span)


def parse_graph(text: str, source: str = "<text>", *, check: bool = True) -> Graph:
    """The graph that the text describes. `check=False` skips the verifier (for tests of the verifier itself).

    Raises: ParseError with line and column where the text is not well formed, or the graph breaks a rule of `verify`.
    """
    parser = _Parser(text, source)
    graph, types, span = parser.graph()
    parser.end()
    if not check:
        return graph
    for finding in verify(graph):
        _raise_finding(finding, graph, span)
    actual = tuple(graph.type_of(r) for r in graph.results)
    if actual != types:
        raise ParseError(f"the graph returns ({', '.join(map(str, actual))}), but its head says ({', '.join(map(str, types))})", where=span)
    return graph


def parse_expr(text: str, source: str = "<expression>") -> Expr:
    """The scalar expression that the text describes. Raises: ParseError."""
    parser = _Parser(text, source)
    e = parser.expr()
    parser.end()
    return e


def parse_affine(text: str, source: str = "<index>") -> Affine:
    """The index expression that the text describes. Raises: ParseError."""
    parser = _Parser(text, source)
    e = parser.affine()
    parser.end()
    return e
