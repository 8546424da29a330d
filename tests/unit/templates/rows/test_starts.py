"""Where rows begin between vectors: accesses whose place a loop inside of an element moves lead no walk."""
from __future__ import annotations

import pytest
import torch

from tilefuse.base.options import Options
from tilefuse.driver.compile import generate, import_model
from tilefuse.target.device import H200


@pytest.mark.parametrize("width", [5, 7, 33])
@pytest.mark.parametrize("name", ["sum", "difference", "product"])
def test_rows_of_a_product_that_is_recomputed(width: int, name: str) -> None:
    """The product's operand lies in rows of an odd length too, but the loop of the product walks these."""
    functions = {"sum": lambda a, b, t: ((a @ b) * t).sum(-1), "difference": lambda a, b, t: (t - (a @ b)).sum(-1),
                 "product": lambda a, b, t: (a @ b) @ t.mT}
    row, square = torch.zeros(1, width), torch.zeros(width, width)
    imported = import_model(functions[name], (row, square, row))
    generated = generate(imported.graph, constants=imported.constants, input_layouts=imported.layouts, device=H200,
                         options=Options(plan_cache=False, tuned=False), result_layouts=imported.result_layouts)
    assert generated.spec.kernels
