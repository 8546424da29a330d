"""Recurrent cells: one step each. A network unrolls them over its sequence, or hands `step` to `tilefuse.array.scan`."""
from __future__ import annotations

from typing import Any

import tilefuse.array as ta
from tilefuse.arrays.arguments import whole_number
from tilefuse.arrays.functions import neural
from tilefuse.nn.initialise import Seed, generator, inverse_root
from tilefuse.nn.module import Module, Parameter


class _Cell(Module):
    """Weights of `gates` linear maps of input and state, one below the other."""

    weight_ih: Any
    weight_hh: Any
    bias: Any

    def __init__(self, inputs: int, width: int, gates: int, seed: Seed, dtype: Any) -> None:
        super().__init__()
        draws = generator(seed)
        self.width = width = whole_number(width, "the width of a state")
        self.weight_ih = Parameter(inverse_root((gates * width, inputs), width, draws, dtype))
        self.weight_hh = Parameter(inverse_root((gates * width, width), width, draws, dtype))
        self.bias = Parameter(inverse_root((gates * width,), width, draws, dtype))

    def gates(self, x: Any, h: Any) -> Any:
        """x @ weight_ih^T + h @ weight_hh^T + bias."""
        return neural.linear(x, self.weight_ih, self.bias) + neural.linear(h, self.weight_hh)

    def zeros(self, batch: int, dtype: Any = None) -> Any:
        """A state of zeros. Shapes: [batch, width]"""
        return ta.zeros((batch, self.width), dtype=dtype or self.bias.dtype)


class RNNCell(_Cell):
    """tanh of the sum of both products. Shapes: x: [N, inputs], h: [N, width] -> [N, width]"""

    def __init__(self, inputs: int, width: int, *, seed: Seed = None, dtype: Any = None) -> None:
        super().__init__(inputs, width, 1, seed, dtype)

    def forward(self, x: Any, h: Any) -> Any:
        """The next state, tanh of the gates."""
        return ta.tanh(self.gates(x, h))


class LSTMCell(_Cell):
    """Gates input, forget, new, output. Shapes: x: [N, inputs], h, c: [N, width] -> (h, c)"""

    def __init__(self, inputs: int, width: int, *, seed: Seed = None, dtype: Any = None) -> None:
        super().__init__(inputs, width, 4, seed, dtype)

    def forward(self, x: Any, h: Any, c: Any) -> Any:
        """The next hidden and cell state."""
        gates, width = self.gates(x, h), self.width
        i, f, g, o = (gates[:, n * width:(n + 1) * width] for n in range(4))
        c = neural.sigmoid(f) * c + neural.sigmoid(i) * ta.tanh(g)
        return neural.sigmoid(o) * ta.tanh(c), c


class GRUCell(Module):
    """Gates reset, update, new; arguments and state are those of torch.nn. Shapes: x: [N, inputs], h: [N, width] -> [N, width]

    The reset gate scales the state's part of the new value behind its product, so both products have a bias.
    """

    weight_ih: Any
    weight_hh: Any
    bias_ih: Any
    bias_hh: Any

    def __init__(self, inputs: int, width: int, bias: bool = True, *, seed: Seed = None, dtype: Any = None) -> None:
        super().__init__()
        draws = generator(seed)
        self.width = width = whole_number(width, "the width of a state")
        self.weight_ih = Parameter(inverse_root((3 * width, inputs), width, draws, dtype))
        self.weight_hh = Parameter(inverse_root((3 * width, width), width, draws, dtype))
        self.bias_ih = Parameter(inverse_root((3 * width,), width, draws, dtype)) if bias else None
        self.bias_hh = Parameter(inverse_root((3 * width,), width, draws, dtype)) if bias else None

    def forward(self, x: Any, h: Any = None) -> Any:
        """The next state; without `h` the first one, from zeros. One sample may come without the batch."""
        if h is None:
            h = ta.zeros((*x.shape[:-1], self.width), dtype=x.dtype)
        from_x, from_h, width = neural.linear(x, self.weight_ih, self.bias_ih), neural.linear(h, self.weight_hh, self.bias_hh), self.width
        (xr, xz, xn), (hr, hz, hn) = ([gates[..., n * width:(n + 1) * width] for n in range(3)] for gates in (from_x, from_h))
        r, z = neural.sigmoid(xr + hr), neural.sigmoid(xz + hz)
        n = ta.tanh(xn + r * hn)
        return n + z * (h - n)
