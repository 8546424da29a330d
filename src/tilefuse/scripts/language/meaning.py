"""Meanings of elementary functions: an index notation, parsed and checked, and calls of a script as a graph of tensor expressions.

    z[i] = alpha * x[i] + y[i]
    y[i] = sum(j) A[i, j] * x[j]
    m = max(i) abs(x[i]); r = m * sqrt(sum(i) (x[i] / m) * (x[i] / m))     later equations read the values of earlier ones

A reduction applies to the product after it, not to a sum: `sum(j) a[j] * b[j] + c` adds c once. Functions are those of the operator table,
and `where(condition, a, b)`, `wide(a)` (converted to f64), `real(a)` (converted to the function's type), `inf` and `nan`.
Routines, sizes of elements and devices must not come in.
"""
from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import NoReturn, Union

from tilefuse.base.errors import ParseError, UnsupportedError, nearest
from tilefuse.base.source import Span
from tilefuse.frontends.imported import Imported
from tilefuse.ir.affine import axis
from tilefuse.ir.building.build import GraphBuilder
from tilefuse.ir.dtype import BOOL, F64, I64, DType
from tilefuse.ir.graph import REDUCE_MONOIDS
from tilefuse.ir.ops import SCALAR_OPS
from tilefuse.ir.scalar import Expr, Index, Read, call, cast, const
from tilefuse.scripts.language.elementary import CallGraph, ElementaryFunction, FunctionCall

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)|(?P<word>[A-Za-z_]\w*)|(?P<symbol><=|>=|==|!=|[-+*/<>=\[\](),;]))\s*")
_COMPARISONS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
_OPERATORS = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
REDUCTIONS = ("sum", "max", "min", "prod", "argmax", "argmin")
ADDED_FUNCTIONS = ("where", "wide", "real", "isnan")


@dataclass(frozen=True)
class Literal:
    """A number."""

    value: float


@dataclass(frozen=True)
class Element:
    """A name with its subscripts (axes): a parameter, a value of an earlier equation, or an axis itself."""

    name: str
    subscripts: tuple[str, ...]
    at: int


@dataclass(frozen=True)
class Applied:
    """A function of operands."""

    function: str
    operands: tuple[Term, ...]


@dataclass(frozen=True)
class Reduction:
    """A reduction over axes."""

    monoid: str
    axes: tuple[str, ...]
    body: Term


Term = Union[Literal, Element, Applied, Reduction]


@dataclass(frozen=True)
class Equation:
    """name[axes] = term"""

    name: str
    axes: tuple[str, ...]
    term: Term


class _Parser:
    def __init__(self, text: str, source: str) -> None:
        self.text, self.source = text, source
        self.tokens: list[tuple[str, str, int]] = []
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                self.fail(f"unexpected character {text[at]!r}", at)
            self.tokens.append((str(match.lastgroup), match[str(match.lastgroup)], match.start(str(match.lastgroup))))
            at = match.end()
        self.tokens.append(("end", "the end", len(text)))
        self.position = 0

    def fail(self, message: str, at: int | None = None, hint: str | None = None) -> NoReturn:
        column = (self.tokens[self.position][2] if at is None else at) + 1
        raise ParseError(message, where=Span(self.source, 1, column, self.text), hint=hint)

    def accept(self, piece: str) -> bool:
        kind, text, _ = self.tokens[self.position]
        if text != piece or kind == "end":
            return False
        self.position += 1
        return True

    def expect(self, piece: str) -> None:
        if not self.accept(piece):
            self.fail(f"expected {piece!r}, found {self.tokens[self.position][1]!r}")

    def word(self, role: str) -> str:
        kind, text, _ = self.tokens[self.position]
        if kind != "word":
            self.fail(f"expected {role}, found {text!r}")
        self.position += 1
        return text

    def words(self, close: str, role: str) -> tuple[str, ...]:
        words = [self.word(role)]
        while self.accept(","):
            words.append(self.word(role))
        self.expect(close)
        return tuple(words)

    def equations(self) -> tuple[Equation, ...]:
        equations = [self.equation()]
        while self.accept(";"):
            equations.append(self.equation())
        if self.tokens[self.position][0] != "end":
            self.fail(f"expected an operator or ';', found {self.tokens[self.position][1]!r}")
        return tuple(equations)

    def equation(self) -> Equation:
        name = self.word("the name of a result")
        axes = self.words("]", "an axis") if self.accept("[") else ()
        self.expect("=")
        return Equation(name, axes, self.comparison())

    def comparison(self) -> Term:
        left = self.sum()
        piece = self.tokens[self.position][1]
        if piece in _COMPARISONS:
            self.position += 1
            return Applied(_COMPARISONS[piece], (left, self.sum()))
        return left

    def sum(self) -> Term:
        term = self.product()
        while (piece := self.tokens[self.position][1]) in ("+", "-"):
            self.position += 1
            term = Applied(_OPERATORS[piece], (term, self.product()))
        return term

    def product(self) -> Term:
        term = self.factor()
        while (piece := self.tokens[self.position][1]) in ("*", "/"):
            self.position += 1
            term = Applied(_OPERATORS[piece], (term, self.factor()))
        return term

    def factor(self) -> Term:
        kind, text, at = self.tokens[self.position]
        if self.accept("-"):
            return Applied("neg", (self.factor(),))
        if self.accept("("):
            term = self.comparison()
            self.expect(")")
            return term
        if kind == "number":
            self.position += 1
            return Literal(float(text))
        name = self.word("a value")
        if name in ("inf", "nan"):
            return Literal(float(name))
        if self.accept("["):
            return Element(name, self.words("]", "an axis"), at)
        if not self.accept("("):
            return Element(name, (), at)
        following = self.tokens[self.position + 1][1]
        if name in REDUCTIONS and following in (",", ")") and self.is_reduction():
            return Reduction(name, self.words(")", "an axis"), self.product())
        return self.applied(name, at)

    def is_reduction(self) -> bool:
        """Whether an operand follows `(i, j)`, which then lists axes."""
        n = self.position
        while self.tokens[n][1] != ")" and self.tokens[n][0] != "end":
            n += 1
        kind, text, _ = self.tokens[min(n + 1, len(self.tokens) - 1)]
        return kind in ("word", "number") or text == "("

    def applied(self, name: str, at: int) -> Term:
        function = {"where": "select", "max": "maximum", "min": "minimum"}.get(name, name)
        known = (*SCALAR_OPS, *ADDED_FUNCTIONS)
        if function not in known:
            self.fail(f"unknown function {name}", at, nearest(name, [*known, *REDUCTIONS]))
        operands = [self.comparison()]
        while self.accept(","):
            operands.append(self.comparison())
        self.expect(")")
        arity = SCALAR_OPS[function].arity if function in SCALAR_OPS else 1
        if len(operands) != arity:
            self.fail(f"{name} takes {arity} operands, {len(operands)} given", at)
        return Applied(function, tuple(operands))


@cache
def parse_meaning(text: str, source: str = "meaning") -> tuple[Equation, ...]:
    """The equations of a meaning. Raises: ParseError with the place."""
    return _Parser(text, source).equations()


def check_meaning(function: ElementaryFunction, output: str) -> None:
    """Checks the meaning of an output.

    Raises: ParseError where it names a value that the function does not have, or uses an axis for two sizes.
    """
    text, source = function.meaning[output], f"{function.name}, meaning of {output}"
    equations = parse_meaning(text, source)
    extents = {p.name: p.extents for p in function.inputs}

    def fail(message: str, at: int = 0, hint: str | None = None) -> NoReturn:
        raise ParseError(message, where=Span(source, 1, at + 1, text), hint=hint)

    for equation in equations:
        sizes: dict[str, str] = {}
        for element in _elements(equation.term):
            bound = equation.axes + tuple(a for r in _reductions(equation.term) for a in r.axes)
            if not element.subscripts and element.name in bound:
                continue
            if element.name not in extents:
                fail(f"{element.name} is no input and no value of an earlier equation", element.at,
                     nearest(element.name, extents) or f"known: {', '.join(extents)}")
            if len(extents[element.name]) != len(element.subscripts):
                fail(f"{element.name} has {len(extents[element.name])} subscripts, {len(element.subscripts)} given", element.at)
            for name, size in zip(element.subscripts, extents[element.name], strict=True):
                if name not in bound:
                    fail(f"the axis {name} is bound by no result and no reduction", element.at)
                if sizes.setdefault(name, size) != size:
                    fail(f"the axis {name} runs over {sizes[name]} and over {size}", element.at)
        unknown = [a for a in (*equation.axes, *(a for r in _reductions(equation.term) for a in r.axes)) if a not in sizes]
        if unknown:
            fail(f"the axis {unknown[0]} subscripts no value, so its size is not known")
        extents[equation.name] = tuple(sizes[a] for a in equation.axes)
    if equations[-1].name != output:
        fail(f"the last equation defines {equations[-1].name}, not {output}")
    expected = function.parameter(output).extents
    if extents[output] != expected:
        fail(f"{output} has the extents {list(expected)}, the meaning gives {list(extents[output])}")


def _elements(term: Term) -> Iterator[Element]:
    match term:
        case Element():
            yield term
        case Applied(_, operands):
            for operand in operands:
                yield from _elements(operand)
        case Reduction(_, _, body):
            yield from _elements(body)


def _reductions(term: Term) -> Iterator[Reduction]:
    match term:
        case Applied(_, operands):
            for operand in operands:
                yield from _reductions(operand)
        case Reduction(_, _, body):
            yield term
            yield from _reductions(body)


def graph_of_calls(graph: CallGraph, numbers: Collection[int] | None = None) -> Imported:
    """Some calls of a script (None: all) as a graph of tensor expressions, with the strides of values that are not dense row-major.

    Its inputs are the variables that the calls read and do not compute, in order of first use. Its results are the variables that other
    calls read or the script returns, in order of computation.
    Requires: the calls are a convex part of the script.
    Raises: UnsupportedError for a function without a meaning.
    """
    chosen = range(len(graph.calls)) if numbers is None else sorted(numbers)
    return _Lowering(graph, tuple(chosen)).imported()


class _Lowering:
    def __init__(self, graph: CallGraph, numbers: tuple[int, ...]) -> None:
        self.graph, self.numbers = graph, numbers
        self.builder = GraphBuilder(graph.name)
        self.values: dict[str, str] = {}

    def imported(self) -> Imported:
        calls = [self.graph.calls[n] for n in self.numbers]
        computed = {r for c in calls for r in c.results}
        read_outside = {a for n, c in enumerate(self.graph.calls) if n not in self.numbers for a in c.arguments}
        results = [r for c in calls for r in c.results if r in self.graph.outputs or r in read_outside]
        if set(self.graph.outputs) <= set(results):  # a whole script returns its results in its own order
            results = [*self.graph.outputs, *(r for r in results if r not in self.graph.outputs)]
        for name in dict.fromkeys(a for c in calls for a in c.arguments if isinstance(a, str) and a not in computed):
            variable = self.graph.variables[name]
            self.values[name] = self.builder.input(name, variable.dtype, variable.shape)
        for function_call in calls:
            self.add_call(function_call)
        built = self.builder.finish([self.values[r] for r in results])
        layouts = {self.values[v.name]: v.word_strides for v in self.graph.variables.values()
                   if v.name in self.values and _is_not_dense(v.word_strides, v.shape)}
        inputs = {i.name for i in built.inputs}
        return Imported(built, layouts={k: s for k, s in layouts.items() if k in inputs},
                        result_layouts={k: s for k, s in layouts.items() if k in built.results})

    def add_call(self, call: FunctionCall) -> None:
        self.builder.span = None if call.span is None else replace(call.span, operator=call.function.name)
        for parameter, result in zip(call.function.outputs, call.results, strict=True):
            if parameter.name not in call.function.meaning:
                raise UnsupportedError(f"{call.function.name} has no meaning in its metadata", where=call.span,
                                       hint="only its routines can compute it")
            self.values[result] = _CallLowering(self.builder, call, self.values, self.graph.variables[result].dtype).output(
                parameter.name, result)


@dataclass(frozen=True)
class _TypedExpression:
    expr: Expr
    dtype: DType


class _CallLowering:
    """The equations of one output of one call."""

    def __init__(self, builder: GraphBuilder, call: FunctionCall, values: Mapping[str, str], dtype: DType) -> None:
        self.builder, self.function_call, self.dtype = builder, call, dtype
        function = call.function
        self.real = function.dtype
        # parameter or earlier equation -> (value's name or number, extents)
        self.known: dict[str, tuple[str | float, tuple[str, ...]]] = {
            p.name: (values[a] if isinstance(a, str) else a, p.extents) for p, a in zip(function.inputs, call.arguments, strict=True)}

    def output(self, name: str, result: str) -> str:
        """The value of the output; `result` is the variable's name."""
        equations = parse_meaning(self.function_call.function.meaning[name])
        value = ""
        for number, equation in enumerate(equations):
            last = number == len(equations) - 1
            sizes = self.sizes(equation.term)
            value = self.node(equation.term, equation.axes, sizes, result if last else f"{result}_{equation.name}",
                              self.dtype if last else None)
            self.known[equation.name] = (value, tuple(sizes[a] for a in equation.axes))
        return value

    def sizes(self, term: Term) -> dict[str, str]:
        """Axis -> name of its size."""
        return {a: s for e in _elements(term) if e.name in self.known for a, s in zip(e.subscripts, self.known[e.name][1], strict=True)}

    def node(self, term: Term, axes: tuple[str, ...], sizes: Mapping[str, str], name: str, dtype: DType | None) -> str:
        """The name of a new node for a term over the axes: a reduction if the term is one, else a map."""
        shape = tuple(self.function_call.sizes[sizes[a]] for a in axes)
        if isinstance(term, Reduction):
            body = self.typed(term.body, (*axes, *term.axes), sizes, name)
            over = tuple((a, self.function_call.sizes[sizes[a]]) for a in term.axes)
            reduced_dtype = I64 if term.monoid.startswith("arg") else body.dtype
            if dtype is None or dtype == reduced_dtype:
                return self.builder.add_reduction(name, term.monoid, reduced_dtype, shape, axes, over, body.expr)
            inner = self.builder.add_reduction(f"{name}_{term.monoid}", term.monoid, reduced_dtype, shape, axes, over, body.expr)
            return self.builder.map(name, dtype, shape, axes, cast(Read(inner, tuple(map(axis, axes))), dtype))
        typed = self.typed(term, axes, sizes, name)
        result_dtype = dtype or typed.dtype
        converted = typed.expr if typed.dtype == result_dtype else cast(typed.expr, result_dtype)
        return self.builder.map(name, result_dtype, shape, axes, converted)

    def typed(self, term: Term, axes: tuple[str, ...], sizes: Mapping[str, str], name: str) -> _TypedExpression:
        """A term as a scalar expression over the axes; each reduction inside becomes a node."""
        match term:
            case Literal(value):
                return _TypedExpression(const(value, self.real), self.real)
            case Element(value_name, subscripts, _) if value_name in self.known:
                known = self.known[value_name][0]
                if not isinstance(known, str):
                    return _TypedExpression(const(known, self.real), self.real)
                return _TypedExpression(Read(known, tuple(map(axis, subscripts))), self.builder.type_of(known).dtype)
            case Element(axis_name, _, _):
                return _TypedExpression(Index(axis(axis_name)), I64)
            case Reduction():
                used = tuple(a for a in axes if any(a in e.subscripts or a == e.name for e in _elements(term)))
                inner = self.node(term, used, sizes, f"{name}_{term.monoid}", None)
                return _TypedExpression(Read(inner, tuple(map(axis, used))), self.builder.type_of(inner).dtype)
            case Applied("wide" | "real" as to, (operand,)):
                dtype = F64 if to == "wide" else self.real
                typed = self.typed(operand, axes, sizes, name)
                return typed if typed.dtype == dtype else _TypedExpression(cast(typed.expr, dtype), dtype)
            case Applied("select", (condition, then, otherwise)) if (holds := self.decided(condition)) is not None:
                return self.typed(then if holds else otherwise, axes, sizes, name)
            case Applied(function, operands):
                return self.applied(function, [(o, self.typed(o, axes, sizes, name)) for o in operands])
        raise TypeError(f"no term: {term!r}")

    def decided(self, condition: Term) -> bool | None:
        """Whether a comparison with a coefficient that the script gives as a number holds; None if it depends on values."""
        match condition:
            case Applied("eq", (Element(name, (), _), Literal(value))) if name in self.known and not isinstance(self.known[name][0], str):
                return self.known[name][0] == value
        return None

    def applied(self, function: str, operands: list[tuple[Term, _TypedExpression]]) -> _TypedExpression:
        """A function of operands, all converted to one type; literals take the type of the others."""
        values = operands[1:] if function == "select" else operands
        dtypes = [t.dtype for o, t in values if not isinstance(o, Literal)] or [t.dtype for _, t in values]
        common = max(dtypes, key=lambda d: (d.is_float, d.bits))

        def converted(term: Term, typed: _TypedExpression) -> Expr:
            if isinstance(term, Literal):
                return const(int(term.value) if common.is_integer else term.value, common)
            return typed.expr if typed.dtype == common else cast(typed.expr, common)

        exprs = [converted(o, t) for o, t in values]
        if function == "select":
            exprs.insert(0, operands[0][1].expr)
        result = SCALAR_OPS[function].result
        return _TypedExpression(call(function, *exprs), common if result == "same" else BOOL if result == "bool" else I64)


def _is_not_dense(strides: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether strides differ from those of a dense row-major value."""
    dense = (1,) if len(shape) == 1 else (max(shape[1], 1), 1) if shape else ()
    return strides != dense


assert all(r in REDUCE_MONOIDS for r in REDUCTIONS)
