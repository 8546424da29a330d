"""`x[key] = value`, and `put`, its functional form.

    x --node--> a                       x --node--> put(a, key, value)
    y --node--> a        x[key] = v     y --node--> a

An array is a handle, and writing gives it another node. Other arrays, and earlier recordings, keep the old values. Where all data exists,
or can be computed, it is written at once and nothing is compiled for another place; in a trace, and over placeholders and variables, the
write is a node that fuses. Gradients see the same node either way.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

from tilefuse.arrays.arguments import of_arrays
from tilefuse.arrays.array import Array, apply, as_part, current_trace, installed
from tilefuse.arrays.functions.elementwise import astype, where
from tilefuse.arrays.functions.manipulation import reshape
from tilefuse.arrays.functions.selection import positions_of
from tilefuse.arrays.functions.subscript import Plan, lower_view, mask_in, masked_key, subscript_plan, with_arrays
from tilefuse.arrays.graph import in_order
from tilefuse.arrays.lowering import lower_full
from tilefuse.arrays.nodes import Applied, ArrayNode, Source, record_known, user_span
from tilefuse.arrays.tracing import traced_name
from tilefuse.arrays.types import NAME_OF, as_scalar, number_constant
from tilefuse.base.errors import TypeMismatchError, UserError
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Const

# The node that an array had before its last write -> the number of that write, and the node after it while it exists. Compiled functions
# that captured the first look here.
_written: WeakKeyDictionary[ArrayNode, tuple[int, ref[ArrayNode]]] = WeakKeyDictionary()
_numbers = itertools.count(1)
_num_writes = 0


@of_arrays
def put(x: Array, key: Any, value: Any, /, *, accumulate: bool = False) -> Array:
    """`x` with x[key] replaced by `value` (broadcast), or `value` added there; the functional form of x[key] = value.

    Where several positions of an index array are equal, one of the values wins; with `accumulate` all are added.
    Raises: AxisError, ShapeError for a key or a value that does not fit; TypeMismatchError for a value of a kind that `x` does not take.
    """
    fresh, key = _fitting(x, value), with_arrays(key, Array, x.device, as_part)
    if mask_in(key, Array):
        return _put_where(x, key, fresh, bool(accumulate))
    plan, indices = subscript_plan(x.shape, key, Array)
    return apply(lower_put, (x, _constant(x, fresh), *indices), (plan, bool(accumulate)))


def write(x: Array, key: Any, value: Any) -> None:
    """`x[key] = value`: gives `x` the node of `put`, with its data where that can be known.

    Raises: as `put`; UserError for an array that must not be written.
    """
    _check_writable(x)
    fresh, key = _fitting(x, value), with_arrays(key, Array, x.device, as_part)
    if mask_in(key, Array):
        settled = _is_settled(x, fresh, [k for k in (key if isinstance(key, tuple) else (key,)) if isinstance(k, Array)])
        node = _put_where(x, key, fresh, False, settled).node
        if settled:
            installed().compute((node,))
    else:
        plan, indices = subscript_plan(x.shape, key, Array)
        node = _written_node(x, plan, fresh, indices)
    _rebind(x, node)


def write_whole(x: Array, made: Array) -> None:
    """Gives `x` the values of an array of its type; where it lies elsewhere they are moved."""
    _rebind(x, made.to_device(x.device).node)


def _rebind(x: Array, node: ArrayNode) -> None:
    global _num_writes
    if node is not x.node:
        number = next(_numbers)
        _written[x.node] = number, ref(node)
        x.node = node
        _num_writes = number  # last: who sees another number finds the write


def num_writes() -> int:
    """The number of the last write: where it is as before, nothing was written to."""
    return _num_writes


def written_since(node: ArrayNode, write: int) -> bool:
    """Whether an array that had this node was written to after this many writes, and now has another one."""
    return node in _written and _written[node][0] > write


def latest(node: ArrayNode) -> ArrayNode:
    """The node that replaces a node after all known writes; the node itself where there are none."""
    while node in _written:
        newer = _written[node][1]()
        if newer is None:
            break
        node = newer
    return node


def _check_writable(x: Array) -> None:
    """Raises: UserError for placeholders and variables, and in a trace for an array from outside of it."""
    trace = current_trace.get()
    if trace is not None and x.trace is not trace:
        name = traced_name()
        raise UserError(f"{name} is being traced, and the array that is written to was made outside of it: the write would happen while "
                        "the function is traced, not at its calls", where=user_span(),
                        hint=f"make it an argument of {name}, or write to a copy: y = asarray(x, copy=True)")
    if isinstance(x.node, Source) and x.node.role != "data" and trace is None:
        hint = "a variable changes by assignments: fetch w.assign(put(w, key, value))" if x.node.role == "variable" else \
            "y = put(x, key, value) is another array"
        raise UserError(f"the {x.node.role} {x.node.name} is not written to", where=user_span(), hint=hint)


# Kinds of types, each holding those of smaller number.
_WIDTH = {"bool": 0, "int": 1, "uint": 1, "float": 2, "complex": 3}


def _fitting(x: Array, value: Any) -> Array | Const:
    """The value, whose type must go into that of `x`: an array, or a constant for a number. Raises: TypeMismatchError."""
    number = as_scalar(value)
    if number is not None:
        if not (isinstance(number, bool) or x.dtype.is_complex or x.dtype.is_float and not isinstance(number, complex)
                or isinstance(number, int) and x.dtype.is_integer):
            raise TypeMismatchError(f"an array of {NAME_OF[x.dtype]} cannot hold a {type(number).__name__}", where=user_span(),
                                    hint=f"its type stays; x = astype(x, {type(number).__name__}) is an array that does")
        return number_constant(number, x.dtype)
    if isinstance(value, Array):
        fresh = value
    else:
        of_list = isinstance(value, (list, tuple, range))
        fresh = Array(installed().source(value, x.dtype, x.device, None)) if of_list else as_part(value, x.device)
    if _WIDTH[fresh.dtype.kind] > _WIDTH[x.dtype.kind]:
        raise TypeMismatchError(f"an array of {NAME_OF[x.dtype]} cannot hold values of {NAME_OF[fresh.dtype]}", where=user_span(),
                                hint=f'convert them: astype(value, "{NAME_OF[x.dtype]}")')
    return fresh


def _constant(x: Array, value: Array | Const) -> Array:
    """The value as a part of the graph."""
    return value if isinstance(value, Array) else apply(lower_full, (), ((), value), x.device)


def _known(x: Array, value: Array | Const) -> Array:
    """The value as data, so that other numbers are no other programs."""
    return value if isinstance(value, Array) else Array(installed().source(value.value, x.dtype, x.device, None))


# Records


def lower_put(b: TensorBuilder, x: str, value: str, *rest: Any) -> str:
    """The part of `x` that the slices select, changed, in its place: a choice between two reads where no index array is given, else a
    scatter.

    Raises: ShapeError for a value that does not broadcast to the replaced part.
    """
    *indices, plan, accumulate = rest
    assert isinstance(plan, Plan)
    seen = lower_view(b, x, plan)
    at = plan.positions(b, indices)
    fitted = b.cast(value, b.dtype_of(x))
    shape_there = b.shape_of(b.index(seen, at)) if indices else b.shape_of(seen)
    extra = b.rank_of(fitted) - len(shape_there)
    if extra > 0 and set(b.shape_of(fitted)[:extra]) == {1}:
        fitted = b.squeeze(fitted, list(range(extra)))
    fitted = b.broadcast_to(fitted, shape_there)
    if indices:
        fresh = b.index_put(seen, at, fitted, accumulate, checked=True)
    else:
        fresh = b.elementwise("add", seen, fitted) if accumulate else fitted
    return _put_back(b, x, fresh, plan.ranges(b.shape_of(x)))


def _put_back(b: TensorBuilder, x: str, part: str, ranges: Sequence[range]) -> str:
    """`x` with the elements in the ranges replaced by `part`, which may lack dimensions of one position and have new ones of extent 1."""
    if any(not len(r) for r in ranges):
        return x
    source = b.reshape(part, [len(r) for r in ranges])
    down = [d for d, r in enumerate(ranges) if r.step < 0]
    source = b.flip(source, down) if down else source
    up = [r[::-1] if r.step < 0 else r for r in ranges]
    # Innermost first: each step replaces one dimension of the selection by the dimensions before it.
    parts = [x]
    for d, r in enumerate(up[:-1]):
        parts.append(b.slice(parts[-1], [r.start], [r[-1] + 1], [r.step], axes=[d]))
    for d in reversed(range(len(up))):
        r, extent = up[d], b.shape_of(x)[d]
        source = b.slice_scatter(parts[d], source, d, r.start, r[-1] + 1, r.step) if len(r) < extent else source
    return source


def _put_where(x: Array, key: Any, value: Array | Const, accumulate: bool, known: bool = False) -> Array:
    """As `put` for a key with a mask: a choice, where the value says nothing of how many elements the mask selects."""
    fresh = _known(x, value) if known else _constant(x, value)
    mask, plain, at = masked_key(key, x.shape, Array)
    if mask is not None:
        inside = x[plain]
        behind = inside.ndim - at - mask.ndim
        lead = fresh.ndim - behind - 1
        if lead < 0 or fresh.shape[lead] == 1:
            if lead >= 0:
                fresh = reshape(fresh, (*fresh.shape[:lead], *(1,) * mask.ndim, *fresh.shape[lead + 1:]))
            chosen = reshape(mask, (*mask.shape, *(1,) * behind))
            fresh = astype(fresh, x.dtype)
            return put(x, plain, where(chosen, inside + fresh if accumulate else fresh, inside))
    plan, indices = subscript_plan(x.shape, key, Array, positions_of)
    return apply(lower_put, (x, fresh, *indices), (plan, accumulate))


# Writes done at once


def _written_node(x: Array, plan: Plan, value: Array | Const, indices: Sequence[Array]) -> ArrayNode:
    """The node after a write, with its data where that can be known now."""
    if not _is_settled(x, value, indices):
        return apply(lower_put, (x, _constant(x, value), *indices), (plan, False)).node
    fresh = _known(x, value)
    uses, views = _private_uses(fresh.node, x.node)
    installed().compute([x.node, fresh.node, *(i.node for i in indices)])
    if indices or not plan.is_view() or x.dtype != fresh.dtype and not (_is_converted(x.dtype) and _is_converted(fresh.dtype)):
        written = apply(lower_put, (x, fresh, *indices), (plan, False)).node
        installed().compute((written,))
        return written
    alone = _is_alone(x, uses, views)
    written = record_known(lower_put, (x.node, fresh.node), (plan, False), None)
    if written is x.node or written is fresh.node:
        return written
    written.buffer = x.node.buffer if alone else x.node.buffer.clone()
    plan.of_tensor(written.buffer)[...] = fresh.node.buffer
    if alone:
        x.node.buffer = None  # the new node has its data; the old one can compute it again
    return written


def _is_converted(dtype: DType) -> bool:
    """Whether the framework converts the type as the compiler does, on every device: it has little for unsigned integers beyond 8 bits,
    and 8-bit floats are rounded in several ways."""
    return dtype.bits > 8 if dtype.is_float else dtype.kind != "uint" or dtype.bits == 8


def _is_settled(x: Array, value: Array | Const, indices: Sequence[Array]) -> bool:
    """Whether a write can happen now: not in a trace, nor over placeholders and variables."""
    operands = (x, value, *indices)
    return current_trace.get() is None and installed().is_settled([a.node for a in operands if isinstance(a, Array)])


class _Slot:
    """A place that holds an object once."""

    __slots__ = ("node",)

    def __init__(self) -> None:
        self.node = object()


_slot = _Slot()
_list = [object()]
# Reference counts of the interpreter for an object that one place holds, and for one that a list holds which is walked.
_HELD_ONCE = sys.getrefcount(_slot.node)
_LISTED = [sys.getrefcount(o) for o in _list][0]


def _private_uses(value: ArrayNode, of: ArrayNode) -> tuple[int, list[Applied]]:
    """How often a value that is computed next reads the node `of`, in nodes that nothing else holds, and which of these are views of its
    data: x[n] += 1 reads x through a view that is forgotten at once."""
    if value.buffer is not None:
        return 0, []
    nodes = [n for n in in_order([value]) if isinstance(n, Applied) and n is not of]
    inside = Counter(id(o) for n in nodes for o in n.operands)
    counts = [sys.getrefcount(n) for n in nodes]
    private = [n for n, count in zip(nodes, counts, strict=True) if n is value or count == _LISTED + inside[id(n)]]
    uses = sum(o is of for n in private for o in n.operands)
    return uses, [n for n in private if n.buffer is not None and of in n.operands]


def _is_alone(x: Array, uses: int, views: Sequence[Applied]) -> bool:
    """Whether nothing else references the data of `x` and it can be computed again, so that it may be overwritten in place.

    uses, views: reads of `x` by the value; the views drop their data, which is that of `x`.
    """
    if not isinstance(x.node, Applied) or not (x.node.operands or not x.node.node.reads()) or sys.getrefcount(x.node) != _HELD_ONCE + uses:
        return False
    for view in views:
        view.buffer = None
    return sys.getrefcount(x.node.buffer) == _HELD_ONCE and installed().is_lone(x.node.buffer)
