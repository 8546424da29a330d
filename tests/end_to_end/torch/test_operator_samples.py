"""Torch's own samples of operators and modules on the host, forward and gradients (`tests/operator_samples.py`)."""
from __future__ import annotations

import pytest

from tests import operator_samples
from tests.end_to_end.torch.strict import strict

pytest.importorskip("expecttest")
pytestmark = [pytest.mark.usefixtures("fresh"), pytest.mark.filterwarnings("ignore")]
OPERATORS, MODULES = operator_samples.operators(), operator_samples.modules()


@pytest.mark.parametrize("name", list(OPERATORS))
def test_operators(name: str) -> None:
    operator_samples.check_operator(OPERATORS[name], "cpu", strict, 1, gradients=True)


@pytest.mark.parametrize("name", list(MODULES))
def test_modules(name: str) -> None:
    operator_samples.check_module(MODULES[name], "cpu", strict, 1, training=True)
