"""Facts that passes read beside the graph: the caller's strides for inputs and results, prices, strides of library operators.

Prices and library operators belong to higher floors. Passes declare their questions here; the driver passes in the objects that answer.
"""
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from tilefuse.base.options import Options
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.library.attention_gradient_call import AttentionGradientCall

# An attribute that passes for products leave: a line for each product with a choice, with what was taken and why. `explain` shows them.
CHOICES = "product_choices"
NO_LAYOUTS: Layouts = MappingProxyType({})
# Strides that a library operator gives its result, for operands of these types and strides. None: unknown; a dense row-major result is
# requested.
LibraryLayout = Callable[[Node, tuple[Type, ...], tuple[tuple[int, ...], ...]], tuple[int, ...] | None]


class Prices(Protocol):
    """Predictions for one device, of the kernels and library calls that a rewrite would leave. `plan` implements them."""

    def has_kernel(self, graph: Graph, nodes: tuple[str, ...], layouts: Layouts) -> bool:
        """Whether some template computes these nodes in one kernel."""

    def copy_us(self, num_bytes: int, launches: int = 0) -> float:
        """Predicted time of copies by `launches` kernels. The bytes include reads and writes. Units: microseconds."""

    def product_us(self, product: Node, graph: Graph, layouts: Layouts = NO_LAYOUTS) -> float:
        """Predicted time of the library's matrix product, whose operands lie as they are. Units: microseconds.

        layouts: strides of inputs.
        """

    def convolution_us(self, nodes: Sequence[Node], graph: Graph) -> float:
        """Predicted time of the library's call for a convolution, or for the gradients that one call computes. Units: microseconds.

        Requires: no groups; gradients of windows that share no element.
        """

    def attention_us(self, node: Node, graph: Graph) -> float | None:
        """Predicted time of the library's attention; None where nothing predicts it. Units: microseconds."""

    def attention_gradient_us(self, call: AttentionGradientCall, graph: Graph) -> float | None:
        """Predicted time of the library's gradients of attention; None where nothing predicts it. Units: microseconds."""

    def kernel_us(self, graph: Graph, nodes: tuple[str, ...], eager_rounding: bool, near_bytes: int, layouts: Layouts = NO_LAYOUTS
                  ) -> float:
        """Predicted time of the best kernel for nodes, or of one kernel for each where none holds all. Units: microseconds; bytes.

        near_bytes: read by its threads through the first-level cache. eager_rounding: as the option of this name. layouts: strides of the
        values that nodes read.
        """

    def own_product_us(self, graph: Graph, nodes: tuple[str, ...], layouts: Layouts) -> float | None:
        """Predicted time of a kernel that plans may take for a product and the maps behind it, and for nothing else; None where there is
        none. Units: microseconds. layouts: strides of the values that nodes read."""

    def chain_us(self, graph: Graph, parts: tuple[tuple[str, ...], str, tuple[str, ...]], layouts: Layouts, eager_rounding: bool
                 ) -> float | None:
        """Predicted time of a producer, a product and a user as tasks of one kernel in groups of tiles; None where there is no such kernel.

        parts: the nodes of each, of which the last is written. layouts, eager_rounding: as of `kernel_us`. Units: microseconds.
        """

    def plan_us(self, graph: Graph, layouts: Layouts, options: Options, greedy: bool = True) -> float:
        """Predicted time of a plan of a graph, library calls included. Units: microseconds.

        layouts: strides of inputs. greedy: made without the integer program, in a part of the time; walks are then often not found.
        """

    def cut_us(self, graph: Graph, reads_of_product: Mapping[str, Collection[str]], layouts: Layouts, options: Options
               ) -> tuple[set[str], float, float]:
        """The price of taking products out of the kernels that hold them, in a plan made without the integer program.

        Returns the products that kernels hold; the predicted time of these kernels; that of plans of their other nodes, where these
        products are calls that read the given values. Units: microseconds. layouts: strides of inputs.
        """

    def may_be_held(self, graph: Graph, products: Collection[str]) -> set[str]:
        """The products that a kernel may hold together with other nodes, on chip beside them."""

    def held_products(self, graph: Graph, products: Collection[str]) -> set[str]:
        """The products that one generated kernel computes together faster than the library computes each."""


@dataclass(frozen=True, slots=True)
class CallerLayouts:
    """Strides that the caller gives inputs and requires of results. Units: elements.

    inputs: by name. results: by number; a result without an entry is dense row-major. free: numbers of results whose strides the compiler
    chooses. Passes may rename a result, but never change its number.
    """

    inputs: Layouts = field(default_factory=dict)
    results: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    free: frozenset[int] = frozenset()

    @classmethod
    def of(cls, graph: Graph, inputs: Layouts | None, results: Layouts | None, free: Collection[int] = ()) -> CallerLayouts:
        """The record of a graph before its passes, whose inputs and results are named. free: numbers of results."""
        strides_by_result = {n: tuple(results[name]) for n, name in enumerate(graph.results) if results and name in results}
        return cls(inputs or {}, strides_by_result, frozenset(free))

    def given(self, graph: Graph) -> dict[str, tuple[int, ...]]:
        """Strides of the inputs that the graph has."""
        return {v: tuple(s) for v, s in self.inputs.items() if v in graph.type_by_name}

    def wanted(self, graph: Graph) -> dict[str, tuple[int, ...]]:
        """Strides of the graph's results, free ones included."""
        return {r: tuple(self.results[n]) for n, r in enumerate(graph.results) if n in self.results}

    def free_values(self, graph: Graph) -> set[str]:
        """Results whose strides the compiler chooses: free at every place where the graph returns them."""
        return {graph.results[n] for n in self.free} - {r for n, r in enumerate(graph.results) if n not in self.free}


@dataclass(frozen=True, slots=True)
class PlannedLayouts:
    """Strides of the values of one graph that are not dense row-major. Units: elements."""

    graph: Graph
    strides: Layouts
