"""Squared deviations on the host: Welford's count, mean and sum in f64, whatever the elements are.

    reduce.m2 { x }      ->      f32(reduce.m2 { f64(x) })

A mean near 5000 that is held in f32 is 2e-4 off; the squares of these errors add up, and a small spread is lost in them. An f64 holds
it, at half the lanes of a vector. Rows that one thread takes in vectors keep f32: their stretches have two passes (`rows_squares.py`).
"""
from __future__ import annotations

from dataclasses import replace

from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Call
from tilefuse.schedule.resolved import Domain, Instance, resolved_dtype
from tilefuse.schedule.template import Choice, Rows


def wide_squares(domain: Domain, choice: Choice) -> Domain:
    """The domain with the elements of its m2 reductions in f64; the same object if there is none to widen.

    A result keeps the dtype of its node: the generator converts it (`Emitter.finished`).
    """
    stretched = isinstance(choice, Rows) and has_stretches(choice)

    def is_narrow(i: Instance) -> bool:
        return i.node.detail == "m2" and not (i.shared and stretched) and resolved_dtype(i.body, domain) == F32

    if not any(is_narrow(i) for i in domain.instances):
        return domain
    instances = [replace(i, body=Call("f64", (i.body,))) if is_narrow(i) else i for i in domain.instances]  # type: ignore[arg-type]
    return Domain(domain.kept, domain.reduced, domain.extents, instances, domain.outputs, domain.scatter, domain.has_scan)


def has_stretches(choice: Rows) -> bool:
    """Whether squared deviations are made stretch by stretch on the host: one thread has the row, in vectors that can be halved."""
    return choice.threads == 1 < choice.vector and choice.vector.bit_count() == 1
