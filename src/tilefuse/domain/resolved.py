"""A pattern resolved at one point of its root domain: instances, and bodies whose leaves are touches of memory and uses of instances.

A body is a scalar expression with other leaves. `domain.py` creates these values; templates, costs and composers read them.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any, Union

from tilefuse.base.construction import quickly_built
from tilefuse.base.errors import InternalError
from tilefuse.ir.affine import Affine
from tilefuse.ir.dtype import BOOL, DTYPES, I64, DType
from tilefuse.ir.graph import Node
from tilefuse.ir.ops import SCALAR_OPS
from tilefuse.ir.scalar import Bound, Call, Const, Guard, Index

Coordinate = tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class Use:
    """Leaf of a resolved body: the value of instance number `key` at the current point."""

    key: int


@dataclass(frozen=True, slots=True)
class Touch:
    """Leaf of a resolved body: an element of boundary value `value` at an element offset (affine in root axes and loop variables).

    dynamic: (integer expression, extent, stride) for each data-dependent subscript; clamped to 0 .. extent - 1 when emitted.
    """

    value: str
    dtype: DType
    offset: Affine
    dynamic: tuple[tuple[Resolved, int, int], ...] = ()


ResolvedLeaf = Union[Use, Touch]
Resolved = Union[Const, Index, Use, Touch, "Call[Resolved]", "Guard[Resolved]"]


@quickly_built
@dataclass(frozen=True, slots=True)
class Instance:
    """One node at one coordinate.

    body      resolved scalar expression; the combined element for reductions and scans
    depends   root axes and loop variables that its value depends on
    serial    loop variables (name, extent) of a reduction by one thread; () otherwise
    shared    whether it is a reduction or scan that threads compute together
    position  of an arg-reduction: row-major position in the reduced domain, in root axes
    carried   whether it is a sum down the columns that the kernel accumulates row by row (see `carried.py`); no instance reads it
    second_of key of the reduction whose second component is this one (see `online.py`)
    squares_of key of the sum that gives the mean, for a sum of squared deviations from it (see `two_pass.py`)
    """

    key: int
    node: Node
    coordinate: Coordinate
    body: Resolved
    depends: frozenset[str]
    serial: tuple[tuple[str, int], ...] = ()
    shared: bool = False
    position: Affine | None = None
    uses: tuple[int, ...] = ()
    carried: bool = False
    second_of: int | None = None
    squares_of: int | None = None


@dataclass
class Domain:
    """Root axes, instances in evaluation order, and the values written with their offsets."""

    kept: tuple[str, ...]
    reduced: tuple[str, ...]
    extents: dict[str, int]
    instances: list[Instance] = field(default_factory=list)
    outputs: list[tuple[str, int, Affine]] = field(default_factory=list)  # (value, instance key, offset)
    scatter: tuple[str, Resolved, tuple[tuple[Resolved, int, int], ...]] | None = None
    has_scan: bool = False
    # Accesses of the complete domain, computed once (`access.py`): choices, traffic and cost all use them.
    found_accesses: tuple[Any, ...] | None = field(default=None, init=False, compare=False, repr=False)
    # The same of the complete domain in tiles of some sides, by these (`templates/tiles/unrolled.py`).
    found_tiles: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def num_kept(self) -> int:
        """Points of the result axes."""
        return prod(self.extents[a] for a in self.kept)

    @property
    def num_reduced(self) -> int:
        """Points of the reduced axes."""
        return prod(self.extents[a] for a in self.reduced)

    @property
    def serial_loops(self) -> frozenset[str]:
        """Loop variables of the single-thread reductions. A value that depends on one exists only inside its loop."""
        return frozenset(loop for i in self.instances for loop, _ in i.serial)

    @property
    def stores_elements(self) -> bool:
        """Whether the kernel writes elements along the reduced axes, besides row results and carried sums."""
        return any(offset.axes() & set(self.reduced) and not self.instances[key].carried for _, key, offset in self.outputs)


def resolved_children(e: Resolved) -> tuple[Resolved, ...]:
    """Direct subexpressions, including dynamic subscripts."""
    match e:
        case Call(_, args):
            return args
        case Guard(_, then, otherwise):
            return (then, otherwise)
        case Touch(_, _, _, dynamic):
            return tuple(d[0] for d in dynamic)
    return ()


def resolved_walk(e: Resolved) -> list[Resolved]:
    """All subexpressions of a resolved body, `e` first."""
    subexpressions = [e]
    for x in subexpressions:
        subexpressions.extend(resolved_children(x))
    return subexpressions


def rebuilt(e: Resolved, leaf: Callable[[Resolved], Resolved] = lambda x: x,
            subscript: Callable[[Affine], Affine] = lambda a: a) -> Resolved:
    """`e` with `subscript` applied to every index expression, then `leaf` to every leaf."""
    def again(x: Resolved) -> Resolved:
        return rebuilt(x, leaf, subscript)

    match e:
        case Call(fn, args):
            return Call(fn, tuple(again(a) for a in args))
        case Guard(bounds, then, otherwise):
            limits = tuple(Bound(subscript(b.index), b.low, b.high) for b in bounds)
            return Guard(limits, again(then), again(otherwise))
        case Touch(value, dtype, offset, dynamic):
            places = tuple((again(d), extent, stride) for d, extent, stride in dynamic)
            return leaf(Touch(value, dtype, subscript(offset), places))
        case Index(affine):
            return leaf(Index(subscript(affine)))
    return leaf(e)


def direct_touches(body: Resolved) -> list[Touch]:
    """Distinct touches of a body that are neither guarded nor data-dependent, in order."""
    touches: dict[Touch, None] = {}
    stack = [body]
    while stack:
        e = stack.pop()
        if isinstance(e, Touch) and not e.dynamic:
            touches.setdefault(e)
        elif isinstance(e, Call):
            stack.extend(reversed(e.args))
    return list(touches)


def unguarded_touches(body: Resolved) -> list[Touch]:
    """Distinct unguarded touches of a body, including data-dependent ones and their subscripts."""
    touches: dict[Touch, None] = {}
    stack = [body]
    while stack:
        e = stack.pop()
        if isinstance(e, Touch):
            touches.setdefault(e)
        if not isinstance(e, Guard):
            stack.extend(reversed(resolved_children(e)))
    return list(touches)


def coordinate_kept(coordinate: Coordinate, domain: Domain) -> bool:
    """Whether a coordinate depends on kept axes only."""
    return all(c.axes() <= set(domain.kept) for c in coordinate)


def resolved_dtype(body: Resolved, domain: Domain) -> DType:
    """The dtype of a resolved body, its leaves' dtypes taken from the domain."""
    match body:
        case Const(_, dtype) | Touch(_, dtype, _, _):
            return dtype
        case Use(key):
            return domain.instances[key].node.type.dtype
        case Index():
            return I64
        case Guard(_, then, _):
            return resolved_dtype(then, domain)
        case Call(fn, args):
            if fn in DTYPES:
                return DTYPES[fn]
            if fn == "select":
                return resolved_dtype(args[1], domain)
            op = SCALAR_OPS[fn]
            if op.result == "same":
                return resolved_dtype(args[0], domain)
            return DTYPES.get(op.result, BOOL)
    raise InternalError(f"not a resolved expression: {body!r}")
