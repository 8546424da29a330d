"""Values whose gradient is not that of their formula: stopped, or computed by a graph that the user gave.

    %z = library.own_gradient (%y, %x, %w) {num_results = 1, num_arguments = 1, gradient = "graph ...", ...}       %z is %y

The operator gives its first operands. To gradients it is a call that has made them of its arguments; decomposing takes it away.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilefuse.base.errors import UserError
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.graph import Attribute
from tilefuse.ir.library.adjoint import Request, adjoint_of
from tilefuse.ir.rewrite import rename_operands
from tilefuse.ir.text import parse_graph

OPERATOR = "own_gradient"


def own_gradient(b: TensorBuilder, values: Sequence[str], arguments: Sequence[str], others: Sequence[str], gradient: str,
                 takes: Sequence[int], gives: Sequence[int]) -> tuple[str, ...]:
    """`values`, whose gradient with respect to `arguments` is computed by a graph.

    others: further values that the graph reads. gradient: its text; "": none. takes: for each of its inputs the number of an argument, or
    of one of the others after them; -1 - n is the gradient of value n. gives: for each of its results the number of an argument.
    """
    attributes: dict[str, Attribute] = {"num_results": len(values), "num_arguments": len(arguments), "gradient": gradient,
                                        "takes": tuple(takes), "gives": tuple(gives)}
    operands = (*values, *arguments, *others)
    return tuple(b.library(OPERATOR, OPERATOR, b.types[v], operands, attributes | {"result": n}) for n, v in enumerate(values))


@adjoint_of(OPERATOR)
def _own_gradient(b: TensorBuilder, request: Request) -> list[str | None]:
    """The given graph over the arguments and the values' gradients; the values' own formula gets none."""
    node = request.node
    num_results, num_arguments = (int(str(node.attribute(n))) for n in ("num_results", "num_arguments"))
    gradients: list[str | None] = [None] * len(node.operands)
    text = node.attribute("gradient")
    if not text:
        return gradients
    if any(request.wanted[num_results + num_arguments:]):
        raise UserError("a function with a gradient of its own reads an array from outside, of which the gradient is wanted too",
                        where=node.span, hint="pass that array as an argument")
    graph = parse_graph(str(text))
    inner = node.operands[num_results:]
    value_of: dict[str, str] = {}
    for declared, number in zip(graph.inputs, node.integers("takes"), strict=True):
        if number >= 0:
            value_of[declared.name] = inner[number]
        else:
            arrived = request.gradients.get(-1 - number)
            value_of[declared.name] = b.full(declared.type.shape, 0.0, declared.type.dtype) if arrived is None else arrived
    for one in graph.nodes:
        copied = replace(rename_operands(one, value_of), name=b.fresh(one.name), span=node.span)
        value_of[one.name] = b.add(copied)
    for result, number in zip(graph.results, node.integers("gives"), strict=True):
        gradients[num_results + number] = value_of[result]
    return gradients
