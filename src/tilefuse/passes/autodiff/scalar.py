"""Adjoints of scalar expressions: the contribution of each read of a body to the gradient of the value that it reads.

The rules are the `adjoint` texts of the operator table, parsed once; here they become expressions, without the ones, zeros and double
negations of rules applied to constants. This file knows neither nodes nor index maps.
"""
from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Union

from tilefuse.base.errors import InternalError, UserError
from tilefuse.base.source import Span
from tilefuse.ir.building.tensor_elementwise import converted
from tilefuse.ir.dtype import BOOL, DTYPES, DType, compute_dtype
from tilefuse.ir.ops import SCALAR_OPS, dtype_of
from tilefuse.ir.scalar import NUMPY_DTYPES, Bound, Call, Const, Expr, Guard, Lookup, Read, call, children, const, walk

ReadDType = Callable[[str], DType]
Rule = Union[str, float, tuple[str, tuple["Rule", ...]]]
# The adjoint text of an argument whose derivative exists but has no operator here.
UNKNOWN = "unknown"


@cache
def parsed_rule(text: str) -> Rule:
    """An adjoint text as a tree: a leaf's name, a number, or a function with its arguments."""

    def tree(node: ast.expr) -> Rule:
        match node:
            case ast.Name(name):
                return name
            case ast.Constant(int() | float() as number):
                return float(number)
            case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as number)):
                return -float(number)
            case ast.Call(ast.Name(fn), args):
                return fn, tuple(tree(a) for a in args)
        raise InternalError(f"adjoint text {text!r} has a part that is neither a name, a number nor a call")

    return tree(ast.parse(text, mode="eval").body)


def simplified_call(fn: str, *args: Expr) -> Expr:
    """`fn` of the arguments, simplified where constants settle the result.

    Exact: up to the sign of a zero. No factor that could be NaN or infinite is dropped, except for a constant of the adjoint.
    """
    match fn, args:
        case "mul", (a, b):
            return _times(a, b)
        case "add", (a, b):
            if _is(a, 0) or _is(b, 0):
                return b if _is(a, 0) else a
            return _folded(fn, args)
        case "sub", (a, b):
            return a if _is(b, 0) else simplified_call("neg", b) if _is(a, 0) else _folded(fn, args)
        case "div", (a, b):
            return a if _is(b, 1) else _folded(fn, args)
        case "neg", (Call("neg", (a,)),):
            return a
        case "pow", (a, b):
            return a if _is(b, 1) else const(1, b.dtype) if isinstance(b, Const) and _is(b, 0) else call("pow", a, b)
        case "select", (_, a, b) if a == b:
            return a
        case "select", (Const() as condition, a, b):
            return a if condition.value else b
        case "eq", (Const() as a, Const() as b) if a.dtype.is_float:
            return const(a.value == b.value, BOOL)
    return _folded(fn, args)


def _times(a: Expr, b: Expr) -> Expr:
    """The product, with the sign and the constant factor in front."""
    if _is(a, 1) or _is(b, 1):
        return b if _is(a, 1) else a
    if _is(a, -1) or _is(b, -1):
        return simplified_call("neg", b if _is(a, -1) else a)
    if isinstance(b, Const) and not isinstance(a, Const):
        a, b = b, a
    match a, b:
        case Const(), Call("mul", (Const() as c, rest)):
            return simplified_call("mul", _folded("mul", (a, c)), rest)
        case Const(), Call("neg", (rest,)):
            return simplified_call("mul", _folded("neg", (a,)), rest)
        case Const(), Call("select", (condition, first, second)) if is_zero(first) or is_zero(second):
            parts = (e if is_zero(e) else simplified_call("mul", a, e) for e in (first, second))
            return call("select", condition, *parts)
    return _folded("mul", (a, b))


def _folded(fn: str, args: tuple[Expr, ...]) -> Expr:
    """The call, evaluated where all arguments are constants of one float type."""
    if fn in ("add", "sub", "mul", "div", "neg") and all(isinstance(a, Const) and a.dtype.is_float for a in args):
        first = args[0]
        assert isinstance(first, Const)
        numbers = [NUMPY_DTYPES[first.dtype.name].type(a.value) for a in args if isinstance(a, Const)]
        if fn != "div" or numbers[1] != 0:
            return const(float(SCALAR_OPS[fn].meaning(*numbers)), first.dtype)
    return call(fn, *args)


def _is(e: Expr, value: float) -> bool:
    return isinstance(e, Const) and e.dtype.is_float and e.value == value


def is_zero(e: Expr) -> bool:
    """Whether the expression is the constant 0."""
    return _is(e, 0)


def rounded_back(e: Expr, have: DType, want: DType, read_dtype: ReadDType) -> Expr:
    """`e` as `want`. A value that was last converted to `have` is converted from its own type instead: an adjoint is not rounded to a
    narrow type before a sum, and a widened narrow value is its original again."""
    if isinstance(e, Const):
        return const(e.value, want)
    match e:
        case Call(fn, (inner,)) if fn == have.name:
            own = dtype_of(inner, read_dtype)
            return converted(inner, own, want) if own.is_float else converted(e, have, want)
    return converted(e, have, want)


Again = Callable[[Read], Union[Expr, None]]
Guards = tuple[tuple[tuple[Bound, ...], bool], ...]


@dataclass(frozen=True, slots=True)
class ReadAdjoint:
    """One read (or lookup) of a body, and its contribution to the gradient of the element it reads, over the body's axes.

    guards: for a lookup, the bounds around it, outermost first, and whether it is evaluated where they hold. The adjoint includes them
    already.
    """

    read: Read | Lookup
    adjoint: Expr
    guards: Guards = ()


class BodyAdjoint:
    """Reverse mode through one body.

    active: values whose gradient is computed. `where` names the node's place in the user's program for errors. `again` gives a read as an
    expression of values that the backward pass reads anyway, None where there is none.
    """

    def __init__(self, active: Collection[str], read_dtype: ReadDType, where: Span | None = None, again: Again = lambda read: None) -> None:
        self.active = active
        self.read_dtype = read_dtype
        self.where = where
        self.again = again
        self.adjoints: dict[tuple[Read | Lookup, Guards], Expr] = {}
        self._path: list[tuple[tuple[Bound, ...], bool]] = []

    def run(self, body: Expr, gradient: Expr, value: Expr | None) -> list[ReadAdjoint]:
        """The adjoints of all reads of active values. `gradient` is the body's; `value` is a cheap expression of the body's value.

        Raises: UserError where the derivative of a function on the way is unknown.
        """
        self._back(body, gradient, value)
        return [ReadAdjoint(read, e, guards) for (read, guards), e in self.adjoints.items()]

    def _matters(self, e: Expr) -> bool:
        return any(isinstance(x, (Read, Lookup)) and x.value in self.active for x in walk(e))

    def _back(self, e: Expr, g: Expr, value: Expr | None) -> None:
        match e:
            case Read() | Lookup():
                if e.value in self.active:
                    self._add(e, g)
            case Guard(bounds, then, otherwise):
                for branch, holds in ((then, True), (otherwise, False)):
                    if self._matters(branch):
                        self._path.append((bounds, holds))
                        self._back(branch, g, value)
                        self._path.pop()
            case Call(fn, (inner,)) if fn in DTYPES:
                have = dtype_of(inner, self.read_dtype)
                if have.is_float and DTYPES[fn].is_float:
                    back = rounded_back(g, DTYPES[fn], have, self.read_dtype)
                    self._back(inner, back, None if value is None else converted(value, DTYPES[fn], have))
            case Call():
                self._call(e, g, value)

    def _call(self, e: Call[Expr], g: Expr, value: Expr | None) -> None:
        op = SCALAR_OPS[e.fn]
        if value is not None and e.fn == "select":
            e = told_by_result(e, value, self.again)
        leaves = {f"x{n}": a for n, a in enumerate(e.args)} | {"g": g, "y": e if value is None else value}
        for n, argument in enumerate(e.args):
            text = op.adjoint[n] if op.adjoint else UNKNOWN  # a custom operator may come without
            if text == "0" or not self._matters(argument):
                continue
            dtype = dtype_of(argument, self.read_dtype)
            if not dtype.is_float:
                continue
            if text == UNKNOWN:
                raise UserError(f"gradient through operator {e.fn}, which has no adjoint", where=self.where,
                                hint="register it with adjoint=..." if not op.adjoint else None)
            other = e.args[1 - n] if e.fn in ("maximum", "minimum") else None
            if isinstance(other, Const):
                # At a tie the constant wins, so that relu has gradient 0 at 0. The result decides as well as the operand, and is stored
                # anyway.
                is_larger = call("gt" if e.fn == "maximum" else "lt", argument if value is None else value, other)
                adjoint = simplified_call("select", is_larger, g, const(0, dtype))
            else:
                adjoint = instantiated(parsed_rule(text), leaves, dtype)
            self._back(argument, adjoint, None)

    def _add(self, read: Read | Lookup, g: Expr) -> None:
        dtype = self.read_dtype(read.value)
        path = tuple(self._path)
        key = (read, path if isinstance(read, Lookup) else ())
        g = guarded(g, path, const(0, dtype))
        have = self.adjoints.get(key)
        self.adjoints[key] = g if have is None else summed(have, g, dtype, self.read_dtype)


def guarded(e: Expr, guards: Guards, otherwise: Expr) -> Expr:
    """`e` where the guards select it, `otherwise` elsewhere."""
    for bounds, holds in reversed(guards):
        e = Guard(bounds, e, otherwise) if holds else Guard(bounds, otherwise, e)
    return e


def told_by_result(e: Call[Expr], value: Expr, again: Again) -> Call[Expr]:
    """select(x <= 0, c * x or 0, x) with the condition applied to the result, where that is equivalent: then x need not be stored for it.

    The result need not be read either where x can be recomputed from values that the backward pass reads anyway.
    """
    match e.args:
        case (Call("le" | "gt" as fn, (x, Const() as limit)), low, high) if _is(limit, 0):
            low, high = (low, high) if fn == "le" else (high, low)
            if high == x and (_is(low, 0) or _scaled_up(low, x)):
                return Call("select", (Call(fn, (_made_again(x, limit.dtype, again) or value, limit)), *e.args[1:]))
    return e


def _made_again(x: Expr, dtype: DType, again: Again) -> Expr | None:
    """`again` of a read, also of a read that is widened for arithmetic: then without the rounding between."""
    match x:
        case Read():
            return again(x)
        case Call(fn, (Read() as read,)) if fn == dtype.name:
            match again(read):
                case Call(narrow, (inner,)) if narrow in DTYPES:
                    return inner
    return None


def _scaled_up(e: Expr, x: Expr) -> bool:
    """Whether `e` is x times a positive constant."""
    match e:
        case Call("mul", (Const() as c, rest)) | Call("mul", (rest, Const() as c)):
            return rest == x and c.value > 0
    return False


def summed(a: Expr, b: Expr, dtype: DType, read_dtype: ReadDType) -> Expr:
    """The sum of two adjoints of a stored dtype; those of storage types add up in f32."""
    if dtype.is_arithmetic:
        match a, b:
            case Call("select", (c, p, q)), Call("select", (other, r, s)) if c == other and is_zero(q) and is_zero(r):
                return call("select", c, p, s)
            case Call("select", (c, p, q)), Call("select", (other, r, s)) if c == other and is_zero(p) and is_zero(s):
                return call("select", c, r, q)
        return call("mul", const(2, dtype), a) if a == b else simplified_call("add", a, b)
    wide = compute_dtype(dtype)
    first, second = (rounded_back(e, dtype, wide, read_dtype) for e in (a, b))
    return converted(summed(first, second, wide, read_dtype), wide, dtype)


def instantiated(rule: Rule, leaves: Mapping[str, Expr], dtype: DType) -> Expr:
    """The expression of a rule for given arguments; its numbers are constants of `dtype`."""
    match rule:
        case str():
            return leaves[rule]
        case float():
            return const(rule, dtype)
    fn, args = rule
    return simplified_call(fn, *(instantiated(a, leaves, dtype) for a in args))


def num_parts(e: Expr) -> int:
    """Number of subexpressions, the expression itself included."""
    return 1 + sum(num_parts(x) for x in children(e))
