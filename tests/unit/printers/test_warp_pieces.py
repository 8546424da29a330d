"""Pieces of the inner axis that lanes hold: places that the host means, addresses that the device loads, banks that these meet in."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.templates.staged.pipelined.product_graphs import of_bytes
from tests.unit.templates.staged.pipelined.swapped_cases import swapped
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import axis, evaluate
from tilefuse.kernel.ir import Kernel
from tilefuse.kernel.pipeline import WarpgroupProduct, inner_of_piece, swizzled_byte
from tilefuse.kernel.pipeline_rules import pipeline_faults
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.template import schedule_product

# Inner elements of a panel, and bytes from one panel of the rows to the next.
PANEL, NEXT = 64, 2048


def loaded_bytes(lane: int, piece: int, half: int) -> np.ndarray:
    """Bytes of the rows that a lane loads for one half of its piece, as `tf_warp_pieces` addresses them."""
    line, second = lane >> 2, lane >> 1 & 1
    chunk = (4 * (lane & 1) + 2 * second) ^ line
    return line * 128 + second * NEXT + (chunk ^ piece * 2 ^ half) * 16 + np.arange(16)


def weight_bytes(lane: int, piece: int) -> np.ndarray:
    """Bytes of a lane's line of 128 weights of 8 bits that it loads for a piece."""
    columns = np.array([PANEL * piece + 8 * group + 2 * (lane % 4) + v for group in range(8) for v in range(2)])
    inner = evaluate(inner_of_piece(axis("k"), PANEL), {"k": columns})
    assert (np.diff(inner) == 1).all() and inner[0] % 16 == 0
    return np.array([swizzled_byte(lane // 4 * 128 + int(k), 128) for k in inner])


@pytest.mark.parametrize("piece", [0, 1])
def test_lanes_load_the_elements_of_their_pieces(piece: int) -> None:
    """Words of a lane in order are the inner elements that its registers for neighbouring columns hold."""
    for lane in range(32):
        words = np.concatenate([loaded_bytes(lane, piece, half) for half in (0, 1)]).reshape(-1, 2)[:, 0]
        columns = np.array([PANEL * piece + 8 * group + 2 * (lane % 4) + v for group in range(8) for v in range(2)])
        inner = evaluate(inner_of_piece(axis("k"), PANEL), {"k": columns})
        assert [int(k) // PANEL * NEXT + swizzled_byte(lane // 4 * 128 + 2 * (int(k) % PANEL), 128) for k in inner] == words.tolist()


def test_pieces_are_every_element_once() -> None:
    """A permutation of each two panels."""
    inner = evaluate(inner_of_piece(axis("k"), PANEL), {"k": np.arange(4 * PANEL)})
    assert sorted(inner.tolist()) == list(range(4 * PANEL)) and (inner[:2 * PANEL] < 2 * PANEL).all()


@pytest.mark.parametrize("piece", [0, 1])
def test_lanes_that_load_together_meet_in_no_bank(piece: int) -> None:
    """Loads of 16 bytes go eight lanes at a time over 32 banks of 4 bytes: rows, and weights of 8 bits."""
    for first in range(0, 32, 8):
        for loads in ([loaded_bytes(lane, piece, 0) for lane in range(first, first + 8)],
                      [loaded_bytes(lane, piece, 1) for lane in range(first, first + 8)],
                      [weight_bytes(lane, piece) for lane in range(first, first + 8)]):
            banks = [b for load in loads for b in set((load // 4 % 32).tolist())]
            assert len(banks) == len(set(banks)) == 32


def test_pieces_are_of_pairs_of_panels() -> None:
    """One panel, and products of warpgroups, have none."""
    program = schedule_product(of_bytes(11, 136, 304), {}, H200, swapped(16, 128, 3, by_warps=True))
    assert isinstance(program, TileProgram)
    kernel = compose_product(program, H200)
    assert not pipeline_faults(kernel)
    for wrong in ({"inner": 64}, {"by_warps": False}):
        assert any("pairs of panels" in fault for fault in pipeline_faults(_with_products(kernel, wrong)))


def _with_products(kernel: Kernel, changes: dict[str, object]) -> Kernel:
    """The kernel with fields of its products replaced."""
    def changed(s: object) -> object:
        if isinstance(s, WarpgroupProduct):
            return replace(s, **changes)  # type: ignore[arg-type]
        body = getattr(s, "body", None)
        return replace(s, body=tuple(map(changed, body))) if isinstance(body, tuple) else s  # type: ignore[type-var]

    return replace(kernel, body=tuple(map(changed, kernel.body)))  # type: ignore[arg-type]
