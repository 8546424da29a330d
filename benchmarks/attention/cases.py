"""Cases of attention by name: the plain definition, its inputs, and its definition in double precision.

    bf16/causal/2x32g8x8192x128         type, kind, batch x heads [g key heads] x rows [k keys] x width
    f16/window1024/1x16x8192x64         kinds with a number: window, prefix, cap, documents (of each batch, causal)
"""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tilefuse.frontends.torch.decompositions import decompositions
from tilefuse.frontends.torch.fx import import_fx
from tilefuse.ir.graph import Graph
from tilefuse.passes import DEFAULT_PIPELINE
from tilefuse.passes.manager import PassContext, Pipeline

NAME = re.compile(r"(?P<dtype>f16|bf16)/(?P<kind>[a-z_]+)(?P<number>\d*)/(?P<batch>\d+)x(?P<heads>\d+)(?:g(?P<key_heads>\d+))?"
                  r"x(?P<rows>\d+)(?:k(?P<keys>\d+))?x(?P<width>\d+)$")
TYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
LOWEST = float("-inf")


@dataclass(frozen=True)
class Attention:
    """softmax(f(q k' / sqrt(width))) v over [batch, heads, rows]. number: of a window's or a prefix's columns, of a cap."""

    name: str
    dtype: torch.dtype
    kind: str
    number: int
    batch: int
    heads: int
    key_heads: int
    rows: int
    keys: int
    width: int

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of queries, keys and values."""
        left, right = (self.batch, self.heads, self.rows, self.width), (self.batch, self.key_heads, self.keys, self.width)
        return [left, right, right]

    def inputs(self, device: str | torch.device, seed: int = 0) -> list[torch.Tensor]:
        """Normally distributed operands, and the bias or mask behind them."""
        draw = torch.Generator(device=device).manual_seed(seed)
        made = [torch.randn(s, device=device, generator=draw).to(self.dtype) for s in self.shapes]
        square = (self.rows, self.keys)
        match self.kind:
            case "bias":
                made.append(torch.randn((self.batch, self.heads, *square), device=device, generator=draw).to(self.dtype))
            case "headbias":
                made.append(torch.randn((self.heads, *square), device=device, generator=draw).to(self.dtype))
            case "mask":
                made.append(torch.rand((self.batch, 1, *square), device=device, generator=draw) < 0.8)
            case "padding":
                ends = torch.randint(self.keys // 4, self.keys, (self.batch, 1), device=device, generator=draw)
                made.append((torch.arange(self.keys, device=device) < ends)[:, None, None, :])
            case "documents":
                ids = torch.randint(0, self.number, (self.batch, self.keys), device=device, generator=draw).sort(-1).values.int()
                made += [ids[:, None, self.keys - self.rows:, None].contiguous(), ids[:, None, None, :]]
            case "lengths":
                made.append(torch.randint(self.keys // 4, self.keys, (self.batch, 1, 1, 1), device=device, generator=draw))
        return made

    def scores(self, s: torch.Tensor, head: torch.Tensor, row: torch.Tensor, *extra: torch.Tensor) -> torch.Tensor:
        """The function of scores. head, row: numbers of heads and of rows, of shapes that broadcast to that of `s`."""
        column = torch.arange(self.keys, device=s.device)
        causal = column <= row
        match self.kind:
            case "plain" | "logs":
                return s
            case "causal":
                return torch.where(causal, s, LOWEST)
            case "window":
                return torch.where(causal & (row - column < self.number), s, LOWEST)
            case "prefix":
                return torch.where(causal | (column < self.number), s, LOWEST)
            case "documents":
                return torch.where(causal & (extra[0] == extra[1]), s, LOWEST)
            case "alibi":
                slope = torch.exp2(-8.0 / self.heads * (head + 1))
                wide = s if s.dtype == torch.float64 else s.float()
                return torch.where(causal, wide + (column - row).to(wide.dtype) * slope, LOWEST)
            case "cap":
                return torch.where(causal, torch.tanh(s / self.number) * self.number, LOWEST)
            case "bias" | "headbias":
                return s + extra[0]
            case "lengths":
                return torch.where(column < extra[0], s, LOWEST)
            case "mask" | "padding":
                return torch.where(extra[0], s, LOWEST)
        raise ValueError(f"no attention of kind {self.kind}")

    def definition(self) -> Callable[..., torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
        """The function of queries, keys, values, and a bias or mask."""
        def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *extra: torch.Tensor
                      ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
            if self.key_heads != self.heads:
                k, v = (x.repeat_interleave(self.heads // self.key_heads, 1) for x in (k, v))
            head = torch.arange(self.heads, device=q.device, dtype=torch.float32)[:, None, None]
            row = torch.arange(self.rows, device=q.device)[:, None]
            s = self.scores(q @ k.mT * self.width**-0.5, head, row, *extra)
            y = torch.softmax(s, -1).to(self.dtype) @ v
            return (y, torch.logsumexp(s.float(), -1)) if self.kind == "logs" else y
        return attention

    def rows_in_double(self, inputs: list[torch.Tensor], batch: int, head: int, row: torch.Tensor) -> torch.Tensor:
        """Some rows of one head's result in double precision."""
        key_head = head * self.key_heads // self.heads
        q, k, v = inputs[0][batch, head, row].double(), inputs[1][batch, key_head].double(), inputs[2][batch, key_head].double()
        extra = [x[batch, head % x.shape[1]] if x.dim() == 4 else x[head] for x in inputs[3:]]
        extra = [x[row] if x.shape[0] > 1 else x for x in extra]
        number = torch.tensor(float(head), device=q.device, dtype=torch.float64)
        wide = (x.double() if x.is_floating_point() else x for x in extra)
        return torch.softmax(self.scores(q @ k.mT * self.width**-0.5, number, row[:, None], *wide), -1) @ v

    def graph(self) -> Graph:
        """The definition as a graph in normal form."""
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx
        from torch.utils._python_dispatch import _disable_current_modes

        with FakeTensorMode():
            traced = make_fx(self.definition(), decomposition_table=decompositions())(*self.inputs("cpu"))
        with _disable_current_modes():
            return Pipeline.parse(DEFAULT_PIPELINE).run(import_fx(traced, "attention").graph, PassContext())


def attention_of(name: str) -> Attention:
    """The case of a name. Raises: ValueError for a name of another form."""
    match = NAME.match(name)
    if match is None:
        raise ValueError(f"{name} names no attention")
    rows, heads = int(match["rows"]), int(match["heads"])
    return Attention(name, TYPES[match["dtype"]], match["kind"], int(match["number"] or 0), int(match["batch"]), heads,
                     int(match["key_heads"] or heads), rows, int(match["keys"] or rows), int(match["width"]))
