"""Scalar functions that users add: C expressions that become records of the operator table, first-class like the built-in ones.

    register("my_sigmoid", "(x: float) -> float", "1 / (1 + exp(-x))", adjoint="g * y * (1 - y)")

A record fuses, is differentiated, prints and parses as any other; its C text enters generated sources, and with them every cache key.
The same expression is compiled for the device and for the host, once for each type of its arguments, unless a host text is given.
"""
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tilefuse.base.errors import NameLookupError, TypeMismatchError, UserError, nearest
from tilefuse.base.source import Span
from tilefuse.base.user_text import Origin, remember_text, short_place
from tilefuse.ir.custom_expression import C_FLOAT_FUNCTIONS, C_FUNCTIONS, table_text
from tilefuse.ir.dtype import DTYPES
from tilefuse.ir.graph import Graph
from tilefuse.ir.meaning import Meaning
from tilefuse.ir.ops import C_TYPES, NARROW_CUDA, NARROW_FLOPS, OPERAND_CLASSES, SCALAR_OPS, ScalarOp
from tilefuse.ir.scalar import Call, walk

PREFIX = "tf_custom_"
NARROW_SUFFIX = "_narrow"
# Cost of one call where the user does not say. Units: floating-point operations.
DEFAULT_FLOPS = 16
_C_WORD_TEXT = "T bool char const double false float int long short signed true unsigned auto return if else for while"
HOST_OPENING = "using namespace std; "
# max and min of the operands' type, so that `max(x, 0)` is one function on both sides; std's would take a NaN for the larger operand or
# the smaller one, by its place, where CUDA's takes the other.
_CHOICES = {"max": ("const auto max = [](T a, T b) { return ::max(a, b); };",
                    "const auto max = [](T a, T b) { return a < b || a != a ? b : a; };"),
            "min": ("const auto min = [](T a, T b) { return ::min(a, b); };",
                    "const auto min = [](T a, T b) { return b < a || a != a ? b : a; };")}
# Operands of two types have a common type, which devices do not look for.
_COMMON = "const auto copysign = [](auto a, auto b) { typedef decltype(a * b * T(1)) C; return ::copysign(C(a), C(b)); };"
_CHOICES["copysign"] = (_COMMON, _COMMON.replace("::copysign", "std::copysign"))
C_WORDS = frozenset(_C_WORD_TEXT.split())
_NAME = re.compile(r"[A-Za-z_]\w*")
_SIGNATURE = re.compile(r"\((?P<arguments>[^()]*)\)\s*->\s*(?P<result>\w+)\Z")
# A floating literal without suffix; its type becomes that of the arguments, or every f32 kernel would compute in f64.
_LITERAL = re.compile(r"(?<![\w.])((?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)(?![\w.])")

_PIECE = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\s+|.", re.DOTALL)
# Functions whose last operand is a whole number.
_OF_WHOLE_NUMBERS = frozenset(("ldexp", "pow"))


@dataclass(frozen=True, slots=True)
class CustomFunction:
    """A registered function. `arguments` are the names in its expressions; cuda, host: C++ definitions, one for each operand type.

    narrow: a definition for kernels whose data has 16 bits or fewer, from the short forms of the built-in functions; "" for none.
    """

    name: str
    arguments: tuple[str, ...]
    signature: str
    cuda: str
    host: str
    adjoint: tuple[str, ...]
    narrow: str = ""

    @property
    def symbol(self) -> str:
        """The name that generated code calls."""
        return PREFIX + self.name


CUSTOM_FUNCTIONS: dict[str, CustomFunction] = {}


def register_function(name: str, signature: str, cuda: str, *, host: str | None = None, adjoint: str | Sequence[str] | None = None,
                      flops: int = DEFAULT_FLOPS, doc: str = "", meaning: Meaning, where: Span | None = None) -> CustomFunction:
    """Enters a function into the operator table; the same definition again changes nothing.

    signature: "(x: float, y: float) -> float": argument names, their common class (float, int, number, bool, arithmetic, or one dtype)
    and what the result is: the same word for the operands' own type, or a dtype. cuda, host: an expression in the argument names, or
    statements that return; T is the operands' type and a literal such as 0.5 has it. adjoint: per argument an expression in the
    argument names, y (the result) and g (the result's adjoint); None: the function has no gradient.
    Raises: UserError for a name that is taken, a signature that is none, or text that no host has where `host` is not given;
        NameLookupError for a name in an expression that is neither an argument nor a C function.
    """
    arguments, operands, result = parse_signature(signature, where)
    _check_name(name, where)
    for text, what in ((cuda, "CUDA expression"), (host, "host expression")):
        if text is not None:
            _check_text(text, what, name, arguments, host is not None, where)
    adjoints = _adjoints(name, adjoint, arguments, where)
    dtypes = OPERAND_CLASSES[operands]
    entry = CustomFunction(name, arguments, signature, _definitions(name, arguments, dtypes, result, cuda, ""),
                           _definitions(name, arguments, dtypes, result, cuda if host is None else host, HOST_OPENING), adjoints,
                           _narrow_definition(name, arguments, cuda) if "f32" in dtypes and result == "same" else "")
    for piece, symbol in ((entry.cuda, entry.symbol), (entry.host, entry.symbol), (entry.narrow, entry.symbol + NARROW_SUFFIX)):
        remember_text(piece, Origin(f"operator {name}", lambda line: f"registered at {short_place(where)}", symbol))
    known = CUSTOM_FUNCTIONS.get(name)
    if known == entry:
        return known
    if known is not None:
        raise UserError(f"operator {name} is registered already, with another definition", where=where,
                        hint="give the new one another name: programs that use the old one are still at work")
    text = f"{entry.symbol}({', '.join(f'{{{n}}}' for n in range(len(arguments)))})"
    texts = dict.fromkeys(dtypes, text)
    SCALAR_OPS[name] = ScalarOp(name, len(arguments), operands, result, meaning, texts, texts, adjoints, flops, doc or cuda)
    CUSTOM_FUNCTIONS[name] = entry
    if entry.narrow:
        NARROW_CUDA[name] = text.replace("(", f"{NARROW_SUFFIX}(", 1)
        NARROW_FLOPS[name] = flops
    return entry


def unregister_function(name: str) -> None:
    """Takes a function out again (tests). Requires: no program that uses it is compiled afterwards."""
    del CUSTOM_FUNCTIONS[name], SCALAR_OPS[name]
    NARROW_CUDA.pop(name, None)
    NARROW_FLOPS.pop(name, None)


def parse_signature(text: str, where: Span | None = None) -> tuple[tuple[str, ...], str, str]:
    """Argument names, operand class and result ("same" or a dtype) of a signature. Raises: UserError, TypeMismatchError."""
    example = 'for example "(x: float, y: float) -> float"'
    match = _SIGNATURE.match(text.strip())
    parts = [tuple(s.strip() for s in part.partition(":")[::2]) for part in match["arguments"].split(",")] if match else []
    if not match or not all(name.isidentifier() and kind for name, kind in parts):
        raise UserError(f"{text!r} is no signature of an operator", where=where, hint=example)
    names, kinds = tuple(name for name, _ in parts), {kind for _, kind in parts}
    if len(set(names)) < len(names) or {"y", "g", "T"} & set(names):
        raise UserError(f"argument names of {text!r} must differ from each other and from y, g and T (result, its adjoint, the type)",
                        where=where)
    if len(kinds) > 1:
        raise TypeMismatchError(f"operands of one operator have one type, {text!r} has {', '.join(sorted(kinds))}", where=where,
                                hint="convert the operands before the call")
    kind, result = kinds.pop(), match["result"]
    legal = [k for k in OPERAND_CLASSES if k not in ("any", "counter", "int_bool")] + [n for n, d in DTYPES.items() if d.is_arithmetic]
    if kind not in legal:
        raise TypeMismatchError(f"{kind} is no class of operands", where=where, hint=nearest(kind, legal) or f"known: {', '.join(legal)}")
    OPERAND_CLASSES.setdefault(kind, (kind,))
    if result != kind and not (result in DTYPES and DTYPES[result].is_arithmetic):
        raise TypeMismatchError(f"the result of {text!r} is neither {kind} (the operands' own type) nor a dtype", where=where, hint=example)
    return names, kind, "same" if result == kind else result


def custom_texts(graph: Graph) -> tuple[tuple[str, str, str], ...]:
    """(name, CUDA text, host text) of every registered function that the graph calls, by name: needed in keys beside the graph's text."""
    if not CUSTOM_FUNCTIONS:
        return ()
    called = {x.fn for n in graph.nodes for e in (n.body, *n.target) if e is not None for x in walk(e) if isinstance(x, Call)}
    return tuple((f.name, f.cuda, f.host) for name, f in sorted(CUSTOM_FUNCTIONS.items()) if name in called)


def definition(symbol: str, target: str) -> str | None:
    """C++ text that defines a symbol for "cuda" or "host"; None where it is no registered function's."""
    if not symbol.startswith(PREFIX):
        return None
    name = symbol.removeprefix(PREFIX)
    function = CUSTOM_FUNCTIONS.get(name)
    if function is not None:
        return function.cuda if target == "cuda" else function.host
    function = CUSTOM_FUNCTIONS.get(name.removesuffix(NARROW_SUFFIX))
    return function.narrow or None if function is not None and name.endswith(NARROW_SUFFIX) else None


def _check_name(name: str, where: Span | None) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or "__" in name:
        raise UserError(f"{name!r} is no name for an operator", where=where, hint="lower case letters, digits and single underscores")
    if name in DTYPES or name in ("guard", "index", "lookup") or name in SCALAR_OPS and name not in CUSTOM_FUNCTIONS:
        raise UserError(f"operator {name} exists already", where=where, hint=f"choose another name, such as my_{name}")


def _check_text(text: str, what: str, name: str, arguments: tuple[str, ...], has_host: bool, where: Span | None) -> None:
    for opening, closing in ("()", "[]", "{}"):
        if text.count(opening) != text.count(closing):
            raise UserError(f"{what} of operator {name}: brackets {opening}{closing} do not match in {text!r}", where=where)
    if _is_body(text):
        return  # locals have names of their own: the compilers look at them
    for word in dict.fromkeys(_NAME.findall(re.sub(r"\b\d[\w.]*", "", text))):
        if word in arguments or word in C_WORDS or word in C_FUNCTIONS or word in C_FLOAT_FUNCTIONS:
            continue
        if what == "CUDA expression" and has_host:
            continue
        if word.startswith("__") or word.rstrip("f") in ("rsqrt", "rcbrt", "erfinv", "normcdf", "sinpi", "cospi", "exp10"):
            raise UserError(f"operator {name} calls {word}, which only devices have", where=where,
                            hint="give the host's expression as well: host=\"...\"")
        raise NameLookupError(f"{what} of operator {name} has the unknown name {word}", where=where,
                              hint=nearest(word, [*arguments, *C_FUNCTIONS]) or f"arguments: {', '.join(arguments)}")


def _typed_literals(text: str) -> str:
    """The text with literals of the operands' type: 0.5, and whole numbers that are an argument of a C function (`sqrt(2)`).

    Devices have each function for float and for double, and neither is nearer to int.
    """
    pieces = _PIECE.findall(text.strip())
    calls: list[tuple[str, int]] = []  # the function and its argument's number, for each bracket that is open
    converted: list[str] = []
    start = 0  # where the argument begins in `converted`
    for n, piece in enumerate(pieces):
        if piece in (",", ")") and calls:
            argument = "".join(converted[start:])
            function, number = calls[-1]
            if function in C_FUNCTIONS and re.fullmatch(r"\s*[-+]?\d+\s*", argument) and not (number and function in _OF_WHOLE_NUMBERS):
                converted[start:] = [f"T({argument.strip()})" if number == 0 else f" T({argument.strip()})"]
            calls[-1] = (function, number + 1)
            if piece == ")":
                calls.pop()
        converted.append(piece)
        if piece == "(":
            calls.append((pieces[n - 1] if n else "", 0))
        if piece in "(,":
            start = len(converted)
        elif piece == ")":
            start = len(converted) + len(pieces)  # a closed call is no literal
    return _LITERAL.sub(r"T(\1)", "".join(converted))


def _is_body(text: str) -> bool:
    return re.search(r"\breturn\b", text) is not None


def _definitions(name: str, arguments: tuple[str, ...], dtypes: Sequence[str], result: str, text: str, opening: str) -> str:
    body = _typed_literals(text)
    if not _is_body(text):
        body = f"return {body};"
    words = set(_NAME.findall(text)) - set(arguments)
    body = "\n  ".join([*(choice[bool(opening)] for word, choice in _CHOICES.items() if word in words), body])
    lines = []
    for dtype in dtypes:
        own = C_TYPES[dtype]
        parameters = ", ".join(f"{own} {a}" for a in arguments)
        # Only where it is used: compilers warn of a name for nothing.
        first = f"{opening}typedef {own} T;" if re.search(r"\bT\b", body) else opening.rstrip()
        lines.append(f"TF_INLINE {own if result == 'same' else C_TYPES[result]} {PREFIX}{name}({parameters}) {{\n"
                     f"{f'  {first}{chr(10)}' if first else ''}  {body}\n}}")
    return "\n".join(lines)


# Narrow: the user's own expression, on a type whose functions and quotients are the short forms

_NARROW_CALLS = {name: f"tf_narrow_{name}" for name in ("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "tanh", "erf")}
_NARROW_CALLS |= {"abs": "fabsf", "fabs": "fabsf", "max": "fmaxf", "fmax": "fmaxf", "min": "fminf", "fmin": "fminf"}
_TWO_OPERANDS = ("max", "fmax", "min", "fmin")


def _narrow_definition(name: str, arguments: tuple[str, ...], text: str) -> str:
    """The function over a type of its own, for expressions of operators, choices and functions that have a short form; else ""."""
    words = set(_NAME.findall(re.sub(r"\b\d[\w.]*", "", text)))
    if _is_body(text) or not words <= {*arguments, *_NARROW_CALLS}:
        return ""
    own = f"{PREFIX}{name}_value"
    lines = [f"struct {own} {{\n  float held;\n  TF_INLINE {own}(float held) : held(held) {{}}\n}};",
             f"TF_INLINE {own} operator-({own} a) {{ return -a.held; }}", f"TF_INLINE {own} operator+({own} a) {{ return a; }}",
             f"TF_INLINE {own} operator/({own} a, {own} b) {{ return tf_narrow_div(a.held, b.held); }}"]
    lines += [f"TF_INLINE {own} operator{sign}({own} a, {own} b) {{ return a.held {sign} b.held; }}" for sign in "+-*"]
    lines += [f"TF_INLINE bool operator{sign}({own} a, {own} b) {{ return a.held {sign} b.held; }}"
              for sign in ("<", ">", "<=", ">=", "==", "!=")]
    for word in sorted(words & set(_NARROW_CALLS)):
        two = word in _TWO_OPERANDS
        lines.append(f"TF_INLINE {own} {word}({own} a{f', {own} b' if two else ''}) "
                     f"{{ return {_NARROW_CALLS[word]}(a.held{', b.held' if two else ''}); }}")
    body = _typed_literals(text)
    parameters = ", ".join(f"float {a}_given" for a in arguments)
    locals_ = " ".join(f"const T {a}({a}_given);" for a in arguments)
    lines.append(f"TF_INLINE float {PREFIX}{name}{NARROW_SUFFIX}({parameters}) {{\n  typedef {own} T;\n  {locals_}\n"
                 f"  return T({body}).held;\n}}")
    return "\n".join(lines)


def _adjoints(name: str, rule_texts: str | Sequence[str] | None, arguments: tuple[str, ...], where: Span | None) -> tuple[str, ...]:
    if rule_texts is None:
        return ()
    texts = (rule_texts,) if isinstance(rule_texts, str) else tuple(rule_texts)
    if len(texts) != len(arguments):
        raise UserError(f"operator {name} has {len(arguments)} arguments and {len(texts)} adjoints", where=where,
                        hint="one expression an argument; \"0\" where it has none")
    names = table_names(arguments) | {"y": "y", "g": "g"}
    return tuple(table_text(t, names, f"adjoint of operator {name} for {a}", where) for t, a in zip(texts, arguments, strict=True))


def table_names(arguments: Sequence[str]) -> dict[str, str]:
    """The operator table's names of the arguments: x0, x1, ..."""
    return {a: f"x{n}" for n, a in enumerate(arguments)}
