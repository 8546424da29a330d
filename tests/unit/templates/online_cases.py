"""Kernels that walk an axis between products, to be run: tiles by hand, so that turns, tails and idle lanes occur at small sizes."""
from __future__ import annotations

import numpy as np

from tests.unit.templates.online_graphs import (
    biased_layers,
    kept_scores,
    logarithm_of_sum,
    masked,
    merged_heads,
    packed_heads,
    shared_keys,
    two_of_each,
    with_logarithm,
    without_maximum,
)
from tests.unit.templates.stitched_cases import StitchedCase, smooth, with_specials
from tests.unit.templates.stitched_graphs import attention
from tilefuse.ir.dtype import BF16, F16, F32, F64
from tilefuse.templates.staged.online.record import Online


def with_hidden_rows(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Normal variates; masks hide some columns, and all of them in row 1 (or of the first batch)."""
    if name != "mask":
        return smooth(rng, name, shape)
    hidden = rng.random(shape) < 0.4
    if shape[2] == 1:
        hidden[0] = True
        return ~hidden
    hidden[:, :, 1:2] = True
    return np.where(hidden, -np.inf, 0.0)


def with_lowest(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Normal variates; a mask of bf16's lowest number in the first columns, and in all columns of row 1."""
    if name != "mask":
        return smooth(rng, name, shape)
    mask = np.zeros(shape)
    mask[..., :shape[-1] - 5] = mask[:, :, 1:2] = -(2.0**128 - 2.0**120)
    return mask


ONLINE_CASES: tuple[StitchedCase, ...] = (
    StitchedCase("scores of 16 bits kept in f32", kept_scores(40, 48), Online(16, 16, 32, 2), 16, smooth),
    StitchedCase("walk of lowest numbers added", masked(17, 48, 16, 8, BF16), Online(16, 16, 32), 64, with_lowest),
    StitchedCase("walk of f32", attention(2, 20, 8), Online(16, 16, 64), 64, smooth),
    StitchedCase("walk of f32 with several rows a thread", attention(2, 70, 12), Online(32, 32, 128), 64, smooth),
    StitchedCase("walk of f64", attention(2, 37, 5, F64), Online(8, 16, 32), 64, smooth),
    StitchedCase("walk of f16", attention(2, 40, 16, F16), Online(32, 16, 64), 16, smooth),
    StitchedCase("walk of bf16", attention(1, 64, 32, BF16), Online(32, 32, 32), 16, smooth),
    StitchedCase("walk of f32 fetched ahead", attention(2, 37, 8), Online(16, 16, 64, 2), 64, smooth),
    StitchedCase("walk of f16 fetched ahead", attention(2, 70, 24, F16), Online(32, 16, 64, 2), 16, smooth),
    StitchedCase("walk of odd f16 fetched ahead", attention(2, 37, 21, F16), Online(32, 16, 32, 2), 16, smooth),
    StitchedCase("walk of merged heads fetched ahead", merged_heads(16, 40, 8, 24, F16), Online(16, 16, 32, 2), 16, smooth),
    StitchedCase("walk of odd f16", attention(2, 37, 21, F16), Online(32, 16, 32), 16, smooth),
    StitchedCase("walk past later keys", attention(1, 45, 8, causal=True), Online(16, 16, 64), 64, smooth),
    StitchedCase("walk past later keys in f16", attention(1, 48, 16, F16, causal=True), Online(32, 16, 64), 16, smooth),
    StitchedCase("walk of infinities", attention(1, 6, 4, keys=39), Online(8, 16, 64), 64, with_specials),
    StitchedCase("walk of infinities in f16", attention(1, 6, 4, F16, keys=39), Online(16, 16, 32), 16, with_specials),
    StitchedCase("walk of logarithms", with_logarithm(3, 20, 35, 4, 9), Online(16, 16, 64), 128, smooth),
    StitchedCase("walk of logarithms in f16", with_logarithm(2, 20, 40, 16, 24, F16), Online(16, 32, 32), 32, smooth),
    StitchedCase("walk of masked rows", masked(9, 33, 4, 5), Online(8, 16, 32), 64, with_hidden_rows),
    StitchedCase("walk of hidden columns", masked(9, 33, 4, 16, F16, "hidden"), Online(16, 16, 32), 32, with_hidden_rows),
    StitchedCase("walk of masked bf16", masked(17, 48, 16, 8, BF16), Online(32, 16, 64), 32, with_hidden_rows),
    StitchedCase("walk of merged heads", merged_heads(10, 37, 6, 3), Online(16, 16, 64), 64, smooth),
    StitchedCase("walk of merged heads in f16", merged_heads(16, 40, 8, 24, F16), Online(16, 16, 32), 16, smooth),
    StitchedCase("walk of shared keys", shared_keys(21, 21, 6, 70), Online(16, 16, 64), 64, smooth),
    StitchedCase("walk of shared keys in f16", shared_keys(24, 24, 16, 8, F16), Online(16, 16, 32), 16, smooth),
    StitchedCase("walk without a maximum", without_maximum(9, 37, 5, 7), Online(8, 16, 32), 256, smooth),
    StitchedCase("walk without a maximum in f16", without_maximum(9, 37, 16, 8, F16), Online(16, 16, 32), 64, smooth),
    StitchedCase("walk of two of each", two_of_each(11, 35, 4, 6), Online(8, 16, 32), 128, smooth),
    StitchedCase("walk of two of each in f16", two_of_each(16, 48, 16, 16, F16), Online(16, 16, 32), 32, smooth),
    StitchedCase("walk of one row", with_logarithm(2, 1, 35, 3, 1), Online(8, 16, 32), 128, smooth),
    StitchedCase("walk of one row in f16", masked(1, 48, 16, 8, F16), Online(16, 16, 32), 32, with_hidden_rows),
    StitchedCase("walk of 4096 keys in f16", attention(1, 16, 16, F16, keys=4096), Online(16, 64, 32, 2), 16, smooth),
    StitchedCase("walk of 4096 keys in bf16", masked(16, 4096, 16, 8, BF16, "hidden"), Online(16, 128, 32, 2), 32, with_hidden_rows),
    StitchedCase("walk of 4096 keys in f32", with_logarithm(1, 16, 4096, 8, 8), Online(16, 64, 32, 2), 256, smooth),
    StitchedCase("walk of long rows", attention(1, 3, 8, keys=1000), Online(8, 32, 32), 128, smooth),
    StitchedCase("walk without a product", logarithm_of_sum(19, 6, 83), Online(8, 16, 32), 64, smooth),
    StitchedCase("walk without a product in f16", logarithm_of_sum(19, 32, 80, F16), Online(32, 16, 32), 16, smooth),
    # f32 on the matrix unit: tiles of whole instructions a warp.
    StitchedCase("walk of f32 by warps", attention(2, 20, 8), Online(16, 16, 32), 64, smooth),
    StitchedCase("walk of f32 by warps, two tiles of rows each", attention(2, 70, 12), Online(32, 32, 32), 64, smooth),
    StitchedCase("walk of f32 by warps fetched ahead", attention(2, 37, 21), Online(32, 16, 64, 2), 64, smooth),
    StitchedCase("walk past later keys by warps", attention(1, 45, 8, causal=True), Online(32, 16, 64), 64, smooth),
    StitchedCase("walk of infinities by warps", attention(1, 6, 4, keys=39), Online(16, 16, 32), 64, with_specials),
    StitchedCase("walk of logarithms by warps", with_logarithm(3, 20, 35, 4, 9), Online(16, 16, 32), 128, smooth),
    StitchedCase("walk of masked rows by warps", masked(9, 33, 4, 5), Online(16, 16, 32), 64, with_hidden_rows),
    StitchedCase("walk of merged heads by warps", merged_heads(10, 37, 6, 3), Online(16, 16, 32), 64, smooth),
    StitchedCase("walk of two of each by warps", two_of_each(11, 35, 4, 6), Online(16, 16, 32), 128, smooth),
    StitchedCase("walk of packed heads", packed_heads(2, 20, 3, 8, F32), Online(16, 16, 64), 64, smooth),
    StitchedCase("walk of packed heads in f16", packed_heads(1, 37, 2, 16, F16), Online(16, 16, 32), 16, smooth),
    StitchedCase("walk of biased layers", biased_layers(19, 6, 83, 5), Online(8, 16, 32)),
    StitchedCase("walk of biased layers in f16", biased_layers(19, 6, 83, 8, F16), Online(32, 16, 32)),
)
