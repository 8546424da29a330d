"""Maps on the sums that are written into the map that reads them."""
from __future__ import annotations

import pytest

from tests.unit.templates.staged.pipelined.product_graphs import gated, gelu_gradient
from tests.unit.templates.staged.pipelined.row_graphs import soft, weighted
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.joined import joined_maps
from tilefuse.templates.staged.pipelined.template import schedule_product


def test_a_gradient_of_gelu_has_short_forms() -> None:
    """Its text has no error function and no exponential of their own; the program's graph is as it was."""
    graph = gelu_gradient(8192, 3072, 768)
    program = schedule_product(graph, {}, H200)
    assert isinstance(program, TileProgram) and program.graph == graph
    text = print_cuda(compose_product(program, H200), H200)
    body = text[text.index('extern "C"'):]
    assert "tf_narrow_one_plus_erf(" in body and "tf_narrow_scaled_exp(" in body
    assert "tf_narrow_erf(" not in body and "tf_narrow_exp(" not in body


@pytest.mark.parametrize("graph", [gated(200, 136, 72), soft(67, 33, 16), weighted(70, 136, 16)], ids=["two results", "softmax", "rows"])
def test_values_that_several_read_stay(graph: Graph) -> None:
    """Results, reductions, values of rows that elements read, and values with two readers."""
    names = {n.name for n in joined_maps(graph).nodes}
    counts = {n.name: sum(list(u.reads()).count(n.name) for u in graph.nodes) for n in graph.nodes}
    for node in graph.nodes:
        is_row = any(u.type.num_elements != node.type.num_elements for u in graph.nodes if node.name in u.reads())
        if node.name in graph.results or node.category != "map" or counts[node.name] > 1 or is_row:
            assert node.name in names, node.name
