"""Attention calls become their definition where one kernel for it is predicted faster than the library's.

    %y = library.attention (%q, %k, %v)      ->      %s = library.matmul (%q, %k)
                                                     softmax of its scaled, masked rows
                                                     %y = library.matmul (%p, %v)

The definition is planned like any other: a kernel that walks the keys holds it, with the maps before and behind it. Calls whose logarithms
are kept for a gradient have definitions with logarithms, unless the option `attention_gradients` leaves gradients to the library.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilefuse.ir.affine import axis
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BOOL, F32
from tilefuse.ir.graph import Graph, Input, Node
from tilefuse.ir.library.attention_call import AttentionCall, attention_call, others_of
from tilefuse.ir.names import free_name
from tilefuse.ir.scalar import Bound, Expr, Guard, Index, Read, call, const
from tilefuse.passes import DEFAULT_PIPELINE
from tilefuse.passes.choosing import ChoosingPass
from tilefuse.passes.device.long_products import without_unused
from tilefuse.passes.facts import Prices
from tilefuse.passes.manager import PassContext, Pipeline, Properties, Property, register_pass
from tilefuse.plan.rewrites.attention_gradient import gradient_choices, with_definitions
from tilefuse.plan.rewrites.mask_bounds import bounded_masks
from tilefuse.plan.rewrites.own_masks import all_maps_behind, maps_behind, with_own_masks, without_unread
from tilefuse.plan.rewrites.renamed import with_names
from tilefuse.plan.walks import find_walks
from tilefuse.target.device import DeviceSpec


@register_pass
@dataclass(frozen=True)
class ExpandAttention(ChoosingPass):
    """Turn attention calls into products with a softmax between them where one kernel for these is predicted faster.

    gradients: as the option `attention_gradients`; where they stay calls, explanations have the kernels' predicted time too

    Exact: no; the library's kernels add and scale in another order too.
    """

    name: ClassVar[str] = "expand-attention"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY, Property.UPDATES_SEPARATE, Property.FILLS_SEPARATE})
    exact: ClassVar[bool] = False
    asks_prices: ClassVar[bool] = True
    for_fusion: ClassVar[bool] = True

    gradients: str = "library"

    def rewrite(self, graph: Graph, device: DeviceSpec, ctx: PassContext) -> Graph:
        """The graph with definitions; `graph` itself where no kernel for one is faster."""
        assert ctx.prices is not None
        graph = with_own_masks(graph, device)
        choices = attention_choices(graph, device, ctx.prices, ctx.eager_rounding, self.gradients != "library")
        self.keep(choices, ctx)
        options = replace(ctx.options, eager_rounding=ctx.eager_rounding)
        gradients = gradient_choices(graph, device, ctx.prices, options, ctx.caller.given(graph), self.gradients)
        self.keep(gradients, ctx)
        taken = {c.node.name: c for c in choices if c.is_taken}
        taken_gradients = [c for c in gradients if c.is_taken]
        ctx.count("expanded", len(taken) + len(taken_gradients))
        if not taken and not taken_gradients:
            return graph
        written_out = with_definitions(graph, taken_gradients)
        names = set(written_out.type_by_name)
        nodes: list[Node] = []
        others = {n.name for c in taken.values() for n in c.others}
        for node in written_out.nodes:
            choice = taken.get(node.name)
            nodes += [node] if choice is None and node.name not in others else [] if choice is None else _placed(choice, graph, names)
        of_gradient = (n for c in taken_gradients for n in c.call.gradients if n)
        replaced = (*taken, *of_gradient)
        left = without_unused(replace(graph, nodes=tuple(nodes)), {v for n in replaced for v in graph.node_by_name[n].operands})
        behind = {n.name for c in taken.values() for n in nodes_behind(c.call, c.node, graph)}
        return without_unread(left, behind | {n.name for c in taken_gradients for n in maps_behind(c.call.mask, graph)})


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """An attention call. definition: as of `defined`; None: it stays a call, for the reason `why`. others: as of `defined`.

    Units: microseconds.
    """

    node: Node
    call: AttentionCall
    definition: Graph | None
    kernel_us: float = 0.0
    call_us: float = 0.0
    why: str = ""
    others: tuple[Node, ...] = ()

    @property
    def is_taken(self) -> bool:
        """Whether the definition replaces the call."""
        return self.definition is not None and self.kernel_us < self.call_us

    def text(self) -> str:
        """The choice in a line."""
        if self.definition is None:
            return f"%{self.node.name}: attention by the library; {self.why}"
        taken = "planned by its definition" if self.is_taken else "attention by the library"
        return f"%{self.node.name}: {taken}; predicted {self.kernel_us:.1f} us as one kernel, {self.call_us:.1f} us as a call"


def attention_choices(graph: Graph, device: DeviceSpec, prices: Prices, eager_rounding: bool, for_gradients: bool = False
                      ) -> list[AttentionChoice]:
    """The choice for every attention call, in graph order. for_gradients: also where its logarithms are read."""
    known: dict[object, tuple[Graph, float] | str] = {}
    choices: list[AttentionChoice] = []
    for node in graph.nodes:
        attention = attention_call(node, graph)
        if attention is None:
            continue
        others = tuple(graph.node_by_name[n] for n in others_of(node, graph))
        reason = _why_not(node, others, graph, eager_rounding, for_gradients)
        if reason:
            choices.append(AttentionChoice(node, attention, None, why=reason))
            continue
        behind = nodes_behind(attention, node, graph)
        key = (*(graph.type_of(v) for v in node.operands), attention.scale, attention.causal, attention.hidden_are_zeros,
               *(replace(n, span=None) for n in behind), *((n.attribute("result"), n.type) for n in others))
        if key not in known:
            known[key] = _kernel(attention, behind, others, graph, device, prices, eager_rounding)
        kernel, call_us = known[key], _call_us(node, attention, graph, prices, eager_rounding)
        why = kernel if isinstance(kernel, str) else "" if call_us is not None else "nothing predicts the library's time"
        choices.append(AttentionChoice(node, attention, None, why=why) if isinstance(kernel, str) or call_us is None else
                       AttentionChoice(node, attention, kernel[0], kernel[1], call_us, others=others))
    return choices


def _why_not(node: Node, others: tuple[Node, ...], graph: Graph, eager_rounding: bool, for_gradients: bool) -> str:
    """The reason why the definition differs in meaning from the call; "" where it does not."""
    unknown = [n.name for n in others if not for_gradients or not (_is_logarithms(n, node) or n.type.dtype.is_integer)]
    if unknown:
        return f"%{unknown[0]} of the same call is read too"
    position = {n.name: at for at, n in enumerate(graph.nodes)}
    if any(position[n.name] < position[node.name] for n in others):
        return "another result of the call stands before it"
    return "its definition would be rounded where the library rounds nothing" if eager_rounding else ""


def _is_logarithms(other: Node, node: Node) -> bool:
    """Whether another result of a call has the logarithms of its rows: dense, or padded to whole tiles."""
    *lead, rows, _ = node.type.shape
    shape = list(other.type.shape)
    return other.attribute("result") == 1 and other.type.dtype == F32 and (
        shape == [*lead, rows, 1] or len(shape) == len(lead) + 1 and shape[:-1] == lead and shape[-1] >= rows)


def _call_us(node: Node, attention: AttentionCall, graph: Graph, prices: Prices, eager_rounding: bool) -> float | None:
    """The time of a call, and of the kernels that gather its keys and values from pages. Units: microseconds."""
    us = prices.attention_us(node, graph)
    gathers = dict.fromkeys((_looked_up(attention.key, node, graph), _looked_up(attention.value, node, graph)))
    return None if us is None else us + sum(
        prices.kernel_us(graph, tuple(n.name for n in nodes), eager_rounding, 0) for nodes in gathers if nodes)


def _kernel(attention: AttentionCall, behind: tuple[Node, ...], others: tuple[Node, ...], graph: Graph, device: DeviceSpec, prices: Prices,
            eager_rounding: bool) -> tuple[Graph, float] | str:
    """The definition and the time of one kernel for it, or why there is none. behind: as of `nodes_behind`; others: as of `defined`."""
    definition = defined(attention, behind, graph, others)
    # Padded logarithms, and numbers that nothing draws, have kernels of their own, or none.
    ends = {r for r in definition.results[1:] if not any(n.category == "reduce" for n in definition.nodes if n.name in
                                                         definition.node_by_name[r].reads()) or definition.type_of(r).dtype != F32}
    nodes = tuple(n.name for n in definition.nodes if n.name not in ends)
    if not find_walks(definition, device) or not prices.has_kernel(definition, nodes, {}):
        return "no kernel holds its definition"
    us = prices.kernel_us(definition, nodes, eager_rounding, 0)
    # A mask that reads data may bound the walk, with kernels of its own.
    bounded, _ = bounded_masks(definition, device, prices, eager_rounding) if attention.mask else ([], definition)
    return definition, min((us, *(c.bounded_us + c.summary_us for c in bounded)))


def defined(attention: AttentionCall, behind: tuple[Node, ...], graph: Graph, others: tuple[Node, ...] = ()) -> Graph:
    """The definition as a graph of its own, in normal form.

    others: further results of the call, which follow: logarithms of the rows' sums, padded with infinity; the state of random numbers, of
    which none are drawn: zeros.

    Inputs: q, k, v, and the mask, or the operands of the nodes behind them, with "of_" before their names. behind: as of `nodes_behind`.
    """
    b = TensorBuilder("attention")
    types = {name: graph.type_of(v) for name, v in _operands(attention).items()}
    q, k, v, *mask = (b.input(name, t.dtype, t.shape) for name, t in types.items())
    if attention.group > 1:
        k, v = (b.repeat_interleave(x, attention.group, -3) for x in (k, v))
    scores = b.matmul(q, k, transpose_b=True)
    scores = b.elementwise("mul", scores, b.full((1,) * len(b.shape_of(scores)), attention.scale, b.dtype_of(scores)))
    if mask:
        hidden = b.dtype_of(mask[0]) == BOOL
        lowest = b.full((1,) * len(b.shape_of(scores)), float("-inf"), b.dtype_of(scores))
        scores = b.where(mask[0], scores, lowest) if hidden else b.elementwise("add", scores, b.cast(mask[0], b.dtype_of(scores)))
    if attention.causal:
        scores = _causal(b, scores)
    last = len(b.shape_of(scores)) - 1
    y = b.matmul(b.safe_softmax(scores, last) if attention.hidden_are_zeros else b.softmax(scores, last), v)
    results = [y, *(_other(b, n, scores) for n in others)]
    return Pipeline.parse(DEFAULT_PIPELINE).run(_behind(b.finish(results), attention, behind, graph), PassContext())


def _other(b: TensorBuilder, other: Node, scores: str) -> str:
    """Another result of a call."""
    shape, dtype = other.type.shape, other.type.dtype
    if dtype.is_integer:
        return b.full(shape, 0, dtype)
    rank, rows = len(b.shape_of(scores)), b.shape_of(scores)[-2]
    logarithms = b.logsumexp(b.cast(scores, F32), (rank - 1,), keepdims=len(shape) == rank)
    if b.shape_of(logarithms) == shape:
        return logarithms
    axes = axis_names(len(shape))
    inside = (Bound(axis(axes[-1]), 0, rows),)
    return b.make_map("padded", F32, shape, axes, Guard(inside, Read(logarithms, tuple(map(axis, axes))), const(float("inf"), F32)))


def nodes_behind(attention: AttentionCall, node: Node, graph: Graph) -> tuple[Node, ...]:
    """Nodes whose operands a call's kernel reads in their place, in graph order: the maps that its mask is computed by, as where it is
    broadcast to all heads, and those that gather keys and values from pages for this call alone."""
    names = {n.name: None for v in (attention.key, attention.value) for n in _looked_up(v, node, graph)}
    return tuple(graph.in_order(names | {n.name: None for n in all_maps_behind(attention.mask, graph)}))


def _looked_up(value: str, call: Node, graph: Graph) -> tuple[Node, ...]:
    """The gather of an operand that only a call reads, and the maps behind it that only move its elements; none for other operands."""
    nodes: list[Node] = []
    inside = {call.name}
    while (node := graph.node_by_name.get(value)) is not None and inside.issuperset(graph.users_by_name[value]):
        nodes.append(node)
        inside.add(value)
        if node.category == "gather" and value not in graph.escaping:
            return tuple(reversed(nodes))
        if node.category != "map" or not isinstance(node.body, Read) or value in graph.escaping:
            return ()
        value = node.body.value
    return ()


def _behind(definition: Graph, attention: AttentionCall, behind: tuple[Node, ...], graph: Graph) -> Graph:
    """The definition with the nodes behind its operands."""
    if not behind:
        return definition
    inside = {n.name for n in behind}
    roots = dict.fromkeys(v for n in behind for v in n.reads() if v not in inside)
    name_by_value = {v: f"of_{v}" for v in (*inside, *roots)}
    computed = {name: f"of_{v}" for name, v in _operands(attention).items() if v in inside}
    inputs = tuple(i for i in definition.inputs if i.name not in computed) + tuple(Input(f"of_{v}", graph.type_of(v)) for v in roots)
    nodes = (*(with_names(n, name_by_value) for n in behind), *(with_names(n, computed) for n in definition.nodes))
    return replace(definition, inputs=inputs, nodes=nodes)


def _causal(b: TensorBuilder, scores: str) -> str:
    """Scores with -inf where the column lies behind the row."""
    shape, dtype = b.shape_of(scores), b.dtype_of(scores)
    axes = axis_names(len(shape))
    later: Expr = call("gt", Index(axis(axes[-1])), Index(axis(axes[-2])))
    return b.make_map("causal", dtype, shape, axes, call("select", later, const(float("-inf"), dtype), b.read(scores, shape, axes)))


def _operands(attention: AttentionCall) -> dict[str, str]:
    """Operands by the definition's names of them."""
    operands = {"q": attention.query, "k": attention.key, "v": attention.value}
    return operands | ({"mask": attention.mask} if attention.mask else {})


def _placed(choice: AttentionChoice, graph: Graph, names: set[str]) -> list[Node]:
    """The definition's nodes in place of a call: with its operands, names that are free, and the call's name for the result."""
    node, attention, definition = choice.node, choice.call, choice.definition
    assert definition is not None
    name_by_value = dict(_operands(attention)) | {f"of_{v}": v for n in nodes_behind(attention, node, graph) for v in n.reads()}
    names_by_result: dict[str, list[str]] = {}
    for result, name in zip(definition.results, (node.name, *(n.name for n in choice.others)), strict=True):
        names_by_result.setdefault(result, []).append(name)
    placed: list[Node] = []
    for n in definition.nodes:
        # Equal results are one node of the definition in normal form, as the zeros of a seed and of its offset are.
        for name in names_by_result.get(n.name) or [free_name(f"{node.name}_{n.name}", names)]:
            name_by_value[n.name] = name
            placed.append(replace(with_names(n, name_by_value), span=node.span))
    return placed
