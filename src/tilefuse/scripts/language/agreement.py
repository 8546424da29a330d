"""Contradictions between keys of a function's metadata: sizes, reduced sizes, operators, triangles.

`scripts/language/metadata.py` checks each key by itself, and turns the contradictions into findings.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tilefuse.base.errors import nearest
from tilefuse.scripts.language.elementary import ElementaryFunction, HigherOrder

TRIANGLES = ("lower", "upper")
# Key, contradiction, remedy.
Disagreement = tuple[str, str, str]


def disagreements(function: ElementaryFunction, table: Mapping[str, Any]) -> Iterator[Disagreement]:
    """Contradictions between keys of the metadata `table`; `function` has their values, without implementations."""
    yield from _extents(function)
    yield from _reduction(function, table)
    if function.triangle:
        yield from _triangle(function)
    if function.turned and sorted(function.turned) != list(range(len(function.inputs))):
        yield ("turned", f"{list(function.turned)} is no order of {len(function.inputs)} inputs",
               f"a permutation of {list(range(len(function.inputs)))}")


def _extents(function: ElementaryFunction) -> Iterator[Disagreement]:
    sizes, kind = function.sizes, function.kind
    if kind.nested != (len(sizes) == 2):
        yield ("kind", f"{kind.value!r} runs over {2 if kind.nested else 1} size{'s' if kind.nested else ''}, the parameters have "
               f"{len(sizes)} ({', '.join(sizes) or 'none'})", "nested functions have two sizes, others one")
    for name in function.over:
        if name not in sizes:
            yield "over", f"{name} is no size of the parameters ({', '.join(sizes)})", nearest(name, sizes) or ""
    operands = {e for p in function.inputs for e in p.extents}
    for p in function.outputs:
        if unknown := [e for e in p.extents if e not in operands]:
            yield "outputs", f"{p.name} has the extent {unknown[0]}, which no input has", "sizes come from the arguments"


def _reduction(function: ElementaryFunction, table: Mapping[str, Any]) -> Iterator[Disagreement]:
    kind = function.kind
    reduced = [p.name for p in function.outputs if set(p.extents) & set(function.over)]
    if kind.reduces and not function.over:
        yield "over", f"is missing: a {kind.value} needs the sizes that it reduces away", 'over = ["n"]'
    if kind.reduces and reduced:
        yield ("over", f"{reduced[0]} has an extent that is reduced away ({', '.join(function.over)})", "outputs keep other sizes only")
    if not kind.reduces and (function.over or function.operator):
        yield "over", f"a {kind.value} reduces nothing", "drop `over` and `operator`, or make kind a reduction"
    if kind.reduces and function.operator not in ("+", "max", "min", "combine"):
        yield ("operator", f"{function.operator!r} is no operator of a reduction" if function.operator else "is missing",
               'one of "+", "max", "min", or "combine" with your routine')
    if function.operator in ("max", "min") and "neutral" not in table:
        sign = "-" if function.operator == "max" else ""
        yield "neutral", f"is missing: partial values of {function.operator} cannot begin with 0", f'neutral = "{sign}tf_inf_f32()"'
    has_routine = "combine" in table and bool(function.state)
    if (function.operator == "combine") != has_routine:
        yield ("combine", "an operator with a routine needs operator = \"combine\", `state` and `combine`",
               'operator = "combine", state = "MyState", combine = "my_combine", finish = "my_finish"')
    if function.state and "finish" not in table:
        yield "finish", f"is missing: a routine computes the output from {function.state}", 'finish = "my_finish"'


def _triangle(function: ElementaryFunction) -> Iterator[Disagreement]:
    if function.triangle not in TRIANGLES:
        yield "triangle", f"{function.triangle!r} is no triangle", nearest(function.triangle, TRIANGLES) or '"lower" or "upper"'
    elif function.kind is not HigherOrder.NESTED_REDUCE or function.operator == "combine":
        yield ("triangle", "tiles can be left out of nested reductions by an operator: words of a map would be missing",
               'kind = "nested reduce" and operator = "+", "max" or "min"')
    elif not function.positions:
        yield ("triangle", "`compute` must leave out words beyond the diagonal itself, and for that know where its tile lies",
               "positions = true")
