"""Programs written in symbolic arrays: training steps of networks with Adam, an activation of one's own, Adam over many tensors, and what
the compiler needs for a training graph of a thousand nodes.

A step is forward, loss, backward and update; all peers start from the same weights and see the same batches, and their losses must agree.
Torch runs channels last with its fused Adam, the faster of its choices; narrow types run under autocast, weights stay f32.
"""
from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import tilefuse.array as ta
from benchmarks import turns
from benchmarks.array_networks import NETWORKS, load_into
from benchmarks.case import DTYPES
from benchmarks.peers import NotApplicable, warm
from benchmarks.timing import num_input_sets, peak_bytes, time_calls
from tilefuse import nn, optim

SEED = 2026
RATE = 1e-3
# Steps whose losses are compared.
CHECKED_STEPS = 3
BATCHES = (64, 256)
# Asked of the fused step against the unfused one.
MIN_FUSION = {"lenet": 1.4, "resnet18": 1.2, "resnet50": 1.2}
ACTIVATION_ELEMENTS = 1 << 26
ACTIVATIONS = ("arrays", "registered", "built-in")
COMPILE_CASE = "compile/training/1000"


def listed() -> list[dict[str, Any]]:
    """All cases as plain facts, those of f32 with the small batch at rank 0."""
    found: list[dict[str, Any]] = []
    for network, least in MIN_FUSION.items():
        for dtype in ("f32", *(() if network == "lenet" else ("bf16",))):
            for batch in BATCHES:
                found.append({"name": f"{network}/training/{dtype}/{batch}", "family": network, "dtype": dtype,
                              "rank": int(dtype != "f32" or batch != BATCHES[0]), "min_of_limit": 0.0, "min_speedup": 1.0,
                              "min_fusion": least})
    found += [{"name": f"activation/{kind}/f32/{ACTIVATION_ELEMENTS}", "family": "activation", "dtype": "f32", "rank": 0,
               "min_of_limit": 0.9} for kind in ACTIVATIONS]
    found.append({"name": "adam/f32/96", "family": "adam", "dtype": "f32", "rank": 0, "min_of_limit": 0.85})
    found.append({"name": COMPILE_CASE, "family": "compile", "dtype": "f32", "rank": 0, "min_of_limit": 0.0})
    return found


def measure_array_case(name: str, peer: str, device: torch.device, *, inductor_mode: str, tiny: bool) -> dict[str, Any]:
    """One peer on one case. Raises: NotApplicable where the peer has no version of it."""
    family, *rest = name.split("/")
    match family:
        case "activation":
            return measure_activation(rest[0], peer, device, tiny)
        case "adam":
            return measure_adam(peer, device, inductor_mode, tiny)
        case "compile":
            return measure_compile(peer, device, tiny)
    return measure_training(family, rest[1], 2 if tiny else int(rest[2]), peer, device, inductor_mode, tiny)


# -- training steps --------------------------------------------------------------------------------------------------------------

def measure_training(network: str, dtype: str, batch: int, peer: str, device: torch.device, inductor_mode: str,
                     tiny: bool) -> dict[str, Any]:
    """A training step: losses of the first steps compared with eager torch in f32, then time and peak memory.

    Units: microseconds a step, seconds to compile, bytes beyond weights and state.
    """
    warm("tilefuse" if peer == "unfused" else peer, device)
    batches = batches_of(NETWORKS[network].image(tiny), NETWORKS[network].classes(tiny), batch, device)
    reference, rounded = losses_of_torch(network, dtype, batch, device, tiny)
    started = turns.clock()
    with turns.let_go():
        step = torch_step(network, dtype, peer, device, tiny, inductor_mode) if peer in ("eager", "inductor") else \
            ArrayStep(network, dtype, device, tiny, fuse=peer == "tilefuse")
        first = step(*batches[0]).item()
        compile_s = turns.clock() - started
    losses = [first, *losses_of(step, batches[1:])]
    timing, _ = time_calls([lambda b=b: step(*b) for b in batches[:2]], device, budget_s=1.0)
    # Gradients that torch keeps until the next step are not part of weights and state.
    getattr(step, "forget", gc.collect)()
    error, eager_error = _worst(losses, reference), _worst(rounded, reference)
    record: dict[str, Any] = {
        "status": "ok", "us": timing.median_us, "low_us": timing.low_us, "high_us": timing.high_us, "method": timing.method,
        "compile_s": round(compile_s, 3), "losses": losses, "error": error, "eager_error": eager_error,
        "peak_bytes": peak_bytes(lambda: step(*batches[1]), device), **getattr(step, "facts", {}),
    }
    if not error <= 2 * eager_error + 2.5e-3:
        told = f"losses {losses}, eager f32 {reference}: error {error:.3g} where eager has {eager_error:.3g}"
        record |= {"status": "wrong", "reason": told}
    return record


@cache
def losses_of_torch(network: str, dtype: str, batch: int, device: torch.device, tiny: bool) -> tuple[list[float], list[float]]:
    """Losses of eager torch with products in f32, and as it trains in `dtype`: all peers of a case are held against them."""
    batches = batches_of(NETWORKS[network].image(tiny), NETWORKS[network].classes(tiny), batch, device)
    found = (losses_of(torch_step(network, "f32", "eager", device, tiny, exact=True), batches),
             losses_of(torch_step(network, dtype, "eager", device, tiny), batches))
    _clear(device)
    return found


@cache
def first_weights(network: str, tiny: bool) -> dict[str, Any]:
    """Weights from which every torch network of a case starts, drawn once."""
    return NETWORKS[network].arrays(tiny).state_dict()


def batches_of(image: tuple[int, int, int], classes: int, batch: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Random images and classes, one pair a checked step."""
    generator = torch.Generator(device).manual_seed(SEED)
    return [(torch.randn((batch, *image), device=device, generator=generator),
             torch.randint(0, classes, (batch,), device=device, generator=generator)) for _ in range(CHECKED_STEPS)]


def _clear(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def losses_of(step: Callable[[Tensor, Tensor], Tensor], batches: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
    """Losses of a few steps."""
    return [step(*b).item() for b in batches]


def _worst(losses: Sequence[float], reference: Sequence[float]) -> float:
    found = max(abs(a - b) / abs(b) for a, b in zip(losses, reference, strict=True))
    return found if found == found else float("inf")


def torch_step(network: str, dtype: str, peer: str, device: torch.device, tiny: bool, inductor_mode: str = "default",
               exact: bool = False) -> Callable[[Tensor, Tensor], Tensor]:
    """Torch's step, eager or compiled. exact: products of f32 in f32, not in tf32."""
    model = NETWORKS[network].torch(tiny)
    load_into(model, first_weights(network, tiny))
    model = model.to(device).train()
    if device.type == "cuda":
        model = model.to(memory_format=torch.channels_last)
    on_gpu = device.type == "cuda"
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE, fused=True, **({"capturable": True} if on_gpu else {}))

    def scope() -> AbstractContextManager[object]:
        return nullcontext() if dtype == "f32" else torch.autocast(device.type, DTYPES[dtype])

    def loss_of(x: Tensor, classes: Tensor) -> Tensor:
        with scope():
            return F.cross_entropy(model(x).float(), classes)

    if peer == "inductor":
        torch._dynamo.reset()
        loss_of = torch.compile(loss_of, dynamic=False, mode=None if inductor_mode == "default" else inductor_mode)

    def step(x: Tensor, classes: Tensor) -> Tensor:
        if on_gpu:
            x = x.contiguous(memory_format=torch.channels_last)
        before = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = before and not exact
        optimiser.zero_grad(set_to_none=True)
        loss = loss_of(x, classes)
        loss.backward()
        optimiser.step()
        torch.backends.cudnn.allow_tf32 = before
        return loss.detach()

    step.forget = lambda: optimiser.zero_grad(set_to_none=True)  # type: ignore[attr-defined]
    return step


class ArrayStep:
    """tilefuse's step on torch tensors. facts: kernels and library calls of its program."""

    def __init__(self, network: str, dtype: str, device: torch.device, tiny: bool, fuse: bool) -> None:
        narrow = {"f32": None, "bf16": ta.bfloat16, "f16": ta.float16}[dtype]
        model = NETWORKS[network].arrays(tiny)

        def loss_of(logits: Any, classes: Any) -> Any:
            return nn.cross_entropy(ta.astype(logits, ta.float32), classes)

        class Narrowed(nn.Module):
            """The network in a narrow type: layers convert their weights to the type of the images."""

            def __init__(self) -> None:
                super().__init__()
                self.inner = model

            def forward(self, x: Any) -> Any:
                return self.inner(x if narrow is None else ta.astype(x, narrow))

        self.step = nn.TrainingStep(Narrowed(), loss_of, optim.Adam(RATE), device=device, fuse=fuse)

    def __call__(self, x: Tensor, classes: Tensor) -> Tensor:
        return torch.from_dlpack(self.step(x, classes))

    @property
    def facts(self) -> dict[str, Any]:
        """Counts of the step's program."""
        return program_facts(self.step.compiled.programs[0].explain(json=True))


def program_facts(explanation: dict[str, Any]) -> dict[str, Any]:
    """Kernels and library calls of a program."""
    return {"num_kernels": explanation["num_kernels"], "unfused_kernels": explanation["unfused_kernels"],
            "num_library_calls": len(explanation["library"])}


# -- memory-bound ----------------------------------------------------------------------------------------------------------------

def sigmoid_of_arrays(x: Any) -> Any:
    """1 / (1 + exp(-x)) from array operations."""
    return 1.0 / (1.0 + ta.exp(-x))


@cache
def registered_sigmoid() -> Callable[[Any], Any]:
    """The same as an operator that a user registers."""
    return ta.register_operator("benchmark_sigmoid", "(x: float) -> float", "1 / (1 + exp(-x))", adjoint="g * y * (1 - y)")  # type: ignore[no-any-return]


def measure_activation(kind: str, peer: str, device: torch.device, tiny: bool) -> dict[str, Any]:
    """An activation over one large tensor, three ways of writing it. Units: microseconds a call."""
    warm("tilefuse", device)
    count = 1 << 12 if tiny else ACTIVATION_ELEMENTS
    moved = 8 * count
    sets = num_input_sets(moved, device, most=4)
    generator = torch.Generator(device).manual_seed(SEED)
    inputs = [torch.randn(count, device=device, generator=generator) for _ in range(sets)]
    ours = {"arrays": sigmoid_of_arrays, "built-in": nn.sigmoid}.get(kind) or registered_sigmoid()
    started = time.perf_counter()
    match peer:
        case "eager":
            run: Callable[..., Any] = torch.sigmoid
        case "inductor":
            torch._dynamo.reset()
            run = torch.compile(torch.sigmoid, dynamic=False)
        case "tilefuse":
            compiled = ta.compile(ours, device=device)

            def run(x: Tensor) -> Tensor:
                return torch.from_dlpack(compiled(x))
        case _:
            raise NotApplicable(f"{peer} has no version of this")
    found = run(inputs[0])
    compile_s = time.perf_counter() - started
    wanted = torch.sigmoid(inputs[0].double())
    error = ((found.double() - wanted).norm() / wanted.norm()).item()
    timing, _ = time_calls([lambda x=x: run(x) for x in inputs], device)
    status = {"status": "ok"} if error < 1e-6 else {"status": "wrong", "reason": f"relative error {error:.3g}"}
    return {**status, "us": timing.median_us, "low_us": timing.low_us, "high_us": timing.high_us, "method": timing.method,
            "compile_s": round(compile_s, 3), "error": error, "bytes": moved}


def measure_adam(peer: str, device: torch.device, inductor_mode: str, tiny: bool) -> dict[str, Any]:
    """An Adam step of many tensors in place, written in array operations; torch's is its fused one, compiled as well for torch.compile.

    Units: microseconds a step; bytes: parameter and both moments read and written, gradients read.
    """
    from benchmarks.stitched import ADAM_ROUNDS, ADAM_SIZES

    warm("tilefuse", device)
    shapes = [tuple(min(n, 6) for n in s) for s in ADAM_SIZES] * 2 if tiny else list(ADAM_SIZES) * ADAM_ROUNDS
    generator = torch.Generator(device).manual_seed(SEED)
    parameters, gradients = ([torch.randn(s, device=device, generator=generator) for s in shapes] for _ in range(2))
    before, reference = [p.clone() for p in parameters], [p.clone().requires_grad_() for p in parameters]
    for p, g in zip(reference, gradients, strict=True):
        p.grad = g
    on_gpu = device.type == "cuda"
    torch.optim.Adam(reference, lr=RATE).step()
    reference = [p.detach() for p in reference]
    facts: dict[str, Any] = {}
    started = time.perf_counter()
    if peer == "tilefuse":
        names = [f"p{n}" for n in range(len(shapes))]
        update = ta.compile(optim.Adam(RATE).update, donate=(0, 2), device=device)
        held: list[Any] = [dict(zip(names, map(ta.asarray, parameters), strict=True))]
        held.append(optim.Adam(RATE).init(held[0]))
        given = dict(zip(names, map(ta.asarray, gradients), strict=True))

        def run() -> None:
            held[:] = update(held[0], given, held[1])

        run()
        facts = program_facts(update.programs[0].explain(json=True))
        found = [torch.from_dlpack(a) for a in held[0].values()]
    elif peer in ("eager", "inductor"):
        found = [p.clone().requires_grad_() for p in parameters]
        for p, g in zip(found, gradients, strict=True):
            p.grad = g
        optimiser = torch.optim.Adam(found, lr=RATE, fused=peer == "eager" or None, **({"capturable": True} if on_gpu else {}))
        run = optimiser.step
        if peer == "inductor":
            torch._dynamo.reset()
            run = torch.compile(optimiser.step, dynamic=False, mode=None if inductor_mode == "default" else inductor_mode)
        run()
        found = [p.detach() for p in found]
    else:
        raise NotApplicable(f"{peer} has no version of this")
    compile_s = time.perf_counter() - started
    found = [p.clone() for p in found]
    changes = [a - b for a, b in zip(reference, before, strict=True)]
    error = max(((a - b - c).norm() / c.norm()).item() for a, b, c in zip(found, before, changes, strict=True))
    timing, _ = time_calls([run] * 2, device, budget_s=1.0)
    status = {"status": "ok"} if error < 1e-3 else {"status": "wrong", "reason": f"relative error {error:.3g} of the change"}
    return {**status, "us": timing.median_us, "low_us": timing.low_us, "high_us": timing.high_us, "method": timing.method,
            "compile_s": round(compile_s, 3), "error": error, "bytes": 7 * sum(p.numel() * 4 for p in parameters), **facts}


# -- the compiler ----------------------------------------------------------------------------------------------------------------

def measure_compile(peer: str, device: torch.device, tiny: bool) -> dict[str, Any]:
    """Graph, gradient, plan and kernels of a training step with about a thousand nodes: in a new process with nothing cached, and in one
    more that finds everything in the cache.

    Units: microseconds for the cold one as a whole; seconds for its parts and for the cached one.
    """
    if peer != "tilefuse":
        raise NotApplicable("the compiler's own times")
    with tempfile.TemporaryDirectory(prefix="tilefuse-bench-") as cache:
        runs = [_compile_in_new_process(device, cache, tiny) for _ in range(2)]
    cold, cached = runs
    return {"status": "ok", "us": cold["total_s"] * 1e6, "method": "process", "cold": cold, "cached": cached,
            "cached_s": cached["total_s"], "num_nodes": cold["num_nodes"]}


def _compile_in_new_process(device: torch.device, cache: str, tiny: bool) -> dict[str, Any]:
    environment = {**os.environ, "TILEFUSE_CACHE_DIR": cache}
    command = [sys.executable, "-m", "benchmarks.array_compile", str(device), *(["--tiny"] if tiny else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"the compiling process ended with {done.returncode}: {done.stderr[-800:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
