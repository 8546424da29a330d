"""Adjoints of library operators: the table beside `ir/library/meaning.py`.

A rule gets the node, the gradients of those of its results that have one (by result number), and which operands want theirs; it
emits nodes through a TensorBuilder and gives one value an operand, of the operand's shape, or None. Rules are written with the
operators of the graph, so that gradients of gradients need no rules of their own. An operator without a rule has no gradient.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilefuse.base.errors import UserError
from tilefuse.ir.affine import axis
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BOOL, I64, DType, compute_dtype
from tilefuse.ir.graph import Attribute, Node, Type
from tilefuse.ir.scalar import Bound, Expr, Guard, call, const


@dataclass(frozen=True, slots=True)
class Request:
    """One library call to differentiate.

    results    value names of the call's results by number, where the graph has them
    gradients  of the results that have one, by number
    wanted     for each operand whether its gradient is needed
    """

    node: Node
    results: Mapping[int, str]
    gradients: Mapping[int, str]
    wanted: tuple[bool, ...]


LibraryAdjoint = Callable[[TensorBuilder, Request], Sequence[str | None]]
LIBRARY_ADJOINTS: dict[str, LibraryAdjoint] = {}


def adjoint_of(*operators: str) -> Callable[[LibraryAdjoint], LibraryAdjoint]:
    """Enters a rule under these operators' names."""

    def enter(fn: LibraryAdjoint) -> LibraryAdjoint:
        LIBRARY_ADJOINTS.update(dict.fromkeys(operators, fn))
        return fn

    return enter


# Operators whose rules hold for complex operands, too.
OF_COMPLEX: set[str] = set()


def has_complex_operands(node: Node) -> bool:
    """Whether a call of the framework sees complex tensors where the graph has pairs of reals."""
    return bool(complex_operands(node.attribute("args", ())))


def complex_operands(template: Attribute) -> list[int]:
    """Numbers of the operands that the arguments of a call mark as complex."""
    match template:
        case ("complex", int(n)):
            return [n]
        case tuple():
            return [n for t in template for n in complex_operands(t)]
    return []


def sized(b: TensorBuilder, x: str, shape: Sequence[int]) -> str:
    """A gradient of a broadcast operand, summed back to `shape`, in the compute dtype if anything is summed."""
    have = b.shape_of(x)
    lead = len(have) - len(shape)
    over = [d for d, s in enumerate(have) if d < lead or (shape[d - lead] == 1 and s != 1)]
    if over:
        x = b.reduce(x, "sum", over, dtype=compute_dtype(b.dtype_of(x)))
    return b.reshape(x, shape)


def number_of(node: Node, name: str, default: float) -> float:
    """An attribute that is a number, `default` where the node lacks it."""
    value = node.attribute(name, default)
    assert isinstance(value, (int, float))
    return value


def wide_dtype(b: TensorBuilder, x: str) -> DType:
    """The dtype in which arithmetic on `x` is done."""
    return compute_dtype(b.dtype_of(x))


def reduced_sum(b: TensorBuilder, fn: Callable[..., Expr], xs: Sequence[str], axes: Sequence[int], work: DType) -> str:
    """The sum of fn(xs) over `axes`, which keep extent 1. Shapes: every x that of the first, or 1 in some dimensions."""
    shape = b.shape_of(xs[0])
    names = axis_names(len(shape))
    body = fn(*(b.read_as(x, work, shape, names) for x in xs))
    kept_dims = [d for d in range(len(shape)) if d not in axes]
    over = [(names[d], shape[d]) for d in sorted(axes)]
    total = b.reduce_node("sum", work, [shape[d] for d in kept_dims], [names[d] for d in kept_dims], over, body, name="sum")
    return b.expand_dims(total, sorted(axes)) if axes else total


def softmax_gradient(b: TensorBuilder, y: str, g: str, at: int) -> str:
    """y * (g - sum(g * y))."""
    work = wide_dtype(b, y)
    inner = reduced_sum(b, lambda u, v: call("mul", u, v), (g, y), (at,), work)
    return b.expression(lambda p, u, s: call("mul", p, call("sub", u, s)), y, g, inner, dtype=b.dtype_of(y), name="softmax")


# Products


@adjoint_of("matmul")
def _matmul(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """a @ c: the gradient of a is g @ c^T, that of c is a^T @ g, each in the order in which its operand is stored."""
    node, g = request.node, request.gradients[0]
    left, right = node.operands[:2]
    flip_left, flip_right = bool(node.attribute("transpose_a")), bool(node.attribute("transpose_b"))
    precision = str(node.attribute("precision", "default"))
    gradients: list[str | None] = [None] * len(node.operands)
    if request.wanted[0]:
        if flip_left:
            gradients[0] = _summed_product(b, right, g, flip_right, True, left, precision)
        else:
            gradients[0] = _summed_product(b, g, right, False, not flip_right, left, precision)
    if request.wanted[1]:
        if flip_right:
            gradients[1] = _summed_product(b, g, left, True, flip_left, right, precision)
        else:
            gradients[1] = _summed_product(b, left, g, not flip_left, False, right, precision)
    if len(node.operands) > 2 and request.wanted[2]:
        gradients[2] = sized(b, g, b.shape_of(node.operands[2]))
    return gradients


def _summed_product(b: TensorBuilder, x: str, y: str, flip_x: bool, flip_y: bool, like: str, precision: str) -> str:
    """x @ y (each exchanged where flipped), summed over the leading dimensions that `like` lacks.

    Where `like` is one matrix and both operands have rows in common, the leading dimensions are rows of one long product.
    """
    shape = b.shape_of(like)
    lead_x, lead_y = b.shape_of(x)[:-2], b.shape_of(y)[:-2]
    if prod(shape[:-2]) == 1 and lead_x == lead_y and prod(lead_x) > 1 and flip_x and not flip_y:
        x, y = (b.reshape(v, (-1, b.shape_of(v)[-1])) for v in (x, y))
    elif prod(shape[:-2]) == 1 and lead_x == lead_y and prod(lead_x) > 1:
        # The summed extent is the last of x or the second of y: brought behind the leading dimensions first.
        x = b.reshape(x if flip_x else b.transpose(x, -1, -2), (-1, b.shape_of(x)[-1 if flip_x else -2]))
        y = b.reshape(b.transpose(y, -1, -2) if flip_y else y, (-1, b.shape_of(y)[-2 if flip_y else -1]))
        flip_x, flip_y = True, False
    elif prod(lead_y) == 1 and prod(lead_x) > 1 and not flip_x:
        # One matrix on the right: the left one's leading dimensions are more rows.
        rows = b.reshape(x, (-1, b.shape_of(x)[-1]))
        flat = b.matmul(rows, b.reshape(y, b.shape_of(y)[-2:]), False, flip_y, precision)
        return sized(b, b.reshape(flat, (*lead_x, b.shape_of(x)[-2], b.shape_of(flat)[-1])), shape)
    return sized(b, b.matmul(x, y, flip_x, flip_y, precision), shape)


@adjoint_of("attention")
def _attention(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """By its matrix products: the probabilities are recomputed and stored in memory (L * S elements per head)."""
    node, g = request.node, request.gradients[0]
    if number_of(node, "dropout", 0.0) > 0:
        raise UserError("no gradient is defined for attention with dropout inside", where=node.span,
                        hint="write it as products, softmax and dropout")
    query, key, value = node.operands[:3]
    scale = number_of(node, "scale", 1.0)
    scores = b.elementwise("mul", b.matmul(query, key, transpose_b=True), scale)
    if node.attribute("causal"):
        scores = _causal(b, scores)
    if node.attribute("has_mask"):
        mask = node.operands[3]
        hidden = b.dtype_of(mask) == BOOL
        scores = b.where(mask, scores, float("-inf")) if hidden else b.elementwise("add", scores, b.cast(mask, b.dtype_of(scores)))
    last = len(b.shape_of(scores)) - 1
    weights = b.safe_softmax(scores, last) if node.attribute("has_mask") else b.softmax(scores, last)
    gradients: list[str | None] = [None] * len(node.operands)
    if request.wanted[2]:
        gradients[2] = sized(b, b.matmul(weights, g, transpose_a=True), b.shape_of(value))
    if not any(request.wanted[n] for n in (0, 1, *range(3, len(node.operands)))):
        return gradients
    shift = softmax_gradient(b, weights, b.matmul(g, value, transpose_b=True), len(b.shape_of(weights)) - 1)
    if len(node.operands) > 3 and request.wanted[3]:
        gradients[3] = sized(b, shift, b.shape_of(node.operands[3]))
    scaled = b.elementwise("mul", shift, scale)
    if request.wanted[0]:
        gradients[0] = sized(b, b.matmul(scaled, key), b.shape_of(query))
    if request.wanted[1]:
        gradients[1] = sized(b, b.matmul(scaled, query, transpose_a=True), b.shape_of(key))
    return gradients


def _causal(b: TensorBuilder, scores: str) -> str:
    """Scores with -inf where the column lies behind the row."""
    shape, dtype = b.shape_of(scores), b.dtype_of(scores)
    axes = axis_names(len(shape))
    ahead = axis(axes[-1]) - axis(axes[-2])
    seen: Expr = Guard((Bound(ahead, -shape[-2], 1),), b.read(scores, shape, axes), const(float("-inf"), dtype))
    return b.make_map("causal", dtype, shape, axes, seen)


# Convolution. Its gradients are library calls of their own; the bias's is a sum that fuses with the producer of the gradient.

_GEOMETRY = ("stride", "padding", "dilation", "groups", "transposed", "output_padding")


def _geometry(node: Node) -> dict[str, Attribute]:
    return {name: value for name, value in node.attributes if name in _GEOMETRY}


def _convolved(b: TensorBuilder, x: str, weight: str, like: Node, type_: Type) -> str:
    """A convolution with the geometry of `like`, without bias."""
    return b.library("convolution", "convolution", type_, (x, weight), _geometry(like) | {"has_bias": False})


def _convolution_gradients(
    b: TensorBuilder, g: str, x: str, weight: str, like: Node, needs: tuple[bool, bool]
) -> list[str | None]:
    """Gradients of a convolution's input and weight: two results of one call."""
    attributes = _geometry(like) | {"mask": (*needs, False)}

    def result(n: int) -> str:
        kind = b.type_of((x, weight)[n])
        return b.library("convolution_backward", "convolution_backward", kind, (g, x, weight), attributes | {"result": n})

    return [result(n) if needs[n] else None for n in range(2)]


@adjoint_of("convolution")
def _convolution(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """Two results of `convolution_backward`, and the sum over all positions for the bias."""
    node, g = request.node, request.gradients[0]
    x, weight = node.operands[:2]
    gradients = _convolution_gradients(b, g, x, weight, node, (request.wanted[0], request.wanted[1]))
    if len(node.operands) > 2:
        over = [d for d in range(b.rank_of(g)) if d != 1]
        gradients.append(b.reduce(g, "sum", over, dtype=wide_dtype(b, g)) if request.wanted[2] else None)
    return gradients


@adjoint_of("convolution_backward")
def _convolution_backward(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """Gradients of the gradients: input and weight gradients are linear in the result's gradient and in the other operand."""
    node = request.node
    g, x, weight = node.operands
    of_g: list[str] = []
    of_x: str | None = None
    of_weight: str | None = None
    for result, upper in request.gradients.items():
        if result == 0:  # the input's gradient: g spread by the weight
            of_g += [_convolved(b, upper, weight, node, b.type_of(g))] if request.wanted[0] else []
            if request.wanted[2]:
                of_weight = _convolution_gradients(b, g, upper, weight, node, (False, True))[1]
        elif result == 1:  # the weight's gradient: x correlated with g
            of_g += [_convolved(b, x, upper, node, b.type_of(g))] if request.wanted[0] else []
            if request.wanted[1]:
                of_x = _convolution_gradients(b, g, x, upper, node, (True, False))[0]
        elif request.wanted[0]:
            shape = b.shape_of(g)
            of_g.append(b.broadcast_to(b.reshape(upper, (1, -1, *(1 for _ in shape[2:]))), shape))
    total = of_g[0] if of_g else None
    for term in of_g[1:]:
        assert total is not None
        total = b.elementwise("add", total, term)
    return total, of_x, of_weight


# Orders


# Where the arguments of the framework's operators have the axis; it is the last one where they do not say.
_AXIS_POSITION = {"aten.sort.default": 1, "aten.sort.stable": 2, "aten.topk.default": 2}


@adjoint_of(*_AXIS_POSITION)
def _ordered(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """Gradient of a sort: each element's gradient goes back where the element came from."""
    node = request.node
    if 0 not in request.gradients:
        return (None,) * len(node.operands)
    x, g = node.operands[0], request.gradients[0]
    attributes = dict(node.attributes) | {"result": 1}
    places = request.results.get(1) or b.library("order", node.detail, Type(I64, b.shape_of(g)), node.operands, attributes)
    work = wide_dtype(b, x)
    gradient = b.scatter(b.full(b.shape_of(x), 0, work), places, b.cast(g, work), _ordered_axis(node), "sum", wrap=False)
    return (gradient, *(None for _ in node.operands[1:]))


def _ordered_axis(node: Node) -> int:
    args, kwargs = node.attribute("args", ()), node.attribute("kwargs", ())
    assert isinstance(args, tuple) and isinstance(kwargs, tuple)
    at = _AXIS_POSITION[node.detail]
    named = (pair[1] for pair in kwargs if isinstance(pair, tuple) and pair[0] == "dim")
    axis = next(named, args[at] if at < len(args) else -1)
    return axis if isinstance(axis, int) else -1
