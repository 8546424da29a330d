"""Every test of this folder compiles first variants: torch runs calls of a function's later ones until the background has compiled them."""
from __future__ import annotations

from collections.abc import Iterator

import pytest

from tilefuse.driver import torch_backend


@pytest.fixture(autouse=True)
def first_variants() -> Iterator[None]:
    """Functions that several cases of a test share begin anew."""
    torch_backend.reset()
    yield
