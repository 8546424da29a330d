"""The torch backend as tests want it: a slip of ours is an error, not a fallback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilefuse.driver.torch_backend import backend


def strict(gm: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Callable[..., Any]:
    return backend(gm, inputs, **{**kwargs, "options": {"strict": True, **kwargs.get("options", {})}})
