"""Tracing a Python function of arrays: its arguments are placeholders; where Python needs a value, the error says what to write instead.

    if x.sum() > 0:          the value decides which operations are recorded: where(x.sum() > 0, a, b)
    for i in range(int(n)):  the value decides how many:                       a fixed number of turns, or scan
"""
from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from tilefuse.arrays.array import current_trace, value_hooks
from tilefuse.arrays.graph import is_leaf
from tilefuse.arrays.nodes import Applied, ArrayNode, user_span
from tilefuse.base.errors import UserError

_WHERE = "where(condition, a, b) computes both and chooses element by element"
_SCAN = "scan(step, start, xs) repeats a step a fixed number of times; inside it, where() keeps what should not change any more"
_UNROLLED = "a loop with a fixed number of turns is unrolled: range(10), or range(x.shape[0])"
_OUTSIDE = "return the array and look at it after the call"
# Python statement that asks for the value -> (how the message calls it, the remedies).
_REMEDIES: dict[str, tuple[str, str]] = {
    "if": ("an if", _WHERE), "while": ("a while loop", _SCAN), "for": ("the number of turns of a loop", f"{_UNROLLED}; {_SCAN}"),
    "assert": ("an assert", _OUTSIDE), "print": ("a print", _OUTSIDE),
    "choice": ("a choice (a if c else b, and, or, not)", f"{_WHERE}; logical_and, logical_or, logical_not"),
    "other": ("Python code", _OUTSIDE),
}
_KEPT = "where(mask, x, 0) keeps the shape, and sum(where(mask, x, 0)) sums what the mask selects"
# Operation that computes a shape from data -> the remedies.
_SHAPING = {
    "a boolean mask": f"{_KEPT}; x[mask] = v with a single v may be traced, and x[mask] *= v is x = where(mask, x * v, x)",
    "nonzero": f"x != 0 says where, argmax(x != 0) the first place, count_nonzero how many; {_KEPT}",
    "repeat by an array": "take(x, indices) repeats as an index array of known shape says",
    **dict.fromkeys(("unique_all", "unique_counts", "unique_inverse", "unique_values"),
                    "sort(x) keeps the shape, and equal neighbours stand side by side; isin(x, values) compares with known ones"),
}

# Names of the functions that this context is tracing, the innermost last.
_traced: ContextVar[tuple[str, ...]] = ContextVar("tilefuse_traced_functions", default=())


@dataclass(frozen=True, slots=True)
class Readings:
    """Values that a trace has read of objects that may change before the next call (networks), each with how it is read again.

    arrays     node -> the node that stands in its place now
    settings   key -> (how a setting is read, the value it had)
    """

    arrays: dict[ArrayNode, Callable[[], ArrayNode]] = field(default_factory=dict)
    settings: dict[object, tuple[Callable[[], object], object]] = field(default_factory=dict)


_readings: ContextVar[Readings | None] = ContextVar("tilefuse_readings", default=None)


def array_read(node: ArrayNode, now: Callable[[], ArrayNode]) -> None:
    """Reports to the trace of this context, if any, that `node` was read from the place that `now` reads."""
    readings = _readings.get()
    if readings is not None:
        readings.arrays.setdefault(node, now)


def setting_read(key: object, now: Callable[[], object], value: object) -> None:
    """As `array_read`, for a setting that decides the recording."""
    readings = _readings.get()
    if readings is not None:
        readings.settings.setdefault(key, (now, value))


def is_tracing() -> bool:
    """Whether a function is being traced: calls of compiled functions are then part of it."""
    return bool(_traced.get())


def traced_name() -> str:
    """The function that is being traced. Requires: `is_tracing()`."""
    return _traced.get()[-1]


def value_error(wanted: str) -> UserError:
    """The error for a value that is needed in the middle of a trace. Requires: `is_tracing()`."""
    return control_flow_error(_traced.get()[-1], wanted)


@contextmanager
def tracing(name: str, placeholders: Sequence[ArrayNode]) -> Iterator[Readings]:
    """Inside, asking for a value that depends on the placeholders is an error that names the line and the remedy.

    Gives what the trace reads of objects that may change. Of this context (thread, or asynchronous task): others may trace and compute at
    the same time.
    """
    own = set(placeholders)

    def refuse(node: ArrayNode, wanted: str) -> None:
        if depends_on(node, own):
            raise control_flow_error(name, wanted)

    hooks = value_hooks.set((*value_hooks.get(), refuse))
    names = _traced.set((*_traced.get(), name))
    trace = current_trace.set(object())
    readings = Readings()
    before = _readings.set(readings)
    try:
        yield readings
    finally:
        _readings.reset(before)
        current_trace.reset(trace)
        _traced.reset(names)
        value_hooks.reset(hooks)


def depends_on(node: ArrayNode, leaves: set[ArrayNode]) -> bool:
    """Whether a value is computed from one of the leaves."""
    seen: set[ArrayNode] = set()
    stack = [node]
    while stack:
        top = stack.pop()
        if top in leaves:
            return True
        if top not in seen and isinstance(top, Applied) and not is_leaf(top):
            seen.add(top)
            stack.extend(top.operands)
    return False


def control_flow_error(name: str, wanted: str) -> UserError:
    """The error for a value that Python asks for while a function is traced."""
    span = user_span()
    if wanted in _SHAPING:
        return UserError(f"the shape that {wanted} gives depends on data, and while {name} is traced there is none: its arguments stand "
                         "for any data", where=span, hint=_SHAPING[wanted])
    kind, remedy = _REMEDIES[_statement(span.line_text, wanted)]
    what = kind if kind != "Python code" else wanted if wanted == "DLPack" else f"{wanted}()"
    return UserError(f"{what} needs the value of an array while {name} is traced, and there is none yet: its arguments stand for any data",
                     where=span, hint=remedy)


def _statement(line: str, kind: str) -> str:
    """Which statement of a source line asks for a value."""
    text = line.strip()
    first = text.split(" ")[0].split("(")[0].rstrip(":")
    if first in ("if", "elif"):
        return "if"
    if first in ("while", "assert", "print"):
        return first
    if "range(" in text and kind in ("int", "index"):
        return "for"
    if kind != "bool":
        return "other"
    return "choice" if _chooses(text) else "other"


def _chooses(text: str) -> bool:
    try:
        tree = ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return True  # a piece of a longer expression: a choice in it needs a truth value
    return any(isinstance(n, (ast.IfExp, ast.BoolOp, ast.comprehension)) or isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.Not)
               for n in ast.walk(tree))


def function_name(fn: Callable[..., Any]) -> str:
    """How messages call a function."""
    return str(getattr(fn, "__qualname__", None) or getattr(type(fn), "__name__", "a function")).rpartition("<locals>.")[2]
