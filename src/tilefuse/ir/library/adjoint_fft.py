"""Adjoints of the framework's Fourier transforms: transforms the other way. Complex numbers are pairs of reals in the last dimension."""
from __future__ import annotations

from collections.abc import Sequence

from tilefuse.ir.affine import axis
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.graph import Attribute, Node, Type
from tilefuse.ir.library.adjoint import OF_COMPLEX, Request, adjoint_of
from tilefuse.ir.library.adjoint_linalg import LIBRARY_ADJOINTS
from tilefuse.ir.scalar import Bound, Expr, Guard, call, const

__all__ = ["LIBRARY_ADJOINTS"]

COMPLEX, FROM_REAL, TO_REAL = "aten._fft_c2c.default", "aten._fft_r2c.default", "aten._fft_c2r.default"
OF_COMPLEX.update((COMPLEX, TO_REAL))


def _settings(node: Node) -> tuple[tuple[int, ...], int, int]:
    """(dimensions, divisor of the transform, its own setting) of a call."""
    args = node.attribute("args", ())
    assert isinstance(args, tuple)
    _, over, divided, setting = args
    assert isinstance(over, tuple) and isinstance(divided, int) and isinstance(setting, int)
    return tuple([d for d in over if isinstance(d, int)]), divided, setting


def _transform(b: TensorBuilder, operator: str, type: Type, x: str, over: Sequence[int], divided: int, setting: int) -> str:
    operand: Attribute = ("%" if operator == FROM_REAL else "complex", 0)
    return b.library("fft", operator, type, (x,), {"args": (operand, tuple(over), divided, setting), "kwargs": ()})


@adjoint_of(COMPLEX)
def _complex(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """The same transform the other way, divided as before."""
    over, divided, forward = _settings(request.node)
    return (_transform(b, COMPLEX, request.node.type, request.gradients[0], over, divided, not forward),)


@adjoint_of(FROM_REAL)
def _from_real(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """Only half of the elements exist: the others have gradient 0. The gradient is the real part of the inverse transform."""
    over, divided, _ = _settings(request.node)
    whole = b.shape_of(request.node.operands[0])
    g = request.gradients[0]
    missing = [whole[d] - s if d == over[-1] else 0 for d, s in enumerate(b.shape_of(g)[:-1])]
    filled = b.pad(g, [*((0, m) for m in missing), (0, 0)])
    back = _transform(b, COMPLEX, Type(b.dtype_of(g), (*whole, 2)), filled, over, divided, False)
    return (b.select(back, len(whole), 0),)


@adjoint_of(TO_REAL)
def _to_real(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """Each element that also represents its conjugate has twice the gradient."""
    over, divided, count = _settings(request.node)
    shape = b.shape_of(request.node.operands[0])
    g = _transform(b, FROM_REAL, Type(b.dtype_of(request.gradients[0]), shape), request.gradients[0], over, divided, True)
    axes = axis_names(len(shape))
    element = b.read(g, shape, axes)
    along = axis(axes[over[-1]])
    double = call("mul", const(2, b.dtype_of(g)), element)
    twice: Expr = Guard((Bound(along, 1, 1 + count - shape[over[-1]]),), double, element) if shape[over[-1]] > 1 else element
    return (b.make_map("fft", b.dtype_of(g), shape, axes, twice),)
