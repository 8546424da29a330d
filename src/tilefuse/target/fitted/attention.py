"""Fitted figures of the library's attention."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.evidence import measured

_GRADIENTS = ("one H200, torch 2.11, gradients of 12 attentions of width 64 by each of flash and cuDNN (benchmarks/results/"
              "gradients-h200-20261129.jsonl): predicted over measured 0.94 to 1.07")
_FIT_GRADIENTS = "python -m benchmarks.attention.gradients --fit RECORD"
_TIMED = "one H100, torch 2.11, nine attentions (benchmarks/results/attention-h100-20261124.txt)"


@dataclass(frozen=True, slots=True)
class AttentionFigures:
    """Attention by the framework's kernels."""

    rate_shares: tuple[tuple[str, tuple[tuple[int, float], ...]], ...] = measured(
        (("flash", ((64, 0.47), (1 << 62, 0.54))), ("cudnn", ((64, 0.77), (1 << 62, 0.96))), ("any", ((64, 0.77), (1 << 62, 0.96))),
         ("efficient", ((1 << 62, 0.3),))), "(elements, 1)",
        "Share of the rate of a large product, by the kernels that the framework has chosen and the most elements of a head's row. torch "
        "chooses cuDNN's where it may.", _TIMED + "; efficient: assumption")
    bits: int = measured(16, "bits", "Elements that these kernels multiply on tensor cores.", "torch 2.11, sdp_utils: half and bfloat16")
    tile_side: int = measured(128, "rows and columns", "Tiles that count as whole ones.", _TIMED)
    width_step: int = measured(
        32, "elements", "Rows of heads count in whole steps.", "flash-attn 2: kernels for 32, 64, 96, 128 ... elements")
    tile_us: float = measured(1.5, "us", "Start and end of a tile of rows on a multiprocessor.", _TIMED)
    start_us: float = measured(4.0, "us", "Start and end of a call, beside its launch.", _TIMED + ": 12 heads of 128 rows 6.0 and 5.4 us")
    gradient_rate_shares: tuple[tuple[str, float], ...] = measured(
        (("flash", 0.43), ("cudnn", 0.70), ("efficient", 0.3)), "1",
        "Share of the rate of a large product that the five products of the gradients reach, by the kernels that compute them.",
        _GRADIENTS + "; other widths are not timed; efficient: assumption, as its forward pass", _FIT_GRADIENTS)
    gradient_passes: tuple[tuple[str, float], ...] = measured(
        (("flash", 3.1), ("cudnn", 2.0), ("efficient", 3.1)), "1",
        "Bytes that the gradients' kernels move beside their products, over operands and results: row sums and sums in f32 have passes of "
        "their own.", _GRADIENTS + "; efficient: assumption, as flash", _FIT_GRADIENTS)
    gradient_start_us: tuple[tuple[str, float], ...] = measured(
        (("flash", 31.0), ("cudnn", 16.0), ("efficient", 31.0)), "us", "Starts and ends of the gradients' kernels, beside a launch.",
        _GRADIENTS + "; efficient: assumption, as flash", _FIT_GRADIENTS)
