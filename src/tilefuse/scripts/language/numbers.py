"""Numbers and coordinates in the metadata of elementary functions: integer expressions over macro names, and affine ones over threads.

`4 * VEC * BX` is a number once the macros are known; `VEC * tx + s0` is a coordinate. Functions must not come in.
"""
from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache

from tilefuse.base.errors import ParseError, nearest
from tilefuse.ir.affine import Affine, axis, number


def whole_number(text: str | int, macros: Mapping[str, int]) -> int:
    """The value of an integer expression. Raises: ParseError for a name that is no macro, or a division with a remainder."""
    value = coordinate(text, macros, ())
    return value.const


def coordinate(text: str | int, macros: Mapping[str, int], variables: tuple[str, ...]) -> Affine:
    """An expression of +, -, *, / and parentheses as an affine one in `variables`; `/` must leave no remainder; // and % take numbers.

    Raises: ParseError for other operators, unknown names, products of two variables.
    """
    if isinstance(text, int):
        return number(text)
    tree, names = _tree(text)
    if all(n in macros or n in variables for n in names):
        return _evaluated(text, tuple((n, macros[n]) for n in names if n not in variables), variables)
    return _affine(tree, text, macros, variables)


@cache
def _evaluated(text: str, macros: tuple[tuple[str, int], ...], variables: tuple[str, ...]) -> Affine:
    """As `coordinate`, cached: the functions of a library have the same coordinates for the same geometries."""
    return _affine(_tree(text)[0], text, dict(macros), variables)


@cache
def _tree(text: str) -> tuple[ast.expr, tuple[str, ...]]:
    """The syntax tree and the names in it."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as slip:
        raise ParseError(f"{text!r} is not an expression: {slip.msg}", hint="numbers, macros, + - * / // % and parentheses") from slip
    return tree, tuple(dict.fromkeys(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)))


def _affine(tree: ast.expr, text: str, macros: Mapping[str, int], variables: tuple[str, ...]) -> Affine:
    match tree:
        case ast.Constant(int(value)):
            return number(value)
        case ast.Name(name) if name in variables:
            return axis(name)
        case ast.Name(name) if name in macros:
            return number(macros[name])
        case ast.Name(name):
            known = [*macros, *variables]
            raise ParseError(f"{text!r} contains the unknown name {name}", hint=nearest(name, known) or f"known: {', '.join(known)}")
        case ast.UnaryOp(ast.USub(), operand):
            return -_affine(operand, text, macros, variables)
        case ast.BinOp(left, operator, right):
            return _combined(_affine(left, text, macros, variables), operator, _affine(right, text, macros, variables), text)
    raise ParseError(f"{text!r} is not an arithmetic expression", hint="numbers, macros, + - * / // % and parentheses")


def _combined(a: Affine, operator: ast.operator, b: Affine, text: str) -> Affine:
    match operator:
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.Mult() if a.is_const or b.is_const:
            return b * a.const if a.is_const else a * b.const
        case ast.Mult():
            raise ParseError(f"{text!r} multiplies two of the thread's variables", hint="coordinates are affine: a variable times a number")
        case ast.Div() | ast.FloorDiv() | ast.Mod() if not b.is_const or b.const <= 0:
            raise ParseError(f"{text!r} divides by {b}", hint="divide by a positive number")
        case ast.Div() if not a.is_const or a.const % b.const:
            raise ParseError(f"{text!r} divides {a} by {b.const}, which leaves a remainder", hint="choose numbers that divide, or use //")
        case ast.Div() | ast.FloorDiv():
            return a // b.const
        case ast.Mod():
            return a % b.const
    raise ParseError(f"{text!r} contains an unknown operator", hint="+ - * / // %")
