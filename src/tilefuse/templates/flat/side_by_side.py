"""Flat walks whose warps stand across two axes, so that what runs along either is touched in whole sectors.

    x[j, k] -> y[k, j], vectors v of 8 along k          32 lanes along k          16 along j, 2 along k

        a warp reads                                    512 bytes of one row      32 bytes of each of 16 rows
        each of its stores goes to                      32 sectors                2 sectors, filled

Nothing is staged in shared memory and nothing is waited for, and results in both orders are written at once. Elements past the end
of an axis, which do not fill its last warp, are left out by a guard.
"""
from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilefuse.domain.access import Access, flat_axes, stride_of
from tilefuse.domain.resolved import Domain
from tilefuse.ir.affine import Affine, Extents, substitute
from tilefuse.ir.scalar import Bound
from tilefuse.target.capabilities import WARP
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.flat.record import Pointwise


def last_axis(order: tuple[str, ...], extents: Mapping[str, int]) -> str:
    """The fastest axis that is no single place; "" where there is none."""
    return next((a for a in reversed(order) if extents[a] > 1), "")


def lanes_across(domain: Domain, device: DeviceSpec, touched: list[Access], order: tuple[str, ...], width: int) -> tuple[str, int]:
    """(axis, lanes along it) of warps that should stand across two axes; ("", 1) for a walk along memory.

    Requires: no scatter, nothing that one thread sums up alone. `width`: elements a vector.
    """
    last, total = last_axis(order, domain.extents), prod(domain.extents[a] for a in order)
    if not last or domain.extents[last] % width:
        return "", 1
    gained: dict[str, int] = {}
    in_order = False
    for access in touched:
        if access.dynamic or access.elements * 2 < total:
            continue
        step = stride_of(access.offset, last)
        if step == 1:
            in_order |= access.written
        elif step:
            for a in order:
                if a != last and domain.extents[a] >= device.fitted.flat.shortest_side and stride_of(access.offset, a) == 1:
                    gained[a] = gained.get(a, 0) + access.elements * (2 if access.written else 1)
    if not gained:
        return "", 1
    across = max(gained, key=lambda a: gained[a])
    side = device.fitted.flat.lanes_across_two_orders if in_order else device.fitted.flat.lanes_across
    while side >= 2 * domain.extents[across]:
        side //= 2
    return across, side


def num_vectors(choice: Pointwise, extents: Mapping[str, int]) -> int:
    """Whole vectors of the walk; those beyond the ends of its axes count where warps stand across two. Units: vectors."""
    if choice.side == 1:
        return prod(extents[a] for a in choice.order) // choice.vector
    return prod(_tiled(choice, extents).values()) // choice.vector


def places(choice: Pointwise, flat: Affine, extents: Mapping[str, int], kernel_extents: Extents) -> dict[str, Affine]:
    """Each axis as a function of the position in the walk. Units: `flat` in elements, a warp's one after another."""
    if choice.side == 1:
        return flat_axes(choice.order, flat, extents, kernel_extents)
    tiled, last = _tiled(choice, extents), last_axis(choice.order, extents)
    at = flat_axes(tuple(tiled), flat, tiled, kernel_extents)
    at_lane = {a: at.get(a, Affine()) for a in choice.order}
    at_lane[choice.across] = at["across tile"] * choice.side + at["across lane"]
    at_lane[last] = at["last tile"] * tiled["last lane"] + at["last lane"]
    return at_lane


def inside(choice: Pointwise, at: Mapping[str, Affine], lane: str, extents: Mapping[str, int]) -> list[Bound]:
    """Bounds under which a vector lies inside the axes. `lane`: the axis of its elements."""
    if choice.side == 1:
        return []
    last = last_axis(choice.order, extents)
    tiled = _tiled(choice, extents)
    bounds = []
    if extents[choice.across] % choice.side:
        bounds.append(Bound(at[choice.across], 0, extents[choice.across]))
    if extents[last] % tiled["last lane"]:
        bounds.append(Bound(substitute(at[last], {lane: Affine()}, {}), 0, extents[last]))
    return bounds


def _tiled(choice: Pointwise, extents: Mapping[str, int]) -> dict[str, int]:
    """Axes of the walk by warps, slowest first: those that it goes along, tiles of the two that warps stand across, and their lanes."""
    last = last_axis(choice.order, extents)
    along = WARP // choice.side * choice.vector
    others = {a: extents[a] for a in choice.order if a not in (choice.across, last) and extents[a] > 1}
    return {**others, "across tile": -(-extents[choice.across] // choice.side), "last tile": -(-extents[last] // along),
            "across lane": choice.side, "last lane": along}
