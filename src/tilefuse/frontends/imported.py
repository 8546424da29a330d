"""What a frontend hands to the driver: the graph, the data of its constant inputs, and what it could not express."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilefuse.ir.graph import Graph


@dataclass(frozen=True)
class ResultForm:
    """How a caller gets its tensor back from a result of the graph, without a copy: permute, then expand.

    permutation  dimension order that the caller sees, as dimensions of the graph's result; None = unchanged
    shape        extents that the caller sees (dimensions of extent 1 in the result may be expanded); None = unchanged
    """

    permutation: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Imported:
    """A model as a graph.

    constants     data of the graph's constant inputs, by input name (numpy arrays or torch tensors)
    fallbacks     operators that became library calls of the framework, each with the reason
    layouts       strides of inputs that are not dense row-major. Units: elements
    input_places  for every call argument of the source the graph input it feeds, or None where the graph does not read it
    result_forms  how to present each result (empty = as they are)
    result_values  for every output of the source the number of the graph's result; None for an output that is no tensor
    """

    graph: Graph
    constants: Mapping[str, object] = field(default_factory=dict)
    fallbacks: tuple[tuple[str, str], ...] = ()
    layouts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    input_places: tuple[str | None, ...] = ()
    result_forms: tuple[ResultForm, ...] = ()
    result_values: tuple[int | None, ...] = ()
