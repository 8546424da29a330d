"""Squared deviations on the host: Welford's count, mean and sum in f64, whatever the elements are.

    reduce.m2 { x }      ->      f32(reduce.m2 { f64(x) })

A mean near 5000 that is held in f32 is 2e-4 off; the squares of these errors add up, and a small spread is lost in them. An f64 holds
it, at half the lanes of a vector. Rows that one thread takes in vectors read and sum f32 still, and square in f64
(`templates/rows/squares.py`).
"""
from __future__ import annotations

from dataclasses import replace

from tilefuse.domain.resolved import Domain, Instance, Resolved, resolved_dtype
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Call


def wide_squares(domain: Domain, in_stretches: bool) -> Domain:
    """The domain with the elements of its m2 reductions in f64, and of sums of the same; the same object if there is none to widen.

    in_stretches: one thread takes rows in vectors and reads them twice: sums stay f32, in as many chains as a vector has lanes. Elsewhere
    one f32 chain runs down a column beside f64 ones (var_mean of [16, 1024, 1024] over axis 1: the mean 6.6 times eager's error).
    A result keeps the dtype of its node: the generator converts it (`Emitter.finished`).
    """
    def is_narrow(i: Instance) -> bool:
        return i.node.detail == "m2" and resolved_dtype(i.body, domain) == F32

    squared = [i.body for i in domain.instances if is_narrow(i)]
    if not squared:
        return domain
    widened = ("m2",) if in_stretches else ("m2", "sum")
    instances = [replace(i, body=Call("f64", (i.body,))) if i.node.detail in widened and i.body in squared else i
                 for i in domain.instances]
    return Domain(domain.kept, domain.reduced, domain.extents, instances, domain.outputs, domain.scatter, domain.has_scan)


def narrow_body(i: Instance) -> Resolved:
    """The elements of a reduction as they were before `wide_squares`."""
    body = i.body
    if i.node.detail == "m2" and i.node.type.dtype == F32 and isinstance(body, Call) and body.fn == "f64":
        return body.args[0]
    return body
