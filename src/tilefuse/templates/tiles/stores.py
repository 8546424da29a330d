"""Stores of a tile that are one access: elements that lie side by side in memory and begin at a multiple of their length."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.domain.resolved import Domain
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.tiles.unrolled import TileStore, UnrolledTile


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Stores of one result. is_vector: they lie side by side and are one access."""

    stores: tuple[TileStore, ...]
    is_vector: bool


def stored_runs(tile: UnrolledTile, device: DeviceSpec) -> list[StoredRun]:
    """The stores of a tile, those that are one access together. Units: the device's widest access in bytes."""
    runs: list[StoredRun] = []
    for value in dict.fromkeys(s.value for s in tile.stores):
        stores = [s for s in tile.stores if s.value == value]
        widest = device.vector_bytes // _itemsize(tile.domain, stores[0])
        while stores:
            width = next((w for w in (8, 4, 2) if w <= min(widest, len(stores)) and _is_one_access(stores[:w])), 1)
            runs.append(StoredRun(tuple(stores[:width]), width > 1))
            stores = stores[width:]
    return runs


def _itemsize(domain: Domain, store: TileStore) -> int:
    return domain.instances[store.key].node.type.dtype.itemsize


def _is_one_access(stores: list[TileStore]) -> bool:
    """Whether stores lie side by side, begin at a multiple of their length at every place, and exist together."""
    first, width = stores[0].offset, len(stores)
    side_by_side = all(s.offset == first + n for n, s in enumerate(stores))
    aligned = first.const % width == 0 and all(c % width == 0 for _, c in first.terms)
    return side_by_side and aligned and all(s.inside == stores[0].inside for s in stores)
