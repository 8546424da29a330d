"""ONNX recurrent layers, unrolled over their static number of steps: RNN, GRU, LSTM, in either or both directions.

The products with the input of all steps are one matrix product before the steps, as libraries do it.
"""

from __future__ import annotations

from collections.abc import Callable

from tilefuse.frontends.onnx.call import Call, onnx_op
from tilefuse.frontends.onnx.ops_elementwise import ACTIVATIONS, activate
from tilefuse.ir.dtype import I64, compute_dtype
from tilefuse.ir.scalar import call, const

# Steps beyond this make graphs that take longer to compile than the layer is worth.
STEP_LIMIT = 512
DEFAULT_ACTIVATIONS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
ACTIVATION_NAMES = {name.lower(): name for name in ACTIVATIONS}

Activate = Callable[[str], str]


@onnx_op("RNN", "GRU", "LSTM")
def recurrent(n: Call) -> list[str]:
    """Results Y [steps, directions, batch, hidden], Y_h and, for LSTM, Y_c [directions, batch, hidden].

    Shapes: X: [steps, batch, input], W: [directions, gates * hidden, input], R: [directions, gates * hidden, hidden]
    """
    batch_first = bool(n.attr("layout", 0))
    x = n.b.permute(n[0], (1, 0, 2)) if batch_first else n[0]
    steps = n.b.shape_of(x)[0]
    if steps == 0:
        raise n.unsupported("a sequence without steps")
    if steps > STEP_LIMIT:
        raise n.unsupported(f"{steps} steps (at most {STEP_LIMIT} are unrolled)")
    direction = n.attr("direction", "forward")
    backward = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    outputs, last_h, last_c = [], [], []
    for d, reverse in enumerate(backward):
        step_outputs, state, cell = one_direction(n, x, d, reverse, batch_first)
        outputs.append(n.b.stack(step_outputs[::-1] if reverse else step_outputs, 0))
        last_h.append(state)
        if cell:
            last_c.append(cell)
    results = [n.b.stack(outputs, 1), n.b.stack(last_h, 0)] + ([n.b.stack(last_c, 0)] if last_c else [])
    if not batch_first:
        return results
    return [n.b.permute(results[0], (2, 0, 1, 3)), *(n.b.permute(r, (1, 0, 2)) for r in results[1:])]


def one_direction(n: Call, x: str, d: int, reverse: bool, batch_first: bool) -> tuple[list[str], str, str]:
    """Output of each step, in the order computed, and the last hidden and cell state.

    A sequence that has ended outputs zeros and keeps its state.
    """
    b = n.b
    steps, batch, _ = b.shape_of(x)
    gates, hidden = GATES[n.op], n.shape(2)[-1]
    bias_w = bias_r = None
    if n.has(3):
        both = b.select(n[3], 0, d)
        bias_w, bias_r = b.slice(both, [0], [gates * hidden]), b.slice(both, [gates * hidden], [2 * gates * hidden])
    inputs = b.matmul(x, b.select(n[1], 0, d), False, True)
    if bias_w is not None:
        inputs = b.elementwise("add", inputs, bias_w)
    lengths = b.reshape(b.cast(n[4], I64), (batch, 1)) if n.has(4) else None

    def initial(i: int) -> str:
        if not n.has(i):
            return b.full((batch, hidden), 0, b.dtype_of(x))
        return b.select(n[i], 1 if batch_first else 0, d)

    state, cell = initial(5), initial(6) if n.op == "LSTM" else ""
    peephole = b.select(n[7], 0, d) if n.op == "LSTM" and n.has(7) else None
    functions = activations(n, d)
    recurrence = b.select(n[2], 0, d)
    outputs: list[str] = []
    for t in reversed(range(steps)) if reverse else range(steps):
        now = b.select(inputs, 0, t)
        if n.op == "RNN":
            new, new_cell = functions[0](_sum(n, now, b.matmul(state, recurrence, False, True), bias_r)), ""
        elif n.op == "GRU":
            new, new_cell = gru_step(n, now, state, recurrence, bias_r, functions), ""
        else:
            new, new_cell = lstm_step(n, now, state, cell, recurrence, bias_r, peephole, functions)
        out = new
        if lengths is not None:
            active = b.elementwise("gt", lengths, t)
            out = b.where(active, new, 0)
            new = b.where(active, new, state)
            new_cell = b.where(active, new_cell, cell) if new_cell else ""
        state, cell = new, new_cell
        outputs.append(out)
    return outputs, state, cell


def activations(n: Call, d: int) -> list[Activate]:
    """The activation functions of direction `d`, with their parameters and the clipping of their operands."""
    count = len(DEFAULT_ACTIVATIONS[n.op])
    # The lists of parameters run through the functions of all directions, so those before direction `d` take theirs first.
    names = n.attr("activations", DEFAULT_ACTIVATIONS[n.op] * (d + 1))[: (d + 1) * count]
    alphas, betas = iter(n.attr("activation_alpha", [])), iter(n.attr("activation_beta", []))
    limit = n.attr("clip")
    functions: list[Activate] = []
    for text in names:
        name = ACTIVATION_NAMES.get(text.lower())
        if name is None:
            raise n.unsupported(f"activation {text}")
        functions.append(
            _activation(
                n, name, next(alphas, None) if name in WITH_ALPHA else None, next(betas, None) if name in WITH_BETA else None, limit
            )
        )
    if len(functions) != (d + 1) * count:
        raise n.wrong(f"{len(functions)} activations are given where each direction needs {count}")
    return functions[d * count :]


WITH_ALPHA = frozenset({"Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu"})
WITH_BETA = frozenset({"Affine", "ScaledTanh", "HardSigmoid"})


def _activation(n: Call, name: str, alpha: float | None, beta: float | None, limit: float | None) -> Activate:
    def parameter(which: str, default: float) -> float:
        value = {"alpha": alpha, "beta": beta}.get(which)
        return default if value is None else value

    def apply(x: str) -> str:
        clipped = n.b.clamp(x, -limit, limit) if limit is not None else x
        return activate(n, clipped, name, parameter)

    return apply


def _sum(n: Call, *parts: str | None) -> str:
    terms = [p for p in parts if p is not None]
    total = terms[0]
    for p in terms[1:]:
        total = n.b.elementwise("add", total, p)
    return total


def _gate(n: Call, x: str, i: int, hidden: int) -> str:
    """Gate `i` of a tensor whose last dimension holds all gates."""
    return n.b.slice(x, [i * hidden], [(i + 1) * hidden], axes=[-1])


def gru_step(n: Call, now: str, state: str, recurrence: str, bias: str | None, fs: list[Activate]) -> str:
    """Gates z, r, h. The reset gate acts before the product with the recurrence, or after it where `linear_before_reset`."""
    b, hidden = n.b, n.shape(2)[-1]
    rest = [b.slice(recurrence, [i * hidden], [(i + 1) * hidden], axes=[0]) for i in range(3)]
    biases = [None if bias is None else _gate(n, bias, i, hidden) for i in range(3)]
    z = fs[0](_sum(n, _gate(n, now, 0, hidden), b.matmul(state, rest[0], False, True), biases[0]))
    r = fs[0](_sum(n, _gate(n, now, 1, hidden), b.matmul(state, rest[1], False, True), biases[1]))
    if n.attr("linear_before_reset", 0):
        inner = b.elementwise("mul", r, _sum(n, b.matmul(state, rest[2], False, True), biases[2]))
    else:
        inner = _sum(n, b.matmul(b.elementwise("mul", r, state), rest[2], False, True), biases[2])
    h = fs[1](_sum(n, _gate(n, now, 2, hidden), inner))
    old_part = b.elementwise("mul", z, state)
    return b.elementwise("add", b.elementwise("mul", _one_minus(n, z), h), old_part)


def _one_minus(n: Call, x: str) -> str:
    work = compute_dtype(n.b.dtype_of(x))
    return n.b.expression(lambda e: call("sub", const(1.0, work), e), x, dtype=n.b.dtype_of(x), name="rest")


def lstm_step(
    n: Call, now: str, state: str, cell: str, recurrence: str, bias: str | None, peephole: str | None, fs: list[Activate]
) -> tuple[str, str]:
    """Gates i, o, f, c; peepholes look at the cell: i and f at the old one, o at the new one."""
    b, hidden = n.b, n.shape(2)[-1]
    gates = _sum(n, now, b.matmul(state, recurrence, False, True), bias)
    i, o, f, c = (_gate(n, gates, k, hidden) for k in range(4))
    if peephole is not None:
        i = _sum(n, i, b.elementwise("mul", _gate(n, peephole, 0, hidden), cell))
        f = _sum(n, f, b.elementwise("mul", _gate(n, peephole, 2, hidden), cell))
    i = fs[0](i)
    f = _one_minus(n, i) if n.attr("input_forget", 0) else fs[0](f)
    new = _sum(n, b.elementwise("mul", f, cell), b.elementwise("mul", i, fs[1](c)))
    if peephole is not None:
        o = _sum(n, o, b.elementwise("mul", _gate(n, peephole, 1, hidden), new))
    return b.elementwise("mul", fs[0](o), fs[2](new)), new
