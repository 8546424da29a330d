"""Errors by rows, against a reference that is computed for some rows only: a check of a large product that costs a few milliseconds."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.case import Tensors

# The reference is computed for about so many rows: one at random in each of as many equal parts, and the first and the last.
MOST_ROWS = 512
SEED = 77


@dataclass(frozen=True)
class RowSample:
    """Which rows of the results are judged, and how.

    inputs   for each input the axis that is the results' row axis; None: the results' rows need all of it
    outputs  for each result the axis of its rows; None: all of it is judged
    With no axis at all every row is judged.

    Errors are relative to each row's own norm: one wrong tile among thousands is lost in the norm of a whole matrix.
    """

    inputs: tuple[int | None, ...] = ()
    outputs: tuple[int | None, ...] = ()

    def rows(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Numbers of the sampled rows, ascending; None where all are."""
        counts = {t.shape[axis] for t, axis in zip(inputs, self.inputs) if axis is not None}
        count = counts.pop() if counts else 0
        if count <= MOST_ROWS:
            return None
        bounds = torch.linspace(0, count, MOST_ROWS + 1, dtype=torch.float64).long()
        widths = bounds[1:] - bounds[:-1]
        chosen = bounds[:-1] + (torch.rand(MOST_ROWS, generator=torch.Generator().manual_seed(SEED)) * widths).long()
        return torch.cat([torch.tensor([0, count - 1]), chosen.clamp(max=count - 1)]).unique().to(inputs[0].device)

    def cut_inputs(self, inputs: Sequence[torch.Tensor]) -> Tensors:
        """The inputs that the sampled rows need."""
        rows = self.rows(inputs)
        if rows is None:
            return tuple(inputs)
        return tuple(t if axis is None else t.index_select(axis, rows) for t, axis in zip(inputs, self.inputs, strict=True))

    def error(self, inputs: Sequence[torch.Tensor], outputs: Tensors, reference: Tensors) -> float:
        """Largest ||out - ref|| / ||ref|| over the sampled rows of all results; infinite where a result is not finite or of other shape.

        Shapes: `reference` has the sampled rows only. A result of one axis or none counts as one row.
        """
        rows = self.rows(inputs)
        axes = self.outputs or (None,) * len(outputs)
        if len(outputs) != len(reference) or len(axes) != len(outputs):
            return float("inf")
        worst = 0.0
        for out, ref, axis in zip(outputs, reference, axes):
            if not out.isfinite().all():
                return float("inf")
            judged = out if rows is None or axis is None else out.index_select(axis, rows.to(out.device))
            if judged.shape != ref.shape:
                return float("inf")
            worst = max(worst, _largest_row_error(judged.to(ref.device), ref))
        return worst


def _largest_row_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    shape = (-1, reference.shape[-1]) if reference.dim() > 1 else (1, -1)
    wide = reference.double().reshape(shape)
    differences = (out.double().reshape(shape) - wide).norm(dim=1)
    scales = wide.norm(dim=1)
    return float((differences / torch.where(scales > 0, scales, 1.0)).max().item())
