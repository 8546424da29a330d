"""A graph after one pass for a device, verified by the manager."""
from __future__ import annotations

from tilefuse.base.options import Options
from tilefuse.driver.pipeline import context_of
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.passes.facts import PlannedLayouts
from tilefuse.passes.manager import Pass, Pipeline
from tilefuse.target.device import DeviceSpec


def rewritten(item: Pass, graph: Graph, device: DeviceSpec, layouts: Layouts | None = None) -> Graph:
    """The graph after the pass. layouts: strides of its values, where the pass reads them."""
    context = context_of(device, Options(verify=2))
    context.attributes["layouts"] = PlannedLayouts(graph, layouts or {})
    return Pipeline((item,)).run(graph, context)
