"""Random numbers of a seed that is a value: operators of torch, so that the backward part of a step draws the forward's numbers again.

    seed = random_seed(device)               one draw of torch's generator, i64[1]
    u = random_uniform(seed, 3, shape)       number 3 of the operators that share the seed: equal wherever it is computed
    m = random_below(seed, 3, shape, 0.9)    u < 0.9: the mask of a dropout

`driver/torch/redrawn.py` puts them into joint graphs; `ops_random.py` and `ops_creation.py` lower them. Torch runs the functions here where
a part is not compiled: the same bits, by integers of 64 bits.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tilefuse.ir.meaning import PHILOX_MULTIPLIERS, PHILOX_ROUNDS, PHILOX_WEYL
from tilefuse.ir.ops import RANDOM_NUMBERS_A_CALL

_LOW, _HALF = 0xFFFFFFFF, 32
# Source: torch.randint takes bounds up to 2^63 - 1; half of them leave room for the numbers of operators.
SEEDS = 2**62


def drawn_seed(device: torch.device | str) -> torch.Tensor:
    """A fresh seed from torch's default generator of the device, so that `torch.manual_seed` reproduces every draw. Shapes: [1]"""
    return torch.randint(0, SEEDS, (1,), dtype=torch.int64, device=device)


def drawn_words(seed: torch.Tensor, counter: torch.Tensor) -> list[torch.Tensor]:
    """The four words of `tilefuse.ir.meaning.random_block`, as i64. Shapes: seed: [1]; counter and results alike"""
    block = counter >> (RANDOM_NUMBERS_A_CALL.bit_length() - 1)
    k0, k1 = seed & _LOW, (seed >> _HALF) & _LOW
    c0, c1 = block & _LOW, (block >> _HALF) & _LOW
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    for _ in range(PHILOX_ROUNDS):
        p0, p1 = c0 * PHILOX_MULTIPLIERS[0], c2 * PHILOX_MULTIPLIERS[1]
        high0, high1 = (p0 >> _HALF) & _LOW, (p1 >> _HALF) & _LOW
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, p1 & _LOW, high0 ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + PHILOX_WEYL[0]) & _LOW, (k1 + PHILOX_WEYL[1]) & _LOW
    return [c0, c1, c2, c3]


def drawn_uniform(seed: torch.Tensor, number: int, shape: Sequence[int]) -> torch.Tensor:
    """`tilefuse.ir.meaning.random_uniform` of the key `seed + number`, of row-major positions. Shapes: seed: [1]; result: `shape`, f32"""
    counter = torch.arange(math.prod(shape), device=seed.device)
    words = torch.stack(drawn_words(seed + number, counter))
    word = words.gather(0, (counter % RANDOM_NUMBERS_A_CALL)[None])[0]
    return ((word >> 8).float() * 2.0**-24).view(list(shape))


def drawn_below(seed: torch.Tensor, number: int, shape: Sequence[int], limit: float) -> torch.Tensor:
    """Where `drawn_uniform` is below a limit. Shapes: as there; bool"""
    return drawn_uniform(seed, number, shape) < limit


def drawn_normal(seed: torch.Tensor, number: int, shape: Sequence[int]) -> torch.Tensor:
    """`tilefuse.ir.meaning.random_normal` of the key `seed + number`, of row-major positions. Shapes: as `drawn_uniform`"""
    counter = torch.arange(math.prod(shape), device=seed.device)
    place = counter % RANDOM_NUMBERS_A_CALL
    uniform = [(word >> 8).double() * 2.0**-24 for word in drawn_words(seed + number, counter)]
    u, v = (torch.where(place < 2, uniform[n], uniform[n + 2]) for n in (0, 1))
    angle = 2.0 * math.pi * v
    turned = torch.where(place % 2 == 1, angle.sin(), angle.cos())
    return ((-2.0 * torch.log1p(-u)).sqrt() * turned).float().view(list(shape))


def _empty(seed: torch.Tensor, number: int, shape: Sequence[int]) -> torch.Tensor:
    return seed.new_empty(list(shape), dtype=torch.float32)


# Torch forgets the operators of a library object once it is freed.
_LIBRARY = torch.library.Library("tilefuse", "FRAGMENT")
_LIBRARY.define("random_seed(Device device) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_LIBRARY.impl("random_seed", drawn_seed, "CompositeExplicitAutograd")
torch.library.register_fake("tilefuse::random_seed", lambda device: torch.empty(1, dtype=torch.int64, device=device), lib=_LIBRARY)
for _name, _run in (("random_uniform", drawn_uniform), ("random_normal", drawn_normal)):
    _LIBRARY.define(f"{_name}(Tensor seed, int number, SymInt[] shape) -> Tensor")
    _LIBRARY.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"tilefuse::{_name}", _empty, lib=_LIBRARY)
_LIBRARY.define("random_below(Tensor seed, int number, SymInt[] shape, float limit) -> Tensor")
_LIBRARY.impl("random_below", drawn_below, "CompositeExplicitAutograd")
torch.library.register_fake("tilefuse::random_below", lambda seed, number, shape, limit: seed.new_empty(list(shape), dtype=torch.bool),
                            lib=_LIBRARY)
RANDOM_SEED: Any = torch.ops.tilefuse.random_seed.default
RANDOM_UNIFORM: Any = torch.ops.tilefuse.random_uniform.default
RANDOM_BELOW: Any = torch.ops.tilefuse.random_below.default
RANDOM_NORMAL: Any = torch.ops.tilefuse.random_normal.default
