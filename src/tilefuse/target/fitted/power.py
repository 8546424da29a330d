"""Power of kernels whose tensor cores are busy: energies of multiply-adds and of bytes, and the limit that lowers the clock."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.evidence import measured

_TILES, _COMMAND = "benchmarks/results/tiles-h200-20261124.txt", "python -m benchmarks.products.tiles --fit"
_FITTED = (
    f"one H200 ({_TILES}), 372 tiles of 40 products in bf16, f16 and tf32 at 1.3 to 1.7 GHz and 700 W, least squares beside cycles that "
    "were fitted before: root of the mean square of predicted over measured 5.2 %, quartiles 0.96 and 1.02, the tile of the least price "
    "within 5 % of the best in 37 of 41")
_BYTES = f"{_FITTED}; with this weight, 8192 x 8192 by 8192 in int8 818 us, in e4m3 with fast sums 854 us (one H200, 9fadbda9)"
# The same tables of one H100, which keeps a higher clock.
_H100 = (
    "one H100 (benchmarks/results/products-h100-20261124.txt), 134 tiles of 14 products in bf16 and f16, least squares: root of the mean "
    "square of predicted over measured 9.1 %, quartiles 0.94 and 1.05, the tile of the least price within 5 % of the best in 13 of 14")


@dataclass(frozen=True, slots=True)
class PowerFigures:
    """The power limit of a device, and energies at the clock of `roofline.clock_hz`, whose cycles are fitted too."""

    limit_w: float = measured(700.0, "W", "Power limit of the board.", "NVIDIA H100 and H200 data sheets, SXM")
    idle_w: float = measured(
        120.0, "W", "Power beside that of a kernel's work: leakage, clocks, memory at rest.", "assumption; an idle H200 takes 81 W")
    cycle_share: float = measured(
        0.58, "1", "Weight of the cycles in a time at the power limit, beside that of the energy: lower clocks take less voltage.", _FITTED,
        _COMMAND)
    multiply_add_pj: tuple[tuple[str, float], ...] = measured(
        (("bf16", 2.18), ("f16", 2.5), ("tf32", 4.65), ("f8e4m3", 1.13), ("f8e5m2", 1.13), ("i8", 1.0), ("u8", 1.0)),
        "pJ a multiply-add", "Energy of a multiply-add on the tensor cores, by the type of its operands.", _BYTES, _COMMAND)
    copied_byte_pj: float = measured(4.8, "pJ a byte", "Energy of a byte that a tensor copy brings from L2 into shared memory.", _FITTED,
                                    _COMMAND)
    shared_byte_pj: float = measured(1.3, "pJ a byte", "Energy of a byte that an instruction reads from shared memory.", _FITTED, _COMMAND)
    memory_byte_pj: float = measured(
        80.0, "pJ a byte", "Energy of a byte of global memory that is read or written.",
        f"{_FITTED}; held near that of the literature: without, it is 129 pJ and the mean square 4.7 %")
    operation_pj: float = measured(
        15.0, "pJ an operation", "Energy of an operation of the maps on one element, beside the cycles that products lose to it.",
        "one H200 (early-products-h200-20261124.txt): gelu f16 8192 x 4096 by 1024 128.6 us, bf16 16384 x 3072 by 768 151.6; 129 and 146 "
        "are predicted")


@dataclass(frozen=True, slots=True)
class H100PowerFigures(PowerFigures):
    """Those of an H100."""

    multiply_add_pj: tuple[tuple[str, float], ...] = measured(
        (("bf16", 1.39), ("f16", 1.55), ("tf32", 2.96), ("f8e4m3", 0.72), ("f8e5m2", 0.72), ("i8", 0.64), ("u8", 0.64)),
        "pJ a multiply-add", "Energy of a multiply-add on the tensor cores, by the type of its operands.",
        f"{_H100}; other types in the H200's proportion to bf16")
    copied_byte_pj: float = measured(8.8, "pJ a byte", "Energy of a byte that a tensor copy brings from L2 into shared memory.", _H100)
