"""Predictions for passes: nodes that are equal up to names are scheduled once."""
from __future__ import annotations

from typing import Any

import pytest

from tilefuse.ir.text import parse_graph
from tilefuse.plan.price import predictions
from tilefuse.plan.price.predictions import Predictions
from tilefuse.target.device import H200

LAYERS = parse_graph("""graph @layers(%x: f32[64, 32], %y: f32[64, 32]) -> (f32[64], f32[64]) {
  %a: f32[64, 32] = map [i, j] { exp(%x[i, j]) }
  %s: f32[64] = reduce.sum [i] over [k < 32] { %a[i, k] }
  %b: f32[64, 32] = map [i, j] { exp(%y[i, j]) }
  %t: f32[64] = reduce.sum [i] over [k < 32] { %b[i, k] }
  return %s, %t
}""")


def test_kernels_of_equal_layers_are_scheduled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other layouts and other rounding are other kernels; times are those without a memory of earlier layers."""
    scheduled: list[Any] = []
    schedule = predictions.schedule_pattern

    def counted(*arguments: Any, **named: Any) -> Any:
        scheduled.append(arguments)
        return schedule(*arguments, **named)

    monkeypatch.setattr(predictions, "schedule_pattern", counted)
    prices = Predictions(H200)
    first, second = ("a", "s"), ("b", "t")
    assert prices.has_kernel(LAYERS, first, {}) and prices.has_kernel(LAYERS, second, {})
    assert prices.kernel_us(LAYERS, first, False, 0) == prices.kernel_us(LAYERS, second, False, 0) > 0
    assert len(scheduled) == 1
    prices.has_kernel(LAYERS, second, {"y": (1, 64)})
    prices.kernel_us(LAYERS, second, True, 0)
    assert len(scheduled) == 3
    assert Predictions(H200).kernel_us(LAYERS, second, True, 0) == prices.kernel_us(LAYERS, second, True, 0)
