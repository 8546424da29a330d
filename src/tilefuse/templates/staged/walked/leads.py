"""Operands that several lead places share: axes of an operand that are digits of the lead axes, as groups of heads have them.

    k[head / 4, ..]      keys of 4 heads in a row:  axis "lead0 / 4" of stride 1 head, which the tensor copy's coordinate follows
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilefuse.domain.contraction import INNER
from tilefuse.ir.affine import Affine, FloorDiv, Mod, bounds, linearise, number, row_major_strides, substitute
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.scalar import Read
from tilefuse.templates.staged.pipelined.operand import Operand


def with_digits(graph: Graph, layouts: Layouts, operand: Operand, sizes: Mapping[str, int]) -> tuple[Operand, Mapping[str, Affine]] | None:
    """The operand as a strided tensor over its line axis, INNER and digits of the lead axes, and each digit by its name; None where an
    element is computed, or lies at a place that is no such sum."""
    element = operand.element
    if not isinstance(element, Read) or element.value in graph.node_by_name:
        return None
    shape = graph.type_of(element.value).shape
    offset = linearise(element.index, tuple(layouts.get(element.value) or row_major_strides(shape)))
    offset = substitute(offset, {a: number(0) for a, e in sizes.items() if e == 1}, sizes)
    axes = axes_by_stride(offset, operand.line)
    if axes is None:
        return None
    stride_by_axis, digits = axes
    led = replace(operand, value=element.value, element=None, stride_by_axis=stride_by_axis, first=offset.const, lone_reads=0,
                   inner_is_contiguous=stride_by_axis.get(INNER, 1) == 1)
    return led, digits


def axes_by_stride(offset: Affine, line: str) -> tuple[dict[str, int], dict[str, Affine]] | None:
    """The stride of each axis of an offset, digits of lead axes among them, and each digit by its name; None where one has none."""
    stride_by_axis: dict[str, int] = {}
    digits: dict[str, Affine] = {}
    for atom, stride in offset.terms:
        name = atom if isinstance(atom, str) else _name(atom, line)
        if name is None or stride < 0:
            return None
        if not isinstance(atom, str):
            digits[name] = Affine(((atom, 1),))
        stride_by_axis[name] = stride
    return stride_by_axis, digits


def _name(atom: FloorDiv | Mod, line: str) -> str | None:
    """The name of a digit's axis; None where it depends on lines or on the inner axis."""
    return None if Affine(((atom, 1),)).axes() & {line, INNER} else f"digit {Affine(((atom, 1),))}"


def digit_sizes(digits: Mapping[str, Affine], sizes: Mapping[str, int]) -> Mapping[str, int] | None:
    """The extent of each digit's axis; None where one has none."""
    extents: dict[str, int] = {}
    for name, place in digits.items():
        span = bounds(place, sizes)
        if span is None or span[0] < 0:
            return None
        extents[name] = span[1] + 1
    return extents


def digit_places(digits: Mapping[str, Affine], places: Mapping[str, Affine], extents: Mapping[str, int]) -> Mapping[str, Affine]:
    """Digits at a lead place. places: its lead axes."""
    return {name: substitute(place, places, extents) for name, place in digits.items()}
