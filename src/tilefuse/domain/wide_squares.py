"""Squared deviations on the host: Welford's count, mean and sum in f64, for every element type.

    reduce.m2 { x }      ->      f32(reduce.m2 { f64(x) })

A mean near 5000 has an error of 2e-4 in f32. The squares of these errors add up and hide a small variance. An f64 mean is exact enough, at
half the lanes per vector. Rows that one thread reads in vectors are still read and summed in f32, and squared in f64
(`templates/rows/squares.py`).
"""
from __future__ import annotations

from dataclasses import replace

from tilefuse.domain.resolved import Domain, Instance, Resolved, resolved_dtype
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Call


def wide_squares(domain: Domain, in_stretches: bool) -> Domain:
    """The domain with the elements of its m2 reductions, and of sums of the same elements, in f64; the same object if there is none.

    in_stretches: one thread reads rows in vectors, twice. Sums then stay f32, in one chain per lane. Otherwise an f32 sum would be one
    chain down a column (var_mean of [16, 1024, 1024] over axis 1: 6.6 times the error of eager's mean), so it is widened too.
    A result keeps the dtype of its node: `Emitter.finished` converts it.
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
    """The elements of a reduction before `wide_squares` converts them."""
    body = i.body
    if i.node.detail == "m2" and i.node.type.dtype == F32 and isinstance(body, Call) and body.fn == "f64":
        return body.args[0]
    return body
