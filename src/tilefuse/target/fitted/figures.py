"""All fitted figures of a device in one record, a group for each reader."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.attention import AttentionFigures
from tilefuse.target.fitted.calls import CallFigures, ConvolutionFigures, LongProductFigures, ProductFigures, UnalignedFigures
from tilefuse.target.fitted.chains import ChainFigures
from tilefuse.target.fitted.endings import EndingFigures
from tilefuse.target.fitted.evidence import NO_RECORD, measured
from tilefuse.target.fitted.pipelined_walks import WalkFigures
from tilefuse.target.fitted.pipelines import H100PipelinedFigures, PipelinedFigures
from tilefuse.target.fitted.power import H100PowerFigures, PowerFigures
from tilefuse.target.fitted.rows import KeptFigures, RowFigures
from tilefuse.target.fitted.scripts import FlightFigures, ScriptFigures
from tilefuse.target.fitted.stages import OnlineFigures, PackedFigures, StitchFigures
from tilefuse.target.fitted.starts import StartFigures
from tilefuse.target.fitted.tasks import TaskFigures
from tilefuse.target.fitted.waits import WaitFigures
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
class RecomputationFigures:
    """Maps that are computed again in each kernel that reads them."""

    light_flops: int = measured(
        8, "operations an element", "Most operations of maps that are always computed again: memory-bound kernels stay memory-bound.",
        "one H200 does 12 operations in the time of one byte", "tilefuse calibrate")
    map_flops: int = measured(
        64, "operations an element", "Most operations of maps that the cost model may have computed again in several kernels.", NO_RECORD)
    guard_flops: int = measured(
        4, "operations", "A choice between parts of a concatenation: a comparison and a branch that a thread's loads wait for.",
        "one H200, 20 steps of a recurrence stacked and computed again in a sum down the rows: 300 us instead of 5")


@dataclass(frozen=True, slots=True)
class FittedFigures:
    """Fitted numbers of templates, planner and scripts. Defaults are those of one H200; other devices take them over until measured."""

    cost: CostFigures = CostFigures()
    recomputation: RecomputationFigures = RecomputationFigures()
    flat: FlatFigures = FlatFigures()
    kept: KeptFigures = KeptFigures()
    rows: RowFigures = RowFigures()
    columns: ColumnFigures = ColumnFigures()
    traffic: TrafficFigures = TrafficFigures()
    stitch: StitchFigures = StitchFigures()
    online: OnlineFigures = OnlineFigures()
    packed: PackedFigures = PackedFigures()
    tasks: TaskFigures = TaskFigures()
    pipelined: PipelinedFigures = PipelinedFigures()
    power: PowerFigures = PowerFigures()
    attention: AttentionFigures = AttentionFigures()
    chains: ChainFigures = ChainFigures()
    walks: WalkFigures = WalkFigures()
    products: ProductFigures = ProductFigures()
    calls: CallFigures = CallFigures()
    unaligned: UnalignedFigures = UnalignedFigures()
    long_products: LongProductFigures = LongProductFigures()
    convolutions: ConvolutionFigures = ConvolutionFigures()
    flight: FlightFigures = FlightFigures()
    endings: EndingFigures = EndingFigures()
    starts: StartFigures = StartFigures()
    waits: WaitFigures = WaitFigures()
    scripts: ScriptFigures = ScriptFigures()


H200_FIGURES = FittedFigures()
H100_FIGURES = FittedFigures(power=H100PowerFigures(), pipelined=H100PipelinedFigures())
