"""The order of passes of a compile: normal form, then the device's passes, then layouts; and the context in which they run.

    tilefuse.passes.DEFAULT_PIPELINE   normal form, whatever the device         the option `passes` replaces it
    DEVICE_PIPELINE                    what plans for a device start from       the option `device_passes` replaces it

Passes of higher rooms are registered by the modules of `MODULES`: those that need facts of templates or of plans.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from tilefuse.base.errors import OptionError, nearest
from tilefuse.base.options import Options
from tilefuse.driver.executor import executor_of
from tilefuse.driver.lowering.product_precision import stated_precision
from tilefuse.driver.reuse.known_judgements import judgements
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.passes import DEFAULT_PIPELINE
from tilefuse.passes.device.packed_weights import PackConvolutionWeights
from tilefuse.passes.device.transformed_convolutions import TransformConvolutions
from tilefuse.passes.device.window_products import MultiplyWindows
from tilefuse.passes.facts import CallerLayouts, LibraryLayout, PlannedLayouts
from tilefuse.passes.manager import DevicePass, Pass, PassContext, Pipeline, Property
from tilefuse.passes.precision import StatePrecision
from tilefuse.plan.price.predictions import Predictions
from tilefuse.plan.rewrites import (
    attention,
    called_products,
    column_sums,
    cross,
    layout,
    mask_bounds,
    narrow_products,
    partial_rows,
    scattered_sums,
)
from tilefuse.plan.rewrites.layout import PlanLayouts
from tilefuse.target.device import DeviceSpec

# Updates and fills first, so that later copies of results see them. Sums and attention become products before the passes for products.
# Precision before all passes that ask for the price of a product. Convolutions over transformed tiles, before windows become products of
# windows. Windows become products before products are padded, and rows of products
# are reduced while these are whole. Scans before sums and products, whose pieces may be scanned. Padding sees the pieces of long products.
# Weights are packed after the last rewriting that creates calls. Layouts are planned in the final order of the nodes; the last two
# rewritings read and change them.
DEVICE_PIPELINE = (
    "separate-updates,separate-fills,call-products,expand-attention,bound-masks,state-precision,transform-convolutions,multiply-windows,reduce-scatters,reduce-product-rows,split-long-scans,"
    "split-cross-reductions,sum-product-columns,split-long-products,narrow-products,pad-products,split-convolution-biases,pack-convolution-weights,order-updates,plan-layouts,sum-channel-windows,split-channel-sums,"
    "plan-layouts"
)
MODULES = (attention, called_products, partial_rows, cross, column_sums, layout, mask_bounds, narrow_products, scattered_sums)
# Attributes of graphs with kernels. Passes that provide or read them belong to `apply_passes`, never to the order of a compile.
OF_KERNELS = frozenset({"subgraph", "kernel", "rtc"})


def normal_pipeline(options: Options) -> Pipeline:
    """The passes that bring a graph into normal form. Raises: OptionError for an unknown pass, or one that makes kernels."""
    return _without_kernels("passes", Pipeline.parse(options.passes or DEFAULT_PIPELINE))


def device_pipeline(options: Options) -> Pipeline:
    """The passes after normal form, each with the options of the compile as its own.

    Raises: OptionError for an unknown pass, one that makes kernels, and an order from which no plan can start.
    """
    if options.device_passes:
        return _checked(_without_kernels("device_passes", Pipeline.parse(options.device_passes)))
    items = [_set(item, options) for item in Pipeline.parse(DEVICE_PIPELINE).passes]
    items_used = [item for item in items if options.fuse or not (isinstance(item, DevicePass) and item.for_fusion)]
    # Where no pass rewrites in between, layouts are planned once.
    return Pipeline(tuple(item for item, before in zip(items_used, [None, *items_used]) if item != before))


def _set(item: Pass, options: Options) -> Pass:
    match item:
        case StatePrecision():
            return stated_precision(options.float32_products)
        case attention.ExpandAttention():
            return replace(item, gradients=options.attention_gradients)
        case TransformConvolutions():
            return replace(item, winograd=options.winograd, groups=options.tile_groups,
                           products=stated_precision(options.float32_products).products, channels_last=options.channels_last)
        case PackConvolutionWeights() | MultiplyWindows() | PlanLayouts():
            return replace(item, channels_last=options.channels_last)
    return item


def over_kernels(pipeline: Pipeline) -> list[str]:
    """Names of the passes that generate kernels or read their attributes."""
    return [item.name for item in pipeline.passes if not OF_KERNELS.isdisjoint((*item.provides, *item.depends))]


def _without_kernels(option: str, pipeline: Pipeline) -> Pipeline:
    for name in over_kernels(pipeline):
        raise OptionError(f"{option}: the pass {name} is for graphs with kernels, which are made after all of these passes",
                          hint="tilefuse.apply_passes takes it")
    return pipeline


def _checked(pipeline: Pipeline) -> Pipeline:
    """The pipeline itself. Raises: OptionError where planning could not start from its graphs."""
    if Property.UPDATES_SEPARATE not in pipeline.check():
        raise OptionError(f"device_passes={str(pipeline)!r} do not keep updated inputs apart from results",
                          hint="begin with separate-updates, and use passes behind it that preserve updates-separate")
    return pipeline


def run_passes(graph: Graph, ctx: PassContext, options: Options) -> Graph:
    """The graph in normal form, then ready for planning on the context's device; its layouts are in the context.

    A pass named by `options.stop_after` is the last one of its pipeline that runs; layouts are planned even so.
    Raises: OptionError for a wrong pipeline and where the pass to stop after is in none; as `Pipeline.run`.
    """
    pipelines = (normal_pipeline(options), device_pipeline(options))
    names = [item.name for pipeline in pipelines for item in pipeline.passes]
    if options.stop_after and options.stop_after not in names:
        raise OptionError(f"stop_after={options.stop_after!r} is no pass of {pipelines[0]},{pipelines[1]}",
                          hint=nearest(options.stop_after, names))
    for pipeline in pipelines:
        ctx.stop_after = options.stop_after if any(item.name == options.stop_after for item in pipeline.passes) else ""
        graph = pipeline.run(graph, ctx)
    ctx.stop_after = ""
    known = ctx.attributes.get("layouts")
    if not isinstance(known, PlannedLayouts) or known.graph is not graph:
        graph = Pipeline((PlanLayouts(options.channels_last),)).run(graph, ctx)
    return graph


def order_text(options: Options) -> str:
    """The text of all passes of a compile, in order."""
    return f"{normal_pipeline(options)},{device_pipeline(options)}"


def context_of(device: DeviceSpec, options: Options, *, constants: Mapping[str, object] | None = None,
               caller: CallerLayouts | None = None, place: str = "") -> PassContext:
    """The context of passes of one compile: its device, and the prices from which plans for it are made.

    constants: data of constant inputs. caller: strides of inputs and results. place: the executor's name, "" for a device that need not be
    present.
    """
    place_of_calls = "cuda" if executor_of(device, options).kind == "cuda" else "cpu"
    return PassContext(verify=options.verify, eager_rounding=options.eager_rounding, constants=dict(constants or {}), device=device,
                       prices=Predictions(device, partial(judgements, device)), call_layout=AskedLayouts(place_of_calls),
                       caller=caller or CallerLayouts(), options=options, place=place)


class AskedLayouts:
    """Strides that library operators give their results, as reported by torch, which is imported at the first question. place: torch's name
    of the device that calls run on."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._answers: LibraryLayout | None = None

    def __call__(self, node: Node, types: tuple[Type, ...], strides: tuple[tuple[int, ...], ...]) -> tuple[int, ...] | None:
        """Strides of a node's result, for operands of these types and strides; None where they are unknown."""
        if self._answers is None:
            from tilefuse.driver.lowering import library_layouts

            self._answers = library_layouts.LibraryLayouts(self._place)
        return self._answers(node, types, strides)
