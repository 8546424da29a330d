"""Reverse-mode differentiation: a graph in, a graph of the same operators out, with the gradients as results.

Every value's gradient is the sum of its users' contributions. A contribution is an expression over the user's domain (`scalar.py`). The
transposed read maps it to the value's own axes (`transpose.py`), and the remaining axes are summed; only lookups and irregular subscripts
add atomically. It is no pass of a pipeline, because its result computes something else.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilefuse.base.errors import NameLookupError, ShapeError, TypeMismatchError, UserError, nearest
from tilefuse.ir.graph import Graph, Node, library_call_key
from tilefuse.ir.library.adjoint import OF_COMPLEX, Request, has_complex_operands
from tilefuse.ir.library.adjoint_fft import LIBRARY_ADJOINTS
from tilefuse.ir.scalar import const
from tilefuse.passes.autodiff.nodes import body_gradients, seeds_of_scatter
from tilefuse.passes.autodiff.sums import Gradients


def gradient_graph(
    graph: Graph,
    of: str | Sequence[str],
    wrt: Sequence[str],
    seeds: Mapping[str, str] | None = None,
    with_values: bool = False,
) -> Graph:
    """`graph` with the gradients of the sum of all `of` with respect to each value of `wrt` as its results, in this order.

    seeds: the gradient value (of its type) for a value of `of`; all others must be scalars, with gradient 1.
    with_values: the values of `of` are results too, before the gradients. All nodes of `graph` keep their names. A gradient has the type of
    its value; a value that `of` does not depend on has gradient zero. Integers and booleans carry no gradient and end a dependence.
    At points without a derivative: a maximum or minimum over elements passes its gradient to the first element that attains it; each of two
    equal operands gets half; between an operand and a constant the constant wins (relu has gradient 0 at 0).
    Exact: gradients are those of the graph's own formulas, in the values' types; sums into 16-bit values are taken in f32.
    Raises: NameLookupError for an unknown value, TypeMismatchError for one that is no float, ShapeError for a tensor of `of` without a seed
    or a seed of another shape, UserError for an operator without a gradient.
    Cost: linear in the nodes between `wrt` and `of`.
    """
    values = (of,) if isinstance(of, str) else tuple(of)
    seed_by_value = dict(seeds or {})
    _check(graph, values, wrt, seed_by_value)
    gradients = Gradients(graph, _active(graph, wrt))
    for name in dict.fromkeys(values):
        seed = seed_by_value.get(name)
        times = values.count(name)
        if seed is None:
            gradients.add(name, const(times, gradients.work(name)))
        else:
            for _ in range(times):
                gradients.add_value(name, seed)
    _visit_backwards(graph, gradients)
    results = tuple(gradients.result(name) for name in wrt)
    b = gradients.build
    return replace(graph, inputs=tuple(b.inputs), nodes=tuple(b.nodes), results=(*(values if with_values else ()), *results))


def _check(graph: Graph, of: Sequence[str], wrt: Sequence[str], seeds: Mapping[str, str]) -> None:
    types = graph.type_by_name
    for name in (*of, *wrt, *seeds, *seeds.values()):
        if name not in types:
            raise NameLookupError(f"graph @{graph.name} has no value %{name}", hint=nearest(name, types))
    for name in (*of, *wrt):
        if not types[name].dtype.is_float:
            raise TypeMismatchError(f"%{name} is {types[name]}: only floats have a gradient", where=_place(graph, name))
    for name in of:
        seed = seeds.get(name)
        if seed is None and types[name].num_elements != 1:
            raise ShapeError(f"the gradient of %{name}: {types[name]} needs a seed, because it is not a single number",
                             where=_place(graph, name), hint="sum it, or pass its gradient as a seed")
        if seed is not None and types[seed].shape != types[name].shape:
            raise ShapeError(f"the seed %{seed}: {types[seed]} does not fit %{name}: {types[name]}", where=_place(graph, name))
        if seed is not None and not types[seed].dtype.is_float:
            raise TypeMismatchError(f"the seed %{seed} of %{name} is {types[seed]}, not a float", where=_place(graph, name))


def _place(graph: Graph, name: str) -> str | None:
    node = graph.node_by_name.get(name)
    return str(node.span) if node is not None and node.span is not None else None


def _active(graph: Graph, wrt: Sequence[str]) -> set[str]:
    """Values through which some value of `wrt` reaches others: floats of `wrt`, or floats that read an active value."""
    active = set(wrt)
    for node in graph.nodes:
        if node.type.dtype.is_float and node.name not in active and any(v in active for v in node.reads()):
            active.add(node.name)
    return active


def _visit_backwards(graph: Graph, gradients: Gradients) -> None:
    """Contributes every active node's gradient to its operands, users before their operands."""
    calls: dict[object, list[Node]] = {}
    for node in graph.nodes:
        if node.category == "library":
            calls.setdefault(library_call_key(node), []).append(node)
    for node in reversed(graph.nodes):
        if node.category == "library":
            results = calls[library_call_key(node)]
            # All results' users come before the first of the results.
            if results[0] is node and any(gradients.has(n.name) for n in results):
                _library(gradients, results)
        elif gradients.has(node.name) and any(v in gradients.active for v in node.reads()):
            gradients.begin(node)
            if 0 in node.extents.values():
                continue
            if node.category == "scatter":
                seeds_of_scatter(gradients, node)
            else:
                body_gradients(gradients, node)


def _library(gradients: Gradients, results: Sequence[Node]) -> None:
    """Contributes the gradients of one library call's operands."""
    node = results[0]
    needs_gradient = tuple(v in gradients.active for v in node.operands)
    if not any(needs_gradient):
        return
    rule = LIBRARY_ADJOINTS.get(node.detail)
    if rule is None:
        raise UserError(f"no gradient is defined for the operator {node.detail} (%{node.name})", where=node.span,
                        hint=f"it is defined for {', '.join(sorted(n for n in LIBRARY_ADJOINTS if not n.startswith('aten.')))}")
    if has_complex_operands(node) and node.detail not in OF_COMPLEX:
        raise UserError(f"no gradient is defined for the operator {node.detail} of complex numbers (%{node.name})", where=node.span,
                        hint=f"it is defined for {', '.join(sorted(OF_COMPLEX))}")
    gradients.begin(node)
    number_of: dict[int, str] = {}
    of_results: dict[int, str] = {}
    for n in results:
        # The same call may have been recorded twice: both nodes' gradients arrive at one result.
        at = int(str(n.attribute("result", 0)))
        number_of.setdefault(at, n.name)
        if gradients.has(n.name):
            arrived = gradients.value_of(n.name)
            of_results[at] = gradients.build.elementwise("add", of_results[at], arrived) if at in of_results else arrived
    representative = next((n for n in results if n.attribute("result", 0) == 0), node)
    operand_gradients = rule(gradients.build, Request(representative, number_of, of_results, needs_gradient))
    for operand, gradient in zip(node.operands, operand_gradients, strict=True):
        if gradient is not None and operand in gradients.active:
            gradients.add_value(operand, gradient)
