"""Chains in groups in plans: off by default, by price, wherever legal; and the reasons where there are none."""
from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tilefuse.base.options import Options
from tilefuse.driver.compile import Generated, generate
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F32
from tilefuse.ir.layouts import channels_last_strides
from tilefuse.passes.manager import PassContext
from tilefuse.passes.precision import StatePrecision
from tilefuse.plan.pattern import Plan
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200

DEVICES = {"h200": H200, "host": host_device()}


@cache
def generated(channels: int, features: int, side: int, batch: int = 64, also: bool = False, device: str = "h200",
              **options: Any) -> Generated:
    """Plan and sources of relu(convolution(x) + r) in f32, channels last, whose filters are at hand. also: the convolution is a result."""
    b = TensorBuilder("block")
    shape, out = (batch, channels, side, side), (batch, features, side, side)
    x, r, w = b.input("x", F32, shape), b.input("r", F32, out), b.input("w", F32, (features, channels, 3, 3), constant=True)
    y = b.convolution(x, w, None, (1, 1), ((1, 1), (1, 1)), (1, 1), 1)
    z = b.elementwise("maximum", b.elementwise("add", y, r), b.full((), 0.0, F32))
    graph = StatePrecision(convolutions="f32").run(b.finish([z, y] if also else [z]), PassContext())
    weight = np.random.default_rng(0).standard_normal((features, channels, 3, 3)).astype(np.float32)
    layouts = {name: channels_last_strides(s) for name, s in ((x, shape), (r, out))}
    return generate(graph, constants={"w": weight}, device=DEVICES[device], input_layouts=layouts,
                    result_layouts=dict.fromkeys(graph.results, channels_last_strides(out)),
                    options=Options(winograd="always", float32_products="split", plan_cache=False, **options))


def generators(plan: Plan) -> list[str]:
    """Whether each kernel is a chain in groups."""
    return ["groups" if k.generator == "groups" else "" for k in plan.kernels]


def reasons(plan: Plan) -> str:
    """Reasons of refused merges."""
    return "\n".join(f"{r.rejected.reason.value}: {r.rejected.detail}" for r in plan.rejected)


def test_off_is_the_default() -> None:
    """No plan changes unless the option asks for it."""
    assert "groups" not in generators(generated(64, 64, 56).plan)


def test_by_price_where_tiles_are_much_of_the_traffic() -> None:
    """64 channels: the chain is predicted faster than its kernels, residual and activation are the user's; 256 channels: it is not."""
    four, chain = generated(64, 64, 56).plan, generated(64, 64, 56, tile_groups="priced").plan
    assert generators(chain).count("groups") == 1 and len(chain.kernels) == len(four.kernels) - 2
    assert chain.objective_us < four.objective_us
    kernel = next(k for k in chain.kernels if k.generator == "groups")
    assert "r" in {v for _, v in kernel.binding} and kernel.pattern.written == (chain.graph.results[0],)
    many = generated(256, 256, 14, tile_groups="priced").plan
    assert "groups" not in generators(many)
    assert "worse-than-incumbent" in reasons(many) and "us in groups of one kernel" in reasons(many)


def test_always_where_it_is_legal() -> None:
    """Wherever the blocks of a group touch that group alone, at any price."""
    assert "groups" in generators(generated(48, 40, 9, 3, tile_groups="always").plan)


def test_a_chain_may_write_what_others_read() -> None:
    """The convolution's result is the caller's as well: the user writes both."""
    plan = generated(32, 32, 28, 8, also=True, tile_groups="always").plan
    kernel = next(k for k in plan.kernels if k.generator == "groups")
    assert len(kernel.pattern.written) == 2


def test_explained() -> None:
    """Plan and explanation show groups, distances and rings; tiles are handed on at the grid level."""
    made = generated(64, 64, 56, tile_groups="priced")
    kernel = next(k for k in made.plan.kernels if k.generator == "groups")
    parameters = dict(kernel.program.parameters)
    assert parameters["groups"] == 64 * 14 * 14 // parameters["group_length"]
    assert parameters["ring_bytes"] < 40 << 20 and len(parameters["ring_slots"]) == 2
    assert "grid" in {e.level.value for e in kernel.levels}
    assert kernel.program.notation.startswith("grouped chain") and "ring_slots" in str(made.explain(json=True))


def test_no_chains_on_a_processor() -> None:
    """Its caches keep tiles between kernels."""
    assert "groups" not in generators(generated(16, 16, 8, 1, device="host", tile_groups="always").plan)
