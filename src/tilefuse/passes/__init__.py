"""Floor 3: rewritings of the graph, each with a declared contract, put in order by a pipeline text."""
from tilefuse.passes import (
    checkers,
    choices,
    cleanup,
    decompose,
    empty,
    fold,
    index_ranges,
    joined_columns,
    precision,
    products,
    repeated_maxima,
    select_one,
    separate_fills,
    separate_updates,
    simplify_index,
    simplify_scalar,
    sliced_products,
    summed_products,
    update_order,
    views,
)
from tilefuse.passes.device import (
    channel_sums,
    channel_windows,
    convolution_biases,
    long_products,
    long_scans,
    packed_weights,
    padded_products,
    transformed_convolutions,
    window_products,
)
from tilefuse.passes.manager import PASSES, DevicePass, Pass, PassContext, PassRecord, Pipeline, Property, register_pass

# Composites first, so that all later passes see reductions and maps. Views before constants and equal nodes, because folded views make more
# nodes equal. Products are joined after their operands are read through views. The second round of views and scalar rules simplifies the
# results of folding and joining.
DEFAULT_PIPELINE = (
    "decompose,remove-dead-nodes,inline-views,simplify-index,simplify-scalar,write-out-choices,fold-constants,merge-summed-products,"
    "merge-sliced-products,inline-views,simplify-index,simplify-scalar,reuse-maxima,split-joined-columns,prove-indices,select-by-lookup,"
    "merge-equal-nodes,bind-empty-values,remove-dead-nodes"
)

# Modules that register passes, and the checkers of their properties.
MODULES = (checkers, choices, cleanup, decompose, empty, fold, index_ranges, joined_columns, precision, products, repeated_maxima,
           select_one, separate_fills, separate_updates, simplify_index, simplify_scalar, sliced_products, summed_products, update_order,
           views, channel_sums, channel_windows, convolution_biases, long_products, long_scans, packed_weights, padded_products,
           transformed_convolutions, window_products)

__all__ = ["DEFAULT_PIPELINE", "PASSES", "DevicePass", "Pass", "PassContext", "PassRecord", "Pipeline", "Property", "register_pass"]
