"""Which patterns are computed in register tiles, and by how many threads a block."""
from __future__ import annotations

from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.access import Access, by_memory_order
from tilefuse.domain.resolved import Domain
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.tiles.record import RegisterTile
from tilefuse.templates.tiles.unrolled import Sides, num_elements, sides_of


def choose_tile(domain: Domain, device: DeviceSpec, accessed: list[Access]) -> RegisterTile | Rejected:
    """The tile of a pattern: all places of the axes by which formulas are chosen."""
    if domain.scatter is not None or domain.has_scan or any(i.shared or i.serial or i.carried for i in domain.instances):
        return Rejected(Reason.OTHER_TEMPLATE, "not a map")
    if any(a.dynamic for a in accessed):
        return Rejected(Reason.OTHER_TEMPLATE, "data decide what it reads")
    sides, limits = sides_of(domain), SEARCH.walks
    if not limits.least_tile <= num_elements(sides) <= limits.largest_tile:
        return Rejected(Reason.OTHER_TEMPLATE, f"positions choose between {num_elements(sides)} formulas")
    threads = 1 if device.kind == "host" else device.fitted.flat.threads
    return RegisterTile(tile_order(domain, sides, accessed), sides, threads)


def tile_order(domain: Domain, sides: Sides, accessed: list[Access]) -> tuple[str, ...]:
    """Axes of the domain of tiles, in the order of memory, the slowest first: axes that a tile covers have one place and come first."""
    names = by_memory_order(domain.kept + domain.reduced, accessed, domain.extents)
    covered = {a for a, side in sides if domain.extents[a] <= side}
    return (*(a for a in names if a in covered), *(a for a in names if a not in covered))


def num_tiles(domain: Domain, choice: RegisterTile) -> int:
    """Tiles of a domain."""
    return prod(-(-domain.extents[a] // dict(choice.sides).get(a, 1)) for a in choice.order)
