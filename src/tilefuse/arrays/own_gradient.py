"""`stop_gradient`, and `custom_gradient`: functions of arrays whose gradient the user writes."""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tilefuse.arrays.array import Array, apply_all, lower_from_pairs, lower_pairs
from tilefuse.arrays.functions.creation import asarray
from tilefuse.arrays.functions.elementwise import astype
from tilefuse.arrays.graph import arrays_of, graph_of, walking
from tilefuse.arrays.nodes import ArrayNode, Source, user_span
from tilefuse.arrays.trees import flatten, unflatten
from tilefuse.base.errors import ShapeError, TypeMismatchError, UserError
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.own_gradient import own_gradient
from tilefuse.ir.text import print_graph


def stop_gradient(x: Any) -> Array:
    """`x`, which counts as a constant for gradients. Nothing is computed for it."""
    array = x if isinstance(x, Array) else asarray(x)
    if array.dtype.is_complex:
        return apply_all(lower_from_pairs, apply_all(_stopped, apply_all(lower_pairs, (array,))))[0]
    return apply_all(_stopped, (array,))[0] if array.dtype.is_float else array


def _stopped(b: TensorBuilder, x: str) -> tuple[str, ...]:
    return own_gradient(b, (x,), (), (), "", (), ())


def custom_gradient(fn: Callable[..., tuple[Any, Callable[..., Any]]]) -> Callable[..., Any]:
    """`fn` with the gradient that it gives: it returns its result, and a function of what arrives there.

        @ta.custom_gradient
        def log1pexp(x):
            e = ta.exp(x)
            def backward(g):
                return g * (1 - 1 / (1 + e))        # where the formula's own would be inf / inf
            return ta.log1p(e), backward

    `backward` takes a gradient for the result (one for each part of a tuple) and gives one for each argument, in the form of the
    argument; None: none. It may use what was computed before. Arrays from outside are constants to it: asking for their gradient is an
    error. Gradients of gradients are those of `backward`'s formula. The function is traced at each call.
    Raises: UserError where it gives anything else, ShapeError for a gradient of another shape than its argument, at the user's line.
    """

    @functools.wraps(fn)
    def with_gradient(*args: Any, **named: Any) -> Any:
        leaves: list[Any] = []
        forms = [flatten(a, leaves) for a in args]
        arrays = [x if isinstance(x, Array) else asarray(x) for x in leaves]
        inner = [_stand_in(x, f"x{n}") for n, x in enumerate(arrays)]
        rest = iter(inner)
        outcome = fn(*[unflatten(f, rest) for f in forms], **named)
        if not isinstance(outcome, tuple) or len(outcome) != 2 or not callable(outcome[1]):
            raise UserError(f"{fn.__name__} gives {type(outcome).__name__}, not its result and a function for its gradient",
                            where=user_span(),
                            hint="return result, backward")
        values: list[Any] = []
        form = flatten(outcome[0], values)
        if not values or not all(isinstance(v, Array) and v.dtype.is_float for v in values):
            raise TypeMismatchError(f"results of {fn.__name__} are arrays of floats", where=user_span(),
                                    hint="real and imag give the parts of complex numbers")
        arriving = [_stand_in(v, f"g{n}") for n, v in enumerate(values)]
        gradients = unflatten(form, iter(arriving))
        slopes = outcome[1](*gradients) if isinstance(outcome[0], tuple) else outcome[1](gradients)
        listed = _of_arguments(fn.__name__, slopes, forms, inner)
        return unflatten(form, iter(_joined(values, inner, arrays, arriving, listed)))

    return with_gradient


def _stand_in(x: Array, name: str) -> Array:
    return Array(Source(x.node.type, x.node.device, None, name, "placeholder"))


def _of_arguments(name: str, slopes: Any, forms: Sequence[Any], inner: Sequence[Array]) -> list[Array | None]:
    """The gradient of each array among the arguments, checked."""
    slope_parts = slopes if isinstance(slopes, tuple) else (slopes,)
    if len(slope_parts) != len(forms):
        raise UserError(f"the gradient of {name} has {len(slope_parts)} parts for {len(forms)} arguments", where=user_span(),
                        hint="one for each argument; None where it has none")
    gradients: list[Array | None] = []
    place = iter(inner)
    for number, (slope, form) in enumerate(zip(slope_parts, forms, strict=True)):
        count: list[Any] = []
        own: list[Any] = []
        unflatten(form, _counted(place, count))
        if slope is not None and flatten(slope, own) != form:
            raise UserError(f"the gradient of argument {number} of {name} has another form than the argument", where=user_span())
        for x, g in zip(count, own or [None] * len(count), strict=True):
            if g is not None and (not isinstance(g, Array) or not g.dtype.is_float or not x.dtype.is_float):
                raise TypeMismatchError(f"the gradient of argument {number} of {name}: only arrays of floats have one", where=user_span(),
                                        hint="None for the others")
            if g is not None and g.shape != x.shape:
                raise ShapeError(f"the gradient of argument {number} of {name} has shape {g.shape}, the argument {x.shape}",
                                 where=user_span())
            gradients.append(g if g is None or g.dtype == x.dtype else astype(g, x.dtype))
    return gradients


def _counted(leaves: Any, seen: list[Any]) -> Any:
    for x in leaves:
        seen.append(x)
        yield x


def _joined(values: Sequence[Array], inner: Sequence[Array], arrays: Sequence[Array], arriving: Sequence[Array],
            slopes: Sequence[Array | None]) -> tuple[Array, ...]:
    """The results over the real arguments, with the traced gradient."""
    real: dict[ArrayNode, ArrayNode] = {i.node: a.node for i, a in zip(inner, arrays, strict=True)}
    gives = tuple(n for n, g in enumerate(slopes) if g is not None)
    with walking:
        forward, read = graph_of(values, "forward")
        results = arrays_of(forward, [real.get(leaf, leaf) for leaf in read])
        if not gives:
            return tuple(stop_gradient(v) for v in results)
        backward, leaves = graph_of([g for g in slopes if g is not None], "backward")
    number: dict[ArrayNode, int] = {i.node: n for n, i in enumerate(inner)}
    number |= {a.node: -1 - n for n, a in enumerate(arriving)}
    # Arrays from outside that only the formula reads count too: its gradient would be zero in silence.
    others = list(dict.fromkeys(leaf for leaf in (*leaves, *read) if leaf not in number))
    number |= {leaf: len(inner) + n for n, leaf in enumerate(others)}
    settings = (len(results), len(arrays), print_graph(backward), tuple(number[leaf] for leaf in leaves), gives)
    return apply_all(_with_gradient, (*results, *arrays, *(Array(o) for o in others)), settings)


def _with_gradient(b: TensorBuilder, *operands: Any) -> tuple[str, ...]:
    *names, num_results, num_arguments, gradient, takes, gives = operands
    inner = num_results + num_arguments
    return own_gradient(b, names[:num_results], names[num_results:inner], names[inner:], gradient, takes, gives)
