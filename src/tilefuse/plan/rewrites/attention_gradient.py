"""Gradients of attention from the logarithms of its sums, as products with elements between them: two kernels beside the row sums.

    d[r]     = sum of g[r, :] y[r, :]           l' = log2(e) l           row sums
    p[c, r]  = 2 ** (log2(e) s(k q')[c, r] - l'[r])                               keys' kernel: owns columns, walks the rows
    dv       = p g          dk = scale * (p * (v g' - d)) q
    p[r, c]  = 2 ** (log2(e) s(q k')[r, c] - l'[r])                               queries' kernel: owns rows, walks the columns
    dq       = scale * (p * (g v' - d)) k          db = p * (g v' - d), the gradient of a bias, as it is multiplied

    dropout: p becomes p * m in dv, and g v' becomes g v' * m elsewhere; m is 1 / (1 - probability) or 0, drawn again from the seed

No sum is added up by several blocks, so that results are the same in every run. Powers are computed twice: seven products instead of five.
Sources: Rabe and Staats 2021, arXiv:2112.05682 (recomputation); Dao 2023, arXiv:2307.08691, section 3.1.2 (row sums, logarithms).
"""
from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilefuse.base.options import Options
from tilefuse.domain.parts import structure_of
from tilefuse.ir.affine import axis, linearise, number, row_major_strides
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BOOL, F32, I64
from tilefuse.ir.graph import Graph, Input, Node, Type
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.library.attention_gradient_call import LEAST_LOGARITHM, AttentionGradientCall, attention_gradient_calls
from tilefuse.ir.library.side_by_side import side_by_side, windows_of
from tilefuse.ir.names import free_name
from tilefuse.ir.scalar import Expr, Index, Read, call, const
from tilefuse.passes import DEFAULT_PIPELINE
from tilefuse.passes.facts import Prices
from tilefuse.passes.manager import PassContext, Pipeline
from tilefuse.plan.rewrites.gradient_surroundings import surroundings
from tilefuse.plan.rewrites.own_masks import maps_behind
from tilefuse.plan.rewrites.renamed import with_names
from tilefuse.plan.walks import COMPUTED_AGAIN, find_walks
from tilefuse.target.device import DeviceSpec
from tilefuse.target.memory import ACCESS_BYTES

RESULTS = ("dq", "dk", "dv", "db")
LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class GradientChoice:
    """Gradients of one attention: by their definition, or by the library's call.

    definition   None where no kernels hold it, for the reason `why`
    results      those of `RESULTS` that are read
    call_us      None where nothing predicts the call
    around_us    plans of the call's surroundings, by the kernels and by the call; None where they decide nothing

    Units: microseconds.
    """

    call: AttentionGradientCall
    results: tuple[str, ...]
    definition: Graph | None
    num_kernels: int = 0
    kernels_us: float = 0.0
    call_us: float | None = None
    is_taken: bool = False
    why: str = ""
    around_us: tuple[float, ...] | None = None

    def text(self) -> str:
        """The choice in a line."""
        name = next(n for n in self.call.gradients if n)
        if self.definition is None:
            return f"%{name}: gradients of attention by the library; {self.why}"
        taken = "planned by their definition" if self.is_taken else "by the library"
        kernels = f"{self.num_kernels} kernel{'s' if self.num_kernels > 1 else ''} that walk{'' if self.num_kernels > 1 else 's'}"
        of_call = "nothing predicts the call" if self.call_us is None else f"{self.call_us:.1f} us as a call"
        around = "" if self.around_us is None else "; with the nodes around them {:.1f} us and {:.1f} us".format(*self.around_us)
        return f"%{name}: gradients of attention {taken}; predicted {self.kernels_us:.1f} us as row sums and {kernels}, {of_call}{around}"


def gradient_choices(graph: Graph, device: DeviceSpec, prices: Prices, options: Options, layouts: Layouts, taken: str
                     ) -> list[GradientChoice]:
    """The choice for every call of gradients, in graph order. layouts: strides of inputs. taken: as the option `attention_gradients`.

    Cost: by `auto`, two plans of each call's surroundings that no earlier call has; layers of a model have the same.
    """
    choices: list[GradientChoice] = []
    known: dict[Hashable, tuple[float, ...]] = {}
    for of in attention_gradient_calls(graph):
        choice = gradient_choice(of, graph, device, prices, options.eager_rounding)
        if of.library == "own":
            choice = replace(choice, is_taken=choice.definition is not None)
        elif taken == "auto" and choice.definition is not None and choice.call_us is not None:
            part = surroundings(graph, of)
            strides = {i.name: tuple(layouts[i.name]) for i in part.inputs if i.name in layouts}
            key = structure_of(part, strides)
            if key not in known:
                by_kernels = with_definitions(part, [choice])
                known[key] = tuple(prices.plan_us(x, strides, options, greedy=False) for x in (by_kernels, part))
            choice = replace(choice, around_us=known[key], is_taken=known[key][0] < known[key][1])
        choices.append(replace(choice, is_taken=choice.definition is not None) if taken == "kernels" else choice)
    return choices


def gradient_choice(of: AttentionGradientCall, graph: Graph, device: DeviceSpec, prices: Prices, eager_rounding: bool = False
                    ) -> GradientChoice:
    """Predictions for a call and for its definition; none is taken."""
    results = tuple(r for r, name in zip(RESULTS, of.gradients, strict=True) if name)
    if eager_rounding:
        return GradientChoice(of, results, None, why="their definition would be rounded where the library rounds nothing")
    definition = gradient_definition(of, {name: graph.type_of(v) for name, v in of.operands.items()}, results)
    definition = _with_maps_behind(definition, maps_behind(of.mask, graph), graph)
    # Of several walks with the same products, the one that holds most.
    walks = list({_products(definition, w): w for w in sorted(find_walks(definition, device), key=len)}.values())
    products = {n.name for n in definition.nodes if n.kind == "library.matmul"}
    if not products <= {n for w in walks for n in w} or not all(prices.has_kernel(definition, w, {}) for w in walks):
        return GradientChoice(of, results, None, why="no kernels hold their definition")
    inside = {n for w in walks for n in w}
    sums = tuple(n.name for n in definition.nodes if n.category == "reduce")
    before = tuple(n.name for n in definition.nodes if n.name not in inside and _leads_to(definition, n, sums))
    us = sum(prices.kernel_us(definition, nodes, eager_rounding, 0) for nodes in (*walks, before))
    return GradientChoice(of, results, definition, len(walks), us, prices.attention_gradient_us(of, graph))


def _with_maps_behind(definition: Graph, behind: tuple[Node, ...], graph: Graph) -> Graph:
    """A definition whose mask is computed by maps, by such maps of its own for each reader. Their operands are inputs, with "of_" before
    their names."""
    if not behind:
        return definition
    inside = {n.name for n in behind}
    roots = {v: f"of_{v}" for n in behind for v in n.reads() if v not in inside}
    inputs = tuple(i for i in definition.inputs if i.name != "mask") + tuple(Input(name, graph.type_of(v)) for v, name in roots.items())
    names, nodes = set(definition.type_by_name), list[Node]()
    for node in definition.nodes:
        if "mask" not in node.reads():
            nodes.append(node)
            continue
        own = roots | {n.name: free_name(f"{n.name}_for_{node.name}", names) for n in behind}
        nodes += [*(with_names(n, own) for n in behind), with_names(node, {"mask": own[behind[-1].name]})]
    return replace(definition, inputs=inputs, nodes=tuple(nodes))


def _products(graph: Graph, walk: Sequence[str]) -> tuple[str, ...]:
    return tuple(n for n in walk if graph.node_by_name[n].kind == "library.matmul")


def _leads_to(graph: Graph, node: Node, ends: Sequence[str]) -> bool:
    """Whether a node is one of the ends, or a map that one of them reads."""
    return node.name in ends or node.category == "map" and any(u in ends or _leads_to(graph, graph.node_by_name[u], ends)
                                                               for u in graph.users_by_name[node.name])


def with_definitions(graph: Graph, choices: Sequence[GradientChoice]) -> Graph:
    """The graph with the definitions of these choices in place of their calls."""
    names = set(graph.type_by_name)
    of_gradient = {name: c for c in choices for name in c.call.gradients if name}
    placed: set[AttentionGradientCall] = set()
    nodes: list[Node] = []
    for node in graph.nodes:
        choice = of_gradient.get(node.name)
        if choice is None:
            nodes.append(node)
        elif choice.call not in placed:
            placed.add(choice.call)
            nodes += placed_gradients(choice, names)
    return _put_side_by_side(replace(graph, nodes=tuple(nodes)), of_gradient.keys())


def _put_side_by_side(graph: Graph, gradients: Collection[str]) -> Graph:
    """The graph without concatenations of gradients that calls of the library read, as the gradient of a packed projection: kernels write
    gradients where they lie in it."""
    def joined(node: Node) -> Node:
        parts = node.reads()
        whole = all(v in gradients and v not in graph.escaping and graph.users_by_name[v] == (node.name,) for v in parts)
        if not whole or node.name in graph.escaping or not _is_called(node.name, graph):
            return node
        whole_parts = side_by_side(node, graph)
        # Kernels access vectors of any value.
        aligned = whole_parts is not None and all(w.offset * node.type.dtype.itemsize % ACCESS_BYTES == 0 for w in windows_of(whole_parts))
        return whole_parts if whole_parts is not None and aligned else node

    nodes = tuple(joined(n) for n in graph.nodes)
    return replace(graph, nodes=nodes) if any(a is not b for a, b in zip(nodes, graph.nodes, strict=True)) else graph


def _is_called(value: str, graph: Graph) -> bool:
    """Whether a call of the library reads a value, or a view of it."""
    users = [graph.node_by_name[u] for u in graph.users_by_name[value]]
    return any(u.category == "library" or isinstance(u.body, Read) and _is_called(u.name, graph) for u in users)


def placed_gradients(choice: GradientChoice, names: set[str]) -> list[Node]:
    """The definition's nodes: with the call's operands, free names, and the calls' names for the results."""
    assert choice.definition is not None
    name_by_value = dict(choice.call.operands) | {i.name: i.name.removeprefix("of_") for i in choice.definition.inputs
                                                  if i.name not in choice.call.operands}
    of_results = dict(zip(RESULTS, choice.call.gradients, strict=True))
    result_by_node = dict(zip(choice.definition.results, (of_results[r] for r in choice.results), strict=True))
    first = next(n for n in choice.call.gradients if n)
    for n in choice.definition.nodes:
        name_by_value[n.name] = result_by_node.get(n.name) or free_name(f"{first}_{n.name}", names)
    return [with_names(n, name_by_value) for n in choice.definition.nodes]


def gradient_definition(of: AttentionGradientCall, types: Mapping[str, Type], results: tuple[str, ...]) -> Graph:
    """Gradients as a graph of its own, in normal form. types: of the operands, by the definition's names; results: among `RESULTS`."""
    b = TensorBuilder("attention_gradient")
    writer = _Writer(b, of, {name: b.input(name, t.dtype, t.shape) for name, t in types.items()})
    gradients: dict[str, str] = {}
    if "dq" in results or "db" in results:
        gradients["dq"], gradients["db"] = writer.of_queries()
    if "dk" in results or "dv" in results:
        gradients |= writer.of_keys(results)
    written_out = b.finish([gradients[r] for r in results])
    graph = Pipeline.parse(DEFAULT_PIPELINE).run(written_out, PassContext())
    return replace(graph, nodes=tuple(replace(n, attributes=tuple(sorted((*n.attributes, (COMPUTED_AGAIN, True)))))
                                      if n.kind == "library.matmul" else n for n in graph.nodes))


class _Writer:
    """Statements of the definition. values: operands by name."""

    def __init__(self, b: TensorBuilder, of: AttentionGradientCall, values: Mapping[str, str]) -> None:
        self.b, self.of, self.values = b, of, values
        self.lead, self.rows = b.shape_of(values["q"])[:-2], b.shape_of(values["q"])[-2]
        self.columns = b.shape_of(values["k"])[-2]
        self.dtype = b.dtype_of(values["q"])
        g, y = (b.cast(values[n], F32) for n in "gy")
        self.row_sums = b.reduce(b.elementwise("mul", g, y), "sum", (len(self.lead) + 1,))
        logarithms = values["l"]
        if len(b.shape_of(logarithms)) > len(self.lead) + 1:
            logarithms = b.reshape(logarithms, b.shape_of(logarithms)[:-1])
        logarithms = b.cast(b.slice(logarithms, (0,), (self.rows,), axes=(len(self.lead),)), F32)
        one = (1,) * (len(self.lead) + 1)
        if of.mask:
            # Rows that a mask hides whole have no logarithm, and powers of 0. A causal mask alone hides no row whole.
            hidden = b.elementwise("eq", logarithms, self._number(float("-inf"), one))
            logarithms = b.where(hidden, self._number(0.0, one), logarithms)
        if of.factors:
            logarithms = self._bounded(logarithms)
        # Powers are those of two.
        self.logarithms = b.elementwise("mul", logarithms, self._number(LOG2_E, one))
        self.factors = b.reshape(values["factors"], (*self.lead, self.rows)) if of.factors else ""
        # Of elements that are not dropped; gradients have the factor at their end.
        self.factor = 1.0 / (1.0 - of.dropout) if of.dropout else 1.0
        if of.dropout:
            self.row_sums = b.elementwise("mul", self.row_sums, self._number(1.0 - of.dropout, one))
            self.key = b.elementwise("add", values["seed"], b.full((1,), of.number, I64))

    def of_queries(self) -> tuple[str, str]:
        """Gradients of the queries and of the scores; keys and values of a group of heads are read by each of them."""
        b, v = self.b, self.values
        k, value = (b.repeat_interleave(v[n], self.of.group, -3) if self.of.group > 1 else v[n] for n in "kv")
        shape = (*self.lead, self.rows, 1)
        _, exact = self._elements(v["q"], k, v["g"], value, shape, turned=False)
        ds = b.cast(exact, self.dtype)
        return self._scaled(b.matmul(ds, k)), self._times(exact if self.of.wide_bias else ds, self.factor)

    def of_keys(self, results: tuple[str, ...]) -> dict[str, str]:
        """Gradients of keys and values: rows of all heads of a group are walked one after another."""
        b, v = self.b, self.values
        q, g = (self._joined(v[n]) for n in "qg")
        lead = b.shape_of(v["k"])[:-2]
        p, ds = self._elements(v["k"], q, v["v"], g, (*lead, 1, self.rows * self.of.group), turned=True)
        gradients = {"dk": self._scaled(b.matmul(b.cast(ds, self.dtype), q))} if "dk" in results else {}
        return gradients | ({"dv": self._times(b.matmul(p, g), self.factor)} if "dv" in results else {})

    def _joined(self, value: str) -> str:
        """A value of the queries' heads with the rows of a group one after another."""
        if self.of.group == 1:
            return value
        shape = self.b.shape_of(value)
        return self.b.reshape(value, (*shape[:-3], shape[-3] // self.of.group, self.of.group * shape[-2], shape[-1]))

    def _elements(self, left: str, right: str, left_gradient: str, right_gradient: str, shape: tuple[int, ...],
                  turned: bool) -> tuple[str, str]:
        """Powers that are not dropped, rounded to operands, and gradients of the scores. shape: of a value of the rows, beside the scores.
        """
        b = self.b
        s = b.cast(b.matmul(left, right, transpose_b=True), F32)
        of_scores = b.cast(b.matmul(left_gradient, right_gradient, transpose_b=True), F32)
        s = self._masked(b.elementwise("mul", s, self._number(self.of.scale, (1,) * len(shape))), turned)
        logarithms, row_sums = (b.reshape(x, shape) for x in (self.logarithms, self.row_sums))
        s = b.elementwise("mul", s, self._number(LOG2_E, (1,) * len(shape)))
        p = b.elementwise("exp2", b.elementwise("sub", s, logarithms))
        if self.factors:
            # Logarithms of such size are rounded to more than the scores differ by: no power is above 1 for it.
            p = b.elementwise("minimum", p, self._number(1.0, (1,) * len(shape)))
            p = b.elementwise("mul", p, b.reshape(self.factors, shape))
        weights = p
        if self.of.dropout:
            is_left, zero = self._is_left(b.shape_of(p), turned), self._number(0.0, (1,) * len(shape))
            weights, of_scores = (b.where(is_left, x, zero) for x in (p, of_scores))
        ds = b.elementwise("mul", p, b.elementwise("sub", of_scores, row_sums))
        if self.of.visible:
            ds = b.where(self._mask("visible", turned), ds, self._number(0.0, (1,) * len(shape)))
        return b.cast(weights, self.dtype), ds

    def _is_left(self, shape: tuple[int, ...], turned: bool) -> str:
        """Elements that are not dropped, by the random numbers that the forward pass drew: those of [lead, rows, columns] of the queries'
        heads, whose rows follow each other in the heads of a group."""
        axes = axis_names(len(shape))
        lead = linearise(tuple(axis(a) for a in axes[:-2]), row_major_strides(shape[:-2]))
        (row, rows), column = ((axes[-1], shape[-1]), axes[-2]) if turned else ((axes[-2], shape[-2]), axes[-1])
        place = (lead * rows + axis(row)) * self.columns + axis(column)
        drawn = call("random_uniform", Read(self.key, (number(0),)), Index(place))
        return self.b.make_map("is_left", BOOL, shape, axes, call("lt", drawn, const(1.0 - self.of.dropout, F32)))

    def _masked(self, s: str, turned: bool) -> str:
        """Scores with the mask and the bias of the call."""
        b, shape = self.b, self.b.shape_of(s)
        if self.of.visible:
            fill = self._number(max(self.of.fill, LEAST_LOGARITHM), (1,) * len(shape))
            s = b.where(self._mask("visible", turned), s, fill)
        if self.of.mask:
            mask = self._mask("mask", turned)
            lowest = self._number(float("-inf"), (1,) * len(shape))
            if b.dtype_of(mask) == BOOL:
                s = b.where(mask, s, lowest)
            else:
                added = b.cast(mask, F32)
                s = b.elementwise("add", s, self._bounded(added) if self.of.factors else added)
        if not self.of.causal:
            return s
        axes = axis_names(len(shape))
        row, column = (axis(axes[-1]) % self.rows, axis(axes[-2])) if turned else (axis(axes[-2]), axis(axes[-1]))
        seen: Expr = call("le", Index(column), Index(row))
        return b.make_map("causal", F32, shape, axes, call("select", seen, b.read(s, shape, axes), const(float("-inf"), F32)))

    def _bounded(self, x: str) -> str:
        """Values of f32, the least of them so large that log2(e) times them is finite: a row of nothing but the lowest number, whose
        logarithm is that number, has powers of 1."""
        return self.b.elementwise("maximum", x, self._number(LEAST_LOGARITHM, (1,) * len(self.b.shape_of(x))))

    def _mask(self, name: str, turned: bool) -> str:
        """A mask beside the scores: turned, with the rows of a group's heads one after another."""
        b, mask = self.b, self.values[name]
        if not turned:
            return mask
        rank, shape = len(self.lead) + 2, b.shape_of(mask)
        mask = b.reshape(mask, (*(1 for _ in range(rank - len(shape))), *shape))
        if self.of.group > 1:
            mask = self._joined(b.broadcast_to(mask, (*b.shape_of(mask)[:-3], self.lead[-1], self.rows, b.shape_of(mask)[-1])))
        return b.permute(mask, (*range(rank - 2), rank - 1, rank - 2))

    def _scaled(self, y: str) -> str:
        return self._times(y, self.of.scale * self.factor)

    def _times(self, y: str, factor: float) -> str:
        """A product with a factor that is not rounded to 16 bits."""
        b = self.b
        if factor == 1.0:
            return y
        return b.cast(b.elementwise("mul", b.cast(y, F32), self._number(factor, (1,) * len(b.shape_of(y)))), b.dtype_of(y))

    def _number(self, x: float, shape: tuple[int, ...]) -> str:
        return self.b.full(shape, x, F32)
