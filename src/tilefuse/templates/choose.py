"""Which template a root domain takes on a device: by what runs along memory, and by what its reductions need."""
from __future__ import annotations

from tilefuse.base.candidate import Rejected
from tilefuse.domain.access import accesses, contiguous_axes
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Choice
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.columns.choose import choose_columns
from tilefuse.templates.flat.choose import choose_pointwise
from tilefuse.templates.rows.choose import choose_rows
from tilefuse.templates.rows.choose_carried import choose_carried
from tilefuse.templates.transpose.choose import choose_transpose


def choose(domain: Domain, device: DeviceSpec) -> Choice | Rejected:
    """The template and its parameters for a domain on a device, or why there is none."""
    found = accesses(domain)
    shared = [i for i in domain.instances if i.shared]
    if domain.scatter is not None or not shared:
        return choose_transpose(domain, device, found) or choose_pointwise(domain, device, found)
    if any(i.carried for i in shared):
        return choose_carried(domain, device, found)
    weights = contiguous_axes(found, domain.kept + domain.reduced, domain.extents)
    along_kept = max((weights[a] for a in domain.kept), default=0)
    along_reduced = max((weights[a] for a in domain.reduced), default=0)
    if along_kept > along_reduced and domain.num_kept > 1 and not domain.has_scan:
        return choose_columns(domain, device, found)
    return choose_rows(domain, device, found)
