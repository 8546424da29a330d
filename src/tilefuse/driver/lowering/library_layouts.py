"""Strides of the results of torch's operators, obtained by running the operators on tensors without data.

The runtime copies a library result whose layout differs from the plan; planning with torch's own answer avoids the copy.
"""
from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from tilefuse.base.errors import CompilerError
from tilefuse.ir.affine import row_major_strides
from tilefuse.ir.graph import Node, Type

# Operators whose results are dense row-major for all strides of the operands. Source: torch documentation, matmul; random_seed is ours.
DENSE = frozenset({"matmul", "grouped_matmul", "random_seed", "side_by_side"})


class LibraryLayouts:
    """Answers for one compile; calls with equal operators, types, strides and attributes are evaluated once."""

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._known: dict[Hashable, list[tuple[int, ...] | None]] = {}

    def __call__(self, node: Node, types: tuple[Type, ...], strides: tuple[tuple[int, ...], ...]) -> tuple[int, ...] | None:
        """Strides of the node's result; None where torch cannot tell without data (a dense result is then requested)."""
        if node.detail in DENSE:
            return None
        number = node.attribute("result", 0)
        assert isinstance(number, int)
        attributes = tuple((k, v) for k, v in node.attributes if k not in ("result", "call"))
        key = (node.kind, types, strides, attributes)
        answers = self._known.get(key)
        if answers is None:
            answers = self._known[key] = self._ask(node.detail, types, strides, dict(node.attributes))
        answer = answers[number] if number < len(answers) else None
        if answer is None or len(answer) != len(node.type.shape) or answer == row_major_strides(node.type.shape):
            return None
        return answer

    def _ask(self, operator: str, types: tuple[Type, ...], strides: tuple[tuple[int, ...], ...],
             attributes: dict[str, Any]) -> list[tuple[int, ...] | None]:
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.utils._python_dispatch import _disable_current_modes

        from tilefuse.runtime.calls.library import TORCH_DTYPES, call_library

        try:
            # A compile may run inside torch.compile's own tracing, whose modes must not see these tensors.
            with _disable_current_modes(), FakeTensorMode(), torch.no_grad():
                operands = [torch.empty_strided(t.shape, s, dtype=TORCH_DTYPES[t.dtype.name], device=self._device_type)
                            for t, s in zip(types, strides, strict=True)]
                results = call_library(operator, operands, attributes, self._device_type)
        # An operator without a shape function, or one with data-dependent shapes, raises one of these.
        except (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError, CompilerError):
            return []
        return [None if r is None or not _usable(r) else tuple(int(s) for s in r.stride()) for r in results]


def _usable(tensor: Any) -> bool:
    """Whether each element has a place of its own and sizes are plain numbers."""
    pairs = sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape) if n > 1)
    reach = 0
    for stride, extent in pairs:
        if not isinstance(stride, int) or stride <= reach:
            return False
        reach += stride * (extent - 1)
    return True
