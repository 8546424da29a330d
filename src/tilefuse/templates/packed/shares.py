"""Parts whose blocks take turns: each part has a share of the blocks that run at once, so that all blocks fetch about as many bytes.

    weights of queries | keys | values     blocks 0 .. 85 | 86 .. 107 | 108 .. 129     a block: norm of the row, then rows of its matrix

Every block runs from the start, so that the first rows of all parts are on their way before the kernel ahead ends.
"""
from __future__ import annotations

from collections.abc import Mapping

from tilefuse.base.candidate import Rejected
from tilefuse.domain.tile import TileProgram
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.neighbours import part_refusal
from tilefuse.templates.registry import kernel_template


def shared_blocks(programs: Mapping[int, TileProgram], members: Mapping[int, int], fetches_early: bool,
                  device: DeviceSpec) -> dict[int, TileProgram] | None:
    """The programs with blocks in turns that all run at once; None where one of them has none, or the device too few multiprocessors.

    A program's share follows its bytes. Blocks that a program has no use for go to the program whose blocks fetch most.

    members: parts that run each program. fetches_early: as of `Request`.
    """
    moved = {n: program.bytes_moved for n, program in programs.items()}
    total = sum(moved[n] * members[n] for n in programs)
    shares: dict[int, TileProgram] = {}
    for n, program in programs.items():
        blocks = max(device.num_multiprocessors * moved[n] // max(total, 1), 1)
        share = _in_turns(program, blocks, fetches_early, device)
        if share is None:
            return None
        shares[n] = share
    while True:
        spare = device.num_multiprocessors - sum(p.launch.num_blocks * members[n] for n, p in shares.items())
        if spare < 0:
            return None
        fullest = max(shares, key=lambda n: turns_bytes(shares[n]))
        blocks = shares[fullest].launch.num_blocks + spare // members[fullest]
        wider = _in_turns(programs[fullest], blocks, fetches_early, device)
        if wider is None or turns_bytes(wider) >= turns_bytes(shares[fullest]):
            break
        shares[fullest] = wider
    return shares if len({p.launch.num_threads for p in shares.values()}) == 1 else None


def _in_turns(program: TileProgram, blocks: int, fetches_early: bool, device: DeviceSpec) -> TileProgram | None:
    return kernel_template(program.choice).in_turns(program, blocks, fetches_early, device)


def replacement_refusal(body: TileProgram, program: TileProgram) -> Rejected | None:
    """Why a body cannot take the place of a part's program; None where it can. Blocks in turns are no more than the part has."""
    if turns_bytes(body) and turns_bytes(program) and body.launch.num_blocks <= program.launch.num_blocks:
        return None
    return part_refusal(body)


def turns_bytes(program: TileProgram) -> int:
    """Bytes that the block with the most turns fetches; 0 for a program whose blocks take none."""
    return kernel_template(program.choice).turns_bytes(program)
