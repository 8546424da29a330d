"""Operators of detectors for ONNX's reference implementation: suppression of overlapping boxes, and features of regions.

The package's own visit boxes and elements one by one: features of 122 regions in 256 channels take it 3 s, and this 30 ms.
"""
from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_roi_align

# Boxes whose overlaps with all later ones are computed at once.
BLOCK_BOXES = 64


class NonMaxSuppression(OpRun):  # the evaluator finds it by this name
    """Boxes by falling score, each kept unless it overlaps one that is kept."""

    op_domain = ""

    def _run(self, boxes: Any, scores: Any, most: Any = None, overlap: Any = None, least: Any = None,
             center_point_box: int = 0) -> tuple[Any, ...]:
        """Rows (batch, class, box), by batch, class and falling score; of equal scores the first box."""
        count, limit = (0 if most is None else int(most.reshape(-1)[0])), (0.0 if overlap is None else overlap.reshape(-1)[0])
        rows: list[tuple[int, int, int]] = []
        for batch, corners in enumerate(_corners(boxes, bool(center_point_box))):
            for label, row in enumerate(scores[batch]):
                order = np.argsort(-row, kind="stable")
                order = order if least is None else order[row[order] > least.reshape(-1)[0]]
                rows += [(batch, label, n) for n in order[_kept(corners[order], count, limit)].tolist()]
        return (np.asarray(rows, np.int64).reshape(-1, 3),)


def _corners(boxes: np.ndarray, by_centre: bool) -> np.ndarray:
    """Boxes as (smaller corner, larger corner), from two opposite corners or from centre and extent."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if by_centre:
        first, second = first - second / 2, first + second / 2
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _kept(corners: np.ndarray, count: int, limit: float) -> list[int]:
    """Positions of the boxes that stay, at most `count`; boxes come in the order in which they are tried."""
    alive = np.ones(len(corners), bool)
    chosen: list[int] = []
    for start in range(0, len(corners), BLOCK_BOXES):
        block = start + np.flatnonzero(alive[start:start + BLOCK_BOXES])
        later = start + np.flatnonzero(alive[start:])
        overlapping = _overlaps(corners[block], corners[later], limit)
        for n, row in zip(block.tolist(), overlapping, strict=True):
            if len(chosen) >= count:
                return chosen
            if alive[n]:
                chosen.append(n)
                alive[later[row]] = False
    return chosen


def _overlaps(boxes: np.ndarray, others: np.ndarray, limit: float) -> np.ndarray:
    """Whether the common area of two boxes is more than `limit` of their union; a box without area overlaps none.

    Shapes: boxes: [n, 4], others: [m, 4] -> [n, m]
    """
    low, high = (side(boxes[:, None, at], others[None, :, at]) for side, at in ((np.maximum, slice(2)), (np.minimum, slice(2, 4))))
    common = np.prod(np.maximum(high - low, 0), -1)
    areas, other_areas = (np.prod(b[:, 2:] - b[:, :2], -1) for b in (boxes, others))
    union = areas[:, None] + other_areas - common
    overlaps: np.ndarray = (common > 0) & (areas[:, None] > 0) & (other_areas > 0) & (common / np.where(union > 0, union, 1) > limit)
    return overlaps


class RoiAlign(op_roi_align.RoiAlign):  # the evaluator finds it by this name
    """Means of bilinear samples of regions; maxima stay with the package's own."""

    op_domain = ""

    def _run(self, X: Any, rois: Any, batch_indices: Any, coordinate_transformation_mode: Any = None, mode: Any = None,
             output_height: Any = None, output_width: Any = None, sampling_ratio: Any = None, spatial_scale: Any = None) -> tuple[Any, ...]:
        """Shapes: X: [N, C, H, W], rois: [R, 4], batch_indices: [R] -> [R, C, output_height, output_width]

        A sample is a product of one weight a row and one a column of the features: two matrix products a region.
        """
        # The operator's first version has no such attribute; the evaluator then gives the default of the latest.
        old = self.run_params["opsets"][""] < 16
        transformation = "output_half_pixel" if old else coordinate_transformation_mode or "half_pixel"
        if (mode or "avg").lower() != "avg":
            return tuple(super()._run(X, rois, batch_indices, transformation, mode, output_height, output_width, sampling_ratio,
                                      spatial_scale))
        half = transformation.lower() == "half_pixel"
        high, wide = output_height or 1, output_width or 1
        scaled = rois * np.asarray(spatial_scale or 1.0, rois.dtype) - np.asarray(0.5 if half else 0, rois.dtype)
        extents = scaled[:, 2:] - scaled[:, :2] if half else np.maximum(scaled[:, 2:] - scaled[:, :2], 1)
        rows_first = np.moveaxis(X, 1, -1)
        pooled = np.zeros((len(rois), high, wide, X.shape[1]), X.dtype)
        for region, (image, (x, y, *_), (width, height)) in enumerate(zip(batch_indices.tolist(), scaled, extents, strict=True)):
            rows, by_row = _samples(y, height, high, sampling_ratio or 0, X.shape[2])
            columns, by_column = _samples(x, width, wide, sampling_ratio or 0, X.shape[3])
            window = rows_first[image][np.ix_(rows, columns)]
            halfway = (by_row @ window.reshape(len(rows), len(columns) * X.shape[1])).reshape(high, len(columns), X.shape[1])
            pooled[region] = by_column @ halfway
        return (np.ascontiguousarray(np.moveaxis(pooled, -1, 1)),)


def _samples(start: Any, extent: Any, bins: int, samples: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions read along one axis, and their weights in the mean of each bin; samples up to one element outside are moved inside.

    Shapes: positions: [p], weights: [bins, p]
    """
    samples = samples if samples > 0 else max(int(np.ceil(extent / bins)), 0)
    step = extent / bins
    at = start + np.arange(bins, dtype=step.dtype)[:, None] * step + (np.arange(samples, dtype=step.dtype) + 0.5) * step / max(samples, 1)
    inside = (at >= -1) & (at <= size)
    at = np.clip(at, 0, size - 1)
    low = at.astype(np.int64)
    share = at - low
    read = np.stack([low, np.minimum(low + 1, size - 1)])
    weights = np.stack([1 - share, share]) * inside / max(samples, 1)
    positions, place = np.unique(read, return_inverse=True)
    table = np.zeros((bins, len(positions)), step.dtype)
    np.add.at(table, (np.broadcast_to(np.arange(bins)[:, None], read.shape), place.reshape(read.shape)), weights)
    return positions, table
