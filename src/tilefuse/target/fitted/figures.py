"""All fitted figures of a device in one record, a group for each reader."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.calls import ConvolutionFigures, LongProductFigures, ProductFigures, UnalignedFigures
from tilefuse.target.fitted.evidence import measured
from tilefuse.target.fitted.stages import OnlineFigures, PackedFigures, StitchFigures
from tilefuse.target.fitted.walks import ColumnFigures, FlatFigures, TrafficFigures


@dataclass(frozen=True, slots=True)
class CostFigures:
    """The analytic cost model."""

    loads_bytes: int = measured(
        64, "bytes a thread", "Most bytes that one thread has in flight: four vectors of 16 bytes.",
        "the copy that measured DeviceSpec.saturating_bytes", "tilefuse calibrate")
    resolution: float = measured(
        0.02, "1", "Spread of the transfer curve between two measurements: smaller relative differences decide nothing that costs work.",
        "one H200, two calibrations", "tilefuse calibrate")


@dataclass(frozen=True, slots=True)
class FittedFigures:
    """Fitted numbers that templates and planner read. The defaults were fitted on one H200; other devices take them over until measured."""

    cost: CostFigures = CostFigures()
    flat: FlatFigures = FlatFigures()
    columns: ColumnFigures = ColumnFigures()
    traffic: TrafficFigures = TrafficFigures()
    stitch: StitchFigures = StitchFigures()
    online: OnlineFigures = OnlineFigures()
    packed: PackedFigures = PackedFigures()
    products: ProductFigures = ProductFigures()
    unaligned: UnalignedFigures = UnalignedFigures()
    long_products: LongProductFigures = LongProductFigures()
    convolutions: ConvolutionFigures = ConvolutionFigures()


H200_FIGURES = FittedFigures()
