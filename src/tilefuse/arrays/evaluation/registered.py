"""`register_operator`: an operator of one's own from a C expression, usable as a function of arrays at once."""
from __future__ import annotations

from collections.abc import Callable, Sequence

from tilefuse.arrays.array import Array
from tilefuse.arrays.evaluation.custom_gradient import check_adjoint
from tilefuse.arrays.evaluation.custom_meaning import HostMeaning
from tilefuse.arrays.nodes import user_span
from tilefuse.arrays.operators import operator_of
from tilefuse.base.errors import UserError
from tilefuse.ir.custom import CUSTOM_FUNCTIONS, DEFAULT_FLOPS, register_function, unregister_function


def register_operator(name: str, signature: str, cuda: str, *, host: str | None = None, adjoint: str | Sequence[str] | None = None,
                      check_gradient: bool = True, flops: int = DEFAULT_FLOPS, doc: str = "") -> Callable[..., Array]:
    """Registers an elementwise operator and gives it as a function of arrays. It fuses with its neighbours like a built-in one.

        my_sigmoid = ta.register_operator("my_sigmoid", "(x: float) -> float", "1 / (1 + exp(-x))", adjoint="g * y * (1 - y)")

    signature: names of the arguments with their class (float, int, number, bool, or one dtype such as f32), and the result: the same
    word for the operands' own type, or a dtype. cuda: an expression in these names, or statements that return; T is the operands' type.
    host: the same for the host; default: the CUDA text. adjoint: for each argument what arrives at it, in the same syntax, of its name,
    y (the result) and g (the result's adjoint); without it the operator has no gradient. check_gradient: whether the adjoint is compared
    with differences of the operator's values; False for a surrogate gradient. flops: what a call costs, for the planner.
    doc: a line for people.
    Raises: UserError and its kinds, with the line, for a taken name, a signature or an expression that is none, or a wrong adjoint.
    """
    where, known = user_span(), name in CUSTOM_FUNCTIONS
    custom = register_function(name, signature, cuda, host=host, adjoint=adjoint, flops=flops, doc=doc, meaning=HostMeaning(name),
                               where=where)
    if check_gradient:
        try:
            check_adjoint(custom, cuda if host is None else host, where)
        except UserError:
            if not known:
                unregister_function(name)
            raise
    return operator_of(custom)
