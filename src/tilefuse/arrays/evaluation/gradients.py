"""`grad` and `value_and_grad` of arrays: the graph behind a value, differentiated, as arrays again.

The forward values keep their identity, so a value and its gradients that are computed together share one program.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilefuse.arrays.array import Array, apply, lower_from_pairs, lower_pairs
from tilefuse.arrays.functions.creation import asarray
from tilefuse.arrays.functions.elementwise import astype, real
from tilefuse.arrays.functions.writing import latest
from tilefuse.arrays.graph import arrays_of, in_order, named_graph, structure_of, walking
from tilefuse.arrays.nodes import Applied, user_span
from tilefuse.arrays.trees import flatten, settings, unflatten
from tilefuse.arrays.types import NAME_OF
from tilefuse.base.bounded import Bounded
from tilefuse.base.errors import ShapeError, TypeMismatchError, UserError
from tilefuse.ir.graph import Graph
from tilefuse.passes.autodiff.autodiff import gradient_graph

# Gradient graphs, stored by the structure that they differentiate: a loop that is not compiled differentiates once.
MOST_GRADIENTS = 256

_gradients: Bounded[tuple[object, ...], Graph] = Bounded(MOST_GRADIENTS)


def grad(y: Array, xs: Any, seed: Array | None = None) -> Any:
    """The gradient of `y` with respect to `xs`: an array, or arrays in dicts, lists and tuples, whose form the result has.

    seed: the gradient that arrives at `y`, of its shape; without it `y` must be a single number. Any array on the way may be in `xs`,
    computed or not; one that `y` does not depend on has gradient zero. Gradients are arrays like others: they can be differentiated.
    Raises: ShapeError where `y` is no number and has no seed, TypeMismatchError for arrays that are no floats, UserError where an
        operator on the way has no gradient, at the line that applied it.
    """
    listed: list[Any] = []
    form = flatten(xs, listed)
    for x in (y, *listed, *(s for s in settings(form) if s is not None)):
        if not isinstance(x, Array):
            raise TypeMismatchError(f"grad takes arrays, not {type(x).__name__}", where=user_span())
        if not (x.dtype.is_float or x.dtype.is_complex):
            raise TypeMismatchError(f"an array of {NAME_OF[x.dtype]} has no gradient", where=user_span(), hint="convert it with astype")
    if seed is None and y.size != 1:
        raise ShapeError(f"the gradient of an array of shape {y.shape} needs a seed, because it is not a single number", where=user_span(),
                         hint="sum it, or pass seed=")
    if seed is not None and not isinstance(seed, Array):
        raise TypeMismatchError(f"a seed is an array, not a {type(seed).__name__}", where=user_span(), hint="asarray makes one")
    if seed is None and y.dtype.is_complex:
        raise ShapeError("the gradient of a complex number needs a seed, because only a real one has a slope", where=user_span(),
                         hint="differentiate real(y), imag(y) or abs(y), or pass seed=")
    if seed is not None and (seed.shape != y.shape or not (seed.dtype.is_float or seed.dtype.is_complex)):
        raise ShapeError(f"a seed of shape {seed.shape} ({NAME_OF[seed.dtype]}) does not fit an array of shape {y.shape}",
                         where=user_span())
    if seed is not None and seed.dtype.is_complex != y.dtype.is_complex:
        seed = astype(seed, y.dtype) if y.dtype.is_complex else real(seed)
    arrays = [y, *listed, *(() if seed is None else (seed,))]
    with walking:
        _check_history(y, listed)
        named = named_graph(arrays, "gradient", through=True)
        gradients = _differentiated(arrays, named.graph, seed is not None)
    gradient_arrays = arrays_of(gradients, named.leaves, named.arrays)
    return unflatten(form, iter([_of_kind(g, x) for g, x in zip(gradient_arrays, listed, strict=True)]))


def _of_kind(gradient: Array, x: Array) -> Array:
    """The gradient by a complex array as complex numbers: by its real part plus i times by its imaginary part, as torch has it."""
    if gradient.dtype.is_complex == x.dtype.is_complex:
        return gradient
    return apply(lower_from_pairs if x.dtype.is_complex else lower_pairs, (gradient,))


def _check_history(y: Array, xs: list[Array]) -> None:
    """Raises: UserError where `y` does not depend on an x, but on an array that forgot how it was computed: zero might be wrong."""
    below = in_order([y.node], through=True)
    known = set(below)
    unmet = next((n for n, x in enumerate(xs) if x.node not in known), None)
    if unmet is None:
        return
    for node in below:
        if latest(node) is xs[unmet].node:
            raise UserError(f"the value depends on the contents of array {unmet} of those to differentiate by before it was written to, "
                            "not on its present contents", where=user_span(),
                            hint="write before computing the value, or keep the old one: asarray(x, copy=True)")
    nodes_of_xs = {x.node for x in xs}
    for node in below:
        if isinstance(node, Applied) and node.buffer is not None and not node.operands and node.node.reads() and node not in nodes_of_xs:
            raise UserError(f"the value does not depend on array {unmet} of those to differentiate by, as far as is known: evaluate() "
                            f"computed the array made at {node.place[0]}:{node.place[1]}, and forgot how", where=user_span(),
                            hint="take gradients before evaluate, or say evaluate(..., keep_history=True)")


def _differentiated(arrays: list[Array], graph: Graph, seeded: bool) -> Graph:
    """The gradient graph; of a structure met before the one made then, because equal structures give equal graphs."""
    structure, leaves = structure_of([a.node for a in arrays])
    # An array that was computed and still knows how is a leaf of the structure, but not of the graph.
    key = None if any(isinstance(leaf, Applied) and leaf.operands for leaf in leaves) else (structure, seeded)
    known = None if key is None else _gradients.get(key)
    if known is not None:
        return known
    of, *names = graph.results
    seeds = {of: names.pop()} if seeded else None
    gradients = gradient_graph(graph, of, names, seeds)
    return gradients if key is None else _gradients.put(key, gradients)


def value_and_grad(fn: Callable[..., Any], argument: int | tuple[int, ...] = 0,
                   has_aux: bool = False) -> Callable[..., tuple[Any, Any]]:
    """A function that gives `fn`'s value and its gradient with respect to one of its arguments (by position), or to several.

    Numpy arrays and torch tensors among these become arrays. Writes of `fn` to these arguments stay inside it.
    has_aux: `fn` returns a pair, of which only the first is differentiated.
    Raises: as `grad`; UserError for a position without an argument.
    """

    def both(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        positions = argument if isinstance(argument, tuple) else (argument,)
        placed, leaves_of = list(args), list(args)
        for n in positions:
            if not -len(args) <= n < len(args):
                raise UserError(f"the gradient is wanted of argument {n}, {len(args)} are given", where=user_span())
            leaves: list[Any] = []
            form = flatten(args[n], leaves)
            arrays = [x if isinstance(x, Array) else asarray(x) for x in leaves]
            leaves_of[n] = unflatten(form, iter(arrays))
            # Handles of its own: writes of `fn` to its argument must not replace the argument of the differentiation.
            placed[n] = unflatten(form, iter([Array(x.node) if type(x) is Array else x for x in arrays]))
        value = fn(*placed, **kwargs)
        slopes = grad(value[0] if has_aux else value, tuple([leaves_of[n] for n in positions]))
        return value, slopes if isinstance(argument, tuple) else slopes[0]

    return both
