"""Squared deviations over rows that stay on chip: the mean first, then the sum of (x - mean)^2, both from registers.

    reduce.m2 { x }      ->      s = reduce.sum { x }      (an existing sum of the row is reused)
                                 m2 = reduce.sum { (x - s / n)^2 }

The two passes need one more exchange between threads, but no division and no chain of corrections per element. They are at least as
accurate as Welford's update. Source: Chan, Golub and LeVeque 1983, The American Statistician 37(3), first form of the corrected two-pass
algorithm.
"""
from __future__ import annotations

from tilefuse.base.construction import replace
from tilefuse.domain.resolved import Domain, Instance, Resolved, Use, rebuilt, resolved_dtype
from tilefuse.ir.scalar import Call, const


def two_pass(domain: Domain) -> Domain:
    """The domain with every shared m2 in two passes; the same object if there is none."""
    if not any(i.shared and i.node.kind == "reduce.m2" for i in domain.instances):
        return domain
    new = Domain(domain.kept, domain.reduced, domain.extents, [], [], domain.scatter, domain.has_scan)
    renumbered: dict[int, int] = {}

    def add(instance: Instance, body: Resolved, uses: tuple[int, ...]) -> int:
        key = len(new.instances)
        new.instances.append(replace(instance, key=key, body=body, uses=uses))
        return key

    for i in domain.instances:
        body = rebuilt(i.body, lambda x: Use(renumbered[x.key]) if isinstance(x, Use) else x)
        uses = tuple(renumbered[u] for u in i.uses)
        if not (i.shared and i.node.kind == "reduce.m2"):
            renumbered[i.key] = add(i, body, uses)
            continue
        total = next((o.key for o in new.instances if o.shared and o.node.kind == "reduce.sum" and o.body == body
                      and o.coordinate == i.coordinate), None)
        if total is None:
            total = add(replace(i, node=replace(i.node, kind="reduce.sum", name=i.node.name + "_total")), body, uses)
        dtype = resolved_dtype(body, new)
        mean: Resolved = Call("mul", (Use(total), const(1.0 / domain.num_reduced, dtype)))
        off: Resolved = Call("sub", (body, mean))
        squared: Resolved = Call("mul", (off, off))
        renumbered[i.key] = add(replace(i, node=replace(i.node, kind="reduce.sum"), squares_of=total), squared, (*uses, total))
    new.outputs = [(name, renumbered[key], offset) for name, key, offset in domain.outputs]
    return new
