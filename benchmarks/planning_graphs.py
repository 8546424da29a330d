"""Texts of large graphs of different shapes, for the time that planning takes: each asks most of another part of the planner.

Structures repeat, as layers of a model do; what grows is how many kernels, candidates and dependences there are.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

ROWS, WIDTH = 64, 128
# Row counts of tensors that differ in size, as the weights of a model do.
ROW_COUNTS = tuple(64 + 8 * n for n in range(23))


def graph_text(name: str, inputs: Sequence[tuple[str, str]], lines: Sequence[str], results: Sequence[tuple[str, str]]) -> str:
    """The text of a graph; inputs and results are (value, type)."""
    return "\n".join([f"graph @{name}({', '.join(f'%{v}: {t}' for v, t in inputs)}) -> ({', '.join(t for _, t in results)}) {{", *lines,
                      f"  return {', '.join(f'%{v}' for v, _ in results)}", "}"]) + "\n"


def independent_maps(num_nodes: int) -> str:
    """Maps of unlike sizes that share nothing: all that can be done is to pack them."""
    types = [f"f32[{ROW_COUNTS[n % len(ROW_COUNTS)]}, 64]" for n in range(num_nodes)]
    return graph_text("maps", [(f"x{n}", t) for n, t in enumerate(types)],
                      [f"  %y{n}: {t} = map [i, j] {{ tanh(%x{n}[i, j]) }}" for n, t in enumerate(types)],
                      [(f"y{n}", t) for n, t in enumerate(types)])


def optimiser_steps(num_nodes: int) -> str:
    """A step of Adam for weights of unlike sizes, ten nodes each."""
    inputs, lines, results = [("step", "f32[]")], [], []
    for n in range(max(1, num_nodes // 10)):
        type_ = f"f32[{ROW_COUNTS[n % len(ROW_COUNTS)]}, 64]"
        bodies = (("ma", f"mul(%m{n}[i, j], 0.9:f32)"), ("mb", f"mul(%g{n}[i, j], 0.1:f32)"), ("mn", f"add(%ma{n}[i, j], %mb{n}[i, j])"),
                  ("va", f"mul(%v{n}[i, j], 0.99:f32)"), ("vb", f"mul(mul(%g{n}[i, j], %g{n}[i, j]), 0.01:f32)"),
                  ("vn", f"add(%va{n}[i, j], %vb{n}[i, j])"), ("d", f"add(sqrt(%vn{n}[i, j]), 0.00001:f32)"),
                  ("u", f"div(%mn{n}[i, j], %d{n}[i, j])"), ("z", f"mul(%u{n}[i, j], %step[])"), ("wn", f"sub(%w{n}[i, j], %z{n}[i, j])"))
        inputs += [(f"{v}{n}", type_) for v in "wgmv"]
        lines += [f"  %{v}{n}: {type_} = map [i, j] {{ {body} }}" for v, body in bodies]
        results += [(f"{v}{n}", type_) for v in ("mn", "vn", "wn")]
    return graph_text("optimiser", inputs, lines, results)


def chain(num_nodes: int) -> str:
    """One map behind the other."""
    type_, functions = f"f32[256, {WIDTH}]", ("tanh", "exp", "neg", "abs")
    return graph_text("chain", [("y0", type_)],
                      [f"  %y{n + 1}: {type_} = map [i, j] {{ {functions[n % 4]}(%y{n}[i, j]) }}" for n in range(num_nodes)],
                      [(f"y{num_nodes}", type_)])


def tree(num_nodes: int) -> str:
    """Sums of two values each until one is left."""
    type_ = f"f32[{ROWS}, 64]"
    level = [f"x{n}" for n in range(num_nodes + 1)]
    inputs = [(v, type_) for v in level]
    lines: list[str] = []
    while len(level) > 1:
        made = [f"t{len(lines) + n}" for n in range(len(level) // 2)]
        lines += [f"  %{v}: {type_} = map [i, j] {{ add(%{a}[i, j], %{b}[i, j]) }}" for v, a, b in zip(made, level[::2], level[1::2])]
        level = made + level[len(made) * 2:]
    return graph_text("tree", inputs, lines, [(level[0], type_)])


def products(num_nodes: int) -> str:
    """Layers in turn: two products with bias and activation, attention over four heads, a norm between two products."""
    type_, row, heads, scores = f"f32[{ROWS}, {WIDTH}]", f"f32[{ROWS}]", f"f32[4, {ROWS}, 32]", f"f32[4, {ROWS}, {ROWS}]"
    inputs, lines, x = [("x", type_)], [], "x"
    while len(lines) < num_nodes:
        n = len(lines)
        weights = [f"w{n}", f"v{n}", f"b{n}"]
        inputs += zip(weights, (f"f32[{WIDTH}, {WIDTH}]", f"f32[{WIDTH}, {WIDTH}]", f"f32[{WIDTH}]"), strict=True)
        for kind, layer in zip("abc", _product_layers(x, n, type_, row, heads, scores), strict=True):
            lines += layer
            x = f"o{kind}{n}"
    return graph_text("products", inputs, lines, [(x, type_)])


def _product_layers(x: str, n: int, type_: str, row: str, heads: str, scores: str) -> tuple[list[str], list[str], list[str]]:
    """The three layers behind a value, with weights number `n`. Their results are oa, ob and oc."""
    a, b = f"oa{n}", f"ob{n}"
    return ([
        f"  %p{n}: {type_} = library.matmul (%{x}, %w{n})",
        f"  %a{n}: {type_} = map [i, j] {{ tanh(add(%p{n}[i, j], %b{n}[j])) }}",
        f"  %q{n}: {type_} = library.matmul (%a{n}, %v{n})",
        f"  %{a}: {type_} = map [i, j] {{ add(%q{n}[i, j], %{x}[i, j]) }}",
    ], [
        f"  %h{n}: {heads} = map [n, i, j] {{ %{a}[i, 32*n + j] }}",
        f"  %t{n}: f32[4, 32, {ROWS}] = map [n, j, i] {{ %{a}[i, 32*n + j] }}",
        f"  %s{n}: {scores} = library.matmul (%h{n}, %t{n})",
        f"  %m{n}: f32[4, {ROWS}] = reduce.max [n, i] over [k < {ROWS}] {{ %s{n}[n, i, k] }}",
        f"  %e{n}: {scores} = map [n, i, j] {{ exp(sub(%s{n}[n, i, j], %m{n}[n, i])) }}",
        f"  %z{n}: f32[4, {ROWS}] = reduce.sum [n, i] over [k < {ROWS}] {{ %e{n}[n, i, k] }}",
        f"  %y{n}: {scores} = map [n, i, j] {{ div(%e{n}[n, i, j], %z{n}[n, i]) }}",
        f"  %c{n}: {heads} = library.matmul (%y{n}, %h{n})",
        f"  %{b}: {type_} = map [i, j] {{ add(%c{n}[(j // 32), i, (j % 32)], %{a}[i, j]) }}",
    ], [
        f"  %f{n}: {row} = reduce.sum [i] over [k < {WIDTH}] {{ %{b}[i, k] }}",
        f"  %d{n}: {type_} = map [i, j] {{ sub(%{b}[i, j], mul(%f{n}[i], {1 / WIDTH!r}:f32)) }}",
        f"  %r{n}: {row} = reduce.sum [i] over [k < {WIDTH}] {{ mul(%d{n}[i, k], %d{n}[i, k]) }}",
        f"  %n{n}: {type_} = map [i, j] {{ mul(%d{n}[i, j], rsqrt(add(mul(%r{n}[i], {1 / WIDTH!r}:f32), 0.001:f32))) }}",
        f"  %k{n}: {type_} = library.matmul (%n{n}, %w{n})",
        f"  %l{n}: {type_} = map [i, j] {{ mul(%k{n}[i, j], %b{n}[j]) }}",
        f"  %u{n}: {type_} = library.matmul (%l{n}, %v{n})",
        f"  %oc{n}: {type_} = map [i, j] {{ add(%u{n}[i, j], %{b}[i, j]) }}",
    ])


SHAPES: dict[str, Callable[[int], str]] = {"maps": independent_maps, "optimiser": optimiser_steps, "chain": chain, "tree": tree,
                                           "products": products}
