"""Memory layout of every value, decided before patterns are formed.

Convolutions on tensor cores want channels last: their constant weights are packed so once, their results come out so, and the elementwise
operators, poolings and residual sums behind them store what they give in the layout of what they read. A layout copy can so only occur
where a fixed layout is met: at an argument, at a result, at a library call that wants another.

    x NCHW -> conv -> relu -> pool -> conv -> y           x NCHW -> conv* -> relu* -> pool* -> conv* -> y NCHW       (* channels last)
"""
from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Set
from dataclasses import replace

from tilefuse.base.options import Options
from tilefuse.domain.tile import Layouts
from tilefuse.ir.affine import Affine, axis, linearise, row_major_strides
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.graph import Graph, Node, Type, library_call_key
from tilefuse.ir.names import free_name
from tilefuse.ir.scalar import Read, cast, walk
from tilefuse.plan.rewrites.convolution_layouts import (
    TENSOR_CORE_DTYPES,
    WEIGHT_OPERAND,
    gains_by_packed_weights,
    has_tensor_cores,
    is_faster_channels_last,
)
from tilefuse.plan.rewrites.views import as_view, strides_of
from tilefuse.target.device import DeviceSpec

# Strides that a library operator gives its result, for operands of these strides; None: not known, dense row-major is asked for.
LibraryLayout = Callable[[Node, tuple[Type, ...], tuple[tuple[int, ...], ...]], tuple[int, ...] | None]


def channels_last_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor N, C, spatial... whose channels are neighbours in memory. Units: elements.

    Shapes: shape: [N, C, D1, ...] of rank 3 to 5.
    """
    order = (0, *range(2, len(shape)), 1)
    dense = row_major_strides(tuple(shape[d] for d in order))
    strides = [0] * len(shape)
    for place, d in enumerate(order):
        strides[d] = dense[place]
    return tuple(strides)


def is_channels_last(strides: tuple[int, ...] | None, shape: tuple[int, ...]) -> bool:
    """Whether the strides are those of channels last, and of no dense row-major tensor as well."""
    if strides is None or len(shape) not in (4, 5):
        return False
    wanted = channels_last_strides(shape)
    same = all(n == 1 or a == b for a, b, n in zip(strides, wanted, shape, strict=True))
    return same and any(n > 1 and a != b for a, b, n in zip(wanted, row_major_strides(shape), shape, strict=True))


def allows_channels_last(graph: Graph, device: DeviceSpec, options: Options, given: Layouts | None = None, wanted: Layouts | None = None,
                         free: Set[str] = frozenset()) -> bool:
    """Whether layouts may be changed for convolutions: by default where the library that runs them is faster so, by more than it takes to
    turn what comes from the caller and goes to it. given, wanted, free: as of `plan_layouts`."""
    if options.channels_last != "auto":
        return options.channels_last == "always"
    if device.kind != "cuda":
        return gains_by_packed_weights(graph, device)
    return is_faster_channels_last(graph, device, _turned_alone(graph, device, given or {}, wanted or {}, free))


def _turned_alone(graph: Graph, device: DeviceSpec, given: Layouts, wanted: Layouts, free: Set[str]) -> list[str]:
    """Images that kernels would have to turn that do nothing else: row-major ones that calls read from the caller, or give to it."""
    inputs = {i.name for i in graph.inputs if not i.constant} & _images_of_calls(graph, device)
    calls = [n for n in graph.nodes if n.kind == "library.convolution" and packing_pays(graph, n, device) and _changes(n.type.shape)]
    results = {n.name for n in calls} & graph.escaping - free
    return [*sorted(v for v in inputs if v not in given or not is_channels_last(given[v], graph.type_of(v).shape)),
            *sorted(v for v in results if not is_channels_last(wanted.get(v), graph.type_of(v).shape))]


def with_packed_weights(graph: Graph, given: Layouts, device: DeviceSpec, options: Options, free: Set[str] = frozenset(),
                        wanted: Layouts | None = None) -> Graph:
    """The graph with a copy of each convolution weight that is an argument or a view, packed where the convolution is faster for it.

        conv(%x, %w)           ->   %w_packed = map { %w }   conv(%x, %w_packed)             (%w_packed: channels last)
        %d = conv_backward()   ->   %d_packed = conv_backward()   %d = map { %d_packed }     (%d: a result, row-major)

    So are images that are arguments: torch's strided copy takes twice as long as our kernel, and each of several calls would turn them.
    And results that the caller wants row-major, of convolutions as of their gradients: cuDNN would turn them in a kernel of its own.
    Source: H200, f32 images [128, 64, 256, 256] turned by torch 2261 us, by a kernel 1026; [64, 64, 56, 56] through a 3x3 convolution with
    both turned by cuDNN 134 us, by kernels 119.

    Constants are packed when the program is built instead, and computed weights are stored packed by the kernel that makes them; that of a
    normalised weight which was reshaped makes the copy.
    Gradients that torch wants row-major are unpacked by a kernel: torch's own strided copy takes several times as long.
    free: results whose layout is ours to choose; wanted: strides of results.
    """
    if not allows_channels_last(graph, device, options, given, wanted, free):
        return graph
    inputs = {i.name for i in graph.inputs if not i.constant and i.name not in given}
    fixed = graph.escaping - free
    turned = inputs | {n.name for n in graph.nodes if not _is_computed(n)}
    images = inputs & _images_of_calls(graph, device)
    packed: dict[str, str] = {}
    nodes: list[Node] = []
    taken = set(graph.type_by_name)
    for node in graph.nodes:
        place = WEIGHT_OPERAND.get(node.kind)
        if place is None or not packing_pays(graph, node, device):
            nodes.append(node)
            continue
        for value in node.operands[place - 1:place + 1]:
            if value in (turned if value == node.operands[place] else images) and value not in packed:
                packed[value] = free_name(f"{value}_packed", taken)
                nodes.append(_copy(packed[value], value, graph.type_of(value)))
        node = replace(node, operands=tuple(packed.get(v, v) for v in node.operands))
        unpacked = not is_channels_last((wanted or {}).get(node.name), node.type.shape) and _changes(node.type.shape)
        if node.name in fixed and unpacked:
            name = free_name(f"{node.name}_packed", taken)
            nodes += [replace(node, name=name), _copy(node.name, name, node.type)]
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes)) if len(nodes) > len(graph.nodes) else graph


def _images_of_calls(graph: Graph, device: DeviceSpec) -> set[str]:
    """Images that calls read beside a weight that lies channels last."""
    read = {n.operands[WEIGHT_OPERAND[n.kind] - 1] for n in graph.nodes if n.kind in WEIGHT_OPERAND and packing_pays(graph, n, device)}
    return {v for v in read if _changes(graph.type_of(v).shape)}


def _copy(name: str, value: str, type_: Type) -> Node:
    axes = axis_names(len(type_.shape))
    # A plain read would be a view. A conversion to the type that it has already is a copy like any other kernel's.
    body = cast(Read(value, tuple(map(axis, axes))), type_.dtype)
    return Node(name, type_, "map", axes, body=body)


def packing_pays(graph: Graph, node: Node, device: DeviceSpec) -> bool:
    """Whether a convolution whose weight must be packed at every call is faster channels last: always on tensor cores.

    Source: on an H200 cuDNN's tensor-core kernels read channels last only; a row-major fp16 call converts operand, weight and result
    itself, so that packing the weight moves what would be moved anyway (ResNet-50, batch 1: 54 such conversions took 154 of 565 us).
    """
    return has_tensor_cores(node, device) and _changes(graph.type_of(node.operands[WEIGHT_OPERAND[node.kind]]).shape)


def _changes(shape: tuple[int, ...]) -> bool:
    """Whether channels last differs from row-major for a tensor of this shape."""
    return len(shape) in (4, 5) and is_channels_last(channels_last_strides(shape), shape)


def plan_layouts(graph: Graph, given: Layouts, wanted: Layouts, device: DeviceSpec, options: Options,
                 library_layout: LibraryLayout | None = None, free: Set[str] = frozenset()) -> dict[str, tuple[int, ...]]:
    """Strides of all values that are not dense row-major.

    given: strides of inputs; wanted: strides of results (a result that is missing is dense row-major); free: results whose strides
    are ours to choose: they are as wanted only where nothing speaks for channels last.
    Units: elements.
    """
    layouts: dict[str, tuple[int, ...]] = {v: s for v, s in given.items() if s != row_major_strides(graph.type_of(v).shape)}
    fixed = _fixed(graph, given, wanted, layouts, free) - (free - {v for _, v in graph.updates} - set(given))
    turns = allows_channels_last(graph, device, options, given, wanted, free)
    if turns:
        _pack_weights(graph, fixed, layouts)
    images, pulled = (_images(graph, layouts), _pulled(graph)) if turns else (set(), {})
    convolves = turns and any(n.kind in WEIGHT_OPERAND for n in graph.nodes)
    for node in graph.nodes:
        if node.name in fixed:
            continue
        if node.category == "library":
            strides = _of_library(graph, node, ChainMap(_operand_views(graph, node, layouts), layouts), library_layout)
        else:
            strides = _followed(graph, node, layouts, convolves)
        if node.name in pulled:
            # torch turns a gradient that does not lie as the call's own operands do.
            last = any(is_channels_last(layouts.get(v), graph.type_of(v).shape) for v in pulled[node.name])
            strides = channels_last_strides(node.type.shape) if last and _changes(node.type.shape) else None
        if strides is None and node.name in images:
            strides = channels_last_strides(node.type.shape)
        if strides is None and node.name in free:
            strides = wanted.get(node.name)
        if strides is not None and strides != row_major_strides(node.type.shape):
            layouts[node.name] = strides
    return layouts


def _fixed(graph: Graph, given: Layouts, wanted: Layouts, layouts: dict[str, tuple[int, ...]], free: Set[str]) -> set[str]:
    """Values whose layout is not ours to choose; those that are not dense row-major are entered into `layouts`."""
    fixed = {i.name for i in graph.inputs if not i.constant} | set(given)
    for result in graph.results:
        if result not in fixed:
            fixed.add(result)
            if result not in free and result in wanted and wanted[result] != row_major_strides(graph.type_of(result).shape):
                layouts[result] = wanted[result]
    for target, value in graph.updates:
        if value not in fixed:
            # In the layout of the input that it updates, it can be written there in place.
            fixed.add(value)
            if target in layouts:
                layouts[value] = layouts[target]
    return fixed


def _pack_weights(graph: Graph, fixed: set[str], layouts: dict[str, tuple[int, ...]]) -> None:
    """Enters the layout of convolution weights that are constants or come from a kernel of their own (a conversion, a packing)."""
    for node in graph.nodes:
        place = WEIGHT_OPERAND.get(node.kind)
        if place is None or node.name in fixed and not is_channels_last(layouts.get(node.name), node.type.shape):
            continue
        weight = node.operands[place]
        shape = graph.type_of(weight).shape
        maker = graph.node_by_name.get(weight)
        computed = maker is not None and _is_computed(maker)
        free = weight not in fixed and (maker is None or computed)
        if node.type.dtype.name in TENSOR_CORE_DTYPES and free and weight not in layouts and _changes(shape):
            layouts[weight] = channels_last_strides(shape)
            fixed.add(weight)


def _images(graph: Graph, layouts: Mapping[str, tuple[int, ...]]) -> set[str]:
    """Values that kernels compute for convolutions whose weight lies channels last, and for nobody else: these would turn it otherwise.

    Windows that are reduced only where several calls would: a kernel reads what lies row-major slowly in another order.
    """
    found: set[str] = set()
    for node in graph.nodes:
        place = WEIGHT_OPERAND.get(node.kind)
        if place is None or not is_channels_last(layouts.get(node.operands[place]), graph.type_of(node.operands[place]).shape):
            continue
        maker = graph.node_by_name.get(node.operands[place - 1])
        if maker is not None and (_is_computed(maker) or maker.category == "reduce") and _changes(maker.type.shape):
            found.add(maker.name)

    def is_for_calls(value: str) -> bool:
        users = [graph.node_by_name[u] for u in graph.users_by_name[value]]
        several = len({library_call_key(u) for u in users}) > 1 or graph.node_by_name[value].category == "map"
        return several and all(u.kind in WEIGHT_OPERAND for u in users)

    return {v for v in found if is_for_calls(v)}


def _pulled(graph: Graph) -> dict[str, tuple[str, str]]:
    """Gradients that kernels compute for one gradient of a convolution alone, each with that call's operand and weight."""
    found: dict[str, tuple[str, str]] = {}
    for node in graph.nodes:
        if node.kind == "library.convolution_backward" and len(node.type.shape) in (4, 5):
            grad, x, weight = node.operands[:3]
            maker = graph.node_by_name.get(grad)
            users = [graph.node_by_name[u] for u in graph.users_by_name[grad]]
            if maker is not None and _is_computed(maker) and len({library_call_key(u) for u in users if u.category == "library"}) == 1:
                found[grad] = x, weight
    return found


def _is_computed(node: Node) -> bool:
    """Whether a kernel makes the value: a map that is no mere view."""
    return node.category == "map" and not isinstance(node.body, Read)


def _of_library(graph: Graph, node: Node, layouts: Mapping[str, tuple[int, ...]],
                library_layout: LibraryLayout | None) -> tuple[int, ...] | None:
    if node.detail == "convolution":
        # torch gives channels last where the tensor or the weight is so; a 1x1 weight is both, then the tensor decides.
        if any(is_channels_last(layouts.get(v), graph.type_of(v).shape) for v in node.operands[:2]):
            return channels_last_strides(node.type.shape)
        return None
    if node.detail == "convolution_backward":
        # The same for gradients of operand and weight, whatever the incoming gradient's layout is (torch would copy that one).
        _, x, weight = node.operands[:3]
        if len(node.type.shape) in (4, 5) and any(is_channels_last(layouts.get(v), graph.type_of(v).shape) for v in (x, weight)):
            return channels_last_strides(node.type.shape)
        return None
    if library_layout is None:
        return None
    types = tuple(graph.type_of(v) for v in node.operands)
    return library_layout(node, types, tuple(strides_of(graph, layouts, v) for v in node.operands))


def _operand_views(graph: Graph, node: Node, layouts: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Strides of operands that will be views: the library sees those, and answers with a layout that suits them."""
    found: dict[str, tuple[int, ...]] = {}
    for value in node.operands:
        maker = graph.node_by_name.get(value)
        if maker is not None and isinstance(maker.body, Read) and value not in layouts:
            view = as_view(graph, maker, strides_of(graph, layouts, maker.body.value))
            if view is not None:
                found[value] = view.strides
    return found


def _followed(graph: Graph, node: Node, layouts: Mapping[str, tuple[int, ...]], convolves: bool) -> tuple[int, ...] | None:
    """Channels last where at least half of the bytes that the node reads dimension by dimension lie so.

    convolves: beside convolutions, what lies so although it is no image (tokens) counts as well.
    """
    rank = len(node.type.shape)
    if node.body is None or rank not in (4, 5) or node.category not in ("map", "reduce"):
        return None
    lies: dict[str, bool] = {}
    for e in walk(node.body):
        if isinstance(e, Read) and graph.type_of(e.value).num_elements > 1:
            if _aligned(e.index, node.axes):
                lies[e.value] = is_channels_last(layouts.get(e.value), graph.type_of(e.value).shape)
            elif convolves and _is_turned(linearise(e.index, strides_of(graph, layouts, e.value)), node):
                lies.setdefault(e.value, True)
    votes = {last: sum(graph.type_of(v).num_bytes for v, is_last in lies.items() if is_last is last) for last in (True, False)}
    # A value without a layout of its own (a gradient spread over an image) is row-major: an even vote goes to what convolutions want.
    return channels_last_strides(node.type.shape) if votes[True] and votes[True] >= votes[False] else None


def _is_turned(offset: Affine, node: Node) -> bool:
    """Whether a value that is read at `offset` lies as the result would channels last: tokens that are read as an image."""
    strides = tuple(offset.coefficient(a) for a in node.axes)
    return offset.is_linear and not offset.const and is_channels_last(strides, node.type.shape)


def _aligned(index: tuple[Affine, ...], axes: tuple[str, ...]) -> bool:
    """Whether dimension d of what is read follows dimension d of the result (windows and steps included), as in poolings."""
    if len(index) != len(axes):
        return False
    kept = set(axes)
    return all(e.axes() & kept <= {a} for e, a in zip(index, axes, strict=True)) and any(e.axes() & kept for e in index)

