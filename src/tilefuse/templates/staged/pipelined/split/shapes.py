"""Inner axes in parts: which numbers of parts a product's tiles may have, and those that are tried.

    tiles that a device has few of       24 tiles of 64 x 64 for 132 multiprocessors    ->  4 parts each: 96 blocks at work
"""
from __future__ import annotations

from collections.abc import Iterator

from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.pipelined.form import ProductForm
from tilefuse.templates.staged.pipelined.record import Pipelined


def cluster_sizes(device: DeviceSpec) -> tuple[int, ...]:
    """Blocks a cluster that are tried, ascending: powers of two, which divide the parts of most inner axes."""
    return tuple(1 << n for n in range(device.max_cluster_blocks.bit_length()))


def split_shapes(inner: int, whole: Pipelined, tiles: int, device: DeviceSpec) -> Iterator[Pipelined]:
    """The same tiles with their inner axis in parts, all of which run at once. tiles: their number."""
    fillings = -(-inner // whole.depth)
    for cluster in cluster_sizes(device):
        most = min(device.clusters_at_once(cluster) // tiles, -(-fillings // cluster))
        tried: set[int] = set()
        while most:
            each = -(-fillings // (cluster * most))
            # Fewer parts may take as many steps.
            parts = -(-fillings // each // cluster) * cluster
            if parts > 1 and parts not in tried and _none_empty(inner, parts, whole.depth):
                tried.add(parts)
                yield whole.in_parts(parts, cluster, tiles * parts)
            most //= 2


def _none_empty(inner: int, split: int, depth: int) -> bool:
    """Whether each part of the inner axis has elements. depth: those of a filling."""
    return (split - 1) * -(-inner // depth // split) * depth < inner


def split_rules(form: ProductForm, choice: Pipelined) -> tuple[tuple[bool, str], ...]:
    """(whether it holds, the problem else) of each rule of inner axes in parts."""
    split = choice.split
    if split <= 1:
        return ((split == 1, f"an inner axis in {split} parts"),)
    return ((not choice.pingpong, f"{split} blocks finish a tile together, and warpgroups that take turns do not meet"),
            (choice.cluster == 1 or not form.reduced.stages,
             f"reductions of rows need whole sums in one block, and {choice.cluster} blocks of a cluster finish some columns each"),
            (split % choice.cluster == 0, f"{split} parts of the inner axis are no whole clusters of {choice.cluster}"),
            (_none_empty(form.inner, split, choice.depth),
             f"{split} parts of an inner axis of {form.inner}, in steps of {choice.depth}: some would be empty"))
