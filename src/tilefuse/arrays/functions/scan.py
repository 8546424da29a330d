"""`scan`: a step repeated over the first dimension of arrays, with a state carried from step to step.

The steps are recorded one after the other. Equal kernels are planned, compiled and cached once; one that reads its turn's part of an
array reads it at a place of its own, and is another kernel.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilefuse.arrays.array import Array
from tilefuse.arrays.functions.creation import zeros
from tilefuse.arrays.functions.manipulation import concat, stack
from tilefuse.arrays.nodes import user_span
from tilefuse.arrays.trees import flatten, unflatten
from tilefuse.arrays.types import NAME_OF
from tilefuse.base.errors import ShapeError, TypeMismatchError, UserError

# Number of steps whose outputs are concatenated at a time.
PIECE = 32
# Each step is recorded, so a graph has as many times its nodes: beyond this compiling takes minutes.
MOST_TURNS = 4096


def scan(fn: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None, *, length: int | None = None,
         reverse: bool = False) -> tuple[Any, Any]:
    """(last state, all outputs) of `state, y = fn(state, x)` for each x along the first dimension of the arrays in `xs`.

    init, xs, state and y may be arrays or trees of arrays; outputs are stacked along a new first dimension. length: the number of steps,
    where `xs` is None. reverse: from the last x to the first; outputs lie where their x lies.
    Shapes: xs: [N, ...] -> outputs: [N, ...]
    Raises: ShapeError where first dimensions differ; TypeMismatchError where a step changes the form, shape or type of the state;
        UserError for more than 4096 turns.
    Cost: linear in the turns, which are recorded one after the other.
    """
    if not callable(fn):
        raise TypeMismatchError(f"the step of a scan is a function, not a {type(fn).__name__}", where=user_span())
    leaves: list[Any] = []
    form = flatten(xs, leaves)
    turns = _turns(leaves, length)
    start: list[Any] = []
    state_form = flatten(init, start)
    # Handles of its own: a step that writes to its state does not write to `init`.
    state = unflatten(state_form, iter([Array(_array(x).node) for x in start]))
    types = [x.node.type for x in map(_array, start)]
    outputs: list[list[Any]] = []
    out_form: Any = None
    # A scan of no steps records one all the same, over zeros: its outputs have a form, shapes and types.
    for number in range(turns)[::-1 if reverse else 1] if turns else (0,):
        slices = [x[number] if turns else zeros(x.shape[1:], dtype=x.dtype, device=x.device) for x in leaves]
        outcome = fn(state, unflatten(form, iter(slices)))
        if not isinstance(outcome, tuple) or len(outcome) != 2:
            raise TypeMismatchError("the step of a scan gives (state, output)", where=user_span(),
                                    hint="return state, None without outputs")
        state, y = outcome
        _check_state(state, state_form, types)
        leaves_of_y: list[Any] = []
        out_form = flatten(y, leaves_of_y)
        outputs.append(leaves_of_y)
    if reverse:
        outputs.reverse()
    if not turns:
        return init, unflatten(out_form, iter([zeros((0, *y.shape), dtype=y.dtype, device=y.device) for y in map(_array, outputs[0])]))
    stacked = [_stacked([turn[n] for turn in outputs]) for n in range(len(outputs[0]))]
    return state, unflatten(out_form, iter(stacked))


def _stacked(arrays: list[Any]) -> Array:
    """The arrays along a new first dimension; many of them in pieces, whose kernels are equal and compiled once.

    Cost: a kernel that reads n arrays takes the C++ compiler more than n times as long as one that reads one.
    """
    if len(arrays) <= 2 * PIECE:
        return stack(arrays)
    pieces = [stack(arrays[n:n + PIECE]) for n in range(0, len(arrays), PIECE)]
    while len(pieces) > 1:
        pieces = [concat(pieces[n:n + PIECE], axis=0) if n + 1 < len(pieces) else pieces[n] for n in range(0, len(pieces), PIECE)]
    return pieces[0]


def _turns(leaves: list[Any], length: int | None) -> int:
    extents = {_array(x).shape[:1] for x in leaves}
    if () in extents or len(extents) > 1:
        raise ShapeError(f"scan walks along the first dimension of its arrays; their shapes are {', '.join(str(x.shape) for x in leaves)}",
                         where=user_span())
    extent = next(iter(extents))[0] if extents else length
    if extent is None or length is not None and length != extent:
        raise UserError("scan needs xs, or length= for the number of turns" if extent is None
                        else f"scan over {extent} elements with length={length}", where=user_span())
    if extent > MOST_TURNS:
        raise UserError(f"a scan over {extent} turns: each is recorded, and programs of more than {MOST_TURNS} take minutes to compile",
                        where=user_span(), hint="compile a function that scans a piece, and call it piece by piece with the state it gave")
    return int(extent)


def _check_state(state: Any, form: Any, types: list[Any]) -> None:
    leaves: list[Any] = []
    if flatten(state, leaves) != form:
        raise TypeMismatchError("a step of a scan gives a state of another form than it takes", where=user_span(),
                                hint="every part of init that a step changes is an array: asarray(0.0) for a number")
    for had, x in zip(types, leaves):
        now = _array(x).node.type
        if now != had:
            raise TypeMismatchError(f"a step of a scan takes a state {NAME_OF[had.dtype]}{list(had.shape)} and gives "
                                    f"{NAME_OF[now.dtype]}{list(now.shape)}", where=user_span(), hint="convert init with astype or reshape")


def _array(x: Any) -> Array:
    if not isinstance(x, Array):
        raise TypeMismatchError(f"scan takes arrays, not a {type(x).__name__}", where=user_span(), hint="asarray makes one")
    return x
