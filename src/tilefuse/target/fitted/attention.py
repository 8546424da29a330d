"""Fitted figures of the library's attention."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.evidence import measured

_ANCHORS = ("one H200, torch 2.11, bf16, heads x rows x width 256 x 512 x 64, 64 x 4096 x 64, 768 x 197 x 64, 64 x 4096 x 128 causal: "
            "flash 69, 917, 62, 899 us, cuDNN 50, 588, 47, 483 us")


@dataclass(frozen=True, slots=True)
class AttentionFigures:
    """Attention by the framework's kernels."""

    rate_shares: tuple[tuple[str, float], ...] = measured(
        (("flash", 0.45), ("any", 0.45), ("efficient", 0.3), ("cudnn", 0.71)), "1",
        "Share of the rate of a large product, by the kernels that the framework has chosen.", _ANCHORS)
    bits: int = measured(16, "bits", "Elements that these kernels multiply on tensor cores.", "torch 2.11, sdp_utils: half and bfloat16")
    tile_side: int = measured(128, "rows and columns", "Tiles that count as whole ones.", _ANCHORS)
    width_step: int = measured(
        32, "elements", "Rows of heads count in whole steps.", "flash-attn 2: kernels for 32, 64, 96, 128 ... elements")
    tile_us: float = measured(1.5, "us", "Start and end of a tile of rows on a multiprocessor.", _ANCHORS)
