"""Where images around convolutions will lie in memory, asked before layouts are planned."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.ir.affine import axis
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import is_channels_last
from tilefuse.ir.scalar import Read
from tilefuse.passes.facts import CallerLayouts


@dataclass(frozen=True, slots=True)
class ImageMemory:
    """Where images lie before layouts are planned. turned: the graph's convolutions become channels last."""

    graph: Graph
    caller: CallerLayouts
    turned: bool

    def is_channels_last(self, value: str) -> bool:
        """Whether a value lies, or can lie, channels last without a copy."""
        shape = self.graph.type_of(value).shape
        if value in self.caller.inputs:
            return is_channels_last(self.caller.inputs[value], shape)
        maker = self.graph.node_by_name.get(value)
        if maker is not None and maker.category == "map" and isinstance(maker.body, Read):
            # Tokens that are read as an image: the neighbours in memory are the read's last subscript.
            return maker.body.index[-1] == axis(maker.axes[1])
        return maker is not None and self.turned

    def is_copied_out(self, value: str) -> bool:
        """Whether a result of channels last is copied for the caller."""
        strides = self.caller.wanted(self.graph).get(value)
        free = value in self.caller.free_values(self.graph)
        return value in self.graph.escaping and not free and not is_channels_last(strides, self.graph.type_of(value).shape)
