"""Programs whose plans hold pipelined products: generated for an H200 without one, compiled by NVRTC, explained."""
from __future__ import annotations

import pytest

from tests.compile_only.assembler import assembled, without_spills
from tests.unit.plan.model_products import MODEL_SIZED
from tilefuse.driver.compile import generate_sources
from tilefuse.target.device import H200


@pytest.mark.parametrize("name", MODEL_SIZED)
def test_a_model_sized_product_compiles_and_is_explained(name: str) -> None:
    """One kernel on warpgroup instructions, without spills; the explanation has its tiles and its slots."""
    made = generate_sources(MODEL_SIZED[name][0](), device=H200)
    (kernel,) = made.spec.kernels
    assert len(made.spec.steps) == 1 and "wgmma" in kernel.source
    _, report = assembled(kernel.source, "sm_90a")
    assert without_spills(report), report[-600:]
    (explained,) = made.explain(json=True)["kernels"]
    assert explained["template"] == "pipelined"
    assert [tile["level"] for tile in explained["tiles"]] == ["grid", "block", "warpgroup"]
    assert [place["value"] for place in explained["shared"]][:2] == ["slots of %x", "slots of %w"]
    assert "pipelined" in made.explain()
