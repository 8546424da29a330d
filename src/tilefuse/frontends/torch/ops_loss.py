"""Negative log-likelihood and its gradient, in forms that share a kernel with the preceding softmax.

Where the log-probabilities are computed in the same graph, the target's one is picked by a reduction over the classes (a
comparison per class, but no second pass over memory); else it is looked up. The gradient is a map: no scatter.
"""

from __future__ import annotations

from tilefuse.frontends.torch.ops import TorchBuilder, Value, lowers
from tilefuse.ir.affine import axis, number
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor_elementwise import converted
from tilefuse.ir.building.tensor_gather import position
from tilefuse.ir.dtype import I64, DType, compute_dtype
from tilefuse.ir.scalar import Expr, Index, Lookup, Read, call, const, in_range

NONE, MEAN = 0, 1


@lowers("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def nll_loss_forward(b: TorchBuilder, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int) -> tuple[str, str]:
    """Negative log-likelihoods of the targets, and the total weight that a mean divides by (reduction: 0 none, 1 mean, 2 sum).

    Shapes: x: [C], [N, C] or [N, C, *S]; target: x without C; weight: [C]
    """
    work = compute_dtype(b.dtype_of(x))
    shape = b.shape_of(target)
    axes = axis_names(len(shape))
    valid, safe = _target(b, target, axes, ignore_index)
    # Every target that counts is checked here, however its log-probability is picked: a class in range is no negative number.
    safe = in_range(safe, b.shape_of(x)[1 if b.rank_of(x) > 1 else 0], I64)
    counted = call("logical_and", valid, call("ge", safe, const(0, I64)))
    scale = _weight(b, weight, safe, work)
    zero = const(0, work)
    picked = b.read(_picked(b, x, target, work), shape, axes)
    losses = b.make_map("losses", work, shape, axes, call("select", counted, call("neg", call("mul", picked, scale)), zero))
    assert b.expected[1] is not None
    if reduction == NONE:
        return b.cast(losses, b.result_dtype), b.full(b.expected[1][1], 0, b.expected[1][0])
    total = b.reduce(b.make_map("weights", work, shape, axes, call("select", valid, scale, zero)), "sum")
    summed = b.reduce(losses, "sum")
    loss = b.elementwise("div", summed, total) if reduction == MEAN else summed
    return b.cast(loss, b.result_dtype), b.cast(total, b.expected[1][0])


@lowers("aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default")
def nll_loss_backward(
    b: TorchBuilder, grad: Value, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int, total_weight: Value
) -> str:
    """-grad * weight of the class at the target's class, divided by the total weight for a mean; 0 elsewhere."""
    work = compute_dtype(b.result_dtype)
    shape = b.shape_of(x)
    axes = axis_names(len(shape))
    at = 1 if len(shape) > 1 else 0
    axes_of_targets = (*axes[:at], *axes[at + 1 :])
    valid, safe = _target(b, target, axes_of_targets, ignore_index)
    hit = call("logical_and", valid, call("eq", Index(number(0) if shape[at] == 1 else axis(axes[at])), safe))
    pulled: Expr = b.read_as(grad, work, b.shape_of(target), axes_of_targets)
    if weight is not None:
        pulled = call("mul", pulled, converted(Read(weight, (number(0) if shape[at] == 1 else axis(axes[at]),)), b.dtype_of(weight), work))
    if reduction == MEAN:
        pulled = call("div", pulled, b.read_as(total_weight, work, (), ()))
    body = call("select", hit, call("neg", pulled), const(0, work))
    return b.make_map("nll_grad", b.result_dtype, shape, axes, converted(body, work, b.result_dtype))


def _target(b: TorchBuilder, target: Value, axes: tuple[str, ...], ignore_index: int) -> tuple[Expr, Expr]:
    """Whether the target counts, and its class (0 where it does not)."""
    chosen = b.read_as(target, I64, b.shape_of(target), axes)
    valid = call("ne", chosen, const(ignore_index, I64))
    return valid, call("select", valid, chosen, const(0, I64))


def _weight(b: TorchBuilder, weight: Value | None, safe: Expr, work: DType) -> Expr:
    if weight is None:
        return const(1, work)
    return converted(Lookup(weight, (safe,)), b.dtype_of(weight), work)


def _picked(b: TorchBuilder, x: Value, target: Value, work: DType) -> str:
    """The log-probability of each target. For targets that do not count, any class in range may be read."""
    shape = b.shape_of(x)
    at = 1 if len(shape) > 1 else 0
    computed = any(n.name == x and (n.kind == "library.log_softmax" or n.kind == "map" and not isinstance(n.body, Read)) for n in b.nodes)
    names = axis_names(len(shape))
    axes_of_targets = (*names[:at], *names[at + 1 :])
    small = b.shape_of(target)
    if not computed:
        chosen = b.read_as(target, I64, small, axes_of_targets)
        around = iter(position(a, s) for a, s in zip(axes_of_targets, small))
        body = Lookup(x, tuple(chosen if d == at else next(around) for d in range(len(shape))))
        return b.make_map("picked", work, small, axes_of_targets, converted(body, b.dtype_of(x), work))
    hit = call("eq", b.read_as(target, I64, small, axes_of_targets), Index(number(0) if shape[at] == 1 else axis(names[at])))
    element = call("select", hit, b.read_as(x, work, shape, names), const(0, work))
    one = b.make_map("target_only", work, shape, names, element)
    return b.reduce(one, "sum", (at,))
