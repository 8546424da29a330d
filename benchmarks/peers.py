"""Who is measured: eager torch, torch.compile (Inductor), jax.jit, tilefuse. Each turns a case into callables to time."""
from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from benchmarks import turns
from benchmarks.case import Case, Tensors, as_tuple
from benchmarks.timing import CLOCK_S, Timing, time_calls, time_queue

# "unfused" is tilefuse with a kernel for every node.
PEERS = ("eager", "inductor", "jax", "unfused", "tilefuse")
INDUCTOR_MODE = "max-autotune-no-cudagraphs"
# Calls in one captured graph, at least about: what a replay costs besides is shared by them. With a random generator it first fills
# in two numbers, 14 us a replay on an H200. Calls of so many operations take a millisecond and more: once each is enough.
GRAPH_CALLS = 8
LONG_CALL_FLOPS = 5e11


class NotApplicable(Exception):
    """The peer has no version of this case, or is not installed; the message says which."""


@dataclass(frozen=True)
class Prepared:
    """A peer's compiled case. `run(inputs)` gives the tensors; `time(sets, device, seconds)` measures for about so long; `facts` go into
    the record."""

    run: Callable[[Sequence[torch.Tensor]], Tensors]
    time: Callable[..., tuple[Timing, Tensors]]
    compile_s: float
    facts: dict[str, object] = field(default_factory=dict)


@cache
def warm(peer: str, device: torch.device) -> None:
    """Have a compiler of this process load what every compile needs, once, so that its first case is not charged for imports."""
    with turns.let_go():
        _warm(peer, device)


def _warm(peer: str, device: torch.device) -> None:
    x = torch.ones(8, device=device)
    match peer:
        case "inductor":
            torch.compile(_twice, dynamic=False)(x)
            torch._dynamo.reset()
        case "tilefuse":
            import tilefuse
            from tilefuse.driver import torch_backend

            tilefuse.compile(_twice, (x,))(x)
            torch.compile(_twice, backend=torch_backend.backend, dynamic=False)(x)
            torch_backend.reset()
            torch._dynamo.reset()
        case "jax":
            with contextlib.suppress(ImportError):
                _import_jax().block_until_ready(_import_jax().numpy.ones(8))


def _import_jax() -> Any:
    """JAX, set to take memory as it needs it. Raises: ImportError."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    return jax


def _twice(x: torch.Tensor) -> torch.Tensor:
    return x + x


def prepare(peer: str, case: Case, inputs: Sequence[torch.Tensor], *, inductor_mode: str = INDUCTOR_MODE) -> Prepared:
    """The case made ready for a peer: compiled and run once.

    Raises: NotApplicable where the peer has nothing to run.
    """
    warm(peer, inputs[0].device)
    match peer:
        case "eager":
            return _of_torch(case.eager or case.function, inputs, case)
        case "inductor":
            torch._dynamo.reset()
            mode = None if inductor_mode == "default" else inductor_mode
            compiled = torch.compile(case.function, dynamic=False, fullgraph=True, mode=mode)
            return _of_torch(compiled, inputs, case)
        case "tilefuse":
            return _of_tilefuse(case, inputs)
        case "jax":
            return _of_jax(case, inputs)
    raise NotApplicable(f"no peer is called {peer}; there are {', '.join(PEERS)}")


def num_rounds(case: Case, num_sets: int) -> int:
    """How often each input set is used in one timed queue of calls."""
    return 1 if case.flops >= LONG_CALL_FLOPS else max(1, GRAPH_CALLS // num_sets)


def _of_torch(function: Callable[..., object], inputs: Sequence[torch.Tensor], case: Case, facts: dict[str, object] | None = None,
              ) -> Prepared:
    def run(tensors: Sequence[torch.Tensor]) -> Tensors:
        with torch.no_grad():
            return as_tuple(function(*tensors))

    def measure(sets: Sequence[Sequence[torch.Tensor]], device: torch.device, seconds: float = CLOCK_S) -> tuple[Timing, Tensors]:
        with torch.no_grad():
            calls = [lambda s=s: function(*s) for s in sets] * num_rounds(case, len(sets))  # type: ignore[misc]
            timing, result = time_calls(calls, device, budget_s=seconds)
        return timing, as_tuple(result)

    started = turns.clock()
    with turns.let_go():
        run(inputs)
        _wait(inputs)
        compile_s = turns.clock() - started
    return Prepared(run, measure, compile_s, facts or {})


def _of_tilefuse(case: Case, inputs: Sequence[torch.Tensor]) -> Prepared:
    import json

    import tilefuse

    started = turns.clock()
    if case.script:
        return _of_script(case, inputs)
    with turns.let_go():
        program = tilefuse.compile(case.function, tuple(inputs))
        compile_s = turns.clock() - started
    explanation = program.explain(json=True)
    if isinstance(explanation, str):
        explanation = json.loads(explanation)
    facts: dict[str, object] = {
        "num_kernels": len(explanation.get("kernels", ())),
        "library_calls": [call.get("operator", call.get("name")) for call in explanation.get("library", ())],
        "fallbacks": explanation.get("fallbacks", []),
    }
    prepared = _of_torch(program, inputs, case, facts)
    return Prepared(prepared.run, prepared.time, compile_s, facts)


def _of_script(case: Case, inputs: Sequence[torch.Tensor]) -> Prepared:
    from tilefuse import blas

    started = turns.clock()
    with turns.let_go():
        function = blas.compile(case.script)
        made = function.program_for(*inputs)
        compile_s = turns.clock() - started
    facts: dict[str, object] = {"num_kernels": len(made.program.spec.steps), "how": made.choice.how}
    prepared = _of_torch(function, inputs, case, facts)
    return Prepared(prepared.run, prepared.time, compile_s, facts)


def _of_jax(case: Case, inputs: Sequence[torch.Tensor]) -> Prepared:
    if case.jax is None:
        raise NotApplicable("no jax version of this pattern")
    try:
        jax = _import_jax()
    except ImportError as missing:
        raise NotApplicable("jax is not installed") from missing
    function = case.jax
    on_device = inputs[0].device.type == "cuda"
    if on_device and jax.default_backend() != "gpu":
        raise NotApplicable("jax sees no GPU")

    def bring(tensors: Sequence[torch.Tensor]) -> list[object]:
        return [jax.dlpack.from_dlpack((t.int() if t.dtype == torch.int64 else t).contiguous()) for t in tensors]

    single = jax.jit(function)

    def run(tensors: Sequence[torch.Tensor]) -> Tensors:
        _wait(tensors)
        result = jax.block_until_ready(single(*bring(tensors)))
        results = result if isinstance(result, tuple | list) else (result,)
        return tuple(torch.from_dlpack(r) for r in results)

    def measure(sets: Sequence[Sequence[torch.Tensor]], device: torch.device, seconds: float = CLOCK_S) -> tuple[Timing, Tensors]:
        # One jitted program runs the pattern on every set in turn (a barrier keeps them apart), so that the cost of
        # starting it is spread as the graph replay spreads it for the other peers.
        num_calls = len(sets) * num_rounds(case, len(sets))

        @jax.jit
        def in_turn(all_sets: list[list[object]]) -> list[object]:
            results: list[object] = []
            for arguments in all_sets:
                if results:
                    arguments, results[-1] = jax.lax.optimization_barrier((arguments, results[-1]))
                results.append(function(*arguments))
            return results

        brought = [bring(s) for s in sets]
        arguments = [brought[i % len(brought)] for i in range(num_calls)]
        _wait(sets[0])
        timing = time_queue(lambda: in_turn(arguments), jax.block_until_ready, num_calls, seconds)
        return timing, run(sets[0])

    started = turns.clock()
    run(inputs)
    return Prepared(run, measure, turns.clock() - started)


def _wait(tensors: Sequence[torch.Tensor]) -> None:
    if tensors and tensors[0].device.type == "cuda":
        torch.cuda.synchronize()
