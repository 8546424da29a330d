"""Fixtures that several files of this folder share: every test that asks for `fresh` compiles afresh, with the same random numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tilefuse.driver import torch_backend


@pytest.fixture
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch_backend.reset()
    yield
    torch_backend.reset()
