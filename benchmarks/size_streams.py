"""Streams of calls whose sizes change: a language model with a growing cache, random batches, sizes that return.

A stream is a model and its calls in order; what is measured is the time of all of them together, compilation included.
"""
from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.timing import wait

Run = Callable[[Callable[..., Any]], list[Tensor]]

# Factor over eager's own error against f64 within which results count as right.
ERROR_FACTOR = 4.0

# Time for the compiles in the background to end, while the calls go on. Units: seconds
SETTLE_S = 8.0

# Different sizes in a tiny stream of batches.
TINY_SIZES = 4


class CachedLayer(nn.Module):
    """A decoder layer that appends its keys and values to a cache. Shapes: [batch, length, width] -> the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch, length, width = x.shape
        q, k, v = (y.view(batch, length, self.heads, -1).transpose(1, 2) for y in self.joint(self.before(x)).split(width, 2))
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.outer(F.gelu(self.inner(self.between(x)), approximate="tanh")), (k, v)


class Gpt(nn.Module):
    """GPT-2 with a cache. Shapes: tokens [batch, length] -> scores of the next token [batch, words], and the cache of each layer."""

    def __init__(self, layers: int = 4, width: int = 768, heads: int = 12, words: int = 50257, length: int = 1024) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(CachedLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, caches: list[tuple[Tensor, Tensor]] | None = None) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        past = 0 if caches is None else caches[0][0].shape[2]
        x = self.tokens(tokens) + self.places(torch.arange(past, past + tokens.shape[1], device=tokens.device))
        grown = []
        for n, layer in enumerate(self.layers):
            x, cache = layer(x, None if caches is None else caches[n])
            grown.append(cache)
        return F.linear(self.norm(x[:, -1]), self.tokens.weight), grown


def generate(model: Callable[..., Any], prompt: Tensor, count: int) -> list[Tensor]:
    """The tokens that follow a prompt, the likeliest each time; the cache grows by one a call."""
    scores, caches = model(prompt)
    made = [scores.argmax(-1, keepdim=True)]
    for _ in range(count - 1):
        scores, caches = model(made[-1], caches)
        made.append(scores.argmax(-1, keepdim=True))
    return [torch.cat(made, 1)]


@dataclass(frozen=True)
class Stream:
    """A model and its calls. of_tokens: results are token numbers, which must be eager's; else numbers, judged by their error."""

    model: nn.Module
    run: Run
    of_tokens: bool


def _generation(count: int) -> Callable[[bool, torch.device], Stream]:
    def make(tiny: bool, device: torch.device) -> Stream:
        model = (Gpt(2, 32, 2, 100, 512) if tiny else Gpt()).to(device).eval()
        prompt = torch.randint(0, 100, (1, 16), device=device)
        return Stream(model, lambda run: generate(run, prompt, min(count, 60) if tiny else count), of_tokens=True)
    return make


def _batches(sizes: Callable[[random.Random], list[int]]) -> Callable[[bool, torch.device], Stream]:
    def make(tiny: bool, device: torch.device) -> Stream:
        width = 16 if tiny else 512
        layers = [nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.LayerNorm(width))
                  for _ in range(1 if tiny else 4)]
        model = nn.Sequential(*layers).to(device).eval()
        drawn = sizes(random.Random(0))
        if tiny:
            few = list(dict.fromkeys(drawn))[:TINY_SIZES]
            drawn = [n for n in drawn if n in few]
        inputs = torch.randn(max(drawn), width, device=device)

        def run(called: Callable[..., Any]) -> list[Tensor]:
            # A result of the program's own type: the model for f64 gets its numbers in f64.
            dtype = next(model_of(called).parameters()).dtype
            return [called(inputs[:n].to(dtype)).sum(0) for n in drawn]
        return Stream(model, run, of_tokens=False)
    return make


def model_of(called: Callable[..., Any]) -> nn.Module:
    """The module behind a compiled one."""
    found = getattr(called, "_orig_mod", called)
    assert isinstance(found, nn.Module)
    return found


STREAMS: dict[str, Callable[[bool, torch.device], Stream]] = {
    "generate/40": _generation(40),
    "generate/400": _generation(400),
    "batches/100": _batches(lambda draw: [draw.randrange(2, 2049) for _ in range(100)]),
    "returning/10": _batches(lambda draw: [n for _ in range(40) for n in draw.sample(range(100, 1100, 100), 10)]),
}

BACKENDS = {"eager": None, "aot_eager": "aot_eager", "inductor": "inductor", "tilefuse": "tilefuse"}


def compiled(model: nn.Module, peer: str, options: dict[str, Any] | None = None) -> Callable[..., Any]:
    """The model as a peer runs it."""
    if peer == "eager":
        return model
    if peer != "tilefuse":
        return torch.compile(model, backend=BACKENDS[peer])  # type: ignore[no-any-return]
    from tilefuse.driver.torch_backend import backend

    return torch.compile(model, backend=backend, options=options)  # type: ignore[no-any-return]


def measured(name: str, peer: str, tiny: bool, device: torch.device, options: dict[str, Any] | None = None,
             settles: bool = False) -> dict[str, Any]:
    """Time of a stream's calls for a peer, and whether its results are right.

    settles: the calls go on while sizes that returned are compiled in the background, and are timed in the end.
    Units: seconds. The peer compiles a small model first, so that imports and the loading of compilers are not charged to it.
    """
    torch.manual_seed(0)
    stream = STREAMS[name](tiny, device)
    with torch.no_grad():
        wanted = stream.run(stream.model)
        warm = compiled(_warming().to(device), peer, options)
        warm(torch.ones(3, 8, device=device))
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        run = compiled(stream.model, peer, options)
        wait(device)
        started, cpu = time.perf_counter(), time.process_time()
        made = stream.run(run)
        wait(device)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
        found: dict[str, Any] = {"seconds": seconds, "cpu_seconds": cpu_seconds, **_facts(peer), **_again(stream, run, device)}
        if settles:
            found |= _settled(stream, run, device, SETTLE_S)
        return {**found, **_judged(stream, made, wanted)}


def _warming() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))


def _again(stream: Stream, run: Callable[..., Any], device: torch.device) -> dict[str, float]:
    """The same calls twice more: sizes that come once in the stream return. Units: seconds."""
    found = {}
    for key in ("second_seconds", "third_seconds"):
        started = time.perf_counter()
        stream.run(run)
        wait(device)
        found[key] = time.perf_counter() - started
    return found


def _settled(stream: Stream, run: Callable[..., Any], device: torch.device, most_s: float) -> dict[str, float]:
    """The same calls again while sizes that returned are compiled in the background, until none is left or the time is over.

    settled_seconds: of the last turn. settled_after: seconds until it began. settled_programs, settled_in_torch: programs that there are
    then, and calls of that turn that ran in torch.
    """
    began, found = time.perf_counter(), {}
    while True:
        before = _facts("tilefuse")
        started = time.perf_counter()
        stream.run(run)
        wait(device)
        ended = time.perf_counter()
        in_torch = _facts("tilefuse")["calls_in_torch"] - before["calls_in_torch"]
        found = {"settled_seconds": ended - started, "settled_after": started - began, "settled_programs": before["programs"],
                 "settled_in_torch": in_torch}
        if not in_torch or ended - began > most_s:
            return found
        time.sleep(0.05)


def _facts(peer: str) -> dict[str, int]:
    found = {"graphs": int(torch._dynamo.utils.counters["stats"]["unique_graphs"])}
    if peer == "tilefuse":
        from tilefuse.driver.torch_backend import compiled_parts, sized_parts

        found |= {"programs": len(compiled_parts()), "calls_in_torch": sum(part.num_in_torch for part in sized_parts())}
    return found


def _judged(stream: Stream, made: list[Tensor], wanted: list[Tensor]) -> dict[str, Any]:
    if stream.of_tokens:
        return {"right": all(torch.equal(a, b) for a, b in zip(made, wanted, strict=True))}
    exact = stream.run(copy.deepcopy(stream.model).double())
    ours, eagers = (max(float((a - e).abs().max()) for a, e in zip(found, exact, strict=True)) for found in (made, wanted))
    return {"right": ours <= ERROR_FACTOR * eagers, "error": ours, "eager_error": eagers}
