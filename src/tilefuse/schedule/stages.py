"""What a row or column must give to reductions that depend on each other: their order, and the bytes that stay on chip between them."""
from __future__ import annotations

from tilefuse.schedule.access import Access
from tilefuse.schedule.resolved import Domain


def kept_bytes_of(domain: Domain, found: list[Access]) -> int:
    """Bytes an element of the row that must stay on chip between stages (each distinct full read once)."""
    full = [a for a in found if not a.written and not a.dynamic and a.offset.axes() & set(domain.reduced)
            and (not domain.kept or domain.num_kept == 1 or a.offset.axes() & set(domain.kept))]
    return sum(a.itemsize for a in full)


def stages(domain: Domain) -> dict[int, int]:
    """For every shared instance how many shared reductions must come before it."""
    depth: dict[int, int] = {}
    below: dict[int, int] = {}
    for instance in domain.instances:
        needed = max((below[u] for u in instance.uses), default=0)
        if instance.shared and not instance.carried and instance.second_of is None:
            depth[instance.key] = needed
            below[instance.key] = needed + 1
        else:
            below[instance.key] = needed
    return depth


def is_multi_stage(domain: Domain) -> bool:
    """Whether elements are needed again after a reduction over them is done."""
    depth = stages(domain)
    if max(depth.values(), default=0) > 0 or domain.has_scan:
        return True
    return any(offset.axes() & set(domain.reduced) for _, key,
               offset in domain.outputs if domain.num_reduced > 1 and after_shared(domain, key))


def after_shared(domain: Domain, key: int) -> bool:
    """Whether a value is a shared reduction or depends on one. What does not can be written while the first reductions read their row."""
    instance = domain.instances[key]
    return instance.shared or any(after_shared(domain, u) for u in instance.uses)


def writes_rows(domain: Domain) -> bool:
    """Whether a result has a value an element of the row."""
    return any(offset.axes() & set(domain.reduced) for _, _, offset in domain.outputs)
