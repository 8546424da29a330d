"""Online sums of exponentials: the maximum of a row and the sum of exp(x - maximum) in one pass over it.

    M = reduce.max { x };  S = reduce.sum { exp(x - M) }      ->      (m, s) together:
    (m1, s1) + (m2, s2) = (m, s1 * exp(m1 - m) + s2 * exp(m2 - m)),  m = max(m1, m2)

The form serves kernels that write only row results (a loss, a log-sum-exp). Any number of blocks then reads the row once as a stream, and
it need not stay on chip. Source: Milakov and Gimelshein 2018, arXiv:1805.02867.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from tilefuse.domain.resolved import Domain, Instance, Resolved, Use, rebuilt
from tilefuse.domain.stages import is_multi_stage, writes_rows
from tilefuse.ir.dtype import DType
from tilefuse.ir.monoids import MONOIDS, Components, Monoid
from tilefuse.ir.scalar import Call, Const, const

# A component of a partial result: a register, or an expression of one level.
Part = TypeVar("Part")


def _minus_infinity(dtype: DType) -> Const:
    return const(float("-inf"), dtype)


def _joined(a: Components, b: Components, dtype: DType) -> Components:
    top = Call("maximum", (a[0], b[0]))
    # If all elements so far are -inf, the differences would be NaN. With a shift of 0 the terms are exp(-inf) = 0.
    shift = Call("select", (Call("eq", (top, _minus_infinity(dtype))), const(0, dtype), top))
    terms = [Call("mul", (s, Call("exp", (Call("sub", (m, shift)),)))) for m, s in (a, b)]
    return top, Call("add", (terms[0], terms[1]))


EXPSUM = Monoid("expsum", "float", lambda t: (t, t), lambda t: (_minus_infinity(t), const(0, t)),
                lambda body, position, t: (body, const(1, t)), _joined, lambda c, t: c[0], lambda t: t,
                "maximum, and sum of exponentials relative to it")

# Monoids of kernels: those of the graph, and pairs that occur only inside a kernel.
KERNEL_MONOIDS: dict[str, Monoid] = {**MONOIDS, EXPSUM.name: EXPSUM}


def second_result(parts: Sequence[Part], dtype: DType) -> Call[Call[Part | Const] | Const | Part]:
    """The sum component of an online maximum; NaN for a row of -inf, the value of exp(-inf - -inf)."""
    return Call("select", (Call("eq", (parts[0], _minus_infinity(dtype))), const(float("nan"), dtype), parts[1]))


def with_online_sums(domain: Domain) -> Domain:
    """The domain with maximum and sum of exponentials as one reduction; the same object if the row would still need a second pass."""
    if writes_rows(domain) or not is_multi_stage(domain):
        return domain
    instances = list(domain.instances)
    for s in domain.instances:
        top = _maximum_of(s, domain)
        if top is None or instances[top.key].node.detail == EXPSUM.name:
            continue
        instances[top.key] = replace(top, node=replace(top.node, kind=f"reduce.{EXPSUM.name}"))
        instances[s.key] = replace(s, uses=(top.key,), second_of=top.key)
    single_pass = Domain(domain.kept, domain.reduced, domain.extents, instances, domain.outputs, domain.scatter, domain.has_scan)
    return domain if is_multi_stage(single_pass) else single_pass


def _maximum_of(s: Instance, domain: Domain) -> Instance | None:
    """The maximum M of x if `s` is the sum of exp(x - M) over the same row; else None."""
    if not s.shared or s.carried or s.node.kind != "reduce.sum":
        return None
    body = _expanded(s.body, domain)
    if not (isinstance(body, Call) and body.fn == "exp" and isinstance(body.args[0], Call) and body.args[0].fn == "sub"):
        return None
    x, shift = body.args[0].args
    if not isinstance(shift, Use):
        return None
    top = domain.instances[shift.key]
    same = top.shared and top.node.kind == "reduce.max" and top.coordinate == s.coordinate
    return top if same and _expanded(top.body, domain) == x else None


def _expanded(e: Resolved, domain: Domain) -> Resolved:
    """A body with the bodies of other maps expanded."""
    def leaf(x: Resolved) -> Resolved:
        if isinstance(x, Use) and not domain.instances[x.key].shared and not domain.instances[x.key].serial:
            return _expanded(domain.instances[x.key].body, domain)
        return x

    return rebuilt(e, leaf)
