"""The torch backend as tests want it: a slip of ours is an error, no fallback; three sizes of an axis are compiled at their first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilefuse.driver.torch_backend import backend


def strict(gm: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Callable[..., Any]:
    return backend(gm, inputs, **{**kwargs, "options": {"strict": True, "sizes_at_once": 3, **kwargs.get("options", {})}})
