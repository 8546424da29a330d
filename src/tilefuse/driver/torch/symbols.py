"""Symbolic sizes of an FX graph: their values in a call, and the graph with these values inserted.

AOTAutograd traces a graph once for all values of a size. `bindings_of` determines where each symbol can be read from a call's arguments;
`with_sizes` writes a call's values into a copy of the graph, which is then compiled like any graph of fixed sizes.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from tilefuse.frontends.torch.nodes import is_ragged

Sizes = Mapping[sympy.Symbol, int]


@dataclass(frozen=True, slots=True)
class Binding:
    """The source of a symbol's value in a call: an argument that is a number, or a size or stride of a tensor.

    of: "number", "size" or "stride". factor: the number there divided by the symbol.
    """

    symbol: sympy.Symbol
    argument: int
    of: str = "number"
    dim: int = 0
    factor: int = 1

    def title(self, argument: str) -> str:
        """The symbol in the user's words; its own name where the argument has none. argument: the user's name of it."""
        if not argument or self.factor != 1:
            return str(self.symbol)
        where = {"number": "", "size": f".shape[{self.dim}]", "stride": f".stride({self.dim})"}[self.of]
        return argument.replace(".size()[", ".shape[") + where

    def value(self, arguments: Sequence[Any]) -> int:
        """The symbol's value in a call with these arguments."""
        argument = arguments[self.argument]
        number = argument if self.of == "number" else argument.shape[self.dim] if self.of == "size" else argument.stride(self.dim)
        return int(number) // self.factor


def is_symbolic(value: object) -> bool:
    """Whether a value is a number or a tensor whose sizes differ from call to call and are known before the call."""
    return any(isinstance(n, torch.SymInt) and isinstance(n.node, SymNode) and not free_unbacked_symbols(n)
               and _expression(n).free_symbols for n in _numbers(value))


def bindings_of(inputs: Sequence[Any]) -> tuple[Binding, ...] | None:
    """One binding for each symbol of these traced inputs, numbers first; None where a symbol never stands alone in an input."""
    symbols: dict[sympy.Symbol, None] = {}
    offered: dict[sympy.Symbol, Binding] = {}
    tensors = [(n, x) for n, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
    places: list[tuple[Any, int, str, int]] = [(x, n, "number", 0) for n, x in enumerate(inputs) if isinstance(x, torch.SymInt)]
    places += [(s, n, "size", dim) for n, x in tensors for dim, s in enumerate(x.shape)]
    places += [(s, n, "stride", dim) for n, x in tensors if x.layout == torch.strided for dim, s in enumerate(x.stride())]
    for number, argument, of, dim in places:
        if not isinstance(number, torch.SymInt) or is_ragged(number) or free_unbacked_symbols(number):
            continue
        expression = _expression(number)
        symbols.update(dict.fromkeys(sorted(expression.free_symbols, key=str)))
        factor, rest = expression.as_coeff_Mul()
        if isinstance(rest, sympy.Symbol) and factor.is_Integer and factor > 0:
            offered.setdefault(rest, Binding(rest, argument, of, dim, int(factor)))
    return tuple(offered[s] for s in symbols) if all(s in offered for s in symbols) else None


def with_sizes(gm: fx.GraphModule, sizes: Sizes) -> fx.GraphModule:
    """A copy of the graph in which symbols have these values: in the types of its nodes, and where a node is a number.

    Data-dependent sizes stay symbols. Requires: torch's guards hold for the values, as they do for those of a call.
    Cost: linear in the nodes.
    """
    fixed = _Fixed(sizes)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        copies[node] = graph.node_copy(node, lambda n: copies[n])
        copies[node].meta = {key: fixed.of(value) if key == "val" else value for key, value in node.meta.items()}
        if isinstance(copies[node].meta.get("val"), (int, float)) and node.op == "call_function":
            # Arithmetic on sizes is evaluated: readers get the number.
            fixed.numbers[copies[node]] = copies[node].meta["val"]
    _write_numbers(graph, fixed.numbers)
    return fx.GraphModule(gm, graph)


def _write_numbers(graph: fx.Graph, numbers: Mapping[fx.Node, float]) -> None:
    """Replaces nodes that compute numbers by the numbers."""
    for node in graph.nodes:
        if any(a in numbers for a in node.all_input_nodes):
            node.args = fx.map_arg(node.args, lambda n: numbers.get(n, n))
            node.kwargs = fx.map_arg(node.kwargs, lambda n: numbers.get(n, n))
    for node in reversed(list(numbers)):
        if not node.users:
            graph.erase_node(node)


class _Fixed:
    """Values of nodes with numbers for symbols; each expression is evaluated once."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._known: dict[sympy.Expr, sympy.Expr] = {}
        self.numbers: dict[fx.Node, float] = {}

    def of(self, value: Any) -> Any:
        """A node's value, with numbers for symbols in all of its parts."""
        match value:
            case torch.SymInt() | torch.SymFloat() | torch.SymBool():
                return self._number(value)
            case torch.Tensor() if is_symbolic(value):
                return self._tensor(value)
            case list() | tuple():
                inside = [self.of(v) for v in value]
                return inside if isinstance(value, list) else tuple(inside)
        return value

    def _number(self, value: Any) -> Any:
        expression = _expression(value)
        number = self._known.get(expression)
        if number is None:
            number = self._known[expression] = expression.xreplace(self._sizes)
        if number.free_symbols:
            return value
        make: Callable[[Any], Any] = bool if isinstance(value, torch.SymBool) else float if isinstance(value, torch.SymFloat) else int
        return make(number)

    def _tensor(self, traced: torch.Tensor) -> torch.Tensor:
        """A fake tensor like a traced one, with fixed sizes. Data-dependent dimensions stay symbolic."""
        shape, strides = ([self.of(n) for n in numbers] for numbers in (traced.shape, traced.stride()))
        if type(traced) is not FakeTensor or not all(type(n) is int for n in (*shape, *strides)):
            return traced.new_empty_strided(shape, strides)
        # The same, constructed directly: torch's dispatch of the call above takes ten times as long, for every node of a call's graph.
        return FakeTensor(traced.fake_mode, torch.empty_strided(shape, strides, dtype=traced.dtype, device="meta"), traced.device)


def _numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield from value.shape
        if value.layout == torch.strided:
            yield from value.stride()
    else:
        yield value


def _expression(number: Any) -> Any:
    return number.node.expr
