"""Nodes that arrays are handles on: a `Source` that holds data, or a tensor expression `Applied` to other nodes.

An expression is an ordinary `ir.Node` whose body names its operands by position, `_0`, `_1`, ...: the template. Templates are equal for
equal expressions and carry a number, so the structure of a program is a list of small integers. An operator's recording depends only on the
types of its operands and on its settings, so it is made once and then only instantiated again.
"""

from __future__ import annotations

import itertools
import linecache
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Union

from tilefuse.base.bounded import Bounded
from tilefuse.base.errors import CompilerError, InternalError, UserError
from tilefuse.base.source import Span
from tilefuse.ir.building.tensor_complex import ComplexBuilder
from tilefuse.ir.graph import Node, Type
from tilefuse.ir.scalar import rename_reads

PACKAGE_FOLDER = str(Path(__file__).resolve().parents[1]) + os.sep
# Frames in these packages are not the user's line: torch and numpy call back into their arguments (`from_dlpack`, `asarray`).
NOT_THE_USERS = (PACKAGE_FOLDER, *(str(Path(str(spec.origin)).parent) + os.sep for spec in map(find_spec, ("torch", "numpy")) if spec))
# Maximum number of recordings; above it they are dropped (numbers are never reused, so compiled programs stay valid).
MOST_RECORDINGS = 50_000
# Views of data and writes into it: loops over batches make many that differ, and no program depends on them.
MOST_VIEWS = 4096

Place = tuple[str, int]
Lowering = Callable[..., Union[str, tuple[str, ...]]]


class Source:
    """A leaf: `buffer` holds its data (a torch tensor), or is None for a placeholder.

    role: "data", "placeholder" or "variable". name: wanted name of the graph input, "" for none in particular.
    device: "host", "cuda:0", ... number: of the type, where it is known.
    """

    __slots__ = ("__weakref__", "buffer", "device", "name", "role", "type", "type_number")

    def __init__(self, type: Type, device: str, buffer: Any = None, name: str = "", role: str = "data", number: int = -1) -> None:
        self.type = type
        self.type_number = number if number >= 0 else number_of_type(type)
        self.device = device
        self.buffer = buffer
        self.name = name
        self.role = role


class Applied:
    """A tensor expression over other nodes. `buffer` holds its value once it was computed.

    node: the template; number: its number; place: file and line of the user's code. type: of the array: a complex one where the node
    makes pairs of reals, and the buffer is then a complex tensor. `operands` stays after an evaluation that the
    user did not ask for by name (printing), so that gradients can still be taken.
    """

    __slots__ = ("__weakref__", "buffer", "device", "node", "number", "operands", "place", "type", "type_number")

    def __init__(self, node: Node, number: int, operands: tuple[ArrayNode, ...], device: str, place: Place,
                 type: Type | None = None) -> None:
        self.node = node
        self.type = node.type if type is None else type
        self.type_number = number_of_type(self.type)
        self.number = number
        self.operands = operands
        self.device = device
        self.place = place
        self.buffer: Any = None

    @property
    def span(self) -> Span:
        """The user's line that built it."""
        return Span(self.place[0], self.place[1], 1)


ArrayNode = Union[Source, Applied]


@dataclass(frozen=True, slots=True)
class Recording:
    """Templates in order, each with its operands and its array's type: n >= 0 is operand n of the call, -1 - s the result of step s."""

    steps: tuple[tuple[Node, int, tuple[int, ...], Type], ...]
    results: tuple[int, ...]


# By the type of the stand-in for data that was given away: the function that raises the error naming the receiver.
GIVEN_AWAY: dict[type, Callable[[Any], object]] = {}
_numbers: dict[Node, int] = {}
_type_numbers: dict[Type, int] = {}
_number_by_object: dict[int, tuple[Type, int]] = {}
# Threads record at the same time: a number is taken from a counter before it is stored, so that numbers are unique.
_next_number = itertools.count()
_next_type_number = itertools.count()
_recordings: dict[tuple[Any, ...], Recording] = {}
_views: Bounded[tuple[Any, ...], Recording] = Bounded(MOST_VIEWS)


def number_of_type(type: Type) -> int:
    """Equal for equal types: a key that is cheap to hash. Most types come from templates, so their identity is checked first."""
    entry = _number_by_object.get(id(type))
    if entry is not None and entry[0] is type:
        return entry[1]
    number = _type_numbers.setdefault(type, next(_next_type_number))
    if len(_number_by_object) > MOST_RECORDINGS:
        _number_by_object.clear()
    _number_by_object[id(type)] = (type, number)
    return number


def template_of(node: Node, numbered: bool = True) -> tuple[Node, int, tuple[str, ...]]:
    """The template of a graph's node, its number (-1 if none is needed), and the values at its positions."""
    values = node.reads()
    names = {value: f"_{n}" for n, value in enumerate(values)}
    known = renamed(node, names, node.name)
    return known, number_of_template(known) if numbered else -1, values


def number_of_template(template: Node) -> int:
    """Equal for equal templates, and never used for another one."""
    number = _numbers.get(template)
    if number is None:
        number = _numbers.setdefault(template, next(_next_number))
    return number


def renamed(node: Node, names: dict[str, str], name: str, span: Span | None = None) -> Node:
    """`node` under another name, reading the values that `names` gives."""
    return replace(
        node,
        name=name,
        body=None if node.body is None else rename_reads(node.body, names),
        target=tuple(rename_reads(e, names) for e in node.target),
        operands=tuple(names.get(v, v) for v in node.operands),
        span=span,
    )


def record(lowering: Lowering, operands: Sequence[ArrayNode], settings: tuple[Any, ...] = (), device: str = "") -> tuple[ArrayNode, ...]:
    """The nodes that `lowering(builder, *operand names, *settings)` gives, one a result.

    settings: hashable; equal settings must mean the same program (a number as an `ir.scalar.Const`: 0.0 equals -0.0).
    Raises: what the lowering raises, with the user's line.
    """
    return played(recording(lowering, operands, settings), operands, device)


def recording(lowering: Lowering, operands: Sequence[ArrayNode], settings: tuple[Any, ...] = ()) -> Recording:
    """Result of the lowering for operands of these types, cached. Raises: as `record`."""
    key = (lowering, settings, *[o.type_number for o in operands])
    recorded = _recordings.get(key)
    if recorded is None:
        recorded = _record(lowering, operands, settings)
        if len(_recordings) > MOST_RECORDINGS:
            _recordings.clear()
            _numbers.clear()
        _recordings[key] = recorded
    return recorded


def record_known(lowering: Lowering, operands: Sequence[ArrayNode], settings: tuple[Any, ...], data: Any) -> ArrayNode:
    """As `record` for one result whose data exists. The node gives gradients its formula, and has no number."""
    key = (lowering, settings, *[o.type_number for o in operands])
    recorded = _views.get(key)
    if recorded is None:
        recorded = _views.put(key, _record(lowering, operands, settings, numbered=False))
    node = played(recorded, operands)[0]
    if node not in operands:
        node.buffer = data
    return node


def played(found: Recording, operands: Sequence[ArrayNode], device: str = "") -> tuple[ArrayNode, ...]:
    """The nodes of a recording over these operands. device: where it makes something of nothing.

    Raises: UserError for an operand whose data was given away, here and not at the use of the result.
    """
    for o in operands:
        if o.buffer.__class__ in GIVEN_AWAY:
            GIVEN_AWAY[o.buffer.__class__](o.buffer)
    where = common_device(operands) if operands else device
    place = user_place()
    nodes: list[ArrayNode] = []
    for template, number, uses, type in found.steps:
        nodes.append(Applied(template, number, tuple([operands[u] if u >= 0 else nodes[-1 - u] for u in uses]), where, place, type))
    return tuple([operands[r] if r >= 0 else nodes[-1 - r] for r in found.results])


def _record(lowering: Lowering, operands: Sequence[ArrayNode], settings: tuple[Any, ...], numbered: bool = True) -> Recording:
    builder = ComplexBuilder("recording")
    names = [builder.input(f"_{n}", o.type.dtype, o.type.shape) for n, o in enumerate(operands)]
    try:
        names_of_results = lowering(builder, *names, *settings)
    except CompilerError as error:
        if error.where is not None:
            raise
        raise type(error)(error.message, where=user_span(), hint=error.hint) from None
    results = (names_of_results,) if isinstance(names_of_results, str) else names_of_results
    if len(builder.inputs) > len(names):
        raise InternalError("a lowering of an array operator made constant inputs; pass the data as an operand")
    place_of: dict[str, int] = {name: n for n, name in enumerate(names)}
    needed = set(results)
    for node in reversed(builder.nodes):
        if node.name in needed:
            needed.update(node.reads())
    steps: list[tuple[Node, int, tuple[int, ...], Type]] = []
    for node in builder.nodes:
        if node.name in needed:
            template, number, values = template_of(node, numbered)
            # The node's own type object, where that is the array's: numbers of types are found by identity first.
            of = builder.types[node.name]
            steps.append((template, number, tuple(place_of[v] for v in values), template.type if of == template.type else of))
            place_of[node.name] = -len(steps)
    return Recording(tuple(steps), tuple(place_of[r] for r in results))


def common_device(operands: Sequence[ArrayNode]) -> str:
    """The device of all operands; scalars on the host may meet arrays anywhere.

    Raises: UserError where they lie on several.
    """
    first = operands[0].device
    for other in operands:
        if other.device != first:
            devices = {o.device for o in operands if o.type.shape or o.device != "host"}
            if len(devices) > 1:
                raise UserError(f"the arrays lie on {' and '.join(sorted(devices))}", where=user_span(), hint="move one with to_device")
            return next(iter(devices))
    return first


# The user's place in their program


def user_frame() -> FrameType:
    """The innermost frame outside the package, torch and numpy."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (frame.f_code.co_filename.startswith(NOT_THE_USERS) or _is_generated(frame)):
        frame = frame.f_back
    return frame


def _is_generated(frame: FrameType) -> bool:
    """Whether a decorator of the package's classes generated the code of a frame (constructors of dataclasses)."""
    return frame.f_code.co_filename == "<string>" and str(frame.f_globals.get("__name__", "")).startswith("tilefuse.")


def user_place() -> Place:
    """File and line of the innermost frame outside the package, torch and numpy."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(NOT_THE_USERS) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def user_span() -> Span:
    """The user's line with its text and the column of the call: for messages."""
    frame = user_frame()
    line = frame.f_lineno
    text = linecache.getline(frame.f_code.co_filename, line).rstrip("\n")
    column = _column(frame.f_code, frame.f_lasti) or len(text) - len(text.lstrip())
    return Span(frame.f_code.co_filename, line, column + 1, text)


def _column(code: CodeType, instruction: int) -> int | None:
    """Column of the expression that an instruction belongs to; None where the interpreter does not know."""
    positions = next(itertools.islice(code.co_positions(), instruction // 2, None), None)
    return positions[2] if positions is not None else None
