"""Result of a frontend for the driver: the graph, the data of its constant inputs, and the operators that it could not express."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilefuse.ir.graph import Graph


@dataclass(frozen=True)
class Output:
    """One output of the source, in terms of the graph's results.

    result       number of the graph's result; None for an output that no result gives
    argument     number of the call argument that the source gives back unchanged; None otherwise
    literal      the output itself where it is no tensor (both numbers None)
    permutation  dimension order that the caller sees, as dimensions of the result; None: as it is
    expanded     extents that the caller sees (dimensions of extent 1 of the result are repeated); None: as they are
    memory       outputs of equal number share memory in the source; -1: unknown
    complex      whether the caller gets the result's pairs of reals as complex numbers
    device       the device type where the caller expects it ("" = that of the program)
    """

    result: int | None = None
    argument: int | None = None
    literal: object = None
    permutation: tuple[int, ...] | None = None
    expanded: tuple[int, ...] | None = None
    memory: int = -1
    complex: bool = False
    device: str = ""


@dataclass(frozen=True)
class Titles:
    """The source's names of inputs and results, where the graph's text form has no such names.

    inputs   by the graph's name of the input, constants too; those that are called alike may be missing
    results  in the order of the graph's results; () where all are called alike
    """

    inputs: Mapping[str, str] = field(default_factory=dict)
    results: tuple[str, ...] = ()


UNTITLED = Titles()


@dataclass(frozen=True)
class Imported:
    """A model as a graph.

    constants   data of the graph's constant inputs, by input name (numpy arrays or torch tensors)
    fallbacks   operators that became library calls of the framework, each with the reason
    layouts     strides of inputs that are not dense row-major. Units: elements
    result_layouts  strides that the caller expects of results; row-major where missing. Units: elements
    arguments   for every call argument of the source the graph input it feeds; None where it is no tensor
    outputs     how each output of the source comes from the results; empty = the results in order
    titles      the source's own names of inputs and results
    """

    graph: Graph
    constants: Mapping[str, object] = field(default_factory=dict)
    fallbacks: tuple[tuple[str, str], ...] = ()
    layouts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    result_layouts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    arguments: tuple[str | None, ...] = ()
    outputs: tuple[Output, ...] = ()
    titles: Titles = UNTITLED
