"""Fitted figures of library calls: matrix products, products with unaligned rows, long products, convolutions."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.evidence import NO_RECORD, measured

_LSTM = "one H200, f32, a step of an LSTM of 32 x 512 as a call of 12.8 us and gates of 3.0 us or as one kernel: 40 steps took 224 us less"
_UNALIGNED = ("one H200, cuBLAS of CUDA 13.0, 2026-11-22, us unaligned and padded: 12288 x 196 x 196 13.4, 6.5; 8192 x 196 x 256 12.8, "
              "4.8; 1024 x 1001 x 4096 72, 14; 4096 x 4096 x 1001 325, 45; 4096 x 197 x 197 13.4, 4.0 (f16); 82, 30; 268, 89; 10.7, 6.8 "
              "(tf32). Not fitted: 4095 x 4099 x 4097 867 (bf16), 910 (f16), predicted 1262; 4093 x 517 x 1021 40.7 (bf16), predicted 51 "
              "(products-h200-20261123.txt)")
_SHORT = "one H200: 1500 products of 300 x 16 by 16 x 300 take about 345 us, and their bytes 143"
_CONVOLUTIONS = ("one H200, cuDNN and torch 2.11, 2026-11-22, 64 to 512 channels, 14 x 14 to 112 x 112 places, batches of 2 and 32, graph"
                 " replays")
_WINDOWS_F32 = ("one H200, torch 2.11, us row-major and channels last: 64 channels to 64, 3x3 over [167, 56, 56] 340, 191; 256 to 256 "
                "over [167, 28, 28] 532, 391; 64 to 128 over [128, 128, 128] 1878, 874; 8 to 32 over [128, 256, 256] 1953, 1514; 16 to "
                "32, 5x5 over [32, 128, 128] 234, 195; 3 to 64, 7x7 by 2 over [128, 224, 224] 1226, 808; 3 to 16, 3x3 over [64, 128, 128]"
                " 155, 87; transposed, 64 to 64 over [32, 256, 256] 1265, 660")
_GATHERED = ("one H200, cuDNN 9.19 and torch 2.11, 2026-11-24 (benchmarks/results/convolutions-h200-20261124.txt), windows that share no "
             "element, channels last, over the product of padded channels: {}")
_HOST = ("one core with AVX-512, us, torch row-major and packed: 512 channels, 3x3 windows, 7 x 7 places 4153, 2089; 256, 14 x 14 2405, "
         "1986; 64, 56 x 56 2207, 2035; one place, 64 to 256, 56 x 56 1241, 979; 256 to 64 1233, 935; 512 to 128, 28 x 28 1136, 952; both"
         " turns of an image, batches of 1 and 4: 590 and 1977 longer")
_OWN_KERNEL = ("one H200, CUDA graphs of single products with weights in no cache, us as a call, as a kernel, predicted for the kernel: "
               "f16 8 x 512 by 512 x 512 4.09, 3.52, 2.02; by 512 x 1024 4.14, 3.99, 2.40; by 512 x 2048 4.02, 4.45, 3.14; f16 64 x 1024 "
               "by 1024 x 1024 4.90, 6.18, 5.36; f32 64 x 512 by 512 x 512 7.96, 7.08, 5.87")
# Plans whose calls cost what `CallFigures` says, and by bytes and rates, as before: one run, commit 1ef01321.
_PLANS = ("Whole plans by this price, and by bytes and rates: multi-interests/training/f32 380.1 and 402.5 us, var-encoder/training/f32 "
          "43.5 and 46.5 (findings.md).")
_FIT = ("one H200, cuBLAS of CUDA 13.0, graph replays: calls of whole plans (planner-h200-20261122-080215.json), products of 1 to 16384 "
        "rows, padded products of 200 to 5032 (findings.md). {} Those that were held out: {}")
_FIT_COMMAND = "python -m benchmarks planner"
_FIT_THREADS = _FIT.format("Fitted to 27 products in f32 of 7 to 2724 us; predicted over measured at the quartiles 0.98, 1.00, 1.02.",
                           "13, among them those of planner-h200-20261123-042624.json: 1.06, 1.13, 1.17.") + " " + _PLANS
_FIT_HALVES = _FIT.format("Fitted to 33 products in f16 and bf16 of 4 to 210 us; predicted over measured at the quartiles 0.99, 1.05, "
                          "1.12.", "22: 0.98, 1.05, 1.16.")
_FIT_TF32 = _FIT.format("Fitted to 10 products in tf32 of 7 to 392 us; predicted over measured at the quartiles 0.92, 1.00, 1.02.",
                        "6: 0.94, 0.95, 1.01.")
_HOST_PRODUCTS = ("one core of an EPYC with AVX-512, torch 2.11, one thread, us of sums of products by our own kernel and of the call, "
                  "64, 128, 256 and 512 cubed: f32 23 and 19, 152 and 68, 815 and 338, 20000 and 3200; f64 38 and 32, 170 and 117, 1400 "
                  "and 770, 28000 and 19000; bf16 40 and 44, 239 and 65, 1486 and 177, 21300 and 1340, but hosts without instructions for "
                  "bf16 take longer; f16 68 and 171, 364 and 1072, 2990 and 31000, 92000 and 383000; "
                  "f32 16 cubed 12 and 14; with copies of its operands, bf16 48 cubed 23 and 36")
_LATENCY = "Time to fill the first tiles and to store the last ones, beside the launch."
_FULL_TILE = "Results in work on a multiprocessor from which on it reaches the rate of a large product."
_EXPONENT = "Share of that rate with fewer results in work: their share of `full_tile`, to this power."
_INNER = "Time for every element of a block's part of the inner axis: latency that one block cannot hide."
_SPLIT = "Time to begin adding the sums of pieces where the inner axis is split among blocks."
_OPERANDS = "Share of the tiles' reads of operands that reach L2: blocks of a cluster share some, and L1 has some."
_PIECE = "Shortest piece of a split inner axis."


@dataclass(frozen=True, slots=True)
class TilingFigures:
    """How long the library's kernels take for a product by tiles and waves (`plan/price/library_tiles.py`).

    tiles: rows and columns of the tiles that its kernels have; splits: numbers of pieces of the inner axis.
    """

    tiles: tuple[tuple[int, int], ...]
    splits: tuple[int, ...]
    latency_us: float
    full_tile: int
    exponent: float
    inner_us: float
    split_us: float
    operand_share: float
    least_piece: int
    result_inner: float


_RESULTS = "Elements of the inner axis in whose time a tile's results are rounded and stored."
_RESULT_TIMES = ("one H200 (benchmarks/results/tiles-h200-20261124.txt), predicted without it over measured in geometric mean: 12 products "
                 "of up to 1024 inner elements 0.934, 28 of 2048 and more 1.018; with it 0.977 and 1.032")
_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_TILES_MEANING, _SPLITS_MEANING = "Tiles that the library chooses from.", "Numbers of pieces of the inner axis that it chooses from."


@dataclass(frozen=True, slots=True)
class ThreadTiling(TilingFigures):
    """Products in f32 and f64 without the matrix unit."""

    tiles: tuple[tuple[int, int], ...] = measured(_TILES[2:], "(rows, columns)", _TILES_MEANING, _FIT_THREADS, _FIT_COMMAND)
    splits: tuple[int, ...] = measured(_SPLITS, "pieces", _SPLITS_MEANING, _FIT_THREADS, _FIT_COMMAND)
    latency_us: float = measured(5.5, "us", _LATENCY, _FIT_THREADS, _FIT_COMMAND)
    full_tile: int = measured(5400, "elements", _FULL_TILE, _FIT_THREADS, _FIT_COMMAND)
    exponent: float = measured(0.2, "1", _EXPONENT, _FIT_THREADS, _FIT_COMMAND)
    inner_us: float = measured(0.0066, "us an element", _INNER, _FIT_THREADS, _FIT_COMMAND)
    split_us: float = measured(0.8, "us", _SPLIT, _FIT_THREADS, _FIT_COMMAND)
    operand_share: float = measured(0.9, "1", _OPERANDS, _FIT_THREADS, _FIT_COMMAND)
    least_piece: int = measured(112, "elements", _PIECE, _FIT_THREADS, _FIT_COMMAND)
    result_inner: float = measured(0.0, "elements", _RESULTS, _FIT_THREADS)


@dataclass(frozen=True, slots=True)
class HalfTiling(TilingFigures):
    """Products of 16-bit operands on the matrix unit."""

    tiles: tuple[tuple[int, int], ...] = measured(_TILES, "(rows, columns)", _TILES_MEANING, _FIT_HALVES, _FIT_COMMAND)
    splits: tuple[int, ...] = measured(_SPLITS, "pieces", _SPLITS_MEANING, _FIT_HALVES, _FIT_COMMAND)
    latency_us: float = measured(2.0, "us", _LATENCY, _FIT_HALVES, _FIT_COMMAND)
    full_tile: int = measured(7800, "elements", _FULL_TILE, _FIT_HALVES, _FIT_COMMAND)
    exponent: float = measured(0.6, "1", _EXPONENT, _FIT_HALVES, _FIT_COMMAND)
    inner_us: float = measured(0.0, "us an element", _INNER, _FIT_HALVES, _FIT_COMMAND)
    split_us: float = measured(3.9, "us", _SPLIT, _FIT_HALVES, _FIT_COMMAND)
    operand_share: float = measured(0.42, "1", _OPERANDS, _FIT_HALVES, _FIT_COMMAND)
    least_piece: int = measured(760, "elements", _PIECE, _FIT_HALVES, _FIT_COMMAND)
    result_inner: float = measured(60.0, "elements", _RESULTS, _RESULT_TIMES)


@dataclass(frozen=True, slots=True)
class Tf32Tiling(TilingFigures):
    """Products of f32 operands on the matrix unit."""

    tiles: tuple[tuple[int, int], ...] = measured(_TILES, "(rows, columns)", _TILES_MEANING, _FIT_TF32, _FIT_COMMAND)
    splits: tuple[int, ...] = measured(_SPLITS, "pieces", _SPLITS_MEANING, _FIT_TF32, _FIT_COMMAND)
    latency_us: float = measured(3.7, "us", _LATENCY, _FIT_TF32, _FIT_COMMAND)
    full_tile: int = measured(11600, "elements", _FULL_TILE, _FIT_TF32, _FIT_COMMAND)
    exponent: float = measured(0.5, "1", _EXPONENT, _FIT_TF32, _FIT_COMMAND)
    inner_us: float = measured(0.0, "us an element", _INNER, _FIT_TF32, _FIT_COMMAND)
    split_us: float = measured(5.8, "us", _SPLIT, _FIT_TF32, _FIT_COMMAND)
    operand_share: float = measured(0.46, "1", _OPERANDS, _FIT_TF32, _FIT_COMMAND)
    least_piece: int = measured(570, "elements", _PIECE, _FIT_TF32, _FIT_COMMAND)
    result_inner: float = measured(60.0, "elements", _RESULTS, _RESULT_TIMES)


@dataclass(frozen=True, slots=True)
class CallFigures:
    """Times of the library's calls for matrix products, by which plans choose between kernel and call (`plan/price/library_tiles.py`).

    Source: one price of calls beside another, in plans of whole workloads: `_PLANS`.
    """

    threads: ThreadTiling = ThreadTiling()
    halves: HalfTiling = HalfTiling()
    tf32: Tf32Tiling = Tf32Tiling()
    most_blocks: int = measured(
        4, "blocks a multiprocessor", "Blocks up to which an inner axis is split: more of them hide nothing.", _FIT_THREADS, _FIT_COMMAND)
    short_inner: int = measured(32, "elements", "Inner axis in f32 and f64 below which it is short.", _SHORT)
    short_efficiency: float = measured(
        0.25, "1", "Share of the rate of a large product with a short inner axis: storing results takes longer.", _SHORT)
    byte_shares: tuple[tuple[str, float], ...] = measured(
        (("int", 0.60), ("float", 0.92), ("fast", 1.0)), "1",
        "Share of the rate of products of 8-bit operands that the library's call reaches: integers, floats, floats with fast sums.",
        "one H200, 9fadbda9: 8192 x 8192 by 8192 in 1230, 910 and 844 us, 8192 x 4096 by 1024 in 127, 80 and 68 us")
    host_shares: tuple[tuple[str, float], ...] = measured(
        (("f32", 5.0), ("f64", 5.0), ("bf16", 1.0), ("f16", 0.06)), "1",
        "On a host, the call's rate by the operands' type, over the rate of the record, which that of our own kernels is.", _HOST_PRODUCTS)
    host_latency_us: float = measured(
        12.0, "us", "On a host, time of a call beside its arithmetic and a kernel's launch; sums for which it is too long stay kernels.",
        _HOST_PRODUCTS)


@dataclass(frozen=True, slots=True)
class ProductFigures:
    """Which matrix products a kernel may hold, where a plan decides between kernel and call without timing them."""

    large_operand_bytes: int = measured(
        1 << 18, "bytes", "Right operand beyond which its tiles never lie on chip long enough for a kernel of our own.", _LSTM)
    large_for_few_rows_bytes: int = measured(
        1 << 22, "bytes", "The same for products of few rows, which read the right operand once.", _LSTM)
    few_rows: int = measured(64, "rows", "Rows up to which a product reads its right operand once.", _LSTM)
    own_kernel_share: float = measured(
        0.75, "1", "Most time of a product's own kernel, as a share of the call's, where it holds nothing else: both are estimates, and "
        "the kernel's leaves out reads of weights that are in no cache.", _OWN_KERNEL)
    walk_columns: int = measured(64, "columns", "Columns from which on a walk between two products may pay.", NO_RECORD)
    walk_depth: int = measured(
        256, "elements", "Elements of a row of the other operands that a block holds during a walk.", NO_RECORD)


@dataclass(frozen=True, slots=True)
class UnalignedFigures:
    """Matrix products by the library whose rows in memory are no multiples of 16 bytes."""

    least_us: float = measured(1.5, "us", "Least time of a product beside its launch.", _UNALIGNED)
    inner_us: float = measured(0.05, "us an element", "Time for every element of the inner axis.", _UNALIGNED)
    longest_inner_us: float = measured(10.0, "us", "Most time of a long inner axis.", _UNALIGNED)
    eight_bytes_rate: float = measured(175e12, "operations a second", "Rate where rows are multiples of 8 bytes.", _UNALIGNED)
    other_rate: float = measured(110e12, "operations a second", "Rate for other rows.", _UNALIGNED)
    least_gain_us: float = measured(1.0, "us", "Least gain for which products are padded.", NO_RECORD)


@dataclass(frozen=True, slots=True)
class LongProductFigures:
    """Products of few rows and columns over a long inner axis."""

    inner: int = measured(4096, "elements", "Inner axis from which on it is split into pieces.", NO_RECORD)
    shortest_piece: int = measured(32, "elements", "Shortest piece of the inner axis.", NO_RECORD)
    longest_piece: int = measured(512, "elements", "Longest piece of the inner axis.", NO_RECORD)
    tile_side: int = measured(64, "elements", "Side of the library's tile of results.", NO_RECORD)
    busy_tiles: int = measured(2, "tiles a multiprocessor", "Tiles with which the device is busy.", NO_RECORD)
    few_tiles: float = measured(0.25, "tiles a multiprocessor", "Most tiles of a product that is split.", NO_RECORD)


@dataclass(frozen=True, slots=True)
class ConvolutionFigures:
    """Time that channels last spares a convolution and its two gradients.

    Units: times that the bytes of operand and result take at the rate of a copy. Pairs are (convolution, its gradients).
    """

    windows_16: tuple[float, float] = measured((5.0, 9.0), "1", "Windows of 16-bit elements on tensor cores.", _CONVOLUTIONS)
    windows_f32: tuple[tuple[int, tuple[float, float]], ...] = measured(
        ((4, (3.6, 4.0)), (16, (1.5, 4.0)), (1 << 62, (2.4, 4.0))), "(channels, 1)",
        "Windows of f32 on tensor cores, by the most channels of the image: for few channels cuDNN pads channels last, or reads row-major.",
        _WINDOWS_F32)
    places_f32: tuple[float, float] = measured((0.1, 0.8), "1", "Windows of one place, f32.", _CONVOLUTIONS)
    places_16: tuple[float, float] = measured((0.0, 0.6), "1", "Windows of one place, 16-bit elements.", _CONVOLUTIONS)
    exact_windows: tuple[float, float] = measured((-4.0, -5.0), "1", "Windows of f32 without tensor cores.", _CONVOLUTIONS)
    exact_places: tuple[float, float] = measured((-2.4, 3.0), "1", "Windows of one place, f32 without tensor cores.", _CONVOLUTIONS)
    channel_tap: tuple[float, float] = measured((0.15, 0.5), "1", "Each channel by itself, for every element of its window.", _CONVOLUTIONS)
    turned: tuple[float, float] = measured(
        (-2.5, -4.0), "1", "Each channel by itself, where calls turn the tensors because cuDNN's kernels are slower.",
        "one H200: windows that are not square take 3 times as long as torch's row-major kernels, gradients of f32 in large windows 2.4")
    large_window: int = measured(25, "elements", "Window beyond which gradients of f32 channels are turned.", _CONVOLUTIONS)
    turned_by_kernel: float = measured(2.0, "1", "An image that a kernel of its own turns is read and written.", "count of accesses")
    least_us: float = measured(6.0, "us", "Least gain or loss of a call of little data.", _CONVOLUTIONS)
    gathered: tuple[tuple[int, float], ...] = measured(
        ((128, 2.8), (1 << 62, 1.6)), "(channels, 1)",
        "Windows of several places on tensor cores that share no element: time over that of the product of padded channels, by the most "
        "channels of the image.",
        _GATHERED.format("3 channels 2.9 to 10 (16 x 16: 447 us beside 72), 8 to 96 channels 1.9 to 5.1, 192 and more 1.6 to 2.9; tf32 "
                         "1.7 to 6.9; gradients 1.7 to 23"))
    exact_gathered: float = measured(
        1.0, "1", "The same without tensor cores: the least that was seen.", _GATHERED.format("3 channels f32, 16 x 16: 2.0"))
    host_reordered_weight: float = measured(4.0, "1", "On a host, weights that torch brings into blocks at every call.", _HOST)
    host_places: float = measured(
        1.3, "1", "On a host, operand and result of windows of one place, which torch leaves to an older implementation.", _HOST)
    host_turned_image: float = measured(6.5, "1", "On a host, an image turned between row-major and channels last.", _HOST)
