"""Which kernels may approximate functions of f32, and how far the approximations are from the functions."""
from __future__ import annotations

import pytest

from tilefuse.codegen.compose import compose
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.schedule.pattern import schedule_graph
from tilefuse.schedule.tile import TileProgram
from tilefuse.target.device import H200

ROWS = "  %s: f32[512] = reduce.sum [i] over [k < 1024] { exp(f32(%x[i, k])) }\n"
CASES = {
    "16 bits an element": (True, "f16", "f16[512, 1024]", "  %y: f16[512, 1024] = map [i, j] { f16(exp(f32(%x[i, j]))) }\n  return %y\n}"),
    "f32 an element": (False, "f16", "f32[512, 1024]", "  %y: f32[512, 1024] = map [i, j] { exp(f32(%x[i, j])) }\n  return %y\n}"),
    "f32 a row of f16": (True, "f16", "f32[512]", ROWS + "  return %s\n}"),
    "f32 a row of f32": (False, "f32", "f32[512]", ROWS.replace("f32(%x[i, k])", "%x[i, k]") + "  return %s\n}"),
    "mask of what is not approximated": (True, "f16", "bool[512, 1024]",
                                         "  %y: bool[512, 1024] = map [i, j] { lt(f32(%x[i, j]), 0.5:f32) }\n  return %y\n}"),
    "mask of what is": (False, "f16", "bool[512, 1024]",
                        "  %y: bool[512, 1024] = map [i, j] { lt(exp(f32(%x[i, j])), 0.5:f32) }\n  return %y\n}"),
    "i32 an element": (False, "f16", "i32[512, 1024]", "  %y: i32[512, 1024] = map [i, j] { i32(exp(f32(%x[i, j]))) }\n  return %y\n}"),
    "position a row": (True, "f16", "i64[512]",
                       "  %s: i64[512] = reduce.argmax [i] over [k < 1024] { exp(f32(%x[i, k])) }\n  return %s\n}"),
}


def graph_of(name: str) -> Graph:
    _, source, result, body = CASES[name]
    return parse_graph(f"graph @g(%x: {source}[512, 1024]) -> ({result}) {{\n{body}")


@pytest.mark.parametrize("name", CASES)
def test_only_results_that_cannot_show_it_allow_approximations(name: str) -> None:
    tile = schedule_graph(graph_of(name), {}, H200)
    assert isinstance(tile, TileProgram)
    assert compose(tile, H200).narrow == CASES[name][0]
